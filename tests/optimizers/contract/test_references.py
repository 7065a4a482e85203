"""Each method, step by step, against a slow float64 reference written from its paper; first-order ones against torch.

The references see one flat vector, a loss and directions; they share no code with the package but the generator of z
(`helene.noise`, tested apart). Tolerance: a loss near 1 is rounded to 2^-52, c = ΔL / (2 eps) to 2^-52 / eps; a
thousand times that leaves room for the steps' amplification. HiZOO divides by eps², FZOO by the losses' spread, about
eps.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import helene
from helene import noise
from helene.steps.plan import names
from tests.optimizers.contract.references import (
    BATCH,
    EPS,
    SEED,
    STEPS,
    TOLERANCE,
    AdamRef,
    AdamWRef,
    ConservativeRef,
    ExactLionRef,
    ExactSophiaRef,
    ForwardRef,
    FZOORef,
    HiZOORef,
    LionRef,
    MeZORef,
    MomentumRef,
    NewtonRef,
    Problem,
    SampledSophiaRef,
    ScalarSignRef,
    SignRef,
    SophiaRef,
    spsa,
)

ADAM = {"beta1": 0.8, "beta2": 0.9, "denominator_eps": 1e-3}
CURVED = {"batch_size": BATCH, "beta2": 0.7, "interval": 3}
METHODS = [
    ("MeZO", MeZORef, {"lr": 0.05}, 1.0),
    ("ZOMomentum", MomentumRef, {"lr": 0.02, "momentum": 0.8}, 1.0),
    ("ZOConservative", ConservativeRef, {"lr": 2.0}, 1.0),
    ("ZOSign", SignRef, {"lr": 0.02}, 1.0),
    ("ZOScalarSign", ScalarSignRef, {"lr": 0.02}, 1.0),
    ("ZOAdam", AdamRef, {"lr": 0.02, **ADAM}, 100.0),  # 1 / denominator_eps amplifies the first, small second moments
    ("ZOAdamW", AdamWRef, {"lr": 0.02, **ADAM}, 100.0),
    ("ZOLion", LionRef, {"lr": 0.02, "beta1": 0.8, "beta2": 0.9}, 1.0),
    (
        "ZOSophia",
        SophiaRef,
        {"lr": 0.02, "beta1": 0.8, "gamma": 0.5, "clip": 0.5, "denominator_eps": 0.1, **CURVED},
        1.0,
    ),
    ("ZONewton", NewtonRef, {"lr": 0.02, "denominator_eps": 0.1, **CURVED}, 10.0),
    ("ForwardGrad", ForwardRef, {"lr": 0.05}, 1.0),
    ("HiZOO", HiZOORef, {"lr": 0.05, "smooth": 0.3}, 1.0 / EPS),
    ("FZOO", FZOORef, {"lr": 0.02, "num_directions": 5}, 10.0),
]


@pytest.mark.parametrize(("name", "reference", "hyper", "scale"), METHODS, ids=[m[0] for m in METHODS])
def test_method_is_its_paper(name, reference, hyper, scale):
    problem = Problem()
    hyper = {"weight_decay": 0.1, **hyper}
    expected = reference(problem, hyper)
    optimizer = getattr(helene, name)(problem.named.items(), **with_eps(name), seed=SEED, model=problem.model, **hyper)
    start, before = problem.theta(), problem.loss().item()
    for t in range(1, STEPS + 1):
        error = np.abs(expected.step() - (optimizer.step(problem.loss), problem.theta())[1]).max()
        assert error <= scale * TOLERANCE, f"step {t}: {error}"
    assert np.abs(problem.theta() - start).max() > 1e6 * scale * TOLERANCE or name == "HiZOO"
    assert problem.loss().item() != before
    if name == "ZOConservative":
        assert set(expected.choices) >= {0, 1}  # else the test would not see the choice
    if name == "ZOSophia":
        assert sum(optimizer.clip_counts().values()) == expected.clipped > 0


ESTIMATORS = [
    {"num_directions": 3},
    {"two_sided": False},
    {"num_directions": 2, "two_sided": False},
    {"distribution": "rademacher"},
    {"distribution": "sphere"},
    {"direction_per_layer": True},
    {"direction_per_layer": True, "num_directions": 2, "distribution": "sphere", "two_sided": False},
]


def probing_of(name):
    """The names of a method's options for directions and probes."""
    return set(names(getattr(helene, name).PROBING))


