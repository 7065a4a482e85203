"""Problems: derivatives, minimizers and constants against autograd, scipy, sympy and interval arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy
import torch
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.optimize import minimize

from synthetic.problems import build
from synthetic.problems.layers import Layers
from synthetic.problems.profiles import PROFILES
from synthetic.problems.starts import KINDS, starts

LEVELS = {"levels": [1.0, 2.0, 4.0, 8.0]}
SPECS = [
    {"kind": "quadratic", "layers": [[2, 4], [1, 3]], "spectrum": LEVELS},
    {"kind": "log_cosh", "layers": [[2, 4], [1, 3]], "spectrum": LEVELS, "scales": [0.5, 2.0]},
    {"kind": "softplus", "layers": [[3, 3]], "spectrum": {"condition": 10.0}},
    {"kind": "quartic", "layers": [[1, 5], [2, 2]], "spectrum": {"power": 1.0, "least": 0.1, "factors": [1.0, 30.0]}},
    {"kind": "coupled", "layers": [[3, 3]], "spectrum": LEVELS, "nu": 2.4},
    {"kind": "coupled", "layers": [[1, 2], [2, 4]], "spectrum": {"condition": 5.0}, "nu": 1.3},
    {"kind": "regression", "layers": [[1, 10], [2, 10]], "data": "breast_cancer", "l2": 0.1},
    {"kind": "regression", "layers": [[4, 4]], "data": "digits_16_parity", "l2": 0.1},
    {"kind": "regression", "layers": [[2, 9], [1, 21]], "data": "wine", "l2": 0.1},
    {"kind": "regression", "layers": [[2, 6]], "data": "iris", "l2": 0.05},
]
NAMES = [f"{s['kind']}-{s.get('data', '')}{len(s['layers'])}" for s in SPECS]
SEPARABLE = [s for s in SPECS if s["kind"] in PROFILES]


@pytest.fixture(params=SPECS, ids=NAMES, scope="module")
def problem(request):
    return build(request.param)


def somewhere(problem, seed=0, size=1.0, rows=3):
    return size * torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, problem.layers.d)))


def test_roots_are_of_the_hessian(problem):
    """½‖B x‖² is the gap of a quadratic, to a few roundings; other losses have no such B."""
    x = somewhere(problem)
    if not problem.quadratic:
        with pytest.raises(NotImplementedError, match="is not quadratic"):
            problem.roots(x)
        return
    roots, same = problem.roots(x), x.clone()
    torch.testing.assert_close(0.5 * roots.square().sum(-1), problem.gap(problem.features(x)), rtol=1e-13, atol=0.0)
    assert problem.roots(same, out=same) is same
    assert torch.equal(same, roots)


def test_gradient_and_hessian_are_those_of_the_loss(problem):
    """Oracle: automatic differentiation of ``loss`` alone, float64; rounding grows with the norms involved."""
    x = somewhere(problem)
    theta = problem.minimizer + x
    gradient = torch.func.vmap(torch.func.grad(problem.loss))(theta)
    torch.testing.assert_close(problem.gradient(theta), gradient, rtol=1e-10, atol=1e-12 * gradient.abs().max().item())
    hessian = torch.autograd.functional.hessian(problem.loss, theta[0])
    torch.testing.assert_close(problem.hessian(x)[0], hessian, rtol=1e-9, atol=1e-11 * hessian.abs().max().item())


def test_blocks_are_those_of_the_hessian(problem):
    x = somewhere(problem)
    whole, slices = problem.hessian(x), problem.layers.slices()
    for run, blocks in zip(problem.layers.stretches, problem.blocks(x), strict=True):
        for k in range(run.count):
            part = slices[run.first_layer + k]
            torch.testing.assert_close(blocks[..., k, :, :], whole[..., part, part], rtol=1e-12, atol=1e-14)


def test_the_minimizer_is_one(problem):
    """Oracle: scipy's BFGS from elsewhere ends at the same loss, never below; there the gradient vanishes."""
    assert problem.gradient(problem.minimizer).norm() <= 1e-11
    assert math.isclose(problem.loss(problem.minimizer).item(), problem.minimum, rel_tol=1e-14, abs_tol=1e-14)

    def loss(theta):
        t = torch.from_numpy(theta)
        return problem.loss(t).item(), problem.gradient(t).numpy()

    found = minimize(loss, somewhere(problem, 1, rows=1)[0].numpy(), jac=True, method="BFGS", options={"gtol": 1e-7})
    assert -1e-13 <= found.fun - problem.minimum <= 1e-8


