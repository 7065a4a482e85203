"""ZO-SGD-Cons by the engine, without a GPU: the trajectory of optimizer.step, bit for bit, choices included."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_models import TiedModel, batch_of, loss
from torch import Tensor, nn

from helene import MeZO, Trajectory, ZOConservative
from helene.engine import Engine

RING = {"scratch_bytes": 1 << 15, "unit_bytes": 3000}
WAYS: list[dict[str, Any]] = [{}, RING, {"capture": "repeat"}, {"capture": "repeat", **RING}]
IDS = ["eager", "eager-ring", "repeat", "repeat-ring"]
FIRST, GRAPH = "first step of this batch shape", "the update runs outside of the graph"

way = pytest.mark.parametrize("how", WAYS, ids=IDS)


def _engine(model: nn.Module, optimizer: Any, of: Callable[..., Any] = loss, **how: Any) -> Engine:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Engine(model, optimizer, of, **how)


def _run(dtype: torch.dtype, how: dict[str, Any] | None, steps: int = 4, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = TiedModel().to(dtype)
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = ZOConservative(model.named_parameters(), seed=5, model=model, **options)
    recorded = Trajectory.record(optimizer)
    engine = None if how is None else _engine(model, optimizer, **how)
    losses, modes = [], []
    for step in range(steps):
        batch = batch_of(step)
        losses.append(optimizer.step(lambda b=batch: loss(model, b)) if engine is None else engine.step(batch))
        modes.append(engine.mode if engine else "plain")
    weights = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p, before in zip(model.parameters(), start, strict=True):
            p.copy_(before)
    recorded.replay(ZOConservative(model.named_parameters(), seed=5, model=model, **options))
    assert all(map(torch.equal, weights, model.parameters()))
    found = {"losses": losses, "weights": weights, "scalars": recorded.scalars, "start": start, "modes": modes}
    return found | {"statistics": optimizer.diagnostics()["projected_gradient"]}


@pytest.mark.parametrize(
    ("dtype", "options", "choices"),
    [
        (torch.float32, {"lr": 1e-3, "weight_decay": 0.1}, {1.0}),
        (torch.float64, {"lr": 3e-3}, {0.0, 1.0}),
        (torch.float32, {"lr": lambda step: 100.0**-step}, None),  # the last are within rounding of a tie
        (torch.float64, {"lr": 1e-9, "distribution": "rademacher"}, None),
        (torch.float32, {"lr": 1e38}, {0.0}),  # lr c is beyond float32
    ],
    ids=["decay", "refused", "schedule", "tie", "overflow"],
)
def test_the_trajectory_is_that_of_optimizer_step(
    dtype: torch.dtype, options: dict[str, Any], choices: set[float] | None
) -> None:
    """Losses, slopes, choices and weights, to the bit; and replay makes them of the scalars."""
    expected = _run(dtype, None, **options)
    assert choices is None or {choice for _, choice in expected["scalars"]} == choices
    for how in WAYS[1:]:
        got = _run(dtype, how, **options)
        assert got["scalars"] == expected["scalars"]
        assert all(map(torch.equal, got["losses"], expected["losses"]))
        assert all(map(torch.equal, got["weights"], expected["weights"]))
        assert got["statistics"] == expected["statistics"]
        assert got["modes"] == ["eager", *(["graph" if "capture" in how else "eager"] * 3)]


@way
def test_a_refused_step_moves_no_bit(how: dict[str, Any]) -> None:
    found = _run(torch.float32, how, lr=100.0, eps=0.1)
    assert [choice for _, choice in found["scalars"]] == [0.0] * 4
    assert all(map(torch.equal, found["weights"], found["start"]))


class Number(nn.Module):
    """A model of one weight."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(self.inner.weight, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sum()


def _numbers(how: dict[str, Any], of: Callable[..., Any], lr: float) -> tuple[Number, ZOConservative, Engine]:
    model = Number(1.0)
    optimizer = ZOConservative(model.named_parameters(), lr=lr, model=model)
    return model, optimizer, _engine(model, optimizer, of, **how)


ONE = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@way
def test_a_candidate_whose_loss_is_not_finite_is_refused(bad: float, how: dict[str, Any]) -> None:
    """L(w) = w where w > 0: of both candidates 1 ∓ 1e3 z² the one has a higher loss, the other none."""
    model, optimizer, engine = _numbers(how, lambda m, x: torch.where(m(x) > 0, m(x), bad), 1e3)
    recorded = Trajectory.record(optimizer)
    for _ in range(4):
        engine.step(ONE)
    engine.flush()
    assert [choice for _, choice in recorded.scalars] == [0.0] * 4
    assert model.inner.weight.item() == 1.0


@way
def test_the_other_side_is_taken_where_it_is_the_lowest(how: dict[str, Any]) -> None:
    """The slope is 1 near w = 1, but L falls to the right of 1.5 and rises to the left of 0.5."""
    scalars = []
    for plainly in (True, False):

        def bent(model: Number, x: Tensor) -> Tensor:
            return torch.where((model(x) - 1.0).abs() < 0.5, model(x), 1.0 - model(x))

        model, optimizer, engine = _numbers(how, bent, 1e3)
        recorded = Trajectory.record(optimizer)
        for _ in range(3):
            with torch.no_grad():
                model.inner.weight.fill_(1.0)
            if plainly:
                optimizer.step(lambda m=model, of=bent: of(m, ONE))
            else:
                engine.step(ONE)
            assert model.inner.weight.item() > 1.5
        scalars.append(recorded.scalars)
    assert [choice for _, choice in scalars[0]] == [-1.0] * 3
    assert scalars[1] == scalars[0]


