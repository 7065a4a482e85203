"""The problems, built from plain specifications as they stand in designs and records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from synthetic.problems.base import Constants, Problem
from synthetic.problems.coupled import Coupled
from synthetic.problems.layers import Layers
from synthetic.problems.profiles import PROFILES
from synthetic.problems.regression import regression
from synthetic.problems.separable import Separable

__all__ = ["Constants", "Problem", "build"]


def build(spec: Mapping[str, Any]) -> Problem:
    """The problem that a specification names.

    Args:
        spec: ``kind``: a profile's name, "coupled" or "regression"; ``layers``: [[count, width], ...]. Then, but for
            regressions, ``spectrum`` (see `spectrum`), ``scales`` (one per entry of layers), ``seed`` and ``basis``
            ("axes" for the coordinates, else random); for "coupled" ``nu``, or ``coupling`` = (nu − 1) / (n − 1); for
            "regression" ``data`` and ``l2``.

    Raises:
        ValueError: If it names nothing known or a value is out of range.
    """
    kind = spec["kind"]
    layers = Layers(tuple(width for count, width in spec["layers"] for _ in range(count)))
    if kind == "regression":
        return regression(spec["data"], layers.sizes, spec["l2"])
    eigenvalues = spectrum(spec.get("spectrum", {"levels": [1.0]}), spec["layers"])
    if kind == "coupled":
        nu = spec["nu"] if "nu" in spec else 1.0 + spec["coupling"] * (layers.n - 1)
        return Coupled(layers, eigenvalues, nu, spec.get("seed", 0))
    if kind in PROFILES:
        per_group = spec.get("scales", [1.0] * len(spec["layers"]))
        scales = [s for s, (count, _) in zip(per_group, spec["layers"], strict=True) for _ in range(count)]
        seed = None if spec.get("basis") == "axes" else spec.get("seed", 0)
        return Separable(kind, layers, eigenvalues, scales=scales, seed=seed)
    raise ValueError(f"kind must be one of {', '.join(PROFILES)}, coupled or regression, got {kind!r}")


def spectrum(rule: Mapping[str, Any], groups: list[list[int]]) -> np.ndarray:
    r"""Eigenvalues of each layer's Hessian at the minimizer, layer by layer.

    Args:
        rule: ``{"levels": [...]}`` shares a layer's coordinates evenly among these values, in order;
            ``{"condition": k}`` spaces them geometrically from 1 to k; ``{"power": p, "least": m}`` gives j^−p, at
            least m. ``factors``, one per entry of groups, multiplies whole layers.
        groups: [[count, width], ...].

    Raises:
        ValueError: If the rule is none of these.
    """
    factors = rule.get("factors", [1.0] * len(groups))
    parts = []
    for factor, (count, width) in zip(factors, groups, strict=True):
        if "levels" in rule:
            levels = np.asarray(rule["levels"], float)
            layer = levels[np.arange(width) * len(levels) // width]
        elif "condition" in rule:
            layer = float(rule["condition"]) ** (np.arange(width) / max(1, width - 1))
        elif "power" in rule:
            layer = np.maximum(np.arange(1.0, width + 1.0) ** -float(rule["power"]), rule["least"])
        else:
            raise ValueError(f"a spectrum is given by levels, condition or power, got {sorted(rule)}")
        parts.append(np.tile(factor * layer, count))
    return np.concatenate(parts)
