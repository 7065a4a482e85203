"""Where a step's time goes: which kernels run when, alone or beside others, and how far each is from its floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

ROLES = {  # kernels of helene.kernels
    "perturb": "copies",
    "gather": "copies",
    "update_and_perturb": "copies",
    "update": "update",
    "fill": "noise",
}


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
    return "staging" if name.startswith(("Memcpy", "Memset")) else "forward"


def account(intervals: Sequence[Interval], steps: int) -> dict[str, Any]:
    """Seconds a step by what ran: each moment counts once, under all that ran in it.

    Returns:
        ``step_seconds``; ``parts``, a dict from names such as "forward", "copies beside forward", "update", "gap" to
        seconds a step, which add up to it; ``busy``, from a role to the seconds a step in which it ran at all.
    """
    if not intervals:
        return {"step_seconds": 0.0, "parts": {}, "busy": {}}
    edges = sorted([(i.start, 1, role(i.name)) for i in intervals] + [(i.end, -1, role(i.name)) for i in intervals])
    active: dict[str, int] = {}
    parts: dict[str, float] = {}
    busy: dict[str, float] = {}
    last = edges[0][0]
    for moment, change, kind in edges:
        if moment > last:
            running = sorted(name for name, count in active.items() if count)
            if "forward" in running and len(running) > 1:
                label = f"{' and '.join(name for name in running if name != 'forward')} beside forward"
            else:
                label = " and ".join(running) or "gap"
            parts[label] = parts.get(label, 0.0) + moment - last
            for name in running:
                busy[name] = busy.get(name, 0.0) + moment - last
            last = moment
        active[kind] = active.get(kind, 0) + change
    whole = edges[-1][0] - edges[0][0]
    scale = 1e-6 / steps
    return {
        "step_seconds": whole * scale,
        "parts": {name: value * scale for name, value in sorted(parts.items(), key=lambda item: -item[1])},
        "busy": {name: value * scale for name, value in sorted(busy.items(), key=lambda item: -item[1])},
    }


def kernels(intervals: Sequence[Interval], steps: int, most: int = 12) -> list[dict[str, Any]]:
    """The kernels with most time: ``name``, ``role``, ``seconds`` and ``launches`` a step."""
    totals: dict[str, list[float]] = {}
    for interval in intervals:
        entry = totals.setdefault(interval.name, [0.0, 0.0])
        entry[0] += (interval.end - interval.start) * 1e-6 / steps
        entry[1] += 1 / steps
    ranked = sorted(totals.items(), key=lambda item: -item[1][0])[:most]
    return [{"name": n[:120], "role": role(n), "seconds": s, "launches": count} for n, (s, count) in ranked]


def floors(
    num_parameters: int, copied: int, tokens: int, state_bytes: float, bandwidth: float, rate: float, width: int = 2
) -> dict[str, float]:
    """The least seconds of each part of a step.

    Args:
        num_parameters: Parameters that are trained and used in products.
        copied: Parameters copied in a step (read once, written twice).
        tokens: Tokens of a batch.
        state_bytes: Bytes of state read and written for a parameter in an update.
        bandwidth: Bytes a second of a device-to-device copy, read and write counted.
        rate: Operations a second of a large product.
        width: Bytes of a parameter.
    """
    return {
        "forward": 2 * 2 * num_parameters * tokens / rate,
        "copies": 3 * width * copied / bandwidth,
        "update": (2 * width + state_bytes) * num_parameters / bandwidth,
    }


def table(accounted: dict[str, Any], least: dict[str, float]) -> str:
    """The account as lines of text."""
    step = accounted["step_seconds"]
    lines = [f"{'part':32s} {'ms a step':>10s} {'share':>7s} {'floor ms':>9s}"]
    for name, seconds in accounted["parts"].items():
        floor = least.get(name)
        shown = f"{floor * 1e3:9.3f}" if floor is not None else f"{'':9s}"
        lines.append(f"{name:32s} {seconds * 1e3:10.3f} {seconds / step:7.1%} {shown}")
    lines.append(f"{'step':32s} {step * 1e3:10.3f} {1:7.1%} {sum(least.values()) * 1e3:9.3f}")
    return "\n".join(lines)