@pytest.mark.parametrize("where", ["probe", "theta"])
@way
def test_a_loss_that_is_not_finite_at_a_probe_or_at_theta_is_an_error_and_moves_nothing(
    where: str, how: dict[str, Any]
) -> None:
    """At the third step, which is replayed; the fourth goes on as if it had not been."""

    def spoiled(model: Number, batch: dict[str, Tensor]) -> Tensor:
        value, at = model(ONE), batch["theta"]
        bad = value == at if where == "theta" else value < at
        return torch.where(bad & batch["spoil"], torch.nan, value)

    ways = how, {}
    models = []
    for i, way_of in enumerate(ways):
        model, optimizer, engine = _numbers(way_of, spoiled, 1e-2)
        for spoil in (False, False, *([True] if i == 0 else []), False):
            theta = model.inner.weight.detach().clone()
            batch = {"theta": theta.reshape(()), "spoil": torch.tensor(spoil)}
            if spoil:
                with pytest.raises(FloatingPointError, match="unchanged"):
                    engine.step(batch)
                assert torch.equal(theta, model.inner.weight)
                assert optimizer.steps_made == 2
            else:
                engine.step(batch)
        engine.flush()
        models.append(model)
    assert torch.equal(models[0].inner.weight, models[1].inner.weight)


@way
def test_layers_of_different_lr_are_the_optimizers_and_say_so(how: dict[str, Any]) -> None:
    """At steps 3 and 4; the engine makes those before and after."""
    models, reasons = [], []
    for plainly in (True, False):
        torch.manual_seed(0)
        model = TiedModel()
        named = list(model.named_parameters())
        optimizer = ZOConservative([{"params": named[:3]}, {"params": named[3:], "weight_decay": 0.5}], lr=0.05)
        engine = _engine(model, optimizer, **how)
        for step in range(7):
            optimizer.param_groups[1]["lr"] = 0.1 if step in (2, 3) else 0.05
            batch = batch_of(step)
            if plainly:
                optimizer.step(lambda m=model, b=batch: loss(m, b))
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                engine.step(batch)
            reasons.append((engine.mode, engine.reason.partition(":")[0]))
        models.append(model)
    last = ("graph", GRAPH) if "capture" in how else ("eager", "no CUDA device")
    first = ("eager", FIRST if "capture" in how else "no CUDA device")
    apart = ("plain", "lr differs between layers, so that theta ± lr g is not on the line of the probes")
    assert reasons == [first, last, apart, apart, first, last, last]
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


@pytest.mark.parametrize("options", [{"two_sided": False}, {"num_directions": 2}, {"distribution": "sphere"}])
def test_other_probes_are_the_optimizers(options: dict[str, Any]) -> None:
    model = TiedModel()
    engine = _engine(model, ZOConservative(model.named_parameters(), **options))
    engine.step(batch_of(0))
    assert engine.mode == "plain"
    assert next(iter(options)) in engine.reason


def test_a_step_is_six_forwards_and_the_first_looks_once_whether_they_disturb_each_other() -> None:
    """It costs four forwards more than MeZO's, at the first step too."""
    counts: dict[str, list[int]] = {}
    for cls in (MeZO, ZOConservative):
        model, calls = TiedModel(), counts.setdefault(cls.__name__, [])

        def counted(model: Any, batch: dict[str, Tensor], calls: list[int] = calls) -> Tensor:
            calls[-1] += 1
            return loss(model, batch)

        engine = _engine(model, cls(model.named_parameters(), model=model), counted)
        for step in range(3):
            calls.append(0)
            engine.step(batch_of(step))
    assert counts["MeZO"][1:] == [2, 2]
    assert counts["ZOConservative"] == [count + 4 for count in counts["MeZO"]]
    assert ZOConservative([nn.Parameter(torch.ones(1))]).forwards_at(1) == 5


def test_candidates_are_the_same_copies_on_both_paths() -> None:
    """So that a choice between losses within rounding of each other cannot differ: every loss is equal to the bit."""
    seen: list[list[list[float]]] = []
    for plainly in (True, False):
        torch.manual_seed(0)
        model, steps = TiedModel(), list[list[float]]()

        def told(model: Any, batch: dict[str, Tensor], steps: list[list[float]] = steps) -> Tensor:
            value = loss(model, batch)
            steps[-1].append(float(value))
            return value

        optimizer = ZOConservative(model.named_parameters(), lr=1e-3, model=model)
        engine = _engine(model, optimizer, told)
        for step in range(5):
            batch = batch_of(step)
            steps.append([])
            if plainly:
                optimizer.step(lambda m=model, b=batch, of=told: of(m, b))
                steps[-1].append(steps[-1][2])  # a pair has two losses at theta
            else:
                engine.step(batch)
        seen.append([sorted(losses) for losses in steps[1:]])
    assert seen[0] == seen[1]
    assert all(len(losses) == 6 for losses in seen[0])
