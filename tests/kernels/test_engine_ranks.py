"""Data parallel with two processes over gloo: the trajectory of one with the whole batch, and what goes wrong."""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

sys.path.insert(0, str(Path(__file__).parent))  # in the spawned processes too
from engine_models import TiedModel, batch_of, loss

from helene import Helene
from helene.engine import Engine

ROWS, STEPS = 4, 4


def _model(seed: int = 0) -> TiedModel:
    torch.manual_seed(seed)
    return TiedModel()


def _engine(model: TiedModel, seed: int = 5, lr: float = 1e-3, group: Any = None) -> Engine:
    optimizer = Helene(model.named_parameters(), lr=lr, anneal_horizon=10, batch_size=8, seed=seed, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Engine(model, optimizer, loss, scratch_bytes=1 << 15, unit_bytes=3000, check_every=2, group=group)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _rank(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = _model()
    engine = _engine(model)
    losses = []
    for step in range(STEPS):
        share = {name: value[ROWS * rank : ROWS * (rank + 1)] for name, value in batch_of(step, 2 * ROWS).items()}
        losses.append(float(engine.step(share)))
    said = []
    other = (
        lambda: _engine(_model(), seed=5 + rank),
        lambda: _engine(_model(seed=rank)),
        lambda: _engine(TiedModel(depth=2 + rank)),
        lambda: _engine(_model(), lr=1e-3 * (1 + rank)),
    )
    for make in other:
        try:
            make()
        except RuntimeError as error:
            said.append(str(error))
    results.put((rank, losses, [p.detach().numpy() for p in model.parameters()], said))
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_make_the_step_of_one_with_both_shares() -> None:
    """The ranks' parameters are equal to the bit; to the whole batch's they are up to the rounding of the losses.

    Two losses of 4.7, each off by 2 units in the last place, put c off by 4 · 2^-24 · 4.7 / eps = 1.1e-3; lr 1e-3, |z|
    up to 4.5 and a momentum that sums to 9 over four steps make 5e-5 of it.
    """
    model = _model()
    engine = _engine(model)
    expected = [float(engine.step(batch_of(step, 2 * ROWS))) for step in range(STEPS)]
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), _free_port()
    processes = [context.Process(target=_rank, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict((rank, rest) for rank, *rest in (results.get(timeout=100) for _ in processes))
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    for rank in range(2):
        losses, weights, said = found[rank]
        assert losses == pytest.approx(expected, rel=1e-5)
        for mine, other, whole in zip(weights, found[0][1], model.parameters(), strict=True):
            assert (mine == other).all()
            torch.testing.assert_close(torch.from_numpy(mine), whole.detach(), rtol=0, atol=5e-5)
        assert "ranks differ in seed, step or a hyper-parameter" in said[0]
        assert "ranks hold different parameters (first embed.weight)" in said[1]
        assert "ranks train other parameters" in said[2]
        assert "ranks differ in seed, step or a hyper-parameter" in said[3]


def _mortal(rank: int, port: int, results: Any, how: str) -> None:
    """Rank 1 dies (or sleeps, which only a timeout tells) before its third step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    group = dist.new_group(timeout=timedelta(seconds=60 if how == "dies" else 5))
    model = _model()
    dist.barrier()
    engine = _engine(model, group=group)
    for step in range(STEPS):
        if rank == 1 and step == 2:
            if how == "sleeps":
                time.sleep(12)
            os._exit(1)
        before = [p.detach().clone() for p in model.parameters()]
        try:
            engine.step(batch_of(step))
        except RuntimeError as error:
            same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            results.put((step, str(error), same))
            os._exit(0)


@pytest.mark.parametrize("how", ["dies", "sleeps"])
def test_a_rank_that_dies_or_hangs_is_an_error_and_moves_nothing(how: str) -> None:
    context = multiprocessing.get_context("spawn")
    results, port = context.SimpleQueue(), _free_port()
    processes = [context.Process(target=_mortal, args=(rank, port, results, how)) for rank in range(2)]
    start = time.monotonic()
    for process in processes:
        process.start()
    while results.empty() and time.monotonic() - start < 100:
        time.sleep(0.1)
    assert not results.empty(), "neither an error nor an end"
    step, said, same = results.get()
    for process in processes:
        process.join(30)
    assert step == 2
    assert "rank 0 could not exchange losses" in said
    assert "another rank has probably died" in said
    assert same


def _sharded(rank: int, port: int, results: Any) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    said = []
    first = _model()
    fully_shard(first, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    second = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"))
    third = FullyShardedDataParallel(_model(), device_id=torch.device("cpu"), use_orig_params=True)
    for model in (first, second, third):
        try:
            Helene(model.named_parameters(), lr=1e-3, anneal_horizon=10, batch_size=8, model=model)
            said.append("")
        except ValueError as error:
            said.append(str(error))
    results.put(said)
    dist.barrier()
    dist.destroy_process_group()


def test_shards_are_refused_and_the_way_out_is_named() -> None:
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), _free_port()
    processes = [context.Process(target=_sharded, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    for said in (results.get(timeout=100) for _ in processes):
        assert len(said) == 3
        for error in said:
            assert "sharded" in error
            assert "put whole layers on several devices (device_map)" in error
    for process in processes:
        process.join(30)
