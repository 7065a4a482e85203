"""The two probes of a step: both forwards, each unit's copies written before they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from helene.engine.pairs.copies import Copies
from helene.engine.pairs.lanes import Lane, Worker, hook
from helene.engine.pairs.schedule import Changed
from helene.engine.pairs.streams import Event, Streams, record, wait
from helene.evaluation.compiled import Compiled
from helene.evaluation.directions import Target
from helene.evaluation.reads import ReadWatch
from helene.evaluation.undo import Undo


class Pair:
    """Evaluates a loss at theta + eps z and theta − eps z.

    Args:
        model: The module that reads the parameters.
        targets: The trained parameters.
        copies: Their perturbed copies.
        workers: Two threads.
        streams: Where the work goes.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Sequence[Target],
        copies: Copies,
        workers: tuple[Worker, Worker],
        streams: Streams,
    ) -> None:
        self.model, self.targets, self.copies, self.workers, self.streams = model, targets, copies, workers, streams

    def __call__(
        self, run: Callable[[], Any], watched: bool, one_by_one: bool = False, compiled: Compiled | None = None
    ) -> tuple[Any, Any, list[ReadWatch]]:
        """Both losses, and what was seen of the parameters' reads (nothing unless ``watched``).

        Everything is enqueued on the streams and joined to the current one; nothing is waited for.

        Args:
            run: Evaluates the loss.
            watched: Whether reads of the parameters are noted.
            one_by_one: Whether the second forward starts when the first has ended; else they advance in turns.
            compiled: Forwards of blocks to run in the place of their own; not while reads are watched.

        Raises:
            Changed: If the modules ran in another order than the schedule says.
        """
        watches = [self._watch() for _ in range(2)] if watched else []
        lanes: list[Lane] = []
        for sign, stream in ((1, self.streams.plus), (-1, self.streams.minus)):
            lane = Lane(self.copies.schedule, run, partial(self.copies.rows, sign), stream)
            lane.watch = watches[len(lanes)] if watched else None
            lanes.append(lane)
        undo, originals = Undo(), [target.tensor.data for target in self.targets]
        undo.note(lambda: self._point_at(dict(enumerate(originals))))
        try:
            try:
                hook(undo, self.model, self.copies.schedule.calls)
                if compiled is not None:
                    compiled.put_on(undo)
                for lane in lanes:
                    undo.note(lane.cancel)  # ahead of the hooks, which stop it
                self._run(lanes, self._one_by_one if one_by_one else self._in_turns)
            finally:
                undo.run()
        finally:
            undo.run()
        return lanes[0].result, lanes[1].result, watches

    def _watch(self) -> ReadWatch:
        watch = ReadWatch([t.tensor for t in self.targets])
        watch.regions = self.copies.regions
        return watch

    def _run(self, lanes: list[Lane], advance: Callable[[list[Lane]], None]) -> None:
        streams = self.streams
        here = streams.current()
        for stream in streams:
            streams.join(stream, here)
        with streams.copying():
            self.copies.write_resident()
        advance(lanes)
        for lane in lanes:
            if not lane.finished:
                raise Changed("the forward has more units than the schedule")
        for stream in streams:
            streams.join(here, stream)

    def _in_turns(self, lanes: list[Lane]) -> None:
        units, streams = self.copies.schedule.units, self.streams
        resident = record(streams.copy)
        for lane, sign in zip(lanes, (1, -1), strict=True):
            wait(lane.stream, resident)
            self._advance(lane, -1, sign)  # what comes before the first unit
        ready: list[Event] = []
        used: list[list[Event]] = []
        for u, unit in enumerate(units):
            while len(ready) < len(units) and units[len(ready)].after < u:  # as early as the ring allows
                after = units[len(ready)].after
                for event in used[after] if after >= 0 else ():
                    wait(streams.copy, event)
                ready.append(self._write(len(ready), (1, -1) if units[len(ready)].together else (1,)))
            if not unit.together and lanes[1].stream is not streams.plus:
                streams.join(streams.plus, lanes[1].stream)  # one after the other from here on, on one stream: what the
                lanes[1].stream = streams.plus  # first has freed serves the second
            wait(lanes[0].stream, ready[u])
            self._advance(lanes[0], u, 1)
            first = record(lanes[0].stream)
            if not unit.together:
                wait(streams.copy, first)
                ready[u] = self._write(u, (-1,))
            wait(lanes[1].stream, ready[u])
            self._advance(lanes[1], u, -1)
            used.append([first, record(lanes[1].stream)])

    def _one_by_one(self, lanes: list[Lane]) -> None:
        streams = self.streams
        for lane, sign in zip(lanes, (1, -1), strict=True):
            streams.join(lane.stream, streams.copy)
            self._advance(lane, -1, sign)
            for u in range(len(self.copies.schedule.units)):
                streams.join(streams.copy, lane.stream)
                self._write(u, (sign,))
                streams.join(lane.stream, streams.copy)
                self._advance(lane, u, sign)
            streams.join(streams.copy, lane.stream)

    def _write(self, unit: int, signs: tuple[int, ...]) -> Event:
        with self.streams.copying():
            self.copies.write(unit, signs)
        return record(self.streams.copy)

    def _advance(self, lane: Lane, unit: int, sign: int) -> None:
        """Let a lane run one unit, its parameters pointing at its copies."""
        copies = self.copies.views(unit, sign)
        originals = {index: self.targets[index].tensor.data for index in copies}
        torch.clear_autocast_cache()  # it would hand one lane's cast weights to the other
        try:
            self._point_at(copies)
            lane.advance(self.workers[0 if sign > 0 else 1])
        finally:
            self._point_at(originals)
            torch.clear_autocast_cache()

    def _point_at(self, tensors: dict[int, torch.Tensor]) -> None:
        for index, tensor in tensors.items():
            self.targets[index].tensor.data = tensor


def check_independence(losses: tuple[Any, Any], alone: Callable[[], tuple[Any, Any]]) -> None:
    """Make sure that two forwards side by side gave what they give one after the other.

    A module that keeps a tensor on itself for another to read hands one forward's to the other. Losses that differ from
    run to run anyhow say nothing, nor do differences below a hundredth of L⁺ − L⁻ or a few units of rounding.

    Args:
        losses: L⁺ and L⁻, side by side.
        alone: Evaluates both one after the other.

    Raises:
        ValueError: If they differ.
    """
    mine, first = _values(losses), _values(alone())
    if mine == first or not all(map(math.isfinite, mine + first)):
        return
    if first != _values(alone()):
        return
    far = max(abs(a - b) for a, b in zip(mine, first, strict=True))
    rounding = 8.0 * torch.finfo(losses[0].dtype).eps * max(map(abs, first))
    if far > max(0.01 * abs(first[0] - first[1]), rounding):
        raise ValueError(
            f"the forwards at theta ± eps z disturb each other when they advance in turns ({mine} instead of {first}): "
            "a module probably keeps a tensor for another one to read; pass it as an argument, or use "
            "optimizer.step(closure)"
        )


def _values(losses: Sequence[Any]) -> list[float]:
    return [float(loss) for loss in losses]
