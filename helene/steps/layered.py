"""An optimizer's layers: their parameters, typed descriptions of their hyper-parameters, their state and its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from helene import noise
from helene.evaluation.curvature import NONE, SOURCES, Source
from helene.evaluation.directions import Target, compute_dtype
from helene.inputs import numeric
from helene.inputs.layers import none_trained
from helene.inputs.names import canonical_names
from helene.rules import CurvatureRule, Rule, precision, storage
from helene.rules.storage import Storage
from helene.steps import checks, layer_floors, saved
from helene.steps.measurement import Measurement
from helene.steps.plan import Seeded, names
from helene.steps.statistics import Statistics

if TYPE_CHECKING:
    from helene.steps.trajectory import Trajectory

LearningRate = float | Callable[[int], float]
Layout = list[tuple[Any, ...]]  # of each layer, see `layout_of`


class Options(TypedDict, total=False):
    """Keyword arguments that every method takes."""

    weight_decay: float
    seed: int
    rounding: str
    state_dtype: torch.dtype | str


class Layered(torch.optim.Optimizer):
    """Groups as layers: each has a `Rule`, a `Storage` and a share in the `Seeded` probing of all.

    Groups stay the dicts that schedulers write to; what is read of them are these descriptions, made anew when an
    entry has changed, so that no entry is read that is not declared.

    Args:
        params: See `helene.steps.base.Base`.
        hyper: The method's own hyper-parameters.
        options: Keyword arguments; defaults are those of `PROBING`, `Storage` and `DEFAULTS`.

    Attributes:
        targets: The trained parameters.
        schedule: What gives lr at a step, where that is a function.
        scheduled: For each group the lr that it gave last, None where the group's own stands.
        known_floors: See `helene.steps.layer_floors`.
    """

    RULE: ClassVar[type[Rule]]
    PROBING: ClassVar[type[Seeded]] = Seeded
    MEASUREMENT: ClassVar[Measurement]
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}  # of options, where they are not those of the descriptions
    _claim: checks.Claim | None = None
    _as_given = False
    _dtypes: Sequence[torch.dtype] = ()  # of the trained parameters, in the last step
    _layout: Layout

    def __init__(self, params: Iterable[Any], hyper: dict[str, Any], options: Mapping[str, Any]) -> None:
        defaults = {**self._option_defaults(hyper), **self.DEFAULTS}
        checks.no_module(params)
        checks.arguments(type(self).__name__, options, hyper, defaults)
        defaults = {**defaults, **hyper, **options}
        self._model: nn.Module | None = defaults.pop("model", None)
        self.schedule = defaults["lr"] if callable(defaults["lr"]) else None
        defaults["lr"] = self.schedule(1) if self.schedule else defaults["lr"]
        self.scheduled: list[float | None] = []
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

    @property
    def steps_made(self) -> int:
        """Number of the last step, 0 before the first."""
        return int(self.param_groups[0]["step"])

    @property
    def source(self) -> Source:
        """Where the method's curvature comes from; `NONE` for methods without."""
        rule = self._describe(self.param_groups[0])[0]
        return rule.curvature if isinstance(rule, CurvatureRule) else NONE

    def _prepare(self) -> None:
        """Make the list of trained parameters, with their layers, ids and names; check every group."""
        checks.one_name_each(self.param_groups)
        self.targets: list[Target] = []
        ids = iter(self._ids(self._as_given))
        position = 0
        for layer, group in enumerate(self.param_groups):
            names_given = group.get("param_names") or [None] * len(group["params"])
            for name, p in zip(names_given, group["params"], strict=True):
                label, parameter = name or f"at position {position}", next(ids)
                if p.requires_grad:
                    checks.parameter(p, label)
                    self.targets.append(Target(p, parameter, label, layer))
                position += 1
        rules, _, probing = self._described()
        if not self.targets:
            raise none_trained(self._parameters())
        if len({target.id for target in self.targets}) < len(self.targets):
            twice = [name for name, count in Counter(target.name for target in self.targets).items() if count > 1]
            raise ValueError(f"parameters share the names {twice}, so they would share directions; give each its own")
        self._dimensions = [0] * len(self.param_groups)
        for target in self.targets:
            self._dimensions[target.layer] += self.numel(target)
        self._claim = None
        self._arranged: Any = None
        layer_floors.check(self, rules)
        self._arrange(probing)

    def _follow_freezing(self, between_steps: bool = False) -> None:
        """Prepare anew where parameters were frozen or thawed.

        Args:
            between_steps: Whether a model that is frozen as a whole, such as for its evaluation, changes nothing.

        Raises:
            ValueError: If no parameter is left, or one that was thawed cannot be trained here.
        """
        trained = [id(p) for p in self._parameters() if p.requires_grad]
        if trained == [id(target.tensor) for target in self.targets] or (between_steps and not trained):
            return
        try:
            self._prepare()
        except BaseException:
            self.targets = []  # nothing half prepared is taken for ready
            raise

    def _follow_dtypes(self) -> None:
        """Prepare anew where a parameter's dtype has changed since the last step.

        Raises:
            ValueError: If it asks for state in another dtype than there is.
        """
        dtypes = [target.tensor.dtype for target in self.targets]
        if self._dtypes and dtypes != self._dtypes:
            self._prepare()
            checks.state_dtypes(self.targets, self.state, *self._described()[:2])
        self._dtypes = dtypes

    def _ids(self, as_given: bool) -> list[int]:
        """Ids of all parameters: of their names without wrappers' prefixes, or as given; of their places else."""
        given = [name for g in self.param_groups for name in g.get("param_names") or [None] * len(g["params"])]
        named = [name for name in given if name]
        known = iter(named if as_given else canonical_names(named))
        return [noise.parameter_id(next(known) if name else place) for place, name in enumerate(given)]

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
        checks.one_number_each(values)
        if held is None or held[0] != values:
            kinds = (self.RULE, Storage, self.PROBING)
            made: Any = tuple(kind(**{name: values[name] for name in names(kind)}) for kind in kinds)
            held = self._descriptions[id(group)] = values, made
        described: tuple[Rule, Storage, Seeded] = held[1]
        return described

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
        return self._dimensions[index]

    def numel(self, target: Target) -> int:
        """Elements of a parameter, all of them where this process holds a part."""
        return target.tensor.numel()

    @property
    def state_names(self) -> list[str]:
        """The tensors of a parameter's size that the method keeps."""
        rule = self._describe(self.param_groups[0])[0]
        return [name for name in rule.kept if name not in rule.COUNTERS]

    def state_bytes(self) -> int:
        """Predicted bytes of the state, which is allocated at the first step."""
        self._follow_freezing(between_steps=True)
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
            self.scheduled.append(None if "lr" in param_group else self.defaults["lr"])
            param_group = {name: self._plain(value) for name, value in param_group.items()}
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

    def _follow_schedule(self, step: int | None) -> None:
        """Have the function's lr at a step; None: what the groups have now is taken for it, as after a load or replay.

        An lr that was set by hand since stands from then on.

        Raises:
            ValueError: If groups were deleted or appended by hand.
        """
        there, given = len(self.param_groups), len(self.scheduled)
        if there != given:
            raise ValueError(
                f"param_groups has {there} group{'s' * (there != 1)}, {given} were given; add groups by "
                "add_param_group, and stop training one by requires_grad_(False)"
            )
        for i, (group, last) in enumerate(zip(self.param_groups, self.scheduled, strict=True)):
            if last is None:
                continue
            if step is None or self.schedule is None:
                self.scheduled[i] = group["lr"]
            elif group["lr"] is last or group["lr"] == last:
                self.scheduled[i] = group["lr"] = self.schedule(step)
            else:
                self.scheduled[i] = None

    def _lr_by_hand(self) -> list[int] | None:
        """The groups that do not follow the function of the step; None where lr is none."""
        if self.schedule is None:
            return None
        given = enumerate(zip(self.param_groups, self.scheduled, strict=True))
        return [i for i, (group, last) in given if last is None or not (group["lr"] is last or group["lr"] == last)]

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

    def device_class(self) -> str:
        """Kinds of device that hold the trained parameters."""
        return "+".join(sorted({target.tensor.device.type for target in self.targets}))

    def identity(self) -> dict[str, Any]:
        """What a checkpoint or a trajectory must have in common with the optimizer that takes it."""
        self._follow_freezing(between_steps=True)
        return saved.describe(type(self).__name__, self.state_names, self.targets)

    def check_identity(self, other: Mapping[str, Any], what: str) -> None:
        """Raise ValueError if it was made by another method, noise version or set of parameters."""
        if self._fits_as_given(other) is not None:
            return
        saved.compare(self.identity(), other, [target.name for target in self.targets], what)

    def take_ids(self, other: Mapping[str, Any]) -> None:
        """Have the ids of an identity that `check_identity` let pass: older ones are of names with their prefixes."""
        as_given = self._fits_as_given(other)
        if as_given is not None and as_given != self._as_given:
            self._as_given = as_given
            self._prepare()

    def _fits_as_given(self, other: Mapping[str, Any]) -> bool | None:
        """Whether an identity's ids are those of the names as given; None if they are neither these nor the others."""
        self._follow_freezing(between_steps=True)
        for as_given in (self._as_given, not self._as_given):
            ids = {id(p): i for p, i in zip(self._parameters(), self._ids(as_given), strict=True)}
            mine = [target._replace(id=ids[id(target.tensor)]) for target in self.targets]
            if saved.describe(type(self).__name__, self.state_names, mine) == saved.plain(other):
                return as_given
        return None

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Optimizer.state_dict`, with the `identity` of what it belongs to."""
        identity = self.identity()
        if self.steps_made:  # a parameter that has joined since the last step has none yet
            rules, kept, _ = self._described()
            with torch.inference_mode(False):
                for target in self.targets:
                    self.allocate(target, rules[target.layer], kept[target.layer])
        state = super().state_dict()
        for group in state["param_groups"]:
            group.update({k: numeric.plain(v) for k, v in group.items() if not isinstance(v, Tensor)})
        more = {"floors": layer_floors.known(self) or None, "lr_by_hand": self._lr_by_hand()}
        return {**state, "helene": identity, **{name: value for name, value in more.items() if value is not None}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.load_state_dict`; the trajectory goes on bit for bit, seed included.

        Hyper-parameters become those of the state_dict; set others in ``param_groups`` afterwards.

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
        floors = state_dict.get("floors", {})
        layer_floors.check_known(floors, len(self.param_groups))
        given = [group.get("param_names") for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, names_given in zip(self.param_groups, given, strict=True):
            if names_given is not None:  # torch takes the file's, where the model may have been wrapped otherwise
                group["param_names"] = names_given
        places = [i for group in state_dict["param_groups"] for i in group["params"]]
        for i, p in zip(places, self._parameters(), strict=True):
            if i in state_dict["state"]:  # torch has cast the tensors to the parameter's dtype, ours may differ
                entries = state_dict["state"][i].items()
                with torch.inference_mode(False):  # or no later step may write it
                    self.state[p] = {k: v.to(p.device, copy=True) if isinstance(v, Tensor) else v for k, v in entries}
        self._forget()
        layer_floors.take(self, floors)
        self._follow_schedule(None)
        if (by_hand := state_dict.get("lr_by_hand")) is not None:
            self.scheduled[:] = [None if i in by_hand else group["lr"] for i, group in enumerate(self.param_groups)]
        self._as_given = self._fits_as_given(state_dict["helene"]) or False
        self._prepare()
        if self.steps_made:
            rules, kept, _ = self._described()
            self._layout = layout_of(rules, kept)

    def _forget(self) -> None:
        """Drop what is only kept to save time."""
        self._layout = []
        self._descriptions: dict[int, Any] = {}
        self.known_floors: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_model", "_as_given", "schedule", "scheduled", "statistics", "_warned", "_layout", "known_floors")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in kept if name in self.__dict__}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_model" in state:
            self.trajectory = self.last_loss = None
            self._forget()
            self._layout, self.known_floors = state["_layout"], dict(state.get("known_floors", {}))
            self._prepare()


def layout_of(rules: Sequence[Rule], kept: Sequence[Storage]) -> Layout:
    """What the state of each layer is made of, how it is stored, and when h was estimated where this is counted."""
    return [(rule.kept, way.state_dtype, _counted(rule)) for rule, way in zip(rules, kept, strict=True)]


def _counted(rule: Rule) -> tuple[int, int] | None:
    counts = isinstance(rule, CurvatureRule) and rule.bias_correction
    return (rule.interval, rule.first_estimate) if counts else None  # type: ignore[attr-defined]
