"""T-sum and T-coupled: one ε for all layers, and layers that interact."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import sympy
from flint import fmpq

from theory import ledger
from theory.ledger.constants import constant
from theory.ledger.steps import by_hand, identity, nonnegative
from theory.losses import layers_together as together
from theory.losses.draws import seeded
from theory.losses.functions import Number, total
from theory.losses.layers import Layer, run, theorem_clip
from theory.losses.strategies import any_layer, meet


def _total_gap(at: ledger.Instance) -> ledger.Sides:
    """n layers ½θ² at 1: the total gap after the largest of the layers' step counts until their gap is ε, and ε."""
    x = Fraction(1)
    while x**2 / 2 > at["target"]:
        x -= min(x, at["R"] / 2) / 2
    return at["n"] * x**2 / 2, at["target"]


Several = tuple[tuple[Layer, Number], ...]


def _several(rng: Random) -> Several:
    """Two to four layers, some of them up to four radii from their minimizer, and a target for each."""
    chosen = []
    for _ in range(rng.randint(2, 4)):
        layer = meet(any_layer(rng), lambda there: there.distance2 * rng.choice((fmpq(1, 9), fmpq(1), fmpq(16))))
        target = layer.gap * rng.choice((fmpq(1, 2), fmpq(1, 5), fmpq(1, 100)))
        chosen.append((layer.enclosed(), target))
    return tuple(chosen)


def _at_maximum(several: Several, one: fmpq) -> ledger.Sides:
    """The total gap after max_i T_i steps, and the sum of the ε_i."""
    steps = max(run(layer, goal)[0] for layer, goal in several)
    gaps = []
    for layer, _ in several:
        clip = theorem_clip(layer)
        for _ in range(steps):
            layer = layer.step(clip)
        gaps.append(layer.gap)
    return total(gaps), one * total(goal for _, goal in several)


n, rho, eta, lam = sympy.symbols("n rho eta lambda", positive=True)
e1, e2, s1, s2, x = sympy.symbols("e1 e2 s1 s2 x", positive=True)
ONE = constant("one")

