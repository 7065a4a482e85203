"""Methods that see gradients or Hessians: the paper's idealised update and its rivals."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from helene import functional
from synthetic.methods.base import Given, Scale, Signal, State, Trial
from synthetic.problems.base import Problem


class GradientDescent:
    """theta ← theta − lr ∇L."""

    name = "gradient_descent"
    directions: Literal["none", "shared", "per_layer"] = "none"
    commutes_with_turns = True

    def supports(self, problem: Problem, trial: Trial) -> str | None:
        """See `Method`."""
        return None

    def forwards(self, n: int) -> float | None:
        """See `Method`: a forward and a backward."""
        return 3.0

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: lr = q / smoothness."""
        return {"lr": trial["q"] / scale.smoothness}

    def start(self, x: Tensor) -> State:
        """See `Method`."""
        return {}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        return functional.descend(x, signal.problem.pullback(signal.slope), given["lr"])


class TheoremUpdate(GradientDescent):
    r"""theta_i ← theta_i − η V_iᵀ clip(V_i H_ii⁻¹ ∇_i L, ρ_i), V_i the eigenbasis of H_ii, all layers at once.

    As the theorem prescribes: η = 1/2 and ρ_i = R_i / (2 √d_i) with the certified R_i, or with ``radius`` where the
    trial names one (on quadratics any radius satisfies Assumption 2). On losses whose layers interact this is outside
    the paper's hypotheses; it runs, and the report says so. Where eigenvalues coincide the eigenbasis, and with it the
    update, is not unique; on separable families it is the problem's own basis.
    """

    name = "theorem"

    def supports(self, problem: Problem, trial: Trial) -> str | None:
        """See `Method`."""
        if math.isinf(max(self._radii(problem, trial))):
            return "every radius satisfies Assumption 2 here, so that none is prescribed: choose one"
        return None

    def forwards(self, n: int) -> float | None:
        """See `Method`: exact Hessians have no fair price in forwards."""
        return None

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`."""
        return {"lr": trial["lr"], "rho": problem.layers.per_coordinate(self._clips(problem, trial))}

    def _radii(self, problem: Problem, trial: Trial) -> list[float]:
        radius = trial.get("radius")
        return [radius if radius is not None else r for r in problem.constants.radius]

    def _clips(self, problem: Problem, trial: Trial) -> list[float]:
        pairs = zip(self._radii(problem, trial), problem.layers.sizes, strict=True)
        return [r / (2.0 * math.sqrt(size)) for r, size in pairs]

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        problem, rho = signal.problem, torch.as_tensor(given["rho"])
        if problem.separable:
            newton = signal.slope / problem.curvature(signal.p)
            return functional.descend(x, torch.clamp(newton, -rho, rho), given["lr"])
        gradient, moved = problem.pullback(signal.slope), []
        for stretch, block in zip(problem.layers.stretches, problem.blocks(x), strict=True):
            shape = (stretch.count, stretch.width)
            sigma, basis = torch.linalg.eigh(block)
            u = (basis.mT @ gradient[..., stretch.span].unflatten(-1, shape)[..., None])[..., 0]
            limit = rho[..., stretch.span].unflatten(-1, shape)
            clipped = torch.clamp(u / sigma, -limit, limit)
            moved.append((basis @ clipped[..., None])[..., 0].flatten(-2))
        return functional.descend(x, torch.cat(moved, -1), given["lr"])


class TheoremOneClip(TheoremUpdate):
    r"""The same with one clip for all layers: ρ = min_i R_i / (2 √d), what the theorem gives if d is one layer.

    A move of length min_i R_i moves no layer further than its R_i, so it is a radius for a separable loss as a whole.
    """

    name = "theorem_one_clip"

    def _clips(self, problem: Problem, trial: Trial) -> list[float]:
        rho = min(self._radii(problem, trial)) / (2.0 * math.sqrt(problem.layers.d))
        return [rho] * problem.layers.n


class TheoremTunedClip(TheoremUpdate):
    """The same update with one clip for all layers that is tuned, as Sophia's is, instead of prescribed."""

    name = "theorem_tuned_clip"

    def supports(self, problem: Problem, trial: Trial) -> str | None:
        """See `Method`: the clip is tuned, so that no radius is needed."""
        return None

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: the clip is q times the largest distance of a coordinate."""
        return {"lr": trial["lr"], "rho": torch.full((problem.layers.d,), trial["q"] * scale.reach)}


class DiagonalFloor(GradientDescent):
    """theta ← theta − lr g / max(diag H, floor): HELENE's form with the exact gradient and Hessian diagonal."""

    name = "diagonal_floor"
    commutes_with_turns = False

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: the floor is a ratio to the smoothness, lr is q."""
        return {"lr": trial["q"], "floor": trial["floor_ratio"] * scale.smoothness}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        g, h = signal.problem.pullback(signal.slope), signal.problem.diagonal(signal.p)
        return functional.descend(x, functional.precondition(g, h, 1.0, given["floor"], 0.0), given["lr"])


class DiagonalClip(GradientDescent):
    """theta ← theta − lr clip(g / diag H, rho): Sophia's form with the exact gradient and Hessian diagonal."""

    name = "diagonal_clip"
    commutes_with_turns = False

    def settings(self, trial: Trial, scale: Scale, problem: Problem) -> dict[str, float | Tensor]:
        """See `Method`: the clip is a ratio to the largest distance of a coordinate, lr is q."""
        return {"lr": trial["q"], "rho": trial["clip_ratio"] * scale.reach}

    def move(self, x: Tensor, state: State, signal: Signal, given: Given) -> Tensor:
        """See `Method`."""
        newton = signal.problem.pullback(signal.slope) / signal.problem.diagonal(signal.p)
        rho = torch.as_tensor(given["rho"], dtype=x.dtype)
        return functional.descend(x, torch.clamp(newton, -rho, rho), given["lr"])
