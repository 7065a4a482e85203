"""The order of a step: plan, measure, apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helene import noise
from helene.evaluation.curvature import Estimate, KeptGradient, Source
from helene.evaluation.directions import Target
from helene.evaluation.losses import Closure
from helene.evaluation.swap import out_of_inference
from helene.evaluation.undo import Undo
from helene.rules import CurvatureRule, Rule, storage
from helene.steps import checks, chunkwise, layer_floors
from helene.steps.chunkwise import RoundingWatch
from helene.steps.fused import launches
from helene.steps.fused.methods import Fused
from helene.steps.layered import Layered, LearningRate, Options, layout_of
from helene.steps.measurement import Chunk, Measured
from helene.steps.plan import StepPlan
from helene.steps.statistics import Statistics

__all__ = ["Base", "Chunk", "Delegated", "LearningRate", "Options"]


class Delegated:
    """In the place of a closure: a step that is made elsewhere, such as by the engine.

    Going through `Base.step` it is seen by torch's hooks and by whoever calls ``step``.

    Args:
        make: Makes it and gives the loss, or gives a closure for the step to be made here.
    """

    def __init__(self, make: Callable[[], Tensor | Closure]) -> None:
        self.make = make


class Base(Layered):
    """A step is: plan, measure (the forwards, giving a few scalars), apply (a pass over the parameters).

    A subclass names its `Rule` (hyper-parameters, state and update), its `Measurement` and what it probes with; it has
    no arithmetic. Everything after the measurement is a function of the plan and the scalars, so the same `apply`
    serves training, the engine and replay.

    Args:
        params: What `torch.optim.Optimizer` takes: parameters, ``model.named_parameters()``, or groups of either. A
            group is a layer, its "layer" entry the name. With names, z depends on a parameter's name in the plain
            model (prefixes of torch.compile, DDP and the like are left out); without, on its position.
        hyper: The method's own hyper-parameters; ``lr`` may be a function of the step (the first is 1), which groups
            with an lr of their own do not follow.
        options: Keyword arguments, whose defaults are those of `PROBING`, `Storage` and `DEFAULTS`: ``weight_decay``;
            ``seed`` of every random number, in [0, 2^64); ``rounding`` of 16-bit parameters, "nearest" or "stochastic"
            (unbiased, so that updates far below a unit in the last place add up); ``state_dtype``, float32 (float64 for
            float64 parameters), bfloat16 or "8bit" (one byte and 1/64 an element), the narrow ones rounded
            stochastically.
    """

    _stepping = False

    def step(  # type: ignore[override]
        self, closure: Closure | Delegated | None = None, curvature_closure: Closure | None = None
    ) -> Tensor:
        """One update. An interrupt (Ctrl-C) at any moment leaves it made or not begun: weights, state, counter agree.

        While it runs, no other thread may read the parameters. With ``model`` given, one that calls the model is told
        so by a RuntimeError; without, it reads perturbed weights unnoticed.

        Args:
            closure: Returns the loss of one minibatch as one number, and gives the same value when called twice at the
                same point. It must not call backward.
            curvature_closure: For the curvature sources that look at a minibatch of their own: the loss of that
                minibatch ("spsa_own_batch"; "backprop", where it defaults to ``closure``), or its logits
                ("sampled_labels"). Called only at the steps that estimate h.

        Returns:
            The loss, detached, on its device; no forward is made for it alone.

        Raises:
            ValueError: If there is no closure, or it returns no scalar, calls backward or draws random numbers (looked
                at in the first step and some later ones), a hyper-parameter has left its range, parameters have come to
                ask for state in another dtype, or the source needs a ``curvature_closure`` and there is none.
            RuntimeError: If the optimizer is in a step already.
            FloatingPointError: If a loss or a slope is not finite; parameters and state are then unchanged.
        """
        if isinstance(closure, Delegated):
            made = closure.make()
            if isinstance(made, Tensor):
                return made
            closure = made
        closure = checks.closure(closure)
        if self._stepping:
            raise RuntimeError("step was called within a step of the same optimizer; a closure only returns its loss")
        undo = Undo()
        try:
            try:
                undo.note(lambda: setattr(self, "_stepping", False))
                undo.modes()
                self._stepping = True
                with out_of_inference():  # or state would be tensors that no later step may write
                    plan = self.plan()
                    self.begin(plan)
                    with checks.without_backward():
                        measured = self.measure(closure, curvature_closure, plan)
                    self.finish(plan, measured)
            finally:
                undo.run()
        finally:
            undo.run()
        return measured.loss

    def plan(self, scheduled: bool = True) -> StepPlan:
        """What the coming step does, as groups are configured at this moment.

        Args:
            scheduled: Whether an ``lr`` given as a function is asked; replay takes the recorded one.

        Raises:
            ValueError: If a hyper-parameter is out of its range, belongs to the whole step and differs between groups,
                is none that the method reads, or needs other state than there is.
        """
        self._follow_freezing()
        self._follow_dtypes()
        step = self.steps_made + 1
        self._follow_schedule(step if scheduled else None)
        rules, kept, probing = self._described()
        checks.layout(self._layout, layout_of(rules, kept), self.layer_name)
        self._arrange(probing)
        source = _source_at(rules[0], step)
        return StepPlan(
            method=type(self).__name__,
            step=step,
            probing=probing,
            measurement=self.MEASUREMENT,
            source=source,
            rules=layer_floors.resolve(self, rules, step, source is not None),
            storage=kept,
            forwards=self.forwards_at(step),
        )

    def foresee(self) -> StepPlan:
        """`plan` for a look ahead: groups keep the ``lr`` of the last step where a function gives it.

        Raises:
            ValueError: As `plan`.
        """
        before, scheduled = [group["lr"] for group in self.param_groups], list(self.scheduled)
        try:
            return self.plan()
        finally:
            self.scheduled[:] = scheduled
            for group, lr in zip(self.param_groups, before, strict=True):
                group["lr"] = lr

    def begin(self, plan: StepPlan) -> None:
        """Look, before anything moves, whether the step may be made here and now.

        Raises:
            ValueError: If another optimizer has stepped the parameters since, or a recording cannot hold the step.
        """
        if self._claim is None:
            self._claim = checks.Claim(type(self).__name__, self.targets)
        self._claim.check(self.targets)
        if self.trajectory is not None:
            self.trajectory.check(self, plan.step)

    @property
    def replayable(self) -> bool:
        """Whether an update is a function of the step's scalars and z, see `helene.steps.trajectory`."""
        return self.MEASUREMENT.replayable and self.source.replayable

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        rule, _, probing = self._describe(self.param_groups[0])
        forwards, source = self.MEASUREMENT.forwards(probing, self.num_blocks), _source_at(rule, step)
        return forwards + (source.forwards(forwards) if source else 0)

    def num_scalars_at(self, step: int) -> int:
        """How many scalars a step measures, as groups are configured at this moment.

        Raises:
            ValueError: As `plan`.
        """
        rules, _, probing = self._described()
        self._arrange(probing)
        count, source = int(self.MEASUREMENT.num_scalars(probing, self.num_blocks)), _source_at(rules[0], step)
        return count + (source.num_scalars(count) if source else 0)

    @property
    def num_blocks(self) -> int:
        """Blocks of parameters that are probed one after the other."""
        return 1

    def measure(self, closure: Closure, curvature_closure: Closure | None, plan: StepPlan) -> Measured:
        """Evaluate what a step needs, leaving parameters and state alone."""
        self.check_source(curvature_closure)
        scalars, loss, sample = plan.measurement.measure(self, closure, plan)
        return self.with_source(plan, Measured(scalars, loss, sample), curvature_closure or closure)

    def check_source(self, curvature_closure: Closure | None) -> None:
        """Raise ValueError where the source of curvature looks at a minibatch of its own and there is none."""
        source = self.source
        if source.needs_closure and curvature_closure is None:
            raise ValueError(f"curvature={source.name!r} needs step(closure, curvature_closure)")

    def with_source(self, plan: StepPlan, measured: Measured, closure: Closure) -> Measured:
        """What a step has measured, and what its source of curvature needs beside."""
        scalars, loss, sample = measured
        if plan.source is None:
            return Measured(scalars, loss, (sample, None))
        more, own = plan.source.measure(self, closure, plan)
        return Measured([*scalars, *more], loss, (sample, own))

    def finish(self, plan: StepPlan, measured: Measured) -> None:
        """Check what a step has measured, and make its update.

        Raises:
            FloatingPointError: If a slope is not finite; parameters and state are then unchanged.
        """
        self._check_measured(plan, measured.scalars)
        self.apply(plan, measured.scalars, measured.sample)
        self.last_loss = measured.loss

    def _check_measured(self, plan: StepPlan, scalars: list[float]) -> None:
        checks.finite(scalars, getattr(plan.probing, "eps", None))

    def apply(self, plan: StepPlan, scalars: list[float], samples: tuple[Any, Any] = (None, None)) -> None:
        """Move every parameter, given what was measured: all of the step or, where it raises, all or nothing of it."""
        undo = Undo()
        try:
            try:
                undo.modes()
                torch.set_grad_enabled(False)
                self._move(plan, scalars, samples)
            finally:
                undo.run()
        finally:
            undo.run()

    def _move(self, plan: StepPlan, scalars: list[float], samples: tuple[Any, Any]) -> None:
        count = plan.measurement.num_scalars(plan.probing, self.num_blocks)
        own, rest = scalars[:count], scalars[count:]
        gradient = plan.measurement.gradient(self, plan, own, samples[0])
        estimate: Estimate | None = plan.measurement.estimate(self, plan, gradient)
        if plan.source is not None:
            estimate = plan.source.estimate(self, plan, gradient, rest, samples[1])
        if plan.asks_floors and estimate is not None:
            plan = layer_floors.ask(self, plan, estimate)
        statistics = self._statistics_after(plan, scalars)
        watch = RoundingWatch() if not self._warned and plan.step & (plan.step - 1) == 0 else None
        moves = self.moves(plan, own, gradient, estimate, watch, plan.measurement.kept(samples[0]))
        try:
            self._complete(moves, plan, scalars, statistics)
        except BaseException:  # an interrupt, most probably: what has begun is made whole
            self._complete(moves, plan, scalars, statistics)
            raise
        self._warned = self._warned or (watch is not None and watch.warn(plan.step, stacklevel=6))

    def moves(
        self,
        plan: StepPlan,
        scalars: list[float],
        gradient: Chunk,
        estimate: Estimate | None,
        watch: RoundingWatch | None = None,
        kept: KeptGradient | None = None,
    ) -> Any:
        """The update of parameters and state, by the kernels where they can; its ``make`` makes it."""
        rest = launches.after_estimate(plan)
        method = self.kernel(rest, kept)
        if method is None:
            return chunkwise.Moves(self, plan, watch, gradient, estimate)
        if watch is not None:
            chunkwise.sample_rounding(self, plan, watch, gradient, estimate)
        ahead = None if rest is plan else chunkwise.Observations(self, plan, None, gradient, estimate)
        return launches.Launches(self, rest, method, plan.measurement.weights(plan, scalars), ahead, kept)

    def kernel(self, plan: StepPlan, kept: KeptGradient | None = None) -> Fused | None:
        """The update of a step where it is one kernel a kind of parameter; None where torch's operations make it."""
        return launches.kernel_of(self, plan, kept)

    def _complete(self, moves: Any, plan: StepPlan, scalars: list[float], statistics: Statistics) -> None:
        """Move, and note that it was done; to be called again where it was interrupted."""
        moves.make()
        self._layout = layout_of(plan.rules, plan.storage)
        for group in self.param_groups:
            group["step"] = plan.step
        self._opt_called = True  # torch's schedulers ask for it; the engine and replay never call `step`
        self._keep(plan, scalars, statistics)

    def _keep(self, plan: StepPlan, scalars: list[float], statistics: Statistics) -> None:
        self.statistics = statistics
        if self.trajectory is not None and plan.step >= self.trajectory.header["first_step"]:
            self.trajectory.append(self, plan.step, scalars)

    def note(self, plan: StepPlan, scalars: list[float]) -> None:
        """Count a step whose update has been made elsewhere; no scalars where it moved nothing."""
        self._complete(_Made(), plan, scalars, self._statistics_after(plan, scalars))

    def hear(self, plan: StepPlan, scalars: list[float]) -> None:
        """Learn the scalars of a step that was counted when it was made; none where it moved nothing."""
        self._keep(plan, scalars, self._statistics_after(plan, scalars))

    def _statistics_after(self, plan: StepPlan, scalars: list[float]) -> Statistics:
        count = plan.measurement.num_scalars(plan.probing, self.num_blocks)
        return self.statistics.after(plan.measurement.coefficients(plan, scalars[:count]))

    def words(self, plan: StepPlan, draw: int, target: Target, span: slice) -> Tensor:
        """Random words for elements of a parameter."""
        count, device = span.stop - span.start, target.tensor.device
        return noise.words(plan.seed, plan.step, draw, target.id, span.start, count, device)

    def state_writes(self, index: int, plan: StepPlan, span: slice, old: Any, new: Any) -> list[tuple[Tensor, Tensor]]:
        """What to copy where, for those elements of a parameter's state that have changed."""
        target, writes = self.targets[index], []
        rule, state = plan.rules[target.layer], self.state[target.tensor]
        for position, name in enumerate(rule.kept):
            value = getattr(new, name)
            if value is getattr(old, name):
                continue
            if name in rule.COUNTERS:
                writes.append((state[name], value))
                continue
            draw = noise.STATE_DRAW + position
            words = self.words(plan, draw, target, span) if storage.is_rounded(state, name) else None
            writes += storage.writes(state, name, span, value, words)
        return writes


def _source_at(rule: Rule, step: int) -> Source | None:
    """Where ĥ comes from at a step, None where none is estimated."""
    return rule.curvature if isinstance(rule, CurvatureRule) and rule.estimates_at(step) else None


class _Made:
    """Moves that were made elsewhere."""

    def make(self) -> None:
        """Nothing is left to do."""
