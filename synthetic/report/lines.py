"""What the report concludes, a line per series: small enough to be committed. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from helene.lab.runs import canonical
from synthetic.analysis.sensitivity import sensitivities
from synthetic.analysis.tuning import tuning_of
from synthetic.analysis.verdicts import Analysed, Control

DIGITS = 4


def lines_of(analysed: Sequence[Analysed], provenance: Mapping[str, Any]) -> str:
    """JSON lines: provenance, then series, explanations and sensitivities; numbers to four digits.

    A cell is ``[record, n, max d_i, d, median steps, predicted steps]``; the record's first twelve digits name it.
    """
    out: list[dict[str, Any]] = [{"provenance": dict(provenance)}]
    out += [{"series": a.series.name, **_series(a)} for a in analysed if not a.series.borrowed]
    out += [
        {
            "explanation": e.candidate.name,
            "steps_against_mezo": e.ratio,
            "outcome": e.outcome,
            "cause": e.cause,
            "controls": e.rivals,
        }
        for a in analysed
        if (e := a.explained) is not None
    ]
    for s in sensitivities(a.series for a in analysed):
        line = asdict(s)
        line["settings"] = {
            name: {str(value): ratio for value, ratio in values.items()} for name, values in s.settings.items()
        }
        out.append({"sensitivity": line.pop("method"), **line})
    return "".join(canonical.dumps(_short(line)) + "\n" for line in out)


def _series(a: Analysed) -> dict[str, Any]:
    tuning = tuning_of(a.series.cells)
    control = a.control
    return {
        "problem": a.series.problem,
        "follows": a.follows,
        "verdict": a.verdict,
        "subset": a.main.subset,
        "alpha": a.main.exponent("max_d"),
        "beta": a.main.exponent("d"),
        "steps_against_mezo": a.ratio,
        "forwards_against_mezo": a.forwards_ratio,
        "control": None if control is None else _control(control),
        "at_edge": len(tuning["at_edge"]),
        "censored": len(tuning["censored"]),
        "cells": [[c.key[:12], c.n, c.max_d, c.d, float(np.median(c.steps)), c.predicted] for c in a.series.cells],
    }


def _control(control: Control) -> dict[str, Any]:
    names = ("passed", "predicted", "largest_error", "within", "left_out")
    return {name: getattr(control, name) for name in names}


def _short(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _short(item) for name, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value
