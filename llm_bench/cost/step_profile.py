"""Where a step's time goes, by name, beside the least that each part takes: of a run's step or of a published shape's.

On a GPU the device's own record is read, elsewhere the host's clock around each part.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from llm_bench.cost.timeline import HostTimers, account, kernels, profile, table, timed
from llm_bench.cost.timing import seconds_of
from llm_bench.runs.training.checkpoint import Folder
from llm_bench.runs.training.loop import Training

_WARMUP = 4  # steps before those that are looked at
_SAMPLE = 1 << 26  # elements drawn at a time on a GPU: they take longer than the launch


def shown(found: dict[str, Any]) -> str:
    """A profile as text."""
    return table(found, found["floors"])


def least_seconds(shape: str, batch: str, steps: int) -> float:
    """What the forwards alone of `shape_profile` take on a CPU, at the speed of a product of matrices here and now."""
    from llm_bench.models.shapes import num_parameters, rows_and_tokens

    rows, length = rows_and_tokens(batch)
    matrix = torch.ones(1024, 1024)
    a_product = _least(lambda: matrix @ matrix, 5, matrix.device)
    return 2 * (_WARMUP + steps) * rows * length * num_parameters(shape) / 1024**3 * a_product


def shape_profile(
    shape: str, batch: str, method: str = "mezo", dtype: str = "bfloat16", device: str = "cuda", steps: int = 20
) -> dict[str, Any]:
    """`step_account` of the engine's step on a model of a published shape, random weights and tokens."""
    from helene import Helene, MeZO
    from helene.engine import Engine
    from llm_bench.models.loading import DTYPES
    from llm_bench.models.shapes import build, language_loss, random_batch, rows_and_tokens

    if method not in ("mezo", "helene"):
        raise ValueError(f"method must be mezo or helene for a shape, got {method!r}; profile a run for others")
    rows, length = rows_and_tokens(batch)
    module, tokens = build(shape, DTYPES[dtype], device), random_batch(rows, length, device)
    optimizer: Any
    if method == "mezo":
        optimizer = MeZO(module.named_parameters(), lr=1e-7, model=module)
    else:
        options: dict[str, Any] = {"anneal_horizon": 10_000, "batch_size": rows, "interval": 10}
        optimizer = Helene(module.named_parameters(), 1e-7, model=module, state_dtype="bfloat16", **options)
    timers = HostTimers()
    loss = timers.wrap("forward", language_loss)
    engine = Engine(module, optimizer, loss)
    found = step_account(lambda: engine.step(tokens), optimizer, module, language_loss, tokens, timers, engine, steps)
    return {"shape": shape, "batch": batch, "method": method, "dtype": dtype, **found}


def run_profile(config: Any, env: Any, steps: int = 20) -> dict[str, Any]:
    """`step_account` of a run's step; nothing of it is recorded.

    Args:
        config: A run.
        env: Where things are.
        steps: To look at, after some to warm up.

    Returns:
        Also ``batch_seconds``, of making a batch, and ``share_outside``, what of the step that adds.
    """
    from helene.engine import Engine
    from llm_bench.runs.session import session

    opened = session(config, env)
    timers, training = HostTimers(), Training(config, opened, Folder(None, ""))
    loss, stepper = opened.loss(config), training.stepper
    target: Any = getattr(stepper, "engine", stepper)
    target.loss = timers.wrap("forward", loss)
    make, ready, batch = step_calls(training, steps)
    module, device = opened.model.module, opened.model.device
    for _ in range(_WARMUP):
        make()
    with_batches, without = (seconds_of(call, device, steps) for call in (make, ready))
    engine = target if isinstance(target, Engine) else None
    found = step_account(ready, training.optimizer, module, loss, batch, timers, engine, steps)
    making = seconds_of(lambda: opened.batch(config, training.stream.rows(1)), device, steps)
    outside = max(0.0, 1.0 - without / with_batches)
    return {"method": config.method, **found, "batch_seconds": making, "share_outside": outside}


def step_calls(training: Training, steps: int) -> tuple[Callable[[], Any], Callable[[], Any], Any]:
    """A run's step with its batch made, the same with batches made beforehand, and the first batch; each goes round."""
    rows = [training.stream.rows(t) for t in range(1, steps + 4)]
    batches = [training.session.batch(training.config, r) for r in rows]
    turns = itertools.count()

    def make() -> None:
        batch = training.session.batch(training.config, rows[next(turns) % len(rows)])
        training.stepper.step(batch, training._other_batch)

    def ready() -> None:
        training.stepper.step(batches[next(turns) % len(rows)], training._other_batch)

    return make, ready, batches[0]


