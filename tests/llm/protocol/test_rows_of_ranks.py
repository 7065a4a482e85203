"""Rows of two processes over gloo on the CPU, beside those of one with the whole batch."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import socket
import sys
import time
import warnings

import pytest
import torch

from helene.lab.runs.store import read_jsonl
from llm_bench.protocol import presets
from llm_bench.runs.training.loop import Training
from llm_bench.runs.training.state import RunState
from llm_bench.tiny.pretrain import Recipe, tiny_model
from tools import gpu_rows

METHODS = "mezo", "mezo-grouped-4"


@pytest.fixture
def call(toy_data, tmp_path, monkeypatch):
    """Makes the rows of presets "alone" and "shared", which differ in the number of ranks, in a folder of a name."""
    alone = dataclasses.replace(
        presets.get_preset("groups"),
        name="alone",
        tasks={"causal": ("sst2",)},
        methods=METHODS,
        multiples=(1.0,),
        extend={},
        base_lr={"full": 3e-2},
        steps={"causal": 9},
        looks=3,
        seeds={"causal": (0,)},
        batch_size={"causal": 8},
        num_train=40,
        num_dev=40,
        num_test=16,
        target={("causal", "sst2"): 0.5},
        dtype="float64",
        products="float32",
    )
    monkeypatch.setitem(presets.PRESETS, "alone", alone)
    monkeypatch.setitem(presets.PRESETS, "shared", dataclasses.replace(alone, name="shared", ranks=2))
    causal = tiny_model(Recipe("causal", steps=2, width=16, heads=2), tmp_path / "cache")

    def words(name, *rows, more=()):
        folders = ["--keep", str(tmp_path / name), "--out", str(tmp_path / name / "out"), "--data", str(toy_data)]
        model = ["--device", "cpu", "--random-models", "--model", f"causal={causal}"]
        return [*folders, *model, *more, "--rows", *rows]

    return words


def on_two_ranks(words, log, before=lambda rank: None):
    """Exit codes of both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def rank_of(rank):
        os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        sys.stdout = sys.stderr = (log / f"rank-{rank}").open("w", buffering=1)
        warnings.simplefilter("ignore")  # there is no CUDA device
        torch.set_num_threads(1)  # a fork has none of its parent's OpenMP threads, and would wait for them
        before(rank)
        raise SystemExit(gpu_rows.main(words))

    context = multiprocessing.get_context("fork")
    both = [context.Process(target=rank_of, args=(rank,)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    return [process.exitcode for process in both]


def test_two_ranks_make_the_rows_of_one_with_the_whole_batch(call, tmp_path):
    """Losses of float64 are off by units of 2^-53, which 1 / (2 eps) and nine steps make 1e-12 of; another share or
    direction changes the third digit."""
    rows = f"/causal/sst2/{','.join(METHODS)}"
    assert on_two_ranks(call("two", "shared" + rows), tmp_path) == [0, 0]
    assert gpu_rows.main(call("one", "alone" + rows)) == 0
    ours = read_jsonl(tmp_path / "two/out/shared/causal-sst2.jsonl")
    theirs = {told(r): r for r in read_jsonl(tmp_path / "one/out/alone/causal-sst2.jsonl")}
    assert [r.config["ranks"] for r in ours] == [2] * 4
    assert len({told(r) for r in ours} & theirs.keys()) == 4, "each run once, chosen and judged alike"
    assert (tmp_path / "rank-1").read_text() == "", "the first rank alone tells"
    for record in ours:
        mine, other = record.result, theirs[told(record)].result
        assert mine["target"]["forwards"] == other["target"]["forwards"] < math.inf
        for name in ("train_loss", "dev_loss"):
            assert mine["curve"][name][1:] == pytest.approx(other["curve"][name][1:], rel=1e-9)
        same = ("status", "steps", "forwards", "tokens", "best_step")
        assert [mine[name] for name in same] == [other[name] for name in same]
        (made,) = mine["steps_made"]
        assert made["reason"] in ("capture=False", "no CUDA device")
    assert "runs left" not in (tmp_path / "rank-0").read_text()
    assert on_two_ranks(call("two", "shared" + rows, more=["--minutes", "0"]), tmp_path) == [0, 0]
    assert "all runs are there" in (tmp_path / "rank-0").read_text()


def told(record):
    return record.config["method"], record.config["role"], record.config["lr"], record.config["seed"]


@pytest.mark.parametrize("broken", [0, 1])
def test_a_rank_that_fails_ends_all(call, tmp_path, broken):
    """In the fifth of nine steps, while the other rank waits for its losses."""
    steps = Training._steps

    def fails(self, goal, due):
        if self.state.step:
            raise OSError("the card fell off the bus")
        steps(self, goal, due)

    def before(rank):
        if rank == broken:
            Training._steps = fails

    start = time.monotonic()
    codes = on_two_ranks(call("two", "shared/causal/sst2/mezo"), tmp_path, before)
    assert 0 not in codes
    assert None not in codes
    assert time.monotonic() - start < 30, "nobody waits for the group's timeout"
    said = [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)]
    assert f"rank {broken} failed, so all ranks end: OSError: the card fell off the bus" in said[broken]
    assert "could not exchange losses" in said[1 - broken]
    assert not list((tmp_path / "two/out").rglob("*.jsonl")), "a run that failed has no record"


def test_ranks_that_come_apart_end(call, tmp_path):
    """One has its run's end where the other looks at dev."""

    def before(rank):
        if rank == 1:
            Training.run = lambda self: RunState(ended=("out_of_memory", "here alone"))

    codes = on_two_ranks(call("two", "shared/causal/sst2/mezo"), tmp_path, before)
    assert 0 not in codes
    for rank in range(2):
        said = (tmp_path / f"rank-{rank}").read_text()
        assert "they are at ['the look at step 0', 'the end of a run: out_of_memory']" in said


def test_presets_are_for_as_many_ranks_as_there_are(call, tmp_path, capsys, monkeypatch):
    assert gpu_rows.main(call("one", "shared/causal/sst2/mezo")) == 1
    assert "the run is for ranks=2, here are 1; start it by python -m torch.distributed.run" in capsys.readouterr().out
    assert on_two_ranks(call("two", "alone/causal/sst2/mezo"), tmp_path) == [1, 0]
    assert "the run is for ranks=1, here are 2; start it by" in (tmp_path / "rank-0").read_text()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for more, said in (
        (["--cards", "2"], "leave them out under torch.distributed.run"),
        (["--device", "cuda:0"], "is one card for all ranks; --device cuda gives each its own"),
    ):
        with pytest.raises(SystemExit):
            gpu_rows.main(call("two", "shared/causal/sst2/mezo", more=more))
        assert said in capsys.readouterr().err
