"""Predictions of the controls against each other, against closed forms and against the simulator."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from synthetic.control_theory import chain
from synthetic.control_theory.mean_field import Group, mean_field_steps
from synthetic.control_theory.predict import predict_cell
from synthetic.control_theory.second_moments import second_moment_steps
from synthetic.methods import METHODS
from synthetic.methods.scale import scale_of
from synthetic.problems import build
from synthetic.problems.starts import starts
from synthetic.simulation.simulator import simulate

LEVELS = [1.0, 2.0, 4.0, 8.0]


def chain_runs(n, w, per_layer, runs, q=chain.STEP_SIZES, race=1.5):
    """Counts on n equal layers of width w, eigenvalues `LEVELS`, all coordinates at distance 1."""
    layers, size = (n, w / 4) if per_layer else (1, n * w / 4)
    sizes = np.full((layers, 4), size)
    return chain.chain_counts(np.tile(LEVELS, (layers, 1)), sizes, sizes, per_layer, 1e-2, runs, 0, q, race)


def test_isotropic_mean_decays_by_one_minus_one_over_d_plus_two():
    """Closed form: at the best step 1/(d + 2) the mean loss falls by 1 − 1/(d + 2) a step."""
    d, target = 40, 1e-2
    problem = build({"kind": "quadratic", "layers": [[1, d]]})
    x0 = starts(problem, "coordinate", 1.0, [1]).numpy()
    exact = math.log(target) / math.log(1.0 - 1.0 / (d + 2.0))
    assert math.isclose(second_moment_steps(problem, x0, False, target), exact, rel_tol=5e-3)


@pytest.mark.parametrize("per_layer", [False, True])
def test_chain_and_second_moments_agree_in_the_mean(per_layer):
    """For large d the loss hardly scatters, so the chain's median tends to the count of the mean: 3 % at d = 256."""
    median = chain.tuned(chain_runs(4, 64, per_layer, 100))
    problem = build({"kind": "quadratic", "layers": [[4, 64]], "spectrum": {"levels": LEVELS}})
    x0 = starts(problem, "coordinate", 1.0, [1, 2]).numpy()
    assert math.isclose(median, second_moment_steps(problem, x0, per_layer, 1e-2), rel_tol=0.03)


@pytest.mark.parametrize("per_layer", [False, True])
def test_the_diagonal_recursion_is_the_full_one(per_layer, monkeypatch):
    problem = build({"kind": "quadratic", "layers": [[2, 8]], "spectrum": {"levels": LEVELS}})
    x0 = starts(problem, "coordinate", 1.0, range(64)).numpy()
    diagonal = second_moment_steps(problem, x0, per_layer, 1e-2)
    monkeypatch.setattr(type(problem), "separable", False)
    assert math.isclose(second_moment_steps(problem, x0, per_layer, 1e-2), diagonal, rel_tol=1e-6)


@pytest.mark.parametrize("method", ["mezo", "per_layer"])
def test_chain_equals_the_simulator_in_law(method):
    """Kolmogorov-Smirnov on the counts at one step size, 300 against 2000 runs; false alarm 1e-4."""
    n, w, runs = 3, 8, 300
    problem = build({"kind": "quadratic", "layers": [[n, w]], "spectrum": {"levels": LEVELS}})
    seeds = list(range(runs))
    x0 = starts(problem, "coordinate", 1.0, seeds)
    settings = [METHODS[method].settings({"q": 1.1}, scale_of(problem, x0[0], 1e-2), problem)]
    out = simulate(problem, METHODS[method], x0, seeds, settings, target=1e-2, budget=20000)
    counts, twin = (chain_runs(n, w, method == "per_layer", 2000, [q], math.inf)[:, 0] for q in (1.1, 0.95))
    assert np.isfinite(out.steps).all()
    assert ks_2samp(out.steps[:, 0], counts).pvalue > 1e-4
    assert ks_2samp(out.steps[:, 0], twin * 1.1).pvalue < 1e-4, "the test would not see a difference of 10 %"


