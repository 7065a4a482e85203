r"""Curvature by torch.func in float64, beside what A-GNB and GNB estimate: logistic, softmax, network, transformer.

Every problem has finitely many inputs, and labels are summed over, not drawn, so expectations are exact up to rounding.
Rounding: each entry is a sum of fewer than 10⁵ products in float64, so its error is below 10⁵·2⁻⁵³ ≈ 1.1e-11 of the
largest term; comparisons allow :data:`TOLERANCE` of the largest entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from theory.ledger.montecarlo import assert_mean

TOLERANCE = 1e-10
BATCHES = (1, 4, 16, 64)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A classifier on N inputs with K classes and P parameters; ``logits`` maps theta (P,) to (N, K)."""

    name: str
    logits: Callable[[Tensor], Tensor]
    theta: Tensor


@dataclass(frozen=True)
class Curvature:
    """What there is to compare, each of shape (P,) but the first two.

    Attributes:
        gradients: One sample's gradient by input and label, (N, K, P).
        weights: Probability of each input and label, (N, K).
        hessian: Diagonal of the Hessian of the expected loss at the label law, by torch.func.
        gauss_newton: Diagonal of E JᵀSJ.
    """

    gradients: Array
    weights: Array
    hessian: Array
    gauss_newton: Array

    @property
    def mean(self) -> Array:
        """E of a sample's gradient."""
        return np.einsum("nk,nkp->p", self.weights, self.gradients)

    @property
    def squares(self) -> Array:
        """E of a sample's squared gradient: the limit of the mean of per-sample squares."""
        return np.einsum("nk,nkp->p", self.weights, self.gradients**2)

    def returned(self, batch: int) -> Array:
        """E[B ĝ²] = Var g + B (E g)²."""
        return self.squares - self.mean**2 + batch * self.mean**2

    def deviation(self, batch: int) -> Array:
        """Standard deviation of B ĝ², from the cumulants of a sample's gradient."""
        centred = self.gradients - self.mean
        second, third, fourth = (np.einsum("nk,nkp->p", self.weights, centred**power) for power in (2, 3, 4))
        k1, k2, k3, k4 = batch * self.mean, batch * second, batch * third, batch * (fourth - 3 * second**2)
        square, quartic = k2 + k1**2, k4 + 4 * k3 * k1 + 3 * k2**2 + 6 * k2 * k1**2 + k1**4
        return np.sqrt(np.maximum(quartic - square**2, 0)) / batch


def curvature(problem: Problem, labels: Tensor | None = None) -> Curvature:
    """All of it, for labels of the law ``labels`` (N, K), or of the model's own where that is None."""
    theta = problem.theta
    p = problem.logits(theta).softmax(-1)
    law = p.detach() if labels is None else labels
    jacobian = torch.func.jacrev(problem.logits)(theta)

    def loss(at: Tensor) -> Tensor:
        return -(law * problem.logits(at).log_softmax(-1)).sum(-1).mean()

    model_mean = torch.einsum("nk,nkp->np", p, jacobian)
    gauss_newton = torch.einsum("nk,nkp->np", p, jacobian**2) - model_mean**2
    return Curvature(
        gradients=(model_mean[:, None, :] - jacobian).numpy(),
        weights=(law / len(law)).numpy(),
        hessian=torch.func.jacrev(torch.func.grad(loss))(theta).diagonal().numpy(),
        gauss_newton=gauss_newton.mean(0).numpy(),
    )


@cache
def problems() -> tuple[Problem, ...]:
    """The four classifiers, at parameters far enough from zero that nothing is degenerate."""
    generator = torch.Generator().manual_seed(41)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, wide = normal(6, 5), normal(8, 4)

    def logistic(theta: Tensor) -> Tensor:
        return torch.stack([torch.zeros(len(x), dtype=torch.float64), x @ theta], dim=1)

    def softmax(theta: Tensor) -> Tensor:
        return wide @ theta.view(4, 3)

    def network(theta: Tensor) -> Tensor:
        first, second = theta[:16].view(4, 4), theta[16:].view(4, 3)
        return torch.tanh(wide @ first) @ second

    return (
        Problem("logistic", logistic, normal(5)),
        Problem("softmax", softmax, normal(12)),
        Problem("network", network, normal(28)),
        _transformer(generator),
    )


