"""Fits against independent oracles: closed forms, numpy's least squares, scipy's maximisers, plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, minimize
from scipy.stats import norm

from helene.lab.scaling.cells import (
    Cells,
    median_interval,
    median_shrinkage,
    percentile_interval,
    ratio_of_medians,
)
from helene.lab.scaling.fits import (
    CandidateLaw,
    compare_laws,
    fit_power_law,
    local_slopes,
)
from helene.lab.scaling.laws import LinearLaw, fit_rows

GRID = [(n, w) for n in (1, 2, 4, 8, 16) for w in (4, 8, 16, 32) if n * w <= 256]
N, W = np.array(GRID, float).T


def grid_cells(log_mean, noise=0.0, seeds=10, cap=None, seed=0):
    """Cells on the n x w grid with log-normal seeds about exp(log_mean), stopped at ``cap``."""
    rng = np.random.default_rng(seed)
    samples = np.exp(log_mean[:, None] + noise * rng.standard_normal((len(N), seeds)))
    caps = None
    if cap is not None:
        caps = np.full(len(N), cap)
        samples = np.where(samples > cap, np.inf, samples)
    return Cells({"max_d": W, "d": N * W, "n": N, "w": W}, samples, caps)


def law(alpha, beta, c=3.0):
    return c + alpha * np.log(W) + beta * np.log(N * W)


# --- cells and medians


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12), st.integers(0, 6))
@settings(deadline=None)
def test_median_is_numpys_in_log_space_and_misses_enter_it(counts, misses):
    seeds = [*map(float, counts), *[math.inf] * misses]
    cells = Cells.of({"x": [1.0, 1.0]}, [seeds, [1.0] * 20], caps=[1e7, 1e7])  # the second row makes nan padding
    logs = np.sort(np.log(seeds))
    low, high = logs[(len(logs) - 1) // 2], logs[len(logs) // 2]
    expected = np.exp((low + high) / 2)
    assert cells.medians[0] == pytest.approx(expected, rel=1e-14)
    assert cells.censored[0] == (2 * misses >= len(seeds))


@pytest.mark.parametrize(
    ("columns", "samples", "caps", "said"),
    [
        ({"d": [1.0, 2.0]}, [[1.0]], None, "d must have one number for each of 1 cells"),
        ({"d": [0.0]}, [[1.0]], None, "d must be positive"),
        ({"d": [1.0]}, [[0.0]], None, r"positive counts .*cells \[0\]"),
        ({"d": [1.0]}, [[math.nan]], None, "positive counts"),
        ({"d": [1.0]}, [[math.inf]], None, "caps must say"),
        ({"d": [1.0]}, [], None, "shape"),
    ],
)
def test_bad_cells(columns, samples, caps, said):
    with pytest.raises(ValueError, match=said):
        Cells.of(columns, samples, caps)


def test_bootstrap_draws_follow_the_exact_law_of_a_resampled_median():
    """Three seeds: of 27 equally likely resamples 7, 13 and 7 have the first, middle and last as median.

    Shares of 40,000 draws; |error| <= 5 standard errors in two shares: false-alarm rate 2 * 6e-7.
    """
    cells = Cells.of({"d": [1.0]}, [[2.0, 8.0, 32.0]])
    draws = cells.bootstrap_log_medians(40_000, np.random.default_rng(0))[:, 0]
    shrink = median_shrinkage(3)
    for place, share in ((2.0, 7 / 27), (8.0, 13 / 27)):
        value = np.log(8.0) + shrink * (np.log(place) - np.log(8.0))
        assert abs(np.mean(np.isclose(draws, value)) - share) < 5 * np.sqrt(share * (1 - share) / 40_000)


def test_bootstrap_respects_padding_and_misses():
    cells = Cells.of({"d": [1.0, 2.0, 3.0]}, [[5.0], [math.inf, math.inf, 2.0], [3.0] * 16], caps=[10, 10, 10])
    draws = cells.bootstrap_log_medians(2000, np.random.default_rng(0))
    assert np.allclose(draws[:, 0], np.log(5))
    assert np.allclose(draws[:, 2], np.log(3))
    # The finite seed is the median when it is drawn at least twice of three times: 7 of 27.
    assert np.mean(np.isfinite(draws[:, 1])) == pytest.approx(7 / 27, abs=5 * 0.0098)


def test_percentile_interval_counts_what_is_unknown_on_both_sides():
    draws = np.arange(1000.0)
    assert percentile_interval(draws) == (24.0, 975.0)
    draws[500:] = np.nan
    assert percentile_interval(draws) == (-math.inf, math.inf)


def test_median_interval_and_ratio():
    seeds = [10.0, 20.0, 30.0, 40.0, 50.0]
    assert median_interval(seeds) == pytest.approx((30.0, 10.0, 50.0))
    assert median_interval([7.0]) == pytest.approx((7.0, 7.0, 7.0))
    assert ratio_of_medians(seeds, [2 * s for s in seeds])[0] == pytest.approx(0.5)
    ratio, low, high = ratio_of_medians([math.inf] * 5, seeds)
    assert (ratio, low, high) == (math.inf, math.inf, math.inf)
    assert ratio_of_medians(seeds, [math.inf] * 5) == (0.0, 0.0, 0.0)
    ratio, low, high = ratio_of_medians([math.inf] * 5, [math.inf] * 5)
    assert math.isnan(ratio)
    assert (low, high) == (0.0, math.inf)


# --- power law


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(-3, 10))
@settings(deadline=None, max_examples=25)
def test_exact_law_is_recovered(alpha, beta, c):
    """Rounding alone: logs below 40, condition number of the centred design below 10, so 1e-12 is 300 ulps."""
    fit = fit_power_law(grid_cells(law(alpha, beta, c), seeds=2), ["max_d", "d"], axes=["n", "w"], num_bootstrap=100)
    assert fit.exponents["max_d"] == pytest.approx(alpha, abs=1e-12)
    assert fit.exponents["d"] == pytest.approx(beta, abs=1e-12)
    assert fit.intercept == pytest.approx(c, abs=1e-11)
    assert fit.residual_sd < 1e-12
    assert max(fit.largest_local_slope_difference.values()) < 1e-11


def test_without_censoring_it_is_least_squares():
    cells = grid_cells(law(0.3, 0.8), noise=0.4)
    fit = fit_power_law(cells, ["max_d", "d"], num_bootstrap=100)
    design = np.column_stack([np.ones(len(W)), np.log(W), np.log(N * W)])
    y = np.log(cells.medians)
    solution, rss, *_ = np.linalg.lstsq(design, y)
    assert [fit.intercept, *fit.exponents.values()] == pytest.approx(solution.tolist(), rel=1e-10)
    assert fit.residual_sd == pytest.approx(np.sqrt(rss[0] / (len(W) - 3)), rel=1e-10)
    assert fit.predict({"max_d": [8.0], "d": [64.0]}) == pytest.approx(np.exp(solution @ [1, np.log(8), np.log(64)]))


def tobit_oracle(design, y, censored):
    """Maximum likelihood by a general-purpose optimiser."""

    def minus_log_likelihood(p):
        z = (y - design @ p[:-1]) / np.exp(p[-1])
        return -np.where(censored, norm.logsf(z), norm.logpdf(z) - p[-1]).sum()

    start = np.append(np.linalg.lstsq(design, y)[0], np.log(0.3))
    options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000}
    return minimize(minus_log_likelihood, start, method="Nelder-Mead", options=options).x[:-1]


def test_with_censoring_it_is_tobit_maximum_likelihood():
    """The optimum is flat to second order: Nelder-Mead at 1e-12 in the value gives parameters to about 1e-5."""
    cells = grid_cells(law(0.3, 0.8), noise=0.5, cap=float(np.exp(np.quantile(law(0.3, 0.8), 0.7))))
    fit = fit_power_law(cells, ["max_d", "d"], num_bootstrap=100)
    assert fit.num_censored == cells.censored.sum() >= 4
    design = np.column_stack([np.ones(len(W)), np.log(W), np.log(N * W)])
    oracle = tobit_oracle(design, cells.log_observed(), cells.censored)
    assert [fit.intercept, *fit.exponents.values()] == pytest.approx(oracle.tolist(), abs=1e-4)


def test_censored_cells_are_neither_dropped_nor_taken_for_their_caps():
    """A flat law but for one wide cell that missed: dropping it says 0, its cap says too little; Tobit says more."""
    columns = {"d": np.array([4.0, 8, 16, 32, 64])}
    samples = np.array([[100.0] * 4, [104.0] * 4, [99.0] * 4, [101.0] * 4, [np.inf] * 4])
    cells = Cells(columns, samples, np.full(5, 400.0))
    slope = fit_power_law(cells, ["d"], num_bootstrap=100).exponents["d"]
    dropped = fit_power_law(cells.where(~cells.censored), ["d"], num_bootstrap=100).exponents["d"]
    capped = fit_power_law(Cells(columns, np.minimum(samples, 400.0)), ["d"], num_bootstrap=100).exponents["d"]
    assert dropped < 0.01 < capped < slope


def test_a_cap_far_below_the_law_tells_nothing():
    exact = law(0.4, 0.7)
    cells = grid_cells(exact, noise=0.05)
    missed = N * W == 256
    samples = np.where(missed[:, None], np.inf, cells.samples)
    low_caps = Cells(cells.columns, samples, np.full(len(W), 2.0))
    fit, without = (fit_power_law(c, ["max_d", "d"], num_bootstrap=100) for c in (low_caps, cells.where(~missed)))
    assert list(fit.exponents.values()) == pytest.approx(list(without.exponents.values()), abs=1e-5)
    assert fit.num_cells == len(W)


@given(st.floats(0.01, 1000), st.randoms())
@settings(deadline=None, max_examples=15)
def test_units_of_t_and_the_order_of_cells_do_not_matter(factor, random):
    cells = grid_cells(law(0.4, 0.7), noise=0.3, cap=2000.0)
    order = list(range(len(W)))
    random.shuffle(order)
    moved = Cells(
        {name: column[order] for name, column in cells.columns.items()},
        cells.samples[order] * factor,
        cells.caps[order] * factor,
    )
    one, two = (fit_power_law(c, ["max_d", "d"], axes=["n", "w"], num_bootstrap=100) for c in (cells, moved))
    # The stopping rule of EM (1e-7 in log T, linear convergence) bounds the difference.
    assert list(two.exponents.values()) == pytest.approx(list(one.exponents.values()), abs=1e-5)
    assert two.intercept == pytest.approx(one.intercept + np.log(factor), abs=1e-5)
    assert two.residual_sd == pytest.approx(one.residual_sd, abs=1e-5)
    assert two.largest_local_slope_difference == pytest.approx(one.largest_local_slope_difference)


def test_same_seed_same_numbers():
    cells = grid_cells(law(0.4, 0.7), noise=0.3, cap=2000.0)
    fits = [fit_power_law(cells, ["max_d", "d"], num_bootstrap=200, seed=s) for s in (1, 1, 2)]
    assert fits[0] == fits[1] != fits[2]


def test_combination_is_the_slope_in_width():
    cells = grid_cells(law(0.3, 0.8), noise=0.2)
    fit = fit_power_law(cells, ["max_d", "d"], num_bootstrap=500)
    by_width = fit_power_law(cells, ["w", "n"], num_bootstrap=500)  # T ~ w^(alpha + beta) n^beta, the same model
    assert fit.combination({"max_d": 1, "d": 1}) == pytest.approx((by_width.exponents["w"], *by_width.intervals["w"]))


def test_band_holds_the_fit_and_widens_outside_the_data():
    cells = grid_cells(law(0.0, 1.0), noise=0.4)
    fit = fit_power_law(cells, ["d"], num_bootstrap=500)
    at = {"d": [4.0, 32.0, 1e5]}
    (low, high), middle = fit.band(at), fit.predict(at)
    assert ((low < middle) & (middle < high)).all()
    assert np.argmax(high / low) == 2


@pytest.mark.parametrize("keep", [N == 4, W == 8, N * W == 32], ids=["one n", "one w", "one d"])
def test_a_sweep_along_one_line_cannot_tell_the_exponents_apart(keep):
    cells = grid_cells(law(0.4, 0.7), noise=0.1).where(keep)
    with pytest.raises(ValueError, match="do not determine the exponents of max_d, d; vary each"):
        fit_power_law(cells, ["max_d", "d"])


def test_other_bad_input():
    cells = grid_cells(law(0.4, 0.7))
    with pytest.raises(ValueError, match=r"columns \['d', 'max_d', 'n', 'w'\], got \['trace'\]"):
        fit_power_law(cells, ["trace"])
    with pytest.raises(ValueError, match="num_bootstrap must be at least 100, got 10"):
        fit_power_law(cells, ["d"], num_bootstrap=10)
    all_missed = Cells({"d": np.array([1.0, 2.0])}, np.full((2, 3), np.inf), np.array([5.0, 5.0]))
    with pytest.raises(ValueError, match="0 of 2 cells reached the target"):
        fit_power_law(all_missed, ["d"])
    with pytest.raises(ValueError, match="'linear' with one predictor"):
        CandidateLaw("x", ("d", "n"), "linear")


def test_local_slopes_by_hand():
    """T = n + w on a 2 x 2 grid."""
    n, w = np.array([1.0, 1, 4, 4]), np.array([2.0, 8, 2, 8])
    cells = Cells({"n": n, "w": w}, (n + w)[:, None])
    slopes = local_slopes(cells, "w", ["n", "w"])
    assert np.ravel(slopes) == pytest.approx([4.0, math.log(9 / 3, 4), 4.0, math.log(12 / 6, 4)])
    fit = fit_power_law(cells, ["n", "w"], axes=["n", "w"], num_bootstrap=100)
    assert fit.largest_local_slope_difference["w"] == pytest.approx(math.log(3, 4) - math.log(2, 4))


# --- linear law and comparison


def line(cells):
    """a and b of T = a + b d, from the law's angle and log scale."""
    law = LinearLaw(cells.columns["d"])
    params, _ = fit_rows(law, cells.log_observed()[None], cells.censored[None])
    scale, angle = params[0]
    return np.exp(scale) * np.cos(angle), np.exp(scale) * np.sin(angle) / law.x0