def test_constants_are_those_of_the_hessian_at_the_minimizer(problem):
    constants, layers = problem.constants, problem.layers
    hessian = torch.autograd.functional.hessian(problem.loss, problem.minimizer)
    whole = torch.linalg.eigvalsh(hessian)
    assert math.isclose(constants.smallest, whole[0].item(), rel_tol=1e-8)
    assert math.isclose(constants.largest, whole[-1].item(), rel_tol=1e-8)
    assert math.isclose(constants.trace, hessian.trace().item(), rel_tol=1e-8)
    for i, part in enumerate(layers.slices()):
        block = torch.linalg.eigvalsh(hessian[part, part])
        assert math.isclose(constants.mu[i], block[0].item(), rel_tol=1e-8)
        assert math.isclose(constants.layer_top[i], block[-1].item(), rel_tol=1e-8)
        assert math.isclose(constants.layer_trace[i], block.sum().item(), rel_tol=1e-8)
    assert sum(layers.sizes) == layers.d == hessian.shape[0]
    for x in somewhere(problem, 2, 3.0):
        assert torch.linalg.eigvalsh(problem.hessian(x))[-1] <= constants.smoothness * (1 + 1e-12)


def ratios(problem, layer, x, move):
    """Extreme eigenvalues of H⁻¹H' of the layer's block, after a move of that layer."""
    part = problem.layers.slices()[layer]
    other = x.clone()
    other[part] += move
    before, after = (problem.hessian(v)[part, part].numpy() for v in (x, other))
    found = eigh(after, before, eigvals_only=True)
    return found[0], found[-1]


def test_radius_keeps_the_hessian_within_a_factor_of_two(problem):
    """Assumption 2 in the Loewner form, for 200 random places and moves of the full radius."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        layer = int(rng.integers(problem.layers.n))
        radius = min(problem.constants.radius[layer], 1e3)
        move = rng.standard_normal(problem.layers.sizes[layer])
        move *= radius / np.linalg.norm(move)
        x = torch.from_numpy(rng.standard_normal(problem.layers.d) * 10 ** rng.uniform(-1, 0.3))
        low, high = ratios(problem, layer, x, torch.from_numpy(move))
        assert 0.5 * (1 - 1e-9) <= low <= high <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "quadratic"])
def test_a_larger_radius_would_be_wrong(name):
    """The false twin: 1 % more than the certified radius, and some move breaks Assumption 2."""
    profile = PROFILES[name]
    u = torch.linspace(-30.0, 30.0, 60001, dtype=torch.float64)
    for factor, breaks in ((1.0, False), (1.01, True)):
        found = (profile.curvature(u + factor * profile.radius) / profile.curvature(u)).max().item()
        assert (found > 2.0 * (1 + 1e-9)) == breaks, (factor, found)


def test_radius_of_log_cosh_by_interval_arithmetic():
    """|d/du log sech² u| = 2 |tanh u| <= 2 on boxes that cover the line: moving by (ln 2)/2 costs a factor 2."""
    with ctx.workprec(80):
        for k in range(-80, 80):
            box = arb(k / 2 + 0.25, 0.25)
            assert (2 * box.tanh()).abs_upper() <= 2 * (1 + 1e-15)
    assert abs(2 * PROFILES["log_cosh"].radius - math.log(2)) <= 1e-16


def test_radius_of_quartic_by_algebra():
    """1 + 3(u + r)² <= 2 (1 + 3u²) for all u: a parabola in u whose discriminant vanishes at the radius."""
    u = sympy.symbols("u", real=True)
    r = 1 / sympy.sqrt(6)
    difference = sympy.expand(2 * (1 + 3 * u**2) - (1 + 3 * (u + r) ** 2))
    assert sympy.discriminant(difference, u) == 0
    assert sympy.Poly(difference, u).LC() > 0
    assert math.isclose(PROFILES["quartic"].radius, float(r), rel_tol=1e-15)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_are_normalised_and_accurate_near_zero(name):
    """Oracle: Taylor's first term; values must not lose their relative accuracy to cancellation."""
    profile = PROFILES[name]
    u = torch.tensor([-1e-4, 1e-5, 1e-3], dtype=torch.float64)
    torch.testing.assert_close(profile.value(u), 0.5 * u * u, rtol=1e-3, atol=0)
    torch.testing.assert_close(profile.slope(u), u, rtol=1e-3, atol=0)
    torch.testing.assert_close(profile.curvature(u), torch.ones(3, dtype=torch.float64), rtol=1e-3, atol=0)
    assert torch.isfinite(profile.value(torch.tensor([300.0, -300.0]))).all()


