r"""Where a curvature estimate comes from.

| source           | estimate                                              | extra cost each time          |
| ---------------- | ----------------------------------------------------- | ----------------------------- |
| `spsa`           | B g ⊙ g, g this step's SPSA gradient                  | none                          |
| `spsa_own_batch` | the same from a pair on a minibatch of its own        | 2 forwards                    |
| `backprop`       | B ĝ ⊙ ĝ, ĝ by backward: Algorithm 2 to the letter     | 1 forward, 1 backward, ĝ      |
| `sampled_labels` | the same for labels drawn from the model: Sophia's GNB | 1 forward, 1 backward, ĝ     |
| `none`           | h stays 0, so that the floor alone scales the step    | none                          |

What these estimate is another matter: see GNB-returned and GNB-zo in `theory/`. A source is an object, so that an
optimizer from elsewhere can bring its own: ``curvature=`` takes a `Source` as well as one of these names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from helene import functional, noise
from helene.evaluation.directions import compute_dtype
from helene.evaluation.losses import Closure, Informed, scalar_loss

if TYPE_CHECKING:
    from helene.steps.base import Base, Chunk
    from helene.steps.plan import StepPlan

Estimate = Callable[[int, int, int, "Tensor | None"], Tensor]  # (parameter, start, end, g there if drawn) -> elements


class Source:
    """Where ĥ comes from; this one gives none.

    Attributes:
        name: As in ``curvature=`` and in records.
        uses_batch_size: Whether it needs B.
        needs_closure: Whether ``step`` must be given a ``curvature_closure``.
        needs_probes: Whether only a zeroth-order method can use it.
        has_backward: Whether it takes a backward, and so the memory of gradients and activations.
        replayable: Whether ĥ is a function of the step's scalars and z.
        of_step: Whether ĥ is B g ⊙ g of the step's own g, which the kernels and captured steps compute themselves.
    """

    name = "none"
    uses_batch_size = needs_closure = needs_probes = has_backward = of_step = False
    replayable = True

    def forwards(self, pair: int) -> int:
        """Forwards of an estimate, a backward counted as two; ``pair`` are those of the step's own measurement."""
        return 0

    def num_scalars(self, pair: int) -> int:
        """How many scalars `measure` gives, if the step's own measurement gives so many."""
        return 0

    def measure(self, optimizer: Base, closure: Closure, plan: StepPlan) -> tuple[list[float], Any]:
        """Evaluate what ĥ needs, leaving parameters alone: scalars for the recording, and a sample for `estimate`."""
        return [], None

    def estimate(self, optimizer: Base, plan: StepPlan, gradient: Chunk, scalars: list[float], sample: Any) -> Estimate:
        """ĥ by chunks, from what was measured; ``gradient`` is the step's own."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<curvature source {self.name!r}>"

    def __reduce__(self) -> Any:  # one object for each source of this module, also after a copy or a pickle
        return (source_of, (self.name,)) if SOURCES.get(self.name) is self else super().__reduce__()


class _StepGradient(Source):
    name = "spsa"
    uses_batch_size = needs_probes = of_step = True

    def estimate(self, optimizer: Base, plan: StepPlan, gradient: Chunk, scalars: list[float], sample: Any) -> Estimate:
        return a_gnb_of(gradient, plan.batch_size, shared=True)


class _OwnBatch(Source):
    name = "spsa_own_batch"
    uses_batch_size = needs_closure = needs_probes = True

    def forwards(self, pair: int) -> int:
        return pair

    def num_scalars(self, pair: int) -> int:
        return pair

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> tuple[list[float], Any]:
        return optimizer.slopes(closure, plan, noise.CURVATURE_DRAW)[0], None

    def estimate(self, optimizer: Any, plan: StepPlan, gradient: Chunk, scalars: list[float], sample: Any) -> Estimate:
        return a_gnb_of(optimizer.combination(plan, scalars, noise.CURVATURE_DRAW), plan.batch_size)


class _Backprop(Source):
    name = "backprop"
    uses_batch_size = has_backward = True
    replayable = False

    def forwards(self, pair: int) -> int:
        return 3

    def measure(self, optimizer: Base, closure: Closure, plan: StepPlan) -> tuple[list[float], Any]:
        return [], (mean_gradient(closure, [target.tensor for target in optimizer.targets])[0], plan.batch_size)

    def estimate(self, optimizer: Base, plan: StepPlan, gradient: Chunk, scalars: list[float], sample: Any) -> Estimate:
        gradients, batch_size = sample
        return a_gnb_of(by_chunks(gradients), batch_size)


class _SampledLabels(_Backprop):
    name = "sampled_labels"
    uses_batch_size, needs_closure = False, True

    def measure(self, optimizer: Base, closure: Closure, plan: StepPlan) -> tuple[list[float], Any]:
        params = [target.tensor for target in optimizer.targets]
        return [], sampled_label_gradient(closure, params, plan.seed, plan.step)


NONE, SPSA = Source(), _StepGradient()
SOURCES: dict[str, Source] = {s.name: s for s in (SPSA, _OwnBatch(), _Backprop(), _SampledLabels(), NONE)}


def source_of(curvature: str | Source) -> Source:
    """The source of that name, or the source itself.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(curvature, Source):
        return curvature
    if curvature not in SOURCES:
        raise ValueError(f"curvature must be one of {', '.join(SOURCES)} or a Source; got {curvature!r}")
    return SOURCES[curvature]


