"""Checks of ``proofs/curvature/curvature_from_forwards.md``; the letters are those of the page."""

from __future__ import annotations

import json
from fractions import Fraction as F
from pathlib import Path

import numpy as np
import pytest
import sympy as sp
from scipy.stats import beta as beta_law
from scipy.stats import spearmanr

import synthetic
from synthetic.estimators import predicted
from theory.curvature import spsa_curvature as closed
from theory.curvature.moments import gaussian_mean
from theory.ledger.montecarlo import assert_mean
from theory.proofs.curvature import curvature_from_forwards as page
from theory.proofs.curvature.curvature_from_forwards import Estimates, truth

D = 100


def test_a_every_d_and_every_k():
    """Exact rationals: the double sum over pairs of coordinates is the page's formula; its leading term the limit."""
    for squares in ((F(1), F(2), F(5)), (F(3), F(3), F(1), F(7), F(1, 2))):
        d, total = len(squares), sum(squares)
        mean = total / d
        spread = sum((a - mean) ** 2 for a in squares) / d
        pairs = sum(
            closed.difference_variance(squares[j], squares[k], total) for j in range(d) for k in range(d) if j != k
        )
        noise = 6 * total**2 * (1 - F(1, d)) * (1 + F(8, d)) + 20 * spread
        assert pairs / (2 * d**2) == noise
        means = [closed.mean(a, total) for a in squares]
        assert sum((m - sum(means) / d) * (a - mean) for m, a in zip(means, squares, strict=True)) / d == 2 * spread
    d, k, omega, s = sp.symbols("d k omega S", positive=True)
    v = s**2 * omega**2 / d**2
    exact = 4 * v**2 / (v * (4 * v + (6 * s**2 * (1 - 1 / d) * (1 + 8 / d) + 20 * v) / (k * d**2)))
    limit = sp.limit(exact, d, sp.oo)
    assert sp.simplify(limit - 1 / (1 + 3 / (2 * omega**2 * k))) == 0
    coded = page.predicted("A-GNB", 50, 1.5, 3000.0)
    assert coded == pytest.approx(float(limit.subs({omega: 1.5, k: 3000.0 / 50**2})), rel=1e-12)
    w = truth(30)
    assert page.predicted("A-GNB", 30, float(w.std()), 99.0) == pytest.approx(closed.correlation(w, 99.0) ** 2)


def test_b_the_decomposition():
    """One draw: z·g = c, and what remains of h̄/S after C, 2w/d and ξ is small beside 1/d, less so for small d."""
    left = []
    for d in (50, 400):
        w = truth(d)
        gamma, rng = np.sqrt(w / d), np.random.default_rng(1)
        count = 2 * d
        u, zeta = rng.standard_normal(count), rng.standard_normal((count, d))
        z = zeta + np.outer(u - zeta @ gamma, gamma)
        np.testing.assert_allclose(z @ gamma, u, atol=1e-12)
        h = (u[:, None] ** 2 * z**2).mean(axis=0)
        xi = (u[:, None] ** 2 * (zeta**2 - 1)).mean(axis=0)
        rest = h - xi - 2 * w / d
        left.append(float(np.std(rest)) / float(np.std(xi)))
    assert left[1] < left[0] / 1.5
    assert left[1] < 0.3


def found(d: int, count: int, runs: int = 6) -> dict[str, tuple[float, float]]:
    """Mean and standard error of the squared correlations of independent runs."""
    values: dict[str, list[float]] = {name: [] for name in page.LOSSES}
    for seed in range(runs):
        state = Estimates(truth(d), 100 + seed)
        while state.count < count:
            state.draw(min(4096, count - state.count))
        for name, value in state.correlations().items():
            values[name].append(value)
    return {name: (float(np.mean(v)), float(np.std(v, ddof=1)) / runs**0.5) for name, v in values.items()}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("A-GNB", 6000),
        ("squared last", 100),
        ("squared last", 300),
        ("uncentred", 2000),
        ("centred", 50),
        ("centred", 400),
    ],
    ids=lambda value: value if isinstance(value, str) else f"K = {value}",
)
def test_the_limits(name, count):
    """Monte Carlo at d = 100: within 8 standard errors of six runs (t with 5 degrees: 5e-4 each) and 5/d of bias."""
    w = truth(D)
    expected = page.predicted(name, D, float(w.std()), count)
    mean, error = found(D, count)[name]
    assert 0.1 < expected < 0.95
    assert abs(mean - expected) <= 8 * error + 5 / D


