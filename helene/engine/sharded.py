"""Steps of a model whose parameters are sharded by `torch.distributed.fsdp.fully_shard`.

A rank holds rows of each parameter and draws z for those alone: z is a function of an element's place in the whole
parameter, so the ranks' pieces are those of one direction, whatever the sharding. FSDP gathers what a forward needs
from the shards' own memory, so the shards are written to, and put back from a copy: exactly, as everywhere here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from helene.directions import Direction, Target, write_perturbed
from helene.engine.parallel import Ranks
from helene.optimizers.curved import Curved
from helene.optimizers.zeroth import ZerothOrder
from helene.probe import Closure, Probe, scalar_loss


def sharded(cls: type[ZerothOrder], model: nn.Module, group: Any = None, **options: Any) -> Any:
    """An optimizer of a sharded model's parameters, made after `fully_shard`.

    ``step(closure)`` takes the loss of this rank's share of the batch, all of one size; every rank makes the step of
    their mean. Scratch memory: the bytes of the rank's shards.

    Args:
        cls: A zeroth-order optimizer of helene, such as `MeZO`.
        model: With parameters that `fully_shard` made.
        group: Ranks that share the batch, the default group unless given.
        options: Of the optimizer, ``lr`` among them.

    Raises:
        ValueError: If a parameter is sharded otherwise than by whole rows, the method measures something else than
            pairs of losses, or an option needs more than a rank knows: directions by layer, z of a given length, a
            curvature that takes a backward.
        RuntimeError: If ranks differ in seed, a hyper-parameter or the names of parameters.
    """
    if cls._measure not in (ZerothOrder._measure, Curved._measure):
        raise ValueError(
            f"{cls.__name__} measures more than pairs of losses; use MeZO, HELENE or another that does not"
        )
    if options.get("distribution", "gaussian") == "sphere" or options.get("direction_per_layer"):
        raise ValueError("of a sharded model each rank knows its part of z: distribution and layers must be the usual")
    if options.get("curvature", "spsa") not in ("spsa", "none"):
        raise ValueError(f"the curvature source {options['curvature']!r} takes a backward or a batch of its own")
    named, offsets = [], {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            local, offset = _local(p, name)
            named.append((name, nn.Parameter(local)))
            offsets[name] = offset
    kind = type(f"Sharded{cls.__name__}", (_Sharded, cls), {"_offsets": offsets, "_whole": model, "_group": group})
    optimizer = kind(named, **options)
    hyper = {k: v for k, v in optimizer.param_groups[0].items() if isinstance(v, bool | int | float | str)}
    Ranks(group).check_numbers(
        [zlib.crc32(repr([name for name, _ in named]).encode()), zlib.crc32(repr(hyper).encode())],
        named[0][1].device,
        "the names of parameters, seed or a hyper-parameter",
    )
    return optimizer


def _local(p: Any, name: str) -> tuple[Tensor, int]:
    """This rank's rows of a parameter, sharing its memory, and the place of their first element in the whole."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(p, DTensor):
        return p.detach(), 0
    shards = [i for i, place in enumerate(p.placements) if not isinstance(place, Replicate)]
    if any(p.placements[i] != Shard(0) for i in shards) or len(shards) > 1:
        raise ValueError(
            f"parameter {name} is laid out as {p.placements}; whole rows on each rank are needed: Shard(0)"
        )
    local = p.to_local().detach()
    if not shards or not p.numel():
        return local, 0
    size, rank = p.device_mesh.size(shards[0]), p.device_mesh.get_local_rank(shards[0])
    return local, min(rank * -(-p.shape[0] // size), p.shape[0]) * (p.numel() // p.shape[0])


class _Part(NamedTuple):
    """A direction of whole parameters, seen from a rank's shards."""

    whole: Direction
    offsets: Mapping[int, int]

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        offset = self.offsets[parameter]
        return self.whole.chunk(parameter, offset + start, offset + end, device, dtype)


class _Sharded(ZerothOrder):
    _offsets: Mapping[str, int]
    _whole: nn.Module
    _group: Any
    _probe: _InPlace

    def _prepare(self) -> None:
        super()._prepare()
        self._by_id = {target.id: self._offsets[target.name] for target in self._targets}
        self._probe = _InPlace(self._targets, self._whole, self._group)
        self._probes = [self._probe]

    def _direction(self, step: int, draw: int = 0) -> Any:
        return _Part(super()._direction(step, draw), self._by_id)

    def _words(self, draw: int, target: Target, span: slice) -> Tensor:
        offset = self._by_id[target.id]
        return super()._words(draw, target, slice(offset + span.start, offset + span.stop))

    def _loss(self, closure: Closure) -> Tensor:
        with torch.no_grad():
            return scalar_loss(self._probe._mean(closure))


class _InPlace(Probe):
    """Perturbs shards where they are, and puts them back."""

    def __init__(self, targets: Sequence[Target], model: nn.Module, group: Any) -> None:
        super().__init__(targets)
        self.model, self.group = model, group

    @torch.no_grad()
    def loss(self, closure: Closure, direction: Any, radius: float) -> Tensor:
        """The mean of the ranks' losses at theta + radius · z."""
        kept = [target.tensor.detach().clone() for target in self.targets]
        try:
            write_perturbed([target.tensor.data for target in self.targets], self.targets, direction, radius)
            self._forget_gathered()
            loss = self._mean(closure)
        finally:
            for target, value in zip(self.targets, kept, strict=True):
                target.tensor.data.copy_(value)
            self._forget_gathered()
        return scalar_loss(loss)

    def _mean(self, closure: Closure) -> Tensor:
        value = closure()
        loss = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(float(value))
        dist.all_reduce(loss, group=self.group)
        return loss / dist.get_world_size(self.group)

    def _forget_gathered(self) -> None:
        """A root keeps what it gathered; the next forward must gather anew."""
        from torch.distributed.fsdp import FSDPModule

        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
