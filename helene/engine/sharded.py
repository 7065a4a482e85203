"""Steps of a model whose parameters are sharded by `torch.distributed.fsdp.fully_shard`.

A rank holds rows of each parameter and draws z for those alone: z is a function of an element's place in the whole
parameter, so the ranks' pieces are those of one direction, whatever the sharding. FSDP gathers what a forward needs
from the shards' own memory, so the shards are written to, and put back from a copy: exactly, as everywhere here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from helene.engine import reasons
from helene.engine.ranks import Ranks
from helene.evaluation.blocks import Scratch
from helene.evaluation.curvature import KeptGradient
from helene.evaluation.directions import Direction, Target, write_perturbed
from helene.evaluation.losses import Closure, scalar_loss
from helene.evaluation.probe import Probe
from helene.evaluation.undo import Undo
from helene.rules import HeleneRule
from helene.steps.measurement import Pairs
from helene.steps.plan import Probing, StepPlan
from helene.steps.zeroth import ZerothOrder


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
        ValueError: If ``cls`` is another one, a parameter is sharded otherwise than by whole rows, the method measures
            something else than pairs of losses, or an option needs more than a rank knows: directions by layer, z of a
            given length, a curvature that takes a backward.
        RuntimeError: If ranks differ in seed, a hyper-parameter or the names of parameters.
    """
    if not (isinstance(cls, type) and issubclass(cls, ZerothOrder)):
        raise ValueError(f"sharded takes a zeroth-order optimizer's class of helene, such as MeZO, got {cls!r}")
    _forget_gathered(model)
    named, places = [], {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            local, offset = _local(p, name)
            named.append((name, nn.Parameter(local)))
            places[name] = Place(offset, p.numel())
    kind = type(f"Sharded{cls.__name__}", (_Sharded, cls), {"_places": places, "_whole": model, "_group": group})
    optimizer = kind(named, **options)
    told = [zlib.crc32(text.encode()) for text in (repr([name for name, _ in named]), optimizer.plan().fingerprint())]
    Ranks(group).check_numbers(
        told,
        named[0][1].device,
        "the names of parameters, seed or a hyper-parameter",
    )
    return optimizer


def _forget_gathered(model: nn.Module) -> None:
    """Have the next forward gather anew: a root keeps what its last one gathered."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


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


class Place(NamedTuple):
    """Where a rank's elements of a parameter begin, and how many the whole has."""

    offset: int
    numel: int


class _Part(NamedTuple):
    """A direction of whole parameters, seen from a rank's shards."""

    whole: Direction
    places: Mapping[int, Place]

    def chunk(
        self, parameter: int, start: int, end: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        offset = self.places[parameter].offset
        return self.whole.chunk(parameter, offset + start, offset + end, device, dtype)


class _Sharded(ZerothOrder):
    _places: Mapping[str, Place]
    _whole: nn.Module
    _group: Any

    def _prepare(self) -> None:
        self._by_id: dict[int, Place] = {}
        super()._prepare()
        self._by_id = {target.id: self._places[target.name] for target in self.targets}

    def plan(self, scheduled: bool = True) -> StepPlan:
        trained = {name for name, p in self._whole.named_parameters() if p.requires_grad}
        if trained != self._places.keys():
            changed = ", ".join(sorted(trained ^ self._places.keys())[:3])
            raise ValueError(f"{changed} was frozen or unfrozen after the optimizer was made; make it anew")
        plan = super().plan(scheduled)
        if reason := not_shared(plan):
            raise ValueError(f"of a sharded model each rank holds a part: {reason}; use MeZO or HELENE as they come")
        return plan

    def numel(self, target: Target) -> int:
        return self._places[target.name].numel

    def _make_probe(self, targets: list[Target], scratch: Scratch | None = None) -> Probe:
        return _InPlace(targets, self._whole, self._group)

    def direction(self, plan: StepPlan, draw: int = 0) -> Any:
        return _Part(super().direction(plan, draw), self._by_id)

    def words(self, plan: StepPlan, draw: int, target: Target, span: slice) -> Tensor:
        offset = self._by_id[target.id].offset
        return super().words(plan, draw, target, slice(offset + span.start, offset + span.stop))

    def kernel(self, plan: StepPlan, kept: KeptGradient | None = None) -> None:
        """None: kernels number the elements of z from the start of the tensor that they are given."""

    def apply(self, plan: StepPlan, scalars: list[float], samples: tuple[Any, Any] = (None, None)) -> None:
        super().apply(plan, scalars, samples)
        _forget_gathered(self._whole)

    def loss_here(self, closure: Closure) -> Tensor:
        assert isinstance(self.probe, _InPlace)
        with torch.no_grad():
            return scalar_loss(self.probe.mean(closure))


def not_shared(plan: StepPlan) -> str:
    """Why ranks that hold a part each cannot make a step, in one line, or nothing."""
    probing = plan.probing
    if type(plan.measurement) is not Pairs or not isinstance(probing, Probing):
        return f"{plan.method} measures more than pairs of losses"
    if probing.distribution == "sphere" or probing.direction_per_layer:
        return "distribution='sphere' and direction_per_layer=True need the whole of z"
    if reason := reasons.apart(plan, ever=True):
        return reason
    if any(way.state_dtype == "8bit" for way in plan.storage):
        return "state_dtype='8bit' has a scale for each 256 elements of the whole; bfloat16 has none"
    if any(isinstance(r, HeleneRule) and r.floor_follows_h for r in plan.rules):
        return "a floor that follows h needs the whole of h; a number or RadiusFloor does not"
    return ""


class _InPlace(Probe):
    """Perturbs shards where they are, and puts them back."""

    def __init__(self, targets: Sequence[Target], model: nn.Module, group: Any) -> None:
        super().__init__(targets)
        self.model, self.group = model, group

    @torch.no_grad()
    def loss(self, closure: Closure, direction: Any, radius: float) -> Tensor:
        """The mean of the ranks' losses at theta + radius · z."""
        undo, kept = Undo(), [target.tensor.detach().clone() for target in self.targets]
        try:
            try:
                undo.note(partial(self._put_back, kept))
                for target in self.targets:
                    write_perturbed(target.tensor.data, target.tensor.data, target.id, direction, radius)
                _forget_gathered(self.model)
                loss = self.mean(closure)
            finally:
                undo.run()
        finally:
            undo.run()
        return scalar_loss(loss)

    @torch.no_grad()
    def _put_back(self, kept: Sequence[Tensor]) -> None:
        for target, value in zip(self.targets, kept, strict=True):
            target.tensor.data.copy_(value)
        _forget_gathered(self.model)

    def mean(self, closure: Closure) -> Tensor:
        """The mean of the ranks' losses, exchanged where the parameters are: nccl takes nothing from the CPU."""
        value = closure()
        loss = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        loss = loss.to(self.targets[0].tensor.device, copy=True)
        dist.all_reduce(loss, group=self.group)
        return loss / dist.get_world_size(self.group)
