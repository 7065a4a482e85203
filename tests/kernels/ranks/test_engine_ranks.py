"""Data parallel with two processes over gloo: the trajectory of one with the whole batch, and what goes wrong.

Starting processes takes longer than what they do, so that one pair of them goes through everything; rank 1 ends by
dying.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

sys.path.insert(0, str(Path(__file__).parents[1]))  # in the spawned processes too
from engine_models import TiedModel, batch_of, loss

from helene import GroupedMeZO, Helene, MeZO, ZOConservative, ZOSign
from helene.engine import Engine, sharded
from helene.engine.groups import GroupEngine

ROWS, STEPS = 4, 4
SHARDED: list[Any] = [
    (MeZO, {"lr": 1e-4}),
    (ZOSign, {"lr": 1e-4, "two_sided": False}),
    (Helene, {"lr": 1e-3, "anneal_horizon": 10, "batch_size": 8}),
]


def _model(seed: int = 0) -> TiedModel:
    torch.manual_seed(seed)
    return TiedModel()


def _engine(model: Any, seed: int = 5, lr: float = 1e-3, group: Any = None) -> Engine:
    optimizer = Helene(model.named_parameters(), lr=lr, anneal_horizon=10, batch_size=8, seed=seed, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Engine(model, optimizer, loss, scratch_bytes=1 << 15, unit_bytes=3000, check_every=2, group=group)


def _said(make: Callable[[], Any]) -> str:
    try:
        make()
    except (RuntimeError, ValueError, FloatingPointError) as error:
        return str(error)
    return ""


def _conservative(model: Any) -> Engine:
    optimizer = ZOConservative(model.named_parameters(), lr=1e-3, seed=5, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Engine(model, optimizer, loss, capture="repeat", check_every=2)


def _trajectory(rank: int, make: Callable[[Any], Engine] = _engine) -> tuple[list[float], list[Any]]:
    model = _model()
    engine = make(model)
    losses = []
    for step in range(STEPS):
        losses.append(float(engine.step(_share(rank, step))))
    return losses, [p.detach().numpy() for p in model.parameters()]


def _mismatches(rank: int) -> list[str]:
    return [
        _said(make)
        for make in (
            lambda: _engine(_model(), seed=5 + rank),
            lambda: _engine(_model(seed=rank)),
            lambda: _engine(TiedModel(depth=2 + rank)),
            lambda: _engine(_model(), lr=1e-3 * (1 + rank)),
        )
    ]


class _Arrived:
    def query(self) -> bool:
        return True


def _heard_by_one(rank: int) -> list[str]:
    """What each step says where the device's word of a broken step 1 has come to the first rank alone."""
    model = _model()
    engine = _engine(model)
    said = []
    for step in range(2):
        of_device = engine._shared.updates
        if rank == 0:
            of_device._broken_host.fill_(1)
            of_device._asked = _Arrived()
        said.append(_said(lambda s=step: engine.step(_share(rank, s))))
    return said


