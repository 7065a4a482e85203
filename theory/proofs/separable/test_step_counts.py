"""The tools that the checks of ``proofs`` stand on: the update, the functions, the record."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction as F

import numpy as np
import pytest
import sympy as sp

from theory.losses.piecewise import Piecewise, even, halving, quadratic
from theory.losses.smooth import LOG_SLOPE, RidgeLoss, Smooth
from theory.proofs.separable import step_counts
from theory.updates.clipped_newton import Evaluation, clipped_newton, layer_slices, step, sweep, theorem_clip

Z = sp.Symbol("z", real=True)
UNIT_CURVATURES = {
    "log_cosh": (1 - sp.tanh(Z) ** 2, -2 * sp.tanh(Z)),
    "softplus": (sp.exp(-Z) / (1 + sp.exp(-Z)) ** 2, (1 - sp.exp(Z)) / (1 + sp.exp(Z))),
    "pseudo_huber": ((1 + Z**2) ** sp.Rational(-3, 2), -3 * Z / (1 + Z**2)),
    "exponential": (sp.exp(Z), sp.Integer(1)),
    "cosh": (sp.cosh(Z), sp.tanh(Z)),
}


def _words(kind: str) -> str:
    return kind.replace("_", " ")


@pytest.mark.parametrize("kind", UNIT_CURVATURES, ids=_words)
def test_log_slopes(kind):
    """Sympy: (ln f'')' in closed form; |tanh| ≤ 1, |(1 − e^z)/(1 + e^z)| ≤ 1, |3z/(1 + z²)| ≤ 3/2 give the table."""
    curvature, slope = UNIT_CURVATURES[kind]
    assert sp.simplify(sp.diff(curvature, Z) / curvature - slope) == 0
    assert sp.expand((1 + Z**2) - 2 * Z - (1 - Z) ** 2) == 0  # hence |2z| ≤ 1 + z²
    values = np.abs(np.array([float(slope.subs(Z, x)) for x in np.linspace(-6, 6, 49)]))
    assert values.max() <= LOG_SLOPE[kind] * (1 + 1e-12)  # rounding of one quotient
    assert values.max() >= 0.99 * LOG_SLOPE[kind]


@pytest.mark.parametrize("kind", [*UNIT_CURVATURES, "quadratic"], ids=_words)
def test_smooth_functions_are_consistent(kind):
    """Beside central differences with h = 1e-5 on values near 1: truncation and rounding stay below 1e-9."""
    f = Smooth(kind, 1.3, 0.8, 0.4)
    assert f(np.array(0.0))[0] == 0
    assert f(np.array(0.0))[1] == 0
    x, h = np.linspace(-1, 1, 9), 1e-5
    np.testing.assert_allclose((f(x + h)[0] - f(x - h)[0]) / (2 * h), f(x)[1], rtol=0, atol=1e-8)
    np.testing.assert_allclose((f(x + h)[1] - f(x - h)[1]) / (2 * h), f(x)[2], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "f",
    [quadratic(3), halving(5, F(1, 8)), halving(3, F(1)), Piecewise((F(-2), F(1), F(3)), (F(1), F(4), F(2)))],
    ids=["quadratic", "halving, δ = 1/8", "halving, δ = 1", "three pieces"],
)
def test_piecewise_in_floats(f):
    """Float64 beside exact rationals, also between and outside the knots; 1e-14 is some ten roundings."""
    points = [F(k, 7) for k in range(-40, 41, 3)]
    exact = [[float(g(x)) for x in points] for g in (f.value, f.slope, f.curvature)]
    for ours, reference in zip(f.in_floats(np.array([float(x) for x in points])), exact, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-13, atol=1e-14)


def test_piecewise_refuses_nonsense():
    with pytest.raises(ValueError, match="one curvature a knot"):
        Piecewise((F(0), F(1)), (F(1),))
    with pytest.raises(ValueError, match="increase strictly"):
        Piecewise((F(1), F(1)), (F(1), F(1)))
    with pytest.raises(ValueError, match="not be negative"):
        Piecewise((F(0),), (F(-1),))
    with pytest.raises(ValueError, match="first knot"):
        even([1], [1])
    with pytest.raises(ValueError, match="ramp"):
        halving(2, F(2))


def test_clipped_newton():
    """Closed form; a diagonal and the same in a rotated basis; without a clip, Newton's direction."""
    sigma, gradient = np.array([1.0, 2.0, 4.0]), np.array([3.0, -0.5, -40.0])
    expected = np.array([2.0, -0.25, -2.0])
    np.testing.assert_array_equal(clipped_newton(gradient, sigma, 2.0), expected)
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    hessian = basis.T @ (sigma[:, None] * basis)
    np.testing.assert_allclose(clipped_newton(basis.T @ gradient, hessian, 2.0), basis.T @ expected, atol=1e-13)
    np.testing.assert_allclose(
        clipped_newton(gradient, hessian, np.inf), np.linalg.solve(hessian, gradient), rtol=1e-12
    )  # condition number 4
    assert theorem_clip(6.0, 9) == 1.0
    with pytest.raises(ValueError, match="clip must be positive"):
        clipped_newton(gradient, sigma, 0.0)
    with pytest.raises(ValueError, match="positive definite"):
        clipped_newton(gradient, -sigma, 1.0)


def test_step_and_sweep_agree_without_coupling_and_differ_with_it():
    assert layer_slices([2, 1]) == [slice(0, 2), slice(2, 3)]
    start = np.array([1.0, -2.0, 0.5])
    for coupling in (0.0, 0.5):
        hessian = np.eye(3) + coupling * (np.ones((3, 3)) - np.eye(3))
        loss = RidgeLoss(np.linalg.cholesky(hessian).T, [Smooth("quadratic")] * 3, 0.0, (2, 1))
        at_once, in_turn = step(loss(start), start, [2, 1], [9.0, 9.0]), sweep(loss, start, [2, 1], [9.0, 9.0])
        assert np.allclose(at_once, in_turn, rtol=0, atol=1e-12) == (coupling == 0.0)
    at = Evaluation(0.0, start, [np.ones(2), np.ones(1)])
    np.testing.assert_array_equal(step(at, start, [2, 1], [9.0, 0.2]), [0.5, -1.0, 0.4])


def test_the_page_of_counts_is_that_of_the_record():
    assert step_counts.PAGE.read_text(encoding="utf-8") == step_counts.summary(step_counts.read())


def test_counting_needs_numpy_alone():
    """Neither torch nor matplotlib, nor what the proofs' searches need."""
    others = {"torch", "matplotlib", "sympy", "hypothesis", "flint", "scipy"}
    code = f"import sys, theory.proofs.separable.step_counts; print(*{others} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_the_figure_is_drawn_from_the_record():
    from theory.proofs.separable.draw_step_counts import draw

    assert "steps counted" in draw("sharper").alt
