"""The whole way in minutes of a CPU: pretrain tiny models, tune them with MeZO and HELENE, write the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from helene.inputs.files import write_folder, write_text
from helene.lab.report import index_page, pages
from helene.lab.runs.store import Store
from helene.lab.sweeps.executors import ProcessExecutor
from llm_bench.models.fingerprint import cache_folder
from llm_bench.protocol.execute import Bench, execute, experiment
from llm_bench.protocol.plan import cells
from llm_bench.protocol.presets import Preset, get_preset
from llm_bench.report import details, figures, ranked, tables, writing
from llm_bench.runs.environment import environment
from llm_bench.tasks.task import Kind
from llm_bench.tiny import grammar
from llm_bench.tiny.pretrain import Recipe, tiny_model

_TOY = "A toy that every method learns: it shows the tools, and its numbers are no findings."


def tiny_bench(preset: Preset, cache: Path | None = None, kinds: tuple[Kind, ...] = ("causal", "masked")) -> Bench:
    """A bench of the tiny models and the generated data, both made where the cache lacks them."""
    cache = cache or cache_folder()
    _check_writable(cache)  # before a minute of pretraining
    folders = {kind: tiny_model(Recipe(kind), cache, _say) for kind in kinds}
    data = cache / f"generated-{Recipe('causal').version}-whole"
    if not data.is_dir():
        write_folder(data, grammar.write_data)
    names: dict[Kind, str] = {kind: f"tiny {'OPT' if kind == 'causal' else 'RoBERTa'}" for kind in kinds}
    env = environment(data, models={names[kind]: str(folders[kind]) for kind in kinds}, pretrained=False)
    return Bench(preset, names, env)


def _check_writable(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        write_text(cache / ".writable", "")
        (cache / ".writable").unlink()
    except OSError as err:
        raise ValueError(f"the cache {cache} cannot be written: {err}; set HELENE_CACHE to another folder") from err


def demo(out: Path, jobs: int) -> Path:
    """Run the preset ``smoke`` and write its page; returns the page.

    Args:
        out: Folder of the reports; the records go to ``demo/demo.sqlite`` in it.
        jobs: Processes.
    """
    preset = get_preset("smoke")
    _say("the demo pretrains two tiny models and tunes them: two to four minutes of a CPU; a second call, seconds")
    bench = tiny_bench(preset, kinds=tuple(preset.tasks))
    with Store(out / "demo" / "demo.sqlite") as store:
        execute(bench, cells(preset), store, executor=ProcessExecutor(jobs), say=_say)
        records = store.records(experiment(preset.name))
    return demo_page(out, bench, records)


def demo_page(out: Path, bench: Bench, records: Any) -> Path:
    """The page of the demo from its records, in a part of its own: its numbers are no findings."""
    table = tables.collect(bench, cells(bench.preset), records)
    command = "helene llm demo"
    sections = [
        pages.Section("What this is", [pages.paragraph(_TOY)]),
        *ranked.ranked_sections(table),
        figures.section(table),
        tables.costs_section(table),
        details.cells_section(table),
        tables.facts_section(table),
    ]
    title = "A toy: fine-tuning tiny models on a CPU"
    text, summary = writing.render(
        out / "demo", "summary", title=title, table=table, sections=sections, command=command, back="../index.html"
    )
    page = pages.write_report_text(out / "demo" / "index.html", text)
    pages.write_summary(out, "demo", **summary)
    index_page.write_index(out)
    return page


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
