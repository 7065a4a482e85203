r"""A forward in which each group of the batch's rows sees parameters of its own, theta + eps z_g, and no copy is made.

With z = u vᵀ, x (W + eps u vᵀ)ᵀ = x Wᵀ + eps (x · v) uᵀ: the plain product, which all rows share, and a term of rank
one. `RowPerturbation` sees each function of torch that is given a trained parameter, and either lets the rows see what
they should or refuses by name. Nothing in the model is touched, so subclasses, hooks and weights that several modules
share need no care.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from helene import kernels
from helene.evaluation.directions import Target, compute_dtype
from helene.evaluation.grouped import rows
from helene.evaluation.grouped.factors import Factors, Mirrored
from helene.evaluation.reads import ReadWatch

# What gives the same values in another form.
_FORMS = {"to", "float", "double", "half", "bfloat16", "type", "type_as", "detach", "data", "contiguous", "clone"}
# What works on each element alone; forms with underscores, r or i before or after are the same.
_ELEMENTWISE = {"add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "truediv", "where", "pow"}
_ELEMENTWISE |= {"exp", "log", "neg", "sigmoid", "tanh", "softplus", "relu", "square", "sqrt", "rsqrt", "abs"}
# What tells of a tensor and reads none of its elements.
_FACTS = {"size", "dim", "numel", "nelement", "stride", "is_floating_point", "is_complex", "is_contiguous", "len"}
_FACTS |= {"element_size", "storage_offset", "get_device", "is_inference", "data_ptr", "hash", "ndimension"}
WAY_OUT = "freeze it, or take MeZO, whose directions suit any model"


class Read(Tensor):
    """What a function has made of a trained parameter alone; a matrix in another form, or a vector of each group.

    Attributes:
        parameter: Its index.
        by_group: What each group sees of a vector, shape (groups, n); None for a matrix.
    """

    parameter: int
    by_group: Tensor | None


class RowPerturbation(TorchFunctionMode):
    """Inside, the rows of group g see theta + radius z_g.

    Groups are equal parts of the first axis, in its order. An operation sees that axis, or one axis that is a
    flattening of it with those that follow, or the places that `helene.evaluation.grouped.rows` tells of.

    Args:
        targets: The trained parameters.
        factors: Their directions.
        radius: What z is multiplied by.
        watch: Is paused where a trained parameter is read as it is supposed to be.
        shared: Embeddings whose places all rows have shared in a forward, their number another than that of the rows.
            Kept from forward to forward, since the two numbers may be equal in a later one.

    Attributes:
        read: Trained parameters that a function was given.
        rows: Rows of the batch, known once a trained parameter is read; None before.
        chosen: Numbers of places on one axis that are neither the rows nor all places of an operation before, so that
            the forward may have chosen them by what the batch holds.
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
        self.targets, self.factors, self.radius, self.watch = targets, factors, radius, watch
        self.read: set[int] = set()
        self.rows: int | None = None
        self.chosen: frozenset[int] = frozenset()
        self._whole: set[int] = set()  # numbers of all places of operations that saw rows on an axis
        self._shared = set() if shared is None else shared
        self._index = {id(target.tensor): i for i, target in enumerate(targets)}
        self._values: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._holds(args) and not (kwargs and self._holds(kwargs.values())):
            return func(*args, **kwargs)  # most functions, so that the way here is short
        found = list(self._found((*args, *kwargs.values())))
        if self.watch is not None:
            for leaf in tree_leaves((args, kwargs)):
                if self._find(leaf) is None:
                    self.watch.look(_unwrapped(leaf))
            self.watch.paused = True
        try:
            return self._call(func, found, args, kwargs)
        finally:
            if self.watch is not None:
                self.watch.paused = False

    def _holds(self, values: Iterable[Any]) -> bool:
        for value in values:
            if id(value) in self._index or type(value) is Read:
                return True
            if type(value) in (list, tuple) and self._holds(value):
                return True
        return False

    def _found(self, values: Iterable[Any]) -> Iterable[Tensor]:
        """The trained parameters among arguments, and what was made of them."""
        for value in values:
            if isinstance(value, Tensor):
                if self._find(value) is not None:
                    yield value
            elif isinstance(value, list | tuple):
                yield from self._found(value)

    def _find(self, value: Any) -> int | None:
        return value.parameter if isinstance(value, Read) else self._index.get(id(value))

    def _call(self, func: Any, found: list[Tensor], args: Any, kwargs: Any) -> Any:
        """The function as its rows should see it."""
        name = getattr(func, "__name__", "")
        if is_property := name == "__get__":
            name = getattr(func.__self__, "__name__", name)
        plain, value = name.strip("_"), found[0]
        if (is_property and name != "data") or plain in _FACTS:
            told = func(*args, **kwargs)
            if not isinstance(told, Tensor):
                return told
            if self.factors.groups == 1:
                return func(*self._replaced(args), **self._replaced(kwargs))
            raise self._refusal(name, value)
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
            if args and args[0] is value:
                raise self._refusal(name, value)
        vectors = not any(self._is_matrix(v) for v in found)
        if vectors and self.factors.groups == 1:
            return func(*self._replaced(args), **self._replaced(kwargs))
        if func in _HANDLERS:
            handler, words = _HANDLERS[func]
            return handler(self, *args, **{words.get(word, word): given for word, given in kwargs.items()})
        if (plain == name or is_property) and plain in _FORMS and value is args[0]:
            return self._formed(func, value, args, kwargs)
        if vectors and len(found) == 1 and (plain in _ELEMENTWISE or (plain != name and plain[1:] in _ELEMENTWISE)):
            return self._elementwise(func, name, value, args, kwargs)
        if self.factors.groups == 1:
            return func(*self._replaced(args), **self._replaced(kwargs))
        raise self._refusal(name, next((v for v in found if self._is_matrix(v)), value))

    def _is_matrix(self, value: Tensor) -> bool:
        index = self._find(value)
        return index is not None and self.targets[index].tensor.dim() == 2

    def _refusal(self, function: str, value: Tensor, how: str = "") -> ValueError:
        index = self._find(value)
        name = "a tensor" if index is None else f"parameter {self.targets[index].name}"
        return ValueError(
            f"{name} is read by torch's {function}{how}, and what each of groups={self.factors.groups} groups would "
            "see there is known for linear layers, embeddings, norms and elementwise products with vectors alone; "
            f"{WAY_OUT}"
        )

    # --- where rows are ---

    def _at(self, lead: torch.Size, index: int, function: str) -> Tensor | None:
        """The group of each place of these axes; None where groups are equal parts of all places, in order."""
        groups, told = self.factors.groups, rows.gathered()
        if groups == 1:
            return None
        name = f"parameter {self.targets[index].name} is read by torch's {function}, which sees axes {tuple(lead)}"
        if told is not None:
            if lead.numel() != told.rows.numel():
                raise ValueError(f"{name} where {told.rows.numel()} places of the batch's rows were told; {WAY_OUT}")
            return told.rows * groups // told.total
        self.rows = self.rows or (lead[0] if lead else 1)
        if self.rows % groups:
            raise ValueError(
                f"{name}: the first is {self.rows} and groups={groups} does not divide it; take groups of equal size"
            )
        if not lead or (lead[0] != self.rows and (len(lead) > 1 or lead[0] % self.rows)):
            raise ValueError(
                f"{name} where the batch has {self.rows} rows, so that groups={groups} groups of them are not known "
                f"there; keep rows first, or say where they went by helene.evaluation.grouped.rows; {WAY_OUT}"
            )
        if lead[0] == self.rows:
            self._whole.add(lead.numel())
        elif lead[0] not in self._whole:
            self.chosen |= {lead[0]}
        return None

    def _add(self, y: Tensor, factor: Tensor, given: Tensor, at: Tensor | None, scale: float) -> Tensor:
        """y + scale Σ_k factor_k given_k of each place's group; given has shape (groups, rank, width)."""
        if at is None:
            blocks = y.contiguous().view(given.shape[0], -1, given.shape[2])
            return blocks.baddbmm_(factor, given, alpha=scale).view(y.shape)
        own = at.reshape(-1, 1) == torch.arange(given.shape[0], device=at.device)
        chosen = own[:, :, None].to(factor.dtype) * factor
        flat = y.contiguous().view(-1, y.shape[-1])
        return flat.addmm_(chosen.flatten(1), given.flatten(0, 1), alpha=scale).view(y.shape)

    # --- matrices ---

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`torch.nn.functional.linear`."""
        own = bias is not None and self._find(bias) is not None
        y = F.linear(self._stranger(x, "linear"), _bare(weight), None if own else bias)
        return self._product(y, x, weight, bias if own else None, "linear", transposed=False)

    def matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        """`torch.matmul` by a matrix."""
        y = torch.matmul(self._stranger(x, "matmul"), _bare(weight))
        return self._product(y, x, weight, None, "matmul", transposed=True)

    def addmm(self, bias: Tensor, x: Tensor, weight: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
        """`torch.addmm`, with which transformers' Conv1D multiplies."""
        if (beta, alpha) != (1.0, 1.0):
            raise self._refusal("addmm", weight, " with beta or alpha")
        y = torch.mm(self._stranger(x, "addmm"), _bare(weight))
        if self._find(bias) is None:
            return self._product(y + bias, x, weight, None, "addmm", transposed=True)
        return self._product(y, x, weight, bias, "addmm", transposed=True)

    def _product(
        self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, function: str, transposed: bool
    ) -> Tensor:
        """y with the terms of rank one of each row's group, and with the bias."""
        index = self._find(weight)
        if index is not None:
            self._check_matrix(index, weight, function)
            at, scale = self._at(x.shape[:-1], index, function), self.radius * self.factors.scale
            if at is None and self._has_kernel(y, x):
                return self._launch(y, x, index, bias, function, transposed)
            left, right = self.factors.of(index, y.dtype)
            assert right is not None
            seen, given = (left, right) if transposed else (right, left)
            flat = x.to(y.dtype).reshape(seen.shape[0] if at is None else 1, -1, x.shape[-1])
            if at is None:
                y = self._add(y, torch.bmm(flat, seen.transpose(1, 2)), given, None, scale)
            else:
                projected = (flat[0] @ seen.flatten(0, 1).T).view(-1, *seen.shape[:2])
                y = self._add(y, projected, given, at, scale)
        return y if bias is None else y + self._spread(bias, y, function)

    def _has_kernel(self, y: Tensor, x: Tensor) -> bool:
        plain = not torch._C._functorch.is_functorch_wrapped_tensor(y)  # torch.func's have no memory of their own
        return self.factors.rank == 1 and y.dim() > 1 and plain and kernels.has_kernel(y) and x.dtype != torch.float64

    def _launch(self, y: Tensor, x: Tensor, index: int, bias: Tensor | None, function: str, transposed: bool) -> Tensor:
        """`_product` by the kernel that adds both terms in one pass over y."""
        from helene.kernels import launch

        factors, place = self.factors, self.factors.place(index)[0]
        sides = place, place + self.targets[index].tensor.shape[0]
        seen, given = sides if transposed else sides[::-1]
        mirrored = isinstance(factors, Mirrored)
        what = y, x.contiguous(), factors.numbers(y.device), self.radius, factors.groups, mirrored, seen, given
        own = None if bias is None else self._index.get(id(bias))
        vector = None if own is None else self.targets[own].tensor.detach()
        if own is None or vector is None or vector.shape != y.shape[-1:] or not vector.is_contiguous():
            launch.add_product(*what)
            return y if bias is None else y + self._spread(bias, y, function)
        self.read.add(own)
        launch.add_product(*what, vector, factors.place(own)[0])
        return y

    def embedding(self, ids: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`torch.nn.functional.embedding`; places that all rows share come out once for each row."""
        index, groups = self._find(weight), self.factors.groups
        assert index is not None
        alike = ids.dim() == 1 or (ids.dim() > 1 and ids.shape[0] == 1)
        if groups > 1 and rows.gathered() is None and self.rows is not None and alike:
            if ids.shape[0] != self.rows:
                self._shared.add(index)
            if index in self._shared:
                ids = ids.expand(self.rows, *ids.shape[-1:] if ids.dim() == 1 else ids.shape[1:])
        y = F.embedding(ids, _bare(weight), *args, **kwargs)
        self._check_matrix(index, weight, "embedding")
        left, right = self.factors.of(index, y.dtype)
        assert right is not None
        at, scale = self._at(ids.shape, index, "embedding"), self.radius * self.factors.scale
        if at is None:
            looked_up = left.gather(2, ids.reshape(groups, 1, -1).expand(-1, left.shape[1], -1)).transpose(1, 2)
        else:
            looked_up = left[:, :, ids.reshape(-1)].permute(2, 0, 1)
        return self._add(y, looked_up, right, at, scale)

    def _check_matrix(self, index: int, weight: Tensor, function: str) -> None:
        if self.targets[index].tensor.dim() != 2:
            raise self._refusal(function, weight, " as a matrix")
        self.read.add(index)

    def _stranger(self, x: Tensor, function: str) -> Tensor:
        """What a matrix is multiplied by; no trained parameter, unless all rows see the same."""
        if self._find(x) is None:
            return x
        if self.factors.groups > 1:
            raise self._refusal(function, x, " as its input")
        return self._replaced([x])[0]

    # --- vectors ---

    def layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        """`torch.nn.functional.layer_norm`."""
        y = F.layer_norm(self._stranger(x, "layer_norm"), shape, None, None, eps)
        if weight is not None:
            y = y * self._spread(weight, y, "layer_norm")
        return y if bias is None else y + self._spread(bias, y, "layer_norm")

    def rms_norm(self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        """`torch.nn.functional.rms_norm`."""
        y = F.rms_norm(self._stranger(x, "rms_norm"), shape, None, eps)
        return y if weight is None else y * self._spread(weight, y, "rms_norm")

    def _spread(self, value: Tensor, x: Tensor, function: str) -> Tensor:
        """A vector as x's rows see it, of a shape that broadcasts with x."""
        index = self._find(value)
        if index is None:
            return value
        each = self._each(value, index)
        groups, size = each.shape
        if groups == 1:
            return each.view(value.shape)
        if value.dim() > 1 or x.dim() < 2 or size not in (1, x.shape[-1]):
            raise self._refusal(function, value, f" with a tensor of shape {tuple(x.shape)}")
        at = self._at(x.shape[:-1], index, function)
        if at is not None:
            return each[at.reshape(-1)].view(*x.shape[:-1], size)
        repeated = each[:, None].expand(-1, x.shape[0] // groups, -1)
        return repeated.reshape(-1, *[1] * (x.dim() - 2), size)

    def _each(self, value: Tensor, index: int) -> Tensor:
        """What each group sees of a vector, shape (groups, n), rounded once to its dtype."""
        self.read.add(index)
        if isinstance(value, Read):
            assert value.by_group is not None
            return value.by_group
        if index not in self._values:
            p, z = self.targets[index].tensor.detach(), self.factors.of(index).left
            wide = torch.add(p.reshape(1, -1).to(compute_dtype(p.dtype)), z, alpha=self.radius)
            self._values[index] = wide.to(p.dtype)
        return self._values[index]

    def _replaced(self, arguments: Any) -> Any:
        """Arguments as the only group sees them; a matrix that is neither multiplied nor looked up is copied."""

        def perturbed(value: Tensor) -> Tensor:
            index = self._find(value)
            if index is None:
                return value
            return self._copied(value, index) if self._is_matrix(value) else self._each(value, index).view(value.shape)

        return tree_map_only(Tensor, perturbed, arguments)

    def _copied(self, value: Tensor, index: int) -> Tensor:
        self.read.add(index)
        p, (left, right) = self.targets[index].tensor.detach(), self.factors.of(index)
        assert right is not None
        z = (left[0].T @ right[0]).mul_(self.factors.scale)
        return torch.add(p.to(z.dtype), z, alpha=self.radius).to(p.dtype).to(value.dtype)

    def _elementwise(self, func: Any, name: str, value: Tensor, args: Any, kwargs: Any) -> Any:
        """A vector with something: of each group alone, or as the rows of the other tensor see it."""
        others = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v is not value and v.dim() > 1]
        if not others:
            return self._formed(func, value, args, kwargs)
        other = max(others, key=lambda v: v.dim())
        spread = self._spread(value, other, name)
        result = func(*_put(args, value, spread), **_put(kwargs, value, spread))
        # A number does not widen the other's dtype, as its spread over rows may.
        return result if value.dim() else result.to(torch.result_type(value, other))

    def _formed(self, func: Any, value: Tensor, args: Any, kwargs: Any) -> Any:
        """What a function makes of a parameter alone."""
        index = self._find(value)
        assert index is not None
        if func.__name__ == "__get__":  # .data
            func, args = Tensor.detach, args[:1]
        values = None
        if self._is_matrix(value):
            result = func(*_put(args, value, _bare(value)), **kwargs)
        else:
            each = self._each(value, index)
            values = func(*_put(args, value, each), **_put(kwargs, value, each))
            result = values[0]
        if not isinstance(result, Tensor):
            return values or result  # Tensor.type's words
        made = result.as_subclass(Read)
        made.parameter, made.by_group = index, values
        return made


def _bare(value: Tensor) -> Tensor:
    """Without the mark of `Read`."""
    return value.as_subclass(Tensor) if isinstance(value, Read) else value


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
    F.linear: (RowPerturbation.linear, {"input": "x"}),
    F.embedding: (RowPerturbation.embedding, {}),
    F.layer_norm: (RowPerturbation.layer_norm, {}),
    F.rms_norm: (RowPerturbation.rms_norm, {}),
    torch.addmm: (RowPerturbation.addmm, {"input": "bias", "mat1": "x", "mat2": "weight"}),
    torch.mm: (RowPerturbation.matmul, _PRODUCT),
    torch.matmul: (RowPerturbation.matmul, _PRODUCT),
    Tensor.matmul: (RowPerturbation.matmul, _PRODUCT),
    Tensor.__matmul__: (RowPerturbation.matmul, _PRODUCT),
}
