r"""When a step with the floor lowers the loss: the exact gradient's step always, the SPSA step on average.

On L = ½ θᵀHθ with g = Hθ and the denominators D = γ max(h, λ) + ε on the diagonal. Statements of our own.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import sympy

from theory import ledger
from theory.curvature.moments import gaussian_mean
from theory.ledger.constants import constant
from theory.ledger.steps import positive
from theory.losses.draws import rational, seeded

Vector = tuple[Any, ...]


def apply(H: Any, v: Vector) -> Vector:
    """H v."""
    return tuple(sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0)) for row in H)


def dot(u: Vector, v: Vector) -> Any:
    """uᵀv."""
    return sum((a * b for a, b in zip(u, v, strict=True)), Fraction(0))


def denominators(at: ledger.Instance) -> Vector:
    """γ max(h, λ) + ε of Algorithm 1."""
    return tuple(at["gamma"] * max(h, floor) + at["eps"] for h, floor in zip(at["h"], at["floors"], strict=True))


def make_problem(rng: random.Random, two: Fraction | int = 2, size: int | None = None) -> ledger.Instance:
    """A coupled positive definite quadratic, any estimates and floors, and η < two · min_j D_j/Σ_k |H_jk|."""
    d = size or rng.randint(1, 3)
    half = [[rng.randint(-2, 2) for _ in range(d)] for _ in range(d)]
    H = tuple(tuple(Fraction(sum(row[i] * row[j] for row in half) + (i == j)) for j in range(d)) for i in range(d))
    at = {
        "H": H,
        "h": tuple(rational(rng, 0, 9) for _ in range(d)),
        "floors": tuple(rational(rng, Fraction(1, 6), 3) for _ in range(d)),
        "gamma": rational(rng, Fraction(1, 6), 2),
        "eps": rational(rng, 0, 1),
        "theta": (Fraction(rng.choice((-2, -1, 1, 2))), *(Fraction(rng.randint(-2, 2)) for _ in range(d - 1))),
    }
    safe = min(D / sum(abs(value) for value in row) for D, row in zip(denominators(at), H, strict=True))
    return {**at, "eta": two * safe * rational(rng, Fraction(1, 6), Fraction(11, 12), 12)}


# --- FLOOR-descent ------------------------------------------------------------------------------------------------


ROW, SLACK = sympy.symbols("r s", positive=True)


def _before_and_after(at: ledger.Instance) -> ledger.Sides:
    g = apply(at["H"], at["theta"])
    after = tuple(value - at["eta"] * gj / D for value, gj, D in zip(at["theta"], g, denominators(at), strict=True))
    return dot(after, apply(at["H"], after)) / 2, dot(at["theta"], g) / 2


def _decrease_identity(half: int = 2) -> bool:
    a, b, c, D1, D2, eta = sympy.symbols("a b c D1 D2 eta", positive=True)
    H, D = sympy.Matrix([[a, b], [b, c]]), sympy.diag(D1, D2)
    theta = sympy.Matrix(sympy.symbols("x y"))
    g = H * theta
    after = theta - eta * D.inv() * g
    change = ((after.T * H * after) - (theta.T * H * theta))[0] / 2
    claimed = -(eta**2) / half * (g.T * D.inv() * (2 / eta * D - H) * D.inv() * g)[0]
    return sympy.simplify(change - claimed) == 0


def _exact_curvature(sign: int = 1) -> bool:
    """H diagonal and h = H: (2/η)(γ max(σ, λ) + ε) − σ > 0 for η < 2γ; λ = σ + δ or σ = λ + δ."""
    sigma, gap, gamma, eps, slack = sympy.symbols("sigma delta gamma epsilon s", positive=True)
    bigger = (1 + sign * slack) / gamma * (gamma * (sigma + gap) + eps) - sigma
    equal = (1 + slack) / gamma * (gamma * sigma + eps) - sigma
    return bool(sympy.expand(bigger).is_positive) and bool(sympy.expand(equal).is_positive)


def _floor_alone(share: int = 1) -> bool:
    """γλ = (1 + s) ησ_max/2: (2/η)D − H ⪰ ((2/η)γλ − σ_max)I ≻ 0; s = 0, D = γλ: θ⁺ = −θ along the top eigenvector."""
    top, eta, slack, theta = sympy.symbols("sigma eta s theta", positive=True)
    enough = sympy.expand(2 / eta * (share + slack) * eta * top / 2 - top)
    reflected = theta - eta * top * theta / (share * eta * top / 2)
    return bool(enough.is_positive) and reflected == -theta


DESCENT = ledger.Claim(
    id="FLOOR-descent",
    place="ours, of Algorithm 1, line 15",
    statement=r"On $L = \frac12\theta^\top H\theta$, $H \succ 0$, the step $\theta - \eta D^{-1}\nabla L$, $D = "
    r"\gamma\max(h,\lambda)+\epsilon$, lowers $L$ from every $\theta$ with $\nabla L \ne 0$ exactly if $\frac2\eta D - "
    r"H$ is positive definite; $\eta < «two»\min_j D_j/\sum_k |H_{jk}|$ suffices.",
    expected=ledger.Verdict.HOLDS,
    constants={"two": ledger.Constant(2, Fraction(9, 4))},
    answer="Over-estimates of h never break descent, under-estimates do; a floor λ > ησ_max/(2γ) always mends it.",
    evidence=(
        ledger.Proof(
            text=r"$L^+ - L = -\frac{\eta^2}{2}\, g^\top D^{-1}\big(\frac2\eta D - H\big) D^{-1} g$. Negative for "
            r"every $g \ne 0$ if the middle is positive definite; if not, some $v \ne 0$ has $v^\top(\frac2\eta D - "
            r"H)v \le 0$, and $g = Dv$, that is $\theta = H^{-1}Dv$, does not descend.",
            steps=(
                ledger.Step(
                    "The identity, for a symmetric 2×2 H (the algebra is the same in every dimension).",
                    _decrease_identity,
                    {"half": 1},
                ),
                positive(
                    r"With $\eta = \frac{«two»}{1+s}\min_j D_j/\sum_k|H_{jk}|$, $s > 0$: $\frac2\eta D_j - "
                    r"\sum_k|H_{jk}| > 0$, so $\frac2\eta D - H$ is strictly diagonally dominant with positive "
                    r"diagonal.",
                    sympy.expand(2 * (1 + SLACK) / constant("two") * ROW - ROW),
                ),
                ledger.Step(
                    r"With $h = H$ diagonal and exact, $\eta < 2\gamma$ suffices for every λ and ε ($\frac2\eta = "
                    r"\frac{1+s}{\gamma}$).",
                    _exact_curvature,
                    {"sign": -1},
                ),
                ledger.Step(
                    r"$\gamma\lambda > \frac12\eta\sigma_{\max}$ suffices without any h; at equality, with $\epsilon = "
                    r"0$ and h below λ, the step along the top eigenvector only turns its sign.",
                    _floor_alone,
                    {"share": 2},
                ),
            ),
        ),
        ledger.Search(
            text="Coupled positive definite quadratics of one to three dimensions, any estimates h, floors, γ, ε; η "
            "below the sufficient bound.",
            strategy=lambda two: seeded(lambda rng: make_problem(rng, two)),
            sides=_before_and_after,
            relation="<",
        ),
    ),
    note=r"So the floor guards against curvature that is estimated too small: $\gamma\lambda > "
    r"\eta\,\lambda_{\max}(H)/2$ is enough without any h, equality is not. With h the exact diagonal of a coupled "
    r"Hessian the bound shrinks to $2γ/ν$, ν the largest eigenvalue of $D_H^{-1/2} H D_H^{-1/2}$, up to $d$.",
)


# --- FLOOR-spsa ---------------------------------------------------------------------------------------------------


def expected_change(at: ledger.Instance, two: Fraction = Fraction(2)) -> Any:
    """−η gᵀD⁻¹g + (η²/2)(|g|² tr(D⁻¹HD⁻¹) + 2 gᵀD⁻¹HD⁻¹g)."""
    D, g, eta = denominators(at), apply(at["H"], at["theta"]), at["eta"]
    scaled = tuple(gj / Dj for gj, Dj in zip(g, D, strict=True))
    trace = sum((at["H"][j][j] / D[j] ** 2 for j in range(len(D))), Fraction(0))
    noise = dot(g, g) * trace + two * dot(scaled, apply(at["H"], scaled))
    return -eta * dot(g, scaled) + eta**2 / 2 * noise


def _mean_change(at: ledger.Instance) -> Any:
    """The same mean from the polynomial in z, term by term."""
    D, eta = denominators(at), at["eta"]
    z = sympy.symbols(f"z:{len(D)}")
    c = dot(apply(at["H"], at["theta"]), z)
    move = tuple(-eta * c * zj / Dj for zj, Dj in zip(z, D, strict=True))
    change = dot(move, apply(at["H"], at["theta"])) + dot(move, apply(at["H"], move)) / 2
    return gaussian_mean(sympy.sympify(change), z)


def _fourth_moments(two: Fraction = Fraction(2)) -> bool:
    g = sympy.symbols("g:3")
    z = sympy.symbols("z:3")
    square = sum(a**2 for a in g)
    return all(
        sympy.expand(
            gaussian_mean(dot(g, z) ** 2 * z[j] * z[k], z)
            - square * int(j == k)
            - sympy.Rational(two.numerator, two.denominator) * g[j] * g[k]
        )
        == 0
        for j in range(3)
        for k in range(3)
    )


def _flat_coordinate() -> str:
    """What one flat coordinate without gradient does to the largest η: exact curvature, with and without a floor."""
    flat, floor = Fraction(1, 10**6), Fraction(1, 10)
    found = []
    for lam in (Fraction(1, 10**9), floor):
        D = denominators({"h": (Fraction(1), flat), "floors": (lam, lam), "gamma": 1, "eps": 0})
        trace = 1 / D[0] ** 2 + flat / D[1] ** 2
        found.append(2 / (trace + 2))  # g = (1, 0), so gᵀD⁻¹g = gᵀD⁻¹HD⁻¹g = |g| = 1
    assert found[0] < Fraction(1, 10**5) < Fraction(1, 2) < found[1], found
    bare, floored = (float(value) for value in found)
    return f"curvatures 1 and 1e-6, gradient (1, 0): η up to {bare:.1e} without a floor, {floored:.2f} with 0.1"


def _best_preconditioner(times: int = 1) -> bool:
    """(Σ a_j x_j)² ≤ Σ a_j²/σ_j · Σ σ_j x_j² (a = g²): Lagrange's identity for three coordinates, a sum of squares."""
    a, x, sigma = (sympy.symbols(f"{name}:3", positive=True) for name in ("a", "x", "s"))
    left = sum(p * q for p, q in zip(a, x, strict=True)) ** 2
    right = sum(p**2 / q for p, q in zip(a, sigma, strict=True)) * sum(q * r**2 for q, r in zip(sigma, x, strict=True))
    squares = sum(
        (a[j] * sigma[k] * x[k] - a[k] * sigma[j] * x[j]) ** 2 / (sigma[j] * sigma[k])
        for j in range(3)
        for k in range(j + 1, 3)
    )
    return sympy.simplify(right - left - times * squares) == 0


