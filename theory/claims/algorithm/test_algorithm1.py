"""What Algorithm 1 is: not the update of the theorem; heavy-ball zeroth-order SGD wherever the floor is active."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from typing import Any

import sympy

from theory import ledger
from theory.losses.draws import rational, seeded
from theory.updates import algorithm1
from theory.updates.algorithm1 import Settings, State

# --- ALG-same -----------------------------------------------------------------------------------------------------


def theorem_step(theta: Any, sigma: Any, clip: Any, lr: Any) -> Any:
    """The length of the theorem's step on ½σθ², d = 1: lr · clip(H⁻¹g, ρ)."""
    newton = sigma * theta / sigma
    return lr * max(-clip, min(clip, newton))


def algorithm_step(theta: Any, sigma: Any, floor: Any, lr: Any) -> Any:
    """That of Algorithm 1 with the exact Hessian for h, and β1 = ε = 0, γ = α = 1."""
    start = State((theta,), (0,), (sigma,))
    after = algorithm1.step(start, (sigma * theta,), None, (floor,), Settings(lr=lr))
    return theta - after.theta[0]


def _same(at: ledger.Instance) -> ledger.Sides:
    clip = Fraction(at["R"]) / 2  # R/(2√d), d = 1
    return algorithm_step(at["theta"], at["sigma"], clip, at["lr"]), theorem_step(
        at["theta"], at["sigma"], clip, at["lr"]
    )


def _homogeneous(at: ledger.Instance) -> ledger.Sides:
    return tuple(
        factor * theorem_step(theta, at["sigma"], at["clip"], at["lr"])
        for factor, theta in ((1, at["factor"] * at["theta"]), (at["factor"], at["theta"]))
    )


def _algorithm_is_linear(power: int = 1) -> bool:
    g, h, floor, lr, gamma, eps, k = sympy.symbols("g h lambda eta gamma epsilon k", positive=True)

    def length(gradient: Any) -> Any:
        return lr * gradient / (gamma * sympy.Max(h, floor) + eps)

    return sympy.simplify(length(k * g) - k**power * length(g)) == 0


SAME = ledger.Claim(
    id="ALG-same",
    place="Algorithm 1 and section 3.5 against section 4 and Lemma 10",
    statement=r"Algorithm 1, $\theta - \eta\, m/(\gamma \max(h, \lambda_i) + \epsilon)$, is the update that the "
    r"theorem analyses, $\theta - \eta V^\top \mathrm{clip}(V H^{-1} \nabla L, \lambda_i)$.",
    expected=ledger.Verdict.REFUTED,
    answer="One bounds the step from above, the other the curvature from below; no choice of constants makes them one.",
    evidence=(
        ledger.Witness(
            text=r"The case most alike: $L = \frac12\theta^2$, $h$ the exact Hessian 1, no momentum, $\gamma = 1$, "
            r"$\epsilon = 0$, $R = 1$, so $\lambda = \frac12$, and $\eta = \frac12$. From $\theta = 1$ Algorithm 1 "
            r"moves by $\frac12 \cdot \frac{1}{\max(1, 1/2)} = \frac12$, the theorem's update by $\frac12 \cdot "
            r"\frac12 = \frac14$.",
            instance={"theta": Fraction(1), "sigma": Fraction(1), "R": 1, "lr": Fraction(1, 2)},
            sides=_same,
            recorded=(Fraction(1, 2), Fraction(1, 4)),
            harmless={"theta": Fraction(1, 4), "sigma": Fraction(1), "R": 1, "lr": Fraction(1, 2)},
            relation="==",
        ),
        ledger.Witness(
            text=r"With floor, η, γ, ε of Algorithm 1 chosen at will: on a quadratic its step is proportional to θ, "
            r"the theorem's is not. With the clip $\frac12$, $\eta = \frac12$: at $\theta = 2$ it moves by $\frac14$, "
            r"twice its move at $\theta = 1$ is $\frac12$.",
            target=ledger.Target.KINDEST,
            instance={
                "theta": Fraction(1),
                "factor": 2,
                "sigma": Fraction(1),
                "clip": Fraction(1, 2),
                "lr": Fraction(1, 2),
            },
            sides=_homogeneous,
            recorded=(Fraction(1, 4), Fraction(1, 2)),
            harmless={
                "theta": Fraction(1, 8),
                "factor": 2,
                "sigma": Fraction(1),
                "clip": Fraction(1, 2),
                "lr": Fraction(1, 2),
            },
            relation="==",
        ),
        ledger.Proof(
            text="Algorithm 1's step is linear in the gradient for every choice of its constants, given h.",
            target=ledger.Target.KINDEST,
            steps=(
                ledger.Step(
                    r"$\frac{\eta\, k g}{\gamma\max(h,\lambda)+\epsilon} = k \frac{\eta\, "
                    r"g}{\gamma\max(h,\lambda)+\epsilon}$ for all positive symbols.",
                    _algorithm_is_linear,
                    {"power": 2},
                ),
            ),
        ),
    ),
    note="Beyond d = 1 they differ more: the theorem turns to the eigenbasis of the exact block Hessian, Algorithm 1 "
    "works on coordinates, with an estimate, momentum and one direction. What the theorem analyses is Sophia's "
    r"idealised update with a clip for each layer. The two agree where $\lambda \le h$ and $|g/h| \le \rho$.",
)


