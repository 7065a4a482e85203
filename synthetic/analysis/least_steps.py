r"""The fewest steps that any method needs on quadratics: `theory/proofs/limits/two_evaluations.md`.

A reading is a loss, a difference of two, or a directional derivative. L = ½(θ−θ*)ᵀH(θ−θ*), θ_0 = 0, H^{1/2}θ* uniform
on a sphere; the method knows H and G_0. Layers do not enter. Scipy only.
"""

from __future__ import annotations

from collections.abc import Iterable

from scipy.special import betainc

BOUND = (
    "On quadratics no method that sees two losses a step can take O(max_i d_i) steps. With a random minimiser it needs "
    "(1 − target) d / 2 in the mean, whatever the layers are. If it uses only their difference, as HELENE and MeZO do, "
    "it needs (1 − target) d (theory/proofs/limits/two_evaluations.md)."
)


def least_share(d: int, readings: int) -> float:
    """E G/G_0 after so many readings is at least this."""
    return max(0.0, 1.0 - readings / d)


def most_chance(d: int, readings: int, target: float) -> float:
    """P(G <= target · G_0) after so many readings is at most this."""
    if readings >= d - 1:
        return 1.0
    return float(betainc((d - readings - 1) / 2, (readings + 1) / 2, target))


def least_mean(d: int, target: float, per_step: int = 1) -> float:
    """Steps before E G can be at most target · G_0, with ``per_step`` readings a step."""
    return (1.0 - target) * d / per_step


def least_median(d: int, target: float, per_step: int = 1) -> int:
    """Least possible median of the first step with G <= target · G_0: the chances up to it add up to ½ at least."""
    steps, chances = 0, 0.0
    while chances < 0.5:
        steps += 1
        chances += most_chance(d, steps * per_step, target)
    return steps


def least_line(
    cells: Iterable[tuple[int, int, int]], held: str, level: int, target: float
) -> tuple[list[float], list[float]]:
    """Where one axis is held: the other one's values and `least_mean` there, one difference of losses a step.

    Args:
        cells: (n, width, d).
        held: "n" or "w".
        level: Its value.
        target: Relative gap.
    """
    here = [(w, d) if held == "n" else (n, d) for n, w, d in cells if (n if held == "n" else w) == level]
    least = dict(sorted(here, reverse=True))  # of several d at one place the smallest, which comes last
    return [float(x) for x in least], [least_mean(d, target) for d in least.values()]
