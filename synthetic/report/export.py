"""The machine-readable half of the report: summary.json and exponents.csv. Never imports torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from synthetic.analysis.explain import Explained
from synthetic.analysis.exponents import Fit
from synthetic.analysis.results import MeasuredCell
from synthetic.analysis.tuning import tuning_of
from synthetic.analysis.verdicts import Analysed

SCHEMA = "scaling/1"
CSV_COLUMNS = (
    "family", "start", "method", "variant", "subset", "cells", "censored", "alpha", "alpha_low", "alpha_high",
    "beta", "beta_low", "beta_high", "residual_sd", "follows", "verdict",
)  # fmt: skip


def summary_of(analysed: Sequence[Analysed]) -> dict[str, Any]:
    """Everything that the page says, as plain values, for ``summary.json``."""
    return {
        "schema": SCHEMA,
        "series": [_series(a) for a in analysed],
        "controls": [_control(a) for a in analysed if a.control is not None],
        "explanations": [_explained(a.explained) for a in analysed if a.explained is not None],
    }


def _series(a: Analysed) -> dict[str, Any]:
    s = a.series
    return {
        "name": s.name,
        "family": s.family,
        "start": s.start,
        "method": s.method,
        "variant": s.variant,
        "borrowed": s.borrowed,
        "unsupported": list(s.unsupported),
        "follows": a.follows,
        "verdict": a.verdict,
        "verdict_subset": a.main.subset,
        "fits": {name: fit_dict(fit) for name, fit in a.fits.items()},
        "explanations": a.laws,
        "steps_against_mezo": None if a.ratio is None else list(a.ratio),
        "forwards_against_mezo": None if a.forwards_ratio is None else list(a.forwards_ratio),
        "tuning": tuning_of(s.cells),
        "cells": [_cell(c) for c in s.cells],
    }


def fit_dict(fit: Fit) -> dict[str, Any]:
    """A fit as plain values."""
    alpha, beta = fit.exponent("max_d"), fit.exponent("d")
    out: dict[str, Any] = {"alpha": alpha and list(alpha), "beta": beta and list(beta), "reason": fit.reason}
    law = fit.law
    out["cells"] = 0 if law is None else law.num_cells
    out["censored"] = 0 if law is None else law.num_censored
    out["residual_sd"] = None if law is None else law.residual_sd
    out["local_slope_differences"] = {} if law is None else dict(law.largest_local_slope_difference)
    out["fixed_d"] = fit.fixed_d
    return out


def _cell(c: MeasuredCell) -> dict[str, Any]:
    finite = sorted(c.steps)
    return {
        "key": c.key,
        "n": c.n,
        "max_d": c.max_d,
        "d": c.d,
        "trace_over_mu": c.trace_over_mu,
        "status": c.status,
        "steps_median": float(np.exp(np.median(np.log(finite)))) if np.isfinite(np.median(finite)) else float("inf"),
        "steps": list(c.steps),
        "cap": c.cap,
        "forwards_per_step": c.forwards_per_step,
        "best": dict(c.best),
        "edge": c.edge,
        "predicted": c.predicted,
        "theory": c.theory,
        "predicted_range": None if c.scatter is None else list(c.scatter),
    }


def _explained(e: Explained) -> dict[str, Any]:
    return {
        "series": e.candidate.name,
        "steps_against_mezo": list(e.ratio),
        "outcome": e.outcome,
        "cause": e.cause,
        "controls": {name: list(ratio) for name, ratio in e.rivals.items()},
    }


def _control(a: Analysed) -> dict[str, Any]:
    control = a.control
    assert control is not None
    return {
        "kind": control.kind,
        "series": a.series.name,
        "passed": control.passed,
        "measured": fit_dict(control.measured),
        "predicted_alpha": control.predicted.get("max_d"),
        "predicted_beta": control.predicted.get("d"),
        "largest_error": control.largest_error,
        "cells_in_range": list(control.within),
        "cells_left_out": control.left_out,
        "theory": list(control.theory),
    }


def exponents_csv(analysed: Sequence[Analysed]) -> str:
    """One row per series and subset, numbers at full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for a in analysed:
        for subset, fit in a.fits.items():
            plain = fit_dict(fit)
            spread: list[Mapping[str, Any] | Any] = []
            for name in ("alpha", "beta"):
                spread += plain[name] or ["", "", ""]
            s = a.series
            head = [s.family, s.start, s.method, s.variant, subset, plain["cells"], plain["censored"]]
            writer.writerow([*head, *spread, plain["residual_sd"], a.follows, a.verdict])
    return out.getvalue()
