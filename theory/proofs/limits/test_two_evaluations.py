"""Checks of ``proofs/limits/two_evaluations.md``; the letters are those of the page."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction as F
from random import Random

import numpy as np
import pytest
import sympy as sp
from flint import arb
from scipy.special import digamma, polygamma
from scipy.stats import beta as beta_law

from synthetic.analysis.least_steps import least_mean, least_median, least_share, most_chance
from theory.ledger.montecarlo import assert_law, assert_mean
from theory.ledger.search import survey
from theory.losses.draws import seeded
from theory.proofs import bounds
from theory.proofs.limits import two_evaluations as page
from theory.proofs.limits.two_evaluations import Method
from theory.updates.clipped_newton import Array

FIELD = sp.symbols("x0:3 y0:3 w0:3", real=True)


def test_a_a_reading_is_linear_in_w():
    """Sympy: a loss, a difference and a derivative are x·w, (x − y)·w and v·w plus what the method knows."""
    x, y, w = (sp.Matrix(FIELD[k : k + 3]) for k in (0, 3, 6))

    def loss(point: sp.Matrix) -> sp.Expr:
        return (point - w).dot(point - w) / 2

    start = w.dot(w) / 2
    assert sp.expand(loss(x) - (x.dot(x) / 2 - x.dot(w) + start)) == 0
    assert sp.expand(loss(x) - loss(y) - ((x.dot(x) - y.dot(y)) / 2 - (x - y).dot(w))) == 0
    slope = sum(sp.diff(loss(x), at) * v for at, v in zip(x, y, strict=True))
    assert sp.expand(slope - (y.dot(x) - y.dot(w))) == 0


#: Methods of `helene` with a step size (units of `step_size`) and how many differences a step tells.
REAL = (
    *((method, 1) for method in page.MEASURED),
    (Method("ZOSign", (0.35,)), 1),
    (Method("ZOLion", (0.35,)), 1),
    (Method("ZOSophia", (0.35,), {"batch_size": 1}), 1),
    (Method("ZONewton", (0.3,), {"batch_size": 1, "denominator_eps": 1.0}), 1),
    (Method("Helene", (0.1,), {"anneal_horizon": 9, "batch_size": 1, "curvature": "none"}), 1),
    (Method("MeZO", (1.0,), {"direction_per_layer": True}), 2),
    (Method("FZOO", (0.002,), {"num_directions": 3}), 3),
    (Method("HiZOO", (1.0,), {"smooth": 0.01}), 1),  # its third loss lies on the line of the other two
    (Method("ZOConservative", (1.0,)), 1),  # and so do its five
)
STEPS, DIMENSION, LAYERS = 3, 20, (12, 8)
#: Two runs differ by roundings of their losses, some 1e-15, which a dozen steps of gain below 100 enlarge.
ROUNDING = 1e-9


def mirrored(method: Method, seed: int) -> tuple[page.Family, page.Run, page.Family, page.Run, Array]:
    """A run, what it read, and the same run around the minimizer that differs in the sign of what was not read."""
    family = page.drawn(DIMENSION, LAYERS, seed)
    lr = page.step_size(method, method.lrs[0], family)
    first = page.run(method, family, STEPS, lr, seed)
    read = first.differences(family)
    told = np.linalg.pinv(read) @ (read @ family.w)
    other = family.with_minimizer(2 * told - family.w)
    return family, first, other, page.run(method, other, STEPS, lr, seed), read


def _named(method: Method) -> str:
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in method.kwargs.items())
    return f"{method.name}, {told}" if told else method.name


@pytest.mark.parametrize("index", range(len(REAL)), ids=[_named(method) for method, _ in REAL])
def test_b_and_d_no_optimizer_can_tell_two_minimizers_apart(index):
    """Real optimizers: they read what the page says, walk alike around the mirrored w, and miss one by r_N at least."""
    method, per_step = REAL[index]
    for seed in (1, 2):
        family, first, other, second, read = mirrored(method, seed)
        assert np.linalg.matrix_rank(read) == per_step * STEPS
        for ours, theirs in zip(first.thetas, second.thetas, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=ROUNDING)
        left = 1 - np.sum((np.linalg.pinv(read) @ (read @ family.w)) ** 2)
        assert 0 < left < 1
        assert (first.shares(family)[-1] + second.shares(other)[-1]) / 2 >= left - ROUNDING


def test_b_a_gradient_tells_them_apart():
    """The check above can fail: gradient descent, which reads d numbers a step, walks elsewhere."""
    family, _, other, _, _ = mirrored(page.MEASURED[0], 1)
    ours, theirs = (page.run(Method("SGD", ()), around, 1, 0.1, 1) for around in (family, other))
    assert np.abs(ours.thetas[0] - theirs.thetas[0]).max() > 1e-3


RUNS, SMALL = 4000, 8


def adaptive_residuals(readings: int, seed: int) -> Array:
    """r_N² with 2 G_0 = 1 for directions that depend on all that was read, one row per reading."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((RUNS, SMALL))
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    directions: list[Array] = []
    known, left = np.zeros_like(w), []
    for k in range(readings):
        v = np.roll(known, k, axis=1) ** 2 - 3 * known + np.eye(SMALL)[k] * (1 + np.abs(known.sum(1, keepdims=True)))
        for e in directions:
            v = v - np.sum(v * e, axis=1, keepdims=True) * e
        directions.append(v / np.linalg.norm(v, axis=1, keepdims=True))
        known = known + np.sum(directions[-1] * w, axis=1, keepdims=True) * directions[-1]
        left.append(np.sum((w - known) ** 2, axis=1))
    return np.array(left)


