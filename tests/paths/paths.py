"""The ways to run a case in this process. Each gives a `Run`; what needs another process is in `workers`."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from helene import Trajectory
from helene.kernels.backend import VARIABLE
from helene.rules import precision
from tests.paths import models
from tests.paths.cases import Case, Run, happen, make_model, make_optimizer
from tests.paths.steps import RING, Attach, ByEngine, by_optimizer
from tests.paths.told import Slopes, heard, told

SHARE_OF_SQUARES = 2.0**-17  # of normals


def drive(
    case: Case,
    attach: Attach | None = None,
    device: str = "cpu",
    run: Run | None = None,
    shown: Callable[[int, dict[str, Tensor]], dict[str, Tensor]] | None = None,
    record: list[Any] | None = None,
    finish: Callable[[], None] | None = None,
    with_model: bool = False,
) -> Run:
    """Run a case.

    Args:
        case: What to run.
        attach: How a step is made, by `optimizer.step` unless given.
        device: Where.
        run: What to fill.
        shown: What a process sees of a batch.
        record: Gets the trajectory, where it is to be recorded.
        finish: Called before the end is looked at.
        with_model: Whether the optimizer is given the model.
    """
    run, attach = run or Run(), attach or by_optimizer
    with warnings.catch_warnings(), heard(run.slopes):
        warnings.simplefilter("ignore")
        try:
            model = make_model(case, device)
            more = {"model": model} if with_model and not case.first_order else {}
            optimizer = make_optimizer(case, model, **more)
            if record is not None:
                record.append(Trajectory.record(optimizer))
            step = attach(case, model, optimizer)
            last = {n: p.detach().clone() for n, p in model.named_parameters()}
            for t in range(1, case.steps + 1):
                now = [e for e in case.events if e.step == t]
                for event in now:
                    before = optimizer
                    optimizer = happen(event, case, model, optimizer, partial(make_optimizer, case, model, **more))
                    if optimizer is not before:
                        optimizer.trajectory = before.trajectory
                        step = attach(case, model, optimizer)
                batch = models.batch_of(t, device=device)
                batch = shown(t, batch) if shown else batch
                how = next((e.kind for e in now if e.kind in ("nan", "steep")), "")
                if how:
                    with suppress(FloatingPointError):
                        step(t, models.spoiled(how, model, batch))
                        (finish or bool)()
                    break
                run.losses.append(step(t, batch))
                if finish is None:  # a step that is still to be made must not be looked at
                    for name, p in model.named_parameters():
                        gone = (p.detach() - last[name]).abs().max().item() if p.numel() else 0.0
                        run.path[name] = run.path.get(name, 0.0) + gone
                        last[name].copy_(p.detach())
            if finish is not None:
                finish()
            run.losses = [float(value) for value in run.losses]
            collect(run, model, optimizer)
        except Exception as error:
            run.refused = f"{type(error).__name__}: {error}"
    return run


def collect(run: Run, model: nn.Module, optimizer: Any) -> None:
    """Parameters and state as they are."""
    for name, p in model.named_parameters():
        run.params[name] = p.detach().reshape(-1).cpu().clone()
        collect_state(run, name, optimizer.state.get(p, {}))


def collect_state(run: Run, name: str, state: dict[str, Any]) -> None:
    """A parameter's state, decoded."""
    for key, value in state.items():
        if key.endswith("_scale"):
            continue
        scale = state.get(f"{key}_scale")
        run.kinds[name, key] = str(value.dtype)
        decoded = value.reshape(-1) if scale is None else precision.decode(value, scale)
        run.state[name, key] = decoded.detach().double().cpu().clone()


def torch_path(case: Case, device: str = "cpu") -> Run:
    return drive(case, device=device)


def twin(case: Case, disturb: float) -> Run:
    """The reference with every loss off by a share of ``disturb``: what paths that round otherwise are allowed."""
    return drive(case, lambda *args: by_optimizer(*args, disturb=disturb))


