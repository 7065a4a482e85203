"""Predictions of the controls against each other, against closed forms and against the simulator."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from synthetic import predict
from synthetic.controls import predict_cell, second_moment_steps
from synthetic.methods import METHODS
from synthetic.problems import build
from synthetic.scale import scale_of
from synthetic.simulator import simulate
from synthetic.starts import starts

LEVELS = [1.0, 2.0, 4.0, 8.0]


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
    counts = predict.quadratic_counts(4, 64, LEVELS, per_layer, 1e-2, 100)
    problem = build({"kind": "quadratic", "layers": [[4, 64]], "spectrum": {"levels": LEVELS}})
    x0 = starts(problem, "coordinate", 1.0, [1, 2]).numpy()
    assert math.isclose(np.median(counts), second_moment_steps(problem, x0, per_layer, 1e-2), rel_tol=0.03)


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
    chain = predict.quadratic_counts(n, w, LEVELS, method == "per_layer", 1e-2, 2000, step_sizes=[1.1], race=math.inf)
    assert np.isfinite(out.steps).all()
    assert ks_2samp(out.steps[:, 0], chain).pvalue > 1e-4
    twin = predict.quadratic_counts(n, w, LEVELS, method == "per_layer", 1e-2, 2000, step_sizes=[0.95], race=math.inf)
    assert ks_2samp(out.steps[:, 0], twin * 1.1).pvalue < 1e-4, "the test would not see a difference of 10 %"


def test_mean_field_equals_the_simulator_at_large_d():
    """d = 512 log-cosh coordinates: the count is τ d, with a finite-size correction of order 1 / d, within 3 %."""
    problem = build({"kind": "log_cosh", "layers": [[1, 512]]})
    seeds = list(range(8))
    x0 = starts(problem, "coordinate", 2.0, seeds)
    scale = scale_of(problem, x0[0], 1e-2)
    settings = [METHODS["mezo"].settings({"q": 2.0 ** (k / 6)}, scale, problem) for k in (1, 2, 3)]
    out = simulate(problem, METHODS["mezo"], x0, seeds, settings, target=1e-2, budget=20000, race=1.5)
    assert math.isclose(np.median(out.steps, axis=0).min() / 512, predict.log_cosh_time(2.0, 1e-2), rel_tol=0.03)


def test_mean_field_near_the_optimum_is_that_of_a_quadratic():
    """From nearby log-cosh is a quadratic: τ = ln 100 at q = 1; a narrow start in place of a point costs 1 %."""
    assert math.isclose(predict.log_cosh_time(1e-2, 1e-2), math.log(100.0), rel_tol=0.01)


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