def test_b_and_c_the_law_of_what_is_left():
    """Monte Carlo, adaptive readings, d = 8: r_N² is Beta; the law of one reading more is rejected. Alarm 3e-9."""
    left = adaptive_residuals(6, seed=3)
    for n in (1, 3, 6):
        law = beta_law((SMALL - n) / 2, n / 2)
        assert_law(left[n - 1], law.cdf, f"{n} readings")
    with pytest.raises(AssertionError, match="from its law"):
        assert_law(left[2], beta_law((SMALL - 4) / 2, 2).cdf, "wrong", alarm=1e-12)


def test_c_products():
    """Sympy: the factors multiply to 1 − N/d, and moment by moment to Beta((d − N)/2, N/2)."""
    d, k, N = sp.symbols("d k N", positive=True)
    share = (d - N) / d
    assert sp.simplify(share.subs(N, k) * (1 - 1 / (d - k)) - share.subs(N, k + 1)) == 0
    for m in range(1, 5):

        def moment(a: sp.Expr, b: sp.Expr, power: int = m) -> sp.Expr:
            return sp.prod((a + i) / (a + b + i) for i in range(power))

        whole = moment((d - N) / 2, N / 2)
        factor = moment((d - k - 1) / 2, sp.Rational(1, 2))
        assert sp.simplify(whole.subs(N, k) * factor - whole.subs(N, k + 1)) == 0


def vectors(rng: Random) -> tuple[list[F], list[F]]:
    """a and v in three dimensions."""
    return [F(rng.randint(-3, 3)) for _ in range(3)], [F(rng.randint(-3, 3)) for _ in range(3)]


def product(a: list[F], b: list[F]) -> F:
    """a·b."""
    return sum((x * y for x, y in zip(a, b, strict=True)), F(0))


def guess(pair: tuple[list[F], list[F]], factor: F) -> bool:
    """‖a − v‖² >= factor · (‖v‖² − (v·a)²/‖a‖²), multiplied by ‖a‖²."""
    a, v = pair
    off = [x - y for x, y in zip(a, v, strict=True)]
    return product(off, off) * product(a, a) >= factor * (product(v, v) * product(a, a) - product(a, v) ** 2)


def test_d_and_e_an_output_is_worth_one_reading_at_most():
    """Exact search: the inequality of (e) and the average of (d); twins 1 → 1.05 and without the square fall."""
    statements: dict[str, Callable[[tuple[list[F], list[F]]], bool]] = {
        "(e)": lambda pair: guess(pair, F(1)),
        "(d)": lambda pair: (
            product([x - y for x, y in zip(*pair, strict=True)], [x - y for x, y in zip(*pair, strict=True)])
            + product([x + y for x, y in zip(*pair, strict=True)], [x + y for x, y in zip(*pair, strict=True)])
            == 2 * product(pair[0], pair[0]) + 2 * product(pair[1], pair[1])
        ),
    }
    twins: dict[str, Callable[[tuple[list[F], list[F]]], bool]] = {
        "(e), 1 → 1.05": lambda pair: guess(pair, F(105, 100)),
        "(e) without the guess": lambda pair: (
            product([x - y for x, y in zip(*pair, strict=True)], [x - y for x, y in zip(*pair, strict=True)])
            >= product(pair[1], pair[1])
        ),
    }
    found = survey(seeded(vectors), statements, twins, num_examples=300)
    assert not found.against
    assert set(found.fallen) == set(twins)


