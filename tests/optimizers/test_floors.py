"""Per-layer control: floors by rule, h with and without bias correction, diagnostics that cost no forward."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import helene
from helene.integrations.checkpoints import load_checkpoint, save_checkpoint
from helene.rules import precision
from helene.steps.statistics import expected_cosine
from tests.optimizers.contract.contract_table import logistic, transformer


class Counted:
    """A quadratic over two layers of 40 and 10 coordinates, its evaluations counted."""

    def __init__(self):
        self.a, self.b = nn.Parameter(torch.full((40,), 0.5).double()), nn.Parameter(torch.full((10,), -0.3).double())
        self.k = torch.linspace(0.1, 4.0, 50, dtype=torch.float64)
        self.calls = 0

    def groups(self):
        return [{"params": [self.a], "layer": "wide"}, {"params": [self.b], "layer": "narrow"}]

    def loss(self):
        self.calls += 1
        return torch.cat([self.a, self.b]).square() @ self.k

    def helene(self, floor, **options):
        hyper = {"anneal_horizon": math.inf, "batch_size": 3, "beta2": 0.5, "interval": 2, "seed": 1, **options}
        return helene.Helene(self.groups(), 1e-3, floor=floor, **hyper)


def floors_of(optimizer):
    """λ_i of each layer as the last step used it."""
    return [row["floor"] for row in optimizer.diagnostics()["layers"]]


def read_h(optimizer, p, correction=1.0):
    return optimizer.state[p]["curvature"] * correction


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (helene.QuantileFloor(0.25), lambda h: h.sort().values[math.ceil(0.25 * h.numel()) - 1]),
        (helene.QuantileFloor(0.0), lambda h: h.min()),
        (helene.QuantileFloor(1.0), lambda h: h.max()),
        (helene.MeanFloor(2.0), lambda h: 2 * h.mean()),
        (lambda layer: layer.curvature().median().item() * layer.dimension, lambda h: h.median() * h.numel()),
    ],
    ids=["quantile", "least", "greatest", "mean", "callable"],
)
def test_rules_see_this_steps_h_as_it_is_read(rule, expected, bias_correction):
    """λ_i follows from h after this step's estimate, by layer; between estimates it stays; the step uses it."""
    problem = Counted()
    optimizer = problem.helene(rule, bias_correction=bias_correction, beta1=0.0)
    for t in range(1, 6):
        before = problem.a.detach().clone()
        problem.calls = 0
        optimizer.step(problem.loss)
        assert problem.calls == 2
        estimates = (t - 1) // 2 + 1
        correction = 1 / (1 - 0.5**estimates) if bias_correction else 1.0
        if t % 2:
            floors = [expected(read_h(optimizer, p, correction)).item() for p in (problem.a, problem.b)]
        assert floors_of(optimizer) == pytest.approx(floors, rel=1e-12)
        h = read_h(optimizer, problem.a, correction)
        step = 1e-3 * optimizer.state[problem.a]["momentum"] / (h.clamp_min(floors[0]) + 1e-12)
        assert torch.allclose(before - problem.a.detach(), step, rtol=1e-9, atol=1e-15)


def test_the_extra_pass_changes_nothing_else():
    """A rule that returns a constant is that constant, bit for bit, though h is brought up to date before."""
    ends = []
    for floor in (0.7, lambda layer: 0.7):
        problem = Counted()
        optimizer = problem.helene(floor)
        for _ in range(5):
            optimizer.step(problem.loss)
        ends.append(torch.cat([problem.a, problem.b]))
    assert torch.equal(*ends)


def test_radius_floors():
    """R_i / (2 √d_i), for one R and for one each; a group's own floor wins."""
    problem = Counted()
    optimizer = problem.helene(helene.RadiusFloor(3.0))
    assert floors_of(optimizer) == [3 / (2 * math.sqrt(40)), 3 / (2 * math.sqrt(10))]
    optimizer = problem.helene(helene.RadiusFloor([1.0, 4.0]))
    assert floors_of(optimizer) == [1 / (2 * math.sqrt(40)), 4 / (2 * math.sqrt(10))]
    optimizer = problem.helene([helene.RadiusFloor(1.0), 2.0])
    assert floors_of(optimizer) == [1 / (2 * math.sqrt(40)), 2.0]
    groups = problem.groups()
    groups[1]["floor"] = helene.MeanFloor()
    optimizer = helene.Helene(groups, anneal_horizon=9, batch_size=2, floor=1.5)
    optimizer.step(problem.loss)
    assert floors_of(optimizer)[0] == 1.5
    assert floors_of(optimizer)[1] == pytest.approx(read_h(optimizer, problem.b).mean().item())


