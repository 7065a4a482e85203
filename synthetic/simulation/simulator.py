r"""Many runs of one method on one problem at once: seeds x trials as tensor dimensions, one direction per seed.

Directions are those of `helene.noise`: layer i is the parameter at position i, its coordinates are the elements, so a
row follows the optimizers of `helene.optimizers` to rounding. On a separable problem, methods that commute with turns
run in the eigenbasis, where a gradient costs no product of matrices; their directions are turned once per seed. MeZO on
a quadratic goes a block of steps at a time (`synthetic.simulation.blocks`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from helene import functional
from synthetic.methods.base import Method, Signal, State
from synthetic.methods.zeroth import MeZO
from synthetic.problems.base import Problem
from synthetic.simulation.blocks import block_of, descend_block
from synthetic.simulation.directions import BatchedDirections
from synthetic.simulation.outcome import RunOutcomes, Standings

if TYPE_CHECKING:
    from jaxtyping import Float

_FIRST_CHUNK, _LAST_CHUNK, _CHUNK_ELEMENTS = 16, 256, 1 << 20
_BLOCKS_FROM = 64  # smallest d whose blocks hold more than a few steps


def simulate(
    problem: Problem,
    method: Method,
    x0: Float[Tensor, "seeds d"],
    seeds: Sequence[int],
    settings: Sequence[Mapping[str, float | Tensor]],
    *,
    target: float,
    budget: int,
    dtype: torch.dtype = torch.float32,
    race: float = math.inf,
    probe: float | None = None,
    trace: bool = False,
) -> RunOutcomes:
    r"""Run every trial with every seed until the loss gap is at most ``target`` times the one at the start.

    Args:
        problem: In its own coordinates, float64.
        method: The update.
        x0: theta_0 − theta* per seed.
        seeds: Run seeds, which key the directions.
        settings: Per trial, what `Method.settings` returned.
        target: Relative gap in (0, 1).
        budget: Most steps of a run.
        dtype: Of the arithmetic.
        race: Once a trial's median is known, all runs end at this multiple of the best one. With an odd number of seeds
            nothing is lost: whatever misses that has a larger median.
        probe: None for the exact directional derivative; else the radius eps of two-point differences.
        trace: Whether to keep the gap of every step; runs then go on to the budget.

    Raises:
        ValueError: If target or budget is out of range, or the method does not fit the problem.
    """
    if not 0.0 < target < 1.0:
        raise ValueError(f"target must be in (0, 1), got {target!r}; it is a fraction of the gap at the start")
    if budget < 1:
        raise ValueError(f"budget must be at least one step, got {budget!r}")
    start_gap = problem.gap(problem.features(x0.double()))
    standings = Standings(start_gap, len(settings), target=target, budget=budget, race=race, trace=trace, dtype=dtype)
    batch = _Batch(problem, method, x0, seeds, settings, standings=standings, dtype=dtype, probe=probe)
    with torch.no_grad():
        return batch.run()


class _Batch:
    """The running rows: seeds and trials that still matter, compacted as others end."""

    def __init__(
        self,
        problem: Problem,
        method: Method,
        x0: Tensor,
        seeds: Sequence[int],
        settings: Sequence[Mapping[str, float | Tensor]],
        *,
        standings: Standings,
        dtype: torch.dtype,
        probe: float | None,
    ) -> None:
        self.method, self.probe, self.standings = method, probe, standings
        self.blocks = problem.quadratic and type(method) is MeZO and probe is None and problem.layers.d >= _BLOCKS_FROM
        self.turns = problem.separable and method.commutes_with_turns
        self.outer = problem.to(dtype)
        self.problem = self.outer.in_eigenbasis() if self.turns else self.outer
        self.dtype, self.layers = dtype, problem.layers
        self.directions = BatchedDirections(problem.layers.sizes)
        self.drawn = torch.empty(max(_CHUNK_ELEMENTS, len(seeds) * problem.layers.d))
        placed = problem.roots(x0) if self.blocks else problem.features(x0) if self.turns else x0
        self.x = placed.to(dtype)[:, None, :].repeat(1, len(settings), 1)
        self.state: State = method.start(self.x)
        self.given = {name: _column([s[name] for s in settings], dtype) for name in (settings[0] if settings else {})}
        self.seeds = list(seeds)

    def run(self) -> RunOutcomes:
        t, chunk, standings = 0, _FIRST_CHUNK, self.standings
        self._judge(t)
        while not standings.over(t):
            self._compact(t)
            chunk = self._chunk(chunk)
            steps = range(t + 1, min(t + chunk, standings.budget) + 1)
            t = self._go_in_blocks(steps) if self.blocks else self._go(steps)
        return standings.close(t)

    def _chunk(self, last: int) -> int:
        """Short at first, for many runs end early; then as long as the noise fits a cache."""
        return max(1, min(2 * last, _LAST_CHUNK, _CHUNK_ELEMENTS // (max(1, len(self.seeds)) * self.layers.d)))

    def _compact(self, t: int) -> None:
        """Drop seeds and trials of which none goes on."""
        still_running = self.standings.compact(t)
        if still_running is None:
            return
        s, k = still_running
        self.x = self.x[s][:, k]
        self.state = {name: v[s][:, k] for name, v in self.state.items()}
        self.given = {name: v[k] if isinstance(v, Tensor) else v for name, v in self.given.items()}
        self.seeds = [self.seeds[i] for i in s.tolist()]
        self._evaluate()

    def _go(self, steps: range) -> int:
        """Make the steps one by one; the last one made."""
        z, y = self._directions(steps)
        for k, t in enumerate(steps):
            at = k if self.method.directions != "none" else 0
            signal = self._signal(t, z[:, at, None], y[:, at, None])
            self.x = self.method.move(self.x, self.state, signal, self.given)
            self._judge(t)
            if self.standings.over(t):
                break
        return t

    def _go_in_blocks(self, steps: range) -> int:
        """The same for MeZO on a quadratic."""
        t = steps.start - 1
        z = self._draw(steps)
        for y in self.outer.roots(z, out=z).split(block_of(self.layers.d), 1):
            t = self.standings.judge_block(t, descend_block(self.x, y, self.given["lr"]))
            if self.standings.over(t):
                break
        return t

    def _evaluate(self) -> None:
        if not self.blocks:
            self.p = self.problem.features(self.x)
            self.slope = self.problem.slope(self.p)

    def _judge(self, t: int) -> None:
        """Evaluate the problem where the runs are after step t, and judge them."""
        self._evaluate()
        if self.blocks:
            self.standings.judge(t, 0.5 * self.x.square().sum(-1))
        elif self.standings.traces:
            self.standings.judge(t, self.problem.gap(self.p))
        else:
            self.standings.judge(t, self.problem.gap_below(self.p, self.slope), lambda: self.problem.gap(self.p))

    def _draw(self, steps: range) -> Tensor:
        """z in the coordinates, (seeds, steps, d), in memory that the next call reuses: fresh pages cost as much."""
        shape = len(self.seeds), len(steps), self.layers.d
        return self.directions(self.seeds, steps, self.drawn[: math.prod(shape)].view(shape)).to(self.dtype)

    def _directions(self, steps: range) -> tuple[Tensor, Tensor]:
        """z in the frame of x and the features of z, each (seeds, steps, d) or (seeds, steps, p)."""
        if self.method.directions == "none":
            nothing = torch.zeros(len(self.seeds), 1, 1, dtype=self.dtype)
            return nothing, nothing
        z = self._draw(steps)
        y = self.outer.features(z)
        return (y, y) if self.turns else (z, y)

    def _signal(self, step: int, z: Tensor, y: Tensor) -> Signal:
        if self.method.directions == "none":
            c = z
        elif self.method.directions == "shared":
            c = self._shared(y)
        else:
            c = self.layers.spread(self._per_layer(z, y))
        return Signal(step, z=z, c=c, slope=self.slope, p=self.p, problem=self.problem)

    def _shared(self, y: Tensor) -> Tensor:
        if self.probe is None:
            return torch.bmm(self.slope, y.mT)
        radius = self.probe
        plus, minus = self.problem.gap(self.p + radius * y), self.problem.gap(self.p - radius * y)
        return functional.projected_gradient(plus, minus, radius)[..., None]

    def _per_layer(self, z: Tensor, y: Tensor) -> Tensor:
        if self.probe is not None:
            if not self.problem.separable:
                raise ValueError("two-point probes of single layers are simulated for separable problems only")
            radius = self.probe
            plus = self.layers.sum(self.problem.gap_terms(self.p + radius * y))
            minus = self.layers.sum(self.problem.gap_terms(self.p - radius * y))
            return functional.projected_gradient(plus, minus, radius)
        if self.problem.separable:
            return self.layers.sum(self.slope * y)
        return self.layers.sum(self.problem.pullback(self.slope) * z)


def _column(values: Sequence[float | Tensor], dtype: torch.dtype) -> float | Tensor:
    """A setting for all trials: the number that they share, else (trials, 1) or (trials, d)."""
    if all(isinstance(v, int | float) and v == values[0] for v in values):
        return values[0]
    return torch.stack([torch.as_tensor(v, dtype=dtype).reshape(-1) for v in values])
