"""Where a step's time goes: which kernels run when, alone or beside others, and how far each is from its floor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

ROLES = {  # kernels of helene.kernels
    "perturb": "copies",
    "gather": "copies",
    "update_and_perturb": "copies",  # of the records of an H100
    "update": "update",
    "fill": "noise",
}
KINDS = (  # what a forward's kernels do, by words in their names; the first that fits
    ("exchange", ("nccl",)),
    ("staging", ("memcpy", "memset")),
    ("attention", ("sdpa", "fmha", "flash", "attention")),
    ("products", ("gemm", "gemv", "nvjet", "xmma", "cutlass", "cublas", "splitk", "dot_kernel", "magma")),
    ("products", ("add_product",)),  # of `helene.kernels`
    ("norms", ("layer_norm", "layernorm", "rms_norm", "rmsnorm", "welford")),
    ("loss", ("softmax", "nll_loss", "cross_entropy", "logsumexp")),
    ("lookups", ("index", "gather", "scatter", "embedding")),
    ("reductions", ("reduce", "scan", "sort", "unique")),
    ("draws", ("distribution", "dropout", "philox", "normal_kernel", "random")),
    ("elementwise", ("elementwise", "catarray", "copy_kernel", "fill", "triu_tril", "where", "arange", "pointwise")),
)


class Interval(NamedTuple):
    """One thing the device did: its name and when, in microseconds."""

    name: str
    start: float
    end: float


def profile(step: Callable[[], Any], steps: int = 10) -> list[Interval]:
    """What the device does during some steps.

    Args:
        step: Makes one step; warm.
        steps: How many.
    """
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    found = []
    for event in recorded.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            start = event.start_ns() / 1e3
            found.append(Interval(event.name(), start, start + event.duration_ns() / 1e3))
    return sorted(found, key=lambda interval: interval.start)


def role(name: str) -> str:
    """What a kernel does for a step: copies, update, noise, staging, or (all else) forward."""
    if name in ROLES:
        return ROLES[name]
    if "nccl" in name.lower():
        return "exchange"
    return "staging" if name.startswith(("Memcpy", "Memset")) else "forward"


def kind(name: str) -> str:
    """What a kernel computes: one of `ROLES` for the kernels here, one of `KINDS`, or ``other``."""
    if name in ROLES:
        return ROLES[name]
    lower = name.lower()
    return next((kind for kind, words in KINDS if any(word in lower for word in words)), "other")


def account(intervals: Sequence[Interval], steps: int) -> dict[str, Any]:
    """Seconds a step by what ran: each moment counts once, under all that ran in it.

    Returns:
        ``step_seconds``; ``parts``, a dict from names such as "forward", "copies beside forward", "update", "gap" to
        seconds a step, which add up to it; ``busy``, from a role to the seconds a step in which it ran at all;
        ``kinds``, the same by what kernels compute; ``accounted``, the share of time in which something with a name
        ran or nothing did.
    """
    if not intervals:
        return {"step_seconds": 0.0, "parts": {}, "busy": {}, "kinds": {}, "accounted": 0.0}
    edges = sorted(
        edge
        for i in intervals
        for edge in ((i.start, 1, role(i.name), kind(i.name)), (i.end, -1, role(i.name), kind(i.name)))
    )
    active: dict[str, int] = {}
    computing: dict[str, int] = {}
    kinds: dict[str, float] = {}
    nameless = 0.0
    parts: dict[str, float] = {}
    busy: dict[str, float] = {}
    last = edges[0][0]
    for moment, change, what, computes in edges:
        if moment > last:
            at_work = [name for name, count in computing.items() if count]
            for name in at_work:
                kinds[name] = kinds.get(name, 0.0) + moment - last
            nameless += moment - last if at_work == ["other"] else 0.0
            running = sorted(name for name, count in active.items() if count)
            if "forward" in running and len(running) > 1:
                label = f"{' and '.join(name for name in running if name != 'forward')} beside forward"
            else:
                label = " and ".join(running) or "gap"
            parts[label] = parts.get(label, 0.0) + moment - last
            for name in running:
                busy[name] = busy.get(name, 0.0) + moment - last
            last = moment
        active[what] = active.get(what, 0) + change
        computing[computes] = computing.get(computes, 0) + change
    whole = edges[-1][0] - edges[0][0]
    scale = 1e-6 / steps
    return {
        "step_seconds": whole * scale,
        "parts": {name: value * scale for name, value in sorted(parts.items(), key=lambda item: -item[1])},
        "busy": {name: value * scale for name, value in sorted(busy.items(), key=lambda item: -item[1])},
        "kinds": {name: value * scale for name, value in sorted(kinds.items(), key=lambda item: -item[1])},
        "accounted": 1.0 - nameless / whole if whole else 0.0,
    }


def until_update(intervals: Sequence[Interval], steps: int) -> float:
    """Seconds a step from the end of the last kernel of its forwards to the start of the update."""
    total, ended = 0.0, None
    for interval in intervals:
        what = role(interval.name)
        if what == "forward":
            ended = interval.end if ended is None else max(ended, interval.end)
        elif what == "update" and ended is not None:
            total, ended = total + max(0.0, interval.start - ended), None
    return total * 1e-6 / steps


class HostTimers:
    """Seconds by part where there is no device to record: each moment counts for what was entered last.

    The engine's two forwards are threads of which one runs at a time, so one list of what is under way serves all.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[list[str]] = []
        self._last = 0.0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted under a name."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            mine = [name]
            self._turn()
            self._open.append(mine)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._open = [other for other in self._open if other is not mine]

        return timed

    def of_a_step(self, step: Callable[[], Any], steps: int, rest: str) -> dict[str, float]:
        """Seconds of one step by part, the mean of some, most first; what is in no part counts under ``rest``."""
        self.seconds.clear()
        whole = self.wrap(rest, step)
        for _ in range(steps):
            whole()
        return {name: value / steps for name, value in sorted(self.seconds.items(), key=lambda item: -item[1])}

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._open:
            name = self._open[-1][0]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


