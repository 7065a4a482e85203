"""Ctrl-C at every line of a step: weights, state, counter, hooks and modes are those before the step or after it."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd import forward_ad

import helene
from helene import Trajectory
from helene.engine import Engine, graphs
from helene.engine.pairs import batch_step
from helene.engine.pairs.batch_step import BatchStep
from helene.engine.sharded import _InPlace
from helene.evaluation.swap import CALLED_ELSEWHERE
from helene.evaluation.undo import deferred_interrupts
from tests.core.interrupts import Lines, places

X = torch.linspace(-1.0, 1.0, 12).view(4, 3)


class Block(nn.Module):
    """A module with a parameter of its own, a child called twice, and a child whose weight is read outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outside = nn.Linear(3, 3), nn.Linear(3, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.inner(self.scale * torch.tanh(self.inner(x))), self.outside.weight)


def block(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    net = Block()
    net.inner.weight.data = net.inner.weight.data.t()  # not contiguous
    return net.to(dtype)


def loss(net: nn.Module) -> Tensor:
    return net(X.to(next(net.parameters()).dtype)).square().mean()


def ours(name: str) -> bool:
    return "/helene/" in name


def ours_and_contexts(name: str) -> bool:
    return ours(name) or name.endswith(("contextlib.py", "_python_dispatch.py", "grad_mode.py"))


def of_updates(name: str) -> bool:
    return ours(name) and any(part in name for part in ("/optimizers/", "/rules/", "storage.py", "precision.py"))


def of_shards(name: str) -> bool:
    return name.endswith("sharded.py")


Build = Callable[[nn.Module], Any]


def _step(optimizer: Any, net: nn.Module) -> None:
    if isinstance(optimizer, Engine):
        optimizer.step(X)
    else:
        optimizer.step(lambda: loss(net))


def _inner(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, Engine) else optimizer


class Seen:
    """All that a step may change."""

    def __init__(self, net: nn.Module, optimizer: Any) -> None:
        inner = _inner(optimizer)
        self.step = inner.param_groups[0]["step"]
        self.weights = [p.detach().clone() for p in net.parameters()]
        self.state = copy.deepcopy([inner.state.get(p, {}) for p in net.parameters()])
        self.count = inner.statistics.count
        self.recorded = copy.deepcopy(
            None if inner.trajectory is None else (inner.trajectory.scalars, inner.trajectory.changing)
        )

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Seen)
        mine = [self.weights, [v for s in self.state for v in s.values()]]
        theirs = [other.weights, [v for s in other.state for v in s.values()]]
        pairs = [(a, b) for x, y in zip(mine, theirs, strict=True) for a, b in zip(x, y, strict=True)]
        return (
            all(torch.equal(a, b) for a, b in pairs)
            and (self.step, self.count, self.recorded) == (other.step, other.count, other.recorded)
        )  # fmt: skip


def _surroundings(net: nn.Module) -> list[Any]:
    """What no step may leave changed."""
    hooks = [[*m._forward_hooks, *m._forward_pre_hooks, *m._forward_hooks_always_called] for m in net.modules()]
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._len_torch_dispatch_stack()
    return [hooks, modes, forward_ad._current_level, torch.backends.cuda.math_sdp_enabled(), gc.isenabled()]


class Twin:
    """What each step leaves that nothing interrupts."""

    def __init__(self, build: Build, net: nn.Module) -> None:
        self.net, self.optimizer = net, build(net)
        self.seen = [Seen(self.net, self.optimizer)]

    def after(self, step: int) -> Seen:
        while len(self.seen) <= step:
            _step(self.optimizer, self.net)
            self.seen.append(Seen(self.net, self.optimizer))
        return self.seen[step]


def _interrupt(net: nn.Module, optimizer: Any, twin: Twin, lines: Lines) -> bool:
    """Interrupt a step, look at what it leaves, and say whether it was reached."""
    addresses, around = [p.data_ptr() for p in net.parameters()], _surroundings(net)
    kept: list[BaseException] = []  # as an interactive session keeps the last exception, and so all frames
    try:
        lines(lambda: _step(optimizer, net))
    except KeyboardInterrupt as err:
        kept.append(err)
    assert [p.data_ptr() for p in net.parameters()] == addresses, lines.at
    assert _surroundings(net) == around, lines.at
    seen = Seen(net, optimizer)
    assert seen == twin.after(seen.step), lines.at
    return lines.raised


def _momentum(net: nn.Module) -> Any:
    optimizer = helene.ZOMomentum(net.named_parameters(), 1e-2)
    Trajectory.record(optimizer)
    return optimizer


