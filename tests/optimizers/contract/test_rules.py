"""The core's ``init`` and ``update`` against the torch classes, and a curvature source from outside the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import helene
from helene import rules
from helene.evaluation.curvature import NONE, Estimate, Source
from helene.rules.storage import Storage
from helene.steps.layered import Layered
from helene.steps.plan import names
from helene.steps.trajectory import Trajectory

D = 12
CURVED = {"batch_size": 3, "interval": 2}
BUILD: dict[str, dict[str, Any]] = {
    "Helene": {"anneal_horizon": 7, "floor": 0.3, "weight_decay": 0.1, "bias_correction": True, **CURVED},
    "MeZO": {"weight_decay": 0.1},
    "ZOMomentum": {"weight_decay": 0.1},
    "ZOSign": {"weight_decay": 0.1},
    "ZOAdam": {"weight_decay": 0.1},
    "ZOAdamW": {"weight_decay": 0.1},
    "ZOLion": {"weight_decay": 0.1},
    "ZOSophia": {"gamma": 0.5, **CURVED},
    "ZONewton": {"denominator_eps": 0.5, **CURVED},
}


@pytest.mark.parametrize("name", BUILD)
def test_the_classes_trajectory_is_the_rules(name: str) -> None:
    """Oracle: the rule's own loop with the slopes that the class measured and the same z, to the bit."""
    p = nn.Parameter(torch.linspace(-1.0, 1.0, D, dtype=torch.float64))
    theta, scale = p.detach().clone(), torch.linspace(0.5, 4.0, D, dtype=torch.float64)
    optimizer = getattr(helene, name)([p], 0.01, seed=3, **BUILD[name])
    state: Any = optimizer.plan().rules[0].init(theta)
    for step in range(1, 7):
        plan = optimizer.plan()
        optimizer.step(lambda: p.square() @ scale)
        z = optimizer.direction(plan).chunk(optimizer.targets[0].id, 0, D, p.device, torch.float64)
        g, rule = z * optimizer.statistics.last, plan.rules[0]
        estimate = rule.estimate(step, g) if hasattr(rule, "estimate") else None
        theta, state = rule.update(step, theta, g, state, estimate)
        assert torch.equal(theta, p.detach()), step
        for kept in rule.kept:
            assert torch.equal(getattr(state, kept), optimizer.state[p][kept]), kept


class Known(Source):
    """The exact diagonal, told from outside."""

    name, uses_batch_size, replayable = "known", False, False

    def __init__(self, diagonal: Tensor) -> None:
        self.diagonal = diagonal
        self.asked: list[int] = []

    def forwards(self, pair: int) -> int:
        return 1

    def estimate(self, optimizer: Any, plan: Any, gradient: Any, scalars: list[float], sample: Any) -> Estimate:
        self.asked.append(plan.step)
        return lambda index, start, end, g: self.diagonal[start:end]


def test_a_source_from_outside_the_library() -> None:
    """h is what it says, asked at the steps that estimate; what cannot hold it refuses it by name."""
    p, diagonal = nn.Parameter(torch.ones(D)), torch.linspace(1.0, 2.0, D)
    source = Known(diagonal)
    optimizer = helene.Helene([p], 0.01, anneal_horizon=9, curvature=source, beta2=0.0, interval=3)
    for _ in range(7):
        optimizer.step(lambda: p.square().sum())
    assert source.asked == [1, 4, 7]
    assert torch.equal(optimizer.state[p]["curvature"], diagonal)
    assert [optimizer.forwards_at(step) for step in (1, 2, 4)] == [3, 2, 3]
    with pytest.raises(ValueError, match="not replayable"):
        Trajectory.record(optimizer)
    with pytest.raises(ValueError, match=r"curvature must be one of spsa, .* or a Source; got 'nope'"):
        helene.Helene([p], 0.01, anneal_horizon=9, curvature="nope")


def test_descriptions_are_frozen_and_checked() -> None:
    rule = helene.Helene([nn.Parameter(torch.ones(2))], anneal_horizon=9, batch_size=2).plan().rules[0]
    with pytest.raises(AttributeError):
        rule.lr = 1.0  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"beta1 must be in \[0, 1\), got 2"):
        replace(rule, beta1=2)  # type: ignore[call-arg]
    assert rule.curvature is not NONE  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [n for n in helene.__all__ if isinstance(getattr(helene, n), type)])
def test_defaults_are_those_of_the_descriptions(name: str) -> None:
    """What a group holds is what the rule, the storage and the probing declare, and the step."""
    cls = getattr(helene, name)
    if not issubclass(cls, Layered):
        return
    options = {"anneal_horizon": 9, "batch_size": 2} if name == "Helene" else {}
    options |= {"batch_size": 2} if name in ("ZOSophia", "ZONewton") else {}
    group = cls([nn.Parameter(torch.ones(2))], **options).param_groups[0]
    told = {"params", "step"} | {"param_names"} & group.keys()
    assert group.keys() - told == set(names(cls.RULE, cls.PROBING, Storage))


@pytest.mark.parametrize("name", ["SGD", "HeavyBall", "TorchSGD", "Sign", "DecayLast", "Adam", "AdamW", "Lion"])
def test_hyper_parameters_of_many_runs_are_those_of_each(name: str) -> None:
    """Tensors that broadcast, a decay and a momentum that are 0 in some runs among them."""
    kind, one_each = getattr(rules, f"{name}Rule"), {"lr": [0.1, 0.2], "weight_decay": [0.0, 0.3]}
    if name in ("HeavyBall", "TorchSGD"):
        one_each["momentum"] = [0.0, 0.9]

    def moved(rule: Any, theta: Tensor) -> Tensor:
        state = rule.init(theta)
        for step in (1, 2, 3):
            theta, state = rule.update(step, theta, 2 * theta, state)
        return theta

    start = torch.linspace(-1, 1, 5)
    together = moved(
        kind(**{key: torch.tensor(values)[:, None] for key, values in one_each.items()}), start.repeat(2, 1)
    )
    for run, theta in enumerate(together):
        alone = moved(kind(**{key: values[run] for key, values in one_each.items()}), start)
        torch.testing.assert_close(theta, alone, rtol=1e-6, atol=1e-7)
