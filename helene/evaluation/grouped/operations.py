"""Functions of torch as the rows of each group see them: products, embeddings, norms, vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from helene import kernels
from helene.evaluation.directions import Target, compute_dtype
from helene.evaluation.grouped import rows
from helene.evaluation.grouped.factors import Factors, Mirrored
from helene.evaluation.grouped.places import WAY_OUT, Places


class Read(Tensor):
    """What a function has made of a trained parameter alone; a matrix in another form, or a vector of each group.

    Attributes:
        parameter: Its index.
        by_group: What each group sees of a vector, shape (groups, n); None for a matrix.
    """

    parameter: int
    by_group: Tensor | None


class Operations:
    """What takes the place of functions of torch that are given trained parameters.

    Args:
        targets: The trained parameters.
        factors: Their directions.
        radius: What z is multiplied by.
        shared: Embeddings whose places all rows have shared in a forward, their number another than that of the rows.
            Kept from forward to forward, since the two numbers may be equal in a later one.

    Attributes:
        read: Trained parameters that a function was given.
        places: Where the batch's rows are.
    """

    def __init__(
        self, targets: Sequence[Target], factors: Factors | Mirrored, radius: float, shared: set[int] | None = None
    ) -> None:
        self.targets, self.factors, self.radius = targets, factors, radius
        self.read: set[int] = set()
        self.places = Places(factors.groups)
        self._shared = set() if shared is None else shared
        self._index = {id(target.tensor): i for i, target in enumerate(targets)}
        self._values: dict[int, Tensor] = {}

    def find(self, value: Any) -> int | None:
        """Index of the trained parameter that a value is, or was made of."""
        return value.parameter if isinstance(value, Read) else self._index.get(id(value))

    def holds(self, values: Iterable[Any]) -> bool:
        """Whether a trained parameter is among values or the lists in them."""
        for value in values:
            if id(value) in self._index or type(value) is Read:
                return True
            if type(value) in (list, tuple) and self.holds(value):
                return True
        return False

    def found(self, values: Iterable[Any]) -> Iterator[Tensor]:
        """The trained parameters among arguments, and what was made of them."""
        for value in values:
            if isinstance(value, Tensor):
                if self.find(value) is not None:
                    yield value
            elif isinstance(value, list | tuple):
                yield from self.found(value)

    def is_matrix(self, value: Tensor) -> bool:
        """Whether it is a trained matrix."""
        index = self.find(value)
        return index is not None and self.targets[index].tensor.dim() == 2

    def refusal(self, function: str, value: Tensor, how: str = "") -> ValueError:
        """What to raise where it is not known what each group would see."""
        index = self.find(value)
        name = "a tensor" if index is None else f"parameter {self.targets[index].name}"
        return ValueError(
            f"{name} is read by torch's {function}{how}, and what each of groups={self.factors.groups} groups would "
            "see there is known for linear layers, embeddings, norms and elementwise products with vectors alone; "
            f"{WAY_OUT}"
        )

    def _groups_of(self, lead: torch.Size, index: int, function: str) -> Tensor | None:
        return self.places.groups_of(lead, self.targets[index].name, function)

    def _add(self, y: Tensor, factor: Tensor, given: Tensor, at: Tensor | None, scale: float) -> Tensor:
        """y + scale Σ_k factor_k given_k of each place's group; given has shape (groups, rank, width)."""
        if at is None:
            blocks = y.contiguous().view(given.shape[0], -1, given.shape[2])
            return blocks.baddbmm_(factor, given, alpha=scale).view(y.shape)
        own = at.reshape(-1, 1) == torch.arange(given.shape[0], device=at.device)
        chosen = own[:, :, None].to(factor.dtype) * factor
        flat = y.contiguous().view(-1, y.shape[-1])
        return flat.addmm_(chosen.flatten(1), given.flatten(0, 1), alpha=scale).view(y.shape)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`torch.nn.functional.linear`."""
        own = bias is not None and self.find(bias) is not None
        y = F.linear(self._stranger(x, "linear"), bare(weight), None if own else bias)
        return self._product(y, x, weight, bias if own else None, "linear", transposed=False)

    def matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        """`torch.matmul` by a matrix."""
        y = torch.matmul(self._stranger(x, "matmul"), bare(weight))
        return self._product(y, x, weight, None, "matmul", transposed=True)

    def addmm(self, bias: Tensor, x: Tensor, weight: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
        """`torch.addmm`, with which transformers' Conv1D multiplies."""
        if (beta, alpha) != (1.0, 1.0):
            raise self.refusal("addmm", weight, " with beta or alpha")
        y = torch.mm(self._stranger(x, "addmm"), bare(weight))
        if self.find(bias) is None:
            return self._product(y + bias, x, weight, None, "addmm", transposed=True)
        return self._product(y, x, weight, bias, "addmm", transposed=True)

    def _product(
        self, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, function: str, transposed: bool
    ) -> Tensor:
        """y with the terms of rank one of each row's group, and with the bias."""
        index = self.find(weight)
        if index is not None:
            self._check_matrix(index, weight, function)
            at, scale = self._groups_of(x.shape[:-1], index, function), self.radius * self.factors.scale
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
        return y if bias is None else y + self.spread(bias, y, function)

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
            return y if bias is None else y + self.spread(bias, y, function)
        self.read.add(own)
        launch.add_product(*what, vector, factors.place(own)[0])
        return y

    def embedding(self, ids: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`torch.nn.functional.embedding`; places that all rows share come out once for each row."""
        index, groups = self.find(weight), self.factors.groups
        assert index is not None
        alike = ids.dim() == 1 or (ids.dim() > 1 and ids.shape[0] == 1)
        if groups > 1 and rows.gathered() is None and self.places.rows is not None and alike:
            if ids.shape[0] != self.places.rows:
                self._shared.add(index)
            if index in self._shared:
                ids = ids.expand(self.places.rows, *ids.shape[-1:] if ids.dim() == 1 else ids.shape[1:])
        y = F.embedding(ids, bare(weight), *args, **kwargs)
        self._check_matrix(index, weight, "embedding")
        left, right = self.factors.of(index, y.dtype)
        assert right is not None
        at, scale = self._groups_of(ids.shape, index, "embedding"), self.radius * self.factors.scale
        if at is None:
            looked_up = left.gather(2, ids.reshape(groups, 1, -1).expand(-1, left.shape[1], -1)).transpose(1, 2)
        else:
            looked_up = left[:, :, ids.reshape(-1)].permute(2, 0, 1)
        return self._add(y, looked_up, right, at, scale)

    def _check_matrix(self, index: int, weight: Tensor, function: str) -> None:
        if self.targets[index].tensor.dim() != 2:
            raise self.refusal(function, weight, " as a matrix")
        self.read.add(index)

    def _stranger(self, x: Tensor, function: str) -> Tensor:
        """What a matrix is multiplied by; no trained parameter, unless all rows see the same."""
        if self.find(x) is None:
            return x
        if self.factors.groups > 1:
            raise self.refusal(function, x, " as its input")
        return self.replaced([x])[0]

    def layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        """`torch.nn.functional.layer_norm`."""
        y = F.layer_norm(self._stranger(x, "layer_norm"), shape, None, None, eps)
        if weight is not None:
            y = y * self.spread(weight, y, "layer_norm")
        return y if bias is None else y + self.spread(bias, y, "layer_norm")

    def rms_norm(self, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        """`torch.nn.functional.rms_norm`."""
        y = F.rms_norm(self._stranger(x, "rms_norm"), shape, None, eps)
        return y if weight is None else y * self.spread(weight, y, "rms_norm")

    def spread(self, value: Tensor, x: Tensor, function: str) -> Tensor:
        """A vector as x's rows see it, of a shape that broadcasts with x."""
        index = self.find(value)
        if index is None:
            return value
        each = self.each(value, index)
        groups, size = each.shape
        if groups == 1:
            return each.view(value.shape)
        if value.dim() > 1 or x.dim() < 2 or size not in (1, x.shape[-1]):
            raise self.refusal(function, value, f" with a tensor of shape {tuple(x.shape)}")
        at = self._groups_of(x.shape[:-1], index, function)
        if at is not None:
            return each[at.reshape(-1)].view(*x.shape[:-1], size)
        repeated = each[:, None].expand(-1, x.shape[0] // groups, -1)
        return repeated.reshape(-1, *[1] * (x.dim() - 2), size)

    def each(self, value: Tensor, index: int) -> Tensor:
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

    def replaced(self, arguments: Any) -> Any:
        """Arguments as the only group sees them; a matrix that is neither multiplied nor looked up is copied."""

        def perturbed(value: Tensor) -> Tensor:
            index = self.find(value)
            if index is None:
                return value
            return self._copied(value, index) if self.is_matrix(value) else self.each(value, index).view(value.shape)

        return tree_map_only(Tensor, perturbed, arguments)

    def _copied(self, value: Tensor, index: int) -> Tensor:
        self.read.add(index)
        p, (left, right) = self.targets[index].tensor.detach(), self.factors.of(index)
        assert right is not None
        z = (left[0].T @ right[0]).mul_(self.factors.scale)
        return torch.add(p.to(z.dtype), z, alpha=self.radius).to(p.dtype).to(value.dtype)


def bare(value: Tensor) -> Tensor:
    """Without the mark of `Read`."""
    return value.as_subclass(Tensor) if isinstance(value, Read) else value