SMALL = {
    "exact chain": {"kind": "quadratic", "layers": [[2, 4]], "basis": "axes", "spectrum": {"condition": 100.0}},
    "direct draws": {"kind": "log_cosh", "layers": [[2, 4]]},
}


@pytest.mark.parametrize("method", ["mezo", "per_layer"])
@pytest.mark.parametrize("theory", SMALL)
def test_small_cells_are_predicted_in_law(theory, method):
    """d = 8, where means say little of medians: the tuned median of 400 runs within 10 %, some four standard errors."""
    problem, start, seeds = build(SMALL[theory]), {"kind": "coordinate", "size": 2.0}, list(range(400))
    told = predict_cell({"control": method, "problem": SMALL[theory], "start": start, "target": 1e-2})
    x0 = starts(problem, "coordinate", 2.0, seeds)
    scale = scale_of(problem, x0[0], 1e-2)
    settings = [METHODS[method].settings({"q": q}, scale, problem) for q in chain.STEP_SIZES]
    out = simulate(problem, METHODS[method], x0, seeds, settings, target=1e-2, budget=20000, race=1.5)
    assert told["theory"] == theory
    assert math.isclose(np.median(out.steps, axis=0).min(), told["steps"], rel_tol=0.1)
    low, high = told["range"]
    assert low < told["steps"] < high


def test_scatter_is_that_of_choosing_and_judging():
    """Closed forms: one run of one setting scatters as the runs do, and a choice on one run falls on either setting."""
    runs = np.arange(1.0, 1001.0)
    low, high = chain.scatter(runs[:, None], 5, 1, repeats=20000)
    assert abs(low - 25) <= 10  # four standard errors
    assert abs(high - 975) <= 10
    apart = np.stack([np.resize([1.0, 4.0], 100), np.resize([3.0, 2.0], 100)], axis=1)
    assert chain.scatter(apart, 1, 99) == (1.0, 4.0)
    assert chain.scatter(np.stack([runs, 2.0 * runs], axis=1), 999, 999)[1] < 1000


@pytest.mark.parametrize(("kind", "distance"), [("log_cosh", 2.0), ("softplus", 2.0), ("quartic", 1.0)])
def test_mean_field_equals_the_simulator_at_large_d(kind, distance):
    """d = 256, 16 seeds: their median scatters by 0.66 · 1.25 / √(256 · 16) = 1.3 %; within 5 %."""
    spec = {"kind": kind, "layers": [[1, 256]]}
    problem, seeds = build(spec), list(range(16))
    x0 = starts(problem, "coordinate", distance, seeds)
    scale = scale_of(problem, x0[0], 1e-2)
    settings = [METHODS["mezo"].settings({"q": q}, scale, problem) for q in chain.STEP_SIZES[2:]]
    out = simulate(problem, METHODS["mezo"], x0, seeds, settings, target=1e-2, budget=20000, race=1.5)
    start = {"kind": "coordinate", "size": distance}
    told = predict_cell({"control": "mezo", "problem": spec, "start": start, "target": 1e-2})
    assert told["theory"] == "mean field"
    assert math.isclose(np.median(out.steps, axis=0).min(), told["steps"], rel_tol=0.05)


