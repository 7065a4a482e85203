"""Classifiers on finitely many inputs: every gradient by input and label, the true curvature beside them, in float64.

Labels are summed over, so expectations are exact up to rounding; minibatches are then drawn from the table alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, jacrev, jvp, vmap

from helene.lab.transformer import TinyTransformer, TransformerConfig

Array = NDArray[np.float64]
COORDINATES = 64
INPUTS = {"logistic": 64, "softmax": 48, "mlp": 48, "transformer": 32}


@dataclass(frozen=True)
class Population:
    """N inputs, K classes; P coordinates of the d parameters, evenly spaced, are looked at.

    Attributes:
        gradients: One sample's gradient by input and label, shape (N, K, P).
        law: Probability of each input and label, shape (N, K), sum 1.
        model: The same with the labels that the model itself would draw.
        hessian: Diagonal of the Hessian of the expected loss under ``law``, shape (P,), by torch.func.
        dimension: d.
    """

    gradients: Array
    law: Array
    model: Array
    hessian: Array
    dimension: int

    @property
    def mean(self) -> Array:
        """E of a sample's gradient, shape (P,)."""
        return np.einsum("nk,nkp->p", self.law, self.gradients)

    @property
    def squares(self) -> Array:
        """E of a sample's squared gradient at the true labels, shape (P,)."""
        return np.einsum("nk,nkp->p", self.law, self.gradients**2)

    @property
    def gauss_newton(self) -> Array:
        """Diagonal of E JᵀSJ, shape (P,): E of the squared gradient at labels drawn from the model."""
        return np.einsum("nk,nkp->p", self.model, self.gradients**2)


@dataclass(frozen=True)
class Classifier:
    """Logits (N, K) as a function of all parameters (d,), the teacher, and the coordinate that makes classes rare."""

    logits: Callable[[Tensor], Tensor]
    teacher: Tensor
    bias: int | None = None
    sign: float = 1.0


def population(config: Mapping[str, Any]) -> Population:
    """The population of a config of `synthetic.estimators.design.batch_config`.

    Raises:
        ValueError: If the model is unknown, or its classes cannot be made rare.
    """
    generator = torch.Generator().manual_seed(config["seed"])
    if config["model"] not in _BUILDERS:
        raise ValueError(f"model must be one of {', '.join(_BUILDERS)}, got {config['model']!r}")
    classifier = _BUILDERS[config["model"]](INPUTS[config["model"]], config["size"], generator)
    teacher = classifier.teacher if config["rare"] is None else _made_rare(classifier, config["rare"])
    truth = classifier.logits(teacher).softmax(-1)
    if config["labels"] == "certain":
        truth = torch.nn.functional.one_hot(truth.argmax(-1), truth.shape[-1]).double()
    elif config["labels"] != "model":
        raise ValueError(f"labels must be 'model' or 'certain', got {config['labels']!r}")
    away = torch.randn(teacher.shape, generator=generator, dtype=torch.float64)
    change = jvp(classifier.logits, (teacher,), (away,))[1]
    size = (change - change.mean(-1, keepdim=True)).square().mean().sqrt()
    return tabulate(classifier.logits, teacher + config["distance"] * away / size, truth)


def tabulate(logits: Callable[[Tensor], Tensor], theta: Tensor, law: Tensor) -> Population:
    """All gradients and the Hessian's diagonal at theta (d,), labels following ``law`` (N, K) given the input."""
    d = theta.numel()
    coordinates = torch.linspace(0, d - 1, min(d, COORDINATES)).round().long()
    inputs, classes = law.shape

    def loss(at: Tensor) -> Tensor:
        return -(law * logits(at).log_softmax(-1)).sum(-1).mean()

    def second(index: Tensor) -> Tensor:
        unit = torch.zeros_like(theta).scatter(0, index[None], 1.0)
        return jvp(grad(loss), (theta,), (unit,))[1].gather(0, index[None])[0]

    p = logits(theta).softmax(-1)
    jacobian = jacrev(logits)(theta)[..., coordinates]
    residual = p[:, None, :] - torch.eye(classes, dtype=torch.float64)
    gradients = torch.einsum("nky,nyp->nkp", residual, jacobian)
    return Population(
        gradients=gradients.detach().numpy(),
        law=(law / inputs).detach().numpy(),
        model=(p / inputs).detach().numpy(),
        hessian=vmap(second)(coordinates).detach().numpy(),
        dimension=d,
    )


def _made_rare(classifier: Classifier, share: float) -> Tensor:
    """The teacher with one bias moved until all classes but one have this probability together, by bisection."""
    if classifier.bias is None:
        raise ValueError("the classes of this model cannot be made rare; only logistic and softmax have the bias")
    low, high = -60.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        theta = classifier.teacher.clone()
        theta[classifier.bias] = classifier.sign * middle
        rare = 1.0 - classifier.logits(theta).softmax(-1)[:, 0].mean().item()
        low, high = (middle, high) if rare > share else (low, middle)
    return theta


def _features(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Normal inputs whose scales span one decade, the last feature 1."""
    x = torch.randn(count, size, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(0, -1, size, dtype=torch.float64)
    x[:, -1] = 1.0
    return x


def _logistic(count: int, size: int, generator: torch.Generator) -> Classifier:
    x = _features(count, size, generator)
    teacher = torch.randn(size, generator=generator, dtype=torch.float64)
    teacher = teacher * 1.5 / (x @ teacher).std()
    return Classifier(lambda w: torch.stack([torch.zeros(count, dtype=w.dtype), x @ w], -1), teacher, size - 1, -1.0)


def _softmax(count: int, size: int, generator: torch.Generator, classes: int = 4) -> Classifier:
    x = _features(count, size, generator)
    teacher = torch.randn(classes, size, generator=generator, dtype=torch.float64)
    teacher = teacher * 1.5 / (x @ teacher.T).std()
    return Classifier(lambda w: x @ w.reshape(classes, size).T, teacher.flatten(), size - 1)


def _mlp(count: int, size: int, generator: torch.Generator, hidden: int = 8, classes: int = 3) -> Classifier:
    x = _features(count, size, generator)
    first = hidden * size

    def logits(w: Tensor) -> Tensor:
        inner = torch.tanh(x @ w[:first].reshape(hidden, size).T)
        return inner @ w[first:].reshape(classes, hidden).T

    scale = torch.cat([torch.full((first,), 0.5), torch.full((classes * hidden,), 0.7)]).double()
    return Classifier(logits, scale * torch.randn(scale.numel(), generator=generator, dtype=torch.float64))


def _transformer(count: int, size: int, generator: torch.Generator) -> Classifier:
    """The last token's prediction; the sample is a prefix of six tokens and the one that follows."""
    config = TransformerConfig(vocab=8, d_model=8, n_layer=1, n_head=2, max_len=6, mlp_ratio=2)
    model = TinyTransformer(config, seed=1, dtype=torch.float64)
    tokens = torch.randint(config.vocab, (count, config.max_len), generator=generator)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    start = torch.cat([p.detach().flatten() for p in model.parameters()])

    def logits(w: Tensor) -> Tensor:
        parts = w.split([math.prod(shape) for shape in shapes.values()])
        named = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return functional_call(model, named, (tokens,), tie_weights=True)[:, -1]

    noise = torch.randn(start.numel(), generator=generator, dtype=torch.float64)
    return Classifier(logits, start + 0.3 * noise)


_BUILDERS: dict[str, Callable[[int, int, torch.Generator], Classifier]] = {
    "logistic": _logistic,
    "softmax": _softmax,
    "mlp": _mlp,
    "transformer": _transformer,
}
