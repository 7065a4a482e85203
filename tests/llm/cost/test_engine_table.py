"""The engine's rows one model at a time, on a CPU: timing and capture are stood in for."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import pytest
import torch

from llm_bench.cost import engine_table
from llm_bench.models import shapes


class Plain:
    """In the place of an engine."""

    mode, reason = "plain", "a stand-in"

    def __init__(self, model: Any, optimizer: Any, loss: Any, doubled: Any = None) -> None:
        self.step = lambda batch: optimizer.step(lambda: loss(model, batch))


class Kept:
    """In the place of a recorder."""

    def __init__(self) -> None:
        self.rows: dict[str, dict] = {}

    def put(self, config: dict, result: dict) -> None:
        self.rows[config["contestant"]] = result


def in_turns(contestants: dict, rounds: int) -> dict[str, dict[str, float]]:
    """Each makes a step; the second of both is told to take 1.5 times as long."""
    for contestant in contestants.values():
        contestant.step()
    return {name: {"median_seconds": rounds * (1.0 + 0.5 * i)} for i, name in enumerate(contestants)}


def test_each_engine_row_stands_beside_two_forwards_of_its_own_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_table, "build", partial(shapes.build, dtype=torch.float32, device="cpu"))
    monkeypatch.setattr(engine_table, "random_batch", partial(shapes.random_batch, device="cpu"))
    monkeypatch.setattr(engine_table, "CapturedForwards", lambda closure: closure)
    monkeypatch.setattr(engine_table, "time_in_turns", in_turns)
    monkeypatch.setattr(engine_table, "clean", lambda: None)
    monkeypatch.setattr(engine_table, "Engine", Plain)
    monkeypatch.setattr(engine_table, "GroupEngine", Plain)
    monkeypatch.setattr(shapes, "VOCABULARY", 600)
    kept = Kept()
    engine_table.alone(kept, 16, 8, Namespace(shape="opt-tiny", rounds=3))  # type: ignore[arg-type]
    assert list(kept.rows) == [*engine_table.FULL, "lora: MeZO", "prefix: MeZO", engine_table.GROUPED]
    assert {row["over two forwards"] for row in kept.rows.values()} == {1.5}
    assert {row["median_seconds"] for row in kept.rows.values()} == {4.5}


def test_the_losses_of_rows_average_to_the_language_loss() -> None:
    """Each row's own mean; where rows have equally many labels their mean is transformers' loss."""
    torch.manual_seed(0)
    model = shapes.build("opt-tiny", dtype=torch.float32, device="cpu")
    batch = shapes.random_batch(4, 8, device="cpu")
    rows = shapes.row_losses(model, batch)
    for i, loss in enumerate(rows):
        row = {name: value[i : i + 1] for name, value in batch.items()}
        torch.testing.assert_close(loss, shapes.language_loss(model, row))
