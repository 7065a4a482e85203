"""Trainer steps by the engine: the numbers of plain steps to the bit, or a plain step and the reason."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import helene
from helene.integrations import stepper
from helene.integrations.stepper import Stepper

pytest.importorskip("transformers")

from transformers import TrainerCallback, TrainingArguments

from helene.integrations.trainer import HeleneTrainer

pytestmark = pytest.mark.llm

METHODS: dict[str, Any] = {
    "MeZO": {"eps": 1e-2},
    "Helene": {"eps": 1e-2, "anneal_horizon": 20, "batch_size": 4, "interval": 2},
    "Helene, backward": {"eps": 1e-2, "anneal_horizon": 20, "batch_size": 4, "interval": 3, "curvature": "backprop"},
    "ZOAdam": {"eps": 1e-2, "state_dtype": "bfloat16"},
}
ENGINE: dict[str, Any] = {"use_engine": True, "engine_options": {"capture": "repeat"}}  # what a graph would do
PLAIN: dict[str, Any] = {"use_engine": False}
STEPS = 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)
        self.poisoned = False

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.second(self.drop(torch.tanh(self.first(x))))
        loss = F.cross_entropy(logits, labels)
        return {"loss": loss * torch.where(x[0, 0] > 50.0, torch.nan, 1.0), "logits": logits}


def rows(count: int = 24, poisoned: int | None = None) -> list[dict[str, Any]]:
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(1))
    if poisoned is not None:
        x[poisoned] = 99.0
    return [{"x": row, "labels": int(i % 3)} for i, row in enumerate(x)]


def net() -> Net:
    torch.manual_seed(0)
    return Net()


class InOrder(HeleneTrainer):
    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(
    model: nn.Module,
    folder: Any,
    how: dict[str, Any],
    name: str = "MeZO",
    cls: type[HeleneTrainer] = InOrder,
    data: Any = None,
    callbacks: Any = None,
    **options: Any,
) -> HeleneTrainer:
    options = {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no", **options}
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=STEPS,
        learning_rate=0.05, lr_scheduler_type="linear", report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
        weight_decay=0.1, max_grad_norm=1.0, **options,
    )  # fmt: skip
    return cls(
        model=model, args=arguments, train_dataset=data or rows(), eval_dataset=rows(6), callbacks=callbacks,
        optimizer_cls_and_kwargs=(getattr(helene, name.split(",")[0]), METHODS[name]), **how,
    )  # fmt: skip


def told(run: HeleneTrainer) -> list[dict[str, Any]]:
    """What was logged, without times."""
    kept = ("loss", "eval_loss", "learning_rate", "grad_norm", "epoch", "step", "train_loss")
    return [{k: v for k, v in entry.items() if k in kept} for entry in run.state.log_history]


class HalveAtThree(TrainerCallback):
    """Changes the learning rate behind the scheduler's back, and looks at the model."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 3:
            for group in more["optimizer"].param_groups:
                group["lr"] *= 0.5


@pytest.mark.filterwarnings("ignore:steps run without a CUDA graph")
@pytest.mark.parametrize("name", METHODS)
def test_by_the_engine_as_plain(name: str, tmp_path: Any) -> None:
    """Accumulation, decay, schedule, evaluation between steps, a callback that changes lr, clipping, hooks of torch."""
    ends = []
    for how in (PLAIN, ENGINE):
        model, calls = net(), []
        run = trainer(model, tmp_path / str(len(ends)), how, name, callbacks=[HalveAtThree()])
        run.create_optimizer().register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        run.train()
        assert run.step_mode == ("engine" if how is ENGINE else "plain")
        assert len(calls) == STEPS
        optimizer = run.optimizer.optimizer
        ends.append((model, told(run), optimizer.diagnostics(), optimizer.state_dict()["state"]))
    (plain, logs, numbers, state), (mine, my_logs, my_numbers, my_state) = ends
    assert all(map(torch.equal, plain.parameters(), mine.parameters()))
    assert my_logs == logs
    assert my_numbers == numbers
    assert len([entry for entry in logs if "loss" in entry]) == 3
    for i in state:
        assert all(torch.equal(state[i][key], my_state[i][key]) for key in state[i])


