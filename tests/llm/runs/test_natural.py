"""Natural step sizes: the closed forms against draws, and what a plan makes of them."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from helene import FZOO, ForwardGrad, GroupedMeZO
from helene.engine import reasons
from helene.lab.runs.store import Record
from llm_bench.protocol import execute, plan, step_size_search
from llm_bench.protocol.plan import Cell
from llm_bench.protocol.presets import get_preset
from llm_bench.runs import methods, natural_step
from llm_bench.runs.environment import environment
from llm_bench.runs.methods import METHODS


@pytest.mark.parametrize(("scale", "floor"), [(2e3, 1.0), (3.2, 0.9), (0.01, 2.0), (1e5, 3.0)])
def test_the_mean_factor_is_the_integral(scale, floor):
    def inside(z):
        return stats.norm.pdf(z) / max(scale * z * z, floor)

    radius = math.sqrt(floor / scale)
    parts = [0.0, radius, 2 * radius, 10 * radius, max(20 * radius, 40.0)]
    whole = 2 * sum(integrate.quad(inside, a, b, epsabs=0, epsrel=1e-10)[0] for a, b in pairwise(parts))
    assert natural_step.mean_factor(scale, floor) == pytest.approx(whole, rel=1e-7)


def test_the_largest_square_is_that_of_draws():
    """The quantile of 400 maxima has a standard error of √(p(1 − p)/400) over their density there, 1/(2e): 0.13.

    2 % are 2.3 of these, and the median, 5 % above, is told apart.
    """
    draws = np.random.default_rng(0).standard_normal((400, 10_000))
    median = np.median((draws**2).max(axis=1))
    # a value that a draw passes with probability 1/d is the largest of d draws' quantile at (1 − 1/d)^d, about 1/e
    assert natural_step.largest_square(10_000) == pytest.approx(
        np.quantile((draws**2).max(axis=1), math.exp(-1)), rel=0.02
    )
    assert natural_step.largest_square(10_000) < median


@pytest.mark.parametrize(
    ("method", "floor"),
    [("helene", 1.0), ("helene", "mean:2"), ("helene-corrected", 1.0), ("helene-backprop", 1.0)],
)
def test_gamma_and_lr_multiplied_alike_leave_the_natural_step_as_it_was(method, floor):
    """The step divides by gamma max(h, floor), so that gamma scales all of it."""
    of = {"slope": {"mean_square": 1e4, "dimension": 1e6}, "batch_size": 16}
    one, three = (natural_step.denominator(method, **of, hyper={"gamma": g, "floor": floor}) for g in (1.0, 3.0))
    assert three == pytest.approx(3 * one, rel=1e-12)


def test_denominators_by_method():
    slope = {"mean_square": 1e4, "dimension": 1e6}
    assert natural_step.denominator("mezo", {}, 16) == 1.0
    assert natural_step.denominator("zo-adam", {}, 16) == 1.0
    assert natural_step.denominator("helene-no-curvature", {}, 16) == 1.0
    assert natural_step.denominator("helene-backprop", {}, 16) == 1.0
    plain = natural_step.denominator("helene", slope, 16)
    assert plain == pytest.approx(1 / natural_step.mean_factor(0.01 * 16 * 1e4, 1.0))
    assert natural_step.denominator("helene-floor-3", slope, 16) > plain
    assert natural_step.denominator("helene-floor-0.9", slope, 16) < plain
    assert natural_step.denominator("helene-corrected", slope, 16) > 5 * plain
    assert natural_step.denominator("helene-scalar-h", slope, 16) > 1600
    assert natural_step.denominator("helene", slope, 16, {"bias_correction": True}) == natural_step.denominator(
        "helene-corrected", slope, 16
    )
    half = natural_step.denominator("helene", slope, 16, {"floor": "quantile:0.5"})
    assert half == pytest.approx(1 / natural_step.mean_factor(1600, 1600 * stats.chi2.ppf(0.5, 1)))
    mean = natural_step.denominator("helene", slope, 16, {"floor": "mean:2"})
    assert mean == pytest.approx(natural_step.denominator("helene", slope, 16, {"floor": 3200.0}), rel=1e-9)
    with pytest.raises(ValueError, match="is not known"):
        natural_step.denominator("helene", slope, 16, {"floor": "radius:1"})
    assert not natural_step.needs_slope("helene", {"curvature": "none"})
    small = {"mean_square": 1e-9, "dimension": 1e6}
    assert natural_step.denominator("helene", small, 16) == pytest.approx(1.0), "h below the floor: heavy-ball MeZO"
    assert {name for name in METHODS if natural_step.needs_slope(name)} == {
        name for name, m in METHODS.items() if m.cls == "Helene" and m.fixed.get("curvature", "spsa").startswith("spsa")
    }


PRESET = dataclasses.replace(get_preset("small"), extend={"causal": 2, "masked": 2})
HELENE = Cell("causal", "sst2", "helene", "full")


@pytest.fixture
def bench(toy_data, monkeypatch):
    monkeypatch.setattr(execute, "resolved", lambda config, env: config)
    return execute.Bench(PRESET, {"causal": "m"}, environment(toy_data))


def records(bench, cell, losses, slope=None):
    """Of the runs that `measured` wants next, until it wants a test run; the dev loss a function of lr."""
    found = {}
    while True:
        what = execute.cell_records(bench, cell, found)
        if not what.next or what.next[0].role == "test":
            return found, what
        for config in what.next:
            result = {"status": "out_of_budget", "slope": slope}
            if config.role == "tune":
                loss = losses(config.lr)
                result |= {"dev": {"metric": 1 / (1 + loss), "loss": loss, "option_loss": loss, "auc": None}}
            record = Record.of("llm/small", config.to_dict(), result)
            found[record.key] = record


def test_a_grid_follows_the_measured_slope_and_grows_where_its_end_is_best(bench):
    slope = {"mean_square": 1e4, "dimension": 1e6}
    unit = 1e-7 * natural_step.denominator("helene", slope, 16)
    found, what = records(bench, HELENE, lambda lr: abs(math.log(lr / unit)), slope)
    assert what.choice.lr == pytest.approx(unit, rel=5e-3)
    assert not what.choice.edge
    assert len(found) == 1 + 6
    found, what = records(bench, HELENE, lambda lr: abs(math.log(lr / (90 * unit))), slope)
    assert what.choice.lr == pytest.approx(90 * unit, rel=5e-3)
    assert not what.choice.edge
    assert len(found) == 1 + 6 + 2
    found, what = records(bench, HELENE, lambda lr: lr, slope)
    assert what.choice.edge, "an end that stays best is told"
    assert len(found) == 1 + 6 + 2
    assert len(what.tuning) == len(found)


def test_every_method_tries_as_many_step_sizes(bench):
    for method in ("mezo", "helene", "helene-scalar-h", "zo-adam"):
        cell = dataclasses.replace(HELENE, method=method)
        runs = plan.tuning_runs(PRESET, cell, "m", "cpu", denominator=3.0)
        assert len(runs) == len(PRESET.multiples)
    before = plan.slope_run(PRESET, HELENE, "m", "cpu")
    assert 2 * before.steps == 20, "forwards of the measurement: a two-hundredth of one run's 4,000"
    assert plan.slope_run(PRESET, dataclasses.replace(HELENE, method="mezo"), "m", "cpu") is None


@pytest.mark.parametrize("method", ["mezo", "helene"])
def test_tuning_measures_first_what_helene_needs_and_counts_it(method, toy_data, monkeypatch):
    slope = {"mean_square": 1e4, "dimension": 1e6}
    monkeypatch.setattr(step_size_search, "resolved", lambda config, env: config)

    def made(experiment, configs, call, store, **more):
        records = []
        for config in configs:
            loss = abs(math.log(config["lr"])) + 1
            result = {"status": "out_of_budget", "forwards": 2 * config["steps"]}
            result |= {"slope": slope} if config["role"] == "measure" else {"dev": {"loss": loss}}
            records.append(Record.of(experiment, config, result))
        asked.extend(configs)
        return records

    asked = []
    monkeypatch.setattr(step_size_search, "sweep", made)
    base = plan.tuning_runs(PRESET, dataclasses.replace(HELENE, method=method), "m", "cpu")[0]
    base = dataclasses.replace(base, hyper={"floor": 2.0} if method == "helene" else {})
    found = step_size_search.tune(base, 1e-7, 1000, environment(toy_data), None)
    assert [config["role"] for config in asked] == ["measure"] * (method == "helene") + ["tune"] * 7
    unit = 1e-7 * (natural_step.denominator("helene", slope, 16, {"floor": 2.0}) if method == "helene" else 1.0)
    assert min(config["lr"] for config in asked if config["role"] == "tune") == pytest.approx(0.01 * unit, rel=5e-3)
    assert 960 < found.forwards <= 1000
    assert all(config["hyper"] == base.hyper for config in asked if config["role"] == "tune")


def test_the_grid_is_in_units_of_the_rows_that_a_batch_has(toy_data, tmp_path):
    """A few-shot split of 32 rows cannot fill a batch of 64; h goes with the rows it is made of."""
    asked, there = ({"mean_square": 1e4, "dimension": 1e6, "batch_size": size} for size in (64, 32))
    bare = {"mean_square": 1e4, "dimension": 1e6}

    def of(slope, size, **hyper):
        return natural_step.denominator("helene", slope, size, hyper)

    assert of(there, 64) == of(bare, 32)
    assert of(asked, 64) == of(bare, 64)
    assert of(there, 64, batch_size=64) == of(bare, 64)
    ratio = of(asked, 64) / of(there, 64)
    assert 1.3 < ratio < 2**0.5 * (1 + 1e-9), "half the rows are a factor of up to the square root of two"


@pytest.mark.parametrize(
    ("method", "steps", "expected"),
    [
        ("mezo", 20, 40),
        ("zo-sgd-cons", 20, 100),
        ("fzoo", 20, 180),
        ("hizoo", 20, 60),
        ("ft-adam", 20, 60),
        ("forward-grad", 20, 40),
        ("helene", 20, 40),
        ("helene-own-batch", 20, 44),
        ("helene-backprop", 20, 46),
    ],
)
def test_forwards_are_the_methods_own(method, steps, expected):
    at = methods.forwards(method, {})
    assert sum(at(step) for step in range(1, steps + 1)) == expected
    with pytest.raises(ValueError, match="depend on the model's layers"):
        methods.forwards("mezo", {"direction_per_layer": True})


def test_a_step_size_whose_run_was_lost_before_it_learned_is_never_the_best(toy_data, monkeypatch):
    """Its dev loss is that of the model as it was."""
    monkeypatch.setattr(step_size_search, "resolved", lambda config, env: config)

    def made(experiment, configs, call, store, **more):
        def result(lr):
            lost = {"status": "non_finite", "message": f"lost with {lr:g}", "dev": {"loss": 1.0}, "best_step": 0}
            if largest is None:
                return {"status": "error", "message": "ValueError: no such head"}
            return lost if lr > largest else {**lost, "status": "out_of_budget", "dev": {"loss": 1.0 + lr}}

        return [Record.of(experiment, config, result(config["lr"])) for config in configs]

    monkeypatch.setattr(step_size_search, "sweep", made)
    base = plan.tuning_runs(PRESET, dataclasses.replace(HELENE, method="mezo"), "m", "cpu")[0]
    largest = 1.0
    assert step_size_search.tune(base, 1.0, 3000, environment(toy_data), None).lr == pytest.approx(0.0032)
    largest = 0.0
    with pytest.raises(ValueError, match=r"no step size gave a dev loss of its own: lost with 0\.01; try smaller ones"):
        step_size_search.tune(base, 1.0, 3000, environment(toy_data), None)
    largest = None
    with pytest.raises(ValueError, match="all 4 runs failed: ValueError: no such head"):
        step_size_search.tune(base, 1.0, 3000, environment(toy_data), None)


@pytest.mark.parametrize("method", ["zo-sgd-cons", "fzoo", "helene-own-batch"])
def test_tuning_keeps_to_its_budget_whatever_a_step_costs(method, toy_data, monkeypatch):
    monkeypatch.setattr(step_size_search, "resolved", lambda config, env: config)
    asked, at = [], methods.forwards(method, {})

    def made(experiment, configs, call, store, **more):
        asked.extend(configs)
        results = []
        for config in configs:
            cost = sum(at(step) for step in range(1, config["steps"] + 1))
            result = {"status": "out_of_budget", "forwards": cost, "dev": {"loss": 1.0}}
            if config["role"] == "measure":
                result = {"status": "out_of_budget", "forwards": 20, "slope": {"mean_square": 1e4, "dimension": 1e6}}
            results.append(Record.of(experiment, config, result))
        return results

    monkeypatch.setattr(step_size_search, "sweep", made)
    base = plan.tuning_runs(PRESET, dataclasses.replace(HELENE, method=method), "m", "cpu")[0]
    found = step_size_search.tune(base, 1e-7, 3000, environment(toy_data), None)
    assert 3000 - 7 * at(1) - 3 * 9 < found.forwards <= 3000
    with pytest.raises(ValueError, match="forwards must be at least"):
        step_size_search.tune(base, 1e-7, 12 * sum(at(step) for step in range(1, 11)) - 1, environment(toy_data), None)


@pytest.mark.parametrize("method", [m for m in methods.METHODS if not methods.is_first_order(m)])
def test_methods_that_are_said_to_be_captured_are_those_that_the_engine_captures(method):
    model = torch.nn.Linear(3, 1)
    optimizer = methods.build(method, model, {"lr": 1e-3}, seed=0, batch_size=4, steps=10)
    taken = isinstance(optimizer, GroupedMeZO | ForwardGrad | FZOO)  # by an engine of its own
    assert methods.captured(method) == (taken or reasons.plain(model, optimizer.plan()) == "")
