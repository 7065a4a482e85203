"""When the device's word of a loss that is not finite is told; ranks whose batches differ in shape, beside others."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch

from helene import MeZO
from helene.engine import Engine, engine
from helene.engine.pairs import updates
from helene.engine.ranks import Ranks

if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
    pytest.skip("for machines with triton and no GPU", allow_module_level=True)


class _OfTwo(Ranks):
    """One of two ranks, the other of which has its losses."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.size = 2

    def add(self, losses: torch.Tensor) -> None:
        losses.mul_(2)

    def check_step(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("broken", [2, 4, 6])
@pytest.mark.parametrize("new", [0, 2, 4, 6, 8])
def test_all_stop_at_the_same_step(broken: int, new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next at which all look, whether it, or that of the loss, is the first of a shape or replayed."""
    monkeypatch.setattr(updates, "HISTORY", 4)
    monkeypatch.setattr(engine, "Ranks", _OfTwo)
    made, steps = _engine(broken, monkeypatch)
    with pytest.raises(FloatingPointError, match=f"a loss of step {broken} was not finite"):
        steps(9, new)
    assert made.optimizer.steps_made == 4 * -(-broken // 4)


def test_a_model_that_changes_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = _engine(3, monkeypatch)
    steps(3)
    made.model.weight.data = made.model.weight.data.clone()
    steps(5)
    with pytest.raises(FloatingPointError, match="a loss of step 3 was not finite"):
        made.flush()


def _engine(broken: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Any]:
    """An engine, and what makes its steps up to one, of which one may have a batch of another shape."""
    monkeypatch.setenv("HELENE_KERNELS", "triton")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = MeZO(model.named_parameters(), lr=1e-4, seed=1)

    def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean() * (torch.nan if optimizer.steps_made + 1 == broken else 1.0)

    def steps(last: int, new: int = 0) -> None:
        while (step := optimizer.steps_made + 1) <= last:
            made.step(torch.ones(3 if step == new else 2, 4))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Engine(model, optimizer, loss, capture="repeat")
    return made, steps