def test_floors_that_cannot_be():
    problem = Counted()
    with pytest.raises(ValueError, match=r"looks at h from the first step on.*first_estimate=1; got 'spsa' and 2"):
        problem.helene(helene.MeanFloor(), first_estimate=2)
    with pytest.raises(ValueError, match="got 'none'"):
        problem.helene(helene.QuantileFloor(0.5), curvature="none")
    with pytest.raises(ValueError, match=r"quantile must be in \[0, 1\], got 1.5"):
        helene.QuantileFloor(1.5)
    before = problem.a.detach().clone()
    optimizer = problem.helene(lambda layer: 0.0)
    with pytest.raises(ValueError, match=r"the floor of wide is 0.0 .*must be positive"):
        optimizer.step(problem.loss)
    assert torch.equal(before, problem.a)
    with pytest.raises(ValueError, match=r"floor must be positive, got -1\.0"):
        problem.helene([1.0, -1.0])


def test_diagnostics_cost_no_forward():
    problem = Counted()
    optimizer = problem.helene(5.0)
    slopes = []
    for _ in range(4):
        before = optimizer.statistics.count
        optimizer.step(problem.loss)
        assert optimizer.statistics.count == before + 1
        slopes.append(optimizer.statistics.last)
    problem.calls = 0
    found = optimizer.diagnostics()
    assert problem.calls == 0
    assert found["step"] == 4
    c = torch.tensor(slopes, dtype=torch.float64)
    assert found["projected_gradient"]["mean"] == pytest.approx(c.mean().item())
    assert found["projected_gradient"]["std"] == pytest.approx(c.std().item())
    assert (found["projected_gradient"]["min"], found["projected_gradient"]["max"]) == (c.min(), c.max())
    for row, p, name in zip(found["layers"], (problem.a, problem.b), ("wide", "narrow"), strict=True):
        h = read_h(optimizer, p)
        assert row["layer"] == name
        assert row["dimension"] == p.numel()
        assert row["share_above_floor"] == pytest.approx((h > 5.0).double().mean().item())
        assert 0 < row["share_above_floor"] < 1
        assert row["effective_step"] == pytest.approx((1e-3 / (h.clamp_min(5.0) + 1e-12)).mean().item())
    assert helene.MeZO([problem.a], 0.25).diagnostics()["layers"][0]["effective_step"] == 0.25


@pytest.mark.parametrize(
    ("name", "options", "factor"),
    [
        ("ZOAdam", {"beta2": 0.9}, lambda s: 1 / (1 - 0.9**3) / ((s["second_moment"] / (1 - 0.9**3)).sqrt() + 1e-8)),
        ("ZOSophia", {"batch_size": 3, "gamma": 0.5}, lambda s: 1 / (0.5 * s["curvature"])),
        ("ZONewton", {"batch_size": 3, "denominator_eps": 1.0}, lambda s: 1 / (s["curvature"] + 1.0)),
        ("HiZOO", {"smooth": 0.1}, lambda s: 1 / s["curvature"].sqrt()),
        ("ZOLion", {}, lambda s: torch.ones(1)),
    ],
)
def test_effective_steps_of_other_methods(name, options, factor):
    problem = Counted()
    optimizer = getattr(helene, name)(problem.groups(), 1e-3, **options)
    for _ in range(3):
        optimizer.step(problem.loss)
    for row, p in zip(optimizer.diagnostics()["layers"], (problem.a, problem.b), strict=True):
        expected = 1e-3 * factor(optimizer.state[p]).double().mean().item()
        assert row["effective_step"] == pytest.approx(expected, rel=1e-9)


def test_layers_by_name():
    """Patterns in order, the rest apart; or a function of the name. Frozen parameters are left out."""
    model = transformer(torch.float32).model
    groups = helene.layer_groups(model, [r"\.attention\.", r"norm", r"\.mlp\."])
    layers = {g["layer"]: [n for n, _ in g["params"]] for g in groups}
    assert list(layers) == ["rest", "norm", r"\.attention\.", r"\.mlp\."]
    assert layers["rest"] == ["embed.weight", "head.weight"]
    assert all("norm" in n for n in layers["norm"])
    assert len(layers["norm"]) == 6  # norm_attention too: its name has no ".attention."
    with pytest.raises(ValueError, match=r"the layer '\(' is no regular expression: .*re\.escape"):
        helene.layer_groups(model, ["("])
    with pytest.raises(ValueError, match="layers 'attn' hold no trained parameter"):
        helene.layer_groups(model, ["attn", "norm"])
    with pytest.raises(ValueError, match="takes a module, got a list"):
        helene.layer_groups(list(model.parameters()))
    groups = helene.layer_groups(model, lambda name: name.rpartition(".")[2])
    assert [g["layer"] for g in groups] == ["weight", "bias"]
    assert sum(len(g["params"]) for g in groups) == sum(p.requires_grad for p in model.parameters())


