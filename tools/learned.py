"""Where MeZO and HELENE learned, from the committed rows.

``python -m tools.learned`` writes the table of ``docs/findings/language_models.md`` and two lines of ``README.md``.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from helene.inputs.files import write_text
from helene.lab.runs.records import read_once
from llm_bench.protocol.plan import Cell, test_seeds
from llm_bench.protocol.presets import SECOND_MODEL, get_preset
from llm_bench.report.cell_numbers import OF_A_TABLE, Numbers, check_alike, check_seeds, has_metric
from llm_bench.report.compare import CONTROLS, TASKS, Duel, decidable, duels
from llm_bench.report.page_tables import markdown_table, put_between_marks
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.untrained import unsupported
from llm_bench.tasks.task import Kind

ROOT = Path(__file__).parents[1]
ROWS, README = ROOT / "llm_bench" / "records" / "rows", ROOT / "README.md"
PAGE = ROOT / "docs" / "findings" / "language_models.md"
COMMAND = "python -m tools.learned"
COLUMNS = {
    "mezo": "MeZO",
    "helene": "HELENE",
    "zero-shot": "untrained",
    "bias-only": "one bias a class",
    "linear-probe": "linear probe",
    "icl": "in context",
}
BOTH = ("mezo", "helene")
MODELS = {"gemma": "Gemma", "smollm2": "SmolLM2", "MiniLM-L6 with an MLM head trained here": "MiniLM-L6"}


@dataclass(frozen=True)
class Row:
    """The test results of one file of rows.

    Attributes:
        kind: Of the model: causal or masked.
        task: As the paper writes it.
        model: Its short name.
        steps: Of the zeroth-order methods; 0 where none is there.
        file: Of the records, PRESET/KIND-TASK.jsonl.
        results: By method, one a seed.
        number: Test examples.
        aucs: By method, of tasks with two options.
    """

    kind: Kind
    task: str
    model: str
    steps: int
    file: str
    results: dict[str, list[float]]
    number: int
    aucs: dict[str, list[float]] = field(default_factory=dict)

    @property
    def preset(self) -> str:
        """Of the runs."""
        return self.file.split("/")[0]

    @property
    def error(self) -> float:
        """Standard error of an accuracy near that of the untrained model."""
        p = fmean(self.results["zero-shot"])
        return math.sqrt(p * (1 - p) / self.number)

    def learned(self, method: str) -> bool | None:
        """Whether its mean is two standard errors above the untrained model and a bias; None where it was not run.

        Of two options the AUC must be above a half as well, by two of its standard errors at chance (of two classes
        of one size): accuracy alone rises where a method learns which answer is frequent.
        """
        if method not in self.results:
            return None
        controls = [fmean(self.results[name]) for name in ("zero-shot", "bias-only") if name in self.results]
        if method in self.aucs and fmean(self.aucs[method]) <= 0.5 + 2 * math.sqrt(1 / (3 * self.number)):
            return False
        return fmean(self.results[method]) > max(controls) + 2 * self.error


def rows() -> list[Row]:
    """Of every file with an untrained model's result, causal models first.

    Raises:
        ValueError: If a file holds test runs of two models or precisions, or of one method with two step sizes, or one
            seed twice.
    """
    found = []
    for path in sorted(ROWS.glob("*/*.jsonl"), key=lambda path: (path.stem, path.parent.name)):
        runs = [run for run in read_once([path]) if has_metric(run) and run.config["tuning"] == "full"]
        file = path.relative_to(ROWS).as_posix()
        check_alike(runs, OF_A_TABLE, file)
        for method in {run.config["method"] for run in runs}:
            check_seeds((run for run in runs if run.config["method"] == method), f"{method} in {file}")
        tests = [(run.config, run.result["test"]) for run in runs]
        results: dict[str, list[float]] = {}
        aucs: dict[str, list[float]] = {}
        for config, test in sorted(tests, key=lambda one: (one[0]["seed"], one[0]["data_seed"])):
            results.setdefault(config["method"], []).append(test["metric"])
            if test["auc"] is not None:
                aucs.setdefault(config["method"], []).append(test["auc"])
        if "zero-shot" in results:
            config, test = tests[0]
            steps = max(config["steps"] for config, _ in tests)
            task, model = TASKS[config["task"]], MODELS.get(config["model"], config["model"])
            found.append(Row(config["kind"], task, model, steps, file, results, test["num_examples"], aucs))
    return found


def shown(values: Sequence[float], seeds: int = 1) -> str:
    """The mean, the range over seeds where they differ, and how many seeds there are where that is fewer."""
    low, mean, high = (f"{value:.3f}" for value in (min(values), fmean(values), max(values)))
    few = f", {len(values)} of {seeds} seeds" if len(values) < seeds else ""
    return (mean if low == high else f"{mean} ({low}–{high})") + few


def cell(row: Row, method: str, missing: str = "not run") -> str:
    """What a method came to, or that it is missing or cannot be run."""
    task = Path(row.file).stem.removeprefix(f"{row.kind}-")
    if values := row.results.get(method):
        return shown(values, len(test_seeds(get_preset(row.preset), Cell(row.kind, task, method, "full"))))
    cannot = method in UNTRAINED and unsupported(RunConfig(row.model, row.kind, task, method))
    return "cannot be run" if cannot else missing


def table(found: Sequence[Row]) -> str:
    """Rows in which a method trained, those where one learned first; columns that have a value."""
    trained = sorted((row for row in found if row.steps), key=lambda row: not any(map(row.learned, BOTH)))
    methods = [name for name in COLUMNS if any(name in row.results for row in trained)]
    head = ["task, model, steps", *(COLUMNS[name] for name in methods), "learned", "records"]
    lines = []
    for row in trained:
        cells = [cell(row, name) for name in methods]
        names = [COLUMNS[name] for name in BOTH if row.learned(name)]
        label = f"{row.task}, {row.model}, {row.steps:,}"
        link = f"[{row.preset}](../../llm_bench/records/rows/{row.file})"
        lines.append([label, *cells, ", ".join(names) or "none", link])
    return markdown_table(head, lines)


def longest(found: Iterable[Row]) -> list[Row]:
    """Of files with one task and model the one with the longest runs, of equal ones with the most, in their order."""

    def rank(row: Row) -> tuple[int, int]:
        return row.steps, sum(len(values) for name, values in row.results.items() if name not in CONTROLS)

    rows = list(found)
    most = {(row.model, row.task): row for row in sorted(rows, key=rank)}
    return [row for row in rows if most[row.model, row.task] is row]


def sentence(found: Sequence[Row]) -> str:
    """The line of the README on where it learned; a task is named with its model."""

    def named(chosen: Sequence[Row]) -> str:
        return ", ".join(f"{row.task} ({row.model})" for row in chosen)

    trained = longest(row for row in found if row.learned("mezo") is not None)
    parts = [f"{COLUMNS[method]} on {named([r for r in trained if r.learned(method)]) or 'none'}" for method in BOTH]
    neither = [row for row in trained if all(row.learned(method) is False for method in BOTH)]
    return f"**Where it learned**: {'; '.join(parts)}. **Where neither did**: {named(neither)}."


def count(found: Sequence[Row]) -> str:
    """The sentence of the README's first screen."""
    fought = fights(found)
    helene, mezo = ([duel.task for duel in fought if duel.winner == name] for name in ("HELENE", "MeZO"))
    rows = longest(row for row in found if row.preset != SECOND_MODEL)
    only = [row.task for row in rows if f"{row.task}, {row.model}" in mezo and not row.learned("mezo")]
    won = f"HELENE beats MeZO beyond noise on {len(helene) or 'none'} of {len(fought)} tasks measured"
    lost = f"MeZO beats HELENE on {len(mezo) or 'none'}, and learned all of these but {' and '.join(only) or 'none'}"
    return f"{won}; {lost}."


def fights(found: Sequence[Row]) -> list[Duel]:
    """HELENE and MeZO on each task, by the rule of the pages (`llm_bench.report.compare.lead`).

    A second model's rows repeat tasks and are left out.
    """
    percent = {
        Cell(row.kind, f"{row.task}, {row.model}", name, "full"): Numbers(
            tuple(100 * value for value in values), 100 * fmean(values), None, None, test_rows=row.number
        )
        for row in longest(row for row in found if row.preset != SECOND_MODEL)
        for name, values in row.results.items()
    }
    return decidable(duels(percent))


def placed(page: str, found: Sequence[Row]) -> str:
    """The page with the table."""
    return put_between_marks(page, "learned", table(found))


def main() -> None:
    """Writes the table and the lines."""
    found = rows()
    write_text(PAGE, placed(PAGE.read_text(encoding="utf-8"), found))
    readme = README.read_text(encoding="utf-8")
    readme = re.sub(r"^\*\*Where it learned\*\*.*$", sentence(found), readme, flags=re.MULTILINE)
    write_text(README, re.sub(r"HELENE beats MeZO beyond noise on [^.]*\.", count(found), readme))
    print(f"written: {PAGE.relative_to(ROOT)}, {README.relative_to(ROOT)}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
