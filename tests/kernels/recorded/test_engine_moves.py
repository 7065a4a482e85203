"""How many operations a recorded update is made of: on a GPU each is a kernel."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helene import SGD, Adam, AdamW, Lion
from helene.engine.gradients import GradientEngine
from helene.evaluation.curvature import all_finite
from helene.rules import AdamRule, AdamWRule

VIEWS = "view", "slice", "detach", "alias", "lift_fresh"


class Operations(TorchDispatchMode):
    """Counts them by name, views left out."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.counts[name] += name not in VIEWS
        return func(*args, **(kwargs or {}))


def replayed(method, layers, rates=(0.01,), **options):
    """Operations of a recorded update of as many layers of two parameters; rates repeat."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))
    groups = [{"params": list(m.parameters()), "lr": rates[i % len(rates)]} for i, m in enumerate(model)]
    engine = GradientEngine(model, method(groups, **options), lambda m, x: m(x).square().mean(), capture="repeat")
    for step in range(1, 7):
        engine.step(torch.full((2, 3), float(step)))
    [shape] = engine._moves.recordings._shapes.values()
    with Operations() as made:
        shape.recorded.replay()
    return made.counts


@pytest.mark.parametrize(
    ("method", "options", "each"),
    [
        (Adam, {"weight_decay": 0.1}, 18),
        (AdamW, {"weight_decay": 0.1}, 18),
        (Adam, {}, 16),
        (Lion, {}, 11),
        (SGD, {"momentum": 0.9}, 7),
    ],
)
def test_an_update_has_so_many_operations_a_parameter(method, options, each):
    """Those of the arithmetic and one copy for theta and each state; what follows from the step's number is no more."""
    few, many = (replayed(method, layers, **options).total() for layers in (2, 7))
    assert many - few == 10 * each


@pytest.mark.parametrize(("rates", "different"), [((0.01,), 1), ((0.01, 0.02), 2), ((0.01, 0.02, 0.01), 2)])
def test_corrections_of_adam_are_computed_once_for_equal_layers(rates, different):
    assert replayed(Adam, 6, rates)["pow"] == 2 * different  # of beta1 and of beta2


@pytest.mark.parametrize("derived", [AdamRule, AdamWRule])
def test_an_update_of_its_own_is_the_one_that_steps_make(derived):
    class Still(derived):
        def update(self, step, theta, g, state, estimate=None):
            moved, state = super().update(step, theta, g, state, estimate)
            return moved * 0.0 + theta, state

    theta, rule = torch.ones(2), Still(lr=0.1)
    assert torch.equal(rule.at(1)(theta, theta, rule.init(theta))[0], theta)
    rule = derived(lr=0.1)
    assert torch.equal(rule.at(3)(theta, theta, rule.init(theta))[0], rule.update(3, theta, theta, rule.init(theta))[0])


def test_whether_all_is_finite_takes_as_many_operations_for_many_gradients():
    """Sums of such elements would overflow; their largest magnitude does not."""
    counts = []
    for number in (2, 50):
        gradients = [torch.full((3,), torch.finfo(torch.float32).max) for _ in range(number)]
        with Operations() as made:
            assert all_finite(gradients)
        counts.append(made.counts.total())
        for spoiled in (float("nan"), float("inf"), -float("inf")):
            gradients[1][2] = spoiled
            assert not all_finite(gradients)
    assert counts[0] == counts[1]