CLAIMS = (
    ledger.Claim(
        id="T-sum",
        place="Theorem 1, “reaches a loss at most ε”",
        statement=r"The maximum over the layers of the steps until $L_i - \min L_i \le \epsilon$, with one $\epsilon$, "
        r"bounds the steps until the total gap is at most $\epsilon$.",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="False: n layers at ε each make nε; with ε_i that add up to ε it holds for separable losses.",
        constants={"one": ledger.Constant(fmpq(1), fmpq(9, 10))},
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12\theta_1^2 + \frac12\theta_2^2$, $\theta = (1, 1)$, $\epsilon = \frac12$: both "
                r"layers have the gap $\frac12$, so the maximum is 0 steps; the total gap is 1.",
                instance={"n": 2, "target": Fraction(1, 2), "R": Fraction(1)},
                sides=_total_gap,
                recorded=(1, Fraction(1, 2)),
                harmless={"n": 1, "target": Fraction(1, 2), "R": Fraction(1)},
            ),
            ledger.Proof(
                text=r"In a separable loss each layer runs by itself and its gap never grows (L10, repaired), so after "
                r"$\max_iT_i$ steps every gap is at most its $\epsilon_i$, and they add up to $\epsilon$.",
                target=ledger.Target.REPAIRED,
                steps=(
                    nonnegative(
                        r"$G_i = \epsilon_i - s_i$, $s_i \ge 0$, gives $\sum\epsilon_i - \sum G_i \ge 0$ (two layers).",
                        ONE * (e1 + e2) - (e1 - s1) - (e2 - s2),
                    ),
                    identity(
                        r"Equal shares $\epsilon_i = \frac\epsilon n$ add $\ln n$ to the logarithm: "
                        r"$\ln\frac{n}{\epsilon} = \ln\frac1\epsilon + \ln n$.",
                        sympy.log(n / e1, evaluate=False),
                        sympy.log(n) - sympy.log(e1),
                    ),
                    by_hand(r"Lemma 10, repaired, with $\eta\lambda_i\sqrt{d_i} = \frac{R_i}4$.", "L10"),
                ),
            ),
            ledger.Search(
                text="Two to four layers of all families: the total gap after the largest of the layers' step counts.",
                target=ledger.Target.REPAIRED,
                strategy=seeded(_several),
                sides=_at_maximum,
                num_examples=60,
            ),
        ),
        repair=r"For separable $L$ and $\sum_i\epsilon_i = \epsilon$: $\max_iT_i(\epsilon_i)$ steps, where "
        r"$T_i(\epsilon_i)$ is the number until $L_i - \min L_i \le \epsilon_i$.",
    ),
    ledger.Claim(
        id="T-coupled",
        place="Theorem 1, for a network's layers",
        statement=r"The theorem covers layers that interact and are all updated at once with $\eta = \frac12$.",
        expected=ledger.Verdict.REFUTED,
        answer="False: five coupled scalar layers go back and forth for ever; and so for every fixed η with enough "
        "layers.",
        evidence=(
            ledger.Witness(
                text=r"$n = 5$ layers with $d_i = 1$, $L = \frac12\theta^T(\frac15I + \frac45\mathbf 1\mathbf "
                r"1^T)\theta$, $R = 8$, so $\lambda = 4$. At $(1, 1, 1, 1, 1)$ each layer has the gradient $\frac15 + "
                r"4 = \frac{21}5$ and $H_{ii} = 1$: clipped 4, halved 2, to $(-1, \dots, -1)$, and back. The gap stays "
                r"$\frac12\cdot5\cdot\frac{21}5 = \frac{21}2$; the bound for $\epsilon = 1$ is $\frac{21}2 + \ln2 < "
                r"12$ steps.",
                instance=together.start(5, Fraction(4, 5), a=1, eta=Fraction(1, 2), R=8, target=1, steps=12),
                sides=together.after_the_bound,
                recorded=(Fraction(21, 2), 1),
                harmless=together.start(2, Fraction(4, 5), a=1, eta=Fraction(1, 2), R=8, target=1, steps=12),
                hypotheses=together.bound_is_over,
            ),
            ledger.Witness(
                text=r"No fixed step size helps: $\eta = \frac18$, $n = 20$, $\rho = \frac45$, $R = 8$, $\theta = "
                r"\frac14(1, \dots, 1)$: the gradient is $\frac{81}5\cdot\frac14 = \frac{81}{20} \ge 4$, clipped 4, "
                r"times $\frac18$: to $-\frac14(1, \dots, 1)$ and back; the gap stays "
                r"$\frac12\cdot20\cdot\frac{81}5\cdot\frac1{16} = \frac{81}8$.",
                instance=together.start(
                    20, Fraction(4, 5), a=Fraction(1, 4), eta=Fraction(1, 8), R=8, target=1, steps=12
                ),
                sides=together.after_the_bound,
                recorded=(Fraction(81, 8), 1),
                harmless=together.start(2, Fraction(0), a=Fraction(1, 4), eta=Fraction(1, 8), R=8, target=1, steps=12),
                hypotheses=together.bound_is_over,
                target=ledger.Target.KINDEST,
            ),
            ledger.Proof(
                text=r"For every $\eta$: with $\theta_i = \frac12\eta\lambda$ for all $i$ the gradients are "
                r"$\frac12\eta\lambda(1 + (n-1)\rho)$, which is at least $\lambda$ as soon as $n \ge 1 + "
                r"\frac{2/\eta-1}\rho$; then each layer moves by $\eta\lambda$, to the mirror point.",
                target=ledger.Target.KINDEST,
                steps=(
                    identity(
                        r"At $n = 1 + \frac{2/\eta-1}\rho$: $\frac12\eta\lambda(1+(n-1)\rho) = \lambda$.",
                        eta * lam / 2 * (1 + (n - 1) * rho),
                        lam,
                        {n: 1 + (2 / eta - 1) / rho},
                    ),
                    identity(
                        r"$\frac12\eta\lambda - \eta\lambda = -\frac12\eta\lambda$.",
                        x - eta * lam,
                        -x,
                        {x: eta * lam / 2},
                    ),
                ),
            ),
        ),
        note=r"Five scalar layers are the fewest for a quadratic; with a curvature that changes within the factor 2, "
        r"three suffice (theory/proofs/coupled/coupled_theorem.md). True are: $\eta = \frac1{2\nu}$ with $\nu$ the "
        r"largest "
        r"eigenvalue of $M^{-1/2}HM^{-1/2}$, $M = \mathrm{blockdiag}(H_{ii})$; or one layer after the other with $\eta "
        r"= \frac12$ (theory/proofs/coupled/sequential_updates.md).",
    ),
)