# --- ALG-reduce ---------------------------------------------------------------------------------------------------


def make_run(rng: random.Random, most: Fraction | int = 1) -> ledger.Instance:
    """A run on a random quadratic with random layers, floors, directions, anneal and curvature estimates.

    Estimates lie in [0, most · floor]; up to most = 1 their average h stays below the floor.
    """
    layers = [(rng.randint(1, 2), rational(rng, Fraction(1, 6), 3)) for _ in range(rng.randint(1, 3))]
    floors = tuple(floor for width, floor in layers for _ in range(width))
    d, steps = len(floors), rng.randint(2, 4)
    return {
        "floors": floors,
        "sigmas": tuple(rational(rng, Fraction(1, 6), 2) for _ in range(d)),
        "theta": tuple(rational(rng, -2, 2) for _ in range(d)),
        "settings": Settings(
            lr=rational(rng, Fraction(1, 6), 1),
            beta1=rational(rng, 0, Fraction(5, 6)),
            beta2=rational(rng, 0, Fraction(5, 6)),
            gamma=rational(rng, Fraction(1, 6), 2),
            denominator_eps=rational(rng, 0, 1),
        ),
        "alphas": tuple(rational(rng, Fraction(1, 6), 1) for _ in range(steps)),
        "directions": tuple(tuple(rng.randint(-2, 2) for _ in range(d)) for _ in range(steps)),
        "estimates": tuple(
            tuple(floor * rational(rng, 0, most) for floor in floors) if rng.random() < 0.7 else None
            for _ in range(steps)
        ),
    }


def _trajectories(run: ledger.Instance) -> ledger.Sides:
    """Σ over the steps of the squared distance of the two trajectories, each on its own gradients; and 0."""
    state = State.start(run["theta"])
    iterates = [run["theta"], run["theta"]]
    distance = Fraction(0)
    for alpha, z, estimate in zip(run["alphas"], run["directions"], run["estimates"], strict=True):
        g = algorithm1.spsa_on_quadratic(state.theta, run["sigmas"], z)
        state = algorithm1.step(state, g, estimate, run["floors"], run["settings"], alpha)
        own = algorithm1.spsa_on_quadratic(iterates[-1], run["sigmas"], z)
        iterates.append(algorithm1.heavy_ball((iterates[-2], iterates[-1]), own, run["floors"], run["settings"], alpha))
        distance += algorithm1.squared_distance(state.theta, iterates[-1])
    return distance, 0


def _floor_wins(share: int = 1) -> bool:
    floor, gap = sympy.symbols("lambda delta", nonnegative=True)
    return sympy.simplify(sympy.Max(floor - gap, floor).rewrite(sympy.Abs) - share * floor) == 0


def _polyak_form(weight: int = 1) -> bool:
    theta, before, m, g, size, beta, alpha = sympy.symbols("theta before m g s beta alpha")
    now = before - size * m  # the last step: θ_t = θ_{t−1} − s m_{t−1}
    return sympy.expand((theta - size * (beta * m + alpha * g)).subs(theta, now)
                        - (now - size * alpha * g + weight * beta * (now - before))) == 0  # fmt: skip