@pytest.mark.parametrize(("a", "b"), [(50.0, 2.5), (0.0, 3.0), (-5.0, 2.0), (300.0, 0.0), (500.0, -1.5)])
def test_exact_line_is_recovered(a, b):
    scale = max(abs(a), abs(b))
    assert line(grid_cells(np.log(a + b * N * W), seeds=1)) == pytest.approx((a, b), abs=1e-9 * scale)


def test_line_is_least_squares_on_logs():
    cells = grid_cells(np.log(40 + 3 * N * W), noise=0.4)
    y = np.log(cells.medians)
    oracle = least_squares(lambda p: np.log(np.maximum(p[0] + p[1] * N * W, 1e-9)) - y, [30, 2], xtol=1e-14, ftol=1e-14)
    assert line(cells) == pytest.approx(tuple(oracle.x), rel=1e-5)


def test_held_out_errors_are_those_of_refitting_without_the_cell():
    cells = grid_cells(law(0.4, 0.7), noise=0.3, cap=2000.0)
    held = compare_laws(cells, [CandidateLaw("both", ("max_d", "d")), CandidateLaw("line", ("d",), "linear")])
    for result in held:
        for i in (0, 5, int(np.flatnonzero(cells.censored)[0])):
            rest = cells.where(np.arange(len(W)) != i)
            at = {name: column[[i]] for name, column in cells.columns.items()}
            if result.name == "both":
                predicted = fit_power_law(rest, ["max_d", "d"], num_bootstrap=100).predict(at)[0]
            else:
                predicted = line(rest) @ np.array([1.0, at["d"][0]])
            miss = cells.log_observed()[i] - np.log(predicted)
            expected = max(miss, 0.0) if cells.censored[i] else miss
            assert result.errors[i] == pytest.approx(expected, abs=1e-5)
        assert result.error == pytest.approx(np.sqrt(np.mean(np.square(result.errors))))


