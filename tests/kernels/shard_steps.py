"""Steps of sharded parameters in one process: the rows of a later rank without that rank, and a group of one rank."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from engine_models import TiedModel, batch_of, loss
from kernel_updates import by_torch
from torch import Tensor, distributed, nn

from helene import Helene, MeZO, ZOAdam, ZOSign
from helene.engine import Engine, sharded

FIRST_ROW = 3
UPDATES: list[Any] = [
    (MeZO, {"weight_decay": 0.1}, torch.float32),
    (MeZO, {"rounding": "stochastic", "distribution": "rademacher"}, torch.bfloat16),
    (ZOSign, {}, torch.float32),
    (ZOAdam, {"state_dtype": "bfloat16"}, torch.bfloat16),
    (Helene, {"anneal_horizon": 9, "batch_size": 4, "interval": 1, "rounding": "stochastic"}, torch.bfloat16),
]
STEPS: list[Any] = [(MeZO, {"lr": 1e-4}), (Helene, {"lr": 1e-3, "anneal_horizon": 10, "batch_size": 8})]
NUM_STEPS, VOCABULARY = 4, 40


class _Rows(nn.Module):
    """Parameters of which the third row begins at a multiple of four elements, and elsewhere."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in (("square", (8, 8)), ("odd", (7, 5)), ("line", (11,))):
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)))


def update_rows(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, method: Any, options: dict[str, Any], dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Two updates of the rows from `FIRST_ROW` on as a rank holds them, and of whole parameters by torch's operations.

    Returns:
        Each parameter's rows, and the same of the whole.
    """
    whole, part = _Rows(dtype, device), _Rows(dtype, device)
    expected = method(whole.named_parameters(), lr=1e-2, seed=5, **options)

    def local(p: Tensor, name: str) -> tuple[Tensor, int]:
        return p.detach()[FIRST_ROW:], FIRST_ROW * p[0].numel()

    monkeypatch.setitem(sharded.__globals__, "_local", local)
    optimizer = sharded(method, part, lr=1e-2, seed=5, **options)
    for scalar in (0.37, -0.8):
        by_torch(expected, [scalar])
        optimizer.apply(optimizer.plan(), [scalar])
    pairs = zip(part.parameters(), whole.parameters(), strict=True)
    return [(mine.detach()[FIRST_ROW:], other.detach()[FIRST_ROW:]) for mine, other in pairs]


def check_steps(device: torch.device, method: Any, options: dict[str, Any], way: str) -> None:
    """Steps of a model that one rank holds, sharded, against those of the same model as it comes.

    Losses are below 16, so a unit in their last place is 2^-20 and two that are off by 2 each put c off by
    4 · 2^-20 / (2 eps) = 1.9e-3. lr 1e-3, |z| up to 4.5 and a momentum that sums to 9 make 7.7e-5 of it. Slopes along
    these directions are below 9, so a loss is off by 1e-3 · 9 · 1.9e-3 · 9 = 1.54e-4 and 2 units more. The last update
    moves it by 3.7e-3.

    Args:
        device: Where.
        method: A zeroth-order optimizer.
        options: Of it.
        way: "tensor" or "number", as which the loss is given, or "engine", which leaves sharded steps to the optimizer.
    """
    thetas: list[list[Any]] = []
    losses = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        model: Any = TiedModel(VOCABULARY, 8, 1).to(device)
        optimizer = _sharded(method, model, options, device) if is_sharded else _whole(method, model, options)
        engine = Engine(model, optimizer, loss) if way == "engine" and is_sharded else None
        found = []
        for step in range(NUM_STEPS):
            batch = {name: value.to(device) for name, value in batch_of(step, vocabulary=VOCABULARY).items()}

            def closure(model: Any = model, batch: Any = batch) -> Any:
                value = loss(model, batch)
                return float(value) if way == "number" else value

            found.append(float(engine.step(batch) if engine else optimizer.step(closure)))
        assert engine is None or engine.reason == "the parameters are sharded"
        with torch.no_grad():  # an update between two forwards, as a replay makes it
            closure()
            optimizer.apply(optimizer.plan(), [10.0])
            thetas.append([p.full_tensor() if is_sharded else p for p in model.parameters()])
            found.append(float(closure()))
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], abs=1.6e-4)
    for whole, mine in zip(*thetas, strict=True):
        torch.testing.assert_close(mine.detach(), whole.detach(), rtol=0, atol=7.7e-5)


def _whole(method: Any, model: Any, options: dict[str, Any]) -> Any:
    return method(model.named_parameters(), seed=5, model=model, **options)


def _sharded(method: Any, model: Any, options: dict[str, Any], device: torch.device) -> Any:
    """After a forward, of which the root keeps what it gathered."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    with torch.no_grad():
        model(batch_of(0, vocabulary=VOCABULARY)["ids"].to(device))
    optimizer = sharded(method, model, seed=5, **options)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    return optimizer


@contextmanager
def one_rank(device: torch.device) -> Iterator[None]:
    """This process as the only rank, over what a rank of that device uses."""
    on_gpu = device.type == "cuda"
    options: dict[str, Any] = {"device_id": torch.device("cuda", torch.cuda.current_device())} if on_gpu else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo", store=distributed.HashStore(), rank=0, world_size=1, **options
        )
        try:
            yield
        finally:
            distributed.destroy_process_group()
            gc.collect()  # here, for gloo's threads cannot be joined in a process that a later test forks
