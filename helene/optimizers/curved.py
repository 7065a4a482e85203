"""Keyword arguments of the methods that keep a diagonal curvature h, see `helene.rules.CurvatureRule`."""

from __future__ import annotations

from helene.curvature import Source
from helene.optimizers.base import Options
from helene.optimizers.zeroth import Directions


class CurvatureOptions(Options, total=False):
    """Keyword arguments of the methods that keep h."""

    curvature: str | Source
    batch_size: int | None
    beta2: float
    interval: int
    bias_correction: bool
    first_estimate: int


class Curvature(CurvatureOptions, Directions, total=False):
    """Those of the zeroth-order ones among them."""