def _figure() -> str:
    import numpy as np

    from helene.lab.report.figures import Line, line_figure

    sigma = np.geomspace(1e-4, 1, 1000)
    floors = np.geomspace(1e-5, 10, 61)
    spsa = (sigma.sum() + 2 * sigma) * sigma.mean() / (sigma.sum() + 2 * sigma).mean()

    def decrease(g: Any, D: Any) -> float:
        """Largest expected decrease of one step, η optimal."""
        noise = (g**2).sum() * (sigma / D**2).sum() + 2 * (g**2 * sigma / D**2).sum()
        return float((g**2 / D).sum() ** 2 / (2 * noise))

    def against_best(g: Any, h: Any) -> list[float]:
        best = decrease(g, sigma / g**2)
        return [decrease(g, np.maximum(h, floor)) / best for floor in floors]

    flat = np.ones_like(sigma)
    lines = [
        Line("exact h, all gradient entries equal", floors.tolist(), against_best(flat, sigma)),
        Line("exact h, all coordinates equally far", floors.tolist(), against_best(sigma, sigma)),
        Line("h from SPSA (same mean), equally far", floors.tolist(), against_best(sigma, spsa), style="dashed"),
    ]
    return line_figure(
        lines,
        xlabel="floor λ (curvatures from 1e-4 to 1, d = 1000)",
        ylabel="expected decrease / best diagonal's",
        title="One SPSA step: when the exact curvature helps",
        xlog=True,
        ylog=True,
    ).svg


