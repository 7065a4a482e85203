r"""A forward in which each group of the batch's rows sees parameters of its own, theta + eps z_g, and no copy is made.

With z = u vᵀ, x (W + eps u vᵀ)ᵀ = x Wᵀ + eps (x · v) uᵀ: the plain product, which all rows share, and a term of rank
one. `RowPerturbation` sees each function of torch that is given a trained parameter, and either lets the rows see what
they should or refuses by name. Nothing in the model is touched, so subclasses, hooks and weights that several modules
share need no care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from helene.evaluation.directions import Target
from helene.evaluation.grouped.factors import Factors, Mirrored
from helene.evaluation.grouped.operations import Operations, Read, bare
from helene.evaluation.reads import ReadWatch

# What gives the same values in another form.
_FORMS = {"to", "float", "double", "half", "bfloat16", "type", "type_as", "detach", "data", "contiguous", "clone"}
# What works on each element alone; forms with underscores, r or i before or after are the same.
_ELEMENTWISE = {"add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "truediv", "where", "pow"}
_ELEMENTWISE |= {"exp", "log", "neg", "sigmoid", "tanh", "softplus", "relu", "square", "sqrt", "rsqrt", "abs"}
# What tells of a tensor and reads none of its elements.
_FACTS = {"size", "dim", "numel", "nelement", "stride", "is_floating_point", "is_complex", "is_contiguous", "len"}
_FACTS |= {"element_size", "storage_offset", "get_device", "is_inference", "data_ptr", "hash", "ndimension"}


class RowPerturbation(TorchFunctionMode):
    """Inside, the rows of group g see theta + radius z_g.

    Args:
        targets: The trained parameters.
        factors: Their directions.
        radius: What z is multiplied by.
        watch: Is paused where a trained parameter is read as it is supposed to be.
        shared: See `Operations`.

    Attributes:
        operations: What takes the place of functions, and what they were given.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        factors: Factors | Mirrored,
        radius: float,
        watch: ReadWatch | None = None,
        shared: set[int] | None = None,
    ) -> None:
        super().__init__()
        self.operations, self._watch = Operations(targets, factors, radius, shared), watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operations, kwargs = self.operations, kwargs or {}
        if not operations.holds(args) and not (kwargs and operations.holds(kwargs.values())):
            return func(*args, **kwargs)  # most functions, so that the way here is short
        found = list(operations.found((*args, *kwargs.values())))
        if self._watch is not None:
            for leaf in tree_leaves((args, kwargs)):
                if operations.find(leaf) is None:
                    self._watch.look(_unwrapped(leaf))
            self._watch.paused = True
        try:
            return self._call(func, found, args, kwargs)
        finally:
            if self._watch is not None:
                self._watch.paused = False

    def _call(self, func: Any, found: list[Tensor], args: Any, kwargs: Any) -> Any:
        """The function as its rows should see it."""
        operations, name = self.operations, getattr(func, "__name__", "")
        one_group = operations.factors.groups == 1

        def replaced() -> Any:
            return func(*operations.replaced(args), **operations.replaced(kwargs))

        if is_property := name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        plain, value = name.strip("_"), found[0]
        if (is_property and name != "data") or plain in _FACTS:
            told = func(*args, **kwargs)
            if not isinstance(told, Tensor):
                return told
            if one_group:
                return replaced()
            raise operations.refusal(name, value)
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
            if args and args[0] is value:
                raise operations.refusal(name, value)
        vectors = not any(operations.is_matrix(v) for v in found)
        if vectors and one_group:
            return replaced()
        if func in _HANDLERS:
            handler, words = _HANDLERS[func]
            return handler(operations, *args, **{words.get(word, word): given for word, given in kwargs.items()})
        if (plain == name or is_property) and plain in _FORMS and value is args[0]:
            return self._formed(func, value, args, kwargs)
        if vectors and len(found) == 1 and (plain in _ELEMENTWISE or (plain != name and plain[1:] in _ELEMENTWISE)):
            return self._elementwise(func, name, value, args, kwargs)
        if one_group:
            return replaced()
        raise operations.refusal(name, next((v for v in found if operations.is_matrix(v)), value))

    def _elementwise(self, func: Any, name: str, value: Tensor, args: Any, kwargs: Any) -> Any:
        """A vector with something: of each group alone, or as the rows of the other tensor see it."""
        others = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v is not value and v.dim() > 1]
        if not others:
            return self._formed(func, value, args, kwargs)
        other = max(others, key=lambda v: v.dim())
        spread = self.operations.spread(value, other, name)
        result = func(*_put(args, value, spread), **_put(kwargs, value, spread))
        # A number does not widen the other's dtype, as its spread over rows may.
        return result if value.dim() else result.to(torch.result_type(value, other))

    def _formed(self, func: Any, value: Tensor, args: Any, kwargs: Any) -> Any:
        """What a function makes of a parameter alone."""
        operations, index = self.operations, self.operations.find(value)
        assert index is not None
        if func.__name__ == "__get__":  # .data
            func, args = Tensor.detach, args[:1]
        values = None
        if operations.is_matrix(value):
            result = func(*_put(args, value, bare(value)), **kwargs)
        else:
            each = operations.each(value, index)
            values = func(*_put(args, value, each), **_put(kwargs, value, each))
            result = values[0]
        if not isinstance(result, Tensor):
            return values or result  # Tensor.type's words
        made = result.as_subclass(Read)
        made.parameter, made.by_group = index, values
        return made


def _unwrapped(leaf: Any) -> Any:
    """A tensor as it lies in memory, where transforms of torch.func have wrapped it."""
    while isinstance(leaf, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(leaf):
        leaf = torch._C._functorch.get_unwrapped(leaf)
    return leaf


def _put(arguments: Any, value: Tensor, instead: Tensor) -> Any:
    """Arguments with another tensor in a place."""
    if isinstance(arguments, dict):
        return {key: instead if v is value else v for key, v in arguments.items()}
    return [instead if v is value else v for v in arguments]


_PRODUCT = {"input": "x", "other": "weight", "mat2": "weight"}
# By a function of torch, what takes its place, and how its arguments are called there.
_HANDLERS: dict[Any, tuple[Callable[..., Tensor], dict[str, str]]] = {
    F.linear: (Operations.linear, {"input": "x"}),
    F.embedding: (Operations.embedding, {}),
    F.layer_norm: (Operations.layer_norm, {}),
    F.rms_norm: (Operations.rms_norm, {}),
    torch.addmm: (Operations.addmm, {"input": "bias", "mat1": "x", "mat2": "weight"}),
    torch.mm: (Operations.matmul, _PRODUCT),
    torch.matmul: (Operations.matmul, _PRODUCT),
    Tensor.matmul: (Operations.matmul, _PRODUCT),
    Tensor.__matmul__: (Operations.matmul, _PRODUCT),
}
