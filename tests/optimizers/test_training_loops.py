"""Where people train, without transformers: micro-batches, compiled models, schedulers, tied and shared modules."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import helene
from helene.engine import Engine
from tests.optimizers.contract.contract_table import METHODS

all_methods = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)


def regression(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    return model, torch.randn(7, 3, dtype=dtype), torch.randint(0, 2, (7,))


@all_methods
def test_micro_batches_are_the_whole_batch(method):
    """Parts of 3, 3 and 1: the whole batch's trajectory, up to the rounding of a mean (1e4 u / eps; HiZOO eps²)."""
    ends = []
    for parts in (False, True):
        model, x, y = regression()

        def loss(batch, model=model):
            return F.cross_entropy(model(batch["x"]), batch["y"])

        whole = {"x": x, "y": y}
        batches = [{"x": x[s], "y": y[s]} for s in (slice(0, 3), slice(3, 6), slice(6, 7))] if parts else [whole]
        optimizer = method.build(model.named_parameters(), 0.01, eps=1e-2, model=model, **method.contract.flat)
        for _ in range(5):
            optimizer.step(helene.microbatches(loss, batches))
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    radius = 1e-4 if method.name == "HiZOO" else 1e-2
    assert (ends[0] - ends[1]).abs().max() <= 1e4 * 2.0**-52 / radius


def test_sizes_of_micro_batches():
    batches = [torch.zeros(2, 3), (torch.zeros(1, 3), "note"), [torch.zeros(5)]]
    values = iter((1.0, 4.0, 2.0))
    closure = helene.microbatches(lambda _: torch.tensor(next(values)), batches)
    assert closure().item() == pytest.approx((2 * 1 + 1 * 4 + 5 * 2) / 8)
    tokens = helene.microbatches(lambda b: torch.tensor(float(b)), [1, 3], size=lambda b: 10.0 * b)
    numbers = helene.microbatches(float, [1, 3], size=lambda b: 10.0 * b)
    assert numbers() == tokens()
    with pytest.raises(ValueError, match="returned None"):
        helene.microbatches(lambda b: None, [1], size=float)()
    assert tokens().item() == pytest.approx((10 * 1 + 30 * 3) / 40)
    empty = helene.microbatches(lambda b: torch.tensor(b / b if b else math.nan), [0.0, 2.0], size=float)
    assert empty().item() == 1, "a part that the loss is no mean over anything of, such as one without label tokens"
    with pytest.raises(
        ValueError, match=r"the loss of a part returned torch.float32 of shape \(2,\); it must return one"
    ):
        helene.microbatches(lambda b: b, [torch.zeros(2), torch.zeros(2)])()
    with pytest.raises(ValueError, match="there are no batches"):
        helene.microbatches(lambda b: b, [])
    with pytest.raises(ValueError, match="no tensor tells the size of a str; pass size="):
        helene.microbatches(lambda b: b, ["text"])
    with pytest.raises(ValueError, match="add up to 0"):
        helene.microbatches(lambda b: b, [1], size=lambda b: 0)


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("name", ["MeZO", "Helene", "Adam"])
def test_compiled_models(name, with_model):
    """The plain model's trajectory, bit for bit (a backend that keeps the operations); full copies are told of."""
    options = {"Helene": {"anneal_horizon": 9, "batch_size": 7}}.get(name, {})
    model, x, y = regression(torch.float32)
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="eager")
    if with_model and name != "Adam":
        with pytest.warns(UserWarning, match="the model is compiled"):
            optimizer = getattr(helene, name)(model.named_parameters(), 0.01, model=compiled, **options)
    else:
        optimizer = getattr(helene, name)(model.named_parameters(), 0.01, **options)
    reference = getattr(helene, name)(plain.named_parameters(), 0.01, **options)
    for _ in range(4):
        loss = optimizer.step(lambda: F.cross_entropy(compiled(x), y))
        assert loss == reference.step(lambda: F.cross_entropy(plain(x), y))
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, 10), lambda t: 0.1 * (1 - t / 10)),
        (
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
            lambda t: 0.05 * (1 + math.cos(math.pi * t / 10)),
        ),
        (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)), lambda t: 0.1 / (1 + t)),
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10, cycle_momentum=False), None),
    ],
    ids=["linear", "cosine", "lambda", "one-cycle"],
)
def test_torch_schedulers(make, expected):
    """A scheduler's rate is the one used, and equals the same schedule given as a function, bit for bit."""
    model, x, y = regression()
    optimizer = helene.MeZO(model.named_parameters(), 0.1)
    scheduler, rates = make(optimizer), []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step(lambda: F.cross_entropy(model(x), y))
        scheduler.step()
    if expected:
        assert rates == pytest.approx([expected(t) for t in range(6)])
    twin, x, y = regression()
    given = helene.MeZO(twin.named_parameters(), lambda t: rates[t - 1])
    for _ in range(6):
        given.step(lambda: F.cross_entropy(twin(x), y))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_schedulers_that_cycle_momentum(momentum):
    """As torch's, also where the scheduler is what turns momentum on; turning it on later is refused, not ignored."""
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    mine, theirs = helene.SGD([p], 0.1, momentum=momentum), torch.optim.SGD([q], 0.1, momentum=momentum)
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10) for o in (mine, theirs)]
    for _ in range(4):
        mine.step(lambda: p.square().sum())
        q.grad = 2 * q.detach()
        theirs.step()
        for scheduler in schedulers:
            scheduler.step()
    torch.testing.assert_close(p, q)
    without = helene.SGD([q], 0.1)
    without.step(lambda: q.square().sum())
    without.param_groups[0]["momentum"] = 0.5
    before = q.detach().clone()
    with pytest.raises(ValueError, match=r"the state of layer 0 is \(\), its hyper-parameters .* ask for \(momentum\)"):
        without.step(lambda: q.square().sum())
    assert torch.equal(q, before)


