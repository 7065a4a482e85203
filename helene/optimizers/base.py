"""What all zeroth-order optimizers share: layers, probes, the loop over chunks, state, errors."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from helene import functional, noise
from helene.probe import Closure, Direction, Probe, Target, chunks, compute_dtype

LearningRate = float | Callable[[int], float]
SUPPORTED = torch.float64, torch.float32, torch.bfloat16, torch.float16


class ZerothOrder(torch.optim.Optimizer):
    """Base of the optimizers that see the loss only.

    A subclass says how a chunk of a parameter moves (`_update`) and which tensors it keeps (`_STATE`); probing,
    regenerating z, chunking, dtypes and checkpoints are here.

    Args:
        params: What `torch.optim.Optimizer` takes: parameters, ``model.named_parameters()``, or groups of either. A
            group is a layer. With names, z depends on a parameter's name; without, on its position.
        defaults: Hyper-parameters of each group; ``lr`` may be a function of the step (the first is 1).
        seed: Of the directions, in [0, 2^64).
        model: The module that reads the parameters; perturbed copies are then made module by module.
    """

    _STATE: tuple[str, ...] = ()

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], *, seed: int = 0, model: nn.Module | None = None
    ) -> None:
        if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be an integer in [0, 2**64), got {seed!r}")
        positive(defaults["eps"], "eps", "1e-3 is usual in float32")
        nonnegative(defaults["weight_decay"], "weight_decay")
        self._schedule = defaults["lr"] if callable(defaults["lr"]) else None
        defaults["lr"] = self._schedule(1) if self._schedule else defaults["lr"]
        nonnegative(defaults["lr"], "lr")
        self._model = model
        super().__init__(params, {**defaults, "seed": seed, "step": 0})
        self._prepare()

    def step(self, closure: Closure) -> Tensor:  # type: ignore[override]
        """One update.

        Args:
            closure: Returns the loss of one minibatch as one number, and gives the same value when called twice at the
                same point. It is called without gradients and must not call backward.

        Returns:
            (L⁺ + L⁻) / 2, detached, on the loss's device: no further forward is made.

        Raises:
            ValueError: If the closure returns no scalar.
            FloatingPointError: If a loss is not finite; parameters and state are then unchanged.
        """
        step = self._begin()
        slope, loss = self._pair(closure, self._direction(step))
        self._apply(step, slope)
        return loss

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        return 2

    @abstractmethod
    def _update(
        self, group: dict[str, Any], theta: Tensor, g: Tensor, state: dict[str, Tensor], estimate: Tensor | None
    ) -> Tensor:
        """New theta of a chunk, from its gradient and curvature estimates; chunks of state are written in place."""

    def _estimate(self, index: int, span: slice, g: Tensor) -> Tensor | None:
        """Curvature estimate of a chunk of the index-th trained parameter, where this step makes one."""
        return None

    def _begin(self) -> int:
        """Number of the step that starts now."""
        trained = [id(p) for group in self.param_groups for p in group["params"] if p.requires_grad]
        if trained != [id(target.tensor) for target in self._probe.targets]:
            self._prepare()
        step = self.param_groups[0]["step"] + 1
        if self._schedule:
            for group in self.param_groups:
                group["lr"] = self._schedule(step)
        return step

    def _direction(self, step: int, draw: int = 0) -> Direction:
        return Direction(self.param_groups[0]["seed"], step, draw)

    def _pair(self, closure: Closure, direction: Direction) -> tuple[float, Tensor]:
        """The projected gradient c along a direction, and the mean of the two losses."""
        eps = self.param_groups[0]["eps"]
        plus = self._probe.loss(closure, direction, eps)
        minus = self._probe.loss(closure, direction, -eps)
        slope = functional.projected_gradient(plus.double(), minus.double(), eps)
        return slope.item(), (plus + minus) / 2

    @torch.no_grad()
    def _apply(self, step: int, slope: float) -> None:
        """Move every parameter, given the projected gradient along the step's direction."""
        direction = self._direction(step)
        for group in self.param_groups:
            group["step"] = step
        for index, (target, group) in enumerate(zip(self._probe.targets, self._groups, strict=True)):
            p = target.tensor
            theta, state = p.detach().reshape(-1), self._state_of(p)
            for start, end in chunks(theta.numel()):
                span = slice(start, end)
                part = theta[span].to(compute_dtype(p.dtype))
                g = slope * direction.chunk(target.id, start, end, p.device).to(part.dtype)
                views = {name: tensor[span] for name, tensor in state.items()}
                theta[span] = self._update(group, part, g, views, self._estimate(index, span, g))
            if not p.is_contiguous():
                p.copy_(theta.view(p.shape))

    def _state_of(self, p: Tensor) -> dict[str, Tensor]:
        """Flat state of a parameter, zeros at first, in the dtype that arithmetic is done in."""
        state = self.state[p]
        for name in self._STATE:
            if name not in state:
                state[name] = torch.zeros(p.numel(), dtype=compute_dtype(p.dtype), device=p.device)
        return {name: state[name] for name in self._STATE}

    def _prepare(self) -> None:
        """Make the list of trained parameters, with their groups, ids and names."""
        targets, self._groups, position = [], [], 0
        for group in self.param_groups:
            for key in ("eps", "seed"):
                if group[key] != self.param_groups[0][key]:
                    raise ValueError(f"{key} belongs to the whole step, but groups have {group[key]!r} and others")
            names = group.get("param_names") or [None] * len(group["params"])
            for name, p in zip(names, group["params"], strict=True):
                label = name or f"at position {position}"
                if p.requires_grad:
                    _check_parameter(p, label)
                    targets.append(Target(p, noise.parameter_id(name or position), label))
                    self._groups.append(group)
                position += 1
        if not targets:
            raise ValueError("no parameter requires a gradient; unfreeze those to be tuned")
        if len({target.id for target in targets}) < len(targets):
            twice = [name for name, count in Counter(target.name for target in targets).items() if count > 1]
            raise ValueError(f"parameters share the names {twice}, so they would share directions; give each its own")
        self._probe = Probe(targets, self._model)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.add_param_group`; the new layer joins at the current step."""
        super().add_param_group(param_group)
        self.param_groups[-1]["step"] = self.param_groups[0]["step"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.load_state_dict`; the trajectory goes on bit for bit, seed included."""
        super().load_state_dict(state_dict)
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(saved, params, strict=True):
            for name in self._STATE:  # torch has cast them to the parameter's dtype, ours may be wider
                if name in state_dict["state"].get(i, {}):
                    self.state[p][name] = state_dict["state"][i][name].to(p.device, copy=True)
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_model": self._model, "_schedule": self._schedule}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_model" in state:
            self._prepare()


def positive(value: Any, name: str, advice: str) -> None:
    """Raise ValueError unless value is a finite number above 0 (infinity is allowed)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} must be positive, got {value!r}; {advice}")


def nonnegative(value: Any, name: str) -> None:
    """Raise ValueError unless value is a number, 0 or above."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ValueError(f"{name} must be a number, 0 or above, got {value!r}")


def fraction(value: Any, name: str) -> None:
    """Raise ValueError unless value lies in [0, 1)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}; 0.9 is usual")


def _check_parameter(p: Tensor, name: str) -> None:
    if p.layout != torch.strided:
        raise ValueError(f"parameter {name} is {p.layout}; only dense parameters can be perturbed")
    if p.dtype not in SUPPORTED:
        raise ValueError(f"parameter {name} is {p.dtype}; supported are {', '.join(str(d)[6:] for d in SUPPORTED)}")
