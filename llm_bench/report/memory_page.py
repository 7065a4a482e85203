"""The paper's paragraph on memory: its gigabytes, what each way to tune takes, and what was predicted of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helene.lab.report import page_footer, pages
from helene.lab.runs.provenance import provenance
from helene.lab.runs.store import Record
from llm_bench.cost.memory_row import NOT_TRIED, ROWS
from llm_bench.protocol.paper_tables import MEMORY
from llm_bench.report.cell_numbers import least_peak
from llm_bench.report.compare import CONTROLS
from llm_bench.report.labels import label
from llm_bench.report.writing import write_leaf

# The paper gives OPT-1.3B's numbers; the others are MeZO's appendix's (MultiRC, about 400 tokens), recalled, not read.
PRINTED = {
    "opt-1.3b": MEMORY,
    "opt-2.7b": {"mezo": 7.0, "zero-shot": 7.0, "ft-prefix": 29.0, "ft-full": 55.0},
    "opt-6.7b": {"mezo": 14.0, "zero-shot": 14.0, "ft-prefix": 46.0, "ft-full": 156.0},
    "opt-13b": {"mezo": 26.0, "zero-shot": 26.0, "ft-prefix": 158.0, "ft-full": 316.0},
}
LIMIT = 0.05  # that a prediction may be off
_PARTS = ("weights", "state", "scratch", "gradients", "activations", "workspace")


def write(out: Path, shapes: Sequence[Record], runs: Sequence[Record], command: str) -> Path:
    """Write ``out/llm/table-memory.html``; returns it.

    Args:
        out: Folder of the reports.
        shapes: Records of `llm_bench.cost.memory_sweep`.
        runs: Records of training runs, whose peaks are listed too.
        command: What remakes the page.
    """
    tried = {_place(r) for r in shapes if r.config["device"] != "none"}
    shapes = [r for r in shapes if r.config["device"] != "none" or _place(r) not in tried]
    sections = [_batch_section(batch, shapes) for batch in dict.fromkeys(r.config["batch"] for r in shapes)]
    sections.append(pages.Section("How it was measured", [pages.paragraph(note) for note in _NOTES]))
    if runs:
        sections.append(_runs_section(runs))
    text = pages.render_page(
        title="Memory",
        answer=_answer(shapes),
        sections=sections,
        command=command,
        provenance=provenance(command),
        downloads=page_footer.write_rows(Path(out) / "llm" / "table-memory-peaks", _COLUMNS, list(map(_peak, shapes))),
        measured=page_footer.measured_on(r for r in shapes if r.result["peak_bytes"]),
    )
    return write_leaf(out, "table-memory", text, title="Memory", answer=_answer(shapes), command=command)


def _answer(records: Sequence[Record]) -> str:
    measured = [(abs(_off(r) or 0.0), r) for r in records if r.result["peak_bytes"]]
    if not measured:
        return f"No peak has been measured, {len(records)} are predicted: only a CUDA device's allocator keeps count."
    worst, record = max(measured, key=lambda item: item[0])
    untried = sum(_untried(r) for r in records)
    tried = sum(r.result["status"] == "out_of_memory" for r in records) - untried
    broken = sum(r.result["status"] == "error" for r in records)
    within = sum(off <= LIMIT for off, _ in measured)
    where = ", ".join(record.config[name] for name in ("name", "model", "batch"))
    devices = " and ".join(f"one {device}" for device in dict.fromkeys(r.config["device"] for _, r in measured))
    return (
        f"{_both(records)}Of {len(measured)} peaks measured on {devices}, {within} are within "
        f"{LIMIT:.0%} of their prediction. The furthest is {worst:.1%} off ({where}). "
        + (f"{tried} of the rows tried did not fit the card." if tried else "Every row tried fits the card.")
        + (f" {untried} {'is' if untried == 1 else 'are'} predicted not to fit, and not tried." if untried else "")
        + (f" {broken} ended with an error." if broken else "")
    )


def _both(records: Sequence[Record]) -> str:
    """HELENE's bytes against MeZO's, of the first model, batch and device that have both."""
    peaks: dict[tuple[str, ...], dict[str, int]] = {}
    for r in records:
        if r.result["peak_bytes"]:
            place = tuple(r.config[name] for name in ("model", "batch", "device"))
            peaks.setdefault(place, {})[r.config["name"]] = r.result["peak_bytes"]
    for (model, batch, _), found in peaks.items():
        state = {name.partition(", ")[2]: peak for name, peak in found.items() if name.startswith("HELENE, ")}
        if "MeZO" in found and state:
            helene = ", ".join(f"{peak / 1e9:.1f} GB with {name}" for name, peak in state.items())
            mezo = f"MeZO tunes {model} in {found['MeZO'] / 1e9:.1f} GB, with batches of {_rows(batch)}. "
            return f"{mezo}HELENE takes {helene}. "
    return ""


_COLUMNS = ("record", "name", "model", "batch", "device", "status", "peak_bytes", "predicted_bytes")


def _peak(record: Record) -> list[Any]:
    config, result = record.config, record.result
    named = [config[name] for name in ("name", "model", "batch", "device")]
    return [record.key, *named, result["status"], result["peak_bytes"], result["predicted_bytes"]["total"]]


def _place(record: Record) -> tuple[str, ...]:
    return tuple(record.config[name] for name in ("name", "model", "batch"))


def _off(record: Record) -> float | None:
    peak = record.result["peak_bytes"]
    return peak / record.result["predicted_bytes"]["total"] - 1.0 if peak else None


def _rows(batch: str) -> str:
    """``16x64`` in words."""
    count, length = batch.split("x")
    return f"{count} {'row' if count == '1' else 'rows'} of {length} tokens"


def _batch_section(batch: str, records: Sequence[Record]) -> pages.Section:
    here = [r for r in records if r.config["batch"] == batch]
    order = {name: i for i, name in enumerate(PRINTED)}
    here.sort(key=lambda r: (order.get(r.config["model"], len(order)), _row_order(r.config["name"])))
    places = list(dict.fromkeys((r.config["model"], r.config["device"]) for r in here))
    names = list(dict.fromkeys(r.config["name"] for r in here))
    cells = {(r.config["name"], r.config["model"], r.config["device"]): r for r in here}
    rows = [[name, *(_peak_of(cells.get((name, *place))) for place in places)] for name in names]
    devices = ", ".join(dict.fromkeys(device for _, device in places if device != "none"))
    caption = (
        f"GB (10⁹ bytes) at the peak of a step{f', on {devices}' if devices else ''}. "
        "A number in brackets is a prediction: the row was not measured."
    )
    heads = [model if len({d for m, d in places if m == model}) == 1 else _heading(model, d) for model, d in places]
    body = [pages.table(["", *heads], rows, caption=caption, numeric=range(1, len(heads) + 1))]
    headers = ["", "paper", "measured", "predicted", "off", "reserved", *_PARTS]
    for model, device in places:
        parts = [_line(r) for r in here if (r.config["model"], r.config["device"]) == (model, device)]
        heading = _heading(model, device)
        title = f"{heading}: what it is made of, beside prediction and paper"
        body.append(pages.details(title, [pages.table(headers, parts)], f"{batch}-{heading}".replace(" ", "-")))
    return pages.Section(f"Batches of {_rows(batch)}", body, f"batch-{batch}")


def _peak_of(record: Record | None) -> Any:
    """The measured GB of a row; what was not measured, predicted and in brackets."""
    if record is None:
        return None
    peak = record.result["peak_bytes"]
    return peak / 1e9 if peak else f"({pages.number(record.result['predicted_bytes']['total'] / 1e9)})"


_NOTES = (
    "Measured: the most bytes that the allocator had given to tensors in four steps of a fresh process. The loaded "
    "weights are among them. Reserved: what it had taken from the card.",
    "The language-model loss is taken at every place. Forward-only rows are steps of the captured engine. FT rows hold "
    "Adam's state in float32.",
    "Predictions need no GPU and are those of `llm_bench/models/step_memory.py`. The columns after “reserved” say what "
    "they are made of. A row that is predicted to need more than the card has is not tried.",
    "The paper says that HELENE takes three times MeZO's memory; its own 14 and 4 GB are 3.5 times. Its numbers are "
    "for OPT-1.3B. Those of larger models are recalled from MeZO's appendix, and were not checked against its text.",
)


def _heading(model: str, device: str) -> str:
    return model if device == "none" else f"{model} on {device}"


def _row_order(name: str) -> int:
    names = [row.name for row in ROWS]
    return names.index(name) if name in names else len(names)


def _untried(record: Record) -> bool:
    return str(record.result.get("message", "")).startswith(NOT_TRIED)


def _line(record: Record) -> list[Any]:
    config, result = record.config, record.result
    predicted, off = result["predicted_bytes"], _off(record)
    peak, reserved = result["peak_bytes"], result.get("reserved_bytes")
    shown: Any = peak / 1e9 if peak else None
    if result["status"] in ("out_of_memory", "error"):
        shown = pages.badge(result["status"], NOT_TRIED if _untried(record) else "")
    printed = PRINTED.get(config["model"], {}).get(config["printed"])
    parts = [predicted[name] / 1e9 or None for name in _PARTS]
    return [
        config["name"],
        printed,
        shown,
        predicted["total"] / 1e9,
        f"{off:+.1%}" if off is not None else None,
        reserved / 1e9 if reserved else None,
        *parts,
    ]


def _runs_section(records: Sequence[Record]) -> pages.Section:
    """The peak of each model and method: the least of a task's runs, the most of several tasks."""
    runs: dict[tuple[str, str, str], dict[tuple[Any, ...], list[Record]]] = {}
    for record in records:
        config = record.config
        of_method = runs.setdefault((config["model"], config["method"], config["tuning"]), {})
        of_method.setdefault((config["kind"], config["task"], config["batch_size"]), []).append(record)
    rows = []
    for (model, method, tuning), tasks in sorted(runs.items()):
        phase = "evaluation" if method in CONTROLS else "step"
        peak = max((least_peak(some, phase) or 0 for some in tasks.values()), default=0)
        rows.append([model, label(method, tuning), peak / 1e9 or None])
    note = (
        "Peaks that the training runs of the store recorded: of steps, of evaluation where nothing is trained. Of a "
        "task's runs the least: test runs hold the best weights too, and long processes what earlier runs had left. Of "
        "several tasks the most."
    )
    return pages.Section("Runs", [pages.paragraph(note), pages.table(["model", "method", "peak, GB"], rows)])
