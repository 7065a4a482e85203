"""The batched simulator against the optimizers, against slow loops, and against itself run one at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from helene.noise import normal, parameter_id
from helene.optimizers import Helene, MeZO, ZOMomentum
from synthetic.design import spaces, trials
from synthetic.methods import METHODS
from synthetic.methods.first import TheoremUpdate
from synthetic.methods.scale import predicted_steps, scale_of
from synthetic.problems import build
from synthetic.problems.starts import starts
from synthetic.simulation.simulator import simulate

EPS = 1e-3
SPECS = {
    "log_cosh": {"kind": "log_cosh", "layers": [[3, 8], [1, 5]], "spectrum": {"levels": [1.0, 2.0, 4.0]}},
    "coupled": {"kind": "coupled", "layers": [[3, 4]], "spectrum": {"levels": [1.0, 3.0]}, "nu": 2.0},
    "logistic": {"kind": "regression", "layers": [[2, 8]], "data": "digits_16_parity", "l2": 0.1},
    "softmax": {"kind": "regression", "layers": [[1, 3], [1, 9]], "data": "iris", "l2": 0.1},
}
HELENE = {"beta1": 0.9, "beta2": 0.99, "interval": 10, "gamma": 1.0, "batch_size": 1, "denominator_eps": 1e-12}


def settings_of(name, problem, x0, options, target=1e-2):
    scale = scale_of(problem, x0[0], target)
    return [METHODS[name].settings(option, scale, problem) for option in options]


def traced(name, problem, x0, seeds, settings, budget, **options):
    """The gap before each step, in float64, of runs that go on to the budget."""
    whole = {"target": 1e-9, "budget": budget, "dtype": torch.float64, "trace": True, **options}
    return simulate(problem, METHODS[name], x0, seeds, settings, **whole).gaps


def optimizer_of(name, params, setting, seed):
    if name == "mezo":
        return MeZO(params, lr=setting["lr"], eps=EPS, seed=seed)
    if name == "per_layer":
        groups = [{"params": [p]} for p in params]
        return MeZO(groups, lr=setting["lr"], eps=EPS, seed=seed, direction_per_layer=True)
    if name == "heavy_ball":
        return ZOMomentum(params, lr=setting["lr"], eps=EPS, seed=seed, momentum=setting["beta1"])
    return Helene(
        params,
        lr=setting["lr"],
        eps=EPS,
        seed=seed,
        anneal_horizon=setting["horizon"],
        batch_size=1,
        floor=setting["floor"],
        interval=setting["interval"],
    )


def loop(name, problem, x0, setting, seed, steps):
    """Gaps before each step of one run of the torch optimizer, a parameter per layer."""
    theta = problem.minimizer + x0
    params = [torch.nn.Parameter(theta[part].clone()) for part in problem.layers.slices()]
    optimizer = optimizer_of(name, params, setting, seed)
    gaps = []
    for _ in range(steps):
        flat = torch.cat([p.detach() for p in params])
        gaps.append(problem.gap(problem.features(flat - problem.minimizer)).item())
        optimizer.step(lambda: problem.loss(torch.cat(list(params))))
    return np.array(gaps)


# Two-point probes of single layers are simulated for separable problems only.
FOLLOWED = [*itertools.product(["mezo", "heavy_ball", "helene"], SPECS), ("per_layer", "log_cosh")]


@pytest.mark.parametrize(("name", "spec"), FOLLOWED)
def test_batched_rows_follow_the_optimizers(name, spec):
    """The same seeds give the same trajectory, in float64 to the rounding of the two losses.

    c = (L⁺ − L⁻) / 2 eps carries an error of about u |L| / eps = 1e-16 · 10 / 1e-3 = 1e-12 relative to slopes of order
    1; a hundred steps that do not amplify it keep it below 1e-9.
    """
    problem = build(SPECS[spec])
    seeds, steps = [3, 2**63 + 4], 40
    x0 = starts(problem, "coordinate", 1.0, [s % 1000 for s in seeds])
    options = [{"q": 1.0, "floor_ratio": ratio, **HELENE} for ratio in (0.03, 3.0)]
    settings = settings_of(name, problem, x0, options)
    gaps = traced(name, problem, x0, seeds, settings, steps, probe=EPS)
    for i, seed in enumerate(seeds):
        for k in range(2 if name == "helene" else 1):
            expected = loop(name, problem, x0[i], settings[k], seed, steps)
            np.testing.assert_allclose(gaps[:steps, i, k], expected, rtol=1e-9, atol=1e-13)
    if name == "helene" and spec == "log_cosh":
        assert not np.allclose(gaps[steps, :, 0], gaps[steps, :, 1], rtol=1e-3), "the floor must matter here"


@pytest.mark.parametrize(
    ("name", "spec", "order"),
    [("mezo", "coupled", 0), ("mezo", "log_cosh", 2), ("mezo", "logistic", 2), ("per_layer", "log_cosh", 2)],
)
def test_exact_slope_equals_the_two_point_one(name, spec, order):
    """To rounding on quadratics, to O(eps²) otherwise: the difference of the paths falls by 4 when eps is halved."""
    problem = build(SPECS[spec])
    x0 = starts(problem, "coordinate", 1.0, [1])
    settings = settings_of(name, problem, x0, [{"q": 1.0}])

    def gaps(probe):
        return traced(name, problem, x0, [1], settings, 20, probe=probe)[:, 0, 0]

    errors = [np.abs(gaps(eps) / gaps(None) - 1.0).max() for eps in (2e-2, 1e-2)]
    if order == 0:
        assert max(errors) <= 1e-11
    else:
        assert 3.5 <= errors[0] / errors[1] <= 4.5
        assert np.abs(gaps(1e-4) / gaps(None) - 1.0).max() <= 1e-5


@pytest.mark.parametrize("name", ["mezo", "per_layer", "heavy_ball", "gradient_descent", "theorem"])
def test_the_eigenbasis_changes_nothing(name, monkeypatch):
    """A method that commutes with turns gives the same gaps when it is run in the original coordinates.

    Eigenvalues are distinct: where some coincide, the theorem's update depends on the eigenbasis that is chosen.
    """
    problem = build({**SPECS["log_cosh"], "kind": "quartic", "spectrum": {"condition": 5.0}})
    x0 = starts(problem, "coordinate", 0.8, [1, 2])
    options = [{"q": 0.5, "beta1": 0.9, "lr": 0.5}]
    settings = settings_of(name, problem, x0, options)

    def gaps():
        return traced(name, problem, x0, [1, 2], settings, 40)

    turned = gaps()
    monkeypatch.setattr(type(METHODS[name]), "commutes_with_turns", False)
    if name == "theorem":
        monkeypatch.setattr(type(problem), "separable", False)
    np.testing.assert_allclose(gaps(), turned, rtol=1e-8, atol=1e-15)


def test_one_direction_per_layer_against_a_slow_loop():
    """Oracle: each layer moved by its own central difference, in plain numpy."""
    problem = build(SPECS["log_cosh"])
    x0 = starts(problem, "coordinate", 1.0, [5])
    (setting,) = settings_of("per_layer", problem, x0, [{"q": 1.0}])
    gaps = traced("per_layer", problem, x0, [5], [setting], 12)
    theta = problem.minimizer + x0[0]
    for t in range(12):
        assert math.isclose(problem.loss(theta).item(), gaps[t, 0, 0], rel_tol=1e-9)
        moved = theta.clone()
        for i, part in enumerate(problem.layers.slices()):
            z = torch.zeros_like(theta)
            z[part] = normal(5, t + 1, 0, parameter_id(i), 0, part.stop - part.start).double()
            c = (problem.loss(theta + 1e-5 * z) - problem.loss(theta - 1e-5 * z)) / 2e-5
            moved -= setting["lr"] * c * z
        theta = moved


def test_coupled_layers_have_their_own_slopes():
    """On a coupled problem each layer's projected gradient is that of its own block of the gradient."""
    problem = build(SPECS["coupled"])
    x0 = starts(problem, "coordinate", 1.0, [5])
    (setting,) = settings_of("per_layer", problem, x0, [{"q": 0.7}])
    gaps = traced("per_layer", problem, x0, [5], [setting], 5)
    x = x0[0]
    for t in range(5):
        gradient = problem.gradient(problem.minimizer + x)
        z = torch.cat([normal(5, t + 1, 0, parameter_id(i), 0, 4) for i in range(3)]).double()
        x = x - setting["lr"] * problem.layers.spread(problem.layers.sum(gradient * z)) * z
        assert math.isclose(problem.gap(problem.features(x)).item(), gaps[t + 1, 0, 0], rel_tol=1e-9)


