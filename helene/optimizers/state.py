"""State tensors, flat: float32 (float64 for float64 parameters), bfloat16 or blockwise 8 bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helene import precision
from helene.directions import compute_dtype

NONNEGATIVE = frozenset({"curvature", "second_moment"})  # the names that 8-bit state stores without a sign
Tensors = dict[str, Tensor]


def dtype_name(dtype: Any) -> str:
    """One of `precision.STATE_DTYPES`.

    Raises:
        ValueError: If it is none of them.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in precision.STATE_DTYPES:
        raise ValueError(f"state_dtype must be one of {', '.join(precision.STATE_DTYPES)}; got {dtype!r}")
    return name


def allocate(like: Tensor, name: str, dtype: str, initial: float = 0.0) -> Tensors:
    """The tensors that hold one state of a parameter: ``name`` and, in 8 bit, ``name_scale``."""
    size, device = like.numel(), like.device
    if dtype == "8bit":
        nonnegative = name in NONNEGATIVE
        code = (255 if nonnegative else 127) if initial else 0
        codes = torch.full((size,), code, dtype=torch.uint8 if nonnegative else torch.int8, device=device)
        return {name: codes, f"{name}_scale": torch.full((-(-size // precision.BLOCK),), initial, device=device)}
    stored = torch.bfloat16 if dtype == "bfloat16" else compute_dtype(like.dtype)
    return {name: torch.full((size,), initial, dtype=stored, device=device)}


def shapes(like: Tensor, names: Sequence[str], counters: Sequence[str], dtype: str) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors that a parameter's state has."""
    meta = torch.empty(like.shape, dtype=like.dtype, device="meta")
    held = {key: tuple(t.shape) for name in names for key, t in allocate(meta, name, dtype).items()}
    return {**held, **dict.fromkeys(counters, ())}


def check(state: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]], parameter: str) -> None:
    """Raise ValueError, naming the first entry, unless a parameter's state is tensors of these shapes, all finite."""
    way_out = "take a whole state_dict or checkpoint of this model and method, or start from a fresh state"
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"the state_dict has no {name} of shape {shape} for parameter {parameter}; {way_out}")
        stored = state[name]
        if not isinstance(stored, Tensor) or tuple(stored.shape) != shape:
            kind = f"of shape {tuple(stored.shape)}" if isinstance(stored, Tensor) else f"as a {type(stored).__name__}"
            raise ValueError(
                f"the state_dict has {name} {kind} for parameter {parameter}, which needs {shape}; {way_out}"
            )
        if not _is_finite(stored):
            place = int((~torch.isfinite(stored.reshape(-1))).nonzero()[0])
            raise ValueError(
                f"the state_dict has {stored.reshape(-1)[place].item()} in {name} at element {place} for parameter "
                f"{parameter}, and every later step would carry it on; take an earlier state_dict or checkpoint, or "
                "start from a fresh state"
            )


def _is_finite(stored: Tensor) -> bool:
    """Whether all elements are; reads them once and allocates nothing of their size."""
    if not stored.is_floating_point() or not stored.numel():
        return True
    return all(math.isfinite(bound.item()) for bound in torch.aminmax(stored))  # nan spreads to both


def read(state: Tensors, name: str, span: slice, dtype: torch.dtype) -> Tensor:
    """Elements of a state in the dtype of arithmetic; a view where that is how they are stored."""
    stored = state[name]
    if f"{name}_scale" in state:
        return precision.decode(stored[span], state[f"{name}_scale"][_blocks(span)]).to(dtype)
    return stored[span].to(dtype)


def is_rounded(state: Tensors, name: str) -> bool:
    """Whether `writes` needs random words."""
    return state[name].dtype in (torch.bfloat16, torch.uint8, torch.int8)


def writes(state: Tensors, name: str, span: slice, value: Tensor, words: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """What to copy where to store elements of a state, rounded stochastically where it is narrower than float32."""
    stored = state[name]
    if words is None:
        return [(stored[span], value)]
    if stored.dtype == torch.bfloat16:
        return [(stored[span], precision.round_stochastically(value.float(), words, torch.bfloat16))]
    codes, scales = precision.encode(value.float(), words, name in NONNEGATIVE)
    return [(stored[span], codes), (state[f"{name}_scale"][_blocks(span)], scales)]


def write(state: Tensors, name: str, span: slice, value: Tensor, words: Tensor | None) -> None:
    """Store elements of a state, see `writes`."""
    for sink, stored in writes(state, name, span, value, words):
        sink.copy_(stored)


def _blocks(span: slice) -> slice:
    return slice(span.start // precision.BLOCK, -(-span.stop // precision.BLOCK))
