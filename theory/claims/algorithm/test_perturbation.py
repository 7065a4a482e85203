"""The directions: their covariance, and what a seed fixes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sympy
from hypothesis import strategies as st

from theory import ledger
from theory.curvature.moments import gaussian_mean

# --- PERT ---------------------------------------------------------------------------------------------------------


def _covariance(at: ledger.Instance) -> ledger.Sides:
    """Variance of z in section 2.1 (and in line 4 of Algorithm 1), and H⁻¹, d = 1."""
    return Fraction(1), 1 / Fraction(at["H"])


def squared_step(H: tuple[Any, ...], g: tuple[Any, ...], where: str) -> Any:
    """E|Δ|² of a step with curvature H (diagonal), the curvature in the direction's covariance or in the denominator.

    "covariance": Δ = c z, z ~ N(0, H⁻¹). "denominator": Δ = H⁻¹ c z, z ~ N(0, I). Both have the mean H⁻¹g.
    """
    w = sympy.symbols(f"w:{len(H)}")
    if where == "covariance":
        z = [wj / sympy.sqrt(h) for wj, h in zip(w, H, strict=True)]
        move = z
    else:
        z = list(w)
        move = [wj / h for wj, h in zip(w, H, strict=True)]
    c = sum(a * b for a, b in zip(g, z, strict=True))
    return gaussian_mean(sum((c * mj) ** 2 for mj in move), w)


def _second_moments(at: ledger.Instance) -> ledger.Sides:
    H, g = (tuple(sympy.Integer(value) for value in at[name]) for name in ("H", "g"))
    return squared_step(H, g, "covariance"), squared_step(H, g, "denominator")


def _equal_means(times: int = 1) -> bool:
    h, g = sympy.symbols("h:2", positive=True), sympy.symbols("g:2")
    w = sympy.symbols("w:2")
    z = [wj / sympy.sqrt(hj) for wj, hj in zip(w, h, strict=True)]
    c = g[0] * z[0] + g[1] * z[1]
    plain = g[0] * w[0] + g[1] * w[1]
    return all(
        sympy.simplify(gaussian_mean(c * z[j], w) - times * g[j] / h[j]) == 0
        and sympy.simplify(gaussian_mean(plain * w[j] / h[j], w) - g[j] / h[j]) == 0
        for j in range(2)
    )


PERT = ledger.Claim(
    id="PERT",
    place="Appendix A.2, second paragraph, against section 2.1 and Algorithm 1",
    statement=r"HELENE draws its perturbations from $N(0, \mathrm{Hessian}^{-1})$.",
    expected=ledger.Verdict.REFUTED,
    answer="Section 2.1 and Algorithm 1 draw z from N(0, I) and divide afterwards: the same mean step, another law.",
    evidence=(
        ledger.Witness(
            text=r"$L = 2\theta^2$, $H = 4$: $\mathrm{Var}\,z = 1$ by section 2.1, whose SPSA Algorithm 1 uses; "
            r"$H^{-1} = \frac14$.",
            instance={"H": 4},
            sides=_covariance,
            recorded=(1, Fraction(1, 4)),
            harmless={"H": 1},
            relation="==",
        ),
        ledger.Witness(
            text=r"In effect, since $H^{-1} c z$ with $z \sim N(0, I)$ and $c z$ with $z \sim N(0, H^{-1})$ have one "
            r"mean, $H^{-1}g$? Not one law: $H = \mathrm{diag}(1, 4)$, $g = (1, 0)$: mean squared lengths "
            r"$\frac{13}{4}$ (covariance) and $\frac{49}{16}$ (denominator).",
            target=ledger.Target.KINDEST,
            instance={"H": (1, 4), "g": (1, 0)},
            sides=_second_moments,
            recorded=(Fraction(13, 4), Fraction(49, 16)),
            harmless={"H": (1, 1), "g": (1, 0)},
            relation="==",
        ),
        ledger.Proof(
            text=r"The means do agree.",
            target=ledger.Target.KINDEST,
            steps=(ledger.Step(r"Both are $g_j/h_j$, two coordinates, any positive $h$.", _equal_means, {"times": 2}),),
        ),
    ),
    note="With h from A-GNB, a matrix $\\mathrm{diag}(h)^{-1}$ does not exist where an entry is 0.",
)


# --- MEZO-seed ----------------------------------------------------------------------------------------------------


def _unequal(case: tuple[int, int, bool]) -> ledger.Sides:
    """How many of the elements differ between the draws for +eps and for the update, from one generator."""
    import torch

    seed, size, reseed = case
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(size, generator=generator)
    if reseed:
        generator.manual_seed(seed)
    again = torch.randn(size, generator=generator)
    return int((first != again).sum()), 0


def _walk_returns(back: int = 2) -> bool:
    theta, eps, z, y, x = sympy.symbols("theta epsilon z y x")
    walk = theta + eps * z - back * eps * y + eps * x  # three draws, meant to be one
    same = sympy.expand(walk.subs({y: z, x: z}) - theta) == 0
    return same and sympy.expand(walk - theta - eps * (z - 2 * y + x)) == 0


def _line(other: int = 0) -> bool:
    """With one z for all steps, θ_t − θ_0 stays a multiple of it: the other directions are never seen."""
    theta, z = (sympy.Matrix(sympy.symbols(f"{name}:3")) for name in "tz")
    a, b = sympy.symbols("a b")
    moved = theta - a * z - b * z - theta + other * theta
    return moved.cross(z).applyfunc(sympy.expand) == sympy.zeros(3, 1)


def _pieces() -> str:
    """The same seed, the same number of elements, drawn in two pieces: another z."""
    import torch

    whole = torch.randn(64, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    pieces = torch.cat([torch.randn(10, generator=generator), torch.randn(54, generator=generator)])
    count = int((whole != pieces).sum())
    assert count > 0, "torch draws the same numbers in pieces as in one"
    return f"{count} of 64 elements differ when torch draws 10 and 54 in place of 64"


def _own_noise() -> str:
    """This project's directions: the words behind them are equal bit for bit in whole and in pieces."""
    import numpy as np

    from helene import noise

    whole = noise.integers(3, 7, 0, 11, 0, 4096)
    pieces = [noise.integers(3, 7, 0, 11, start, 500) for start in range(0, 4096, 500)]
    assert np.array_equal(whole, np.concatenate(pieces)[:4096]), "pieces differ from the whole"
    return "4096 elements in pieces of 500: equal bit for bit"


