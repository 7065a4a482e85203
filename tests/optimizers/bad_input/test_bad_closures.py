"""Closures and steps that cannot be: one clear error, weights and state as before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import helene
from tests.optimizers.contract.contract_table import METHODS, one


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_step_within_a_step(method):
    p = one()
    optimizer = method.build([p], 0.1)
    with pytest.raises(RuntimeError, match="step was called within a step of the same optimizer"):
        optimizer.step(lambda: optimizer.step(lambda: p.sum()))
    assert torch.equal(p, torch.ones(3))
    assert optimizer.param_groups[0]["step"] == 0
    optimizer.step(lambda: p.square().sum())


@pytest.mark.parametrize("name", ["MeZO", "HiZOO", "ZOAdam"])
def test_slopes_that_overflow(name):
    p, losses = one(torch.float64), iter(range(9))
    optimizer = getattr(helene, name)([p], 0.1, eps=1e-310)
    with pytest.raises(FloatingPointError, match="eps = 1e-310 is too small"):
        optimizer.step(lambda: float(next(losses)))
    assert torch.equal(p, torch.ones(3, dtype=torch.float64))
    assert optimizer.param_groups[0]["step"] == 0


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_step_in_inference_mode_and_the_next_outside(method):
    p, q = one(), one()
    inside, outside = method.build([p], 0.1), method.build([q], 0.1)
    with torch.inference_mode():
        inside.step(lambda: p.square().sum())
    inside.step(lambda: p.square().sum())
    for _ in range(2):
        outside.step(lambda: q.square().sum())
    assert torch.equal(p, q)


def test_a_closure_that_gives_two_values():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.ones(8, 4)
    optimizer = helene.MeZO(model.named_parameters(), 0.1)
    with pytest.raises(ValueError, match=r"gave .* and then .* at the same point.*model.eval\(\)"):
        optimizer.check_closure(lambda: model(x).square().mean())
    model.eval()
    optimizer.check_closure(lambda: model(x).square().mean())
    assert optimizer.param_groups[0]["step"] == 0


def test_a_loss_that_is_not_finite_at_the_weights_is_told_from_one_at_a_probe():
    p = one(torch.float64)
    optimizer = helene.MeZO([p], 0.1, eps=1.0)

    def of_probe():
        return p.sum() if bool((p == 1).all()) else p.sum() * float("inf")

    with pytest.raises(FloatingPointError, match=r"the loss is -?inf.*eps.*; check_closure\(closure\).* at fault"):
        optimizer.step(of_probe)
    optimizer.check_closure(of_probe)
    with pytest.raises(FloatingPointError, match="the loss is nan at the weights themselves, so no eps helps"):
        optimizer.check_closure(lambda: p.sum() * float("nan"))


def test_a_step_whose_loss_changes_buffers_is_warned_of_once():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    optimizer = helene.MeZO(model.named_parameters(), 0.1, model=model)
    with pytest.warns(UserWarning, match=r"changes the model's buffer 1\.num_batches_tracked.*model\.eval") as told:
        optimizer.step(lambda: model(x).square().mean())
    assert len(told) == 1
    optimizer.step(lambda: model(x).square().mean())
    model.eval()
    helene.MeZO(model.named_parameters(), 0.1, model=model).step(lambda: model(x).square().mean())


def test_a_closure_that_changes_buffers():
    """Batch norm in training mode gives one value twice, yet keeps the statistics of perturbed activations."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    optimizer = helene.MeZO(model.named_parameters(), 0.1, model=model)
    with pytest.raises(ValueError, match=r"changes the model's buffer 1\.running_mean, .*call model\.eval"):
        optimizer.check_closure(lambda: model(x).square().mean())
    model.eval()
    optimizer.check_closure(lambda: model(x).square().mean())


@pytest.mark.parametrize("name", ["MeZO", "HiZOO", "FZOO", "ZOConservative", "check_closure"])
def test_a_closure_that_runs_out_of_batches(name):
    """Its StopIteration comes through, and nothing has moved."""
    p, batches = one(), iter(range(1))
    optimizer = getattr(helene, name, helene.MeZO)([p], 0.1)
    call = optimizer.check_closure if name == "check_closure" else optimizer.step
    with pytest.raises(StopIteration):
        call(lambda: (p + next(batches)).sum())
    assert torch.equal(p, torch.ones(3))
    assert optimizer.steps_made == 0


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_closures(method):
    p = one()
    optimizer = method.build([p], 0.1)
    for value, text in (
        (lambda: None, "returned None"),
        (lambda: p.expand(2, 3) * 1.0, "must return one real number"),
        (lambda: "loss", "returned a str"),
        (lambda: p.sum() * float("inf"), "inf; parameters and state are unchanged"),
    ):
        with pytest.raises((ValueError, FloatingPointError), match=text):
            optimizer.step(value)
    for value, text in ((None, "got nothing"), (p.sum(), "got a Tensor")):
        with pytest.raises(ValueError, match=f"step needs a function that returns the loss of one minibatch, {text}"):
            optimizer.step(value)
    if not method.zeroth_order:
        with pytest.raises(ValueError, match="no graph"):
            optimizer.step(lambda: 1.0)
        with pytest.raises(FloatingPointError, match="the gradient is not finite"):
            optimizer.step(lambda: (p - 1).abs().sqrt().sum())
    if method.name == "ForwardGrad":
        with pytest.raises(ValueError, match="forward-mode derivative"):
            optimizer.step(lambda: 1.0)
    assert torch.equal(p, torch.ones(3))
    assert optimizer.param_groups[0]["step"] == 0


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_closures_that_call_backward(method):
    """A closure that takes a derivative inside, as a loss of a differential equation does, is none of them."""
    p = one()

    def backward():
        loss = p.exp().sum()
        loss.backward()
        return loss

    def derivative():
        with torch.enable_grad():
            x = torch.ones(3, requires_grad=True)
            (slope,) = torch.autograd.grad((p * x).exp().sum(), x, create_graph=True)
        return slope.square().sum()

    optimizer = method.build([p], 0.1)
    with pytest.raises(ValueError, match="the closure calls backward; it must only return the loss"):
        optimizer.step(backward)
    assert torch.equal(p, torch.ones(3))
    assert optimizer.param_groups[0]["step"] == 0
    if method.zeroth_order:
        with pytest.raises(ValueError, match="the closure calls backward"):
            optimizer.check_closure(backward)
    if method.name != "ForwardGrad":
        optimizer.step(derivative)
