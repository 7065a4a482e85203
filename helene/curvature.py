r"""Where HELENE's curvature estimate comes from.

| source           | estimate                                              | extra cost each time          |
| ---------------- | ----------------------------------------------------- | ----------------------------- |
| `spsa`           | B g ⊙ g, g this step's SPSA gradient                  | none                          |
| `spsa_own_batch` | the same from a pair on a minibatch of its own        | 2 forwards                    |
| `backprop`       | B ĝ ⊙ ĝ, ĝ by backward: Algorithm 2 to the letter     | 1 forward, 1 backward, ĝ      |
| `sampled_labels` | the same for labels drawn from the model: Sophia's GNB | 1 forward, 1 backward, ĝ     |
| `none`           | h stays 0, so that the floor alone scales the step    | none                          |

What these estimate is another matter: see GNB-returned and GNB-zo in `theory/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from helene import noise
from helene.directions import compute_dtype
from helene.probe import Closure, scalar_loss

SOURCES = ("spsa", "spsa_own_batch", "backprop", "sampled_labels", "none")


def mean_gradient(closure: Closure, params: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    r"""ĝ, the gradient of the closure's mean loss at theta (Algorithm 2, line 4), one tensor a parameter, and the loss.

    Parameters that the loss does not depend on get zeros. No ``.grad`` is touched.

    Raises:
        ValueError: If the closure returns no scalar or its loss has no graph.
        FloatingPointError: If the loss or the gradient is not finite.
    """
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


def _gradient(loss: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise ValueError("the closure's result has no graph to go back through; it must not run under torch.no_grad")
    found = torch.autograd.grad(loss, list(params), allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]
    if not all(torch.stack(g.aminmax()).isfinite().all() for g in gradients if g.numel()):
        raise FloatingPointError(
            "the gradient is not finite; parameters and state are unchanged. A wider dtype or a smaller lr helps"
        )
    return gradients
