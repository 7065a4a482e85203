"""Steps that can't learn say so: losses too coarse to differ, random numbers in the loss, parameters replaced."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from helene import MeZO
from helene.steps.resolution import WINDOW
from tests.optimizers.contract.contract_table import METHODS

PROBED = [method for method in METHODS if method.name in ("MeZO", "Helene", "HiZOO", "FZOO")]
probed = pytest.mark.parametrize("method", PROBED, ids=lambda m: m.name)
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()


def net(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *between, nn.Linear(16, 2))


def told(optimizer: Any, loss: Any, steps: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            optimizer.step(loss)
    return [str(warning.message) for warning in caught]


@probed
@pytest.mark.parametrize("with_model", [True, False])
def test_a_loss_too_coarse_for_its_pairs_is_told_once(method: Any, with_model: bool) -> None:
    """bfloat16 has 8 bits: losses of a pair are equal or one unit apart. float32 tells them apart."""
    for wide in (True, False):
        model = net().bfloat16()
        more = {"model": model} if with_model else {}
        optimizer = method.build(model.named_parameters(), 1e-4, eps=1e-3, rounding="stochastic", **more)

        def loss(model: nn.Module = model, wide: bool = wide) -> Tensor:
            logits = model(X.bfloat16())
            return F.cross_entropy(logits.float() if wide else logits, Y)

        said = [text for text in told(optimizer, loss, 2 * WINDOW) if "pairs of losses" in text]
        assert len(said) == (not wide)
        assert wide or "one unit in the last place of bfloat16" in said[0]


@probed
@pytest.mark.parametrize("with_model", [True, False])
def test_a_loss_that_draws_is_refused_before_anything_moves(method: Any, with_model: bool) -> None:
    model = net(nn.Dropout(0.5)).train()
    optimizer = method.build(model.named_parameters(), 1e-3, **({"model": model} if with_model else {}))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"the loss draws random numbers.*turn dropout off"):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))
    assert all(map(torch.equal, before, model.parameters()))

    def seeded() -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return F.cross_entropy(model(X), Y)

    optimizer.step(seeded)
    model.eval()
    optimizer.step(lambda: F.cross_entropy(model(X), Y))


@probed
@pytest.mark.parametrize("by", ["indices", "a shuffled loader"])
def test_a_minibatch_drawn_in_the_closure_is_named(method: Any, by: str) -> None:
    model, data = net(), TensorDataset(X, Y)

    def loss() -> Tensor:
        chosen = torch.randint(0, len(X), (4,))
        x, y = (X[chosen], Y[chosen]) if by == "indices" else next(iter(DataLoader(data, 4, shuffle=True)))
        return F.cross_entropy(model(x), y)

    with pytest.raises(ValueError, match=r"draws random numbers.*draw the minibatch before the closure"):
        method.build(model.named_parameters(), 1e-3).step(loss)


def test_a_step_size_far_too_large_is_named() -> None:
    """The loss rises a million-fold, and the probes move it by less than its rounding."""
    model = net()
    optimizer = MeZO(model.named_parameters(), 1e6)
    (said,) = told(optimizer, lambda: F.cross_entropy(model(X), Y), 2 * WINDOW)
    assert "larger eps" in said
    assert "if the loss has grown, lr is too large" in said


def test_a_loss_that_seeds_the_generator_itself_draws_the_same() -> None:
    model = net(nn.Dropout(0.5)).train()

    def loss() -> Tensor:
        torch.manual_seed(7)
        return F.cross_entropy(model(X), Y)

    optimizer = MeZO(model.named_parameters(), 1e-3, num_directions=2)
    for _ in range(3):
        optimizer.step(loss)
        torch.rand(3)


def test_replaced_parameters_are_told_once() -> None:
    """Without the model: at the step after the first whose losses are equal."""
    model = net()
    optimizer = MeZO(model.named_parameters(), 0.1)

    def loss() -> Tensor:
        return F.cross_entropy(model(X), Y)

    assert not told(optimizer, loss, 4)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    said = told(optimizer, loss, 5)
    assert len(said) == 1
    assert "reads none of the 4 trained parameters" in said[0]
    assert "parameters replaced (assign=True)" in said[0]


def test_a_flat_loss_is_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking costs about a forward; it is asked at flat steps 1, 2, 4, 8."""
    looks: list[int] = []
    monkeypatch.setattr("helene.evaluation.probe.Probe.look_again", lambda self: looks.append(1))
    p = nn.Parameter(torch.ones(3))
    optimizer = MeZO([p], 0.1)
    told(optimizer, lambda: (p.sum() > 0).float(), 15)
    assert len(looks) == 4