def step_account(
    step: Callable[[], Any],
    optimizer: Any,
    module: nn.Module,
    loss: Callable[[Any, Any], Any],
    batch: Any,
    timers: HostTimers,
    engine: Any = None,
    steps: int = 20,
) -> dict[str, Any]:
    """Seconds of a step by part, and the floor of each.

    Args:
        step: Makes one step.
        optimizer: Whose step it is.
        module: The model.
        loss: Gives the loss of module and batch, for the forwards alone.
        batch: Of one step.
        timers: Around the step's own loss, under the name "forward".
        engine: Where the step is the engine's.
        steps: To look at, after four to warm up.

    Returns:
        ``step_seconds``, ``parts``, ``kinds`` and ``accounted`` as of `llm_bench.cost.timeline.account`; ``floors``,
        seconds by part; ``kernels``; ``mode`` of the engine.
    """
    device = next(module.parameters()).device
    for _ in range(_WARMUP):
        step()
    if device.type == "cuda":
        intervals = profile(step, steps)
        found = {**account(intervals, steps), "kernels": kernels(intervals, steps)}
    else:
        found = _host_account(step, timers, steps)
    if engine is not None:
        found |= {"mode": engine.mode, "reason": engine.reason}
    least = _floors(optimizer, module, loss, batch, engine, device)
    return {"device": _name(device), **found, "floors": least}


def _host_account(step: Callable[[], Any], timers: HostTimers, steps: int) -> dict[str, Any]:
    with timed(timers, _host_parts()):
        start = time.perf_counter()
        parts = timers.of_a_step(step, steps, "host")
        seconds = (time.perf_counter() - start) / steps
    return {"step_seconds": seconds, "parts": parts, "accounted": (sum(parts.values()) - parts["host"]) / seconds}


def _host_parts() -> list[tuple[Any, str, str]]:
    """Draws, copies and updates, see `timed`."""
    from helene import noise
    from helene.evaluation.blocks import Block
    from helene.steps.base import Base

    draws = [(noise, name, "noise") for name in ("normal", "signs", "words")]
    return [*draws, (Block, "write", "copies"), (Base, "apply", "update")]


def _floors(
    optimizer: Any, module: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, engine: Any, device: torch.device
) -> dict[str, float]:
    """The least seconds of each part: forwards at fixed weights, bytes at copy bandwidth, draws with one copy."""
    targets = optimizer.targets
    size, width = sum(t.tensor.numel() for t in targets), targets[0].tensor.element_size()
    forwards = optimizer.plan().forwards
    copied = _copied(engine, targets) if engine is not None else size
    bandwidth = _bandwidth(device)
    state = 2.0 * optimizer.state_bytes() / size
    draws = (1 if device.type == "cuda" and engine is not None else 2) * copied + size
    noise = "noise" if device.type != "cuda" else "noise (within copies and update)"
    return {
        "forward": forwards * _forward_seconds(module, loss, batch, device, captured=engine is not None),
        "copies": 3 * width * copied / bandwidth,  # read once, written twice
        "update": (2 * width + state) * size / bandwidth,
        noise: draws * _draw_seconds(device),
    }


def _copied(engine: Any, targets: Sequence[Any]) -> int:
    """Elements that a step of the engine copies; looked-up rows are few."""
    schedules = engine.schedules
    owned = schedules[-1].owned if schedules else range(len(targets))
    return sum(targets[i].tensor.numel() for i in owned)


def _forward_seconds(module: Any, loss: Any, batch: Any, device: torch.device, captured: bool) -> float:
    def forward() -> Tensor:
        with torch.no_grad():
            found: Tensor = loss(module, batch)
        return found

    if captured and device.type == "cuda":
        from llm_bench.cost.captured_forwards import CapturedForwards

        try:
            graph = CapturedForwards(forward, count=2)
            return _least(graph, 5, device) / 2
        except RuntimeError:
            torch.cuda.synchronize(device)  # it cannot be captured
    return _least(forward, 5, device)


def _bandwidth(device: torch.device) -> float:
    """Bytes a second of a copy, read and write counted; of tensors that no cache holds."""
    source = torch.ones(1 << (29 if device.type == "cuda" else 25), dtype=torch.uint8, device=device)
    sink = torch.empty_like(source)
    return 2 * source.numel() / _least(lambda: sink.copy_(source), 5, device)


def _draw_seconds(device: torch.device) -> float:
    """Seconds of one element of z."""
    from helene import noise

    if device.type == "cuda":
        from helene.kernels import backend, launch
        from helene.kernels.tiles import Piece, Tiles

        theta = torch.zeros(_SAMPLE, dtype=torch.bfloat16, device=device)
        if backend(theta).is_triton:
            plus, control = torch.empty_like(theta), torch.tensor(launch.control_words(1, 1, 0), device=device)
            tiles, values = Tiles([Piece(theta, 1)]), torch.tensor([1e-3, 0.0, 0.0, 0.0], device=device)
            return _least(lambda: launch.perturb(tiles, plus, None, control, values), 5, device, 20) / _SAMPLE
    count = 1 << 17
    return _least(lambda: noise.normal(1, 1, 0, 1, 0, count, device), 10, device) / count


def _least(call: Callable[[], Any], times: int, device: torch.device, together: int = 1) -> float:
    """Seconds of a call in the quickest of some samples, of several calls each: what a floor is."""
    call()
    return min(seconds_of(call, device, together) for _ in range(times))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
