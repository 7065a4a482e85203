"""Rendering: records to a page."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from importlib import resources
from pathlib import Path

from .common import subject

FAMILY = "quadratic"


class ScalingPage:
    """Page, figures and tables of the committed quadratics of the standard preset; fits and drawings included."""

    warmup_time = 0.0
    rounds = 1
    repeat = (1, 3, 10.0)
    timeout = 300

    def setup(self) -> None:
        with subject():
            from helene.lab.runs.records import config_key, read_jsonl
            from helene.noise import NOISE_VERSION
            from synthetic.design import load
            from synthetic.report.write import write_report
        folder = Path(str(resources.files("synthetic") / "records"))
        records = [record for path in sorted((folder / "standard").glob("*.jsonl")) for record in read_jsonl(path)]
        there = {record.key for record in records}
        design = load("standard", NOISE_VERSION)
        cells = [c for c in design.cells if c.family == FAMILY and config_key(c.config) in there]
        if not cells:
            raise NotImplementedError("this commit has no records of its standard preset")
        self.folder = tempfile.TemporaryDirectory()
        design = replace(design, cells=tuple(cells))
        self.write = lambda: write_report(Path(self.folder.name), design, records, "asv", {})

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def time_page_figures_and_tables(self) -> None:
        self.write()
