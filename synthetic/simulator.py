r"""Many runs of one method on one problem at once: seeds x trials as tensor dimensions, one direction per seed.

Directions are those of `helene.noise`: layer i is the parameter at position i, its coordinates are the elements, so a
row follows the optimizers of `helene.optimizers` to rounding. On a separable problem, methods that commute with turns
run in the eigenbasis, where a gradient costs no product of matrices; their directions are turned once per seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from helene import functional
from helene.noise import normal_rows, parameter_id
from synthetic.layers import Layers
from synthetic.methods.base import Method, Signal, State
from synthetic.problems.base import Problem

if TYPE_CHECKING:
    from jaxtyping import Float

REACHED, OUT_OF_BUDGET, STALLED, DIVERGED, NON_FINITE = "reached", "out_of_budget", "stalled", "diverged", "non_finite"
_DIVERGED_AT = 1e6  # times the gap at the start
_FIRST_CHUNK, _LAST_CHUNK, _CHUNK_ELEMENTS = 16, 256, 1 << 20
_PROGRESS = 0.9  # a run whose best gap of its second half is not below this times that of the first has stalled


@dataclass
class Outcome:
    """What became of each run.

    Attributes:
        steps: First step after which the gap is at most the target; inf for a miss. Shape (seeds, trials).
        status: Words of the design, same shape.
        stopped: Steps made, same shape.
        gaps: With ``trace``, the gap before each step, (steps + 1, seeds, trials), else empty.
    """

    steps: np.ndarray
    status: np.ndarray
    stopped: np.ndarray
    gaps: np.ndarray = field(default_factory=lambda: np.empty(0))


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
) -> Outcome:
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
    batch = _Batch(problem, method, x0, seeds, settings, target, budget, dtype, race, probe, trace)
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
        target: float,
        budget: int,
        dtype: torch.dtype,
        race: float,
        probe: float | None,
        trace: bool,
    ) -> None:
        self.method, self.race, self.probe, self.budget = method, race, probe, budget
        self.turns = problem.separable and method.commutes_with_turns
        self.outer = problem.to(dtype)
        self.problem = self.outer.in_eigenbasis() if self.turns else self.outer
        self.dtype, self.layers = dtype, problem.layers
        self.ids = [parameter_id(i) for i in range(problem.layers.n)]
        rows = (len(seeds), len(settings))
        start_gap = problem.gap(problem.features(x0.double()))
        self.target = (target * start_gap)[:, None].expand(rows).to(dtype)
        self.limit = (_DIVERGED_AT * start_gap)[:, None].expand(rows).to(dtype)
        placed = problem.features(x0) if self.turns else x0
        self.x = placed.to(dtype)[:, None, :].repeat(1, rows[1], 1)
        self.state: State = method.start(self.x)
        self.given = {name: _column([s[name] for s in settings], dtype) for name in (settings[0] if settings else {})}
        self.seeds = list(seeds)
        self.kept = np.arange(rows[0]), np.arange(rows[1])  # rows of the outcome that the tensors still hold
        self.open = torch.ones(rows, dtype=torch.bool)
        self.done = np.zeros(rows, bool)
        self.outcome = Outcome(np.full(rows, np.inf), np.full(rows, OUT_OF_BUDGET, object), np.zeros(rows, np.int64))
        self.marks: list[tuple[int, np.ndarray]] = []  # (step, gap or its lower bound) from time to time
        self.traced: list[np.ndarray] | None = [] if trace else None

    def run(self) -> Outcome:
        t, chunk, end = 0, _FIRST_CHUNK, 0
        z = y = torch.empty(0)
        while True:
            p = self.problem.features(self.x)
            slope = self.problem.slope(p)
            self._judge(t, p, slope)
            if t >= self.budget or (self.done.all() and self.traced is None):
                break
            if t == end:
                if self._compact(t):
                    p = self.problem.features(self.x)
                    slope = self.problem.slope(p)
                chunk = self._chunk(chunk)
                end = min(t + chunk, self.budget)
                z, y = self._directions(range(t + 1, end + 1))
            k = t - end + z.shape[1] if self.method.directions != "none" else 0
            signal = self._signal(t + 1, z[:, k, None], y[:, k, None], p, slope)
            self.x = self.method.move(self.x, self.state, signal, self.given)
            t += 1
        self._close(t)
        return self.outcome

    def _chunk(self, last: int) -> int:
        """Short at first, for many runs end early; then as long as the noise fits a cache."""
        return max(1, min(2 * last, _LAST_CHUNK, _CHUNK_ELEMENTS // (max(1, len(self.seeds)) * self.layers.d)))

    def _directions(self, steps: range) -> tuple[Tensor, Tensor]:
        """z in the frame of x and the features of z, each (seeds, steps, d) or (seeds, steps, p)."""
        if self.method.directions == "none":
            nothing = torch.zeros(len(self.seeds), 1, 1, dtype=self.dtype)
            return nothing, nothing
        z = torch.stack([directions(self.layers, seed, steps, self.ids) for seed in self.seeds]).to(self.dtype)
        y = self.outer.features(z)
        return (y, y) if self.turns else (z, y)

    def _signal(self, step: int, z: Tensor, y: Tensor, p: Tensor, slope: Tensor) -> Signal:
        if self.method.directions == "none":
            c = z
        elif self.method.directions == "shared":
            c = self._shared(p, slope, y)
        else:
            c = self.layers.spread(self._per_layer(p, slope, z, y))
        return Signal(step, z, c, slope, p, self.problem)

    def _shared(self, p: Tensor, slope: Tensor, y: Tensor) -> Tensor:
        if self.probe is None:
            return torch.bmm(slope, y.mT)
        radius = self.probe
        plus, minus = self.problem.gap(p + radius * y), self.problem.gap(p - radius * y)
        return functional.projected_gradient(plus, minus, radius)[..., None]

    def _per_layer(self, p: Tensor, slope: Tensor, z: Tensor, y: Tensor) -> Tensor:
        if self.probe is not None:
            if not self.problem.separable:
                raise ValueError("two-point probes of single layers are simulated for separable problems only")
            radius = self.probe
            plus = self.layers.sum(self.problem.gap_terms(p + radius * y))
            return functional.projected_gradient(plus, self.layers.sum(self.problem.gap_terms(p - radius * y)), radius)
        if self.problem.separable:
            return self.layers.sum(slope * y)
        return self.layers.sum(self.problem.pullback(slope) * z)

    def _judge(self, t: int, p: Tensor, slope: Tensor) -> None:
        """Note which runs have just reached the target or left for good."""
        exact = self.traced is not None
        low = self.low = self.problem.gap(p) if exact else self.problem.gap_below(p, slope)
        if self.traced is not None:
            self.traced.append(low.double().numpy().copy())
        if bool(((low > self.target) & (low <= self.limit)).all()):  # nothing has happened: all but a few steps
            return
        near, lost = (low <= self.target) & self.open, ~(low <= self.limit) & self.open
        if bool(near.any()):
            hit = near if exact else near & (self.problem.gap(p) <= self.target)
            self._end(t, hit.numpy(), REACHED)
            self._race(t)
        if bool(lost.any()):
            finite = low.isfinite()
            self._end(t, (lost & finite).numpy(), DIVERGED)
            self._end(t, (lost & ~finite).numpy(), NON_FINITE)

    def _end(self, t: int, which: np.ndarray, status: str) -> None:
        if not which.any():
            return
        at = tuple(k[i] for k, i in zip(self.kept, np.nonzero(which), strict=True))
        self.done[at], self.outcome.status[at], self.outcome.stopped[at] = True, status, t
        self.open = torch.from_numpy(~self.done[np.ix_(*self.kept)])
        self.target = self.target.masked_fill(~self.open, -torch.inf)  # nothing more is to be seen there
        self.limit = self.limit.masked_fill(~self.open, torch.inf)
        if status == REACHED:
            self.outcome.steps[at] = t

    def _race(self, t: int) -> None:
        reached = np.sort(self.outcome.steps, axis=0)[self.outcome.steps.shape[0] // 2]
        best = reached.min()
        if np.isfinite(best) and np.isfinite(self.race):
            self.budget = min(self.budget, max(t, math.ceil(self.race * best)))

    def _compact(self, t: int) -> bool:
        """Note where the runs are, and drop seeds and trials of which none goes on; whether there was any."""
        mark = np.full(self.done.shape, np.inf)
        mark[np.ix_(*self.kept)] = self.low.double().numpy()
        self.marks.append((t, mark))
        if self.traced is not None:
            return False
        going = ~self.done[np.ix_(*self.kept)]
        seeds, trials = going.any(1), going.any(0)
        if seeds.all() and trials.all():
            return False
        s, k = torch.from_numpy(np.nonzero(seeds)[0]), torch.from_numpy(np.nonzero(trials)[0])
        self.x, self.target, self.limit, self.open = (v[s][:, k] for v in (self.x, self.target, self.limit, self.open))
        self.state = {name: v[s][:, k] for name, v in self.state.items()}
        self.given = {name: v[k] if isinstance(v, Tensor) else v for name, v in self.given.items()}
        self.seeds = [self.seeds[i] for i in s.tolist()]
        self.kept = self.kept[0][seeds], self.kept[1][trials]
        return True

    def _close(self, t: int) -> None:
        """Name what the runs that are left have been doing."""
        left = ~self.done
        self.outcome.stopped[left] = t
        early, late = [m for at, m in self.marks if 2 * at <= t], [m for at, m in self.marks if 2 * at > t]
        if len(early) >= 2 and len(late) >= 2:
            stalled = np.min(late, 0) > _PROGRESS * np.min(early, 0)
            self.outcome.status[left & stalled] = STALLED
        if self.traced is not None:
            self.outcome.gaps = np.stack(self.traced)


def _column(values: Sequence[float | Tensor], dtype: torch.dtype) -> float | Tensor:
    """A setting for all trials: the number that they share, else (trials, 1) or (trials, d)."""
    if all(isinstance(v, int | float) and v == values[0] for v in values):
        return values[0]
    return torch.stack([torch.as_tensor(v, dtype=dtype).reshape(-1) for v in values])


def directions(layers: Layers, seed: int, steps: range, ids: Sequence[int]) -> Tensor:
    """z of one seed, (steps, d), float32: what the optimizers draw for parameters at positions 0, 1, ..."""
    parts = []
    for run in layers.runs:
        rows = normal_rows(seed, steps, 0, ids[run.first_layer : run.first_layer + run.count], run.width)
        parts.append(rows.flatten(1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
