"""State tensors, flat: float32 (float64 for float64 parameters), bfloat16 or blockwise 8 bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from helene.evaluation.directions import compute_dtype
from helene.inputs import numeric
from helene.rules import precision

if TYPE_CHECKING:
    from helene.rules import Rule

NONNEGATIVE = frozenset({"curvature", "second_moment"})  # the names that 8-bit state stores without a sign
Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How a layer's parameters are rounded and its state is stored, see `helene.steps.base.Base`."""

    rounding: str = "nearest"
    state_dtype: str = "float32"

    def __post_init__(self) -> None:
        numeric.one_of(self.rounding, "rounding", ("nearest", "stochastic"))
        object.__setattr__(self, "state_dtype", dtype_name(self.state_dtype))


def dtype_name(dtype: Any) -> str:
    """One of `precision.STATE_DTYPES`.

    Raises:
        ValueError: If it is none of them.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in precision.STATE_DTYPES:
        raise ValueError(f"state_dtype must be one of {', '.join(precision.STATE_DTYPES)}; got {dtype!r}")
    return name


def allocate(like: Tensor, rule: Rule, name: str, dtype: str) -> Tensors:
    """The tensors that hold one state of a parameter: ``name`` and, in 8 bit, ``name_scale``."""
    size, device, initial = like.numel(), like.device, rule.INITIAL.get(name, 0.0)
    if name in rule.COUNTERS:
        return {name: torch.zeros((), dtype=torch.int64, device=device)}
    if dtype == "8bit":
        nonnegative = name in NONNEGATIVE
        code = (255 if nonnegative else 127) if initial else 0
        codes = torch.full((size,), code, dtype=torch.uint8 if nonnegative else torch.int8, device=device)
        scales = torch.full((-(-size // precision.BLOCK),), initial, dtype=torch.float32, device=device)
        return {name: codes, f"{name}_scale": scales}
    stored = torch.bfloat16 if dtype == "bfloat16" else compute_dtype(like.dtype)
    return {name: torch.full((size,), initial, dtype=stored, device=device)}


def layout(like: Tensor, rule: Rule, dtype: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of all tensors that a parameter's state has."""
    meta = torch.empty(like.shape, dtype=like.dtype, device="meta")
    held = {key: t for name in rule.kept for key, t in allocate(meta, rule, name, dtype).items()}
    return {key: (tuple(t.shape), t.dtype) for key, t in held.items()}


def check(
    state: Mapping[str, Any], expected: Mapping[str, tuple[tuple[int, ...], torch.dtype]], parameter: str
) -> None:
    """Raise ValueError, naming the first entry, unless a parameter's state is tensors of this layout, all finite."""
    way_out = "take a whole state_dict or checkpoint of this model and method, or start from a fresh state"
    for name, (shape, dtype) in expected.items():
        if name not in state:
            raise ValueError(f"the state_dict has no {name} of shape {shape} for parameter {parameter}; {way_out}")
        stored = state[name]
        if not isinstance(stored, Tensor) or tuple(stored.shape) != shape:
            kind = f"of shape {tuple(stored.shape)}" if isinstance(stored, Tensor) else f"as a {type(stored).__name__}"
            raise ValueError(
                f"the state_dict has {name} {kind} for parameter {parameter}, which needs {shape}; {way_out}"
            )
        if stored.dtype != dtype:
            raise ValueError(
                f"the state_dict has {name} in {stored.dtype} for parameter {parameter}, whose state_dtype asks for "
                f"{dtype}; {way_out}"
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


def read(state: Mapping[str, Tensor], name: str, span: slice, dtype: torch.dtype) -> Tensor:
    """Elements of a state in the dtype of arithmetic; a view where that is how they are stored."""
    stored = state[name]
    if f"{name}_scale" in state:
        return precision.decode(stored[span], state[f"{name}_scale"][_blocks(span)]).to(dtype)
    return stored[span].to(dtype)


def read_all(state: Mapping[str, Tensor], rule: Rule, span: slice, dtype: torch.dtype) -> Any:
    """Elements of all of a rule's states, as its ``State``."""

    def of(name: str) -> Tensor | None:
        if name not in rule.kept:
            return None
        return state[name] if name in rule.COUNTERS else read(state, name, span, dtype)

    return rule.State(*map(of, rule.State._fields))


def is_rounded(state: Mapping[str, Tensor], name: str) -> bool:
    """Whether `writes` needs random words."""
    return state[name].dtype in (torch.bfloat16, torch.uint8, torch.int8)


def writes(
    state: Mapping[str, Tensor], name: str, span: slice, value: Tensor, words: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """What to copy where to store elements of a state, rounded stochastically where it is narrower than float32."""
    stored = state[name]
    if words is None:
        return [(stored[span], value)]
    if stored.dtype == torch.bfloat16:
        return [(stored[span], precision.round_stochastically(value.float(), words, torch.bfloat16))]
    codes, scales = precision.encode(value.float(), words, name in NONNEGATIVE)
    return [(stored[span], codes), (state[f"{name}_scale"][_blocks(span)], scales)]


def _blocks(span: slice) -> slice:
    return slice(span.start // precision.BLOCK, -(-span.stop // precision.BLOCK))