@pytest.mark.parametrize("name", PROFILES)
def test_derivatives_of_profiles(name):
    profile = PROFILES[name]
    u = torch.linspace(-5, 5, 41, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(profile.value(u).sum(), u)
    torch.testing.assert_close(profile.slope(u.detach()), slope, rtol=1e-9, atol=1e-12)
    (curvature,) = torch.autograd.grad(profile.slope(u * 1.0).sum(), u)
    torch.testing.assert_close(profile.curvature(u.detach()), curvature, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.sampled_from(range(len(SPECS))), st.integers(0, 2**32 - 1), st.floats(-2, 1))
def test_gap_lies_between_its_bounds(index, seed, decade):
    """gap_below <= gap <= xᵀ∇L, the latter by convexity."""
    problem = build(SPECS[index])
    x = somewhere(problem, seed, 10.0**decade)
    p = problem.features(x)
    s = problem.slope(p)
    gap, above = problem.gap(p), torch.linalg.vecdot(x, problem.pullback(s))
    slack = 1e-10 * (1 + problem.minimum)
    assert bool((problem.gap_below(p, s) <= gap * (1 + 1e-9) + slack).all())
    assert bool((gap <= above * (1 + 1e-9) + slack).all())
    torch.testing.assert_close(torch.linalg.vecdot(p, s), above, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("nu", [1.0, 1.5, 2.9])
def test_coupling_has_the_given_extremes(nu):
    """Oracle: the generalised eigenvalues of (H, M)."""
    problem = build({"kind": "coupled", "layers": [[1, 2], [2, 5]], "spectrum": LEVELS, "nu": nu})
    hessian = problem.matrix.numpy()
    m = np.zeros_like(hessian)
    for part in problem.layers.slices():
        m[part, part] = hessian[part, part]
    found = eigh(hessian, m, eigvals_only=True)
    assert math.isclose(found[-1], nu, rel_tol=1e-9)
    assert math.isclose(found[0], problem.kappa, rel_tol=1e-8)


@pytest.mark.parametrize("spec", SEPARABLE, ids=[s["kind"] for s in SEPARABLE])
@pytest.mark.parametrize("kind", KINDS)
def test_starts_fix_what_they_say(spec, kind):
    problem = build(spec)
    x = starts(problem, kind, 0.7, [3, 4])
    u = problem.features(x)
    layers = problem.layers
    gaps = problem.gap_terms(u)
    ones = torch.full((2, 1), 0.7, dtype=torch.float64)
    if kind == "coordinate":
        torch.testing.assert_close(u.abs(), ones.expand_as(u))
    elif kind == "layer":
        torch.testing.assert_close(layers.sum(x * x).sqrt(), ones.expand(2, layers.n))
    elif kind == "total":
        torch.testing.assert_close(x.norm(dim=1, keepdim=True), ones)
    elif kind == "layer_gap":
        torch.testing.assert_close(layers.sum(gaps), ones.expand(2, layers.n))
    else:
        torch.testing.assert_close(gaps.sum(1, keepdim=True), ones)
    assert not torch.equal(x[0], x[1])


def test_layers_group_runs_of_equal_width():
    layers = Layers((3, 3, 5, 3))
    assert [(r.start, r.count, r.width) for r in layers.stretches] == [(0, 2, 3), (6, 1, 5), (11, 1, 3)]
    x = torch.arange(14.0)
    sums = layers.sum(x)
    assert sums.tolist() == [x[s].sum().item() for s in layers.slices()]
    assert layers.spread(sums).tolist() == [
        v for s, v in zip(layers.sizes, sums.tolist(), strict=True) for _ in range(s)
    ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kind": "cubic", "layers": [[1, 2]]}, "kind must be one of"),
        ({"kind": "quadratic", "layers": [[1, 0]]}, "positive integers"),
        ({"kind": "quadratic", "layers": [[1, 2]], "spectrum": {"levels": [1.0, -1.0]}}, "positive numbers"),
        ({"kind": "quadratic", "layers": [[1, 2]], "spectrum": {"shape": 3}}, "levels, condition or power"),
        ({"kind": "coupled", "layers": [[2, 2]], "nu": 2.0}, "not strictly convex"),
        ({"kind": "regression", "layers": [[1, 30]], "data": "mnist", "l2": 0.1}, "data must be"),
        ({"kind": "regression", "layers": [[1, 29]], "data": "breast_cancer", "l2": 0.1}, "do not split 30 features"),
        ({"kind": "regression", "layers": [[1, 30]], "data": "breast_cancer", "l2": 0.0}, "l2 must be positive"),
    ],
)
def test_bad_specifications_say_what_is_wrong(spec, words):
    with pytest.raises(ValueError, match=words):
        build(spec)