def told_path(case: Case, slopes: Slopes, disturb: float = 0.0, turns: tuple[float, ...] = ()) -> Run:
    """The reference, which steps by what a path has measured; what it measures itself is in its ``slopes``.

    Its losses are off as `by_optimizer` says, and with turns what is told is off by up to 2^-17 of itself.
    """
    own: Slopes = {}
    with told(slopes, SHARE_OF_SQUARES if turns else 0.0, own):
        run = drive(case, lambda *args: by_optimizer(*args, disturb=disturb, turns=turns))
    run.slopes, run.flip = own, max(turns, default=0.0)
    return run


def model_path(case: Case) -> Run:
    return drive(case, with_model=True)


def engine_path(case: Case, device: str = "cpu", with_model: bool = True, **options: Any) -> Run:
    run = Run()
    by = ByEngine(run, **options)
    return drive(case, by, device, run, finish=by.flush, with_model=with_model)


def replay_path(case: Case, how: str = "memory") -> Run:
    """A recorded run, replayed onto the initial weights: by an optimizer made alike, or ("bare") by default options."""
    record: list[Any] = []
    ran = drive(case, record=record)
    return ran if ran.refused else replayed(case, record[0], how)


def engine_replay(case: Case, device: str = "cpu", **options: Any) -> Run:
    """A run that the engine made and recorded, replayed."""
    record: list[Any] = []
    by = ByEngine(Run(), **options)
    ran = drive(case, by, device, by.run, record=record, finish=by.flush)
    return ran if ran.refused else replayed(case, record[0], "memory", device)


def replayed(case: Case, trajectory: Trajectory, how: str, device: str = "cpu") -> Run:
    run = Run()
    with warnings.catch_warnings(), heard(run.slopes):
        warnings.simplefilter("ignore")
        try:
            if how != "memory":
                with tempfile.TemporaryDirectory() as folder:
                    trajectory.save(Path(folder) / "run.npz")
                    trajectory = Trajectory.load(Path(folder) / "run.npz")
            model = make_model(case, device)
            optimizer = make_optimizer(case, model, bare=how == "bare")
            trajectory.replay(optimizer)
            collect(run, model, optimizer)
        except Exception as error:
            run.refused = f"{type(error).__name__}: {error}"
    return run


@contextmanager
def kernels(asked: str = "triton") -> Iterator[None]:
    """Inside, the kernels are asked for, or turned off."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = asked
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def quietly_torch(case: Case, device: str) -> Run:
    """``optimizer.step`` without kernels where there are some."""
    with kernels("torch"):
        return drive(case, device=device)


def kernels_path(case: Case, device: str = "cpu") -> Run:
    with kernels():
        return drive(case, device=device)


def kernels_replay(case: Case, device: str = "cpu") -> Run:
    """A run of plain torch, its updates made again by the kernels: equal slopes, so the update alone is compared."""
    record: list[Any] = []
    with kernels("torch"):
        ran = drive(case, device=device, record=record)
    if ran.refused:
        return ran
    with kernels():
        return replayed(case, record[0], "memory", device)


def kernels_engine(case: Case, run: Callable[..., Run] = engine_path, **options: Any) -> Run:
    with kernels():
        return run(case, capture="repeat", **options)


IN_PROCESS: dict[str, Callable[[Case], Run]] = {
    "model": model_path,
    "engine": engine_path,
    "engine-ring": lambda case: engine_path(case, **RING),
    "engine-mixed": lambda case: engine_path(case, mixed=True, with_model=False),
    "engine-replay": engine_replay,
    "replay": replay_path,
    "replay-file": lambda case: replay_path(case, "file"),
    "replay-bare": lambda case: replay_path(case, "bare"),
}
IN_INTERPRETER: dict[str, Callable[[Case], Run]] = {
    "kernels": kernels_path,
    "kernels-replay": kernels_replay,
    "graph": lambda case: kernels_engine(case, **RING),
    "graph-mixed": lambda case: kernels_engine(case, mixed=True, with_model=False),
    "graph-replay": lambda case: kernels_engine(case, engine_replay),
}
