"""A method's natural step size at a model's initial point: the one at which its first moves are MeZO's in size.

HELENE divides by gamma max(h, floor). At the first estimate h = (1 − beta2) B c² z², with c the measured slope and z
standard normal (h = B c² z² where h is corrected), so one measured mean of c² gives the mean over coordinates of the
factor 1 / (gamma max(h, floor)), and lr is natural where lr times that factor is what MeZO's step is. It is the *first*
estimate that bounds lr: h starts at 0 and its coordinates with a small z stay at the floor, while later h grows
towards B c².
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist, fmean, median
from typing import TYPE_CHECKING, Any

from llm_bench.runs import methods

if TYPE_CHECKING:
    from llm_bench.runs.config import RunConfig
    from llm_bench.runs.session import Session

SLOPES = 10  # measured at the initial point: 20 forwards, counted as part of the tuning
_UNMOVED = 1e-30  # a learning rate too small to change a weight
_NORMAL = NormalDist()


def needs_slope(method: str, hyper: Mapping[str, Any] | None = None) -> bool:
    """Whether the natural step size of a method, with hyper-parameters over its own, follows from the size of c."""
    named = methods.METHODS.get(method)
    if named is None or named.cls != "Helene":
        return False
    return {**named.fixed, **(hyper or {})}.get("curvature", "spsa") in ("spsa", "spsa_own_batch")


def natural_step_size(method: str, mezo_step_size: float, denominator: float = 1.0) -> float:
    """The step size at which a method moves as MeZO does with its own; ``denominator`` is what `denominator` gives."""
    return mezo_step_size * methods.get_method(method).lr_ratio * denominator


def denominator(
    method: str, slope: Mapping[str, Any], batch_size: int, hyper: Mapping[str, Any] | None = None
) -> float:
    """What a method's first moves are divided by: lr = MeZO's times ``lr_ratio`` times this is natural.

    Args:
        method: Of `llm_bench.runs.methods`.
        slope: Of `measure_slope`; not looked at where `needs_slope` is False.
        batch_size: B where the slope tells none: records of before it was kept have grids in units of the config's.
        hyper: Hyper-parameters over the method's own.
    """
    named = methods.get_method(method)
    if named.cls != "Helene":
        return 1.0
    given = {**named.fixed, **(hyper or {})}
    floor, gamma = given.get("floor", 1.0), given.get("gamma", 1.0)
    if not needs_slope(method, hyper):
        return float(gamma * floor)
    share = 1.0 if given.get("bias_correction") else 1.0 - given.get("beta2", 0.99)
    size = given.get("batch_size") or slope.get("batch_size") or batch_size
    scale = share * size * slope["mean_square"]
    return gamma / mean_factor(scale, _floor(floor, scale, int(slope["dimension"])))


def mean_factor(scale: float, floor: float) -> float:
    """E 1 / max(scale z², floor) for a standard normal z."""
    radius = math.sqrt(floor / scale)
    upper = _NORMAL.cdf(-radius)
    return (1.0 - 2.0 * upper) / floor + 2.0 / scale * (_NORMAL.pdf(radius) / radius - upper)


def largest_square(dimension: int) -> float:
    """The size of the largest of that many squares of standard normals: their quantile at 1 − 1 / dimension."""
    return _NORMAL.inv_cdf(0.5 / dimension) ** 2


def measure_slope(config: RunConfig, session: Session) -> dict[str, Any]:
    """c of ``config.steps`` pairs at the initial point, each on a minibatch of its own; no weight moves.

    Returns:
        ``slope``: ``mean_square`` of c, ``dimension``, the median size of a layer, and ``batch_size``, the rows of a
        minibatch (a few-shot split may have fewer than asked for); ``forwards``; ``status``.

    Raises:
        ValueError: If c is 0 throughout, so that no step size follows from it.
    """
    from helene.steps.trajectory import Trajectory
    from llm_bench.data.stream import BatchStream
    from llm_bench.runs.training.stepper import PlainStepper

    session.reset(config.seed)
    stream = BatchStream(len(session.tokens(config).train), config.batch_size, config.data_seed)
    module = session.model.module
    hyper = {"lr": _UNMOVED, "eps": config.eps}
    optimizer = methods.build(
        config.method, module, hyper, seed=config.seed, batch_size=stream.batch_size, steps=config.steps
    )
    recorded = Trajectory.record(optimizer)
    stepper = PlainStepper(module, optimizer, session.loss(config))
    for step in range(1, config.steps + 1):
        stepper.step(session.batch(config, stream.rows(step)), lambda: None)  # type: ignore[arg-type, return-value]
    mean_square = fmean(s[0] ** 2 for s in recorded.scalars)
    if not mean_square:
        raise ValueError(
            f"all {config.steps} slopes at the initial point are 0: the losses of each pair are equal; take a larger "
            f"eps than {config.eps!r} or a wider dtype than {config.dtype}"
        )
    sizes = [sum(p.numel() for p in group["params"] if p.requires_grad) for group in optimizer.param_groups]
    return {
        "status": "out_of_budget",
        "message": f"{config.steps} slopes measured",
        "slope": {
            "mean_square": mean_square,
            "dimension": median(sizes),
            "batch_size": stream.batch_size,
        },
        "forwards": stepper.forwards,
    }


def _floor(floor: float | str, scale: float, dimension: int) -> float:
    """The value of a floor, a rule by name too, where h = scale z²."""
    if not isinstance(floor, str):
        return float(floor)
    name, value = methods.parse_floor(floor)
    if name == "mean":
        return value * scale
    if name != "quantile":
        raise ValueError(
            f"the natural step size with floor {floor!r} is not known; give a number, mean:X or quantile:Q"
        )
    return scale * (largest_square(dimension) if value == 1.0 else _NORMAL.inv_cdf((1.0 + value) / 2.0) ** 2)