def mezo_grid(problem, seeds, exponents):
    x0 = starts(problem, "coordinate", 1.0, seeds)
    return x0, settings_of("mezo", problem, x0, [{"q": 2.0**e} for e in exponents])


def test_first_hits_compaction_and_racing():
    """Rows of a batch end where they end alone; racing changes neither the best median nor counts before its end."""
    problem = build({"kind": "log_cosh", "layers": [[4, 4]]})
    seeds, exponents = [1, 2, 3, 4, 5], [-2.0, -0.5, 0.0, 0.5, 3.0]
    x0, settings = mezo_grid(problem, seeds, exponents)
    common = {"target": 1e-2, "budget": 2000, "dtype": torch.float64}
    batch = simulate(problem, METHODS["mezo"], x0, seeds, settings, **common)
    raced = simulate(problem, METHODS["mezo"], x0, seeds, settings, race=1.5, **common)
    medians = np.median(batch.steps, axis=0)
    assert np.isfinite(medians[:4]).all()
    horizon = math.ceil(1.5 * medians.min())
    kept = np.where(batch.steps <= horizon, batch.steps, np.inf)
    np.testing.assert_array_equal(raced.steps, kept)
    assert np.median(raced.steps, axis=0).argmin() == medians.argmin()
    for i, seed in enumerate(seeds):
        for k in (0, 2, 4):
            alone = simulate(problem, METHODS["mezo"], x0[i : i + 1], [seed], [settings[k]], **common)
            assert alone.steps[0, 0] == batch.steps[i, k]
            assert alone.status[0, 0] == batch.status[i, k]
    traced = simulate(problem, METHODS["mezo"], x0, seeds, settings[:4], trace=True, **{**common, "budget": 400})
    goal = 1e-2 * traced.gaps[0]
    first = np.where((traced.gaps <= goal).any(0), (traced.gaps <= goal).argmax(0), np.inf)
    np.testing.assert_array_equal(first, np.where(batch.steps[:, :4] <= 400, batch.steps[:, :4], np.inf))


