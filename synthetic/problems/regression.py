r"""L2-regularised logistic and softmax regression on the data sets that come with scikit-learn.

The coefficients are grouped into layers by features. The radius R_i of Assumption 2 (Loewner form): if layer i moves by
at most R, sample b's margin moves by at most r_b = R ‖x_{b,i}‖, and the logarithm of s(m) = sigma'(m) has slope within
(−1, 1), so the sample's share of the Hessian stays within e^{±r_b} of itself; the ridge does not move. So
R_i = ln 2 / max_b ‖x_{b,i}‖. For softmax with probabilities p, the share is S = diag(p) − ppᵀ with
vᵀSv = min_c Σ_k p_k (v_k − c)²; if logits move by δ, each p_k changes by a factor within e^{±(max δ − min δ)}, so S
does, and max δ − min δ <= √2 ‖δ‖ <= √2 R ‖x_{b,i}‖. So R_i = ln 2 / (√2 max_b ‖x_{b,i}‖).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from synthetic.problems.base import Constants, Problem
from synthetic.problems.data import load_data
from synthetic.problems.layers import Layers

_TOLERANCE = 1e-13
_LINEAR = 40.0  # log(1 + e^x) = x in float64 from here on; torch's own limit of 20 is meant for float32


class Regression(Problem):
    r"""Mean log loss plus (l2 / 2)‖theta‖², its features the samples' outputs followed by theta itself.

    Args:
        inputs: (N, D), float64.
        labels: (N,), classes from 0.
        layers: Partition of the coefficients; each layer holds whole features (all their classes).
        l2: Ridge, above 0; it makes the loss strongly convex.

    Raises:
        ValueError: If the partition does not fit the features, or l2 is not positive.
    """

    name: str
    classes: int
    _root2: ClassVar[float] = 1.0
    _TENSORS = ("inputs", "base_outputs", "base_theta", "targets")

    def __init__(self, inputs: Tensor, labels: Tensor, layers: Layers, l2: float) -> None:
        if l2 <= 0:
            raise ValueError(f"l2 must be positive, got {l2!r}; without a ridge the minimizer may be at infinity")
        columns = 1 if self.name == "logistic" else int(labels.max()) + 1
        if layers.d != inputs.shape[1] * columns or any(size % columns for size in layers.sizes):
            raise ValueError(
                f"layers {layers.sizes} do not split {inputs.shape[1]} features of {columns} coefficients each; "
                "sizes must be multiples of the latter and add up to all"
            )
        self.layers, self.inputs, self.l2, self.columns = layers, inputs, l2, columns
        self.targets = self._targets(labels)
        self.base_theta = torch.zeros(layers.d, dtype=torch.float64)
        self.base_outputs = torch.zeros(inputs.shape[0] * columns, dtype=torch.float64)
        self.minimum = 0.0
        self._minimize()
        self._certify()

    def _targets(self, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def _outputs_loss(self, outputs: Tensor) -> Tensor:
        """Loss of each sample, (..., N)."""
        raise NotImplementedError

    def _outputs_slope(self, outputs: Tensor) -> Tensor:
        """Its derivative, (..., N · columns)."""
        raise NotImplementedError

    @property
    def num_samples(self) -> int:
        """N."""
        return self.inputs.shape[0]

    def features(self, x: Tensor) -> Tensor:
        """See `Problem`: changes of the outputs, then x."""
        return torch.cat([self._outputs(x), x], -1)

    def _outputs(self, x: Tensor) -> Tensor:
        if self.columns == 1:  # one product of matrices instead of one per row
            return x @ self.inputs.to(x.dtype).mT
        return (self.inputs.to(x.dtype) @ x.unflatten(-1, (-1, self.columns))).flatten(-2)

    def pullback(self, s: Tensor) -> Tensor:
        """See `Problem`."""
        cut = self.num_samples * self.columns
        if self.columns == 1:
            return s[..., :cut] @ self.inputs + s[..., cut:]
        outputs = s[..., :cut].unflatten(-1, (-1, self.columns))
        return (self.inputs.mT @ outputs).flatten(-2) + s[..., cut:]

    def gap_terms(self, p: Tensor) -> Tensor:
        """See `Problem`: one term per sample, one per coefficient and one for the minimum."""
        cut = self.num_samples * self.columns
        losses = self._outputs_loss(self.base_outputs + p[..., :cut]) / self.num_samples
        ridge = 0.5 * self.l2 * (self.base_theta + p[..., cut:]).square()
        return torch.cat([losses, ridge, torch.full_like(losses[..., :1], -self.minimum)], -1)

    def gap_below(self, p: Tensor, s: Tensor) -> Tensor:
        r"""See `Problem`, from how little the curvature can change between minimizer and x.

        With psi(t) = L(theta* + t x), the logarithm of psi'' has slope within ±r, r the largest change of an output (or
        of a difference of two of a sample's outputs); given psi'(1) = xᵀ∇L, psi(1) − psi(0) is least when psi'' grows
        like e^{rt}: then it is psi'(1) (1/r − 1/(e^r − 1)).
        """
        changes = p[..., : self.num_samples * self.columns]
        r = self._largest_change(changes).clamp_min(1e-2)
        return torch.linalg.vecdot(p, s) * (1.0 / r - 1.0 / torch.expm1(r)) * 0.999

    def _largest_change(self, changes: Tensor) -> Tensor:
        """Largest change of an output, or spread of the changes of one sample's outputs."""
        raise NotImplementedError

    def slope(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        cut = self.num_samples * self.columns
        outputs = self._outputs_slope(self.base_outputs + p[..., :cut]) / self.num_samples
        return torch.cat([outputs, self.l2 * (self.base_theta + p[..., cut:])], -1)

    def _minimize(self) -> None:
        """Newton steps, halved until the loss falls; theta* is then the origin of x."""
        theta = self.base_theta
        for _ in range(200):
            p = self.features(theta)
            gradient = self.pullback(self.slope(p))
            if gradient.norm() <= _TOLERANCE:
                break
            move = torch.linalg.solve(self.hessian(theta), gradient)
            size, before = 1.0, self.gap(p)
            while size > 1e-10 and self.gap(self.features(theta - size * move)) > before:
                size *= 0.5
            if size <= 1e-10:
                break  # only rounding is left to gain
            theta = theta - size * move
        residual = self.pullback(self.slope(self.features(theta))).norm().item()
        if residual > 1e3 * _TOLERANCE:
            raise ArithmeticError(f"no minimizer found: the gradient's norm is still {residual:.1e}")
        minimum = self.gap(self.features(theta)).item()
        self.base_outputs = self.features(theta)[: self.base_outputs.numel()]
        self.base_theta = self.minimizer = theta
        self.minimum = minimum

    def _certify(self) -> None:
        at = torch.zeros(self.layers.d, dtype=torch.float64)
        whole = self.hessian(at)
        spectra = [torch.linalg.eigvalsh(whole[part, part]) for part in self.layers.slices()]
        radius = []
        for part in self.layers.slices():
            inputs = self.inputs[:, part.start // self.columns : part.stop // self.columns]
            longest = inputs.norm(dim=1).max().item()
            radius.append(math.log(2.0) / (self._root2 * longest) if longest > 0 else math.inf)
        gram = torch.linalg.eigvalsh(self.inputs.mT @ self.inputs / self.num_samples)[-1].item()
        spectrum = torch.linalg.eigvalsh(whole)
        self.constants = Constants(
            mu=tuple(s[0].item() for s in spectra),
            radius=tuple(radius),
            layer_trace=tuple(s.sum().item() for s in spectra),
            layer_top=tuple(s[-1].item() for s in spectra),
            smallest=spectrum[0].item(),
            largest=spectrum[-1].item(),
            smoothness=gram * (0.25 if self.columns == 1 else 0.5) + self.l2,
        )

    def loss(self, theta: Tensor) -> Tensor:
        """See `Problem`; computed from theta, not from the minimizer."""
        return self._outputs_loss(self._outputs(theta)).mean(-1) + 0.5 * self.l2 * theta.square().sum(-1)


class Logistic(Regression):
    """See `Regression`; labels are 0 and 1."""

    name = "logistic"

    def _targets(self, labels: Tensor) -> Tensor:
        if set(labels.tolist()) != {0, 1}:
            raise ValueError(
                f"labels must be 0 and 1, got {sorted(set(labels.tolist()))}; use softmax for more classes"
            )
        return labels.double()

    def _outputs_loss(self, outputs: Tensor) -> Tensor:
        return F.softplus(outputs, threshold=_LINEAR) - self.targets * outputs

    def _outputs_slope(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs) - self.targets

    def _largest_change(self, changes: Tensor) -> Tensor:
        return changes.abs().amax(-1)

    def _weights(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(self.base_outputs + x @ self.inputs.mT)
        return s * (1.0 - s) / self.num_samples

    def hessian(self, x: Tensor) -> Tensor:
        """See `Problem`."""
        return self._gram(self._weights(x), self.inputs)

    def diagonal(self, p: Tensor) -> Tensor:
        """See `Problem`."""
        s = torch.sigmoid(self.base_outputs + p[..., : self.num_samples])
        return (s * (1.0 - s) / self.num_samples) @ self.inputs.square() + self.l2

    def blocks(self, x: Tensor) -> list[Tensor]:
        """See `Problem`."""
        weights, parts = self._weights(x)[..., None, :], []
        for stretch in self.layers.stretches:
            inputs = self.inputs[:, stretch.span].unflatten(-1, (stretch.count, stretch.width)).transpose(0, 1)
            parts.append(self._gram(weights, inputs))
        return parts

    def _gram(self, weights: Tensor, inputs: Tensor) -> Tensor:
        ridge = self.l2 * torch.eye(inputs.shape[-1], dtype=inputs.dtype)
        return inputs.mT @ (weights[..., :, None] * inputs) + ridge


class Softmax(Regression):
    """See `Regression`; the coefficients of a feature's classes follow one another."""

    name = "softmax"
    _root2 = math.sqrt(2.0)

    def _targets(self, labels: Tensor) -> Tensor:
        return F.one_hot(labels).double().flatten()

    def _outputs_loss(self, outputs: Tensor) -> Tensor:
        logits = outputs.unflatten(-1, (-1, self.columns))
        return logits.logsumexp(-1) - (logits * self.targets.view(-1, self.columns)).sum(-1)

    def _outputs_slope(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(-1, (-1, self.columns)).softmax(-1).flatten(-2) - self.targets

    def diagonal(self, p: Tensor) -> Tensor:
        """See `Problem`: the mean over samples of x² q (1 − q), q the class's probability."""
        outputs = self.base_outputs + p[..., : self.num_samples * self.columns]
        q = outputs.unflatten(-1, (-1, self.columns)).softmax(-1)
        return (self.inputs.square().mT @ (q * (1.0 - q)) / self.num_samples).flatten(-2) + self.l2

    def _largest_change(self, changes: Tensor) -> Tensor:
        samples = changes.unflatten(-1, (-1, self.columns))
        return (samples.amax(-1) - samples.amin(-1)).amax(-1)

    def hessian(self, x: Tensor) -> Tensor:
        """See `Problem`."""
        outputs = self.base_outputs + self._outputs(x)
        p = outputs.unflatten(-1, (-1, self.columns)).softmax(-1)
        s = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
        full = torch.einsum("bi,...bkl,bj->...ikjl", self.inputs, s / self.num_samples, self.inputs)
        ridge = self.l2 * torch.eye(self.layers.d, dtype=x.dtype)
        return full.reshape(*x.shape[:-1], self.layers.d, self.layers.d) + ridge


def regression(data: str, sizes: Sequence[int], l2: float) -> Regression:
    """The regression on a bundled data set: logistic for two classes, softmax for more.

    Raises:
        ValueError: See `load_data` and `Regression`.
    """
    inputs, labels = load_data(data)
    kind = Logistic if int(labels.max()) == 1 else Softmax
    return kind(inputs, labels, Layers(tuple(sizes)), l2)