def _transformer(generator: torch.Generator) -> Problem:
    """The last token of eight sequences of four, given by a tiny transformer."""
    from helene.lab.transformer import TinyTransformer, TransformerConfig

    config = TransformerConfig(vocab=6, d_model=4, n_layer=1, n_head=2, max_len=4, mlp_ratio=2)
    model = TinyTransformer(config, seed=1, dtype=torch.float64)
    named = dict(model.named_parameters())
    start = torch.cat([value.detach().flatten() for value in named.values()])
    theta = start + 0.5 * torch.randn(len(start), generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, config.vocab, (8, 4), generator=generator)
    sizes = [value.numel() for value in named.values()]

    def logits(at: Tensor) -> Tensor:
        parts = torch.split(at, sizes)
        parameters = {name: part.view_as(value) for (name, value), part in zip(named.items(), parts, strict=True)}
        result: Tensor = torch.func.functional_call(model, parameters, (tokens,))
        return result[:, -1]

    return Problem("transformer", logits, theta)


def certain_labels(problem: Problem) -> Tensor:
    """One label for each input, the model's least likely: as far from the model as labels get."""
    p = problem.logits(problem.theta)
    return torch.nn.functional.one_hot(p.argmin(-1), p.shape[-1]).double()


def _assert_equal(found: Array, true: Array, what: str) -> None:
    scale = np.abs(true).max()
    error = np.abs(found - true).max()
    assert error <= TOLERANCE * scale, f"{what}: off by {error:.2g} where the largest entry is {scale:.2g}"


def per_sample_squares() -> str:
    """Labels that follow the model: squares, Gauss-Newton and Hessian agree. Other labels: they do not."""
    parts = []
    for problem in problems():
        own = curvature(problem)
        _assert_equal(own.squares, own.gauss_newton, f"{problem.name}: squares and Gauss-Newton")
        _assert_equal(own.hessian, own.gauss_newton, f"{problem.name}: Hessian and Gauss-Newton")
        other = curvature(problem, certain_labels(problem))
        affine = problem.name in ("logistic", "softmax")
        if affine:
            _assert_equal(other.hessian, other.gauss_newton, f"{problem.name}: Hessian and Gauss-Newton, any labels")
        else:
            assert (other.hessian < 0).any(), f"{problem.name}: no negative curvature away from the optimum"
        ratio = other.squares / np.maximum(np.abs(other.hessian), 1e-12)
        negative = int((other.hessian < 0).sum())
        parts.append(
            f"{problem.name} ({len(own.hessian)} parameters): equal to 1e-10; with the least likely labels the "
            f"squares are "
            f"{np.median(ratio):.2g} times the Hessian's entries in the median, {negative} of which are negative"
        )
    return "; ".join(parts)


def returned_in_batch_size() -> str:
    """E[B ĝ²] by enumeration and by drawing minibatches, labels of the model, true ones, and sampled ones."""
    rng = np.random.default_rng(42)
    parts = []
    for problem in problems():
        own, other = curvature(problem), curvature(problem, certain_labels(problem))
        entry = int(np.argmax(other.mean**2))
        for batch in BATCHES:
            _assert_equal(own.returned(batch), own.hessian, f"{problem.name}, B = {batch}, labels of the model")
            for case, at in (("own", own), ("certain", other)):
                counts = rng.multinomial(batch, at.weights.ravel(), size=4000)
                g = counts @ at.gradients.reshape(-1, len(own.hessian))[:, entry] / batch
                what = f"{problem.name}, B = {batch}, {case} labels"
                assert_mean(batch * g**2, at.returned(batch)[entry], at.deviation(batch)[entry], what)
        ratios = [other.returned(batch)[entry] / abs(other.hessian[entry]) for batch in BATCHES]
        parts.append(f"{problem.name}: " + ", ".join(f"{ratio:.3g}" for ratio in ratios))
    return (
        "labels of the model: E[Bĝ²] is the Hessian's diagonal for every B; least likely labels, E[Bĝ²]/|H| of one "
        "entry at "
        f"B = {', '.join(map(str, BATCHES))}: " + "; ".join(parts)
    )


def sampled_beside_true() -> str:
    """GNB with sampled labels: its mean is the Gauss-Newton diagonal for every B and every law of the true labels."""
    parts = []
    for problem in problems():
        own, other = curvature(problem), curvature(problem, certain_labels(problem))
        for batch in BATCHES:
            _assert_equal(own.returned(batch), other.gauss_newton, f"{problem.name}, B = {batch}")
        true, drawn = (float(np.median(at.deviation(64) / other.gauss_newton)) for at in (other, own))
        parts.append(f"{problem.name} {true:.3g} and {drawn:.3g}")
    return "standard deviation over Gauss-Newton, B = 64, true (least likely) and sampled labels: " + "; ".join(parts)
