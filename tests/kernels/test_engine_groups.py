"""`GroupEngine` on a CPU: recorded forwards, their calls made anew, against ``optimizer.step``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from helene import GroupedMeZO, MeZO, Trajectory
from helene.engine.groups import GroupEngine
from tests.optimizers.groups.grouped_models import VOCABULARY, Plain, made


def batch_of(step, length=5):
    generator = torch.Generator().manual_seed(step)
    ids, labels = torch.randint(0, VOCABULARY, (2, 6, length), generator=generator)
    return {"input_ids": ids, "labels": labels}


def losses(model, batch):
    return F.cross_entropy(model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none").mean(dim=1)


def test_recorded_steps_are_the_optimizers():
    """Two shapes, a changed lr, eps and number of groups, momentum: weights and losses to the bit, and the replay."""
    model = made(Plain, torch.float32)
    twin, fresh = copy.deepcopy(model), copy.deepcopy(model)
    options = {"groups": 3, "momentum": 0.5, "eps": 1e-2}
    first, second = (GroupedMeZO(m.named_parameters(), 0.1, **options) for m in (model, twin))
    engine, recorded, modes = GroupEngine(model, first, losses, capture="repeat"), Trajectory.record(first), []
    for step in range(1, 13):
        if step in (6, 8, 9):
            for optimizer in (first, second):
                optimizer.param_groups[0].update({6: {"lr": 0.05}, 8: {"eps": 2e-2}, 9: {"groups": 2}}[step])
        batch = batch_of(step, 5 if step % 3 else 4)
        ours = engine.step(batch)
        modes.append(engine.mode)
        theirs = second.step(lambda batch=batch: losses(twin, batch))
        assert torch.equal(ours, theirs), step
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
    assert modes == [
        "plain",
        "graph",
        "plain",
        "graph",
        "graph",
        "graph",
        "graph",
        "plain",
        *["plain"] * 2,
        "graph",
        "graph",
    ]
    recorded.replay(GroupedMeZO(fresh.named_parameters(), 9.0, momentum=0.9))
    assert all(map(torch.equal, model.parameters(), fresh.parameters()))


def test_one_forward_of_the_doubled_batch_gives_both_sides():
    """In float64: the products are of other shapes, so that they may be summed in another order."""
    model = made(Plain, torch.float64)
    twin, calls = copy.deepcopy(model), []
    first, second = (GroupedMeZO(m.named_parameters(), 0.1, groups=3, eps=1e-2) for m in (model, twin))
    engine = GroupEngine(model, first, lambda m, b: losses(m, noted(calls, b)), capture="repeat", doubled={})
    for step in range(1, 8):
        batch = batch_of(step, 5 if step % 3 else 4)
        calls.clear()
        ours = engine.step(batch)
        theirs = second.step(lambda batch=batch: losses(twin, batch))
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    assert engine.mode == "graph"
    assert engine.doubled
    assert calls == [12]  # rows of the one forward
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def noted(calls, batch):
    calls.append(len(batch["input_ids"]))
    return batch


class Rated(torch.nn.Module):
    """Ratings of users and items: an embedding of one index a row."""

    def __init__(self):
        super().__init__()
        self.users, self.items = torch.nn.Embedding(20, 8), torch.nn.Embedding(30, 8)

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(dim=-1)


@pytest.mark.parametrize("fault", ["nan", "other", "raises", "shape"])
def test_a_doubled_batch_that_does_not_do_is_told_and_done_without(fault):
    """The trajectory is then to the bit that of two forwards; nothing of the trial stays."""
    torch.manual_seed(0)
    model = Rated().double()
    twin = copy.deepcopy(model)
    first, second = (GroupedMeZO(m.named_parameters(), 0.1, groups=3, eps=1e-2) for m in (model, twin))
    faults = {"nan": lambda x: x * torch.nan, "other": lambda x: x.flip(0), "raises": lambda x: x.no_such_thing}

    def rated(model, batch):
        users = batch["users"].repeat(2) if fault == "shape" and len(batch["users"]) > 6 else batch["users"]
        squares = (model(users, batch["items"]) - batch["ratings"]).square()
        return faults[fault](squares) if fault in faults and len(squares) > 6 else squares

    def rows(step):
        generator = torch.Generator().manual_seed(step)
        users, items = torch.randint(0, 20, (2, 6), generator=generator)
        return {"users": users, "items": items, "ratings": torch.randn(6, generator=generator, dtype=torch.float64)}

    engine = GroupEngine(model, first, rated, capture="repeat", doubled={})
    for step in range(1, 6):
        if step == 2:
            with pytest.warns(UserWarning, match="each side has a forward of its own: "):
                engine.step(rows(step))
        else:
            engine.step(rows(step))
        second.step(lambda step=step: rated(twin, rows(step)))
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert engine.mode == "graph"
    assert not engine.doubled


def halved_in_eval(model, batch):
    return (losses(model, batch) + model.shift) * (1.0 if model.training else 0.5)


def shifted():
    model = made(Plain, torch.float64).train()
    model.register_buffer("shift", torch.zeros(1))
    twin = copy.deepcopy(model)
    return model, twin, *(GroupedMeZO(m.named_parameters(), 0.1, groups=3, eps=1e-2) for m in (model, twin))


def moved_in_memory(model):
    model.head.weight.data = model.head.weight.detach().clone()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: setattr(model, "shift", torch.ones(1)),
        lambda model: model.register_forward_hook(lambda module, args, out: 2 * out),
        moved_in_memory,
    ],
    ids=["mode", "buffer", "hook", "memory"],
)
def test_a_model_that_has_changed_is_looked_at_anew(change):
    model, twin, first, second = shifted()
    engine, modes = GroupEngine(model, first, halved_in_eval, capture="repeat"), []
    for step in range(1, 7):
        if step == 4:
            change(model)
            change(twin)
        ours = engine.step(batch_of(step))
        assert torch.equal(ours, second.step(lambda step=step: halved_in_eval(twin, batch_of(step))))
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
        modes.append(engine.mode)
    assert modes == ["plain", "graph", "graph"] * 2


@pytest.mark.parametrize("doubled", [None, {}])
def test_a_forward_that_makes_a_buffer_anew_is_recorded_once(doubled):
    model, _, optimizer, _ = shifted()
    model.register_forward_pre_hook(lambda module, _: setattr(module, "shift", torch.zeros(1)))
    engine, modes = GroupEngine(model, optimizer, halved_in_eval, capture="repeat", doubled=doubled), []
    for step in range(1, 5):
        engine.step(batch_of(step))
        modes.append(engine.mode)
    assert modes == ["plain", "graph", "graph", "graph"]


def test_a_loss_that_is_not_finite_moves_nothing_and_the_run_goes_on():
    model = made(Plain, torch.float32)
    optimizer = GroupedMeZO(model.named_parameters(), 0.1, groups=3)

    def loss(model, batch):
        return losses(model, batch) * batch["scale"]

    engine = GroupEngine(model, optimizer, loss, capture="repeat")
    good, bad = ({**batch_of(1), "scale": torch.full((6,), value)} for value in (1.0, torch.nan))
    engine.step(good)
    engine.step(good)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match="unchanged"):
        engine.step(bad)
    assert all(map(torch.equal, before, model.parameters()))
    assert optimizer.steps_made == 2
    engine.step(good)
    assert engine.mode == "graph"


def test_without_a_gpu_steps_are_plain():
    model = made(Plain)
    engine = GroupEngine(model, GroupedMeZO(model.named_parameters(), 0.1, groups=3), losses)
    for step in (1, 2):
        engine.step(batch_of(step))
        assert (engine.mode, engine.reason) == ("plain", "no CUDA device" if not torch.cuda.is_available() else "")
    with pytest.raises(ValueError, match="takes a GroupedMeZO, got MeZO"):
        GroupEngine(model, MeZO(model.named_parameters()), losses)
