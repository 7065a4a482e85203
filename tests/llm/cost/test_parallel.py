"""What runs on several GPUs, over gloo on the CPU: the same code but for the throughput."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import warnings
from pathlib import Path

import pytest
import torch

from helene import cli as helene_cli
from llm_bench.cost import parallel
from llm_bench.models import shapes


def _rank(rank: int, port: int, out: Path) -> None:
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    warnings.simplefilter("ignore")  # there is no CUDA device
    torch.set_num_threads(1)  # a fork has none of its parent's OpenMP threads, and would wait for them
    raise SystemExit(helene_cli.main(["llm", "measure", "parallel", "--device", "cpu", "--out", str(out)]))


def test_two_processes_make_the_trajectories_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "VOCABULARY", 600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")  # what is imported need not be imported twice more
    ranks = [context.Process(target=_rank, args=(rank, port, tmp_path)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
    assert [process.exitcode for process in ranks] == [0, 0]
    lines = [json.loads(line) for line in (tmp_path / "parallel.jsonl").read_text().splitlines()]
    found = {line["config"]["part"]: line["result"] for line in lines if "config" in line}
    assert set(found) == {"data parallel", "sharded", "groups", "spread"}
    for part in ("data parallel", "groups"):
        assert found[part]["same"]
        assert found[part]["same_bits"]
        assert found[part]["loss_moved"] > 100 * parallel.LOSS_LIMIT
    assert found["spread"]["same"]
    assert found["sharded"]["same"]


def test_another_direction_is_told_from_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: one step's c or z off, and a trajectory that was not made at all."""
    monkeypatch.setattr(shapes, "VOCABULARY", 600)
    device = torch.device("cpu")
    expected = parallel._alone(
        parallel.build("opt-tiny", torch.float32, "cpu"), parallel.whole_batch(1, device), device
    )
    assert parallel.compare(expected, expected)["same"]
    theta = expected["theta"].clone()
    theta[17] += 1e-2
    assert not parallel.compare(expected, {**expected, "theta": theta})["same"]
    losses = [*expected["losses"][:-1], expected["losses"][-1] * (1 + 1e-4)]
    assert not parallel.compare(expected, {**expected, "losses": losses})["same"]
    with pytest.raises(ValueError, match="zip"):
        parallel.compare(expected, {**expected, "losses": losses[1:]})


@pytest.mark.parametrize("engine", [False, True])
def test_hooks_of_device_placement_change_nothing(engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate's hooks, as ``device_map`` sets them, on the one device there is: a trajectory to the bit."""
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setattr(shapes, "VOCABULARY", 600)
    from helene import MeZO
    from helene.engine import Engine

    device = torch.device("cpu")
    results = []
    for placed in (False, True):
        model = parallel.build("opt-tiny", torch.float32, "cpu")
        if placed:
            places = {
                name: "cpu" for name in ("model.decoder.embed_tokens", "model.decoder.embed_positions", "lm_head")
            }
            places |= {name: "cpu" for name in ("model.decoder.layers.0", "model.decoder.layers.1")}
            places["model.decoder.final_layer_norm"] = "cpu"
            model = accelerate.dispatch_model(model, places, main_device="cpu", force_hooks=True)
            assert hasattr(model.model.decoder.layers[1], "_hf_hook")
        optimizer = MeZO(model.named_parameters(), lr=1e-3, seed=1, model=model)
        batch, losses = parallel.whole_batch(1, device), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = Engine(model, optimizer, parallel.language_loss, scratch_bytes=1 << 24) if engine else None
            for _ in range(3):
                step = (
                    made.step(batch) if made else optimizer.step(lambda m=model, b=batch: parallel.language_loss(m, b))
                )
                losses.append(float(step))
        results.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))
