"""A2: is Assumption 2 as typeset (norm, spaces, radius) the one that the proofs use?"""

from __future__ import annotations

from random import Random

import sympy
from sympy import Matrix, Rational

from theory import ledger
from theory.ledger.steps import by_hand, identity
from theory.losses.draws import seeded

Pair = tuple[Matrix, Matrix]


def _is_semidefinite(m: Matrix) -> bool:
    """Whether a symmetric 2 × 2 matrix is positive semidefinite, exactly."""
    return bool(m[0, 0] >= 0 and m[1, 1] >= 0 and m.det() >= 0)


def _loewner(pair: Pair) -> bool:
    """½ B ⪯ A ⪯ 2 B."""
    a, b = pair
    return _is_semidefinite(2 * b - a) and _is_semidefinite(2 * a - b)


TWO = Rational(2)


def _norms(pair: Pair, bound: Rational = TWO) -> bool:
    """‖A⁻¹B‖₂ and ‖B⁻¹A‖₂ are at most the bound b, as b²I − MᵀM ⪰ 0."""
    a, b = pair
    return all(_is_semidefinite(bound**2 * sympy.eye(2) - m.T * m) for m in (a.inv() * b, b.inv() * a))


def _looser(pair: Pair) -> bool:
    return _norms(pair, Rational(9, 4))


def _hessian(at: ledger.Instance, phi: Rational) -> Matrix:
    """Of L = ½ (a x² + y²) + Φ(x + y) where Φ'' = phi."""
    return sympy.diag(at["a"], 1) + phi * sympy.ones(2, 2)


def _stretch(at: ledger.Instance) -> ledger.Sides:
    v = Matrix(at["v"])
    image = _hessian(at, Rational(0)).inv() * _hessian(at, at["top"]) * v
    return image.dot(image) / v.dot(v), Rational(4)


def _allowed(at: ledger.Instance) -> dict[str, bool]:
    """Every Hessian is D + φ E with 0 ≤ φ ≤ top; in the Loewner order D ⪯ D + φE ⪯ D + top E."""
    low, high = _hessian(at, Rational(0)), _hessian(at, at["top"])
    return {"strictly convex": _is_semidefinite(low) and low.det() > 0, "Loewner form": _loewner((low, high))}


def _positive(rng: Random) -> Matrix:
    p, q, r = (Rational(rng.randint(1, 40), rng.choice((1, 4, 16))) for _ in range(3))
    s = Rational(rng.randint(-15, 15), 16) * sympy.floor(16 * sympy.sqrt(p * q)) / 16
    return Matrix([[p, s], [s, q]]) if rng.random() < 0.7 else sympy.diag(p, r)


def _near(rng: Random, fits) -> Pair:
    """A positive definite A, and B = A + s (C − A) with s halved until the pair fits."""
    a, c, s = _positive(rng), _positive(rng), Rational(1)
    while not fits((a, a + s * (c - a))):
        s /= 2
    return a, a + s * (c - a)


a11, a12, a22, b11, b12, b22, x, a = sympy.symbols("a11 a12 a22 b11 b12 b22 x a", real=True)
A, B = Matrix([[a11, a12], [a12, a22]]), Matrix([[b11, b12], [b12, b22]])

CLAIMS = (
    ledger.Claim(
        id="A2",
        place="Assumption 2; cited in the proofs of Lemmas 2, 3, 5, 8, 9, 10",
        statement=r"The assumption as typeset, $\|\nabla^2 L(\theta_i' \mid \theta_{-i})^{-1} \nabla^2 L(\theta_i \mid "
        r"\theta_{-i})\|_2 \le 2$ for all $\theta_i, \theta_i' \in \mathbb{R}^d$ at most $R_i$ apart, is the one that "
        r"the proofs use (they use $\frac12 H \preceq H' \preceq 2H$).",
        expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
        answer="The typeset norm asks for more than the order of Hessians that the proofs use, and implies it; ℝ^d "
        "stands for ℝ^(d_i).",
        evidence=(
            ledger.Witness(
                text=r"$L = \frac12(3x^2 + y^2) + \Phi(x+y)$ with $\Phi''$ rising from 0 (for $x+y \le 0$) to "
                r"$\frac34$ (for $x+y \ge 1$). All Hessians lie between $D = \begin{pmatrix}3&0\\0&1\end{pmatrix}$ and "
                r"$D + \frac34\begin{pmatrix}1&1\\1&1\end{pmatrix} \preceq 2D$, so the Loewner form holds with every "
                r"radius. As typeset it fails: $H'^{-1}H = \begin{pmatrix}5/4&1/4\\3/4&7/4\end{pmatrix}$ maps $(1, 2)$ "
                r"to $(\frac74, \frac{17}{4})$, and $\frac{49+289}{16} : 5 = \frac{169}{40} > 4$.",
                instance={"a": 3, "top": Rational(3, 4), "v": (1, 2)},
                sides=_stretch,
                recorded=(Rational(169, 40), Rational(4)),
                harmless={"a": 3, "top": Rational(1, 2), "v": (1, 2)},
                hypotheses=_allowed,
            ),
            ledger.Proof(
                text=r"$A^{-1}B$ is similar to $A^{-1/2} B A^{-1/2}$, whose eigenvalues are therefore at most "
                r"$\|A^{-1}B\|_2 \le 2$: $B \preceq 2A$. The assumption holds for the pair in either order, so $A "
                r"\preceq 2B$ too.",
                target=ledger.Target.REPAIRED,
                steps=(
                    identity(
                        r"$\det(B - xA) = \det(A)\det(A^{-1}B - xI)$: the eigenvalues of $A^{-1}B$ are those of the "
                        r"pair, which are real.",
                        (B - x * A).det(),
                        a * (A.inv() * B - x * sympy.eye(2)).det(),
                        {a: A.det()},
                    ),
                    by_hand(r"An eigenvalue is at most the spectral norm."),
                    by_hand(
                        r"Lines that cite Assumption 2 compare quadratic forms (Lemmas 2, 5, 10, 11), which is the "
                        r"Loewner order, but for one: $\|H_t^{-1}g\| \le 2\|H^{-1}g\|$ in Lemma 8 is the typeset norm."
                    ),
                ),
            ),
            ledger.Search(
                text="Pairs of positive definite 2 × 2 matrices with rational entries that satisfy the typeset norm in "
                "both orders: the pair is in the Loewner order.",
                target=ledger.Target.REPAIRED,
                strategy=seeded(lambda rng: _near(rng, _norms)),
                sides=lambda pair: (_loewner(pair), True),
                relation="==",
                num_examples=60,
                twin=ledger.Twin("the bound 2 on the norms (9/4)", strategy=seeded(lambda rng: _near(rng, _looser))),
            ),
        ),
        repair=r"For all $\theta_i, \theta_i' \in \mathbb{R}^{d_i}$ with $\|\theta_i - \theta_i'\| \le R_i$ and the "
        r"other layers fixed: $\frac12 H(\theta_i) \preceq H(\theta_i') \preceq 2H(\theta_i)$. The typeset inequality "
        r"implies it, and this is what the proofs use, Lemma 8's bound on $\|H_t^{-1} g\|$ apart.",
        note=r"$\theta_i \in \mathbb{R}^d$ is a misprint for $\mathbb{R}^{d_i}$. $R_i$ has a second meaning in the "
        r"theorem (T-radius). Layers that move together need the joint form, for $\|\theta_j - \theta_j'\| \le R_j$ in "
        r"all layers at once (T-coupled). The Loewner form does not change under $\theta \to A\theta$ but for the "
        r"ball; the typeset norm does.",
    ),
)
