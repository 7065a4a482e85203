"""Runs as data: recorded, saved, replayed without data onto the initial weights, to the bit."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import random
import stat

import numpy as np
import pytest
import torch

import helene
from helene.steps.trajectory import Trajectory
from tests.optimizers.contract.contract_table import METHODS, lora, quadratic, transformer

REPLAYABLE = [m for m in METHODS if m.zeroth_order]


@pytest.mark.parametrize("method", REPLAYABLE, ids=lambda m: m.name)
@pytest.mark.parametrize("options", [{}, {"num_directions": 2}], ids=["one", "two"])
def test_replay(method, options, tmp_path):
    """bfloat16, stochastic rounding, 8-bit state, two layers, a schedule: weights, state and hyper-parameters equal."""
    target, fresh = lora(torch.bfloat16), lora(torch.bfloat16)

    def build(t, lr):
        named = list(t.model.named_parameters())
        groups = [{"params": named[:3]}, {"params": named[3:], "weight_decay": 0.2}]
        return method.build(groups, lr, eps=t.eps, rounding="stochastic", state_dtype="8bit", **options)

    optimizer = build(target, lambda step: target.lr(method) / step)
    trajectory = Trajectory.record(optimizer)
    for _ in range(7):
        optimizer.step(target.loss)
    trajectory.save(tmp_path / "run.npz")
    replayed = build(fresh, 77.0)
    loaded = Trajectory.load(tmp_path / "run.npz")
    assert len(loaded) == 7
    assert loaded.scalars == trajectory.scalars
    for steps in (8, -1):
        with pytest.raises(ValueError, match=f"steps must be in 0 to 7, as many as were recorded, got {steps}"):
            loaded.replay(replayed, steps=steps)
    loaded.replay(replayed, steps=3)
    assert not all(map(torch.equal, target.bits(), fresh.bits()))
    with pytest.raises(ValueError, match="starts at step 1, the optimizer is at 4; make a new one"):
        loaded.replay(replayed)
    fresh = lora(torch.bfloat16)
    replayed = build(fresh, 77.0)
    loaded.replay(replayed)
    assert all(map(torch.equal, target.bits(), fresh.bits()))
    for p, q in zip(target.model.parameters(), fresh.model.parameters(), strict=True):
        for name, value in optimizer.state.get(p, {}).items():
            assert torch.equal(value, replayed.state[q][name])
    assert [g["lr"] for g in replayed.param_groups] == [g["lr"] for g in optimizer.param_groups]
    optimizer.step(target.loss)
    replayed.schedule = optimizer.schedule
    replayed.step(fresh.loss)  # the run goes on
    assert all(map(torch.equal, target.bits(), fresh.bits()))


@pytest.mark.parametrize("source", ["spsa", "spsa_own_batch", "none"])
def test_replay_of_curvature_and_floors(source, tmp_path):
    """Curvature on its own minibatch, floors from h, one direction per layer, on a transformer."""
    target, fresh = transformer(torch.float32), transformer(torch.float32)

    def build(t):
        options = {} if source == "none" else {"floor": helene.QuantileFloor(0.5), "batch_size": 8}
        return helene.Helene(helene.layer_groups(t.model), 1e-3, anneal_horizon=9, interval=2, curvature=source,
                             direction_per_layer=True, distribution="sphere", **options)  # fmt: skip

    optimizer = build(target)
    trajectory = Trajectory.record(optimizer)
    for _ in range(5):
        optimizer.step(target.loss, target.loss)
    trajectory.save(tmp_path / "run.npz")
    replayed = build(fresh)
    Trajectory.load(tmp_path / "run.npz").replay(replayed)
    assert all(map(torch.equal, target.bits(), fresh.bits()))
    assert replayed.diagnostics()["layers"] == optimizer.diagnostics()["layers"]


def test_from_a_checkpoint_on():
    """Recorded from step 4 on, replayed onto the checkpoint of step 3."""
    target, fresh = lora(torch.float32), lora(torch.float32)
    optimizer, replayed = (helene.ZOAdam(t.model.named_parameters(), 0.01) for t in (target, fresh))
    for _ in range(3):
        optimizer.step(target.loss)
    fresh.model.load_state_dict(target.model.state_dict())
    replayed.load_state_dict(optimizer.state_dict())
    trajectory = Trajectory.record(optimizer)
    for _ in range(3):
        optimizer.step(target.loss)
    optimizer.trajectory = None
    optimizer.step(target.loss)
    assert len(trajectory) == 3
    trajectory.replay(replayed)
    replayed.step(fresh.loss)
    assert all(map(torch.equal, target.bits(), fresh.bits()))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_size_of_a_long_run(schedule, tmp_path):
    """Under 1 MB for 100,000 steps at one direction; what is read is what was written."""
    lr = {
        "constant": lambda t: 1e-6,
        "linear": lambda t: 1e-6 * (1 - t / 100_001),
        "cosine": lambda t: 5e-7 * (1 + math.cos(math.pi * t / 100_000)),
    }[schedule]
    optimizer = helene.MeZO([torch.nn.Parameter(torch.ones(2))], 1e-6)
    trajectory = Trajectory.record(optimizer)
    rng = random.Random(0)
    trajectory.scalars = [[rng.gauss(0, 1)] for _ in range(100_000)]  # 53 random bits: the worst case
    if schedule != "constant":
        trajectory.changing[0, "lr"] = [lr(t) for t in range(100_000)]
    trajectory.save(tmp_path / "run.npz")
    assert os.path.getsize(tmp_path / "run.npz") < 1_000_000
    loaded = Trajectory.load(tmp_path / "run.npz")
    assert loaded.scalars == trajectory.scalars
    assert loaded.changing == trajectory.changing


def test_what_cannot_be_replayed_says_so(tmp_path):
    """First-order methods and curvature by backward; the table in the module's docstring is this."""
    for method in METHODS:
        target = lora(torch.float32)
        optimizer = method.build(target.model.named_parameters(), 0.01)
        assert optimizer.replayable == method.zeroth_order
        if not method.zeroth_order:
            with pytest.raises(ValueError, match=r"not replayable.*checkpoints"):
                Trajectory.record(optimizer)
    for source in ("backprop", "sampled_labels"):
        optimizer = helene.Helene(
            lora(torch.float32).model.parameters(), anneal_horizon=9, batch_size=2, curvature=source
        )
        with pytest.raises(ValueError, match="not replayable"):
            Trajectory.record(optimizer)