def with_eps(name):
    return {"eps": EPS} if "eps" in probing_of(name) else {}


def _schedules():
    for name in ("MeZO", "ForwardGrad", "HiZOO", "ZOConservative"):
        for options in ESTIMATORS:  # HiZOO's probes are two-sided, its reference here Gaussian; ForwardGrad has none
            known = {"num_directions", "direction_per_layer"} if name == "HiZOO" else probing_of(name)
            if set(options) <= known:
                yield pytest.param(name, options, id="-".join(map(str, (name, *options, *options.values()))))


@pytest.mark.parametrize(("name", "options"), list(_schedules()))
def test_estimators(name, options):
    """The shared options, through each of the four probe schedules, by the reference of the estimate."""
    problem = Problem()
    q, law = (
        options.get("num_directions", 1),
        {"rademacher": "signs"}.get(options.get("distribution"), options.get("distribution")),
    )
    blocks = problem.spans() if options.get("direction_per_layer") else None
    optimizer = getattr(helene, name)(problem.groups(), 0.05, **with_eps(name), seed=SEED, **options)
    theta, h = problem.theta(), np.ones_like(problem.theta())
    for t in range(1, 5):
        forwards = {"count": 0}
        handle = problem.model.register_forward_hook(lambda *_, c=forwards: c.__setitem__("count", c["count"] + 1))
        optimizer.step(problem.loss)
        handle.remove()
        cost = 2 if name == "ForwardGrad" else 1
        assert forwards["count"] * cost == optimizer.forwards_at(t)
        if name == "ForwardGrad":
            true, g = problem.gradient(theta), np.zeros_like(theta)
            for j in range(q):
                for block in blocks or [slice(0, theta.size)]:
                    v = np.zeros_like(theta)
                    v[block] = problem.z(t, j, "signs" if law == "signs" else "normal")[block]
                    v *= math.sqrt(v[block].size) / np.linalg.norm(v) if law == "sphere" else 1.0
                    g += (true @ v) * v / q
        elif name == "HiZOO":
            g, second = np.zeros_like(theta), np.zeros_like(theta)
            for j in range(q):
                z = problem.z(t, j)
                for block in blocks or [slice(0, theta.size)]:
                    v = np.zeros_like(theta)
                    v[block] = z[block] / np.sqrt(h[block])
                    plus, minus, here = (problem.f(theta + s * EPS * v) for s in (1, -1, 0))
                    g += (plus - minus) / (2 * EPS) * v / q
                    second[block] += abs(plus + minus - 2 * here) / (2 * EPS**2) * z[block] ** 2 * h[block] / q
            h = (1 - 1e-8) * h + 1e-8 * second
        else:
            g = spsa(problem, theta, t, q, options.get("two_sided", True), law or "normal", blocks)
        sides = (0, 1, -1) if name == "ZOConservative" else (1,)
        theta = min((theta - s * 0.05 * g for s in sides), key=problem.f)
        assert np.abs(problem.theta() - theta).max() <= TOLERANCE


