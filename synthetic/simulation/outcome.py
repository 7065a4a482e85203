"""What became of each run of a batch: which have reached the target or left for good, and which still matter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

REACHED, OUT_OF_BUDGET, STALLED, DIVERGED, NON_FINITE = "reached", "out_of_budget", "stalled", "diverged", "non_finite"
_DIVERGED_AT = 1e6  # times the gap at the start
_PROGRESS = 0.9  # a run whose best gap of its second half is not below this times that of the first has stalled


@dataclass
class RunOutcomes:
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


class Standings:
    """The book of a batch of runs, seeds x trials.

    Args:
        start_gap: Per seed, the gap at the start, (seeds,).
        num_trials: Trials.
        target: Relative gap at which a run ends.
        budget: Most steps of a run.
        race: See `synthetic.simulation.simulator.simulate`.
        trace: Whether to keep the gap of every step; runs then go on to the budget.
        dtype: Of the gaps that will be judged.
    """

    def __init__(
        self,
        start_gap: Tensor,
        num_trials: int,
        *,
        target: float,
        budget: int,
        race: float,
        trace: bool,
        dtype: torch.dtype,
    ) -> None:
        rows = (len(start_gap), num_trials)
        self.race, self.budget = race, budget
        self._target = (target * start_gap)[:, None].expand(rows).to(dtype)
        self._limit = (_DIVERGED_AT * start_gap)[:, None].expand(rows).to(dtype)
        self._held = np.arange(rows[0]), np.arange(rows[1])  # seeds and trials that the batch still holds
        self._open = torch.ones(rows, dtype=torch.bool)
        self._done = np.zeros(rows, bool)
        self._outcome = RunOutcomes(
            steps=np.full(rows, np.inf),
            status=np.full(rows, OUT_OF_BUDGET, object),
            stopped=np.zeros(rows, np.int64),
        )
        self._marks: list[tuple[int, np.ndarray]] = []  # (step, gap or its lower bound) from time to time
        self._traced: list[np.ndarray] | None = [] if trace else None
        self._find_bounds()

    @property
    def traces(self) -> bool:
        """Whether the exact gap of every step is wanted."""
        return self._traced is not None

    def over(self, t: int) -> bool:
        """Whether nothing is left to do after step t."""
        return t >= self.budget or (self._traced is None and bool(self._done.all()))

    def judge(self, t: int, low: Tensor, gap: Callable[[], Tensor] | None = None) -> None:
        """Note which runs have just reached the target or left for good.

        Args:
            t: Steps made.
            low: The gap of each run that is held, or a lower bound of it, (seeds, trials).
            gap: Where ``low`` is a bound, what gives the gap itself.
        """
        self._low = low
        if self._traced is not None:
            self._traced.append(low.double().numpy().copy())
        if torch.equal(low.clamp(*self._bounds), low):  # no run has crossed a bound, as at most steps
            return
        near, lost = (low <= self._target) & self._open, ~(low <= self._limit) & self._open
        if bool(near.any()):
            hit = near if gap is None else near & (gap() <= self._target)
            self._end(t, hit.numpy(), REACHED)
            self._race(t)
        if bool(lost.any()):
            finite = low.isfinite()
            self._end(t, (lost & finite).numpy(), DIVERGED)
            self._end(t, (lost & ~finite).numpy(), NON_FINITE)

    def judge_block(self, t: int, gaps: Tensor) -> int:
        """`judge` the gaps after steps t + 1, t + 2, ..., shape (seeds, trials, steps); the step that this leads to."""
        low, high = (bound[..., None] for bound in self._bounds)
        self._low = gaps[..., -1]
        notable = list(range(gaps.shape[-1]))
        if not self.traces:
            if torch.equal(gaps.clamp(low, high), gaps):
                return t + gaps.shape[-1]
            events = (((gaps < low) | ~(gaps <= high)) & self._open[..., None]).numpy()
            notable = sorted(set(events[events.any(-1)].argmax(-1).tolist()))  # a run ends at its first event
        for k in notable:
            self.judge(t + k + 1, gaps[..., k])
            if self.over(t + k + 1):
                return t + k + 1
        self._low = gaps[..., -1]
        return min(t + gaps.shape[-1], self.budget)

    def compact(self, t: int) -> tuple[Tensor, Tensor] | None:
        """Note where the runs are; the seeds and trials to keep where others can be dropped, else None."""
        mark = np.full(self._done.shape, np.inf)
        mark[np.ix_(*self._held)] = self._low.double().numpy()
        self._marks.append((t, mark))
        if self._traced is not None:
            return None
        going = ~self._done[np.ix_(*self._held)]
        seeds, trials = going.any(1), going.any(0)
        if seeds.all() and trials.all():
            return None
        s, k = torch.from_numpy(np.nonzero(seeds)[0]), torch.from_numpy(np.nonzero(trials)[0])
        self._target, self._limit, self._open = (v[s][:, k] for v in (self._target, self._limit, self._open))
        self._held = self._held[0][seeds], self._held[1][trials]
        self._find_bounds()
        return s, k

    def close(self, t: int) -> RunOutcomes:
        """The outcome after t steps, the runs that are left named after what they have been doing."""
        left = ~self._done
        self._outcome.stopped[left] = t
        early, late = [m for at, m in self._marks if 2 * at <= t], [m for at, m in self._marks if 2 * at > t]
        if len(early) >= 2 and len(late) >= 2:
            stalled = np.min(late, 0) > _PROGRESS * np.min(early, 0)
            self._outcome.status[left & stalled] = STALLED
        if self._traced is not None:
            self._outcome.gaps = np.stack(self._traced)
        return self._outcome

    def _find_bounds(self) -> None:
        """Least and largest gap of a run of which there is nothing to note."""
        self._bounds = torch.nextafter(self._target, torch.full_like(self._target, torch.inf)), self._limit

    def _end(self, t: int, which: np.ndarray, status: str) -> None:
        if not which.any():
            return
        at = tuple(k[i] for k, i in zip(self._held, np.nonzero(which), strict=True))
        self._done[at], self._outcome.status[at], self._outcome.stopped[at] = True, status, t
        self._open = torch.from_numpy(~self._done[np.ix_(*self._held)])
        self._target = self._target.masked_fill(~self._open, -torch.inf)  # a run that has ended crosses no bound again
        self._limit = self._limit.masked_fill(~self._open, torch.inf)
        self._find_bounds()
        if status == REACHED:
            self._outcome.steps[at] = t

    def _race(self, t: int) -> None:
        reached = np.sort(self._outcome.steps, axis=0)[self._outcome.steps.shape[0] // 2]
        best = reached.min()
        if np.isfinite(best) and np.isfinite(self.race):
            self.budget = min(self.budget, max(t, math.ceil(self.race * best)))
