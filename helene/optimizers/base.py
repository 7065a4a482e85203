"""What all methods share: groups, the plan of a step, its order, state, checkpoints, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from helene import kernels, noise, numeric, precision, storage
from helene.curvature import NONE, SOURCES, Estimate, Source
from helene.directions import Target, compute_dtype
from helene.optimizers import checks, chunkwise, identity, layer_floors, saved
from helene.optimizers.measurement import Chunk, Measured, Measurement
from helene.optimizers.rounding import RoundingWatch
from helene.optimizers.statistics import Statistics
from helene.plan import Seeded, StepPlan, names
from helene.probe import Closure
from helene.rules import CurvatureRule, Rule
from helene.storage import Storage

if TYPE_CHECKING:
    from helene.trajectory import Trajectory

LearningRate = float | Callable[[int], float]


class Options(TypedDict, total=False):
    """Keyword arguments that every method takes."""

    weight_decay: float
    seed: int
    rounding: str
    state_dtype: torch.dtype | str


class Base(torch.optim.Optimizer):
    """A step is: plan, measure (the forwards, giving a few scalars), apply (a pass over the parameters).

    A subclass names its `Rule` (hyper-parameters, state and update), its `Measurement` and what it probes with; it has
    no arithmetic. Everything after the measurement is a function of the plan and the scalars, so the same `apply`
    serves training, the engine and replay.

    Args:
        params: What `torch.optim.Optimizer` takes: parameters, ``model.named_parameters()``, or groups of either. A
            group is a layer, its "layer" entry the name. With names, z depends on a parameter's name; without, on its
            position.
        hyper: The method's own hyper-parameters; ``lr`` may be a function of the step (the first is 1), which groups
            with an lr of their own do not follow.
        options: Keyword arguments, whose defaults are those of `PROBING`, `Storage` and `DEFAULTS`: ``weight_decay``;
            ``seed`` of every random number, in [0, 2^64); ``rounding`` of 16-bit parameters, "nearest" or "stochastic"
            (unbiased, so that updates far below a unit in the last place add up); ``state_dtype``, float32 (float64 for
            float64 parameters), bfloat16 or "8bit" (one byte and 1/64 an element), the narrow ones rounded
            stochastically.

    Attributes:
        targets: The trained parameters.
    """

    RULE: ClassVar[type[Rule]]
    PROBING: ClassVar[type[Seeded]] = Seeded
    MEASUREMENT: ClassVar[Measurement]
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}  # of options, where they are not those of the descriptions
    _claim: checks.Claim | None = None
    _stepping = False

    def __init__(self, params: Iterable[Any], hyper: dict[str, Any], options: Mapping[str, Any]) -> None:
        defaults = {**self._option_defaults(hyper), **self.DEFAULTS}
        unknown = sorted(set(options) - set(defaults))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no argument {unknown[0]!r}; it takes {', '.join(defaults)}")
        defaults = {**defaults, **hyper, **options}
        self._model: nn.Module | None = defaults.pop("model", None)
        self.schedule = defaults["lr"] if callable(defaults["lr"]) else None
        defaults["lr"] = self.schedule(1) if self.schedule else defaults["lr"]
        self.scheduled: list[bool] = []
        self.trajectory: Trajectory | None = None
        self.last_loss: Tensor | None = None
        self.statistics = Statistics()
        self._warned = False
        self._forget()
        defaults = {name: self._plain(value) for name, value in defaults.items()}
        super().__init__(params, {**defaults, "step": 0})
        self._prepare()

    @classmethod
    def _option_defaults(cls, hyper: Mapping[str, Any]) -> dict[str, Any]:
        described = [field for kind in (cls.RULE, cls.PROBING, Storage) for field in fields(kind)]
        return {field.name: field.default for field in described if field.name not in hyper}

    @staticmethod
    def _plain(value: Any) -> Any:
        """A hyper-parameter as groups hold it, so that a state_dict is read without our classes."""
        if isinstance(value, torch.dtype):
            return storage.dtype_name(value)
        return value.name if isinstance(value, Source) and SOURCES.get(value.name) is value else value

    def step(self, closure: Closure | None = None, curvature_closure: Closure | None = None) -> Tensor:  # type: ignore[override]
        """One update.

        Args:
            closure: Returns the loss of one minibatch as one number, and gives the same value when called twice at the
                same point. It must not call backward.
            curvature_closure: For the curvature sources that look at a minibatch of their own: the loss of that
                minibatch ("spsa_own_batch"; "backprop", where it defaults to ``closure``), or its logits
                ("sampled_labels"). Called only at the steps that estimate h.

        Returns:
            The loss, detached, on its device; no forward is made for it alone.

        Raises:
            ValueError: If there is no closure, or it returns no scalar or calls backward, a hyper-parameter has left
                its range, or the source needs a ``curvature_closure`` and there is none.
            RuntimeError: If the optimizer is in a step already.
            FloatingPointError: If a loss or a slope is not finite; parameters and state are then unchanged.
        """
        closure = checks.closure(closure)
        if self._stepping:
            raise RuntimeError("step was called within a step of the same optimizer; a closure only returns its loss")
        self._stepping = True
        try:
            with torch.inference_mode(False):  # or state would be tensors that no later step may write
                plan = self.plan()
                self.claim()
                with checks.without_backward():
                    measured = self.measure(closure, curvature_closure, plan)
                self.finish(plan, measured)
        finally:
            self._stepping = False
        return measured.loss

    def plan(self, scheduled: bool = True) -> StepPlan:
        """What the coming step does, as groups are configured at this moment.

        Args:
            scheduled: Whether an ``lr`` given as a function is asked; replay takes the recorded one.

        Raises:
            ValueError: If a hyper-parameter is out of its range, belongs to the whole step and differs between groups,
                is none that the method reads, or needs other state than there is.
        """
        trained = [id(p) for group in self.param_groups for p in group["params"] if p.requires_grad]
        if trained != [id(target.tensor) for target in self.targets]:
            self._prepare()
        step = self.steps_made + 1
        if self.schedule and scheduled:
            for group, follows in zip(self.param_groups, self.scheduled, strict=True):
                group["lr"] = self.schedule(step) if follows else group["lr"]
        rules, kept, probing = self._described()
        checks.layout(self._layout, _layout(rules, kept), self.layer_name)
        self._arrange(probing)
        rule = rules[0]
        estimates = isinstance(rule, CurvatureRule) and rule.estimates_at(step)
        return StepPlan(
            method=type(self).__name__,
            step=step,
            probing=probing,
            measurement=self.MEASUREMENT,
            source=rule.curvature if isinstance(rule, CurvatureRule) and estimates else None,
            rules=layer_floors.resolve(self, rules, step, estimates),
            storage=kept,
            forwards=self.forwards_at(step),
        )

    def claim(self) -> None:
        """Claim the parameters for this optimizer, at its first step; raise ValueError if another one has since."""
        named = [(target.tensor, target.name) for target in self.targets]
        if self._claim is None:
            self._claim = checks.Claim(type(self).__name__, named)
        self._claim.check(named)

    @property
    def steps_made(self) -> int:
        """Number of the last step, 0 before the first."""
        return int(self.param_groups[0]["step"])

    @property
    def replayable(self) -> bool:
        """Whether an update is a function of the step's scalars and z, see `helene.trajectory`."""
        return self.MEASUREMENT.replayable and self.source.replayable

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        rule, _, probing = self._describe(self.param_groups[0])
        forwards = self.MEASUREMENT.forwards(probing, self.num_blocks)
        estimates = isinstance(rule, CurvatureRule) and rule.estimates_at(step)
        return forwards + (self.source.forwards(forwards) if estimates else 0)

    @property
    def num_blocks(self) -> int:
        """Blocks of parameters that are probed one after the other."""
        return 1

    @property
    def source(self) -> Source:
        """Where the method's curvature comes from; `NONE` for methods without."""
        rule = self._describe(self.param_groups[0])[0]
        return rule.curvature if isinstance(rule, CurvatureRule) else NONE

    def measure(self, closure: Closure, curvature_closure: Closure | None, plan: StepPlan) -> Measured:
        """Evaluate what a step needs, leaving parameters and state alone."""
        source = self.source
        if source.needs_closure and curvature_closure is None:
            raise ValueError(f"curvature={source.name!r} needs step(closure, curvature_closure)")
        scalars, loss, sample = plan.measurement.measure(self, closure, plan)
        if plan.source is None:
            return Measured(scalars, loss, (sample, None))
        more, own = plan.source.measure(self, curvature_closure or closure, plan)
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

    @torch.no_grad()
    def apply(self, plan: StepPlan, scalars: list[float], samples: tuple[Any, Any] = (None, None)) -> None:
        """Move every parameter, given what was measured."""
        count = plan.measurement.num_scalars(plan.probing, self.num_blocks)
        own, rest = scalars[:count], scalars[count:]
        gradient = plan.measurement.gradient(self, plan, own, samples[0])
        estimate: Estimate | None = plan.measurement.estimate(self, plan, gradient)
        if plan.source is not None:
            estimate = plan.source.estimate(self, plan, gradient, rest, samples[1])
        self._layout = _layout(plan.rules, plan.storage)
        if plan.asks_floors and estimate is not None:
            plan, estimate = layer_floors.refresh(self, plan, estimate), None
        self.update(plan, own, gradient, estimate)
        self.note(plan, scalars)

    def update(self, plan: StepPlan, scalars: list[float], gradient: Chunk, estimate: Estimate | None) -> None:
        """Move parameters and state, by the kernels where they can."""
        step = plan.step
        watch = RoundingWatch() if not self._warned and step & (step - 1) == 0 else None
        if kernels.can_update(self, plan):
            if watch is not None:
                chunkwise.sample_rounding(self, plan, watch, gradient, estimate)
            kernels.update(self, plan, plan.measurement.coefficients(plan, scalars)[0])
        else:
            chunkwise.update(self, plan, watch, gradient, estimate)
        self._warned = self._warned or (watch is not None and watch.warn(step, stacklevel=7))

    def note(self, plan: StepPlan, scalars: list[float]) -> None:
        """Count a step whose update has been made; no scalars where it moved nothing."""
        for group in self.param_groups:
            group["step"] = plan.step
        count = plan.measurement.num_scalars(plan.probing, self.num_blocks)
        self.statistics.add(plan.measurement.coefficients(plan, scalars[:count]))
        if self.trajectory is not None and plan.step >= self.trajectory.header["first_step"]:
            self.trajectory.append(self, plan.step, scalars)

    def words(self, plan: StepPlan, draw: int, target: Target, span: slice) -> Tensor:
        """Random words for elements of a parameter."""
        count, device = span.stop - span.start, target.tensor.device
        return noise.words(plan.seed, plan.step, draw, target.id, span.start, count, device)

    def allocate(self, target: Target, rule: Rule, kept: Storage) -> dict[str, Tensor]:
        """The state of a parameter, made where it is missing."""
        p = target.tensor
        state: dict[str, Tensor] = self.state[p]
        for name in rule.kept:
            if name not in state:
                state.update(storage.allocate(p, rule, name, kept.state_dtype))
        return state

    def read_state(self, index: int, rule: Rule, span: slice) -> Any:
        """Elements of a parameter's state, also before it is allocated."""
        p = self.targets[index].tensor
        wide, held = compute_dtype(p.dtype), self.state.get(p, {})
        if not held.keys() >= set(rule.kept):
            return rule.init(torch.empty(span.stop - span.start, dtype=wide, device=p.device))
        return storage.read_all(held, rule, span, wide)

    def write_state(self, index: int, plan: StepPlan, span: slice, old: Any, new: Any) -> None:
        """Store those elements of a parameter's state that have changed."""
        target = self.targets[index]
        rule, state = plan.rules[target.layer], self.state[target.tensor]
        for position, name in enumerate(rule.kept):
            value = getattr(new, name)
            if value is getattr(old, name):
                continue
            if name in rule.COUNTERS:
                state[name].copy_(value)
                continue
            draw = noise.STATE_DRAW + position
            words = self.words(plan, draw, target, span) if storage.is_rounded(state, name) else None
            storage.write(state, name, span, value, words)

    def _prepare(self) -> None:
        """Make the list of trained parameters, with their layers, ids and names; check every group."""
        self.targets: list[Target] = []
        position = 0
        for layer, group in enumerate(self.param_groups):
            names_given = group.get("param_names") or [None] * len(group["params"])
            for name, p in zip(names_given, group["params"], strict=True):
                label = name or f"at position {position}"
                if p.requires_grad:
                    checks.parameter(p, label)
                    self.targets.append(Target(p, noise.parameter_id(name or position), label, layer))
                position += 1
        rules, _, probing = self._described()
        if not self.targets:
            raise ValueError("no parameter requires a gradient; unfreeze those to be tuned")
        if len({target.id for target in self.targets}) < len(self.targets):
            twice = [name for name, count in Counter(target.name for target in self.targets).items() if count > 1]
            raise ValueError(f"parameters share the names {twice}, so they would share directions; give each its own")
        self._claim = None
        self._arranged: Any = None
        layer_floors.check(self, rules)
        self._arrange(probing)

    def _arrange(self, probing: Any) -> None:
        """Make what probing needs of the trained parameters, where it has changed."""

    def _described(self) -> tuple[tuple[Rule, ...], tuple[Storage, ...], Any]:
        """The typed descriptions of all groups: rule and storage of each, probing of all."""
        described = [self._describe(group) for group in self.param_groups]
        rules, kept, probing = zip(*described, strict=True)
        checks.source(rules[0], self.MEASUREMENT)
        if len(described) > 1:
            checks.shared(probing, names(self.PROBING))
            checks.shared(rules, rules[0].SHARED)
        return rules, kept, probing[0]

    def _describe(self, group: Mapping[str, Any]) -> tuple[Rule, Storage, Seeded]:
        """The typed descriptions of a group, kept while its entries stay what they are."""
        keys = self._keys()
        checks.strangers(group, keys)
        values = {key: numeric.plain(group[key]) for key in keys}
        held = self._descriptions.get(id(group))
        if held is None or held[0] != values:
            kinds = (self.RULE, Storage, self.PROBING)
            made = tuple(kind(**{name: values[name] for name in names(kind)}) for kind in kinds)
            held = self._descriptions[id(group)] = values, made
        return held[1]

    @classmethod
    def _keys(cls) -> tuple[str, ...]:
        """Names of all hyper-parameters of a group."""
        return names(cls.RULE, cls.PROBING, Storage)

    def hyperparameters(self, index: int) -> dict[str, Any]:
        """The hyper-parameters of the index-th group as they are read: the fields of its descriptions."""
        return {
            name: value
            for described in self._describe(self.param_groups[index])
            for name, value in vars(described).items()
        }

    def layer_name(self, index: int) -> str:
        """Name of the index-th group: its ``"layer"`` entry, else its position."""
        return str(self.param_groups[index].get("layer", f"layer {index}"))

    def layer_dimension(self, index: int) -> int:
        """Trained elements of the index-th group."""
        return sum(target.tensor.numel() for target in self.targets if target.layer == index)

    @property
    def state_names(self) -> list[str]:
        """The tensors of a parameter's size that the method keeps."""
        rule = self._describe(self.param_groups[0])[0]
        return [name for name in rule.kept if name not in rule.COUNTERS]

    def state_bytes(self) -> int:
        """Predicted bytes of the state, which is allocated at the first step."""
        rules, kept, _ = self._described()
        total = 0
        for target in self.targets:
            wide, rule = compute_dtype(target.tensor.dtype).itemsize, rules[target.layer]
            tensors = len(rule.kept) - len(rule.COUNTERS)
            total += tensors * precision.state_bytes(target.tensor.numel(), kept[target.layer].state_dtype, wide)
        return total

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.add_param_group`; the new layer joins at the current step.

        Raises:
            ValueError: If a key is none of the method's, of a scheduler's or "layer" or "name", or a parameter is given
                twice, or cannot be trained here; the group has then not joined.
        """
        if isinstance(param_group, dict):
            checks.group(param_group, self.param_groups, self.defaults)
            self.scheduled.append("lr" not in param_group)
        super().add_param_group(param_group)
        self.param_groups[-1]["step"] = self.param_groups[0]["step"]
        if hasattr(self, "targets"):  # else the constructor has more to come
            try:
                self._prepare()
            except ValueError:
                self.param_groups.pop()
                self.scheduled.pop()
                self._prepare()
                raise

    def device_class(self) -> str:
        """Kinds of device that hold the trained parameters."""
        return "+".join(sorted({target.tensor.device.type for target in self.targets}))

    def identity(self) -> dict[str, Any]:
        """What a checkpoint or a trajectory must have in common with the optimizer that takes it."""
        return identity.describe(type(self).__name__, self.state_names, self.targets)

    def check_identity(self, other: Mapping[str, Any], what: str) -> None:
        """Raise ValueError if it was made by another method, noise version or set of parameters."""
        identity.compare(self.identity(), other, [target.name for target in self.targets], what)

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Optimizer.state_dict`, with the `identity` of what it belongs to."""
        if self.steps_made:  # a parameter that has joined since the last step has none yet
            rules, kept, _ = self._described()
            with torch.inference_mode(False):
                for target in self.targets:
                    self.allocate(target, rules[target.layer], kept[target.layer])
        return {**super().state_dict(), "helene": self.identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.load_state_dict`; the trajectory goes on bit for bit, seed included.

        Raises:
            ValueError: If it comes from another method, another noise version or other parameters, or lacks state, or
                has it of another shape or dtype or with NaN or infinity in it, or a hyper-parameter is out of its
                range, or a floor that follows h is a number in it; nothing is then changed.
        """
        if "helene" not in state_dict:
            raise ValueError("this state_dict was not made by an optimizer of helene; start from a fresh state")
        self.check_identity(state_dict["helene"], "state_dict")
        state_dict = {**state_dict, "param_groups": saved.known_entries(self, state_dict["param_groups"])}
        saved.check(self, state_dict)
        super().load_state_dict(state_dict)
        places = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(places, params, strict=True):
            if i in state_dict["state"]:  # torch has cast the tensors to the parameter's dtype, ours may differ
                entries = state_dict["state"][i].items()
                with torch.inference_mode(False):  # or no later step may write it
                    self.state[p] = {k: v.to(p.device, copy=True) if isinstance(v, Tensor) else v for k, v in entries}
        self._forget()
        self._prepare()
        if self.steps_made:
            rules, kept, _ = self._described()
            self._layout = _layout(rules, kept)

    def _forget(self) -> None:
        """Drop what is only kept to save time."""
        self._layout: list[tuple[Any, ...]] = []
        self._descriptions: dict[int, Any] = {}
        self.known_floors: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_model", "schedule", "_scheduled", "statistics", "_warned", "_layout")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in kept if name in self.__dict__}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_model" in state:
            layout = state["_layout"]
            self.trajectory = self.last_loss = None
            self._forget()
            self._layout = layout
            self._prepare()


def _layout(rules: Sequence[Rule], kept: Sequence[Storage]) -> list[tuple[Any, ...]]:
    """What the state of each layer is made of."""
    return [(rule.kept, way.state_dtype) for rule, way in zip(rules, kept, strict=True)]