def test_what_does_not_fit_says_so(tmp_path):
    target = lora(torch.float32)
    optimizer = helene.MeZO(target.model.named_parameters(), 0.01)
    trajectory = Trajectory.record(optimizer)
    optimizer.step(target.loss)
    with pytest.raises(ValueError, match="trajectory is of method 'MeZO', this optimizer of 'ZOSign'"):
        trajectory.replay(helene.ZOSign(lora(torch.float32).model.named_parameters()))
    with pytest.raises(ValueError, match=r"first that differs is 0\.lora_a; make the model"):
        trajectory.replay(helene.MeZO(lora(torch.bfloat16).model.named_parameters()))
    optimizer.add_param_group({"params": [("late", torch.nn.Parameter(torch.ones(2)))]})
    with pytest.raises(ValueError, match="start a new Trajectory"):
        optimizer.step(target.loss)
    (tmp_path / "other.npz").write_bytes(b"not a trajectory")
    with pytest.raises(ValueError, match="no trajectory"):
        Trajectory.load(tmp_path / "other.npz")


def test_a_replay_onto_other_weights_says_so(tmp_path):
    """Weights may be loaded after `record`; a file without their fingerprints, as older ones are, is replayed."""
    target = lora(torch.bfloat16)
    optimizer = helene.MeZO(target.model.named_parameters(), 0.01)
    trajectory = Trajectory.record(optimizer)
    with torch.no_grad():
        target.model[0].lora_a.add_(1.0)
    start = copy.deepcopy(target.model)
    optimizer.step(target.loss)
    trajectory.save(tmp_path / "run.npz")
    loaded = Trajectory.load(tmp_path / "run.npz")
    loaded.replay(helene.MeZO(start.named_parameters()))
    assert all(map(torch.equal, target.model.parameters(), start.parameters()))
    other = lora(torch.bfloat16)
    bits = other.bits()
    with pytest.raises(ValueError, match=r"0\.lora_a does not have .*1 of 4 parameters.*; load those"):
        loaded.replay(helene.MeZO(other.model.named_parameters()))
    assert all(map(torch.equal, bits, other.bits()))
    del loaded.header["weights"]
    loaded.save(tmp_path / "older.npz")
    Trajectory.load(tmp_path / "older.npz").replay(helene.MeZO(other.model.named_parameters()))
    assert not all(map(torch.equal, bits, other.bits()))