@pytest.mark.parametrize("first", [PLAIN, ENGINE], ids=["plain", "engine"])
def test_a_run_resumes_either_way(first: dict[str, Any], tmp_path: Any) -> None:
    """From the checkpoint of step 3 of one way, the other way ends where an unbroken run does, bit for bit."""
    whole, resumed = net(), net()
    saving: dict[str, Any] = {"name": "Helene", "save_strategy": "steps", "save_steps": 3}
    trainer(whole, tmp_path, first, **saving).train()
    second = trainer(resumed, tmp_path, ENGINE if first is PLAIN else PLAIN, **saving)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert all(map(torch.equal, whole.parameters(), resumed.parameters()))


@pytest.mark.parametrize("how", [PLAIN, ENGINE], ids=["plain", "engine"])
@pytest.mark.parametrize("event", ["on_substep_end", "on_pre_optimizer_step", "on_step_end"])
def test_an_interrupted_run_leaves_nothing_to_the_next(how: dict[str, Any], event: str, tmp_path: Any) -> None:
    """Stopped in step 2, trained again: as a fresh Trainer from where weights and optimizer were."""

    class Stop(TrainerCallback):
        armed = True

    def strike(me: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        if me.armed and state.global_step >= 1:
            raise KeyboardInterrupt

    setattr(Stop, event, strike)
    model, stop = net(), Stop()
    run = trainer(model, tmp_path / "a", how, callbacks=[stop])
    run.optimizer = helene.MeZO(model.named_parameters(), 0.05, seed=3, model=model)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    stop.armed = False
    optimizer = getattr(run.optimizer, "optimizer", run.optimizer)
    assert optimizer.param_groups[0]["step"] == optimizer.diagnostics()["projected_gradient"]["count"] == 1
    twin = net()
    twin.load_state_dict(model.state_dict())
    other = trainer(twin, tmp_path / "b", PLAIN)
    other.optimizer = helene.MeZO(twin.named_parameters(), 0.05, seed=3, model=twin)
    other.optimizer.load_state_dict(optimizer.state_dict())
    run.train()
    other.train()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert told(run) == told(other)


def test_without_a_gpu_steps_are_plain_and_say_why(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, stepper.__name__)
    run = trainer(net(), tmp_path, {})
    assert (run.step_mode, run.step_reason) == ("", "")
    run.train()
    assert (run.step_mode, run.step_reason) == ("plain", "no CUDA device holds the parameters")
    assert [record.message for record in caplog.records if record.name == stepper.__name__] == [
        "steps are made by optimizer.step, without the engine: no CUDA device holds the parameters"
    ]
    with pytest.raises(ValueError, match=r"use_engine is True, but no CUDA device.*'auto' makes plain steps"):
        trainer(net(), tmp_path, {"use_engine": True}).train()
    with pytest.raises(ValueError, match="use_engine must be 'auto', True or False, got 'yes'"):
        trainer(net(), tmp_path, {"use_engine": "yes"}).train()


def test_a_loss_of_ones_own_is_captured_on_demand_only(tmp_path: Any) -> None:
    class Own(InOrder):
        def compute_loss(self, model: nn.Module, inputs: Any, **more: Any) -> Any:
            return 2.0 * super().compute_loss(model, inputs, **more)

    ends = []
    for how in ({"engine_options": ENGINE["engine_options"]}, ENGINE):
        model = net()
        run = trainer(model, tmp_path, how, cls=Own, eval_strategy="no")
        run.train()
        ends.append((run.step_mode, run.step_reason, [p.detach().clone() for p in model.parameters()]))
    assert ends[0][:2] == ("plain", ends[0][1])
    assert ends[0][1].startswith("compute_loss is your own")
    assert ends[1][:2] == ("engine", "")
    assert all(map(torch.equal, ends[0][2], ends[1][2]))


def test_what_the_engine_refuses_is_made_plainly(tmp_path: Any) -> None:
    """A batch with an object in it, and directions by layer."""

    class Odd(InOrder):
        def _prepare_inputs(self, inputs: Any) -> Any:
            return {**super()._prepare_inputs(inputs), "odd": object()}

    class Takes(Net):
        def forward(self, x: Tensor, labels: Tensor, odd: Any = None) -> dict[str, Tensor]:
            return super().forward(x, labels)

    auto = {"engine_options": ENGINE["engine_options"]}
    torch.manual_seed(0)
    model, plain = Takes(), net()
    run = trainer(model, tmp_path, auto, cls=Odd, eval_strategy="no")
    run.train()
    assert run.step_mode == "plain"
    assert run.step_reason.startswith("the batch holds a object")
    trainer(plain, tmp_path, PLAIN).train()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    layered = trainer(net(), tmp_path, auto)
    layered.optimizer = helene.MeZO(helene.layer_groups(layered.model), 0.05, direction_per_layer=True)
    layered.train()
    assert layered.step_reason == "distribution is 'gaussian' and direction_per_layer is True"


@pytest.mark.parametrize(("method", "engine"), [("FZOO", "spreads.SpreadEngine"), ("Adam", "gradients.GradientEngine")])
def test_the_engine_of_another_measurement_is_named(method: str, engine: str, tmp_path: Any) -> None:
    run = trainer(net(), tmp_path, {})
    run.optimizer = getattr(helene, method)(run.model.named_parameters(), 1e-3)
    run.train()
    assert run.step_reason.endswith(f"; helene.engine.{engine} captures its steps")


def _stepper(**more: Any) -> tuple[Stepper, Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = helene.MeZO(model.named_parameters(), 1e-2, model=model)
    loss = more.pop("loss", lambda m, x: m(x).square().mean())
    return Stepper(model, optimizer, loss, options={"capture": "repeat", **more}), optimizer, model


def test_shapes_that_change_all_the_time_end_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of a window was a repetition; the steps are those of the plain way."""
    monkeypatch.setattr(stepper, "WINDOW", 4)
    made, optimizer, model = _stepper()
    steady, other, _ = _stepper()
    for length in range(1, 8):
        made.prepare(torch.ones(length, 4))
        optimizer.step()
        steady.prepare(torch.ones(2, 4))
        other.step()
        assert made.mode == ("engine" if length < 4 else "plain")
    assert made.reason.startswith("4 of 4 batches had a shape that was new")
    assert steady.mode == "engine"
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    reference = helene.MeZO(plain.named_parameters(), 1e-2, model=plain)
    for length in range(1, 8):
        reference.step(lambda n=length: plain(torch.ones(n, 4)).square().mean())
    assert all(map(torch.equal, plain.parameters(), model.parameters()))


def test_a_prepared_batch_is_used_once_and_can_be_discarded() -> None:
    made, optimizer, _ = _stepper()
    made.prepare(torch.ones(2, 4))
    made.discard()
    with pytest.raises(ValueError, match="step needs a function"):
        optimizer.step()
    made.prepare(torch.zeros(2, 4))
    made.prepare(torch.ones(2, 4))
    assert optimizer.step() > 0
    with pytest.raises(ValueError, match="step needs a function"):
        optimizer.step()


@pytest.mark.parametrize("how", [PLAIN, ENGINE], ids=["plain", "engine"])
def test_a_loss_that_is_not_finite_is_told_before_a_checkpoint(how: dict[str, Any], tmp_path: Any) -> None:
    """At step 3, the third the engine makes; at its log at the latest."""
    model = net()
    run = trainer(model, tmp_path, how, data=rows(poisoned=8), save_strategy="steps", save_steps=3)
    with pytest.raises(FloatingPointError):
        run.train()
    assert not list(tmp_path.glob("checkpoint-*"))
    assert all(p.isfinite().all() for p in model.parameters())