@contextmanager
def timed(timers: HostTimers, places: Iterable[tuple[Any, str, str]]) -> Iterator[None]:
    """While active, functions are timed: each is an owner, its attribute, and the name that its time counts under."""
    with ExitStack() as stack:
        for owner, attribute, name in places:
            stack.enter_context(patch.object(owner, attribute, timers.wrap(name, getattr(owner, attribute))))
        yield


def kernels(intervals: Sequence[Interval], steps: int, most: int = 12) -> list[dict[str, Any]]:
    """The kernels with most time: ``name``, ``role``, ``seconds`` and ``launches`` a step."""
    totals: dict[str, list[float]] = {}
    for interval in intervals:
        entry = totals.setdefault(interval.name, [0.0, 0.0])
        entry[0] += (interval.end - interval.start) * 1e-6 / steps
        entry[1] += 1 / steps
    ranked = sorted(totals.items(), key=lambda item: -item[1][0])[:most]
    return [{"name": n[:120], "role": role(n), "seconds": s, "launches": count} for n, (s, count) in ranked]


def table(accounted: dict[str, Any], least: dict[str, float]) -> str:
    """The account as lines of text; floors that stand for no part of their own come last."""
    step = accounted["step_seconds"]
    lines = [f"{'part':44s} {'ms a step':>10s} {'share':>7s} {'floor ms':>9s}"]

    def line(name: str, seconds: float | None, floor: float | None) -> str:
        shown = f"{seconds * 1e3:10.3f} {seconds / step:7.1%}" if seconds is not None else f"{'':18s}"
        return f"{name:44s} {shown} {floor * 1e3:9.3f}" if floor is not None else f"{name:44s} {shown}"

    lines += [line(name, seconds, least.get(name)) for name, seconds in accounted["parts"].items()]
    lines += [line(name, None, floor) for name, floor in least.items() if name not in accounted["parts"]]
    lines.append(line("step", step, None))
    if accounted.get("kinds"):
        lines.append("")
        lines += [line(f"kernels: {name}", seconds, None) for name, seconds in accounted["kinds"].items()]
    if "accounted" in accounted:
        lines.append(f"{accounted['accounted']:.1%} of the step by name")
    return "\n".join(lines)