def test_the_half_points_of_the_table():
    """Closed forms: ϱ² = ½ where the table says; 0.99 cannot tell coordinates apart beyond d = 11.5 ω."""
    omega, d = 1.5, 10_000
    assert page.predicted("A-GNB", d, omega, 1.5 * (d / omega) ** 2) == pytest.approx(0.5)
    assert page.predicted("uncentred", d, omega, 0.5 * (d / omega) ** 2) == pytest.approx(0.5)
    assert page.predicted("centred", d, omega, d) == pytest.approx(0.5)
    assert page.predicted("squared last", d, 1.0, (2 + 6**0.5) * d) == pytest.approx(0.5)
    last = np.sqrt(predicted.num_effective(0.99) / 1.5)
    assert last == pytest.approx(11.5, abs=0.05)


def test_c_the_measured_ranks():
    """The committed rows of `helene scaling agnb`, d >= 64: medians of ten runs within the spread of the predicted."""
    rows = (Path(synthetic.__file__).parent / "records" / "agnb.jsonl").read_text(encoding="utf-8").splitlines()
    forward = [r for r in map(json.loads, rows) if r.get("config", {}).get("kind") == "forward_only"]
    compared = 0
    for row in forward:
        d = row["config"]["d"]
        if d < 64:
            continue
        told = predicted.rank_correlation(d, row["config"]["decades"], predicted.num_effective(row["config"]["beta2"]))
        ranks = row["result"]["rank"]
        # A rank correlation of d pairs spreads by 1/√d, a median of ten by 0.4 of that; five of these.
        assert abs(np.median(ranks) - told) <= 5 * 0.4 / d**0.5
        compared += 1
    assert compared == 4
    assert predicted.rank_correlation(64, 3.0, 199.0) > 0.15  # so that d = 64 tells it from no correlation at all


def test_c_the_predicted_rank_is_that_of_the_limit_law():
    """Monte Carlo: 2w/d plus normal noise of variance 6/K. Alarm 1e-9."""
    d, count = 60, 199.0
    w, rng = predicted.shares(2.0, d), np.random.default_rng(3)
    drawn = 2 * w / d + rng.standard_normal((2000, d)) * (6 / count) ** 0.5
    ranks = np.array([spearmanr(row, w)[0] for row in drawn])
    assert_mean(ranks, predicted.rank_correlation(d, 2.0, count), 1 / (d - 1) ** 0.5 * 1.5, "rank correlation")


def test_d_the_moments_of_a_square():
    """Sympy: w ± 2√(w/k) ν + ν²/k has, given w, the mean w + 1/k and the variance 4w/k + 2/k²."""
    root, k, nu = sp.symbols("root k nu", positive=True)
    square = sp.expand((root + nu / sp.sqrt(k)) ** 2)
    mean = gaussian_mean(square, (nu,))
    assert sp.simplify(mean - (root**2 + 1 / k)) == 0
    noise = sp.expand(gaussian_mean(square**2, (nu,)) - mean**2)
    assert sp.simplify(noise - (4 * root**2 / k + 2 / k**2)) == 0
    averaged = float(noise.subs({root: 1, k: 300.0 / 50}))  # the mean of w is 1
    assert page.predicted("squared last", 50, 1.5, 300.0) == pytest.approx(1.5**2 / (1.5**2 + averaged))


def test_e_the_centred_estimate():
    """Sympy, a full symmetric 3 × 3 Hessian: mean and variance as on the page; a quartic loss gives another mean."""
    z = sp.symbols("z0:3")
    entries = sp.symbols("a b c p r s")
    h = sp.Matrix(3, 3, [entries[0], *entries[3:5], entries[3], entries[1], entries[5], *entries[4:], entries[2]])
    tau = h.trace() / 3
    rest = h - tau * sp.eye(3)
    vector = sp.Matrix(z)
    estimate = sp.Rational(1, 2) * (z[0] ** 2 - 1) * (vector.T * h * vector - tau * vector.T * vector)[0]
    mean = gaussian_mean(estimate, z)
    assert sp.expand(mean - rest[0, 0]) == 0
    variance = gaussian_mean(sp.expand(estimate**2), z) - mean**2
    norm = sum(entry**2 for entry in rest)
    off = rest[0, 1] ** 2 + rest[0, 2] ** 2
    assert sp.expand(variance - (norm + 13 * rest[0, 0] ** 2 + 8 * off)) == 0


def test_f_the_centred_average_is_a_sample_covariance():
    """One draw, to rounding: h̄ = Ĉ(σ − τ) with τ exact; and its quadratic forms by the law of large numbers."""
    d, count, rng = 30, 40, np.random.default_rng(5)
    sigma = truth(d)
    tau = float(sigma.mean())
    z = rng.standard_normal((count, d))
    q = z**2 @ sigma
    average = (0.5 * (z**2 - 1) * (q - tau * np.sum(z**2, axis=1))[:, None]).mean(axis=0)
    x = (z**2 - 1) / 2**0.5
    np.testing.assert_allclose(average, x.T @ (x @ (sigma - tau)) / count, atol=1e-12)
    entry = sp.symbols("zeta")
    noise, spread = d * sigma.var(), sigma.var()  # Theorem 3: ‖H'‖_F² and var_j H_jj
    assert page.predicted("centred", d, 1.0, count) == pytest.approx(1 / (1 + noise / (count * spread)))
    moments = [gaussian_mean(((entry**2 - 1) / sp.sqrt(2)) ** power, (entry,)) for power in (1, 2)]
    assert moments == [0, 1]


