"""Helene and MeZO against slow float64 references written from Algorithms 1 and 2."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import helene
from helene import noise
from helene.evaluation.directions import Direction
from tests.core.small_problem import BATCH, problem


def direction(model, seed, step, draw=0):
    key = Direction(seed, step, draw)
    return {
        n: key.chunk(noise.parameter_id(n), 0, p.numel(), p.device).double().view(p.shape)
        for n, p in model.named_parameters()
    }


def loss_at(model, theta, batch):
    x, y = batch
    return F.cross_entropy(torch.func.functional_call(model, theta, (x,)), y)


def reference(model, batch, source, steps, hyper, own_batch=None):
    """Algorithm 1 line by line, all in float64, whole tensors, no chunks and no shared code."""
    theta = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    m = {n: torch.zeros_like(p) for n, p in theta.items()}
    h = {n: torch.zeros_like(p) for n, p in theta.items()}

    def slope(z, data):
        plus = loss_at(model, {n: theta[n] + hyper["eps"] * z[n] for n in theta}, data)
        minus = loss_at(model, {n: theta[n] - hyper["eps"] * z[n] for n in theta}, data)
        return (plus - minus) / (2 * hyper["eps"])

    for t in range(1, steps + 1):
        z = direction(model, hyper["seed"], t)
        c = slope(z, batch)
        g = {n: c * z[n] for n in theta}
        alpha = hyper["beta1"] + (1 - hyper["beta1"]) * math.exp(-t / hyper["anneal_horizon"])
        if source != "none" and (hyper["interval"] == 1 or t % hyper["interval"] == 1):
            if source == "spsa":
                estimate = g
            elif source == "spsa_own_batch":
                z2 = direction(model, hyper["seed"], t, noise.CURVATURE_DRAW)
                c2 = slope(z2, own_batch)
                estimate = {n: c2 * z2[n] for n in theta}
            else:
                leaves = {n: p.clone().requires_grad_() for n, p in theta.items()}
                found = torch.autograd.grad(loss_at(model, leaves, own_batch or batch), list(leaves.values()))
                estimate = dict(zip(leaves, found, strict=True))
            for n in theta:
                h[n] = hyper["beta2"] * h[n] + (1 - hyper["beta2"]) * hyper["batch_size"] * estimate[n] ** 2
        for n in theta:
            m[n] = hyper["beta1"] * m[n] + alpha * g[n]
            theta[n] = theta[n] - hyper["lr"] * hyper["weight_decay"] * theta[n]
            denominator = hyper["gamma"] * torch.clamp(h[n], min=hyper["floor"]) + hyper["denominator_eps"]
            theta[n] = theta[n] - hyper["lr"] * m[n] / denominator
    return theta, m, h


HYPER = {
    "lr": 0.02, "eps": 1e-3, "beta1": 0.8, "beta2": 0.7, "interval": 3, "gamma": 0.5, "floor": 0.03,
    "denominator_eps": 0.01, "weight_decay": 0.1, "anneal_horizon": 7.0, "batch_size": BATCH, "seed": 5,
}  # fmt: skip


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("source", ["spsa", "spsa_own_batch", "backprop", "none"])
def test_helene_is_algorithm_1(source, interval):
    """Oracle: the reference above. Rounding of two losses near 1, over 2 eps: 2^-52 / 1e-3, times steps and lr."""
    model, loss, _, batch = problem()
    hyper = {**HYPER, "interval": interval}
    own = (torch.randn(BATCH, 3, dtype=torch.float64), torch.randint(0, 4, (BATCH,)))
    expected, m, h = reference(
        model, batch, source, 10, hyper, own if source in ("spsa_own_batch", "backprop") else None
    )
    optimizer = helene.Helene(model.named_parameters(), curvature=source, model=model, **hyper)
    for _ in range(10):
        optimizer.step(loss, lambda: F.cross_entropy(model(own[0]), own[1]))
    tolerance = 1e3 * 2.0**-52 / HYPER["eps"]
    for n, p in model.named_parameters():
        assert (p - expected[n]).abs().max() <= tolerance
        assert (optimizer.state[p]["momentum"].view_as(p) - m[n]).abs().max() <= tolerance
        if source != "none":
            assert (optimizer.state[p]["curvature"].view_as(p) - h[n]).abs().max() <= 10 * tolerance
            assert (h[n] > HYPER["floor"]).any()  # else the test would not see h


def test_mezo_is_zo_sgd():
    model, loss, _, batch = problem()
    theta = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = helene.MeZO(model.named_parameters(), 0.05, eps=1e-3, weight_decay=0.1, seed=5)
    for t in range(1, 8):
        z = direction(model, 5, t)
        plus = loss_at(model, {n: theta[n] + 1e-3 * z[n] for n in theta}, batch)
        minus = loss_at(model, {n: theta[n] - 1e-3 * z[n] for n in theta}, batch)
        returned = optimizer.step(loss)
        assert torch.allclose(returned, (plus + minus) / 2, rtol=1e-12, atol=0)
        theta = {n: theta[n] - 0.05 * ((plus - minus) / 2e-3 * z[n] + 0.1 * theta[n]) for n in theta}
    for n, p in model.named_parameters():
        assert (p - theta[n]).abs().max() <= 1e3 * 2.0**-52 / 1e-3


def test_bias_correction_and_first_estimate():
    """With a correction, h after one estimate is that estimate; before the first one it is 0 and the floor rules."""
    model, loss, _, _ = problem()
    p = model[0].weight
    optimizer = helene.Helene(
        model.named_parameters(), 0.0, anneal_horizon=9, batch_size=BATCH, beta2=0.9, interval=4, first_estimate=3
    )
    for t in range(1, 4):
        assert optimizer.forwards_at(t) == 2
        optimizer.step(loss)
        assert bool(optimizer.state[p]["curvature"].any()) == (t == 3)
    h = optimizer.state[p]["curvature"].clone()
    optimizer = helene.Helene(
        model.named_parameters(), 0.5, anneal_horizon=math.inf, batch_size=BATCH, beta1=0.0, beta2=0.9, interval=4,
        first_estimate=3, bias_correction=True, floor=1e-9, denominator_eps=0.0,
    )  # fmt: skip
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step(loss)
    optimizer.step(loss)
    optimizer.param_groups[0]["lr"] = 0.5
    before = p.detach().clone()
    optimizer.step(loss)
    moved = (before - p.detach()).view(-1)
    g = optimizer.state[p]["momentum"]
    assert torch.allclose(moved, 0.5 * g / torch.clamp(h / 0.1, min=1e-9), rtol=1e-9)


@pytest.mark.parametrize(
    ("source", "own"), [("spsa", 0), ("spsa_own_batch", 2), ("backprop", 3), ("sampled_labels", 3)]
)
def test_forwards_are_as_declared(source, own):
    model, loss, logits, _ = problem()
    calls = {"forward": 0, "backward": 0}
    model.register_forward_hook(lambda *_: calls.__setitem__("forward", calls["forward"] + 1))
    model[2].register_full_backward_hook(lambda *_: calls.__setitem__("backward", calls["backward"] + 1))
    optimizer = helene.Helene(
        model.named_parameters(), anneal_horizon=9, batch_size=BATCH, interval=2, curvature=source, model=model
    )
    for t in range(1, 5):
        calls.update(forward=0, backward=0)
        optimizer.step(loss, logits if source == "sampled_labels" else loss)
        assert calls["forward"] + 2 * calls["backward"] == optimizer.forwards_at(t) == 2 + (own if t % 2 else 0)


def test_sampled_labels_are_unbiased_for_the_gauss_newton_diagonal():
    """Oracle: the exact diagonal for a linear softmax model. 4,000 draws; false alarms: below 1e-9 (20 coordinates)."""
    torch.manual_seed(1)
    model = nn.Linear(3, 4).double()
    x = torch.randn(BATCH, 3, dtype=torch.float64)
    params = [model.weight, model.bias]
    probabilities = model(x).softmax(-1)
    s = (probabilities * (1 - probabilities)).detach()
    exact = torch.cat([torch.einsum("bc,bi->ci", s, x**2).reshape(-1), s.sum(0)]) / BATCH
    draws = []
    for step in range(4000):
        gradients, count = helene.evaluation.curvature.sampled_label_gradient(lambda: model(x), params, 0, step)
        assert count == BATCH
        draws.append(torch.cat([g.reshape(-1) for g in gradients]) ** 2 * count)
    draws = torch.stack(draws).detach()
    z = (draws.mean(0) - exact) / (draws.std(0) / math.sqrt(len(draws)))
    assert z.abs().max() <= stats.norm.isf(1e-9 / 40)


def test_floors_belong_to_layers():
    model, loss, _, _ = problem()
    groups = helene.layer_groups(model)
    optimizer = helene.Helene(groups, 0.1, anneal_horizon=9, batch_size=BATCH, floor=[1e6, 1.0])
    assert [g["floor"] for g in optimizer.param_groups] == [1e6, 1.0]
    before = copy.deepcopy(model.state_dict())
    optimizer.step(loss)
    shift = {k: (v - before[k]).abs().max() for k, v in model.state_dict().items()}
    assert shift["0.weight"] < 1e-4 < shift["2.weight"]


def test_where_h_is_below_its_floor_helene_is_heavy_ball():
    """ALG-reduce on tensors: step lr / (gamma floor + denominator_eps), alpha(t) on the gradient."""
    model, loss, _, batch = problem()
    hyper = {
        **HYPER,
        "floor": 1e9,
        "gamma": 1e-9,
        "denominator_eps": 1.0,
        "weight_decay": 0.0,
        "anneal_horizon": math.inf,
    }
    optimizer = helene.Helene(model.named_parameters(), **hyper)
    theta = {n: p.detach().clone() for n, p in model.named_parameters()}
    m = dict.fromkeys(theta, 0.0)
    for t in range(1, 6):
        z = direction(model, 5, t)
        c = sum(s * loss_at(model, {n: theta[n] + s * 1e-3 * z[n] for n in theta}, batch) for s in (1, -1)) / 2e-3
        m = {n: 0.8 * m[n] + c * z[n] for n in theta}
        theta = {n: theta[n] - 0.02 / 2 * m[n] for n in theta}
        optimizer.step(loss)
    assert all((p - theta[n]).abs().max() <= 1e3 * 2.0**-52 / 1e-3 for n, p in model.named_parameters())


def test_both_optimizers_reduce_a_loss():
    for build in (
        lambda m: helene.MeZO(m.named_parameters(), 0.1, model=m),
        lambda m: helene.Helene(helene.layer_groups(m), 0.02, anneal_horizon=150, batch_size=BATCH, model=m),
    ):
        model, loss, _, _ = problem(torch.float32)
        first = loss().item()
        optimizer = build(model)
        for _ in range(150):
            optimizer.step(loss)
        assert loss().item() < 0.5 * first
