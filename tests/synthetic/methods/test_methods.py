"""Methods: a contract for all of them, and relations that pin down each control and rival."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helene.optimizers import ZOAdam, ZOSophia
from synthetic.analysis.results import TITLES
from synthetic.design import FIRST_ORDER, spaces, trials
from synthetic.methods import METHODS
from synthetic.methods.scale import scale_of
from synthetic.problems import build
from synthetic.problems.starts import starts
from synthetic.simulation.simulator import simulate

LOG_COSH = {"kind": "log_cosh", "layers": [[2, 6], [1, 4]], "spectrum": {"levels": [1.0, 3.0], "factors": [1.0, 20.0]}}
IRIS = {"kind": "regression", "layers": [[2, 6]], "data": "iris", "l2": 0.1}
COUPLED = {"kind": "coupled", "layers": [[3, 4]], "spectrum": {"levels": [1.0, 2.0]}, "nu": 1.8}
HELENE = {"beta1": 0.9, "beta2": 0.99, "interval": 5, "gamma": 1.0, "batch_size": 1, "denominator_eps": 1e-12}


def gaps(name, option, spec=LOG_COSH, steps=40, seeds=(1, 2), probe=None):
    problem = build(spec)
    x0 = starts(problem, "coordinate", 1.0, seeds)
    setting = METHODS[name].settings(option, scale_of(problem, x0[0], 1e-2), problem)
    out = simulate(
        problem,
        METHODS[name],
        x0,
        seeds,
        [setting],
        target=1e-9,
        budget=steps,
        dtype=torch.float64,
        probe=probe,
        trace=True,
    )
    return out.gaps[..., 0]


@pytest.mark.parametrize("spec", [LOG_COSH, IRIS, COUPLED], ids=["log_cosh", "iris", "coupled"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_lowers_the_loss_or_says_why_not(name, spec):
    """Some trial of its own space brings the gap to a tenth; same seeds give the same bits."""
    problem, method = build(spec), METHODS[name]
    seeds = [1, 2, 3]
    x0 = starts(problem, "coordinate", 0.5, seeds)
    options = trials(spaces()[name])
    if reason := method.supports(problem, options[0]):
        assert "choose one" in reason
        return
    scale = scale_of(problem, x0[0], 1e-1)
    settings = [method.settings(option, scale, problem) for option in options]
    twice = [
        simulate(problem, method, x0, seeds, settings, target=1e-1, budget=4000, dtype=torch.float64, race=1.5)
        for _ in range(2)
    ]
    assert np.isfinite(np.median(twice[0].steps, axis=0)).any()
    np.testing.assert_array_equal(twice[0].steps, twice[1].steps)
    assert (name in FIRST_ORDER) == (method.directions == "none"), "what sees gradients draws no directions"
    assert name in TITLES
    forwards = method.forwards(problem.layers.n)
    assert forwards is None or forwards >= 2


def test_controls_that_change_nothing_change_nothing():
    """With the neutral value of what it changes, each control is the method it controls."""
    floor = {"q": 1.0, "floor_ratio": 0.1, **HELENE}
    np.testing.assert_allclose(gaps("helene_layer_floors", {**floor, "p": 0.0}), gaps("helene", floor), rtol=1e-12)
    mezo = gaps("mezo", {"q": 1.0})
    np.testing.assert_allclose(gaps("mezo_layer_steps", {"q": 1.0, "p": 0.0}), mezo, rtol=1e-12)
    np.testing.assert_allclose(gaps("mezo_growing", {"q": 1.0, "growth": 1.0}), mezo, rtol=1e-12)
    np.testing.assert_allclose(gaps("heavy_ball", {"q": 1.0, "beta1": 0.0}), mezo, rtol=1e-12)
    one = {**LOG_COSH, "layers": [[1, 8]], "spectrum": {"levels": [1.0]}}
    np.testing.assert_allclose(gaps("per_layer", {"q": 1.0}, one), gaps("mezo", {"q": 1.0}, one), rtol=1e-12)
    np.testing.assert_allclose(gaps("per_layer_in_turn", {"q": 1.0}, one), gaps("mezo", {"q": 1.0}, one), rtol=1e-12)


def test_controls_that_change_something_do():
    floor = {"q": 1.0, "floor_ratio": 0.02, **HELENE}
    helene = gaps("helene", floor)
    for name in ("helene_mean", "helene_shuffled"):
        assert not np.allclose(gaps(name, floor), helene, rtol=1e-3), name
    assert not np.allclose(gaps("helene_layer_floors", {**floor, "p": 1.0}), helene, rtol=1e-3)


def test_a_high_floor_makes_helene_and_its_controls_heavy_ball():
    """ALG-reduce: where h <= λ everywhere HELENE is heavy ball, whatever h is (no anneal: its factor aside)."""
    problem = build(LOG_COSH)
    x0 = starts(problem, "coordinate", 1.0, (1, 2))
    scale = scale_of(problem, x0[0], 1e-2)
    setting = METHODS["helene"].settings({"q": 1.0, "floor_ratio": 1e6, **HELENE}, scale, problem)
    setting["horizon"] = math.inf
    common = {"target": 1e-9, "budget": 40, "dtype": torch.float64, "trace": True}
    helene = simulate(problem, METHODS["helene"], x0, (1, 2), [setting], **common).gaps[..., 0]
    np.testing.assert_allclose(helene, gaps("heavy_ball", {"q": 1.0, "beta1": 0.9}), rtol=1e-9)


def test_batch_size_and_gamma_only_rescale():
    """B, λ and lr scaled together, or gamma and lr, leave the path: the floor's ratio to B‖g_0‖² says it all."""
    problem = build(LOG_COSH)
    x0 = starts(problem, "coordinate", 1.0, (1, 2))
    setting = METHODS["helene"].settings(
        {"q": 1.0, "floor_ratio": 0.02, **HELENE}, scale_of(problem, x0[0], 1e-2), problem
    )
    setting["denominator_eps"] = 0.0

    def path(**changed):
        common = {"target": 1e-9, "budget": 40, "dtype": torch.float64, "trace": True}
        return simulate(problem, METHODS["helene"], x0, (1, 2), [{**setting, **changed}], **common).gaps

    plain = path()
    larger = path(batch_size=8, floor=8 * setting["floor"], lr=8 * setting["lr"])
    np.testing.assert_allclose(larger, plain, rtol=1e-9)
    np.testing.assert_allclose(path(gamma=0.25, lr=0.25 * setting["lr"]), plain, rtol=1e-9)