def _draws(reseed: bool) -> st.SearchStrategy[tuple[int, int, bool]]:
    return st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 300), st.just(reseed))


SEED = ledger.Claim(
    id="MEZO-seed",
    place='Section 2.1, last sentence ("the same perturbation z at each step")',
    statement="A seed fixes the perturbation of a step: its two probes and its update use one and the same z, drawn "
    "anew.",
    expected=ledger.Verdict.HOLDS,
    answer="True within a step, for one device, dtype and splitting into tensors; not one z for all steps, nor "
    "portable.",
    evidence=(
        ledger.Proof(
            text="A pseudo-random generator is a function of its seed and of the calls since: set to the seed and "
            "called alike, it gives the same z, and the walk +eps, −2 eps, +eps returns (in exact arithmetic).",
            steps=(
                ledger.Step(
                    r"$\theta + \epsilon z - 2\epsilon z' + \epsilon z'' = \theta + \epsilon(z - 2z' + z'')$, which is "
                    r"θ for one z.",
                    _walk_returns,
                    {"back": 1},
                ),
                ledger.Step(
                    "The other reading, one z for all steps, would keep θ on a line (three coordinates).",
                    _line,
                    {"other": 1},
                ),
            ),
        ),
        ledger.Search(
            text="torch's generator, random seeds and sizes: z for the probe and again for the update, seed set before "
            "each.",
            strategy=_draws(reseed=True),
            sides=_unequal,
            relation="==",
            twin=ledger.Twin("setting the seed again", strategy=_draws(reseed=False)),
        ),
        ledger.Check("What the seed does not fix: torch's z depends on how the elements are split.", _pieces),
        ledger.Check("Keyed by element, as in `helene.noise`, it does not.", _own_noise),
    ),
    note="torch's normals also differ between devices and GPU models for one seed. In 16 bits the walk does not return "
    "to θ, for one z either.",
)


CLAIMS = (PERT, SEED)
