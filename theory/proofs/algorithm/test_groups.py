"""Checks of ``proofs/algorithm/groups.md``; the letters are those of the page."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction as F

import numpy as np
import pytest
import sympy as sp
import torch

from helene.evaluation.directions import Target
from helene.evaluation.grouped.factors import Factors
from helene.steps.gradient_noise import gain
from theory.curvature.moments import gaussian_mean
from theory.proofs.algorithm.groups import kappa, predicted_steps, second_moment, steps_to


def drawn(shape, rank):
    """z of a matrix in symbols, and these."""
    names = [sp.symbols(f"{side}{k}_:{size}") for k in range(rank) for side, size in zip("uv", shape, strict=True)]
    pairs = list(zip(names[::2], names[1::2], strict=True))
    z = sum((sp.Matrix(u) * sp.Matrix(v).T for u, v in pairs), sp.zeros(*shape)) / sp.sqrt(rank)
    return z, [s for group in names for s in group]


def signs_mean(polynomial, symbols):
    """The mean of a polynomial in independent signs: odd powers vanish, even ones are 1."""
    terms = sp.Poly(sp.expand(polynomial), *symbols).terms()
    return sp.expand(sum(c for powers, c in terms if all(p % 2 == 0 for p in powers)))


MEANS = {False: gaussian_mean, True: signs_mean}
DRAWS = {False: "normal draws", True: "signs"}


def inner(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("shape", "rank", "signs"),
    [
        pytest.param(shape, rank, signs, id=f"{shape[0]} x {shape[1]}, rank {rank}, {DRAWS[signs]}")
        for shape, rank in (((1, 2), 1), ((2, 3), 1), ((2, 2), 2), ((1, 2), 3))
        for signs in DRAWS
    ],
)
def test_a_constants(shape, rank, signs):
    """Exact: two blocks, a matrix and a vector of two; E cz = g too."""
    z, symbols = drawn(shape, rank)
    vector = sp.symbols("w_:2")
    g, h = sp.Matrix(*shape, sp.symbols(f"g_:{shape[0] * shape[1]}")), sp.symbols("h_:2")
    c, mean = inner(z, g) + inner(vector, h), MEANS[signs]
    everything = [*symbols, *vector]
    square = inner(z, z) + inner(vector, vector)
    d = shape[0] * shape[1] + 2
    own, other = (sp.nsimplify(kappa(s, rank, signs)) for s in (shape, (2,)))
    expected = (d + own) * inner(g, g) + (d + other) * inner(h, h)
    assert sp.expand(mean(sp.expand(c**2 * square), everything) - expected) == 0
    assert sp.expand(mean(sp.expand(c * z[0, 0]), everything) - g[0, 0]) == 0
    assert sp.expand(mean(sp.expand(c * vector[1]), everything) - h[1]) == 0


def test_a_is_the_law_that_the_optimizer_draws():
    """50,000 groups of `helene.evaluation.grouped.factors`: moments to 6 standard errors; normals, signs, rank 3."""
    target = Target(torch.nn.Parameter(torch.zeros(4, 5).double()), 7, "w")
    g = torch.linspace(-1.0, 1.0, 20).double().view(4, 5)
    for rank, signs in ((1, False), (1, True), (3, False)):
        left, right = Factors([target], groups=50_000, rank=rank, signs=signs).draw(1, 1).of(0)
        z = torch.einsum("gkp,gkq->gpq", left, right) / math.sqrt(rank)
        c = (z * g).sum(dim=(1, 2))
        square = c.square() * z.square().sum(dim=(1, 2))
        estimate = c[:, None, None] * z
        for found, expected in ((square, (20 + kappa((4, 5), rank, signs)) * g.square().sum()), (estimate, g)):
            error = found.std(dim=0) / 50_000**0.5
            assert ((found.mean(dim=0) - expected).abs() <= 6 * error).all()


def test_b_groups():
    """Exact, signs in two dimensions, a population of two gradients: every direction and every batch of four."""
    population = [(F(3), F(0)), (F(-1), F(2))]
    mean = tuple(sum(g[j] for g in population) / 2 for j in range(2))
    squared = sum(x * x for x in mean)
    spread = sum((g[j] - mean[j]) ** 2 for g in population for j in range(2)) / 2
    signs = list(itertools.product((F(1), F(-1)), repeat=2))
    for groups in (1, 2, 4):
        total, count, each = F(0), 0, 4 // groups
        for batch in itertools.product(population, repeat=4):
            for zs in itertools.product(signs, repeat=groups):
                estimate = [F(0), F(0)]
                for k, z in enumerate(zs):
                    c = sum(inner(z, g) for g in batch[k * each : (k + 1) * each]) / each
                    estimate = [e + c * x / groups for e, x in zip(estimate, z, strict=True)]
                total, count = total + sum(e * e for e in estimate), count + 1
        assert total / count == 2 * (squared / groups + spread / 4) + (1 - F(1, groups)) * squared
        predicted = second_moment(2, kappa((2,), signs=True), groups, 4, float(spread / squared))
        assert float(total / count / squared) == pytest.approx(predicted, rel=1e-12)


@pytest.mark.parametrize("signs", DRAWS, ids=DRAWS.get)
def test_c_curvature(signs):
    """Exact, on 2 x 2, with general symmetric A and C."""
    z, symbols = drawn((2, 2), 1)
    g = sp.Matrix(2, 2, sp.symbols("g_:4"))
    a, b, c, e, f, h = sp.symbols("a b c e f h")
    left, right = sp.Matrix([[a, b], [b, c]]), sp.Matrix([[e, f], [f, h]])
    form = (z.T * left * z * right).trace()
    exact = MEANS[signs](sp.expand(inner(z, g) ** 2 * form), symbols)
    off_left, off_right = (x - sp.diag(*x.diagonal()) if signs else x for x in (left, right))
    expected = left.trace() * right.trace() * inner(g, g)
    expected += 2 * right.trace() * (g.T * off_left * g).trace() + 2 * left.trace() * (g * off_right * g.T).trace()
    expected += 4 * (g.T * off_left * g * off_right).trace()
    assert sp.expand(exact - expected) == 0


def test_d_best_step_gain_and_limit():
    """The parabola's least value; the ratio of two counts tends to the gain that the optimizer tells."""
    eta, m, lam = sp.symbols("eta M lambda", positive=True)
    rate = 1 - 2 * eta * lam + eta**2 * lam**2 * m
    [best] = sp.solve(sp.diff(rate, eta), eta)
    assert best == 1 / (lam * m)
    assert sp.simplify(rate.subs(eta, best) - (1 - 1 / m)) == 0
    d, k, g, n, b = sp.symbols("d kappa G nu B", positive=True)
    moment = (d + k) * (1 / g + n / b) + 1 - 1 / g
    assert sp.simplify(sp.limit(moment.subs(g, 1) / moment, d, sp.oo) - (1 + n / b) / (1 / g + n / b)) == 0
    for groups, noise in itertools.product((1, 2, 8, 16), (0.0, 5.0, 36.0)):
        ratio = second_moment(1e12, 0, 1, 16, noise) / second_moment(1e12, 0, groups, 16, noise)
        assert ratio == pytest.approx(gain(groups, 16, noise), rel=1e-9)
        assert float(moment.subs({d: 50, k: 6, g: groups, n: noise, b: 16})) == pytest.approx(
            second_moment(50, 6, groups, 16, noise)
        )


