"""L1: does the loss diverge to infinity, at least linearly, away from the minimizer?"""

from __future__ import annotations

from fractions import Fraction
from random import Random

import sympy
from flint import fmpq
from sympy import Rational

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity
from theory.losses import given_others
from theory.losses.draws import seeded
from theory.losses.layers import Layer
from theory.losses.strategies import any_layer


def _ray(rng: Random) -> tuple[Layer, Layer, fmpq]:
    """A point, the point r times as far from the minimizer, and r ≥ 1."""
    layer, factor = any_layer(rng), fmpq(rng.randint(5, 40), 4)
    return layer, layer.scaled(factor), factor


def _grows(ray: tuple[Layer, Layer, fmpq], one: fmpq) -> ledger.Sides:
    """r (L(θ* + v) − min L) against L(θ* + r v) − min L."""
    return one * ray[0].gap * ray[2], ray[1].gap


def _kept(at: ledger.Instance) -> ledger.Sides:
    """L − min L, and Δ |x − x*| with Δ = ½μ: every φ here is a parabola."""
    return given_others.given(at).gap, given_others.given(at).mu * abs(at["x"]) / 2


def _mixed(at: ledger.Instance) -> ledger.Sides:
    """The printed slope inequality for L = x² + y² where only x is the layer and y = y* + shift is kept."""
    far = (at["r"] ** 2 + at["shift"] ** 2) / at["r"]
    return far, 1 + at["shift"] ** 2


r, low, high = sympy.symbols("r low high", positive=True)
ONE = constant("one")

CLAIMS = (
    ledger.Claim(
        id="L1",
        place="Lemma 1 (divergence to infinity)",
        statement=r"$L(\theta_i)$ strictly convex and twice continuously differentiable with a unique minimizer "
        r"$\theta_i^*$: $L(\theta_i) \to \infty$ as $\|\theta_i\| \to \infty$; for $\|\theta_i - \theta_i^*\| \ge 1$, "
        r"$L(\theta_i) \ge \min L + \Delta_i \|\theta_i - \theta_i^*\|$ with $\Delta_i = \min_{\|\varphi\| = 1} "
        r"L(\theta_i^* + \varphi) - \min L > 0$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="False given other layers that are not at their optimum; for one layer true: slopes along a ray do not "
        "fall.",
        constants={"one": ledger.Constant(fmpq(1), fmpq(5, 4))},
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12(x^2 + \frac85xy + y^2)$, layer $x$, given $y = -\frac45$: $\Delta = \frac12$, and "
                r"at $x = 1$ the gap is $\frac12(1-\frac{16}{25}) = \frac9{50} < \frac12$.",
                instance=given_others.place(given_others.COUPLED, 1, Fraction(-4, 5)),
                sides=_kept,
                recorded=(Fraction(9, 50), Fraction(1, 2)),
                harmless=given_others.place(given_others.COUPLED, 1, 0),
                relation=">=",
                hypotheses=lambda at: {**given_others.assumptions(at), "|x − x*| ≥ 1": abs(at["x"]) >= 1},
            ),
            ledger.Proof(
                text=r"Along a ray, $\theta^* + v$ is the mean of $\theta^*$ (weight $1 - \frac1r$) and $\theta^* + "
                r"rv$ (weight $\frac1r$), so by convexity $L(\theta^* + rv) - \min L \ge r\,(L(\theta^* + v) - \min "
                r"L)$. On the unit sphere, which is compact, $L - \min L$ is continuous and positive (the minimizer is "
                r"unique), so its minimum $\Delta_i$ is positive.",
                target=ledger.Target.REPAIRED,
                steps=(
                    identity(
                        r"Convexity, $L(\theta^*+v) \le (1-\frac1r)\min L + \frac1r L(\theta^*+rv)$, times $r$, is the "
                        r"slope inequality.",
                        ONE * r * ((1 - 1 / r) * low + high / r - low),
                        high - low,
                    ),
                    by_hand(r"A continuous positive function on a compact set has a positive minimum."),
                ),
            ),
            ledger.Search(
                text=r"Layers of all families, a point and the point $r$ times as far, $r \le 10$: $r\,(L(\theta^*+v) "
                r"- \min L) \le L(\theta^*+rv) - \min L$.",
                target=ledger.Target.REPAIRED,
                strategy=seeded(_ray),
                sides=_grows,
            ),
        ),
        repair=r"Let the other layers stand at their optimum, so that $L(\theta_i)$ is one layer's loss. Then "
        r"$L(\theta_i)\to\infty$ and $L(\theta_i) \ge \min L + \Delta_i\|\theta_i-\theta_i^*\|$ for "
        r"$\|\theta_i-\theta_i^*\| \ge 1$.",
        printed_proof=ledger.PrintedProof(
            lines=(
                ledger.Line(
                    text=r"Notation: $L(\theta_i)$ stands for $L(\theta_i \mid \theta_{-i})$ but $L(\theta_i^*)$ for "
                    r"$L(\theta_i^* \mid \theta_{-i}^*)$. With two different $\theta_{-i}$ the slope inequality is "
                    r"false; with one and the same it is right.",
                    literal=ledger.Witness(
                        text=r"$L = x^2 + y^2$, layer $x$, $y = 10$ kept, $x = 10$: $\frac{100+100}{10} = 20$, but the "
                        r"right side is $1 + 100 = 101$.",
                        instance={"r": Rational(10), "shift": Rational(10)},
                        sides=_mixed,
                        recorded=(20, 101),
                        harmless={"r": Rational(10), "shift": Rational(0)},
                        relation=">=",
                    ),
                ),
                ledger.Line(
                    text=r"Slope inequality: $\frac{L(\theta_i)-L(\theta_i^*)}{\|\theta_i-\theta_i^*\|} \ge "
                    r"\min_{\|\varphi\|=1} L(\theta_i^*+\varphi) - L(\theta_i^*)$.",
                    check=identity("convexity along the ray", r * ((1 - 1 / r) * low + high / r - low), high - low),
                ),
            ),
            expected=ledger.ProofVerdict.SOUND,
        ),
    ),
)
