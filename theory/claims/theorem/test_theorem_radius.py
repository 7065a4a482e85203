"""T-radius: is the theorem true with R_i the distance from the start to the minimizer, as its text says?"""

from __future__ import annotations

from fractions import Fraction

import sympy
from sympy import Rational, sqrt

from theory import ledger
from theory.ledger.exact import related
from theory.losses.functions import as_fmpq, as_sympy
from theory.losses.instances import assumptions, layer, parabola
from theory.losses.layers import run

STEPS = 6


def _step(at: ledger.Instance, point: tuple) -> tuple:
    """L = √(1 + x²) + ½ Σ_j y_j²: Newton steps x(1 + x²) and y_j, clipped at R/(2√d), halved."""
    clip = at["R"] / (2 * sqrt(len(point)))
    newton = (point[0] * (1 + point[0] ** 2), *point[1:])
    return tuple(x - sympy.Max(-clip, sympy.Min(clip, n)) / 2 for x, n in zip(point, newton, strict=True))


def _gap(point: tuple) -> sympy.Expr:
    return sqrt(1 + point[0] ** 2) - 1 + sum(y**2 for y in point[1:]) / 2


def _after(at: ledger.Instance, steps: int) -> tuple:
    point = at["theta"]
    for _ in range(steps):
        point = _step(at, point)
    return point


def _run(at: ledger.Instance) -> ledger.Sides:
    """The part of the gap that x is responsible for after STEPS steps, and ε."""
    return sqrt(1 + _after(at, STEPS)[0] ** 2) - 1, at["target"]


def _bound(at: ledger.Instance) -> sympy.Expr:
    d = len(at["theta"])
    return d * _gap(at["theta"]) + sympy.log(at["R"] ** 2 / (32 * d * at["target"]))


def _parabola_run(at: ledger.Instance) -> ledger.Sides:
    """Steps on ½θ² with R the distance and, as every radius will do, a radius of Assumption 2; and the bound."""
    here = layer(at)
    steps, _ = run(here, as_fmpq(at["target"]))
    return steps, as_sympy(here.gap) + sympy.log(
        as_sympy(here.mu) * Rational(at["R"]) ** 2 / (32 * Rational(at["target"]))
    )


def _both_meanings(at: ledger.Instance) -> dict[str, bool]:
    return {**assumptions(at), "‖θ_0 − θ*‖ = R": abs(at["theta"]) == at["R"]}


def _cycle(at: ledger.Instance) -> dict[str, bool]:
    distance2 = sum(x**2 for x in at["theta"])
    return {
        "‖θ_0 − θ*‖ ≤ R": related(distance2, "<=", at["R"] ** 2),
        "x returns after two steps, so the gap never falls below its part": _after(at, 2)[0] == at["theta"][0]
        or related(_run(at)[0], "<=", at["target"]),
    }


def _exact_distance(at: ledger.Instance) -> dict[str, bool]:
    return {**_cycle(at), "‖θ_0 − θ*‖ = R": sum(x**2 for x in at["theta"]) == at["R"] ** 2}


CLAIMS = (
    ledger.Claim(
        id="T-radius",
        place="Theorem 1, its last sentence, and the paragraph after it",
        statement=r"The bound is true with $R_i$ “the bound on the distance between $\theta_{0,i}$ and $\theta_i^*$” "
        r"($\lambda_i = \frac{R_i}{2\sqrt{d_i}}$, $\eta = \frac12$); Assumption 2 holds with some radius.",
        expected=ledger.Verdict.REFUTED,
        answer="False: with that clip the update can cycle for ever; R_i must be the radius of Assumption 2.",
        evidence=(
            ledger.Witness(
                text=r"$L = \sqrt{1+x^2}$, $d = 1$, $\theta_0 = 2$, $R = 16 \ge 2$, so $\lambda = 8$. The Newton step "
                r"at 2 is $x(1+x^2) = 10$, clipped 8, halved 4: $2 \to -2 \to 2 \to \dots$ The gap stays $\sqrt5 - 1 > "
                r"1 = \epsilon$. (Assumption 2 holds with radius $\frac23\ln2$.)",
                instance={"theta": (Rational(2),), "R": Rational(16), "target": Rational(1)},
                sides=_run,
                recorded=(sqrt(5) - 1, 1),
                harmless={"theta": (Rational(1, 2),), "R": Rational(16), "target": Rational(1)},
                hypotheses=_cycle,
            ),
            ledger.Witness(
                text=r"With $R$ exactly the distance: $d = 9$, $L = \sqrt{1+x^2} + \frac12\sum_{j=1}^8y_j^2$, "
                r"$\theta_0 = (2; 46, 12, 6, 2, 0, 0, 0, 0)$, $R^2 = 4 + 2116 + 144 + 36 + 4 = 48^2$, $\lambda = "
                r"\frac{48}{2\cdot3} = 8$. $x$ cycles between $\pm2$ as before.",
                instance={
                    "theta": tuple(map(Rational, (2, 46, 12, 6, 2, 0, 0, 0, 0))),
                    "R": Rational(48),
                    "target": Rational(1),
                },
                sides=_run,
                recorded=(sqrt(5) - 1, 1),
                harmless={
                    "theta": tuple(map(Rational, (0, 46, 12, 6, 2, 2, 0, 0, 0))),
                    "R": Rational(48),
                    "target": Rational(1),
                },
                hypotheses=_exact_distance,
                target=ledger.Target.KINDEST,
            ),
            ledger.Witness(
                text=r"With both meanings at once, a further hypothesis: $L = \frac12\theta^2$, $\theta_0 = R = 1$ "
                r"(Assumption 2 holds with every radius), $\epsilon = \frac1{32}$: $1, \frac34, \frac12, \frac14$ are "
                r"3 steps, the bound is $\frac12 + \ln1$.",
                instance=parabola(1, 1, R=1, target=Fraction(1, 32)),
                sides=_parabola_run,
                recorded=(3, Rational(1, 2)),
                harmless=parabola(1, 8, R=8, target=2),
                hypotheses=_both_meanings,
                target=ledger.Target.KINDEST,
            ),
        ),
        note=r"In Lemmas 2 to 11 $R_i$ is the radius of Assumption 2. With that radius alone see T-const.",
    ),
)