@pytest.mark.parametrize(
    ("groups", "noise", "signs", "sides"),
    [
        (1, 0.0, False, (8, 16, 32)),
        (16, 0.0, False, (8, 16, 32)),
        (1, 16.0, False, (8, 16)),
        (4, 16.0, True, (8, 16)),
        (16, 16.0, False, (8, 16, 32)),
    ],
    ids=[
        "1 group, no noise, normal draws",
        "16 groups, no noise, normal draws",
        "1 group, noise 16, normal draws",
        "4 groups, noise 16, signs",
        "16 groups, noise 16, normal draws",
    ],
)
def test_e_the_count_is_proportional_to_the_moment(groups, noise, signs, sides):
    """Median of 7 runs at sides 8, 16 and, but for two, 32, to a gap of 1e-4.

    The logarithm of a step's factor has a variance of about 10 / M² (fourth moments of a slope), so that its mean is
    off by 5 / M of itself, and a count by √(10 / (M ln 10⁴)), the median of 7 by half of that: 3 standard errors.
    """
    for side in sides:
        moment = second_moment(side**2, kappa((side, side), 1, signs), groups, 16, noise)
        runs = steps_to(1e-4, side, groups, 16, noise, 7, signs=signs)
        ratio = float(np.median(runs)) / predicted_steps(1e-4, moment)
        assert abs(ratio - 1.0) <= 5 / moment + 1.5 * math.sqrt(10 / (moment * math.log(1e4))), (side, ratio)
        assert side < 32 or abs(ratio - 1.0) <= 0.05


