"""The Gram reduction against the simulator, in law, and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ks_2samp

from synthetic.design import load
from synthetic.methods import METHODS
from synthetic.methods.scale import scale_of
from synthetic.problems import build
from synthetic.problems.starts import starts
from synthetic.run import run
from synthetic.simulation.gram import heavy_ball_counts, isotropic_counts
from synthetic.simulation.simulator import simulate


def simulated(method, option, layers, levels, runs=300):
    problem = build({"kind": "quadratic", "layers": [layers], "spectrum": {"levels": levels}})
    seeds = list(range(runs))
    x0 = starts(problem, "coordinate", 1.0, seeds)
    setting = METHODS[method].settings(option, scale_of(problem, x0[0], 1e-2), problem)
    return simulate(problem, METHODS[method], x0, seeds, [setting], target=1e-2, budget=20000).steps[:, 0]


@pytest.mark.parametrize(("beta", "levels"), [(0.9, [1.0, 2.0, 4.0, 8.0]), (0.5, [1.0]), (0.0, [1.0, 3.0])])
def test_heavy_ball_has_the_simulators_law(beta, levels):
    """Kolmogorov-Smirnov, 300 against 2000 runs; false alarm 1e-4 each."""
    ours = simulated("heavy_ball", {"q": 0.9, "beta1": beta}, [2, 12], levels)
    theirs = heavy_ball_counts(2, 12, levels, beta, [0.9], 1e-2, 2000, race=math.inf)[:, 0]
    assert np.isfinite(ours).all()
    assert ks_2samp(ours, theirs).pvalue > 1e-4
    twin = heavy_ball_counts(2, 12, levels, beta, [0.5], 1e-2, 2000, race=math.inf)[:, 0]
    assert ks_2samp(ours, twin).pvalue < 1e-4, "the test should see half the step size"


@pytest.mark.parametrize("method", ["mezo", "per_layer"])
def test_isotropic_layers_have_the_simulators_law(method):
    ours = simulated(method, {"q": 1.1}, [3, 10], [1.0])
    theirs = isotropic_counts(3, 10, method == "per_layer", [1.1], 1e-2, 2000, race=math.inf)[:, 0]
    assert ks_2samp(ours, theirs).pvalue > 1e-4


def test_layers_of_a_hundred_thousand_follow_the_closed_form():
    """ln 100 / −ln(1 − 1/(d + 2)); log T scatters by 0.66/√d = 0.2 %, so 1 % is far outside."""
    d = 10**5
    count = np.median(isotropic_counts(1, d, False, [1.0], 1e-2, 4))
    assert math.isclose(count, math.log(0.01) / math.log1p(-1 / (d + 2)), rel_tol=0.01)


def test_a_cell_is_tuned_and_judged_like_any_other():
    design = load("full", "noise")
    cell = next(c for c in design.cells if c.family == "gram" and c.config["problem"]["layers"] == [[10, 100]])
    result = run(cell.config)
    assert result["status"] == "reached"
    assert len(result["tuning"]["steps"]) == 24
    assert not result["edge"]
    assert result["problem"]["d"] == 1000


def test_too_small_a_block_is_refused():
    with pytest.raises(ValueError, match="at least 2 coordinates"):
        heavy_ball_counts(1, 4, [1.0, 2.0, 4.0, 8.0], 0.9, [1.0], 1e-2, 2)