def _tensors_agree() -> str:
    """Algorithm 1 by ``helene.functional`` against heavy ball by its own lines, float64, bit for bit."""
    import torch

    from helene import functional

    generator = torch.Generator().manual_seed(20)
    d, steps, lr, beta1, beta2, gamma, eps, batch = 60, 200, 1.0, 0.9, 0.99, 1.5, 1e-8, 8
    sigmas = torch.rand(d, generator=generator, dtype=torch.float64) + 0.1
    floor = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64).repeat_interleave(d // 3) * 200
    theta = torch.randn(d, generator=generator, dtype=torch.float64)
    ball, m, v, h = theta.clone(), torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros_like(theta)
    largest = 0.0
    for t in range(1, steps + 1):
        z, alpha = torch.randn(d, generator=generator, dtype=torch.float64), functional.anneal(t, beta1, 100.0)
        g = (sigmas * theta * z).sum() * z
        m = functional.momentum(m, g, beta1, alpha)
        if functional.is_curvature_step(t, 10):
            h = functional.curvature_ema(h, functional.a_gnb(g, batch), beta2)
        theta = functional.descend(theta, functional.precondition(m, h, gamma, floor, eps), lr)
        g = (sigmas * ball * z).sum() * z
        v = beta1 * v + alpha * g
        ball = ball - lr * (v / (gamma * floor + eps))
        largest = max(largest, float((h / floor).max()))
    assert largest < 1, f"the curvature reached {largest:.3g} floors; the check needs it below 1"
    assert torch.equal(theta, ball), "the trajectories differ"
    assert torch.isfinite(theta).all(), "the trajectories are not finite"
    return f"{steps} steps in {d} dimensions, h at most {largest:.2g} of its floor: equal bit for bit"


REDUCE = ledger.Claim(
    id="ALG-reduce",
    place="ours, of Algorithm 1",
    statement=r"While $h \le \lambda_i$ in every coordinate, Algorithm 1 is heavy-ball zeroth-order SGD with the step "
    r"$\eta/(\gamma\lambda_i + \epsilon)$ for layer $i$ and the weight $\alpha(t)$ on the gradient: the same iterates.",
    expected=ledger.Verdict.HOLDS,
    answer="Equal trajectories, exactly; the curvature plays no part then, only the floors scale the layers' steps.",
    evidence=(
        ledger.Proof(
            text=r"If $h \le \lambda_i$ the denominator is the constant $\gamma\lambda_i + \epsilon$ of the layer, and "
            r"what is left is the momentum form of the heavy ball. Induction over the steps: the same θ gives the same "
            r"two losses, so the same $c\\,z$.",
            steps=(
                ledger.Step(
                    r"$\max(\lambda - \delta, \lambda) = \lambda$ for $\delta \ge 0$.", _floor_wins, {"share": 2}
                ),
                ledger.Step(
                    r"With $\theta_t = \theta_{t-1} - s\, m_{t-1}$ and $m_t = \beta_1 m_{t-1} + \alpha g_t$: "
                    r"$\theta_t - s\, m_t = \theta_t - s\,\alpha g_t + \beta_1(\theta_t - \theta_{t-1})$.",
                    _polyak_form,
                    {"weight": 2},
                ),
            ),
        ),
        ledger.Search(
            text="Quadratics with one to three layers of widths 1 and 2, rational curvatures, floors, constants, "
            "anneals and directions, two to four steps, each trajectory on its own SPSA gradients (exact on a "
            "quadratic). Estimates are drawn in [0, λ]; h, an average of these and of 0, stays there.",
            strategy=seeded(make_run),
            sides=_trajectories,
            relation="==",
            twin=ledger.Twin("h may exceed the floor", strategy=seeded(lambda rng: make_run(rng, most=3))),
        ),
        ledger.Check("The same on tensors, through `helene.functional`.", _tensors_agree),
    ),
    note="A constant η and no weight decay are needed only for the form without a momentum; with both, θ is the same "
    "as that of momentum SGD whose step is η over the layer's constant.",
)


def test_exact_copy_agrees_with_functional():
    """One step of the exact copy against ``helene.functional`` in float64, over 200 random states.

    A coordinate of the new θ takes fewer than 16 roundings, each of relative size u = 2^-53 of a term that is at most
    |θ| + η(β1|m| + α|g|)/denominator; hence the tolerance.
    """
    import torch

    from helene import functional

    rng = random.Random(7)
    for _ in range(200):
        run = make_run(rng, most=3)
        s = dataclasses.replace(run["settings"], weight_decay=rational(rng, 0, 1))
        g = algorithm1.spsa_on_quadratic(run["theta"], run["sigmas"], run["directions"][0])
        estimate = run["estimates"][0] or tuple(0 * floor for floor in run["floors"])
        before = State(run["theta"], tuple(rational(rng, -1, 1) for _ in g), tuple(rational(rng, 0, 1) for _ in g))
        alpha = run["alphas"][0]
        after = algorithm1.step(before, g, estimate, run["floors"], s, alpha)

        theta, m, h, gradient, guess, floor = (
            torch.tensor([float(value) for value in vector], dtype=torch.float64)
            for vector in (before.theta, before.m, before.h, g, estimate, run["floors"])
        )
        m = functional.momentum(m, gradient, float(s.beta1), float(alpha))
        h = functional.curvature_ema(h, guess, float(s.beta2))
        theta = functional.decay(theta, float(s.lr), float(s.weight_decay))
        direction = functional.precondition(m, h, float(s.gamma), floor, float(s.denominator_eps))
        theta = functional.descend(theta, direction, float(s.lr))
        for j, exact in enumerate(after.theta):
            denominator = s.gamma * max(after.h[j], run["floors"][j]) + s.denominator_eps
            size = abs(before.theta[j]) + s.lr * (s.beta1 * abs(before.m[j]) + alpha * abs(g[j])) / denominator
            assert abs(Fraction(float(theta[j])) - exact) <= 16 * Fraction(1, 2**53) * size


CLAIMS = (SAME, REDUCE)