def test_f_one_law_of_slopes_for_two_noises():
    """Exact: rank one in signs, 2 x 2, one example a group: laws of c agree where ν is 0 and where it is infinite."""
    e = ((F(1), F(2)), (F(-1), F(3)))
    signs = (F(1), F(-1))

    def law(flips):
        found: dict[F, int] = {}
        for u in itertools.product(signs, repeat=2):
            for v in itertools.product(signs, repeat=2):
                for flip in flips:
                    c = flip * sum(u[i] * e[i][j] * v[j] for i in range(2) for j in range(2))
                    found[c] = found.get(c, 0) + (2 if len(flips) == 1 else 1)
        return found

    assert law((F(1),)) == law(signs)


def test_f_second_moments_tell_one_number():
    """E c² of two pairs (|ḡ|², tr Σ) agree at one m and differ at another."""
    m = 4
    assert 1 + F(8) / m == 2 + F(4) / m
    assert 1 + F(8) / 2 != 2 + F(4) / 2


def test_g_and_h_pairs_of_examples():
    """Exact: signs in three dimensions, all ordered pairs of a population of four, with and without replacement."""
    population = [(F(1), F(0), F(2)), (F(-1), F(3), F(0)), (F(1, 2), F(1, 2), F(-1)), (F(2), F(-2), F(1))]
    n = len(population)
    mean = tuple(sum(g[j] for g in population) / n for j in range(3))
    signal = sum(x * x for x in mean)
    spread = sum((g[j] - mean[j]) ** 2 for g in population for j in range(3)) / n
    with_it, without, squares = [], [], []
    for z in itertools.product((F(1), F(-1)), repeat=3):
        slopes = [inner(z, g) for g in population]
        squares += [c * c for c in slopes]
        for i, j in itertools.product(range(n), repeat=2):
            with_it.append(slopes[i] * slopes[j])
            if i != j:
                without.append(slopes[i] * slopes[j])
    assert sum(with_it) / len(with_it) == signal
    assert sum(squares) / len(squares) == signal + spread
    assert sum(without) / len(without) == signal - spread / (n - 1)


def test_i_fourth_moment_of_a_slope():
    """Exact on 2 x 2: 3|g|⁴ + 6 tr (gᵀg)²; for a matrix of rank one 9|g|⁴."""
    z, symbols = drawn((2, 2), 1)
    g = sp.Matrix(2, 2, sp.symbols("g_:4"))
    gram = g.T * g
    exact = gaussian_mean(sp.expand(inner(z, g) ** 4), symbols)
    assert sp.expand(exact - 3 * gram.trace() ** 2 - 6 * (gram * gram).trace()) == 0
    one = sp.Matrix([1, 2]) * sp.Matrix([[3, -1]])
    values = dict(zip(g, one, strict=True))
    assert exact.subs(values) == 9 * inner(one, one) ** 2