@pytest.mark.parametrize("kind", ["quadratic", "coupled"])
def test_blocks_of_steps_are_the_steps(kind, monkeypatch):
    """MeZO on a quadratic by triangular systems and step by step: the same gaps, counts and statuses.

    In float64: runs that diverge amplify a rounding of 1e-16 by up to 1e6, the bound of divergence, in the gap's root.
    """
    problem = build({"kind": kind, "layers": [[4, 24]], "spectrum": {"levels": [1.0, 2.0, 4.0, 8.0]}, "coupling": 0.5})
    seeds, exponents = [1, 2, 3], [-2.0, 0.0, 0.5, 1.0, 2.5]
    x0, settings = mezo_grid(problem, seeds, exponents)
    common = {"dtype": torch.float64}

    def both_ways():
        whole = simulate(problem, METHODS["mezo"], x0, seeds, settings, target=1e-2, budget=3000, race=1.5, **common)
        path = simulate(problem, METHODS["mezo"], x0, seeds, settings, target=1e-9, budget=150, trace=True, **common)
        one = simulate(problem, METHODS["mezo"], x0, seeds, settings[1:2], target=1e-2, budget=3000, **common)
        return whole, path, one

    in_blocks = both_ways()
    monkeypatch.setattr("synthetic.simulation.simulator._BLOCKS_FROM", math.inf)
    monkeypatch.setattr("synthetic.simulation.simulator.descend_block", None)
    by_step = both_ways()
    np.testing.assert_allclose(in_blocks[1].gaps, by_step[1].gaps, rtol=1e-9)
    for a, b in zip(in_blocks, by_step, strict=True):
        np.testing.assert_array_equal(a.steps, b.steps)
        np.testing.assert_array_equal(a.status, b.status)
        np.testing.assert_array_equal(a.stopped, b.stopped)
    assert {"reached", "diverged"} <= set(in_blocks[0].status.ravel())


