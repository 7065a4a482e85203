"""What the Trainer says, logs and leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import helene

pytest.importorskip("transformers")

from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from helene.integrations.trainer import HeleneTrainer

pytestmark = pytest.mark.llm


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.second(torch.tanh(self.first(x))).squeeze(-1) - labels).square().mean()}


def trainer(
    folder: Path, method: Any, cls: type[Trainer] = HeleneTrainer, optimizers: Any = (None, None), **options: Any
) -> Any:
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    rows = [{"x": torch.randn(3), "labels": 1.0} for _ in range(8)]
    return cls(model=Net(), args=arguments, train_dataset=rows, optimizers=optimizers, optimizer_cls_and_kwargs=method)


@pytest.mark.parametrize(
    ("method", "given", "warned"),
    [
        ("MeZO", {}, True),
        ("ZOAdam", {}, True),
        ("MeZO", {"lr": 5e-5}, False),
        ("FZOO", {}, True),  # 5e-5 is its own default too, and nobody has said that it is meant
        ("FZOO", {"lr": 5e-5}, False),
        ("AdamW", {}, False),
    ],
)
def test_the_default_learning_rate_of_transformers_is_told(method, given, warned, tmp_path, monkeypatch):
    """Once, where a zeroth-order method would take it; an lr of the method's own says that it is meant."""
    said: list[str] = []
    log = logging.get_logger("helene.integrations.trainer")
    monkeypatch.setattr(log, "warning", lambda text, *words: said.append(text % words))
    trainer(tmp_path, (getattr(helene, method), given), learning_rate=1e-6).create_optimizer()
    assert not said
    run = trainer(tmp_path, (getattr(helene, method), given))
    run.train()
    told = (
        f"learning_rate is 5e-05, the default of transformers, and {method} takes it; docs/choosing.md has "
        f"starting values: set it in the arguments, or give ({method}, {{'lr': 5e-05}}) to keep it"
    )
    assert said == [told] * warned


@pytest.mark.parametrize(
    ("method", "given", "source"),
    [
        ("SophiaG", {}, "sampled_labels"),  # its default
        ("Helene", {"anneal_horizon": 2, "curvature": "sampled_labels"}, "sampled_labels"),
        ("ZOSophia", {"batch_size": 4, "curvature": "spsa_own_batch"}, "spsa_own_batch"),
    ],
)
def test_a_curvature_that_needs_a_closure_is_refused_by_the_constructor(method, given, source, tmp_path):
    cls = getattr(helene, method)
    text = rf"curvature='{source}' needs step\(closure, curvature_closure\), .*; take curvature='backprop', or write"
    with pytest.raises(ValueError, match=text):
        trainer(tmp_path, (cls, given))
    built = cls(Net().named_parameters(), **given)
    with pytest.raises(ValueError, match=text):
        trainer(tmp_path, None, optimizers=(built, None))
    trainer(tmp_path, (cls, {**given, "curvature": "backprop", "batch_size": 4}), learning_rate=1e-3).train()


@pytest.mark.parametrize("method", ["MeZO", "AdamW"])
@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_no_norm_of_gradients_that_are_not_there_is_logged(method, max_grad_norm, tmp_path):
    """No method writes ``.grad``: the norm of what is there would be 0."""
    run = trainer(tmp_path, (getattr(helene, method), {}), learning_rate=1e-3, max_grad_norm=max_grad_norm)
    run.train()
    steps = [entry for entry in run.state.log_history if "loss" in entry]
    assert len(steps) == 2
    assert all(entry.keys() == {"loss", "learning_rate", "epoch", "step"} for entry in steps)


def test_the_trainer_of_transformers_names_ours(tmp_path):
    run = trainer(tmp_path, (helene.MeZO, {}), Trainer, learning_rate=1e-3)
    with pytest.raises(ValueError, match=r"got nothing; .*helene\.integrations\.trainer\.HeleneTrainer"):
        run.train()


def test_replay_of_the_trainers_run_names_its_groups(tmp_path):
    """Over other groups it is an error with the way out, over those a replay to the bit."""
    run = trainer(tmp_path, (helene.MeZO, {}), learning_rate=1e-3)
    start = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    trajectory = helene.Trajectory.record(run.create_optimizer())
    run.train()
    assert run.optimizer.optimizer.diagnostics()["step"] == len(trajectory) == 2
    again = Net()
    again.load_state_dict(start)
    for params in (again.parameters(), again.named_parameters()):
        with pytest.raises(ValueError, match=r"after HeleneTrainer: helene\.layer_groups\(model\)"):
            trajectory.replay(helene.MeZO(params))
    trajectory.replay(helene.MeZO(helene.layer_groups(again)))
    assert all(map(torch.equal, run.model.parameters(), again.parameters()))