@pytest.mark.parametrize("name", ["zo_adam", "zo_sophia"])
def test_rivals_follow_their_optimizers(name):
    """Oracle: the torch optimizer, a parameter per layer, to the rounding of two losses."""
    problem = build(LOG_COSH)
    x0 = starts(problem, "coordinate", 1.0, [7])
    option = {"q": 0.3, "clip_ratio": 0.5, "beta1": 0.9, "beta2": 0.99, "interval": 5, "denominator_eps": 1e-12}
    setting = METHODS[name].settings(option, scale_of(problem, x0[0], 1e-2), problem)
    out = simulate(
        problem,
        METHODS[name],
        x0,
        [7],
        [setting],
        target=1e-9,
        budget=30,
        dtype=torch.float64,
        probe=1e-3,
        trace=True,
    )
    theta = problem.minimizer + x0[0]
    params = [torch.nn.Parameter(theta[part].clone()) for part in problem.layers.slices()]
    common = {"lr": setting["lr"], "beta1": 0.9, "beta2": 0.99, "denominator_eps": 1e-12, "eps": 1e-3, "seed": 7}
    if name == "zo_adam":
        optimizer = ZOAdam(params, **common)
    else:
        optimizer = ZOSophia(params, gamma=setting["gamma"], batch_size=1, interval=5, clip=1.0, **common)
    for t in range(30):
        flat = torch.cat([p.detach() for p in params])
        gap = problem.gap(problem.features(flat - problem.minimizer)).item()
        assert math.isclose(out.gaps[t, 0, 0], gap, rel_tol=1e-8), t
        optimizer.step(lambda: problem.loss(torch.cat(params)))


@pytest.mark.parametrize("spec", [LOG_COSH, IRIS, COUPLED, {**IRIS, "data": "digits_16_parity", "layers": [[2, 8]]}])
def test_diagonal_is_that_of_the_hessian(spec):
    problem = build(spec)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, problem.layers.d)))
    expected = problem.hessian(x).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(problem.diagonal(problem.features(x)), expected, rtol=1e-11, atol=1e-14)
