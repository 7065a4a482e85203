"""Closures from minibatches that do not fit into memory at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from helene.evaluation.losses import as_loss, one_number


def microbatches(
    loss: Callable[[Any], Tensor], batches: Iterable[Any], size: Callable[[Any], float] | None = None
) -> Callable[[], Tensor]:
    r"""A closure whose value is the loss of all the batches taken as one: Σ n_i L_i / Σ n_i.

    Zeroth-order steps need no accumulated gradient: the closure goes through the parts at each probe, one in memory at
    a time. The value equals the loss of the whole batch up to rounding, if ``loss`` is a mean over what ``size``
    counts. With ``model=`` given to the optimizer, each part perturbs each module anew (one draw of z a part and
    probe); without, the full copy serves all parts.

    Args:
        loss: Maps a batch to its mean loss, a scalar.
        batches: The parts; kept, since they are visited at every probe.
        size: Maps a batch to what its loss is a mean over (examples; label tokens for a language model). Unless given,
            the first axis of the batch's first tensor, mappings such as Hugging Face's included.

    Raises:
        ValueError: If there are no batches, or no size can be read off.
    """
    parts = list(batches)
    if not parts:
        raise ValueError("there are no batches; a closure needs at least one")
    weights = [float(size(part) if size else _first_axis(part)) for part in parts]
    total = sum(weights)
    if not total > 0:
        raise ValueError(f"the batches' sizes add up to {total}; they must be positive")

    def closure() -> Tensor:
        terms = [_number(loss(part)) * (weight / total) for part, weight in zip(parts, weights, strict=True) if weight]
        return torch.stack(terms).sum()

    return closure


def _first_axis(batch: Any) -> int:
    if isinstance(batch, Tensor) and batch.dim():
        return batch.shape[0]
    inner = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for value in inner:
        if isinstance(value, Tensor) and value.dim():
            return value.shape[0]
    raise ValueError(f"no tensor tells the size of a {type(batch).__name__}; pass size=")


def _number(loss: Any) -> Tensor:
    """The loss of a part as a 0-dim tensor, its graph kept."""
    return one_number(loss, "the loss of a part") if isinstance(loss, Tensor) else as_loss(loss)