def _helene(net: nn.Module) -> Any:
    return helene.Helene(
        helene.layer_groups(net), 1e-2, anneal_horizon=9, batch_size=4, interval=1, model=net,
        floor=helene.QuantileFloor(0.5), rounding="stochastic", state_dtype="8bit",
    )  # fmt: skip


def _engine(net: nn.Module) -> Any:
    optimizer = helene.MeZO(net.named_parameters(), 1e-2)
    return Engine(net, optimizer, loss=lambda model, _: loss(model), scratch_bytes=1 << 12, unit_bytes=1)  # takes turns


def _in_place(net: nn.Module) -> Any:
    optimizer = helene.MeZO(net.named_parameters(), 1e-2)
    optimizer.probe = _InPlace(optimizer.probe.targets, net, None)
    optimizer.probes = [optimizer.probe]
    return optimizer


STEADY = 4  # steps 1, 2 and 4 look at what reads parameters, the one after a look lays copies out anew
SLICE = 1 if "HELENE_DEEP" in os.environ else 6  # one place in so many; all of them by ``make kills``

CASES: dict[str, tuple[Build, torch.dtype, Callable[[str], bool]]] = {
    "model": (lambda net: helene.MeZO(net.named_parameters(), 1e-2, model=net), torch.float32, ours_and_contexts),
    "parameters": (_momentum, torch.float32, ours),
    "helene": (_helene, torch.bfloat16, of_updates),
    "tangent": (lambda net: helene.ForwardGrad(net.named_parameters(), 1e-2), torch.float32, ours),
    "gradient": (lambda net: helene.SGD(net.named_parameters(), 1e-2, momentum=0.9), torch.float32, ours),
    "engine": (_engine, torch.float32, ours),
    "sharded": (_in_place, torch.float32, of_shards),
}


@pytest.fixture(autouse=True, scope="module")
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of copies for the whole forward, lost updates, missing graphs
@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_step_is_whole_or_was_not_made(case: str) -> None:
    """Against a twin without interrupts: at every line of a later step, then at those that only a first one has."""
    build, dtype, where = CASES[case]
    twin = Twin(build, block(dtype))
    net = block(dtype)
    optimizer = build(net)
    first = places(lambda: _step(optimizer, net), where)
    for _ in range(STEADY):
        _step(optimizer, net)
    later = places(lambda: _step(optimizer, net), where)
    if case not in ("model", "parameters"):  # whose loops are those of all
        later = [at for at in later if at[1] == 0]
    known = {place for place, _ in later}
    later = later[::SLICE]
    reached = sum(_interrupt(net, optimizer, twin, Lines(where, place)) for place in later)
    assert reached > 0.9 * len(later)  # some lines belong to some steps
    for place in [at for at in first if at[0] not in known and at[1] == 0][::SLICE]:
        net = block(dtype)
        optimizer = build(net)
        _interrupt(net, optimizer, twin, Lines(where, place))
        _step(optimizer, net)
        seen = Seen(net, optimizer)
        assert seen == twin.after(seen.step), place


class Graph:
    """In the place of a CUDA graph: what it was shown is called anew."""

    shown: ClassVar[list[Graph]] = []  # the one that is being recorded

    def replay(self) -> None:
        raise AssertionError("a graph that was given up is replayed")


class Capturing:
    """In the place of ``torch.cuda.graph``.

    Attributes:
        hides: Whether an error ends the capture with one of its own, as torch's does where streams were not joined.
    """

    hides = True

    def __init__(self, graph: Graph, **_: Any) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        Graph.shown[:] = [self.graph]

    def __exit__(self, kind: Any, *_: Any) -> None:
        Graph.shown.clear()
        if kind is not None and self.hides:
            raise RuntimeError("capture has unjoined work")


