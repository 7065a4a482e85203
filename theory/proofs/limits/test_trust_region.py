"""Checks of ``proofs/limits/trust_region.md``; the letters are those of the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction as F
from functools import cached_property
from random import Random

import numpy as np
import pytest
import sympy as sp

from theory.ledger.search import Survey, survey
from theory.losses.draws import seeded
from theory.losses.exact_coupled import Point, exact_coupled
from theory.losses.exact_layers import ExactLayer, exact_layer, fixed_layer
from theory.losses.piecewise import even, halving
from theory.losses.smooth import RidgeLoss, Smooth
from theory.proofs import bounds
from theory.proofs.limits import draw_clips
from theory.proofs.problems import Diagonal
from theory.updates.clipped_by_length import ball_step, exact_ball_step, exact_scaled_newton, scaled_newton
from theory.updates.clipped_newton import count_steps

#: Any radius below a certified one satisfies Assumption 2 too.
SHARES = (F(1), F(1, 2), F(1, 16), F(1, 256))


def dot(a: Point, b: Point) -> F:
    """Σ a_ij b_ij."""
    return sum((x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)), F(0))


@dataclass(frozen=True)
class BallStep:
    """Steps in balls, all layers at once with η = 1/(2ν), in rationals; a step on the edge tells R_i."""

    p: Point
    gradient: Point
    sigma: Point
    radii: tuple[F, ...]
    mus: tuple[F, ...]
    nu: F
    kappa: F
    loss: Callable[[Point], F]

    @cached_property
    def _steps(self) -> list[tuple[tuple[F, ...], F]]:
        return [exact_ball_step(*of) for of in zip(self.gradient, self.sigma, self.radii, strict=True)]

    @cached_property
    def gap(self) -> F:
        """G."""
        return self.loss(self.p)

    @cached_property
    def product(self) -> F:
        """S° = Σ_i ∇_iLᵀq_i°."""
        return dot(self.gradient, tuple(q for q, _ in self._steps))

    @cached_property
    def fall(self) -> F:
        """L − L⁺."""
        lr = 1 / (2 * self.nu)
        moved = (
            tuple(x - lr * y for x, y in zip(row, q, strict=True))
            for row, (q, _) in zip(self.p, self._steps, strict=True)
        )
        return self.gap - self.loss(tuple(moved))

    @cached_property
    def r_squared(self) -> F:
        """r² = min(1, min_i R_i²/D_i²)."""
        away = [(square, dot((row,), (row,))) for row, (_, square) in zip(self.p, self._steps, strict=True)]
        return min([F(1), *(square / distance for square, distance in away if distance)])

    @cached_property
    def stiffness(self) -> F:
        """K = κ min_i μ_i R_i²."""
        return self.kappa * min(mu * square for mu, (_, square) in zip(self.mus, self._steps, strict=True))

    def descends(self, factor: F = F(1)) -> bool:
        """(a): L − L⁺ ≥ factor S°/(4ν)."""
        return 4 * self.nu * self.fall >= factor * self.product

    def gap_bounded(self, factor: F = F(1), *, with_kappa: bool = True, with_r: bool = True) -> bool:
        """(c): G ≤ factor S°/(κr)."""
        kappa, square = self.kappa if with_kappa else F(1), self.r_squared if with_r else F(1)
        return (kappa * self.gap) ** 2 * square <= (factor * self.product) ** 2

    def far(self, factor: float = 1.0) -> bool:
        """(d): where G > K/4, a step takes κK e(G/K)/(4ν); e in float64, and the margin is far above rounding."""
        if 4 * self.gap <= self.stiffness:
            return True
        taken = float(4 * self.nu * self.fall / (self.kappa * self.stiffness))
        return taken >= factor * bounds.far_fall(float(self.gap / self.stiffness)) * (1 - 1e-9)

    def near(self, four: F = F(4)) -> bool:
        """(d): else G⁺ ≤ (1 − κ/(4ν)) G."""
        return 4 * self.gap > self.stiffness or self.fall >= self.kappa / (four * self.nu) * self.gap


def one_layer(rng: Random) -> BallStep:
    """One layer; its eigenbasis may turn."""
    layer, share = exact_layer(rng), rng.choice(SHARES)
    radius = share * layer.radius
    return BallStep(
        (layer.p,), (layer.u,), (layer.sigma,), (radius,), (layer.mu,), F(1), F(1), lambda p: layer.loss(p[0])
    )


def coupled(rng: Random) -> BallStep:
    """Two or three coupled layers, alike or not."""
    a, share = exact_coupled(rng), rng.choice(SHARES)
    radii = tuple(share * radius for radius in a.radii)
    return BallStep(a.p, a.gradient(a.p), a.sigma(a.p), radii, a.mus, a.nu, a.kappa, a.loss)


STATEMENTS: dict[str, Callable[[BallStep], bool]] = {
    "descent": BallStep.descends,
    "gap": BallStep.gap_bounded,
    "far": BallStep.far,
    "near": BallStep.near,
}
ALONE: dict[str, Callable[[BallStep], bool]] = {
    "descent, 1/4 → 0.26": lambda b: b.descends(F(104, 100)),
    "gap, 1 → 0.95": lambda b: b.gap_bounded(F(95, 100)),
    "gap without r": lambda b: b.gap_bounded(with_r=False),
    "far, 4 → 1.9": lambda b: b.far(4 / 1.9),
    "near, 4 → 2": lambda b: b.near(F(2)),
}
TOGETHER: dict[str, Callable[[BallStep], bool]] = {
    "descent, 1/4 → 0.26": lambda b: b.descends(F(104, 100)),
    "gap, 1 → 0.45": lambda b: b.gap_bounded(F(45, 100)),
    "gap, κ dropped": lambda b: b.gap_bounded(with_kappa=False),
    "far, 4 → 1": lambda b: b.far(4),
    "near, 4 → 1.2": lambda b: b.near(F(12, 10)),
}


@dataclass(frozen=True)
class NewtonStep:
    """One scaled Newton step of a layer with one eigenbasis, η = ½, in rationals; R is the length of a scaled step."""

    layer: ExactLayer
    share: F

    @cached_property
    def _step(self) -> tuple[tuple[F, ...], F]:
        return exact_scaled_newton(self.layer.u, self.layer.sigma, self.share * self.layer.radius)

    @property
    def square(self) -> F:
        """R²."""
        return self._step[1]

    @cached_property
    def newton_squared(self) -> F:
        """‖n‖²."""
        return sum(((u / s) ** 2 for u, s in zip(self.layer.u, self.layer.sigma, strict=True)), F(0))

    @cached_property
    def product(self) -> F:
        """uᵀc."""
        return sum((u * c for u, c in zip(self.layer.u, self._step[0], strict=True)), F(0))

    @cached_property
    def fall(self) -> F:
        """L − L⁺."""
        layer = self.layer
        return layer.gap - layer.loss([x - c / 2 for x, c in zip(layer.p, self._step[0], strict=True)])

    @property
    def case(self) -> str:
        """I: the step is shortened; II: it is not, and a coordinate is farther than R; III: neither."""
        if self.newton_squared > self.square:
            return "I"
        return "II" if any(x * x > self.square for x in self.layer.p) else "III"

    def takes(self, case: str, share: F) -> bool:
        """Cases I and II: uᵀc ≥ share · μR²."""
        return self.case != case or self.product >= share * self.layer.mu * self.square

    def third(self, factor: F = F(1)) -> bool:
        """Case III: G ≤ factor · uᵀn."""
        return self.case != "III" or self.layer.gap <= factor * self.product

    def descends(self, quarter: F = F(1, 4)) -> bool:
        """(e): L − L⁺ ≥ ¼ uᵀc."""
        return self.fall >= quarter * self.product

    def far(self, sixteen: F = F(16)) -> bool:
        """(i): where g > ¼ a step takes 1/16 off it."""
        unit = self.layer.mu * self.square
        return 4 * self.layer.gap <= unit or self.fall >= unit / sixteen

    def near(self, quarter: F = F(1, 4)) -> bool:
        """(i): else G⁺ ≤ ¾ G."""
        return 4 * self.layer.gap > self.layer.mu * self.square or self.fall >= quarter * self.layer.gap


def newton(rng: Random) -> NewtonStep:
    """A layer with one eigenbasis and a share of its radius."""
    return NewtonStep(fixed_layer(rng), rng.choice((*SHARES, F(15, 16), F(1, 4), F(1, 8))))


NEWTON: dict[str, Callable[[NewtonStep], bool]] = {
    "e": NewtonStep.descends,
    "f, case I": lambda s: s.takes("I", F(1, 2)),
    "g, case II": lambda s: s.takes("II", F(1, 4)),
    "h, case III": NewtonStep.third,
    "i, far": NewtonStep.far,
    "i, near": NewtonStep.near,
}

NEWTON_TWINS: dict[str, Callable[[NewtonStep], bool]] = {
    "e, 1/4 → 0.26": lambda s: s.descends(F(26, 100)),
    "f, 1/2 → 0.51": lambda s: s.takes("I", F(51, 100)),
    "h, 1 → 0.95": lambda s: s.third(F(95, 100)),
    "i, near, 3/4 → 1/2": lambda s: s.near(F(1, 2)),
}
SEARCHES: dict[str, tuple[Callable[[Random], object], dict, dict]] = {
    "one layer": (one_layer, STATEMENTS, ALONE),
    "coupled": (coupled, STATEMENTS, TOGETHER),
    "scaled Newton": (newton, NEWTON, NEWTON_TWINS),
}


@pytest.fixture(scope="module", params=SEARCHES)
def searched(request: pytest.FixtureRequest) -> tuple[Survey, dict, dict]:
    """Exact rationals, one step from every drawn point."""
    make, statements, twins = SEARCHES[request.param]
    return survey(seeded(make), statements, twins, num_examples=300), statements, twins


def test_a_to_i_no_counterexample(searched):
    found, _, _ = searched
    assert not found.against


def test_a_to_i_the_search_has_power(searched):
    found, _, twins = searched
    assert set(found.fallen) == set(twins), set(twins) - set(found.fallen)


def test_a_and_b_the_algebra():
    """Sympy (scalars stand for a Gram matrix): the expansion around q°, and the completed square."""
    q, z, sigma, multiplier = sp.symbols("q z sigma lambda")
    u = (sigma + multiplier) * q
    value = u * (q + z) - sigma * (q + z) ** 2 / 4
    expansion = u * q - sigma * q**2 / 4 + sigma * q * z / 2 - sigma * z**2 / 4 + multiplier * q * z
    assert sp.expand(value - expansion) == 0
    assert sp.expand(sigma * q**2 / 4 + sigma * z**2 / 4 - sigma * q * z / 2 - sigma * (q - z) ** 2 / 4) == 0
    assert sp.expand(u * q - sigma * q**2 - multiplier * q**2) == 0


def test_c_kappa_is_put_into_the_step():
    """Sympy: uᵀq − (κ/4) qᵀΣq = κ⁻¹ (uᵀq' − ¼ q'ᵀΣq') with q' = κq."""
    u, q, sigma, kappa = sp.symbols("u q sigma kappa", positive=True)
    inner = u * (kappa * q) - sigma * (kappa * q) ** 2 / 4
    assert sp.expand(u * q - kappa * sigma * q**2 / 4 - inner / kappa) == 0


def test_c_a_quadratic_along_its_weakest_direction_attains_one_half():
    """Exactly, H = ½I + ½11ᵀ at (1, −1), radius 16, so nothing is cut: κ = ½ and κG = ½ S°."""
    half, one = F(1, 2), F(1)

    def loss(p: Point) -> F:
        (x,), (y,) = p
        return (x * x + y * y) / 4 + (x + y) ** 2 / 4

    step = BallStep(
        ((one,), (-one,)), ((half,), (-half,)), ((one,), (one,)), (F(16),) * 2, (one,) * 2, F(3, 2), half, loss
    )
    assert step.kappa * step.gap == step.product / 2


def test_f_cosine_plus_sine_squared():
    """cos φ + sin²φ − 1 = cos φ (1 − cos φ) ≥ 0, by sympy; equality where all or none of n lies far out."""
    phi = sp.Symbol("phi")
    assert sp.simplify(sp.cos(phi) + sp.sin(phi) ** 2 - 1 - sp.cos(phi) * (1 - sp.cos(phi))) == 0


def test_g_one_quarter_is_approached():
    """Exactly: φ'' falls from 1 to ½ beside 0 and rises to 1 beside R = 1; at 1 + δ nothing is cut and uᵀn → ¼ μR²."""
    ramp = F(1, 1000)
    f = even([0, ramp, 1, 1 + ramp], [1, F(1, 2), F(1, 2), 1])
    step = NewtonStep(ExactLayer((f,), (1 + ramp,), F(1), 1), F(1))
    assert step.layer.certify()
    assert step.case == "II"
    assert F(1, 4) <= step.product / step.layer.mu <= F(1, 4) + 2 * ramp
    assert step.far()
    assert not step.far(F(9))  # a step takes 7/64 off g


@pytest.mark.parametrize("seed", range(6), ids="seed {}".format)
def test_counts_of_steps_in_balls_stay_below_the_bound(seed):
    """Float64: coupled layers, some unequal, none quadratic; the bound exceeds the count by more than a step."""
    rng = Random(seed)
    while True:
        a = exact_coupled(rng)
        gap = float(a.gap)
        bound = bounds.trust_region_bound(
            float(a.nu), float(a.kappa), list(map(float, a.mus)), list(map(float, a.radii)), gap, gap / 100
        )
        if bound < 3000 and any(len(f.curvatures) > 1 for f in a.crossings):
            break
    problem, start = a.in_floats
    widths, radii, lr = [len(a.crossings)] * a.n, list(map(float, a.radii)), 0.5 / float(a.nu)
    run = count_steps(problem, start, gap / 100, 3000, widths, radii, lr, direction=ball_step)
    assert run.status == "reached"
    assert run.steps + 1 < bound


def test_counts_where_the_eigenbasis_turns():
    """Float64, one layer, log-cosh and cosh along oblique directions."""
    rng = np.random.default_rng(4)
    for _ in range(6):
        d = int(rng.integers(2, 7))
        kinds = [Smooth("log_cosh", 1.0, 1.0, rng.normal()), Smooth("cosh", 0.3, 2.0, rng.normal())]
        loss = RidgeLoss(rng.normal(size=(d + 1, d)), [kinds[k] for k in rng.integers(2, size=d + 1)], 0.1, (d,))
        radius, p = loss.radius(), rng.normal(size=d)
        gap = loss(p).gap
        bound = bounds.trust_region_bound(1.0, 1.0, loss.mus(), [radius], gap, gap * 1e-3)
        run = count_steps(loss, p, gap * 1e-3, 10**4, [d], [radius], direction=ball_step)
        assert run.status == "reached"
        assert run.steps + 1 < bound


@pytest.mark.parametrize("seed", range(8), ids="seed {}".format)
def test_counts_of_scaled_newton_steps_lie_in_the_bracket(seed):
    """Float64: halvings, up to 39 coordinates and 12 radii away; below, the speed limit, a step being at most R/2."""
    rng = np.random.default_rng([seed, 3])
    depths = rng.integers(1, 13, size=int(rng.integers(1, 40)))
    problem = Diagonal([halving(int(depth), F(1, 64)).in_floats for depth in depths])
    start = depths * rng.uniform(0.5, 1.0, size=len(depths))
    layer = bounds.LayerStart(len(depths), 1.0, 1.0, problem(start).gap, 0.01)
    run = count_steps(problem, start, layer.target, 10**4, [len(depths)], [1.0], direction=scaled_newton)
    assert 2 * (float(start.max()) - 2 * math.sqrt(layer.target)) <= run.steps < bounds.scaled_newton_bound([layer])


@pytest.mark.parametrize("direction", [ball_step, scaled_newton], ids=["step in a ball", "scaled Newton"])
def test_far_out_a_step_of_half_a_radius_is_all(direction):
    """Halvings 200 radii deep: T ≥ 2(D/R − 2√ε), so neither constant of g can fall to 1.9; both bounds hold."""
    depth, target = 200, 0.01
    problem = Diagonal([halving(depth, F(1, 64)).in_floats])
    run = count_steps(problem, np.array([float(depth)]), target, 10**4, [1], [1.0], direction=direction)
    g, near = run.first_gap, bounds.PER_LOG * math.log(0.25 / target)
    assert run.steps >= 2 * (depth - 2 * math.sqrt(target))
    assert run.steps > 1.9 * (g + 1.81) + near + 2
    assert run.steps <= bounds.trust_region_bound(1.0, 1.0, [1.0], [1.0], g, target)
    assert run.steps <= bounds.scaled_newton_bound([bounds.LayerStart(1, 1.0, 1.0, g, target)])


def test_the_figure_s_counts():
    """The box's count is at least 4√d (D/R − 2√ε) and grows; the others do not know d; both proved bounds hold."""
    found = draw_clips.counts()
    for root, steps in zip(draw_clips.ROOTS, found["box"], strict=True):
        assert steps >= 4 * root * (draw_clips.DEPTH - 2 * math.sqrt(draw_clips.TARGET))
    assert found["ball"] == found["scaled"] == [found["ball"][0]] * len(draw_clips.ROOTS)
    assert found["ball"][0] < found["box"][0]
    assert "steps" in draw_clips.draw(found).alt
    assert draw_clips.FIGURE.is_file()


def test_the_two_directions():
    """A diagonal and the same in a rotated basis; on the ball's edge; Newton's direction inside; the exact twins."""
    sigma, gradient = np.array([1.0, 2.0, 4.0]), np.array([3.0, -0.5, -40.0])
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    hessian = basis.T @ (sigma[:, None] * basis)
    exact = tuple(map(F, gradient)), tuple(map(F, sigma)), F(2)
    for direction, rational in ((ball_step, exact_ball_step), (scaled_newton, exact_scaled_newton)):
        q = direction(gradient, sigma, 2.0)
        np.testing.assert_allclose(np.linalg.norm(q), 2.0, rtol=1e-12)  # some roundings
        np.testing.assert_allclose(direction(basis.T @ gradient, hessian, 2.0), basis.T @ q, atol=1e-12)
        np.testing.assert_allclose(direction(gradient, sigma, 99.0), gradient / sigma, rtol=1e-12)
        near, square = rational(*exact)
        np.testing.assert_allclose([float(x) for x in near], q, rtol=1e-4)  # a radius smaller by some 2⁻¹⁶
        assert F(399, 100) < square == sum(x * x for x in near) <= 4
        assert rational(*exact[:2], F(99)) == (tuple(g / s for g, s in zip(*exact[:2], strict=True)), F(99) ** 2)
    assert gradient @ ball_step(gradient, sigma, 2.0) > gradient @ scaled_newton(gradient, sigma, 2.0)
