"""What rows and cells are called on pages."""

from __future__ import annotations

from llm_bench.protocol.plan import Cell
from llm_bench.runs import methods

UNTRAINED_LABELS = {
    "zero-shot": "Zero-shot (the untrained model)",
    "icl": "ICL, 32 demonstrations",
    "linear-probe": "Linear probing",
    "bias-only": "One bias a class (control)",
}
STATUS_LABELS = {"out_of_budget": "all steps made"}  # of a run without the target it is no failure
TUNING_LABELS = {"full": "", "lora": " (LoRA)", "prefix": " (prefix)"}

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label(method: str, tuning: str) -> str:
    """A row's name."""
    named = UNTRAINED_LABELS.get(method) or methods.get_method(method).label
    return named + TUNING_LABELS[tuning]


def step_size(value: float | None) -> str | None:
    """A step size for people, as a power of ten whatever its size."""
    if not value:
        return None if value is None else "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_RAISED)}"


def anchor(cell: Cell) -> str:
    """Address of a cell within its page."""
    return f"{cell.kind}-{cell.task}-{cell.method}-{cell.tuning}"