def named(source: Source) -> str:
    """The name of a source of this module, for recordings and checkpoints.

    Raises:
        ValueError: If it is from elsewhere.
    """
    if SOURCES.get(source.name) is not source:
        raise ValueError(
            f"{source!r} is an object that no file can hold; use one of {', '.join(SOURCES)}, or make checkpoints with "
            "torch.save"
        )
    return source.name


def a_gnb_of(gradient: Chunk, batch_size: int, shared: bool = False) -> Estimate:
    """B ĝ ⊙ ĝ by chunks; ``shared`` where ĝ is the step's own g, which may have been drawn already."""

    def estimate(index: int, start: int, end: int, g: Tensor | None) -> Tensor:
        return functional.a_gnb(g if shared and g is not None else gradient(index, start, end), batch_size)

    return estimate


class Differentiated(Informed):
    """Knows the gradient of its loss: what `mean_gradient` gives of it, a function of the parameters."""

    known: Callable[[Sequence[Tensor]], tuple[list[Tensor], Tensor]]


class KeptGradient(list[Tensor]):
    """One tensor a parameter, which all stay where they are from step to step, so that kernels may know where."""


def mean_gradient(closure: Closure, params: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    r"""ĝ, the gradient of the closure's mean loss at theta (Algorithm 2, line 4), one tensor a parameter, and the loss.

    Parameters that the loss does not depend on get zeros. No ``.grad`` is touched.

    Raises:
        ValueError: If the closure returns no scalar or its loss has no graph.
        FloatingPointError: If the loss or the gradient is not finite.
    """
    if isinstance(closure, Differentiated):
        return closure.known(params)
    with torch.enable_grad():
        loss = closure()
        value = scalar_loss(loss)
        return _gradient(loss, params), value


def sampled_label_gradient(
    closure: Closure, params: Sequence[Tensor], seed: int, step: int
) -> tuple[list[Tensor], int]:
    r"""ĝ of the mean cross-entropy at labels drawn from the model's own softmax, and the number of labels B.

    The Gauss-Newton-Bartlett estimator of Sophia (Liu et al. 2023, algorithm 2): B ĝ ⊙ ĝ is then an unbiased estimate
    of the Gauss-Newton diagonal. Labels come from `helene.noise`, not from torch's generator.

    Args:
        closure: Returns the logits of one minibatch, shape (..., num_classes); the leading axes are counted as labels.
        params: Parameters to differentiate by.
        seed: Run seed.
        step: Step of the run.

    Raises:
        ValueError: If the closure returns no matrix of logits or it has no graph.
    """
    with torch.enable_grad():
        logits = closure()
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"the curvature closure must return logits of shape (..., num_classes), got {shape}")
        flat = logits.reshape(-1, logits.shape[-1]).float()
        words = noise.integers(seed, step, noise.LABEL_DRAW, 0, 0, flat.shape[0])
        uniform = torch.from_numpy((words.astype("float64") + 0.5) / 2.0**32).to(flat.device)
        cumulative = flat.detach().double().softmax(-1).cumsum(-1)
        labels = torch.searchsorted(cumulative, (uniform[:, None] * cumulative[:, -1:])).clamp_max_(flat.shape[1] - 1)
        return _gradient(F.cross_entropy(flat, labels[:, 0]), params), flat.shape[0]


def by_chunks(gradients: Sequence[Tensor]) -> Callable[[int, int, int], Tensor]:
    """Whole gradients as a function from (index of a parameter, start, end) to elements, in the dtype of arithmetic."""
    flat = [g.reshape(-1) for g in gradients]
    return lambda index, start, end: flat[index][start:end].to(compute_dtype(flat[index].dtype))


def all_finite(gradients: Sequence[Tensor]) -> Tensor:
    """Whether every element is finite, 0-dim, in a few kernels: their largest magnitude is."""
    return get_total_norm([g for g in gradients if g.numel()], math.inf).isfinite()


def _gradient(loss: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise ValueError("the closure's result has no graph to go back through; it must not run under torch.no_grad")
    found = torch.autograd.grad(loss, list(params), allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(found, params, strict=True)]
    if not all_finite(gradients):
        raise FloatingPointError(
            "the gradient is not finite; parameters and state are unchanged. A wider dtype or a smaller lr helps"
        )
    return gradients
