"""A-GNB's formulas: the Gauss-Newton identity, the limit of per-sample squares at the true labels, its scale."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy

from theory import ledger
from theory.curvature import labels, moments
from theory.curvature.labels import Input, Model
from theory.losses.draws import distribution, rational, seeded

ONE = Fraction(1)


def make_model(rng: random.Random, well_specified: bool) -> ledger.Instance:
    """One to three inputs, two or three classes, logits of any first and second derivative."""
    classes, count = rng.randint(2, 3), rng.randint(1, 3)
    weights = distribution(rng, count)
    inputs = []
    for weight in weights:
        model = distribution(rng, classes)
        inputs.append(
            Input(
                weight=weight,
                model=model,
                labels=model if well_specified else distribution(rng, classes),
                jacobian=tuple(rational(rng, -2, 2) for _ in range(classes)),
                second=tuple(rational(rng, -2, 2) for _ in range(classes)),
            )
        )
    return {"model": tuple(inputs)}


# --- GNB-gn -------------------------------------------------------------------------------------------------------

THETA = sympy.Symbol("theta", real=True)


def _two_sides(at: ledger.Instance) -> ledger.Sides:
    """∇²L and J S Jᵀ of logistic regression with the logit f(θ), by sympy, at a point."""
    f, y = at["logit"], at["label"]
    logit = sympy.Symbol("l", real=True)
    loss = sympy.log(1 + sympy.exp(logit)) - y * logit
    whole = sympy.diff(loss.subs(logit, f), THETA, 2)
    gauss_newton = sympy.diff(f, THETA) ** 2 * sympy.diff(loss, logit, 2).subs(logit, f)
    return tuple(sympy.nsimplify(sympy.simplify(side.subs(THETA, at["theta"]))) for side in (whole, gauss_newton))


def _chain_rule(times: int = 1) -> bool:
    """Any smooth loss of two logits that depend on two parameters in any smooth way."""
    x, y, s, t = sympy.symbols("x y s t")
    f1, f2 = sympy.Function("f1")(x, y), sympy.Function("f2")(x, y)
    loss = sympy.Function("ell")(s, t)
    inside = {s: f1, t: f2}
    whole = sympy.hessian(loss.subs(inside), (x, y)).doit()
    J = sympy.Matrix([[sympy.diff(f, v) for v in (x, y)] for f in (f1, f2)])
    S = sympy.hessian(loss, (s, t)).subs(inside).doit()
    rest = sum(
        (sympy.diff(loss, logit).subs(inside).doit() * sympy.hessian(f, (x, y)) for logit, f in ((s, f1), (t, f2))),
        sympy.zeros(2),
    )
    return sympy.simplify(whole - J.T * S * J - times * rest) == sympy.zeros(2)


def _make_affine(rng: random.Random, curved: bool = False) -> ledger.Instance:
    """Two logits in one parameter, any loss that is a polynomial in them; affine, or with a square as well."""
    s, t = sympy.symbols("s t")

    def number() -> sympy.Rational:
        value = rational(rng, -2, 2)
        return sympy.Rational(value.numerator, value.denominator)

    loss = sum((number() * s**i * t**j for i in range(4) for j in range(4 - i)), sympy.Integer(0))
    logits = [number() + number() * THETA + (number() * THETA**2 if curved else 0) for _ in range(2)]
    return {"loss": loss, "logits": logits, "theta": number(), "arguments": (s, t)}


def _polynomial_sides(at: ledger.Instance) -> ledger.Sides:
    inside = dict(zip(at["arguments"], at["logits"], strict=True))
    whole = sympy.diff(at["loss"].subs(inside), THETA, 2)
    J = sympy.Matrix([sympy.diff(f, THETA) for f in at["logits"]])
    S = sympy.hessian(at["loss"], at["arguments"]).subs(inside)
    return whole.subs(THETA, at["theta"]), (J.T * S * J)[0].subs(THETA, at["theta"])


GN = ledger.Claim(
    id="GNB-gn",
    place="Section 3.4, first formula",
    statement=r"$\nabla^2_\theta L = J S J^\top$, $J$ the Jacobian of the logits, $S$ the loss's Hessian in the "
    r"logits.",
    expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
    answer="A term with the logits' own second derivatives is missing; it vanishes where the logits are affine in θ.",
    evidence=(
        ledger.Witness(
            text=r"Logistic regression with the logit $f = \theta^2$, label 1, at $\theta = 0$: $J = 0$, so $JSJ^\top "
            r"= 0$; $\nabla^2 L = (\sigma(0) - 1)\,f'' = -\frac12 \cdot 2 = -1$.",
            instance={"logit": THETA**2, "label": 1, "theta": 0},
            sides=_two_sides,
            recorded=(-1, 0),
            harmless={"logit": THETA, "label": 1, "theta": 0},
            relation="==",
        ),
        ledger.Proof(
            text=r"Chain rule: $\nabla^2 L = J S J^\top + \sum_k \frac{\partial L}{\partial f_k} \nabla^2 f_k$.",
            target=ledger.Target.REPAIRED,
            steps=(
                ledger.Step(
                    "Two logits, two parameters, loss and logits arbitrary functions.", _chain_rule, {"times": 0}
                ),
                ledger.Step(r"Affine logits have $\nabla^2 f_k = 0$."),
            ),
        ),
        ledger.Search(
            text="Two logits affine in θ, losses any polynomials of degree 3 in them, rational coefficients and "
            "points.",
            target=ledger.Target.REPAIRED,
            strategy=seeded(_make_affine),
            sides=_polynomial_sides,
            relation="==",
            num_examples=30,
            twin=ledger.Twin("logits quadratic in θ", strategy=seeded(lambda rng: _make_affine(rng, curved=True))),
        ),
    ),
    repair=r"$\nabla^2 L = J S J^\top + \sum_k \frac{\partial L}{\partial f_k}\nabla^2 f_k$; the sum vanishes if the "
    r"logits are affine in θ. Otherwise $J S J^⊤$ is the Gauss-Newton matrix, positive semidefinite where ∇²L need not "
    r"be.",
)


# --- GNB-limit ----------------------------------------------------------------------------------------------------


def _limit(at: ledger.Instance) -> ledger.Sides:
    """E of a sample's squared gradient at its true label, and the Hessian's entry."""
    return moments.mean(labels.squares_law(at["model"])), labels.hessian(at["model"])


def _softmax_covariance(times: int = 1) -> bool:
    """Σ_y p_y (p − e_y)(p − e_y)ᵀ = diag(p) − ppᵀ and Σ_y p_y (p − e_y) = 0, for 2, 3 and 4 classes."""
    for classes in (2, 3, 4):
        free = sympy.symbols(f"p:{classes - 1}")
        p = sympy.Matrix([*free, 1 - sum(free)])
        residuals = [p - sympy.Matrix([int(k == y) for k in range(classes)]) for y in range(classes)]
        covariance = sum((p[y] * r * r.T for y, r in enumerate(residuals)), sympy.zeros(classes))
        centre = sum((p[y] * r for y, r in enumerate(residuals)), sympy.zeros(classes, 1))
        if sympy.expand(covariance - (sympy.diag(*p) - times * p * p.T)) != sympy.zeros(classes):
            return False
        if sympy.expand(centre) != sympy.zeros(classes, 1):
            return False
    return True


def _oracle(check: str) -> Any:
    def run() -> str:
        from theory.curvature import oracles

        return getattr(oracles, check)()

    return run


ALWAYS_ONE: Model = (labels.binary(Fraction(2, 3), ONE),)

LIMIT = ledger.Claim(
    id="GNB-limit",
    place="Section 3.4, third and fourth formula",
    statement=r"$\lim_{B\to\infty} \frac1B\sum_b \nabla\ell_b \odot \nabla\ell_b$ at the true labels is the diagonal "
    r"of $\nabla^2 L$. (Printed: the vector is set equal to the matrix; the text says its diagonal.)",
    expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
    answer="The limit is the empirical Fisher's; it is the Hessian's diagonal where the labels follow the model.",
    evidence=(
        ledger.Witness(
            text=r"Logistic regression, one input $x = 1$, the model says $P(y=1) = \frac23$, the label is always 1: "
            r"every squared gradient is $(\frac23 - 1)^2 = \frac19$, the Hessian $\frac23\cdot\frac13 = \frac29$.",
            instance={"model": ALWAYS_ONE},
            sides=_limit,
            recorded=(Fraction(1, 9), Fraction(2, 9)),
            harmless={"model": (labels.binary(Fraction(2, 3), Fraction(2, 3)),)},
            relation="==",
        ),
        ledger.Proof(
            text=r"By the law of large numbers the limit is $E[J^\top(p-e_y)(p-e_y)^\top J]$'s diagonal. If y follows "
            r"p given x, $E[(p-e_y)(p-e_y)^\top \mid x] = \mathrm{diag}(p) - pp^\top = S$ and $E[p - e_y \mid x] = 0$, "
            r"so it is $E[J^\top S J]$'s, and the second term of ∇²L (GNB-gn) vanishes in the mean.",
            target=ledger.Target.REPAIRED,
            steps=(
                ledger.Step(
                    "Both sums over the labels, two, three and four classes.", _softmax_covariance, {"times": 0}
                ),
                ledger.Step("For any number of classes: $Σ_y p_y(p - e_y)(p - e_y)^⊤ = pp^⊤ - pp^⊤ - pp^⊤ + diag(p)$."),
                ledger.Step("Law of large numbers (gradients of finite second moment).", cites=("GNB-gn",)),
            ),
        ),
        ledger.Search(
            text="Classifiers on one to three inputs, two or three classes, logits of any first and second "
            "derivatives; labels that follow the model. By enumeration.",
            target=ledger.Target.REPAIRED,
            strategy=seeded(lambda rng: make_model(rng, well_specified=True)),
            sides=_limit,
            relation="==",
            twin=ledger.Twin(
                "labels of another law", strategy=seeded(lambda rng: make_model(rng, well_specified=False))
            ),
        ),
        ledger.Check(
            "Logistic, softmax, a small network and a tiny transformer against torch.func.",
            _oracle("per_sample_squares"),
        ),
    ),
    repair="If the labels follow the model's probabilities given the inputs (a well-specified model at its optimum), "
    "the limit is the diagonal of ∇²L, and of the Gauss-Newton matrix.",
    note="In fine-tuning labels are nearly certain while the model is not: the squares then shrink with the square of "
    "the error, $(1-p)^2$, the Hessian with $p(1-p)$.",
)


# --- GNB-scale ----------------------------------------------------------------------------------------------------


def _scaled(at: ledger.Instance) -> ledger.Sides:
    """h of the loss cL, and c times the h of L."""
    c, g, batch = at["c"], at["g"], at["batch"]
    return batch * (c * g) ** 2, c * batch * g**2


def _newton_step(at: ledger.Instance) -> ledger.Sides:
    """Length of the step on cL with the floor carried along as a curvature (cλ), and on L."""
    c, g, batch, floor = at["c"], at["g"], at["batch"], at["floor"]
    return c * g / max(batch * (c * g) ** 2, c * floor), g / max(batch * g**2, floor)


def _quadratic_scale(power: int = 2) -> bool:
    c, g, batch = sympy.symbols("c g B", positive=True)
    return sympy.expand(batch * (c * g) ** 2 - c**power * batch * g**2) == 0


SCALE = ledger.Claim(
    id="GNB-scale",
    place="Section 3.4 and Algorithm 2, with max(h, λ) of Algorithm 1",
    statement=r"$h = B\,\hat g\odot\hat g$ behaves as a curvature when the loss is scaled, $L \to cL$: $h \to c\,h$.",
    expected=ledger.Verdict.REFUTED,
    answer="h goes with c², a curvature with c; the step m/h then goes with 1/c, Newton's stays.",
    evidence=(
        ledger.Witness(
            text=r"$c = 2$, $\hat g = 1$, $B = 1$: $h$ of $2L$ is $2^2 = 4$, twice the $h$ of $L$ is 2.",
            instance={"c": 2, "g": 1, "batch": 1},
            sides=_scaled,
            recorded=(4, 2),
            harmless={"c": 1, "g": 1, "batch": 1},
            relation="==",
        ),
        ledger.Witness(
            text=r"With the floor carried along as a curvature, Newton's step does not notice c. Here, $\hat g = B = "
            r"1$, $\lambda = \frac12$: on $2L$ the step is $\frac{2}{\max(4, 1)} = \frac12$, on $L$ it is "
            r"$\frac{1}{\max(1, 1/2)} = 1$.",
            target=ledger.Target.KINDEST,
            instance={"c": ONE * 2, "g": ONE, "batch": 1, "floor": Fraction(1, 2)},
            sides=_newton_step,
            recorded=(Fraction(1, 2), 1),
            harmless={"c": ONE, "g": ONE, "batch": 1, "floor": Fraction(1, 2)},
            relation="==",
        ),
        ledger.Proof(
            text=r"$B\,(c\hat g)\odot(c\hat g) = c^2\,B\,\hat g\odot\hat g$.",
            target=ledger.Target.KINDEST,
            steps=(ledger.Step("For all positive c, ĝ, B.", _quadratic_scale, {"power": 1}),),
        ),
    ),
    note="Squared gradients equal a curvature only for a negative log-likelihood in nats, at temperature 1 (Bartlett's "
    "identity): a mean over tokens or a sum, a loss scale, label smoothing change h against λ. Under $θ → sθ$ both go "
    "with $s^{-2}$.",
)


def test_labels_agree_with_enumeration():
    """The closed forms of `theory.curvature.labels` against sums over labels: E g² = E JᵀSJ + (E g)² per input, by "
    "enumeration."""
    rng = random.Random(3)
    for _ in range(50):
        model = make_model(rng, well_specified=False)["model"]
        total = Fraction(0)
        for at in model:
            one = (replace(at, weight=ONE),)
            law = labels.gradient_law(one, sampled=True)
            assert moments.mean(law) == 0
            total += at.weight * moments.variance(law)
        assert total == labels.gauss_newton(model)


CLAIMS = (GN, LIMIT, SCALE)