def test_g_the_centres():
    """Sympy, diagonal H: the leading noise of the plain and of the uncentred estimate, by how it grows with d."""
    z, d, q = sp.symbols("z d q", positive=True)
    # one coordinate of curvature 1 among d − 1 others of curvature 1: q = z² + χ²_{d−1}, moments d − 1 and d² − 1
    rest = {1: d - 1, 2: d**2 - 1}

    def mean(expression: sp.Expr) -> sp.Expr:
        terms = sp.Poly(sp.expand(expression), q).terms()
        return sp.expand(sum(gaussian_mean(a, (z,)) * (rest[p] if p else 1) for (p,), a in terms))

    def variance(estimate: sp.Expr) -> sp.Expr:
        return sp.expand(mean(estimate**2) - mean(estimate) ** 2)

    total = z**2 + q
    plain = variance((z**2 - 1) / 2 * (total - d))
    assert sp.limit(plain / d, d, sp.oo) == 1  # ‖H‖_F² = d
    # over the coordinates only what differs counts: ½(z² − 1)q, the common ½q left off
    uncentred = variance((z**2 - 1) / 2 * total)
    leading = sp.limit(uncentred / d**2, d, sp.oo)
    assert leading == sp.Rational(1, 2)
    assert page.predicted("uncentred", 50, 1.5, 300.0) == pytest.approx(1 / (1 + float(leading) * 50**2 / 1.5**2 / 300))


def reads_coordinates(d: int, losses: int, runs: int, seed: int) -> np.ndarray:
    """ϱ² of the method that asks at the coordinate vectors and guesses the mean elsewhere."""
    rng = np.random.default_rng(seed)
    sigma = rng.standard_normal((runs, d))
    sigma -= sigma.mean(axis=1, keepdims=True)
    guess = np.where(np.arange(d) < losses, sigma, 0.0)
    guess -= guess.mean(axis=1, keepdims=True)
    return np.sum(guess * sigma, axis=1) ** 2 / np.sum(guess**2, axis=1) / np.sum(sigma**2, axis=1)


def test_h_no_method_needs_less():
    """Monte Carlo: reading coordinates comes within two losses of the bound, never above. A loss is linear in σ."""
    d, runs = 40, 4000
    sigma, theta = sp.symbols("s0:3"), sp.symbols("t0:3")
    loss = sum(s * t**2 for s, t in zip(sigma, theta, strict=True)) / 2
    assert all(sp.diff(loss, s, other) == 0 for s in sigma for other in sigma)
    for losses in (5, 20):
        shares = reads_coordinates(d, losses, runs, losses)
        law = beta_law((losses + 1) / 2, (d - losses - 2) / 2)
        assert law.mean() == pytest.approx(page.most(d, losses))
        room = law.std() * (2 * np.log(1e9) / runs) ** 0.5 * 2
        assert shares.mean() <= page.most(d, losses) + room
        assert shares.mean() >= page.most(d, losses - 2) - room
    assert page.most(40, 60) == 1.0


def test_h_nothing_measured_exceeds_it():
    """The committed means where the bound is below one, for estimates of H: with 2K losses, L(θ) being known."""
    compared = 0
    for row in page.read():
        losses = 2 * int(row["estimates"])
        if page.most(page.DIMENSION, losses) < 1:
            for name in ("uncentred", "centred"):
                assert float(row[name]) <= page.most(page.DIMENSION, losses)
                compared += 1
    assert compared >= 8


def test_the_record_is_what_the_code_finds():
    """Made again up to 64 estimates, and near its predictions from 64 on."""
    rows = page.read()
    w = truth(page.DIMENSION)
    states = [Estimates(w, seed) for seed in range(page.RUNS)]
    for row in rows[:5]:
        for state in states:
            state.draw(int(row["estimates"]) - state.count)
        for name in page.LOSSES:
            mean = np.mean([state.correlations()[name] for state in states])
            assert float(row[name]) == pytest.approx(mean, abs=1e-4)
    for row in rows[4:]:
        for name in page.LOSSES:
            expected = page.predicted(name, page.DIMENSION, float(w.std()), int(row["estimates"]))
            assert float(row[name]) == pytest.approx(expected, abs=0.06)  # a correlation of 128 pairs, mean of eight


def test_the_figure_is_drawn_from_the_record():
    from theory.proofs.curvature.draw_curvature_from_forwards import draw

    assert "exact losses" in draw().alt