def test_the_clip_of_sophia_is_counted_by_parameter():
    target = transformer(torch.float32)
    optimizer = helene.ZOSophia(target.model.named_parameters(), 1e-3, batch_size=4, interval=2, clip=1e9)
    optimizer.step(target.loss)
    assert sum(optimizer.clip_counts().values()) == 0
    optimizer = helene.ZOSophia(target.model.named_parameters(), 1e-3, batch_size=4, interval=2, clip=1e-9)
    for _ in range(3):
        optimizer.step(target.loss)
    assert optimizer.clip_counts() == {n: 3 * p.numel() for n, p in target.model.named_parameters() if p.requires_grad}


def test_cosine_with_the_gradient_beside_its_expectation():
    """|cos| of a direction with a fixed vector in R^d has mean `expected_cosine(d)`: 300 steps, by its exact variance.

    E cos² = 1/d, so Var = 1/d − mean². False alarm: two-sided 6.5 deviations.
    """
    target = logistic(torch.float64)
    optimizer = helene.MeZO([{"params": [target.model[0].weight], "layer": "only"}], 0.0)
    draws = []
    for _ in range(300):
        rows = optimizer.compare_gradient(target.loss)
        draws.append(rows[0]["cosine"])
        optimizer.step(target.loss)
    assert [row["layer"] for row in rows] == ["only", "all"]
    assert rows[0]["cosine"] == rows[1]["cosine"] > 0
    mean = expected_cosine(4)
    assert rows[0]["expected"] == mean == pytest.approx(4 / (3 * math.pi))  # Γ(2) / (√π Γ(5/2))
    deviation = math.sqrt((1 / 4 - mean**2) / 300)
    assert abs(sum(draws) / 300 - mean) <= 6.5 * deviation


def test_comparing_moves_nothing_and_sees_layers():
    target = transformer(torch.float32)
    optimizer = helene.Helene(helene.layer_groups(target.model), 0.01, anneal_horizon=9, batch_size=2,
                              direction_per_layer=True, num_directions=2, model=target.model)  # fmt: skip
    before = target.bits()
    rows = optimizer.compare_gradient(target.loss)
    assert all(map(torch.equal, before, target.bits()))
    assert optimizer.param_groups[0]["step"] == 0
    assert rows[-1]["expected"] is None
    assert rows[-1]["dimension"] == sum(row["dimension"] for row in rows[:-1])
    assert all(row["expected"] == expected_cosine(row["dimension"], 2) for row in rows[:-1])
    assert expected_cosine(3, 3) == expected_cosine(3, 9) == 1.0
    assert expected_cosine(10_000, 4) == pytest.approx(math.sqrt(2) * math.gamma(2.5) / math.gamma(2) / 100, rel=1e-4)


@pytest.mark.parametrize("rule", [helene.QuantileFloor(0.5), helene.MeanFloor(), helene.RadiusFloor(3.0)], ids=repr)
def test_layers_without_elements_change_nothing(rule):
    """Beside one, the other layer moves as it does alone; a layer that is unfrozen later is asked then."""
    alone, beside, empty, frozen = Counted(), Counted(), nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.ones(9))
    frozen.requires_grad_(False)
    hyper = {"anneal_horizon": math.inf, "batch_size": 3, "interval": 2, "beta2": 0.5, "floor": rule}

    def named(problem):
        return [{"params": [("a", problem.a), ("b", problem.b)]}]

    more = [{"params": [("empty", empty)]}, {"params": [("frozen", frozen)]}]
    optimizer = helene.Helene(named(alone), 1e-3, **hyper)
    with_empty = helene.Helene([*named(beside), *more], 1e-3, **hyper)
    for _ in range(3):
        optimizer.step(alone.loss)
        with_empty.step(beside.loss)
    assert torch.equal(alone.a, beside.a)
    frozen.requires_grad_(True)
    with_empty.step(lambda: beside.loss() + frozen.square().sum())
    with_empty.step(lambda: beside.loss() + frozen.square().sum())
    if isinstance(rule, helene.RadiusFloor):
        assert floors_of(with_empty)[2] == pytest.approx(3.0 / (2 * 3))
    else:
        assert floors_of(with_empty)[2] not in (1.0, floors_of(with_empty)[0])
    assert floors_of(with_empty)[1] == 1.0