def test_directions_have_unit_second_moments():
    """E[z zᵀ] = I, so E[g] = ∇L: the sphere by its length (exact), signs by their counts (binomial).

    False alarms: 4 counts of 2^18 fair coins beyond 7 standard deviations, 1e-11 in all.
    """
    p = nn.Parameter(torch.zeros(200, dtype=torch.float64))
    optimizer = helene.MeZO([p], 1.0, seed=SEED, distribution="sphere")
    optimizer.step(lambda: p.sum())
    v = p.detach() / math.sqrt(p.sum().abs().item())  # p = −(v·1) v, whose sum is −(v·1)²
    assert abs(v.norm().item() - math.sqrt(200)) < 1e-6
    p = nn.Parameter(torch.zeros(200, dtype=torch.float64))
    helene.ZOScalarSign([p], 1.0, seed=SEED, distribution="sphere").step(lambda: p.sum())  # p = ± v
    assert abs(p.norm().item() - math.sqrt(200)) < 1e-6
    size = 1 << 18
    a, b = (noise.signs(SEED, t, 0, 7, 0, size) for t in (1, 2))
    other = noise.signs(SEED, 1, 1, 7, 0, size)
    assert set(a.unique().tolist()) == {-1.0, 1.0}
    for product in (a, a * b, a * other, a[1:] * a[:-1]):
        assert abs(product.sum().item()) <= 7 * math.sqrt(size)


@pytest.mark.parametrize(
    ("name", "ours", "torchs", "hyper"),
    [
        ("SGD", {"momentum": 0.0}, torch.optim.SGD, {"momentum": 0.0}),
        ("SGD", {"momentum": 0.8}, torch.optim.SGD, {"momentum": 0.8}),
        ("Adam", ADAM, torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-3}),
        ("AdamW", ADAM, torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-3}),
    ],
)
def test_first_order_rules_are_torchs(name, ours, torchs, hyper):
    """Oracle: torch.optim with its own backward. A few roundings a step, 1e3 u."""
    problem, other = Problem(), Problem()
    optimizer = getattr(helene, name)(problem.named.items(), 0.05, weight_decay=0.1, **ours)
    expected = torchs(other.model.parameters(), lr=0.05, weight_decay=0.1, **hyper)
    for t in range(1, STEPS + 1):
        assert optimizer.forwards_at(t) == 3
        optimizer.step(problem.loss)
        expected.zero_grad()
        other.loss().backward()
        expected.step()
        assert np.abs(problem.theta() - other.theta()).max() <= 1e3 * 2.0**-52
    assert all(p.grad is None for p in problem.named.values())


@pytest.mark.parametrize(
    ("name", "reference", "hyper", "tolerance"),
    [
        ("Lion", ExactLionRef, {"lr": 0.02, "beta1": 0.8, "beta2": 0.9}, 1e3 * 2.0**-52),
        ("SophiaG", ExactSophiaRef, {"lr": 0.02, "curvature": "backprop", **METHODS[8][2]}, 1e3 * 2.0**-52),
        ("SophiaG", SampledSophiaRef, {"lr": 0.02, "curvature": "sampled_labels", **METHODS[8][2]}, 1e3 * 2.0**-52),
    ],
    ids=["Lion", "SophiaG-backprop", "SophiaG-sampled"],
)
def test_first_order_rules_without_a_torch_twin(name, reference, hyper, tolerance):
    problem = Problem()
    hyper = {"weight_decay": 0.1, **hyper}
    expected = reference(problem, hyper)
    optimizer = getattr(helene, name)(problem.named.items(), seed=SEED, **hyper)
    for _ in range(STEPS):
        if hyper.get("curvature"):
            optimizer.step(problem.loss, problem.logits if hyper["curvature"] == "sampled_labels" else None)
        else:
            optimizer.step(problem.loss)
        assert np.abs(problem.theta() - expected.step()).max() <= tolerance
    if hyper.get("curvature"):
        assert sum(optimizer.clip_counts().values()) == expected.clipped > 0


@pytest.mark.parametrize("name", ["SGD", "Adam", "Lion"])
def test_sparse_gradients_are_those_of_dense_embeddings(name):
    tables = [nn.Embedding.from_pretrained(torch.ones(5, 2), freeze=False, sparse=sparse) for sparse in (False, True)]
    for table in tables:
        optimizer = getattr(helene, name)(table.named_parameters(), lr=0.1)
        for _ in range(3):
            optimizer.step(lambda table=table: table(torch.tensor([1, 3, 3])).square().sum())
    assert torch.equal(tables[0].weight, tables[1].weight)
