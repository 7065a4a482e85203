"""What rows and cells are called on pages."""

from __future__ import annotations

from collections.abc import Iterable

from llm_bench.protocol.plan import Cell
from llm_bench.runs import methods

UNTRAINED_LABELS = {
    "zero-shot": "Zero-shot (the untrained model)",
    "icl": "ICL, 32 demonstrations",
    "linear-probe": "Linear probing",
    "bias-only": "One bias a class (control)",
}
STATUS_LABELS = {"out_of_budget": "all steps made"}  # of a run without the target it is no failure
NOTES = {  # on the runs of a method
    "helene-scalar-h": "its steps are captured, but at each estimate of h its runs order copies of a layer's h to find "
    "the largest, hence their seconds and GiB",
}
TUNING_LABELS = {"full": "", "lora": " (LoRA)", "prefix": " (prefix)"}

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label(method: str, tuning: str) -> str:
    """A row's name."""
    named = UNTRAINED_LABELS.get(method) or methods.get_method(method).label
    return named + TUNING_LABELS[tuning]


def note(methods: Iterable[str]) -> str:
    """What must be known of the runs of these methods, to follow other text; empty where there is nothing."""
    return "".join(f" {label(name, 'full')}: {NOTES[name]}." for name in dict.fromkeys(methods) if name in NOTES)


def step_size(value: float | None) -> str | None:
    """A step size for people, as a power of ten whatever its size."""
    if not value:
        return None if value is None else "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_RAISED)}"


def anchor(cell: Cell) -> str:
    """Address of a cell within its page."""
    return f"{cell.kind}-{cell.task}-{cell.method}-{cell.tuning}"
