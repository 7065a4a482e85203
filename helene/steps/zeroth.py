"""What the methods share that see the loss only: directions and probes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from helene.evaluation.blocks import Scratch
from helene.evaluation.curvature import Source, mean_gradient
from helene.evaluation.directions import Direction, Target, chunks, compute_dtype
from helene.evaluation.losses import Closure, finite
from helene.evaluation.probe import Probe
from helene.evaluation.reads import DrawWatch, reads_none, writes_buffer
from helene.rules import Rule
from helene.steps import checks, layer_floors
from helene.steps.base import Base, Options
from helene.steps.measurement import Chunk, Measured, Measurement, Pairs
from helene.steps.plan import Probing, Seeded, StepPlan
from helene.steps.resolution import ResolutionWatch
from helene.steps.statistics import expected_cosine


class Directions(Options, total=False):
    """Keyword arguments that every zeroth-order method takes, see `ZerothOrder`."""

    eps: float
    num_directions: int
    two_sided: bool
    distribution: str
    direction_per_layer: bool
    model: nn.Module | None


class CurvatureOptions(Options, total=False):
    """Keyword arguments of the methods that keep h."""

    curvature: str | Source
    batch_size: int | None
    beta2: float
    interval: int
    bias_correction: bool
    first_estimate: int


class Curvature(CurvatureOptions, Directions, total=False):
    """Those of the zeroth-order ones among them."""


class ZerothOrder(Base):
    r"""Base of the optimizers that see the loss only.

    The estimate is  g = (1/q) Σ_j c_j z_j,  c_j = (L(theta + eps z_j) − L(theta − eps z_j)) / (2 eps),  in every case
    with E[z zᵀ] = I, so that E[g] is the gradient up to O(eps²) (O(eps) if one-sided).

    Options:
        eps: Radius of the probes, > 0.
        num_directions: q, each with a pair of its own.
        two_sided: If False, c_j = (L(theta + eps z_j) − L(theta)) / eps, L(theta) evaluated once.
        distribution: Of z: "gaussian"; "rademacher", elements ±1; "sphere", uniform on the sphere of radius √d (one
            draw more a direction, for its length).
        direction_per_layer: Whether each layer is probed alone, the others at theta; all move together afterwards.
        model: Module that reads the parameters; perturbed copies are then made module by module.
    """

    PROBING: ClassVar[type[Seeded]] = Probing
    MEASUREMENT: ClassVar[Measurement] = Pairs()
    _looked = _coarse = _unread = False
    _flat_steps = 0

    @classmethod
    def _option_defaults(cls, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._option_defaults(hyper), "model": None}

    def check_closure(self, closure: Closure) -> None:
        """Evaluate the closure twice at theta (2 forwards); with ``model`` given, look at its buffers too.

        Raises:
            ValueError: If it gives two values, so that a slope would measure the closure's own noise, or changes a
                buffer, so that each probe would.
            FloatingPointError: If it is not finite there.
        """
        before = {name: buffer.clone() for name, buffer in self._buffers().items()}
        try:
            with checks.without_backward():
                first, second = [finite(self.loss_here(closure))[0] for _ in range(2)]
        except FloatingPointError as err:
            found, _, _ = str(err).partition(";")
            raise FloatingPointError(
                f"{found} at the weights themselves, so no eps helps; look at the minibatch (a row without labels, an "
                "input that is not finite) and at the weights"
            ) from err
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
        plan = self.foresee()
        scalars, _, _ = plan.measurement.measure(self, closure, plan)
        probing: Any = plan.probing
        estimate = plan.measurement.gradient(self, plan, scalars, None)
        gradients, _ = mean_gradient(closure, [target.tensor for target in self.targets])
        sums = [[0.0, 0.0, 0.0, 0.0] for _ in self.param_groups]
        for index, (g, target) in enumerate(zip(gradients, self.targets, strict=True)):
            flat, total = g.reshape(-1), sums[target.layer]
            for start, end in chunks(flat.numel()):
                a, b = flat[start:end].double(), estimate(index, start, end).double()
                parts = end - start, (a @ b).item(), (a @ a).item(), (b @ b).item()
                total[:] = [old + new for old, new in zip(total, parts, strict=True)]
        rows = []
        names = [self.layer_name(i) for i in range(len(self.param_groups))]
        everything = [sum(column) for column in zip(*sums, strict=True)]
        for name, (dimension, dot, a2, b2) in zip([*names, "all"], [*sums, everything], strict=True):
            known = name != "all" or not probing.direction_per_layer or len(names) == 1
            expected = expected_cosine(int(dimension), probing.num_directions) if known and dimension else None
            cosine = dot / math.sqrt(a2 * b2) if a2 * b2 > 0 else math.nan
            rows.append({"layer": name, "dimension": int(dimension), "cosine": cosine, "expected": expected})
        return rows

    def diagnostics(self) -> dict[str, Any]:
        """What is known without a forward.

        Returns:
            ``step``; ``projected_gradient``, a summary of the coefficients of the directions so far (c itself with one
            direction); ``layers``, a row each with ``layer``, ``dimension`` and what the method adds.
        """
        self._follow_freezing(between_steps=True)
        step = self.steps_made
        rules = layer_floors.resolve(self, self._described()[0], step, estimates=not step)
        return {
            "step": step,
            "projected_gradient": self.statistics.summary(),
            "layers": [
                {
                    "layer": self.layer_name(layer),
                    "dimension": self.layer_dimension(layer),
                    **self._layer_diagnostics(layer, rule, step),
                }
                for layer, rule in enumerate(rules)
            ],
        }

    def _layer_diagnostics(self, layer: int, rule: Rule, step: int) -> dict[str, Any]:
        """A method's own columns: ``effective_step`` is lr times the mean factor from g (or m) to the move."""
        total, size = 0.0, 0
        for state in self._layer_states(layer, rule):
            factor = rule.factor(step, state)
            size += factor.numel()
            total += factor.double().sum().item()
        return {"effective_step": float(rule.lr) * (total / size if size else 1.0)}

    def _layer_states(self, layer: int, rule: Rule) -> Iterator[Any]:
        """The state of a layer's parameters, chunk by chunk."""
        for index, target in enumerate(self.targets):
            if target.layer == layer:
                for start, end in chunks(target.tensor.numel(), target.tensor.device):
                    yield self.read_state(index, rule, slice(start, end))

    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that the probes hold, known after the first step."""
        return self.probe.scratch.num_bytes

    def measure(self, closure: Closure, curvature_closure: Closure | None, plan: StepPlan) -> Measured:
        """See `Base`; some steps, the first among them, look whether the loss draws random numbers.

        With a model they also look whether it now reads parameters where no copy reaches it.
        """
        outgrown = any(probe.outgrown for probe in self.probes)
        if outgrown or not self._looked or plan.step & (plan.step - 1) == 0:
            self._look_again()
            closure = DrawWatch(closure, [target.tensor.device for target in self.targets])
        measured = super().measure(closure, curvature_closure, plan)
        self._looked = True
        return measured

    def _look_again(self) -> None:
        """Have the probes check the next evaluation as the first one was; without a model there is no need to."""
        for probe in self.probes if self._model is not None else ():
            probe.look_again()

    def _check_measured(self, plan: StepPlan, scalars: list[float]) -> None:
        super()._check_measured(plan, scalars)
        self._coarse = self._coarse or self.resolution.warn(stacklevel=5)
        unread = [target.name for probe in self.probes if probe.reads_none for target in probe.targets]
        if not any(scalars) and not self._unread:
            self._flat_steps += 1
            self._unread = bool(unread)
            if unread:  # one of the two alone may be right: a flat loss, reads out of torch's sight
                warnings.warn(
                    f"{reads_none(unread)} If it does read them, out of torch's sight, it is flat here: try a larger "
                    "eps",
                    stacklevel=5,
                )
            elif self._flat_steps & (self._flat_steps - 1) == 0:  # parameters may have been replaced since
                for probe in self.probes:
                    probe.look_again()
        for probe in self.probes:
            probe.reads_none = False

    @property
    def num_blocks(self) -> int:
        """Blocks of parameters that are probed one after the other."""
        return len(self.probes)

    def slopes(self, closure: Closure, plan: StepPlan, first_draw: int = 0) -> tuple[list[float], Tensor]:
        """The coefficients c/q of another set of directions, and the mean loss of the probes."""
        assert isinstance(plan.measurement, Pairs)
        return plan.measurement.slopes(self, closure, plan, first_draw)

    def combination(self, plan: StepPlan, coefficients: Sequence[float], first_draw: int = 0) -> Chunk:
        """Σ_j a_j z_j by chunks; coefficients run over directions, and within one over blocks of parameters."""
        blocks = self.num_blocks
        directions = [self.direction(plan, first_draw + draw) for draw in range(len(coefficients) // blocks)]

        def chunk(index: int, start: int, end: int) -> Tensor:
            p, parameter = self.targets[index].tensor, self.targets[index].id
            weights = coefficients[self.block_of[index] :: blocks]
            total = None
            for weight, direction in zip(weights, directions, strict=True):
                term = direction.chunk(parameter, start, end, p.device, compute_dtype(p.dtype)).mul_(weight)
                total = term if total is None else total.add_(term)
            assert total is not None
            return total

        return chunk

    def direction(self, plan: StepPlan, draw: int = 0) -> Any:
        """A direction of the step."""
        probing: Any = plan.probing
        return Direction(probing.seed, plan.step, draw, probing.distribution == "rademacher")

    def length(self, plan: StepPlan, direction: Any, block: int) -> float:
        """What z is multiplied by: √d / |z| on the sphere, else 1."""
        probing: Any = plan.probing
        if probing.distribution != "sphere":
            return 1.0
        size, squares = 0, 0.0
        for target in self.probes[block].targets:
            size += target.tensor.numel()
            for start, end in chunks(target.tensor.numel()):
                z = direction.chunk(target.id, start, end, target.tensor.device, torch.float64)
                squares += (z @ z).item()
        return math.sqrt(size / squares) if size else 1.0

    def loss_here(self, closure: Closure) -> Tensor:
        """L(theta)."""
        return self.probe.loss_here(closure)

    def _make_probe(self, targets: list[Target], scratch: Scratch | None = None) -> Probe:
        return Probe(targets, self._model, scratch)

    def _arrange(self, probing: Any) -> None:
        """One probe of everything, or one of each layer."""
        if self._arranged == probing.direction_per_layer:
            return
        self._arranged = probing.direction_per_layer
        self.resolution = ResolutionWatch()
        self.probe = self._make_probe(self.targets)
        self.probes, self.block_of = [self.probe], [0] * len(self.targets)
        layers = sorted({target.layer for target in self.targets})
        if probing.direction_per_layer and len(self.param_groups) > 1:
            self.block_of = [layers.index(target.layer) for target in self.targets]
            members = [[t for t in self.targets if t.layer == layer] for layer in layers]
            self.probes = [self._make_probe(owned, self.probe.scratch) for owned in members]
