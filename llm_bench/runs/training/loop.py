"""The training loop: steps, looks at dev, a save now and then, and how it ended."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np
import torch

from helene.steps.trajectory import Trajectory
from llm_bench.data.stream import BatchStream
from llm_bench.evaluation.evaluate import Evaluation, evaluate
from llm_bench.models.tuning import trained
from llm_bench.runs import methods
from llm_bench.runs.config import RunConfig
from llm_bench.runs.meters import Energy, PeakBytes, Stopwatch
from llm_bench.runs.products import forwards_of
from llm_bench.runs.ranks import agreed
from llm_bench.runs.session import Session
from llm_bench.runs.training.checkpoint import BEST, STATE, Folder, put_weights, weights
from llm_bench.runs.training.progress_bar import RunProgress
from llm_bench.runs.training.state import RunState
from llm_bench.runs.training.stepper import Stepper, make_stepper

COLLAPSED = 10  # steps in a row of loss exactly 0: no batch of text has it, a 16-bit overflow does
JUDGED_EVERY = 50  # steps; fixed, so that an interrupted run is judged where an uninterrupted one is
OTHER_BATCHES = 1 << 20  # the stream of second minibatches is the first one's with another seed


class Training:
    """One run of a method that trains.

    Args:
        config: The run.
        session: Its model and rows.
        folder: Where its state is kept while it is under way.
    """

    def __init__(self, config: RunConfig, session: Session, folder: Folder) -> None:
        self.config, self.session, self.folder = config, session, folder
        self.tokens = session.tokens(config)
        self.task = self.tokens.task
        self.first_order = methods.is_first_order(config.method)
        self.stream = BatchStream(len(self.tokens.train), config.batch_size, config.data_seed)
        self.other = BatchStream(len(self.tokens.train), config.batch_size, config.data_seed + OTHER_BATCHES)
        self.peaks: PeakBytes = session.fresh_peaks()
        self.energy = Energy(session.model.device)
        self.best_weights: dict[str, torch.Tensor] | None = None
        session.reset(config.seed)
        self.optimizer, self.stepper = self._fresh()
        # A captured step that is recorded makes the host wait for it: only where the recording is used.
        recorded = self.optimizer.replayable and (config.best == "replay" or session.env.work is not None)
        self.trajectory = Trajectory.record(self.optimizer) if recorded else None
        self.state = RunState()
        self._slopes_before: tuple[int, float] = 0, 0.0

    def _fresh(self) -> tuple[Any, Stepper]:
        config, module = self.config, self.session.model.module
        optimizer = methods.build(
            config.method,
            module,
            config.hyper_parameters(),
            seed=config.seed,
            batch_size=self.stream.batch_size,
            steps=config.steps,
        )
        return optimizer, make_stepper(
            module, optimizer, self.session.loss(config), config.method, engine=config.engine
        )

    def told(self) -> dict[str, Any]:
        """The optimizer's plain hyper-parameters, those of the first layer where layers differ."""
        group = self.optimizer.param_groups[0]
        return {name: value for name, value in group.items() if isinstance(value, bool | int | float | str)}

    def run(self) -> RunState:
        """Go on from where the run was stopped, or from the start, to the end of its budget.

        Raises:
            ValueError: If its state cannot be written.
        """
        if not self._restore():
            self._look()
        self._watch = Stopwatch(self.session.model.device, self.state.training_seconds)
        saved = time.monotonic()
        title = f"{self.config.method} {self.config.task} lr {self.config.lr:g}"
        with RunProgress(title, self.config.steps, self.state.step, self.session.env.show) as shown:
            while self.state.step < self.config.steps and self.state.ended is None:
                goal = min(self.config.steps, (self.state.step // self.config.eval_every + 1) * self.config.eval_every)
                before = self.state.step
                goal = min(goal, (before // JUDGED_EVERY + 1) * JUDGED_EVERY)
                # All ranks ask at the same steps whether losses were finite, so that they are not saved on the way.
                due = saved + self.session.env.save_seconds if self.config.ranks == 1 else math.inf
                self._steps(goal, due)
                shown.advance(self.state.step - before)
                at_look = self.state.step % self.config.eval_every == 0 or self.state.step == self.config.steps
                if self.state.step == goal and at_look and self.state.ended is None:
                    self._look()
                    shown.say(*(self.state.curve[name][-1] for name in ("train_loss", "dev_metric", "dev_loss")))
                if time.monotonic() >= due and self.state.ended is None:
                    self._save()
                    saved = time.monotonic()
        return self.state

    def _steps(self, goal: int, due: float) -> None:
        """Steps up to the goal, or until a save is due."""
        state = self.state
        losses: list[torch.Tensor] = []
        with self.peaks.phase("step"), self._watch.running():
            while state.step < goal and (time.monotonic() < due or not losses):
                rows = self.stream.rows(state.step + 1)
                batch = self.session.batch(self.config, rows)
                try:
                    losses.append(self.stepper.step(batch, self._other_batch))
                except FloatingPointError as err:
                    state.ended = ("non_finite", f"step {state.step + 1}: {err}")
                    break
                state.step += 1
                state.tokens += sum(len(row) for i in rows for row in self.tokens.train[i].rows)
                state.padded_tokens += self.config.ranks * batch["input_ids"].numel()
            try:
                self.stepper.settle()
            except FloatingPointError as err:
                state.ended = state.ended or ("non_finite", str(err))
            values = torch.stack([loss.detach().double() for loss in losses]).tolist() if losses else []
        state.losses += values
        state.training_seconds, state.forwards = self._watch.seconds, self.stepper.forwards
        state.made = [(mode, reason, number) for (mode, reason), number in sorted(self.stepper.made.items())]
        if state.step % JUDGED_EVERY == 0 or state.step == goal:
            self._judge()

    def _other_batch(self) -> Any:
        return self.session.batch(self.config, self.other.rows(self.state.step + 1))

    def _judge(self) -> None:
        state = self.state
        if state.ended is not None or not state.losses:
            return
        recent = state.losses[-COLLAPSED:]
        start = state.curve["dev_loss"][0]
        limit = 3.0 * start + 3.0
        if not all(math.isfinite(value) for value in state.losses):
            state.ended = (
                "non_finite",
                f"a training loss by step {state.step} is not finite; lower lr or widen the dtype",
            )
        elif len(recent) == COLLAPSED and not any(recent):
            state.ended = (
                "diverged",
                f"the loss was exactly 0 for {COLLAPSED} steps by step {state.step}: an overflow",
            )
        elif len(state.losses) >= COLLAPSED and float(np.mean(recent)) > limit:
            state.ended = (
                "diverged",
                f"the training loss reached {np.mean(recent):.3g} by step {state.step}, from {start:.3g}; lower lr",
            )

    def _look(self) -> None:
        watch = Stopwatch(self.session.model.device)
        with self.peaks.phase("evaluation"), watch.running():
            try:
                dev = self.evaluate_dev()
            except FloatingPointError as err:
                self.state.ended = ("non_finite", f"dev at step {self.state.step}: {err}")
                return
        self.state.evaluation_seconds += watch.seconds
        best = self.state.look(agreed(f"the look at step {self.state.step}", dev), self._c_rms())
        if best and self._copies and self.config.role == "test":
            self.best_weights = None  # before the next copy, not beside it
            self.best_weights = weights(self.session.model.module, self._place_for_a_copy())

    def _c_rms(self) -> float | None:
        """Root mean square of c since the last look at dev."""
        scalars = self.trajectory.scalars[-len(self.state.losses) :] if self.trajectory and self.state.losses else []
        if scalars and scalars[0]:
            return float(np.sqrt(np.mean([s[0] ** 2 for s in scalars])))
        if self.first_order or self.trajectory is not None:
            return None
        # Without a trajectory the sums are the optimizer's own: reading c at each step would make the host wait.
        count, squares = _sum_of_squares(self.optimizer.statistics.summary())
        before_count, before = self._slopes_before
        self._slopes_before = count, squares
        return math.sqrt(max(0.0, squares - before) / (count - before_count)) if count > before_count else None

    def _place_for_a_copy(self) -> torch.device:
        """The device, where the copy takes no more than a quarter of what is free there; else main memory."""
        device = self.session.model.device
        if device.type == "cuda":
            size = sum(p.nbytes for _, p in trained(self.session.model.module))
            if 4 * size < torch.cuda.mem_get_info(device)[0]:
                return device
        return torch.device("cpu")

    @property
    def _copies(self) -> bool:
        return self.config.best == "copy" or not self.optimizer.replayable

    def evaluate_dev(self) -> Evaluation:
        """Dev as the run chooses by: generation tasks by their loss, since generating at every look would dominate."""
        scored = forwards_of(evaluate, self.config.products, self.session.model.device.type)
        return scored(self.session.model, self.task, self.tokens.dev, generate=False)

    def to_best(self) -> bool | None:
        """Put the weights of the best look at dev back.

        Returns:
            Whether the replay gave dev's loss again, bit for bit; None where nothing had to be replayed.
        """
        if self.state.best_step == self.state.step:
            return None
        if self._copies and self.state.best_step > 0:
            assert self.best_weights is not None
            put_weights(self.session.model.module, self.best_weights)
            return None
        self.session.reset(self.config.seed)
        if self.state.best_step == 0:
            return None
        assert self.trajectory is not None
        optimizer, _ = self._fresh()
        self.trajectory.replay(optimizer, steps=self.state.best_step)
        expected = self.state.curve["dev_loss"][self.state.curve["step"].index(self.state.best_step)]
        return self.evaluate_dev().loss == expected

    def _save(self) -> None:
        trajectory = self.trajectory
        self.folder.save(
            STATE,
            {
                "progressed": dataclasses.asdict(self.state),
                "weights": weights(self.session.model.module),
                "optimizer": self.optimizer.state_dict(),
                "slopes": [vars(self.optimizer.statistics), *self._slopes_before],
                "trajectory": None
                if trajectory is None
                else [trajectory.header, trajectory.scalars, trajectory.changing],
            },
        )
        if self.best_weights is not None:
            self.folder.save(BEST, {"step": self.state.best_step, "weights": self.best_weights})

    def _restore(self) -> bool:
        device = self.session.model.device
        saved = self.folder.load(STATE, device)
        known = {field.name for field in dataclasses.fields(RunState)}
        if saved is None or "slopes" not in saved or set(saved["progressed"]) != known:  # or of another version
            return False
        best = self.folder.load(BEST, torch.device("cpu"))
        state = RunState(**saved["progressed"])
        if self._copies and state.best_step > 0 and self.config.role == "test":
            if best is None or best["step"] != state.best_step:
                return False
            self.best_weights = best["weights"]
        put_weights(self.session.model.module, saved["weights"])
        self.optimizer.load_state_dict(saved["optimizer"])
        seen, *before = saved["slopes"]
        vars(self.optimizer.statistics).update(seen)
        self._slopes_before = tuple(before)
        if self.trajectory is not None:
            header, self.trajectory.scalars, self.trajectory.changing = saved["trajectory"]
            self.trajectory.header = header
        self.state = state
        self.stepper.forwards = state.forwards
        self.stepper.made.update({(mode, reason): number for mode, reason, number in state.made})
        return True


def _sum_of_squares(summary: dict[str, Any]) -> tuple[int, float]:
    """Number and sum of squares of what `helene.steps.statistics.Statistics` has seen."""
    count = summary["count"]
    spread = (count - 1) * summary["std"] ** 2 if count > 1 else 0.0
    return count, spread + count * summary["mean"] ** 2