LAWS = [
    CandidateLaw("max d and d", ("max_d", "d")),
    CandidateLaw("linear in d", ("d",), "linear"),
    CandidateLaw("linear in max d", ("max_d",), "linear"),
    CandidateLaw("d", ("d",)),
]


@pytest.mark.parametrize(
    ("truth", "best"),
    [
        (np.log(60 + 2 * N * W), "linear in d"),
        (np.log(60 + 2 * W), "linear in max d"),
        (law(0.5, 0.5), "max d and d"),
    ],
    ids=["linear in d", "linear in max d", "power"],
)
def test_the_true_explanation_wins(truth, best):
    held = compare_laws(grid_cells(truth, noise=0.1), LAWS)
    assert held[0].name == best
    assert held[0].excess == 0.0
    for other in held[1:]:
        assert other.error >= held[0].error
    rivals = [h for h in held if h.name in ("linear in d", "linear in max d") and h.name != best]
    assert all(h.excess > 2 * h.excess_se for h in rivals)


def test_explanation_that_a_single_cell_decides_is_not_trusted():
    """Without the one cell of another width, the exponents are not determined: its error is infinite, not small."""
    keep = (W == 8) | ((W == 16) & (N == 4))
    held = compare_laws(grid_cells(law(0.4, 0.7)).where(keep), [CandidateLaw("both", ("max_d", "d"))])
    assert held[0].error == math.inf
    assert sum(map(math.isinf, held[0].errors)) == 1


def test_seeds_of_all_resamples_of_a_small_cell(monkeypatch):
    """Slow reference: all 4^4 resamples of four seeds have the mean square that the fast draws show (to 5 sd)."""
    seeds = np.log([3.0, 5.0, 11.0, 40.0])
    medians = [np.median(c) for c in itertools.product(seeds, repeat=4)]
    exact = np.mean((np.array(medians) - np.median(seeds)) ** 2) * median_shrinkage(4) ** 2
    cells = Cells.of({"d": [1.0]}, [np.exp(seeds).tolist()])
    squares = (cells.bootstrap_log_medians(20_000, np.random.default_rng(1))[:, 0] - np.median(seeds)) ** 2
    assert abs(squares.mean() - exact) < 5 * squares.std() / np.sqrt(len(squares))
