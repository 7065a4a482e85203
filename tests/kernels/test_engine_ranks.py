"""Data parallel with two processes over gloo: the trajectory of one with the whole batch, and what goes wrong."""

from __future__ import annotations

import sys
import warnings
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


def _engine(model: TiedModel, seed: int = 5) -> Engine:
    optimizer = Helene(model.named_parameters(), lr=1e-3, anneal_horizon=10, batch_size=8, seed=seed, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Engine(model, optimizer, loss, scratch_bytes=1 << 15, unit_bytes=3000, check_every=2)


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
    for make in (lambda: _engine(_model(), seed=5 + rank), lambda: _engine(_model(seed=rank))):
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
    results, port = context.SimpleQueue(), 29_500 + torch.randint(2000, ()).item()
    processes = [context.Process(target=_rank, args=(rank, port, results)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict((rank, rest) for rank, *rest in (results.get() for _ in processes))
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    for rank in range(2):
        losses, weights, said = found[rank]
        assert losses == pytest.approx(expected, rel=1e-5)
        for mine, other, whole in zip(weights, found[0][1], model.parameters(), strict=True):
            assert (mine == other).all()
            torch.testing.assert_close(torch.from_numpy(mine), whole.detach(), rtol=0, atol=5e-5)
        assert "ranks differ in seed or step" in said[0]
        assert "ranks hold different parameters (first embed.weight)" in said[1]
