"""What the methods share that see the loss only: directions and probes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from helene import functional, noise
from helene.curvature import mean_gradient
from helene.directions import Direction, chunks, compute_dtype
from helene.optimizers import checks
from helene.optimizers.base import Base, Chunk, Options, Updates
from helene.optimizers.statistics import expected_cosine
from helene.probe import Closure, Probe
from helene.reads import reads_none, writes_buffer

DISTRIBUTIONS = ("gaussian", "rademacher", "sphere")
MAX_DIRECTIONS = noise.STATE_DRAW - noise.CURVATURE_DRAW  # so that draws of the curvature stay below the state's


class Directions(Options, total=False):
    """Keyword arguments that every zeroth-order method takes, see `ZerothOrder`."""

    eps: float
    num_directions: int
    two_sided: bool
    distribution: str
    direction_per_layer: bool
    model: nn.Module | None


class ZerothOrder(Base):
    r"""Base of the optimizers that see the loss only.

    The estimate is  g = (1/q) Σ_j c_j z_j,  c_j = (L(theta + eps z_j) − L(theta − eps z_j)) / (2 eps),  in every case
    with E[z zᵀ] = I, so that E[g] is the gradient up to O(eps²) (O(eps) if one-sided).

    Options beside those of `Base`:
        eps: Radius of the probes, > 0.
        num_directions: q, each with a pair of its own.
        two_sided: If False, c_j = (L(theta + eps z_j) − L(theta)) / eps, L(theta) evaluated once.
        distribution: Of z: "gaussian"; "rademacher", elements ±1; "sphere", uniform on the sphere of radius √d (one
            draw more a direction, for its length).
        direction_per_layer: Whether each layer is probed alone, the others at theta; all move together afterwards.
        model: Module that reads the parameters; perturbed copies are then made module by module.
    """

    _OPTIONS: ClassVar[Mapping[str, Any]] = {
        **Base._OPTIONS,
        "eps": 1e-3,
        "num_directions": 1,
        "two_sided": True,
        "distribution": "gaussian",
        "direction_per_layer": False,
        "model": None,
    }
    _SHARED: ClassVar[tuple[str, ...]] = (
        *Base._SHARED,
        "eps",
        "num_directions",
        "two_sided",
        "distribution",
        "direction_per_layer",
    )

    @property
    def replayable(self) -> bool:
        """Whether an update is a function of the step's scalars and z, see `helene.trajectory`."""
        return True

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        hyper = self.param_groups[0]
        probes = hyper["num_directions"] * len(self._probes)
        return 2 * probes if hyper["two_sided"] else probes + 1

    def check_closure(self, closure: Closure) -> None:
        """Evaluate the closure twice at theta (2 forwards); with ``model`` given, look at its buffers too.

        Raises:
            ValueError: If it gives two values, so that a slope would measure the closure's own noise, or changes a
                buffer, so that each probe would.
        """
        before = {name: buffer.clone() for name, buffer in self._buffers().items()}
        with checks.without_backward():
            first, second = self._loss(closure).item(), self._loss(closure).item()
        if first != second:
            raise ValueError(
                f"the closure gave {first!r} and then {second!r} at the same point, so L⁺ − L⁻ would mostly be noise; "
                "turn dropout off (model.eval()), fix the minibatch and every random number it uses before the step"
            )
        after = self._buffers()
        written = [name for name, buffer in before.items() if name in after and not torch.equal(buffer, after[name])]
        if written:
            raise ValueError(writes_buffer(written[0]))

    def _buffers(self) -> dict[str, Tensor]:
        return {} if self._model is None else dict(self._model.named_buffers())

    def compare_gradient(self, closure: Closure) -> list[dict[str, Any]]:
        """Cosine of the coming step's estimate with the gradient, by layer and (last) in all; nothing moves.

        Costs the step's forwards, one forward and one backward, and the gradient's memory. The closure must give a
        graph when gradients are enabled.

        Returns:
            ``layer``, ``dimension``, ``cosine`` and ``expected``, the mean over directions (`expected_cosine`); None
            for the whole where each layer has a direction of its own.
        """
        step = self._begin()
        scalars, _ = self._measure(closure, step)
        estimate, hyper = self._gradient(step, scalars), self.param_groups[0]
        gradients, _ = mean_gradient(closure, [target.tensor for target in self._targets])
        sums = {id(group): [0.0, 0.0, 0.0, 0.0] for group in self.param_groups}
        for index, (g, group) in enumerate(zip(gradients, self._groups, strict=True)):
            flat, total = g.reshape(-1), sums[id(group)]
            for start, end in chunks(flat.numel()):
                a, b = flat[start:end].double(), estimate(index, start, end).double()
                parts = end - start, (a @ b).item(), (a @ a).item(), (b @ b).item()
                total[:] = [old + new for old, new in zip(total, parts, strict=True)]
        rows = []
        names = [self.layer_name(i) for i in range(len(self.param_groups))]
        everything = [sum(column) for column in zip(*sums.values(), strict=True)]
        for name, (dimension, dot, a2, b2) in zip([*names, "all"], [*sums.values(), everything], strict=True):
            known = name != "all" or not hyper["direction_per_layer"] or len(names) == 1
            expected = expected_cosine(int(dimension), hyper["num_directions"]) if known and dimension else None
            cosine = dot / math.sqrt(a2 * b2) if a2 * b2 > 0 else math.nan
            rows.append({"layer": name, "dimension": int(dimension), "cosine": cosine, "expected": expected})
        return rows

    def diagnostics(self) -> dict[str, Any]:
        """What is known without a forward.

        Returns:
            ``step``; ``projected_gradient``, a summary of the coefficients of the directions so far (c itself with one
            direction); ``layers``, a row each with ``layer``, ``dimension`` and what the method adds.
        """
        rows: list[dict[str, Any]] = []
        for i, group in enumerate(self.param_groups):
            dimension = sum(p.numel() for p in group["params"] if p.requires_grad)
            rows.append({"layer": self.layer_name(i), "dimension": dimension, **self._layer_diagnostics(group)})
        return {
            "step": self.param_groups[0]["step"],
            "projected_gradient": self._statistics.summary(),
            "layers": rows,
        }

    def _layer_diagnostics(self, group: dict[str, Any]) -> dict[str, Any]:
        """A method's own columns: ``effective_step`` is lr times the mean factor from g (or m) to the move."""
        total, size = 0.0, 0
        for state in self._layer_states(group):
            factor = self._factor(group, state)
            size += factor.numel()
            total += factor.double().sum().item()
        return {"effective_step": float(group["lr"]) * (total / size if size else 1.0)}

    def _factor(self, group: dict[str, Any], state: Updates) -> Tensor:
        """Elementwise factor from g (or m) to the change of theta, in units of lr; 1 unless a method says otherwise."""
        return torch.ones(())

    def _layer_states(self, group: dict[str, Any]) -> Iterator[Updates]:
        """The state of a layer's parameters, chunk by chunk."""
        for index, (target, owner) in enumerate(zip(self._targets, self._groups, strict=True)):
            if owner is group:
                for start, end in chunks(target.tensor.numel(), target.tensor.device):
                    yield {name: self._read_state(index, name, slice(start, end)) for name in self._STATE}

    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that the probes hold, known after the first step."""
        return self._probe.scratch.num_bytes

    def _measure(self, closure: Closure, step: int) -> tuple[list[float], Tensor]:
        return self._slopes(closure, step)

    def _check_measured(self, scalars: list[float]) -> None:
        super()._check_measured(scalars)
        unread = [target.name for probe in self._probes if probe.reads_none for target in probe.targets]
        if unread and not any(scalars):  # one of the two alone may be right: a flat loss, reads out of torch's sight
            warnings.warn(
                f"{reads_none(unread)} If it does read them, out of torch's sight, it is flat here: try a larger eps",
                stacklevel=4,
            )
        for probe in self._probes:
            probe.reads_none = False

    def _slopes(self, closure: Closure, step: int, first_draw: int = 0) -> tuple[list[float], Tensor]:
        """The coefficients c/q of each direction (in each block of parameters), and the mean loss of the probes."""
        hyper = self.param_groups[0]
        eps, base = hyper["eps"], None if hyper["two_sided"] else self._loss(closure)
        pairs, lengths = [], []
        for draw in range(hyper["num_directions"]):
            direction = self._direction(step, first_draw + draw)
            for block, probe in enumerate(self._probes):
                length = self._length(direction, block)
                plus = probe.loss(closure, direction, eps * length)
                minus = probe.loss(closure, direction, -eps * length) if base is None else base
                pairs.append(torch.stack([plus, minus]))
                lengths.append(length / hyper["num_directions"])
        losses = torch.stack(pairs)
        plus, minus = losses.double().unbind(1)
        slopes = functional.projected_gradient(plus, minus, eps if base is None else eps / 2.0)
        coefficients = [c * length for c, length in zip(slopes.tolist(), lengths, strict=True)]
        return coefficients, losses.mean() if base is None else base

    def _num_scalars(self, step: int) -> int:
        return int(self.param_groups[0]["num_directions"]) * len(self._probes)

    def _gradient(self, step: int, scalars: list[float]) -> Chunk:
        return self._combination(step, self._coefficients(scalars))

    def _coefficients(self, scalars: list[float]) -> list[float]:
        return scalars[: self.param_groups[0]["num_directions"] * len(self._probes)]

    def _combination(self, step: int, coefficients: Sequence[float], first_draw: int = 0) -> Chunk:
        """Σ_j a_j z_j by chunks; coefficients run over directions, and within one over blocks of parameters."""
        blocks = len(self._probes)
        directions = [self._direction(step, first_draw + draw) for draw in range(len(coefficients) // blocks)]

        def chunk(index: int, start: int, end: int) -> Tensor:
            p, parameter = self._targets[index].tensor, self._targets[index].id
            weights = coefficients[self._block_of[index] :: blocks]
            total = None
            for weight, direction in zip(weights, directions, strict=True):
                term = direction.chunk(parameter, start, end, p.device, compute_dtype(p.dtype)).mul_(weight)
                total = term if total is None else total.add_(term)
            assert total is not None
            return total

        return chunk

    def _direction(self, step: int, draw: int = 0) -> Direction:
        hyper = self.param_groups[0]
        return Direction(hyper["seed"], step, draw, hyper["distribution"] == "rademacher")

    def _length(self, direction: Direction, block: int) -> float:
        """What z is multiplied by: √d / |z| on the sphere, else 1."""
        if self.param_groups[0]["distribution"] != "sphere":
            return 1.0
        size, squares = 0, 0.0
        for target in self._probes[block].targets:
            size += target.tensor.numel()
            for start, end in chunks(target.tensor.numel()):
                z = direction.chunk(target.id, start, end, target.tensor.device, torch.float64)
                squares += (z @ z).item()
        return math.sqrt(size / squares) if size else 1.0

    def _loss(self, closure: Closure) -> Tensor:
        """L(theta)."""
        return self._probe.loss_here(closure)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        checks.finite_positive(group["eps"], "eps", "1e-3 is usual in float32")
        checks.whole(group["num_directions"], "num_directions", 1, MAX_DIRECTIONS, "1 is usual")
        checks.one_of(group["two_sided"], "two_sided", (True, False))
        checks.one_of(group["distribution"], "distribution", DISTRIBUTIONS)
        checks.one_of(group["direction_per_layer"], "direction_per_layer", (True, False))

    def _prepare(self) -> None:
        super()._prepare()
        self._probe = Probe(self._targets, self._model)
        self._probes, self._block_of = [self._probe], [0] * len(self._targets)
        if self.param_groups[0]["direction_per_layer"] and len(self.param_groups) > 1:
            layers = [id(group) for group in self.param_groups if any(g is group for g in self._groups)]
            self._block_of = [layers.index(id(group)) for group in self._groups]
            self._probes = [
                Probe(
                    [t for t, b in zip(self._targets, self._block_of, strict=True) if b == block],
                    self._model,
                    self._probe.scratch,
                )
                for block in range(len(layers))
            ]
