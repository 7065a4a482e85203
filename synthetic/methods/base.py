"""What a method offers to the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from synthetic.problems.base import Problem

State = dict[str, Tensor]
Given = dict[str, float | Tensor]
Trial = Mapping[str, Any]


@dataclass(frozen=True)
class Signal:
    """What a method may look at in one step.

    Attributes:
        step: t, the first is 1.
        z: Direction, (seeds, 1, d), for zeroth-order methods.
        c: Projected gradient, (seeds, trials, 1), or (seeds, trials, d) with one direction per layer.
        slope: Derivative by the features at x, (seeds, trials, p).
        p: The features at x.
        problem: The problem in the frame of x.
    """

    step: int
    z: Tensor
    c: Tensor
    slope: Tensor
    p: Tensor
    problem: Problem


@dataclass(frozen=True)
class Scale:
    r"""Natural units of a problem and a start, in which trials are stated.

    Attributes:
        trace: tr H + 2 λ_max, at the start or the minimizer, whichever is larger: on an isotropic quadratic the best
            SPSA step is 1 / this.
        layer_trace: The same of each layer's block, the largest: with one direction per layer.
        smoothness: Largest curvature at the start or the minimizer, whichever is larger, for gradient descent.
        curvature: h_0 = B ‖g_0‖² with B = 1, the size of A-GNB's first estimate from an SPSA gradient.
        horizon: Steps expected of plain SPSA; HELENE's anneal horizon.
        reach: Largest distance of a coordinate from the minimizer, in the eigenbasis where there is one.
    """

    trace: float
    layer_trace: float
    smoothness: float
    curvature: float
    horizon: float
    reach: float


class Method(Protocol):
    """An update rule, its search space stated in natural units.

    Attributes:
        name: As in designs and records.
        directions: Directions of a step: one, one per layer, or none.
        commutes_with_turns: Whether its path in turned coordinates is the turned path, so that a separable problem can
            be simulated in its eigenbasis.
    """

    name: str
    directions: Literal["none", "shared", "per_layer"]
    commutes_with_turns: bool

    def supports(self, problem: Problem, trial: Trial) -> str | None:
        """None, or the reason why this problem is not for this method."""

    def forwards(self, n: int) -> float | None:
        """Forwards of a step with n layers, a backward counted as two; None where no such count is fair."""

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """Hyper-parameters in absolute units: numbers, or one number per coordinate."""

    def start(self, x: Tensor) -> State:
        """State at theta_0 besides x itself."""

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """The next x; state is updated in place.

        ``given`` holds the settings: numbers, or (trials, 1) or (trials, d) where trials differ.
        """