@pytest.mark.parametrize("rule", [helene.QuantileFloor(0.5), helene.QuantileFloor(1.0), helene.MeanFloor()], ids=repr)
def test_a_parameter_without_elements_in_a_layer_changes_nothing(rule):
    alone, beside, empty = Counted(), Counted(), nn.Parameter(torch.ones(0, 3))
    hyper = {"anneal_horizon": math.inf, "batch_size": 3, "interval": 2, "beta2": 0.5, "floor": rule}
    optimizer = helene.Helene([("a", alone.a), ("b", alone.b)], 1e-3, **hyper)
    with_empty = helene.Helene([("a", beside.a), ("empty", empty), ("b", beside.b)], 1e-3, **hyper)
    for _ in range(3):
        optimizer.step(alone.loss)
        with_empty.step(beside.loss)
    assert torch.equal(alone.a, beside.a)
    assert floors_of(optimizer) == floors_of(with_empty)


@pytest.mark.parametrize("state_dtype", precision.STATE_DTYPES)
@pytest.mark.parametrize("way", ["state_dict", "pickle", "deepcopy", "checkpoint"])
def test_a_run_goes_on_between_two_estimates_of_h(way, state_dtype, tmp_path):
    """The floors were asked of h before it was rounded to its storage, and stay until the next estimate."""

    def made():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 1)).eval()
        hyper = {"anneal_horizon": math.inf, "batch_size": 3, "beta2": 0.5, "interval": 4, "state_dtype": state_dtype}
        floor = [helene.MeanFloor(), helene.QuantileFloor(0.9)]
        return model, helene.Helene(helene.layer_groups(model, ["0", "2"]), 1e-2, floor=floor, **hyper)

    def steps(model, optimizer, count):
        x = torch.linspace(-1, 1, 15).view(3, 5)
        for _ in range(count):
            optimizer.step(lambda: (model(x) - 1).square().mean())
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    model, optimizer = made()
    steps(model, optimizer, 2)
    if way == "pickle":
        other, resumed = pickle.loads(pickle.dumps((model, optimizer)))
    elif way == "deepcopy":
        other, resumed = copy.deepcopy((model, optimizer))
    else:
        other, resumed = made()
        if way == "checkpoint":
            save_checkpoint(tmp_path / "run.safetensors", model, optimizer)
            load_checkpoint(tmp_path / "run.safetensors", other, resumed)
        else:
            other.load_state_dict(model.state_dict())
            resumed.load_state_dict(optimizer.state_dict())
    assert floors_of(resumed) == floors_of(optimizer)
    assert torch.equal(steps(other, resumed, 4), steps(model, optimizer, 4))


@pytest.mark.parametrize("kept", [{"0": [1, -1.0]}, {"7": [1, 1.0]}, {"0": [1, math.nan]}, {"0": 1.0}, [1.0]], ids=str)
def test_floors_of_a_damaged_state_dict(kept):
    problem = Counted()
    optimizer = problem.helene(helene.MeanFloor())
    optimizer.step(problem.loss)
    before = floors_of(optimizer)
    with pytest.raises(ValueError, match="they must be positive and finite numbers of 2 layers; take a whole"):
        optimizer.load_state_dict({**optimizer.state_dict(), "floors": kept})
    assert floors_of(optimizer) == before


@pytest.mark.parametrize("given", [{}, {"wide": 1.0}, "0.5", b"xy", None, [0.5, "a"]])
def test_a_floor_that_is_neither_a_number_nor_a_rule(given):
    text = r"floor must be positive, got .*Give a number or a rule of helene\.rules\.floors, .* one for each"
    with pytest.raises(ValueError, match=text):
        Counted().helene(given)


def test_floors_as_arrays_are_one_a_layer():
    for floors in ([0.5, 2.0], np.array([0.5, 2.0]), torch.tensor([0.5, 2.0])):
        problem = Counted()
        assert [group["floor"] for group in problem.helene(floors).param_groups] == [0.5, 2.0]
    with pytest.raises(ValueError, match="floor has 3 values for 2 layers"):
        Counted().helene(torch.ones(3))
    with pytest.raises(ValueError, match="radius has 1 values, and narrow is layer 2; give one number, or one a layer"):
        Counted().helene(helene.RadiusFloor([1.0]))
