r"""Classifiers on finitely many inputs, in exact rationals: what A-GNB and GNB return, by enumeration.

An :class:`Input` holds all that cross-entropy needs at one input: the model's probabilities p (rational logits would
make them irrational, so p is given), the law of the true label, the Jacobian of the logits and their second
derivatives. The loss's gradient at label y is Jᵀ(p − e_y); that of its mean over labels has the derivative
JᵀSJ + Σ_k E(p − e_y)_k ∇²f_k with S = diag(p) − ppᵀ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from theory.curvature import moments

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Input:
    """One input.

    Attributes:
        weight: Its probability.
        model: The model's label probabilities.
        labels: The true label's law.
        jacobian: ∂f_k/∂θ for each class k, one coordinate θ.
        second: ∂²f_k/∂θ² for each class k; empty where f is affine in θ.
    """

    weight: Any
    model: Row
    labels: Row
    jacobian: Row
    second: Row = ()


Model = Sequence[Input]


def gradient(at: Input, label: int) -> Any:
    """∂ℓ/∂θ at a label: Σ_k (p_k − 1{y = k}) ∂f_k/∂θ."""
    return sum((p * j for p, j in zip(at.model, at.jacobian, strict=True)), Fraction(0)) - at.jacobian[label]


def gradient_law(model: Model, sampled: bool = False) -> list[tuple[Any, Any]]:
    """Law of one sample's gradient: labels true, or drawn from the model."""
    return moments.law_of(
        (gradient(at, label), at.weight * probability)
        for at in model
        for label, probability in enumerate(at.model if sampled else at.labels)
    )


def squares_law(model: Model, sampled: bool = False) -> list[tuple[Any, Any]]:
    """Law of one sample's squared gradient."""
    return moments.law_of((value**2, probability) for value, probability in gradient_law(model, sampled))


def returned_law(model: Model, batch: int, sampled: bool = False) -> list[tuple[Any, Any]]:
    """Law of B ĝ², ĝ the mean of B independent samples' gradients: what Algorithm 2 returns."""
    total = moments.sum_law(gradient_law(model, sampled), batch)
    return moments.law_of((value**2 / batch, probability) for value, probability in total)


def gauss_newton(model: Model) -> Any:
    """E[JᵀSJ], one coordinate."""
    result = Fraction(0)
    for at in model:
        first = sum((p * j for p, j in zip(at.model, at.jacobian, strict=True)), Fraction(0))
        second = sum((p * j**2 for p, j in zip(at.model, at.jacobian, strict=True)), Fraction(0))
        result += at.weight * (second - first**2)
    return result


def hessian(model: Model) -> Any:
    """Second derivative of the expected loss at the true labels, one coordinate."""
    result = gauss_newton(model)
    for at in model:
        for k, curvature in enumerate(at.second):
            result += at.weight * (at.model[k] - at.labels[k]) * curvature
    return result


def binary(model: Any, labels: Any, x: Any = Fraction(1), weight: Any = Fraction(1)) -> Input:
    """Logistic regression with one parameter: logit θx, P(y = 1) = model; true P(y = 1) = labels."""
    zero = 0 * x
    return Input(weight, (1 - model, model), (1 - labels, labels), (zero, x))
