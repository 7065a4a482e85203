"""T-scale: does the bound survive a change of units?"""

from __future__ import annotations

from fractions import Fraction

import sympy

from theory import ledger
from theory.ledger.exact import related
from theory.ledger.units import MixedUnits, units_of
from theory.losses.functions import as_fmpq, as_sympy
from theory.losses.instances import assumptions, layer, parabola
from theory.losses.layers import run


def _bound(at: ledger.Instance, scale: Fraction) -> sympy.Expr:
    """The printed bound for scale · L, d = 1, at the target scale · ε."""
    here = layer(at)
    gap, mu = (as_sympy(value) * sympy.Rational(scale) for value in (here.gap, here.mu))
    return gap + sympy.log(mu * sympy.Rational(at["R"]) ** 2 / (32 * sympy.Rational(scale * at["target"])))


def _scaled(at: ledger.Instance) -> ledger.Sides:
    """Steps until c L is within cε of its minimum, and C times the printed bound for c L."""
    scaled = {**at, "curvatures": tuple(c * at["scale"] for c in at["curvatures"])}
    steps, _ = run(layer(scaled), as_fmpq(at["scale"] * at["target"]))
    return steps, at["factor"] * _bound(at, at["scale"])


def _true_unscaled(at: ledger.Instance) -> dict[str, bool]:
    """The assumptions, and the bound at scale 1."""
    steps, _ = run(layer(at), as_fmpq(at["target"]))
    return {
        **assumptions(at),
        "the bound is true at scale 1": related(steps, "<=", at["factor"] * _bound(at, Fraction(1))),
    }


def _units() -> str:
    """The printed sum mixes units; the normalised one is a pure number."""
    units = {gap: {"loss": 1}, eps: {"loss": 1}, mu: {"loss": 1, "θ": -2}, R: {"θ": 1}}
    logarithm = sympy.log(mu * R**2 / (32 * d * eps))
    try:
        units_of(d * gap + logarithm, units)
    except MixedUnits as mixed:
        assert units_of(d * gap / (mu * R**2) + logarithm, units) == {}
        return str(mixed)
    raise AssertionError("the printed bound has one unit")


d, gap, mu, R, eps = sympy.symbols("d G mu R epsilon", positive=True)
START = {"R": 1, "target": Fraction(1, 32)}

CLAIMS = (
    ledger.Claim(
        id="T-scale",
        place="Theorem 1 (main text and appendix)",
        statement=r"$T \le \max_i\{d_i(L(\theta_{0,i}) - \min L) + \ln\frac{\mu_iR_i^2}{32d_i\epsilon}\}$ stays true "
        r"under $L \to cL$, $\epsilon \to c\,\epsilon$ and under a change of units of $\theta$.",
        expected=ledger.Verdict.REFUTED,
        answer="False: the run does not change when the loss is measured in other units, the bound does (31 steps "
        "against 1).",
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12\theta^2$, $R = 1$ ($\lambda = \frac12$), $\theta_0 = 8$, $\epsilon = \frac1{32}$: "
                r"steps of $\frac14$ take $\theta$ to $\frac12$ in 30 steps, the next halves it: $T = 31 \le 32 + "
                r"\ln1$. With $c = \frac1{32}$ the run is the same, the bound is $1 + \ln1$.",
                instance=parabola(1, 8, **START, scale=Fraction(1, 32), factor=1),
                sides=_scaled,
                recorded=(31, 1),
                harmless=parabola(1, 8, **START, scale=2, factor=1),
                hypotheses=_true_unscaled,
            ),
            ledger.Witness(
                text=r"No constant in front of the bound helps the 31 steps: with $c = 10^{-5}$ a thousand times the "
                r"bound is $1000\cdot32\cdot10^{-5} = \frac8{25}$.",
                instance=parabola(1, 8, **START, scale=Fraction(1, 10**5), factor=1000),
                sides=_scaled,
                recorded=(31, sympy.Rational(8, 25)),
                harmless=parabola(1, 8, **START, scale=1, factor=1000),
                hypotheses=_true_unscaled,
                target=ledger.Target.KINDEST,
            ),
            ledger.Check(
                r"Units: $T$ is a number; $d_i(L - \min L)$ is a loss, to which the logarithm of a pure number is "
                r"added. Under a change of units of $\theta$ alone the bound does not change ($\mu R^2$ is a loss). "
                r"With $\frac{d_i(L-\min L)}{\mu_iR_i^2}$ it has none.",
                _units,
            ),
        ),
        note=r"With $\frac{d_i(L(\theta_{0,i})-\min L)}{\mu_iR_i^2}$ the units agree: see T-const.",
    ),
)