@pytest.mark.filterwarnings("ignore:steps run without a CUDA graph")
def test_torch_is_told_of_steps_that_are_no_calls_of_step():
    """Else a scheduler warns of an order that is right; warnings are errors here."""
    model, x, _ = regression(torch.float32)
    start = copy.deepcopy(model)
    optimizer = helene.MeZO(model.named_parameters(), 0.1, model=model)
    recorded = helene.Trajectory.record(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    engine = Engine(model, optimizer, lambda m, batch: m(batch["x"]).pow(2).mean())
    for _ in range(2):
        engine.step({"x": x})
        scheduler.step()
    engine.flush()
    other = helene.MeZO(start.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(other, 1)
    recorded.replay(other)
    scheduler.step()
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        torch.optim.lr_scheduler.StepLR(helene.MeZO(copy.deepcopy(model).named_parameters()), 1).step()


def test_hooks_and_closures_that_return_numbers():
    """torch's step hooks run once a step; a closure may return a Python float."""
    seen = []
    for cls in (helene.MeZO, helene.Helene):
        p = nn.Parameter(torch.ones(3))
        optimizer = cls([p], 0.1, **({"anneal_horizon": 9, "batch_size": 1} if cls is helene.Helene else {}))
        optimizer.register_step_post_hook(lambda *_: seen.append(1))
        optimizer.step(lambda p=p: p.sum().item())
    assert len(seen) == 2


def test_gradient_checkpointing_and_autocast():
    """A checkpointed forward and autocast to bfloat16 read the perturbed weights: slopes near those in float32."""
    slopes = []
    for mode in ("plain", "checkpoint", "autocast"):
        model, x, y = regression(torch.float32)
        optimizer = helene.MeZO(model.named_parameters(), 0.0, eps=0.1, model=model)

        def loss(model=model, mode=mode, x=x, y=y):
            if mode == "checkpoint":
                return F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)
            with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
                return F.cross_entropy(model(x).float(), y)

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.step(loss)
        slopes.append(optimizer.diagnostics()["projected_gradient"]["last"])
    assert slopes[0] == slopes[1]
    assert abs(slopes[2] - slopes[0]) <= 2.0**-7 * 3 / 0.1  # two losses below 3, each to a bfloat16 rounding
    assert slopes[0] != 0


def test_an_lr_set_by_hand_stands_over_the_function_of_the_step():
    """Until then each group without an lr of its own has the function's; a run that is loaded goes on so."""
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = helene.MeZO([{"params": [p], "layer": "p"}, {"params": [q], "layer": "q"}], lr=lambda t: 0.1 / t)

    def step():
        optimizer.step(lambda: p.square().sum() + q.square().sum())
        return [group["lr"] for group in optimizer.param_groups]

    assert step() == [0.1, 0.1]
    optimizer.param_groups[0]["lr"] = 0.03
    assert step() == [0.03, 0.05]
    assert step() == [0.03, 0.1 / 3]
    again = helene.MeZO([{"params": [p], "layer": "p"}, {"params": [q], "layer": "q"}], lr=lambda t: 0.1 / t)
    again.load_state_dict(optimizer.state_dict())
    again.step(lambda: p.square().sum() + q.square().sum())
    assert [group["lr"] for group in again.param_groups] == [0.03, 0.1 / 4]
    again.param_groups[1]["lr"] = 0.02  # which no step has seen when it is saved
    optimizer.load_state_dict(again.state_dict())
    assert step() == [0.03, 0.02]
    followed = helene.MeZO([{"params": [p], "layer": "p"}, {"params": [q], "layer": "q"}], lr=lambda t: 0.1 / t)
    followed.step(lambda: p.square().sum() + q.square().sum())
    optimizer.load_state_dict(followed.state_dict())  # back to where no lr had been set
    assert step() == [0.1 / 2, 0.1 / 2]
    with pytest.raises(ValueError, match=r"lr_by_hand=\[2\], they must be places of its 2 groups; take a whole"):
        again.load_state_dict({**again.state_dict(), "lr_by_hand": [2]})


def test_a_look_ahead_leaves_the_schedule_where_it_is():
    """Engines, and what only reports, foresee a step: its lr is neither saved nor taken for one set by hand."""
    model, x, y = regression()

    def loss(model, batch=None):
        return F.cross_entropy(model(x), y)

    optimizer = helene.MeZO(model.named_parameters(), lr=lambda step: 0.1 / step)
    for _ in range(2):
        optimizer.step(lambda: loss(model))
    assert optimizer.foresee().rules[0].lr == 0.1 / 3
    optimizer.compare_gradient(lambda: loss(model))
    Engine(model, optimizer, loss, capture="repeat")
    assert optimizer.param_groups[0]["lr"] == 0.1 / 2
    optimizer.step(lambda: loss(model))
    assert optimizer.param_groups[0]["lr"] == 0.1 / 3
