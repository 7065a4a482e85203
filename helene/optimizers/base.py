"""What all methods share: groups, the order of a step, state, checkpoints, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from helene import kernels, noise, precision
from helene.directions import Target, compute_dtype
from helene.optimizers import checks, chunkwise, identity, saved
from helene.optimizers import state as storage
from helene.optimizers.rounding import RoundingWatch
from helene.optimizers.statistics import Statistics
from helene.probe import Closure
from helene.swap import out_of_inference
from helene.undo import Undo

if TYPE_CHECKING:
    from helene.trajectory import Trajectory

LearningRate = float | Callable[[int], float]
Chunk = Callable[[int, int, int], Tensor]  # (index of a parameter, start, end) -> elements of g
Updates = dict[str, Tensor]


class Options(TypedDict, total=False):
    """Keyword arguments that every method takes."""

    weight_decay: float
    seed: int
    rounding: str
    state_dtype: torch.dtype | str


class Base(torch.optim.Optimizer):
    """A step is: measure (the forwards, giving a few scalars), then apply (a pass over the parameters).

    A subclass says what is measured (`_measure`), what gradient estimate follows from the scalars (`_gradient`), how a
    chunk of a parameter moves (`_update`) and which tensors it keeps (`_STATE`). Because everything after the
    measurement is a function of the scalars, the same `_apply` serves training and replay.

    Args:
        params: What `torch.optim.Optimizer` takes: parameters, ``model.named_parameters()``, or groups of either. A
            group is a layer, its "layer" entry the name. With names, z depends on a parameter's name; without, on its
            position.
        hyper: The method's own hyper-parameters; ``lr`` may be a function of the step (the first is 1).
        options: Keyword arguments from `_OPTIONS`, whose values are the defaults: ``weight_decay``; ``seed`` of every
            random number, in [0, 2^64); ``rounding`` of 16-bit parameters, "nearest" or "stochastic" (unbiased, so that
            updates far below a unit in the last place add up); ``state_dtype``, float32 (float64 for float64
            parameters), bfloat16 or "8bit" (one byte and 1/64 an element), the narrow ones rounded stochastically.
    """

    _STATE: tuple[str, ...] = ()
    _COUNTERS: tuple[str, ...] = ()  # per parameter: how often a mask that `_update` returns was true
    _INITIAL: ClassVar[Mapping[str, float]] = {}
    _OPTIONS: ClassVar[Mapping[str, Any]] = {
        "weight_decay": 0.0,
        "seed": 0,
        "rounding": "nearest",
        "state_dtype": "float32",
    }
    _SHARED: ClassVar[tuple[str, ...]] = ("seed",)
    _claim: checks.Claim | None = None
    _stepping = False

    def __init__(self, params: Iterable[Any], hyper: dict[str, Any], options: Mapping[str, Any]) -> None:
        unknown = sorted(set(options) - set(self._OPTIONS))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no argument {unknown[0]!r}; it takes {', '.join(self._OPTIONS)}"
            )
        defaults = {**self._OPTIONS, **hyper, **options}
        self._model: nn.Module | None = defaults.pop("model", None)
        self._schedule = defaults["lr"] if callable(defaults["lr"]) else None
        defaults["lr"] = self._schedule(1) if self._schedule else defaults["lr"]
        self.trajectory: Trajectory | None = None
        self.last_loss: Tensor | None = None
        self._statistics = Statistics()
        self._warned = False
        super().__init__(params, {**defaults, "step": 0})
        self._prepare()

    def step(self, closure: Closure | None = None) -> Tensor:  # type: ignore[override]
        """One update; an interrupt (Ctrl-C) leaves it made or not begun, weights, state and counter alike.

        While it runs, no other thread may read the parameters. With ``model`` given, one that calls the model is told
        so by a RuntimeError; without, it reads perturbed weights unnoticed.

        Args:
            closure: Returns the loss of one minibatch as one number, and gives the same value when called twice at the
                same point. It must not call backward.

        Returns:
            The loss, detached, on its device; no forward is made for it alone.

        Raises:
            ValueError: If there is no closure, or it returns no scalar or calls backward, or lr has left its range.
            RuntimeError: If the optimizer is in a step already.
            FloatingPointError: If a loss or a slope is not finite; parameters and state are then unchanged.
        """
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
                    step = self._begin()
                    with checks.without_backward():
                        scalars, self.last_loss = self._measure(closure, step)
                    self._check_measured(scalars)
                    self._apply(step, scalars)
            finally:
                undo.run()
        finally:
            undo.run()
        return self.last_loss

    @property
    def replayable(self) -> bool:
        """Whether an update is a function of the step's scalars and z, see `helene.trajectory`."""
        return False

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        raise NotImplementedError

    def _measure(self, closure: Closure, step: int) -> tuple[list[float], Tensor]:
        """Evaluate what the step needs, leaving parameters and state alone: its scalars and the loss to return."""
        raise NotImplementedError

    def _check_measured(self, scalars: list[float]) -> None:
        """Raise FloatingPointError if a step's scalars are not finite."""
        checks.finite(scalars, self.param_groups[0])

    def _gradient(self, step: int, scalars: list[float]) -> Chunk:
        """The gradient estimate that a step's scalars stand for, by chunks."""
        raise NotImplementedError

    def _num_scalars(self, step: int) -> int:
        """How many scalars `_measure` gives at a step."""
        return 0

    def _coefficients(self, scalars: list[float]) -> list[float]:
        """Those of a step's scalars that multiply directions in g."""
        return []

    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: Updates, estimate: Tensor | None
    ) -> tuple[Tensor, Updates]:
        """New theta of a chunk from its gradient and curvature estimates, and the state that changed; inputs stay."""
        raise NotImplementedError

    def _estimate(self, index: int, span: slice, g: Tensor) -> Tensor | None:
        """Curvature estimate of a chunk of the index-th trained parameter, where this step makes one."""
        return None

    def _before_update(self, step: int, gradient: Chunk) -> None:
        """What has to be known of all chunks before the first moves."""

    def _begin(self) -> int:
        """Number of the step that starts now."""
        trained = [id(p) for group in self.param_groups for p in group["params"] if p.requires_grad]
        if trained != [id(target.tensor) for target in self._targets]:
            try:
                self._prepare()
            except BaseException:
                self._targets = []  # nothing half prepared is taken for ready
                raise
        named = [(target.tensor, target.name) for target in self._targets]
        if self._claim is None:
            self._claim = checks.Claim(type(self).__name__, named)
        self._claim.check(named)
        step = self.param_groups[0]["step"] + 1
        if self._schedule:
            for group in self.param_groups:
                group["lr"] = self._schedule(step)
        for group in self.param_groups:
            checks.nonnegative(group["lr"], f"lr at step {step}")
        if self.trajectory is not None:
            self.trajectory.check(self, step)
        return step

    def _apply(self, step: int, scalars: list[float]) -> None:
        """Move every parameter, given what was measured: all of the step or, where it raises, all or nothing of it."""
        undo = Undo()
        try:
            try:
                undo.modes()
                torch.set_grad_enabled(False)
                self._move(step, scalars)
            finally:
                undo.run()
        finally:
            undo.run()

    def _move(self, step: int, scalars: list[float]) -> None:
        moves: chunkwise.Moves | kernels.Launches | None = None
        statistics, before = self._statistics.after(self._coefficients(scalars)), [dict(g) for g in self.param_groups]
        try:
            for group in self.param_groups:
                group["step"] = step
            gradient = self._gradient(step, scalars)
            self._before_update(step, gradient)
            watch = RoundingWatch() if not self._warned and step & (step - 1) == 0 else None
            if not kernels.can_apply(self):
                moves = chunkwise.Moves(self, watch, gradient)
            else:
                if watch is not None:
                    chunkwise.sample_rounding(self, watch, gradient)
                moves = kernels.Launches(self, step, scalars)
            self._finish(moves, statistics, step, scalars)
        except BaseException:
            try:
                if moves is not None:  # an interrupt, most probably: what has begun is made whole
                    self._finish(moves, statistics, step, scalars)
            finally:
                if moves is None or not moves.begun:
                    for group, values in zip(self.param_groups, before, strict=True):
                        group.update(values)
            raise
        self._warned = self._warned or (watch is not None and watch.warn(step, stacklevel=5))

    def _finish(self, moves: Any, statistics: Statistics, step: int, scalars: list[float]) -> None:
        """Move, and note that it was done; to be called again where it was interrupted."""
        moves.make()
        self._statistics = statistics
        if self.trajectory is not None:
            self.trajectory.append(self, step, scalars)

    def _words(self, draw: int, target: Target, span: slice) -> Tensor:
        group = self.param_groups[0]
        return noise.words(
            group["seed"], group["step"], draw, target.id, span.start, span.stop - span.start, target.tensor.device
        )

    def _allocate(self, p: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        for name in self._STATE:
            if name not in state:
                state.update(storage.allocate(p, name, group["state_dtype"], self._INITIAL.get(name, 0.0)))
        for name in self._COUNTERS:
            if name not in state:
                state[name] = torch.zeros((), dtype=torch.int64, device=p.device)

    def _read_state(self, index: int, name: str, span: slice) -> Tensor:
        """Elements of a state, also before it is allocated."""
        p = self._targets[index].tensor
        if name in self.state.get(p, {}):
            return storage.read(self.state[p], name, span, compute_dtype(p.dtype))
        size = span.stop - span.start
        return torch.full((size,), self._INITIAL.get(name, 0.0), dtype=compute_dtype(p.dtype), device=p.device)

    def _state_writes(self, index: int, span: slice, updates: Updates) -> list[tuple[Tensor, Tensor]]:
        """What to copy where, for a chunk's state to be as updated."""
        target, writes = self._targets[index], []
        state = self.state[target.tensor]
        for name, value in updates.items():
            if name in self._COUNTERS:
                writes.append((state[name], state[name] + value.sum()))
                continue
            draw = noise.STATE_DRAW + self._STATE.index(name)
            words = self._words(draw, target, span) if storage.is_rounded(state, name) else None
            writes += storage.writes(state, name, span, value, words)
        return writes

    def _prepare(self) -> None:
        """Make the list of trained parameters, with their groups, ids and names; check every group."""
        self._targets: list[Target] = []
        self._groups: list[dict[str, Any]] = []
        position = 0
        for group in self.param_groups:
            self._check(group)
            self._check_shared(group, self.param_groups[0])
            names = group.get("param_names") or [None] * len(group["params"])
            for name, p in zip(names, group["params"], strict=True):
                label = name or f"at position {position}"
                if p.requires_grad:
                    checks.parameter(p, label)
                    self._targets.append(Target(p, noise.parameter_id(name or position), label))
                    self._groups.append(group)
                position += 1
        if not self._targets:
            raise ValueError("no parameter requires a gradient; unfreeze those to be tuned")
        if len({target.id for target in self._targets}) < len(self._targets):
            twice = [name for name, count in Counter(target.name for target in self._targets).items() if count > 1]
            raise ValueError(f"parameters share the names {twice}, so they would share directions; give each its own")
        self._claim = None

    def _check(self, group: dict[str, Any]) -> None:
        """Raise ValueError if a group's hyper-parameters are out of their range."""
        checks.nonnegative(group["lr"], "lr")
        checks.nonnegative(group["weight_decay"], "weight_decay")
        checks.whole(group["seed"], "seed", 0, 1 << 64, "any such number will do")
        checks.one_of(group["rounding"], "rounding", ("nearest", "stochastic"))
        group["state_dtype"] = storage.dtype_name(group["state_dtype"])

    def layer_name(self, index: int) -> str:
        """Name of the index-th group: its ``"layer"`` entry, else its position."""
        return str(self.param_groups[index].get("layer", f"layer {index}"))

    def state_bytes(self) -> int:
        """Predicted bytes of the state, which is allocated at the first step."""
        total = 0
        for target, group in zip(self._targets, self._groups, strict=True):
            wide = compute_dtype(target.tensor.dtype).itemsize
            total += len(self._STATE) * precision.state_bytes(target.tensor.numel(), group["state_dtype"], wide)
        return total

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.add_param_group`; the new layer joins at the current step.

        Raises:
            ValueError: If a key is none of the method's, of a scheduler's or "layer" or "name", or a parameter is given
                twice, or cannot be trained here; the group has then not joined.
        """
        if isinstance(param_group, dict):
            checks.group(param_group, self.param_groups, self.defaults)
        super().add_param_group(param_group)
        self.param_groups[-1]["step"] = self.param_groups[0]["step"]
        if hasattr(self, "_targets"):  # else the constructor has more to come
            try:
                self._prepare()
            except ValueError:
                self.param_groups.pop()
                self._prepare()
                raise

    def device_class(self) -> str:
        """Kinds of device that hold the trained parameters."""
        return "+".join(sorted({target.tensor.device.type for target in self._targets}))

    def identity(self) -> dict[str, Any]:
        """What a checkpoint or a trajectory must have in common with the optimizer that takes it."""
        return identity.describe(type(self).__name__, self._STATE, self._targets)

    def check_identity(self, other: Mapping[str, Any], what: str) -> None:
        """Raise ValueError if it was made by another method, noise version or set of parameters."""
        identity.compare(self.identity(), other, [target.name for target in self._targets], what)

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Optimizer.state_dict`, with the `identity` of what it belongs to."""
        if self.param_groups[0]["step"]:  # a parameter that has joined since the last step has none yet
            with torch.inference_mode(False):
                for target, group in zip(self._targets, self._groups, strict=True):
                    self._allocate(target.tensor, group)
        return {**super().state_dict(), "helene": self.identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.load_state_dict`; the trajectory goes on bit for bit, seed included.

        Raises:
            ValueError: If it comes from another method, another noise version or other parameters, or lacks state, or
                has it of another shape or with NaN or infinity in it, or a hyper-parameter is out of its range;
                nothing is then changed.
        """
        if "helene" not in state_dict:
            raise ValueError("this state_dict was not made by an optimizer of helene; start from a fresh state")
        self.check_identity(state_dict["helene"], "state_dict")
        saved.check_groups(self, state_dict["param_groups"])
        saved.check_state(self, state_dict)
        super().load_state_dict(state_dict)
        places = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(places, params, strict=True):
            if i in state_dict["state"]:  # torch has cast the tensors to the parameter's dtype, ours may differ
                entries = state_dict["state"][i].items()
                with torch.inference_mode(False):  # or no later step may write it
                    self.state[p] = {k: v.to(p.device, copy=True) if isinstance(v, Tensor) else v for k, v in entries}
        self._prepare()

    def _check_shared(self, group: Mapping[str, Any], first: Mapping[str, Any]) -> None:
        for key in self._SHARED:
            if group.get(key) != first.get(key):
                raise ValueError(f"{key} belongs to the whole step, but groups have {group.get(key)!r} and others")

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_model", "_schedule", "_statistics", "_warned", "_STATE", "_rules")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in kept if name in self.__dict__}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_model" in state:
            self.trajectory = self.last_loss = None
            self._prepare()