SPSA = ledger.Claim(
    id="FLOOR-spsa",
    place="ours, of Algorithm 1, lines 4, 5 and 15, without momentum",
    statement=r"On $L = \frac12\theta^\top H\theta$ the step $-\eta D^{-1} c z$, $c = z^\top g$, $z \sim N(0, I)$, "
    r"changes $L$ on average by $-\eta\, g^\top D^{-1} g + \frac{\eta^2}{2}\big(\|g\|^2\,\mathrm{tr}(D^{-1}HD^{-1}) + "
    r"«two»\, g^\top D^{-1}HD^{-1}g\big)$.",
    expected=ledger.Verdict.HOLDS,
    constants={"two": ledger.Constant(Fraction(2), Fraction(21, 10))},
    answer="The noise goes with tr(D⁻¹HD⁻¹), so flat coordinates with small h spoil the step; there the floor is "
    "needed.",
    evidence=(
        ledger.Proof(
            text=r"$L^+ - L = -\eta\,c\, g^\top D^{-1}z + \frac{\eta^2}{2}c^2 z^\top D^{-1}HD^{-1}z$ and the moments "
            r"of $z$.",
            steps=(
                ledger.Step(
                    r"$E[(z^\top g)^2 z_j z_k] = \|g\|^2\delta_{jk} + 2 g_j g_k$ (three dimensions; two more add only "
                    r"$\|g\|^2$).",
                    _fourth_moments,
                ),
                ledger.Step(r"$E[c\,z] = g$; the sum of the second term over $D^{-1}HD^{-1}$ gives trace and form."),
                ledger.Step(
                    r"The best diagonal, H diagonal: to leading order in d the decrease at the best η is "
                    r"$\frac{(\sum_j g_j^2/D_j)^2}{2\|g\|^2\sum_j \sigma_j/D_j^2} \le \frac{\sum_j "
                    r"g_j^4/\sigma_j}{2\|g\|^2}$, attained by $D_j \propto \sigma_j/g_j^2$ (Lagrange's identity).",
                    _best_preconditioner,
                    {"times": 2},
                ),
            ),
        ),
        ledger.Search(
            text="Coupled quadratics in three dimensions: the formula against the mean of the polynomial in z, term by "
            "term.",
            strategy=seeded(lambda rng: make_problem(rng, size=3)),
            sides=lambda at, two: (expected_change(at, two), _mean_change(at)),
            relation="==",
            num_examples=40,
        ),
        ledger.Check("The largest η that descends on average, with one flat coordinate.", _flat_coordinate),
    ),
    figure=_figure,
    note=r"Descent on average holds exactly for $\eta < \frac{2\,g^\top D^{-1}g}{\|g\|^2\mathrm{tr}(D^{-1}HD^{-1}) + 2 "
    r"g^\top D^{-1}HD^{-1}g}$. With $D = \lambda$ everywhere that is $\frac{\eta}{\lambda} < "
    r"\frac{2\|g\|^2}{\|g\|^2\,\mathrm{tr} H + 2 "
    "g^\\top H g}$, MeZO's: of the order 1/d. The best diagonal is Newton's only where all $|g_j|$ are equal; where "
    "all coordinates add equally to the loss it is a constant, plain MeZO.",
)


CLAIMS = (DESCENT, SPSA)
