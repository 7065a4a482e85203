"""The update of a step as one launch a kind of parameter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from helene.evaluation.curvature import KeptGradient
from helene.evaluation.grouped.factors import Factors
from helene.evaluation.undo import deferred_interrupts
from helene.kernels import VARIABLE, backend, wanted
from helene.kernels.control import Control
from helene.kernels.tiles import Piece, Tiles, tables_of
from helene.steps.chunkwise import Moves
from helene.steps.fused.methods import Fused, of_plan, unfit
from helene.steps.plan import StepPlan

_taken: Any = WeakIdKeyDictionary()  # optimizer -> places and forms of its parameters, whether kernels take them all
_tables: Any = WeakIdKeyDictionary()  # optimizer -> addresses and tables: making one waits for the device
_controls: Any = WeakIdKeyDictionary()  # optimizer -> by device and numbers of layers and weights


def after_estimate(plan: StepPlan) -> StepPlan:
    """The step with its estimate of h made ahead, where the source is evaluated apart and kernels would read that h.

    A narrow h is stored with less than the step itself would read.
    """
    if plan.source is None or plan.source.of_step or any(way.state_dtype != "float32" for way in plan.storage):
        return plan
    return plan._replace(source=None)


def kernel_of(optimizer: Any, plan: StepPlan, kept: KeptGradient | None = None) -> Fused | None:
    """The update of a step where it is one kernel a kind of parameter; None where torch's operations make it."""
    found = of_plan(plan, kept)
    return found if isinstance(found, Fused) and _all_taken(optimizer) else None


def _all_taken(optimizer: Any) -> bool:
    """Whether the kernels take all parameters; asked of each again where one has moved or changed."""
    tensors = [target.tensor for target in optimizer.targets]
    seen = os.environ.get(VARIABLE), [(p.data_ptr(), p.dtype, p.is_contiguous()) for p in tensors]
    held: tuple[Any, bool] | None = _taken.get(optimizer)
    if held is None or held[0] != seen:
        taken = all(wanted(p.device) and backend(p).is_triton for p in tensors) and not unfit(optimizer.targets)
        held = _taken[optimizer] = seen, taken
    return held[1]


class Launches:
    """The update of a step for which there is a kernel, see `helene.steps.chunkwise.Moves`.

    Parameters and state come out as by that loop, given equal z. A launch can be neither repeated nor undone, so Ctrl-C
    waits for the last of them.

    Args:
        optimizer: Whose step it is.
        plan: Of the step, see `after_estimate`.
        method: Its `kernel_of`.
        coefficients: Of its directions; none where a gradient is kept.
        estimate: What takes the step's estimate into h, where kernels do not.
        kept: The gradient that it moves along, where that is in memory.
    """

    def __init__(
        self,
        optimizer: Any,
        plan: StepPlan,
        method: Fused,
        coefficients: Sequence[float],
        estimate: Moves | None = None,
        kept: KeptGradient | None = None,
    ) -> None:
        self._what = optimizer, plan, method, coefficients, kept
        self._estimate, self._launched = estimate, False

    def make(self) -> None:
        """Launch them, once."""
        if self._estimate is not None:
            self._estimate.make()
        with deferred_interrupts():
            if not self._launched:
                self._launched = True
                launch_all(*self._what)


def launch_all(
    optimizer: Any, plan: StepPlan, method: Fused, coefficients: Sequence[float], kept: KeptGradient | None = None
) -> None:
    """theta and state ← one step by the fused kernels, along the gradient that is kept, else along directions."""
    from helene.kernels import launch

    hypers, sent, drawn = method.rows(plan), set(), factors(optimizer, plan)
    signs = kept is None and optimizer.direction(plan).signs
    weights = () if drawn is None and len(coefficients) == 1 else coefficients
    slope = coefficients[0] if coefficients else 0.0
    controls: dict[tuple[torch.device, int, int], Control] = _controls.setdefault(optimizer, {})
    for tiles in tables(optimizer, plan, kept):
        place = tiles.base.device, len(hypers), len(weights)
        control = controls.get(place)
        if control is None:
            control = controls[place] = Control(*place)
        if place not in sent:
            sent.add(place)
            control.send((plan.seed, plan.step, 0), 0.0, (slope, 1.0, 0.0), hypers, weights)
        low_rank = None
        if drawn is not None:
            numbers = drawn.numbers(tiles.base.device)
            low_rank = launch.LowRank(numbers, drawn.rank, drawn.scale)
        several = control.weights if weights else None
        step = control.key, control.values, control.hypers
        launch.update(tiles, method.code, *step, several, low_rank, signs=signs)


def factors(optimizer: Any, plan: StepPlan) -> Factors | None:
    """The step's directions of low rank, where it has such."""
    return optimizer.factors(plan) if plan.probing.is_low_rank else None


def pieces(optimizer: Any, plan: StepPlan, kept: KeptGradient | None = None) -> list[Piece]:
    """Each trained parameter with its state, which is allocated if need be, and the gradient that is kept."""
    made, drawn = [], factors(optimizer, plan)
    for index, target in enumerate(optimizer.targets):
        rule, way = plan.rules[target.layer], plan.storage[target.layer]
        held = optimizer.allocate(target, rule, way)
        state = [tensor for name in rule.kept for tensor in (held[name], held.get(f"{name}_scale", held[name]))]
        stochastic = way.rounding == "stochastic" and target.tensor.dtype != torch.float32
        start, columns = drawn.place(index) if drawn else (0, 0)
        place = target.id, start, target.layer, tuple(state), stochastic, columns
        made.append(Piece(target.tensor.detach(), *place, kept[index] if kept else None))
    return made


def tables(optimizer: Any, plan: StepPlan, kept: KeptGradient | None = None) -> list[Tiles]:
    """A table for each kind of parameter and state, kept until a tensor moves or is rounded otherwise.

    Directions of low rank are part of it: others have other places.
    """
    held: tuple[Any, list[Tiles]] | None = _tables.get(optimizer)
    if held is None or held[0] != _made_of(optimizer, plan, kept):  # tables hold their tensors, no address comes again
        made = tables_of(pieces(optimizer, plan, kept))
        held = _tables[optimizer] = _made_of(optimizer, plan, kept), made
    return held[1]


def _made_of(optimizer: Any, plan: StepPlan, kept: KeptGradient | None) -> Any:
    """What tables follow from."""
    tensors = [target.tensor for target in optimizer.targets]
    addresses = [tensor.data_ptr() for tensor in (*tensors, *(kept or ()))]
    if any(rule.kept for rule in plan.rules):
        addresses += [t.data_ptr() for tensor in tensors for t in optimizer.state[tensor].values()]
    return plan.storage, [rule.kept for rule in plan.rules], addresses, factors(optimizer, plan)