def _captured(monkeypatch: pytest.MonkeyPatch) -> Build:
    """Makes engines that go the way of a capture."""
    enqueue = BatchStep._enqueue

    def shown(self: BatchStep, update: Any) -> None:
        for graph in Graph.shown:
            graph.replay = lambda: enqueue(self, update)  # type: ignore[method-assign]
        enqueue(self, update)

    monkeypatch.setattr(BatchStep, "_enqueue", shown)
    monkeypatch.setattr(graphs, "_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capturing)
    for name in ("current_device", "current_stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)

    def build(net: nn.Module) -> Engine:
        engine = _engine(net)
        engine._steps._no_graph = ""
        return engine

    return build


@pytest.mark.filterwarnings("ignore:steps run without a CUDA graph. no CUDA device:UserWarning")
@pytest.mark.parametrize("hides", [False, True])
def test_an_interrupted_capture_is_given_up_and_made_anew(hides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at every line of the engine in the step that captures: torch is put right, the next step captures."""
    given_up: list[Any] = []
    build = _captured(monkeypatch)
    monkeypatch.setattr(Capturing, "hides", hides)
    monkeypatch.setattr(batch_step, "give_up", lambda begun, _: given_up.append(begun))
    begun = Graph.shown

    net, engine = stepped(block, build)
    second = [at for at in places(lambda: _step(engine, net), of_engine) if at[1] == 0][::SLICE]  # ahead of the replay
    assert engine.mode == "graph"
    twin = Twin(build, block())
    inside = 0
    for place in second:
        net, engine = stepped(block, build)
        begun.clear()
        given_up.clear()
        assert _interrupt(net, engine, twin, Lines(of_engine, place)), place
        inside += len(given_up)
        for _ in range(2):
            _step(engine, net)
        assert engine.mode == "graph", place
        seen = Seen(net, engine)
        assert seen == twin.after(seen.step), place
    assert inside > 0.3 * len(second)


def stepped(make: Callable[[], nn.Module], build: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    """A model and what steps it, one step made."""
    net = make()
    optimizer = build(net)
    _step(optimizer, net)
    return net, optimizer


def of_engine(name: str) -> bool:
    return "/helene/engine/" in name


def of_probes(name: str) -> bool:
    return name.endswith(("probe.py", "hooked.py", "layouts.py"))


def _nested() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 40), nn.Sequential(nn.Linear(40, 1), nn.Tanh(), nn.Linear(1, 2)))


def test_hooks_move_to_other_modules_at_once_or_not_at_all() -> None:
    """Ctrl-C at every line of a second step, where hooks leave inner modules: later steps are those of a twin."""

    def build(net: nn.Module) -> Any:
        return helene.MeZO(net.named_parameters(), 1e-2, model=net)

    net, optimizer = stepped(_nested, build)
    twin = Twin(build, _nested())
    around = set(optimizer.probe._hooked.modules)
    second = places(lambda: _step(optimizer, net), of_probes)
    assert set(optimizer.probe._hooked.modules) < around
    for place in second:
        net, optimizer = stepped(_nested, build)
        assert _interrupt(net, optimizer, twin, Lines(of_probes, place))
        for _ in range(3):
            _step(optimizer, net)
        seen = Seen(net, optimizer)
        assert seen == twin.after(seen.step), place


def test_interrupts_wait_for_what_cannot_be_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal inside comes when it is over; off the main thread, where none comes, nothing is done."""
    done: list[Any] = []
    before = signal.getsignal

    def signalled() -> None:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("after the signal")

    handler = signal.default_int_handler
    monkeypatch.setattr(signal, "getsignal", lambda number: handler)  # where tests run in the background, it is ignored
    with pytest.raises(KeyboardInterrupt):
        signalled()
    assert done == ["after the signal"]

    def elsewhere() -> None:
        with deferred_interrupts():
            done.append(before(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert done[1] is before(signal.SIGINT)


@pytest.mark.parametrize("engine", [False, True])
def test_a_model_is_not_read_while_another_thread_perturbs_it(engine: bool) -> None:
    """The other thread is told, and the trainer's weights are those of a run alone."""
    net, alone = block(), block()
    told: list[str] = []
    calls: list[nn.Module] = []
    inside, over = threading.Event(), threading.Event()

    def evaluate() -> None:
        inside.wait(60)
        try:
            loss(net)
        except RuntimeError as err:
            told.append(str(err))
        over.set()

    def losing(model: nn.Module) -> Tensor:
        calls.append(model)
        if model is net and len(calls) == (2 if engine else 1):  # the engine's first forward is at theta itself
            inside.set()
            assert over.wait(60)
        return loss(model)

    thread = threading.Thread(target=evaluate)
    thread.start()
    for model in (net, alone):
        optimizer = helene.MeZO(model.named_parameters(), 1e-2, model=model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if engine:
                stepping = Engine(model, optimizer, loss=lambda m, _: losing(m))
                for _ in range(2):
                    stepping.step(X)
            else:
                for _ in range(2):
                    optimizer.step(lambda m=model: losing(m))
    thread.join()
    assert all(map(torch.equal, net.parameters(), alone.parameters()))
    assert told == [CALLED_ELSEWHERE]
    loss(net)