def test_float32_and_float64_agree():
    """A relative gap of 1e-2 is far above float32's rounding: counts differ in at most a step or two."""
    problem = build({"kind": "quadratic", "layers": [[4, 8]], "spectrum": {"levels": [1.0, 2.0, 4.0, 8.0]}})
    x0, settings = mezo_grid(problem, [1, 2, 3], [0.0])
    found = [
        simulate(problem, METHODS["mezo"], x0, [1, 2, 3], settings, target=1e-2, budget=5000, dtype=dtype).steps
        for dtype in (torch.float32, torch.float64)
    ]
    assert np.abs(found[0] - found[1]).max() <= 2


def status_of(kind, exponent, budget, target=1e-2):
    problem = build({"kind": kind, "layers": [[4, 8]]})
    x0, settings = mezo_grid(problem, [1], [exponent])
    return simulate(problem, METHODS["mezo"], x0, [1], settings, target=target, budget=budget)


def test_statuses_are_told_apart():
    assert status_of("quadratic", 0.0, 2000).status[0, 0] == "reached"
    assert status_of("quadratic", 0.0, 60).status[0, 0] == "out_of_budget"
    diverged = status_of("quadratic", 2.0, 5000)
    assert (diverged.status[0, 0], diverged.steps[0, 0]) == ("diverged", math.inf)
    assert diverged.stopped[0, 0] < 1000
    assert status_of("log_cosh", 2.5, 5000).status[0, 0] == "stalled"
    assert status_of("quartic", 12.0, 5000).status[0, 0] in ("diverged", "non_finite")
    overflow = status_of("quartic", 80.0, 100)
    assert (overflow.status[0, 0], overflow.steps[0, 0]) == ("non_finite", math.inf)


def test_bad_arguments_say_what_is_wrong():
    problem = build({"kind": "quadratic", "layers": [[1, 2]]})
    x0, settings = mezo_grid(problem, [1], [0.0])
    with pytest.raises(ValueError, match="target must be in"):
        simulate(problem, METHODS["mezo"], x0, [1], settings, target=1.0, budget=5)
    with pytest.raises(ValueError, match="budget must be at least one"):
        simulate(problem, METHODS["mezo"], x0, [1], settings, target=0.1, budget=0)
    with pytest.raises(ValueError, match="start must be one of"):
        starts(problem, "corner", 1.0, [1])


@pytest.mark.parametrize("start", ["coordinate", "layer"])
@pytest.mark.parametrize("kind", ["log_cosh", "softplus", "quartic"])
def test_theorem_update_keeps_a_proved_bound(kind, start):
    r"""T <= max_i {32 √d_i G_i / (mu_i R_i²) + 16 √d_i + ln⁺(mu_i R_i² / (16 d_i ε_i)) / ln(4/3)} + 3.

    For separable losses: the repaired theorem (the printed one is wrong in its constants and units); ε shared evenly.
    """
    problem = build({"kind": kind, "layers": [[2, 4], [1, 9]], "spectrum": {"levels": [1.0, 3.0]}})
    x0 = starts(problem, start, 1.5, [1])
    method, target = METHODS["theorem"], 1e-4
    scale = scale_of(problem, x0[0], target)
    setting = method.settings({"lr": 0.5}, scale, problem)
    out = simulate(problem, method, x0, [1], [setting], target=target, budget=10**5, dtype=torch.float64)
    gaps = problem.layers.sum(problem.gap_terms(problem.features(x0)))[0].tolist()
    share = target * sum(gaps) / len(gaps)
    constants = zip(gaps, problem.constants.mu, problem.constants.radius, problem.layers.sizes, strict=True)
    bound = 3 + max(
        32 * math.sqrt(w) * gap / (mu * r * r)
        + 16 * math.sqrt(w)
        + max(0.0, math.log(mu * r * r / (16 * w * share))) / math.log(4 / 3)
        for gap, mu, r, w in constants
    )
    assert out.steps[0, 0] <= bound
    assert predicted_steps(problem, method, {"lr": 0.5}, scale, x0[0], target) >= 0.5 * out.steps[0, 0]


def test_theorem_wants_a_radius_on_quadratics():
    problem = build({"kind": "quadratic", "layers": [[1, 2]]})
    assert "choose one" in TheoremUpdate().supports(problem, {"lr": 0.5})
    assert TheoremUpdate().supports(problem, {"lr": 0.5, "radius": 1.0}) is None


def test_every_method_has_a_search_space():
    assert set(spaces()) == set(METHODS)
    for name, space in spaces().items():
        assert trials(space), name