@pytest.mark.parametrize("per_step", [1, 2], ids=["one difference a step", "two differences a step"])
def test_f_and_g_the_method_that_attains_it(per_step):
    """Monte Carlo: reading coordinates and projecting has the mean 1 − N/d and no passage before the bound. 4e-9."""
    d, target, runs = 16, 0.25, 4000
    rng = np.random.default_rng(7)
    w = rng.standard_normal((runs, d))
    shares = np.cumsum(w[:, ::-1] ** 2, axis=1)[:, ::-1]  # what is left after 0, 1, ... readings, times ‖w‖²
    shares = np.c_[shares / shares[:, :1], np.zeros(runs)][:, ::per_step]
    for steps in (2, 5):
        left, n = shares[:, steps], per_step * steps
        assert_mean(left, least_share(d, n), beta_law((d - n) / 2, n / 2).std(), f"{n} readings")
    assert np.all(shares[:, d // per_step] == 0)
    passage = np.argmax(shares <= target, axis=1)
    assert least_median(d, target, per_step) <= np.median(passage) <= least_mean(d, target, per_step) + 1
    cdf = np.cumsum([most_chance(d, per_step * t, target) for t in range(1, d // per_step + 1)])
    slack = np.sqrt(np.log(1e9) / (2 * runs))  # Hoeffding, alarm 1e-9 each
    for t, most in enumerate(cdf, 1):
        assert np.mean(passage <= t) <= most + slack


def test_f_the_chance_is_that_of_one_reading_more():
    """Closed form: `most_chance` is the law of (c) with N + 1; and the median grows like (1 − ε) d."""
    for d, n, target in itertools.product((5, 40), (0, 1, 3), (0.1, 0.9)):
        expected = beta_law((d - n - 1) / 2, (n + 1) / 2).cdf(target)
        assert most_chance(d, n, target) == pytest.approx(expected, rel=1e-12)
    assert most_chance(4, 3, 0.1) == 1.0
    chances = np.cumsum([beta_law((40 - t - 1) / 2, (t + 1) / 2).cdf(0.3) for t in range(1, 38)])
    assert least_median(40, 0.3) == 1 + np.argmax(chances >= 0.5)
    assert least_share(10, 4) == pytest.approx(0.6)
    for d in (64, 256, 1024, 4096):
        for per_step in (1, 2):
            least, mean = least_median(d, 0.1, per_step), least_mean(d, 0.1, per_step)
            assert mean - 2 * d**0.5 / per_step <= least <= mean  # a Beta of d has a spread below √d readings


def test_h_no_constant_saves_max_d():
    """The printed bound and the repaired one with layers of one coordinate, beside the steps that are needed."""
    gap, mu, target = 0.5, 1.0, 0.05
    radius = (2 * gap / mu) ** 0.5  # so that |θ*_i| ≤ R for every member
    printed = gap + np.log(mu * radius**2 / (32 * target))
    for d in (16, 256, 4096):
        needed = least_mean(d, target / gap, per_step=2)
        assert needed > 10 * max(printed, 0.5)
        layer = bounds.LayerStart(1, mu, radius, gap, target / d)
        repaired = bounds.separable_bound([layer])
        assert repaired <= 35 + bounds.PER_LOG * np.log(d / 0.8)
        assert d < 256 or needed > repaired


def test_i_one_direction_a_layer_buys_steps_not_forwards():
    """Counted on the real optimizer: n times the readings and the forwards of MeZO."""
    family = page.drawn(DIMENSION, (5,) * 4, 1)
    lr = page.step_size(page.MEASURED[0], 1.0, family)
    found = [page.run(Method("MeZO", (), {"direction_per_layer": alone}), family, 2, lr, 1) for alone in (False, True)]
    forwards = [len(one.asked[0]) for one in found]
    assert forwards == [2, 8]
    pairs = [[a - b for asked in one.asked for a, b in zip(asked[::2], asked[1::2], strict=True)] for one in found]
    ranks = [np.linalg.matrix_rank(np.array(rows)) for rows in pairs]
    assert ranks == [2, 8]
    for target in (0.1, 0.5):
        steps = [least_mean(DIMENSION, target, per_step) for per_step in (1, 4)]
        assert steps[1] == pytest.approx((1 - target) * DIMENSION / 4)
        assert steps[0] * forwards[0] == pytest.approx(steps[1] * forwards[1])


def spectral(seed: int) -> tuple[float, Array, int]:
    """½ trace of the Gaussian law after random readings, the w_j in order, and how many readings."""
    rng = np.random.default_rng([seed, 9])
    d = int(rng.integers(2, 9))
    n = int(rng.integers(0, d))
    basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
    shares = np.sort(np.exp(rng.normal(0, 2, d)))[::-1]
    covariance = basis @ np.diag(2 * shares) @ basis.T
    read = rng.standard_normal((n, d)) if seed % 3 else basis[:, :n].T  # every third reads the largest
    rest = covariance - covariance @ read.T @ np.linalg.solve(read @ covariance @ read.T, read @ covariance)
    return float(np.trace(rest)) / 2, shares, n


def test_j_the_spectrum():
    """Closed form of Gaussian conditioning: never below Σ_{j>N} w_j, equal where the largest are read."""
    below_twin = 0
    for seed in range(150):
        left, shares, n = spectral(seed)
        bound, room = shares[n:].sum(), 1e-9 * shares.sum()  # condition numbers below 1e6
        assert left >= bound - room
        if seed % 3 == 0:
            assert left <= bound + room
            below_twin += n > 0 and left < 0.99 * shares[max(0, n - 1) :].sum()
    assert below_twin > 10


def test_k_one_step_without_memory():
    """Sympy: no s beats the line search. Monte Carlo: its mean logarithm is −κ_d at any point. Alarm 2e-9."""
    s, c, length, z = sp.symbols("s c L z", positive=True)
    after = length**2 - 2 * s * length * z * c + s**2 * z**2  # ‖θ − s z‖², c the cosine
    assert sp.simplify(after - length**2 * (1 - c**2) - (s * z - length * c) ** 2) == 0
    rng = np.random.default_rng(11)
    for d in (3, 12):
        theta, draws = np.arange(1.0, d + 1), rng.standard_normal((20_000, d))
        cosine = draws @ theta / np.linalg.norm(theta) / np.linalg.norm(draws, axis=1)
        kappa = digamma(d / 2) - digamma((d - 1) / 2)
        sd = float(np.sqrt(polygamma(1, (d - 1) / 2) - polygamma(1, d / 2)))
        assert_mean(np.log1p(-(cosine**2)), -kappa, sd, f"d = {d}")


def test_k_the_first_passage_of_the_line_search():
    """Monte Carlo, d = 10: the mean count exceeds (d − 2) ln(1/ε), by less than a step's logarithm. Alarm 1e-9."""
    d, target, runs = 10, 0.01, 2000
    rng = np.random.default_rng(12)
    log, count = np.zeros(runs), np.zeros(runs)
    while (going := log > np.log(target)).any():
        log[going] += np.log(rng.beta((d - 1) / 2, 0.5, going.sum()))
        count[going] += 1
    kappa = digamma(d / 2) - digamma((d - 1) / 2)
    # Σ X = ln(1/ε) + overshoot; Wald's second identity bounds the spread: sd² E τ / κ² up to the overshoot.
    spread = float(np.sqrt((polygamma(1, (d - 1) / 2) - polygamma(1, d / 2)) * count.mean())) / kappa
    assert count.mean() + 6.2 * spread / runs**0.5 >= np.log(1 / target) / kappa >= (d - 2) * np.log(1 / target)
    assert count.mean() - 6.2 * spread / runs**0.5 <= np.log(1 / target) / kappa + d


def test_l_digamma():
    """Ball arithmetic: κ_d ≤ 1/(d − 2), closing in on it; with 1/(d − 1) the bound would be false."""
    for d in (3, 4, 5, 10, 100, 10_000):
        kappa = (arb(d) / 2).digamma() - (arb(d - 1) / 2).digamma()
        assert kappa < 1 / arb(d - 2)
        assert kappa > 1 / arb(d - 1)


def test_the_record_lies_above_the_bound():
    """The committed means: above 1 − T/d, which is not idle: some mean is within 0.2 of it after the first steps."""
    rows = page.read()
    assert len(rows) == page.DIMENSION
    slack = [
        [float(row[method.name]) - least_share(page.DIMENSION, int(row["step"])) for method in page.MEASURED]
        for row in rows
    ]
    assert np.min(slack) > 0
    assert np.min(slack[7:]) < 0.2


def test_the_record_is_what_the_optimizers_do():
    """MeZO's first two steps again; the record is rounded to four places."""
    rows = page.read()
    assert list(rows[0]) == ["step", *(method.name for method in page.MEASURED)]
    for row, share in zip(rows, page.lowest(page.MEASURED[0], steps=2), strict=False):
        assert float(row["MeZO"]) == pytest.approx(share, abs=1e-4)


def test_the_figure_is_drawn_from_the_record():
    from theory.proofs.limits.draw_two_evaluations import draw

    assert "steps T" in draw().alt