def _shards(rank: int) -> list[str]:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    first = _model()
    fully_shard(first, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    second = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"))
    third = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"), use_orig_params=True)
    return [_said(lambda m=model: _engine(m)) for model in (first, second, third)]


def _of_shards(rank: int) -> dict[str, Any]:
    """Steps of models sharded by block and as a whole, what the root holds among it; what moves at learning rate 0."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))

    def made(dtype: torch.dtype = torch.float32) -> TiedModel:
        model = _model().to(dtype)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    found: dict[str, Any] = {}
    for cls, options in SHARDED:
        model = made()
        optimizer, losses = sharded(cls, model, seed=5, **options), []
        for step in range(STEPS):
            losses.append(float(optimizer.step(lambda m=model, s=step: loss(m, _share(rank, s)))))
        found[cls.__name__] = losses, [p.full_tensor().detach().numpy() for p in model.parameters()]
    model = made(torch.bfloat16)
    kept = [p.full_tensor().detach().clone() for p in model.parameters()]
    optimizer = sharded(MeZO, model, lr=0.0)
    for step in range(3):
        optimizer.step(lambda s=step: loss(model, batch_of(s)))
    found["unmoved"] = all(torch.equal(a, p.full_tensor()) for a, p in zip(kept, model.parameters(), strict=True))
    found["said"] = [
        _said(lambda: sharded(MeZO, made(), lr=1e-3, seed=rank)),
        _said(lambda: sharded(MeZO, made(), lr=1e-3, distribution="sphere")),
        _said(lambda: sharded(ZOConservative, made(), lr=1e-3)),
        _said(lambda: Engine(model, optimizer, loss)),
    ]
    return found


def _row_losses(model: Any, batch: Any) -> torch.Tensor:
    logits = model(batch["ids"]).transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none").mean(dim=1)


def _group_engine(model: Any, groups: Any = 4, loss: Any = _row_losses, **options: Any) -> GroupEngine:
    optimizer = GroupedMeZO(model.named_parameters(), 1e-3, groups=groups, momentum=0.5, seed=5)
    return GroupEngine(model, optimizer, loss, capture="repeat", check_every=2, **options)


def _of_groups(rank: int) -> dict[str, Any]:
    """Steps by two forwards and by one of the doubled batch, and what is said where ranks cannot share a step."""
    found: dict[str, Any] = {}
    for name, doubled in (("two forwards", None), ("one", {})):
        engine = _group_engine(_model(), doubled=doubled)
        losses = [float(engine.step(_share(rank, step))) for step in range(STEPS)]
        weights = [p.detach().numpy() for p in engine.model.parameters()]
        found[name] = losses, weights, engine.optimizer.noise.as_json(), engine.mode
    model = _model()
    kept = [p.detach().clone() for p in model.parameters()]

    def on_one_rank(model: Any, batch: Any) -> torch.Tensor:
        return _row_losses(model, batch) * (torch.nan if rank == 1 else 1.0)

    broken = _group_engine(model, loss=on_one_rank)
    found["not finite"] = _said(lambda: broken.step(_share(rank, 0)))
    broken.loss = _row_losses
    found["other sizes"] = _said(lambda: broken.step(batch_of(0, 2 * (1 + rank))))
    found["unmoved"] = all(map(torch.equal, kept, model.parameters())) and broken.optimizer.steps_made == 0
    found["three"] = _said(lambda: _group_engine(_model(), groups=3))
    found["auto"] = _said(lambda: _group_engine(_model(), groups="auto"))
    found["weights"] = _said(lambda: _group_engine(_model(seed=rank)))
    return found


def _share(rank: int, step: int) -> dict[str, torch.Tensor]:
    return {name: value[ROWS * rank : ROWS * (rank + 1)] for name, value in batch_of(step, 2 * ROWS).items()}


def _lost(rank: int, group: Any, how: str) -> tuple[int, str, bool] | None:
    """Rank 1 dies, or sleeps longer than the group's timeout, before its third step; what rank 0 then says."""
    model = _model()
    engine = _engine(model, group=group)
    for step in range(STEPS):
        if rank == 1 and step == 2:
            if how == "dies":
                os._exit(0)
            time.sleep(6)
            return None
        before = [p.detach().clone() for p in model.parameters()]
        said = _said(lambda s=step: engine.step(batch_of(s)))
        if said:
            return step, said, all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return None


def _rank(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results.put((rank, "trajectory", _trajectory(rank)))
    results.put((rank, "conservative", _trajectory(rank, _conservative)))
    results.put((rank, "mismatches", _mismatches(rank)))
    results.put((rank, "heard by one", _heard_by_one(rank)))
    results.put((rank, "shards", _shards(rank)))
    results.put((rank, "of shards", _of_shards(rank)))
    results.put((rank, "of groups", _of_groups(rank)))
    dist.barrier()
    impatient = dist.new_group(timeout=timedelta(seconds=3))
    results.put((rank, "sleeps", _lost(rank, impatient, "sleeps")))
    dist.barrier()
    if rank == 1:
        results.close()
        results.join_thread()  # what it has put arrives before it dies
    results.put((rank, "dies", _lost(rank, None, "dies"))) if rank == 0 else _lost(rank, None, "dies")
    if rank == 0:
        results.close()
        results.join_thread()
        os._exit(0)  # its group has lost a member


@pytest.fixture(scope="module")
def found() -> Iterator[dict[tuple[int, str], Any]]:
    """What each rank had to say, by rank and part."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    results = context.Queue()
    processes = [context.Process(target=_rank, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    gathered = {}
    for _ in range(17):  # nine parts of rank 0, eight of rank 1
        rank, part, value = results.get(timeout=120)
        gathered[rank, part] = value
    yield gathered
    for process in processes:
        process.join(30)


@pytest.mark.parametrize(("make", "part"), [(_engine, "trajectory"), (_conservative, "conservative")])
def test_two_ranks_make_the_step_of_one_with_both_shares(
    make: Callable[[Any], Engine], part: str, found: dict[tuple[int, str], Any]
) -> None:
    """The ranks' parameters are equal to the bit; to the whole batch's they are up to the rounding of the losses.

    Two losses of at most 18, each off by 2 units in the last place, put c off by 4 · 2^-24 · 18 / (2 eps) = 2.1e-3;
    lr 1e-3, |z| up to 4.5 and a momentum that sums to 9 over four steps make 9e-5 of it. Without the momentum it is
    4e-5, and losses of candidates differ by lr c², a thousand times their rounding.
    """
    model = _model()
    engine = make(model)
    expected = [float(engine.step(batch_of(step, 2 * ROWS))) for step in range(STEPS)]
    assert max(expected) < 18
    for rank in range(2):
        losses, weights = found[rank, part]
        assert losses == pytest.approx(expected, rel=1e-5)
        for mine, other, whole in zip(weights, found[0, part][1], model.parameters(), strict=True):
            assert (mine == other).all()
            torch.testing.assert_close(torch.from_numpy(mine), whole.detach(), rtol=0, atol=9e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_differ_are_told_how(found: dict[tuple[int, str], Any], rank: int) -> None:
    seed, weights, model, rate = found[rank, "mismatches"]
    assert "ranks differ in seed, step or a hyper-parameter" in seed
    assert "ranks hold different parameters (first embed.weight)" in weights
    assert "ranks train other parameters" in model
    assert "ranks differ in seed, step or a hyper-parameter" in rate


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_stops_at_what_others_may_not_know_yet(found: dict[tuple[int, str], Any], rank: int) -> None:
    """They would wait for its losses, or take the next numbers that it exchanges for them."""
    assert found[rank, "heard by one"] == ["", ""]


@pytest.mark.parametrize("how", ["dies", "sleeps"])
def test_a_rank_that_dies_or_hangs_is_an_error_and_moves_nothing(found: dict[tuple[int, str], Any], how: str) -> None:
    step, said, unmoved = found[0, how]
    assert step == 2
    assert "rank 0 could not exchange" in said
    assert "another rank has probably died" in said
    assert unmoved


@pytest.mark.parametrize("rank", [0, 1])
def test_shards_are_refused_and_the_way_out_is_named(found: dict[tuple[int, str], Any], rank: int) -> None:
    for error in found[rank, "shards"]:
        assert "is sharded" in error
        assert "by helene.engine.sharded (fully_shard), or put whole layers on several devices (device_map)" in error


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sharded_model_makes_the_steps_of_a_whole_one(found: dict[tuple[int, str], Any], rank: int) -> None:
    """As above: c is off by 2.1e-3 at most, and so is the sign that ZOSign takes only where |c z| is that small."""
    mine = found[rank, "of shards"]
    for cls, options in SHARDED:
        model = _model()
        optimizer = cls(model.named_parameters(), seed=5, model=model, **options)
        expected = [
            float(optimizer.step(lambda m=model, s=step: loss(m, batch_of(s, 2 * ROWS)))) for step in range(STEPS)
        ]
        losses, weights = mine[cls.__name__]
        assert losses == pytest.approx(expected, rel=1e-5)
        for got, whole in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), whole.detach(), rtol=0, atol=9e-5)
    assert mine["unmoved"]
    seed, sphere, conservative, engine = mine["said"]
    assert "ranks differ in the names of parameters, seed or a hyper-parameter" in seed
    assert "each rank holds a part" in sphere
    assert "ZOConservative measures more than pairs of losses" in conservative
    assert "but the parameters are sharded" in engine


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("forwards", "doubled"), [("two forwards", None), ("one", {})])
def test_each_rank_evaluates_its_own_groups(
    found: dict[tuple[int, str], Any], rank: int, forwards: str, doubled: Any
) -> None:
    """Both ranks are equal to the bit; to one process with all groups they are up to the rounding of the losses.

    As above a slope c is off by 1.1e-3. A mean over groups of c_g u v, with |u v| up to 20, at lr 1e-3 and a momentum
    that sums to 6 over four steps, makes 1.4e-4 of it. Of the noise, the first step's two moments are means of products
    of two slopes, or the difference of such: off by at most 4 · 1.1e-3 times the largest slope, which is below the root
    of the sum of all squares.
    """
    losses, weights, noise, mode = found[rank, "of groups"][forwards]
    engine = _group_engine(_model(), doubled=doubled)
    expected = [float(engine.step(batch_of(step, 2 * ROWS))) for step in range(STEPS)]
    assert mode == engine.mode == "graph"
    assert losses == pytest.approx(expected, rel=1e-5)
    other = found[0, "of groups"][forwards]
    assert noise == other[2]
    assert noise["batch_size"] == engine.optimizer.noise.batch_size == 2 * ROWS
    moments = engine.optimizer.noise.moments[0]
    assert noise["moments"][0] == pytest.approx(moments, abs=4 * 1.1e-3 * (2 * ROWS * sum(moments)) ** 0.5)
    assert len(noise["moments"]) == STEPS
    for mine, others, whole in zip(weights, other[1], engine.model.parameters(), strict=True):
        assert (mine == others).all()
        torch.testing.assert_close(torch.from_numpy(mine), whole.detach(), rtol=0, atol=1.4e-4)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_cannot_share_groups_are_told_why(found: dict[tuple[int, str], Any], rank: int) -> None:
    said = found[rank, "of groups"]
    assert "the loss is nan" in said["not finite"], "also by the rank whose own losses are finite"
    assert "ranks have groups of 1 and 2 examples; give each as many" in said["other sizes"]
    assert said["unmoved"]
    assert "groups=3 cannot be shared by 2 ranks; take a multiple of 2" in said["three"]
    assert "groups='auto' may be none that 2 ranks can share; give a number" in said["auto"]
    assert "ranks hold different parameters (first embed.weight)" in said["weights"]