def test_mean_field_of_a_quadratic_is_its_second_moment():
    """On quadratics the mean field is exact in the mean: two groups of coordinates, one direction and one per layer."""
    spec = {"kind": "quadratic", "layers": [[2, 8], [1, 16]], "spectrum": {"levels": [1.0], "factors": [1.0, 5.0]}}
    problem = build(spec)
    x0 = starts(problem, "coordinate", 1.0, [1]).numpy()
    scale = scale_of(problem, torch.from_numpy(x0[0]), 1e-2)
    for per_layer in (False, True):
        anchor = scale.layer_trace if per_layer else scale.trace
        blocks = (0, 1) if per_layer else (0, 0)
        counts = ((8, 2), (16, 1)) if per_layer else ((16, 1), (16, 1))
        groups = [Group(b, c, k, a, 1.0, 1.0) for b, (c, k), a in zip(blocks, counts, (1.0, 5.0), strict=True)]
        best = min(mean_field_steps("quadratic", groups, q / anchor, 1e-2, 1e6) for q in chain.STEP_SIZES)
        assert math.isclose(best, second_moment_steps(problem, x0, per_layer, 1e-2), rel_tol=0.03)


LAYERS_APART = {
    "kind": "log_cosh",
    "spectrum": {"levels": [1.0], "factors": [10.0, 1.0, 0.1]},
    "scales": [0.1, 1.0, 10.0],
    "layers": [[1, 32], [1, 32], [1, 32]],
}


def test_mean_field_of_layers_a_hundred_times_apart():
    """A density that shrinks below a cell stays positive: counts fall like 1/q where steps are small."""
    problem = build(LAYERS_APART)
    x0 = starts(problem, "layer_gap", 4.0, list(range(8)))
    scale = scale_of(problem, x0[0], 1e-2)
    far = problem.features(x0[0])
    groups = [
        Group(i, 32, 1, curvature, 0.1 * 10.0**i, far[part][0].abs().item())
        for i, (curvature, part) in enumerate(zip((10.0, 1.0, 0.1), problem.layers.slices(), strict=True))
    ]
    counts = [mean_field_steps("log_cosh", groups, q / scale.layer_trace, 1e-2, 1e6) * q for q in (0.1, 0.2, 0.4)]
    assert max(counts) < 1.05 * min(counts)


@pytest.mark.skipif("HELENE_DEEP" not in os.environ, reason="make deep: half a minute")
def test_predicted_counts_of_layers_a_hundred_times_apart_are_the_simulators():
    """8 seeds, some 3,000 steps: their median scatters by 0.66 · 1.25 / √(32 · 8) = 5 %; within 15 %."""
    problem, start = build(LAYERS_APART), {"kind": "layer_gap", "size": 4.0}
    x0 = starts(problem, "layer_gap", 4.0, list(range(8)))
    scale = scale_of(problem, x0[0], 1e-2)
    told = predict_cell({"control": "per_layer", "problem": LAYERS_APART, "start": start, "target": 1e-2})
    settings = [METHODS["per_layer"].settings({"q": q}, scale, problem) for q in (1.6, 2.0, 2.5)]
    out = simulate(problem, METHODS["per_layer"], x0, range(8), settings, target=1e-2, budget=8000, race=1.2)
    assert math.isclose(np.median(out.steps, axis=0).min(), told["steps"], rel_tol=0.15)


def test_quadratic_model_of_real_data_is_near_the_simulator():
    """Digits in four layers: the linear theory's count against 10 seeds, both controls, within 15 %."""
    spec = {"kind": "regression", "layers": [[4, 4]], "data": "digits_16_parity", "l2": 0.1}
    problem = build(spec)
    seeds = list(range(30))
    x0 = starts(problem, "coordinate", 0.5, seeds)
    scale = scale_of(problem, x0[0], 1e-2)
    for method in ("mezo", "per_layer"):
        told = predict_cell(
            {"control": method, "problem": spec, "start": {"kind": "coordinate", "size": 0.5}, "target": 1e-2}
        )
        settings = [METHODS[method].settings({"q": 2.0 ** (k / 6)}, scale, problem) for k in range(0, 6)]
        out = simulate(
            problem, METHODS[method], x0, seeds, settings, target=1e-2, budget=5000, race=1.5, dtype=torch.float64
        )
        assert told["theory"] == "quadratic model"
        assert math.isclose(np.median(out.steps, axis=0).min(), told["steps"], rel_tol=0.15), method