@pytest.mark.parametrize(("place", "value"), [(1, -2.0), (4095, 2.0)])
def test_a_fingerprint_tells_the_highest_bits_apart(place, value):
    """Those of float64 vanish, modulo 2^64, in a sum whose weight is a high power of two."""
    weights = torch.ones(4096, dtype=torch.float64)
    start, other = torch.nn.Parameter(weights.clone()), torch.nn.Parameter(weights.clone())
    with torch.no_grad():
        start[1] = 2.0
        other[1] = 2.0
        other[place] = value
    optimizer = helene.MeZO([("w", start)], 0.01)
    trajectory = Trajectory.record(optimizer)
    optimizer.step(start.sum)
    with pytest.raises(ValueError, match="w does not have the weights"):
        trajectory.replay(helene.MeZO([("w", other)], 0.01))


@pytest.mark.parametrize("name", ["run.npz", "run", "run.v2"])
def test_a_file_has_the_name_that_it_is_given(name, tmp_path):
    trajectory = Trajectory.record(helene.MeZO([torch.nn.Parameter(torch.ones(2))], 1e-3))
    trajectory.scalars = [[0.5]]
    trajectory.save(tmp_path / name)
    assert Trajectory.load(tmp_path / name).scalars == trajectory.scalars
    assert os.listdir(tmp_path) == [name]


def test_a_file_that_is_there_survives_a_full_disk(tmp_path, monkeypatch):
    optimizer = helene.MeZO([torch.nn.Parameter(torch.ones(2))], 1e-3)
    trajectory = Trajectory.record(optimizer)
    trajectory.scalars = [[0.5]]
    trajectory.save(tmp_path / "run.npz")
    (tmp_path / "link.npz").symlink_to(tmp_path / "run.npz")
    before = (tmp_path / "run.npz").read_bytes()

    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("numpy.savez_compressed", full)
        with pytest.raises(OSError, match=r"cannot write .*run\.npz: No space left on device; free some space"):
            trajectory.save(tmp_path / "run.npz")
    with pytest.raises(OSError, match=r"cannot write .*missing/run\.npz: No such file .*choose a folder that is there"):
        trajectory.save(tmp_path / "missing" / "run.npz")
    assert (tmp_path / "run.npz").read_bytes() == before
    trajectory.scalars = [[0.5], [0.25]]
    trajectory.save(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert len(Trajectory.load(tmp_path / "run.npz")) == 2
    assert sorted(os.listdir(tmp_path)) == ["link.npz", "run.npz"], "nothing half written is left"


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    trajectory = Trajectory.record(helene.MeZO([torch.nn.Parameter(torch.ones(2))], 1e-3))
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "full.npz").symlink_to("/dev/full")
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "full.npz", "folder.npz"):
        with pytest.raises(OSError, match="is no regular file, and would be replaced by one; choose another name"):
            trajectory.save(tmp_path / name)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe.npz").st_mode)
    assert (tmp_path / "full.npz").is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def _freeze(target, optimizer):
    target.model.a.requires_grad_(False)


def _add(target, optimizer):
    optimizer.add_param_group({"params": [("more", torch.nn.Parameter(torch.ones(2)))]})


def _round(target, optimizer):
    optimizer.param_groups[0]["rounding"] = "stochastic"


def _reseed(target, optimizer):
    optimizer.param_groups[0]["seed"] = (1 << 53) + 1  # no float64


@pytest.mark.parametrize(
    ("change", "said"),
    [(_freeze, "other parameters"), (_add, "has 1 layers, the optimizer 2"), (_round, "only numbers may change"),
     (_reseed, "only numbers may change")],
)  # fmt: skip
def test_what_cannot_be_recorded_is_found_before_anything_moves(change, said):
    target = quadratic(torch.float32)
    optimizer = helene.MeZO(target.model.named_parameters(), 1e-2)
    trajectory = Trajectory.record(optimizer)
    optimizer.step(target.loss)
    change(target, optimizer)
    bits, step = target.bits(), optimizer.param_groups[0]["step"]
    with pytest.raises(ValueError, match=rf"{said}.*start a new Trajectory"):
        optimizer.step(target.loss)
    assert all(map(torch.equal, bits, target.bits()))
    assert (optimizer.param_groups[0]["step"], len(trajectory)) == (step, 1)
    optimizer.trajectory = None
    optimizer.step(target.loss)
    assert not all(map(torch.equal, bits, target.bits()))


def _saved(tmp_path, **change):
    """A short run's file, with some of its arrays or of its header's entries replaced; and what `replay` needs."""
    target = quadratic(torch.float32)
    optimizer = helene.MeZO(target.model.named_parameters(), lambda step: 0.01 / step)
    trajectory = Trajectory.record(optimizer)
    for _ in range(4):
        optimizer.step(target.loss)
    trajectory.save(tmp_path / "whole.npz")
    with np.load(tmp_path / "whole.npz") as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    for name, value in change.items():
        if name in arrays:
            arrays[name] = value
        else:
            header[name] = value
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez_compressed(tmp_path / "changed.npz", **arrays)
    return tmp_path / "changed.npz"


NAN = np.frombuffer(np.full(4, np.nan).tobytes(), np.uint8).reshape(-1, 8).T
LAYER = {"lr": 0.01, "weight_decay": 0.0, "seed": 0, "rounding": "nearest", "state_dtype": "float32", "eps": 1e-3,
         "num_directions": 1, "two_sided": True, "distribution": "gaussian", "direction_per_layer": False}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counts": np.array([1, 1, 1], np.uint32)}, "4 scalars for 3 counted"),
        ({"counts": np.array([[1, 1, 1, 1]], np.uint32)}, "scalars for"),
        ({"scalars": NAN}, "a scalar that is not finite"),
        ({"column0": NAN}, "a column of differences of order"),
        ({"column0": np.zeros((8, 3), np.uint8)}, "2 values of lr for 4 steps"),
        ({"changing": {"3:lr": 0}}, "damaged"),
        ({"changing": {"0:rounding": 0}}, "rounding of layer 0 as a number"),
        ({"changing": {"0:lr": 7}}, "damaged"),
        ({"first_step": 0}, "0 as its first step"),
        ({"first_step": "1"}, "as its first step"),
        ({"layers": [{"params": 1}]}, "params of a layer"),
        ({"layers": [{"lr": [1]}]}, "as lr of a layer"),
        ({"identity": 3}, "damaged"),
        ({"weights": [1, 2, 3, 4, 5]}, "5 weights' fingerprints"),
        ({"weights": 3}, "damaged"),
        ({"weights": ["a", "b"]}, "no pair"),
        ({"format": 7}, "of format 1"),
    ],
)
def test_what_no_run_has_recorded_is_not_loaded(change, said, tmp_path):
    with pytest.raises(ValueError, match=rf"changed\.npz is no trajectory.*{said}"):
        Trajectory.load(_saved(tmp_path, **change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counts": np.array([1, 0, 2, 1], np.uint32)}, "step 3 of the trajectory has 2 scalars, the method needs 1"),
        ({"layers": [{**LAYER, "eps": -1.0}]}, "eps must be positive"),
        ({"layers": [LAYER, LAYER]}, "has 2 layers, the optimizer 1"),
    ],
)
def test_a_replay_moves_nothing_that_it_cannot_finish(change, said, tmp_path):
    fresh = quadratic(torch.float32)
    optimizer, bits = helene.MeZO(fresh.model.named_parameters(), 0.5), fresh.bits()
    with pytest.raises(ValueError, match=said):
        Trajectory.load(_saved(tmp_path, **change)).replay(optimizer)
    assert all(map(torch.equal, bits, fresh.bits()))
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["step"]) == (0.5, 0)


def test_damaged_files_are_refused_or_whole(tmp_path):
    """A bit changed or the end cut off, at 300 places: ValueError, or what was saved (some bytes say nothing)."""
    path = _saved(tmp_path)
    whole, data, draw = Trajectory.load(path), path.read_bytes(), random.Random(0)
    refused = 0
    for i in range(300):
        place = draw.randrange(len(data))
        damaged = data[:place] if i % 3 == 0 else data[:place] + bytes([data[place] ^ 1 << i % 8]) + data[place + 1 :]
        path.write_bytes(damaged)
        try:
            found = Trajectory.load(path)
        except ValueError:
            refused += 1
        else:
            assert (found.header, found.scalars, found.changing) == (whole.header, whole.scalars, whole.changing)
    assert refused > 200
