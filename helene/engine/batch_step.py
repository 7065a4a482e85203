"""The step for one shape of batch: planned, run, captured, replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helene.directions import Direction, Target
from helene.engine.batches import Layout, Static
from helene.engine.control import Control
from helene.engine.copies import Copies
from helene.engine.graphs import capturing, give_up
from helene.engine.lanes import Worker
from helene.engine.pair import Pair, Streams
from helene.engine.schedule import SMALL_BYTES, UNIT_BYTES, Call, Changed, Plan, make_plan, trace
from helene.engine.watch import Alone, check_independence, versions
from helene.probe import one_number
from helene.reads import reads_none

_ATTEMPTS = 3  # plans until a forward is taken for unpredictable
_UNPREDICTABLE = (
    "the order in which the model's modules run changes from one forward to the next, so that copies cannot be made in "
    "time; use optimizer.step(closure)"
)


class Setting:
    """What the shapes of an engine have in common.

    Attributes:
        model: The module that reads the parameters.
        loss: Gives the loss of a batch.
        targets: The trained parameters.
        fused: Whether the Triton kernels are used.
        control: Key and hyper-parameters of the current step.
        streams: Where the work goes.
        plan_options: ``unit_bytes`` and ``ring_bytes`` of `make_plan`.
        direction: Key of the current step.
        eps: Radius of the current step.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Any],
        targets: list[Target],
        fused: bool,
        control: Control,
        streams: Streams,
        workers: tuple[Worker, Worker],
        plan_options: dict[str, Any],
    ) -> None:
        self.model, self.loss, self.targets, self.fused, self.control = model, loss, targets, fused, control
        self.streams, self.workers, self.plan_options = streams, workers, plan_options
        self.device = targets[0].tensor.device
        self.ring: Tensor | None = None
        self.pool: Any = None
        self.direction, self.eps = Direction(0, 0), 0.0


class Shape:
    """One shape of batch.

    Attributes:
        steps: How many steps it has made.
        graph: The captured forwards (and the update, where that is captured with them), or None.
        tail: The captured update where an exchange between ranks comes before it, or None.
        losses: L⁺ and L⁻ of the last replay.
        read: Parameters that the last forwards run by Python have read.
        trouble: Why it is not captured, in one line; empty while nothing speaks against it.
    """

    def __init__(self, setting: Setting, layout: Layout) -> None:
        self.setting, self.static = setting, Static(layout, setting.device)
        self.steps = 0
        self.graph: torch.cuda.CUDAGraph | _Direct | None = None
        self.tail: torch.cuda.CUDAGraph | _Direct | None = None
        self.losses: Tensor | None = None
        self.read: set[int] = set()
        self.trouble = ""
        self._calls: list[Call] | None = None
        self._resident: set[int] = set()
        self._copies: Copies | None = None

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that its plan uses."""
        return self._copies.num_bytes if self._copies is not None else 0

    def pair(self) -> tuple[Tensor, Tensor]:
        """Both losses at theta ± eps z, 0-dim, on the current stream's order.

        Raises:
            ValueError: If a parameter cannot be perturbed, or the loss is no scalar or draws random numbers.
        """
        for _ in range(_ATTEMPTS):
            before, written = _random_states(self.setting.device), versions(self.static.leaves)
            losses = self._attempt()
            if losses is None:
                continue
            plus, minus = (scalar(loss) for loss in losses)
            _check_random(before, self.setting.device)
            if versions(self.static.leaves) != written:
                raise ValueError("the loss writes to the batch, so that L⁻ sees another one than L⁺; let it copy first")
            if not self.steps:
                check_independence((plus, minus), self._alone)
            return plus, minus
        raise ValueError(_UNPREDICTABLE)

    def _alone(self) -> tuple[Any, Any]:
        setting = self.setting
        alone = Alone(setting.model, setting.targets, self._ready(), setting.workers, setting.streams)
        plus, minus, _ = alone(self._run, watched=False)
        return plus, minus

    def _attempt(self) -> tuple[Any, Any] | None:
        """Both losses, or None if the plan was found wrong; it has then been dropped."""
        setting = self.setting
        pair = Pair(setting.model, setting.targets, self._ready(), setting.workers, setting.streams)
        try:
            plus, minus, watches = pair(self._run, watched=True)
        except Changed:
            self._calls = self._copies = None
            return None
        if all(watch.reads_none for watch in watches):
            raise ValueError(reads_none([t.name for t in setting.targets]))
        self.read = set().union(*(watch.read for watch in watches))
        unperturbed = sorted(set().union(*(watch.seen for watch in watches)))
        if not unperturbed:
            return plus, minus
        if set(unperturbed) <= self._resident or not self._plan_has(unperturbed):
            names = ", ".join(setting.targets[i].name for i in unperturbed[:4])
            raise ValueError(
                f"parameters {names} are read through another tensor that shares their memory, so they would stay "
                "unperturbed; let the loss read the parameter itself"
            )
        self._copies = None
        self._resident |= set(unperturbed)
        return None

    def _plan_has(self, indices: list[int]) -> bool:
        """Whether any of these parameters is copied unit by unit, so that a copy for the whole forward may help."""
        assert self._copies is not None
        calls = self._copies.plan.calls
        return any(i in call.owned for call in calls for i in indices)

    def capture(self, update: Callable[[], None], apart: bool, direct: bool = False) -> None:
        """Capture the forwards and what follows them.

        Args:
            update: Enqueues what follows, given the losses.
            apart: Whether that is a graph of its own.
            direct: Do not capture, enqueue everything anew at each replay; for tests where there is no GPU.

        Raises:
            RuntimeError: If something in the forward cannot be captured.
        """
        if direct:
            self.graph = _Direct(lambda: self._enqueue(None if apart else update))
            self.tail = _Direct(update) if apart else None
            return
        here = torch.cuda.current_stream(self.setting.device)
        for _ in range(_ATTEMPTS):
            self._ready()  # allocates outside of the graph's pool
            graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
            try:
                return self._capture(graphs, update, apart)
            except Exception:
                self.setting.pool = None
                give_up(graphs, here)
                if self._copies is not None:  # else the plan was wrong, and another may do
                    self._copies = None
                    raise
        raise RuntimeError(_UNPREDICTABLE)

    def _capture(self, graphs: list[torch.cuda.CUDAGraph], update: Callable[[], None], apart: bool) -> None:
        setting = self.setting
        if setting.pool is None:
            setting.pool = torch.cuda.graph_pool_handle()
        with capturing(graphs[0], setting.pool):
            self._enqueue(None if apart else update)
        if apart:
            with capturing(graphs[1], setting.pool):
                update()
            self.tail = graphs[1]
        self.graph = graphs[0]

    def _enqueue(self, update: Callable[[], None] | None) -> None:
        found = self._attempt()
        if found is None:
            raise RuntimeError("the plan was wrong")
        losses = torch.stack([scalar(loss) for loss in found])
        if self.losses is None or self.losses.dtype != losses.dtype:
            raise RuntimeError(f"the loss is {losses.dtype} when captured")
        self.losses.copy_(losses)
        if update is not None:
            update()

    def _run(self) -> Any:
        return self.setting.loss(self.setting.model, self.static.batch)

    def _ready(self) -> Copies:
        setting = self.setting
        if self._copies is None:
            self._copies = Copies(
                setting.targets,
                self._plan(),
                setting.ring,
                setting.fused,
                setting.control.control,
                setting.control.values,
                lambda: (setting.direction, setting.eps),
            )
            setting.ring = self._copies.ring
        return self._copies

    def _plan(self) -> Plan:
        targets, options = self.setting.targets, self.setting.plan_options
        if self._calls is None:
            self._calls = self._trace()
        return plan_of(targets, self._calls, self._resident, **options)

    def _trace(self) -> list[Call]:
        setting, before = self.setting, _random_states(self.setting.device)
        calls = trace(setting.model, setting.targets, self._run, self._has_rows)
        _check_random(before, setting.device)
        return calls

    def _has_rows(self, weight: Any) -> bool:
        fused = self.setting.fused and isinstance(weight, Tensor) and weight.dim() == 2
        return bool(fused and weight.shape[1] % 4 == 0)


class _Direct:
    """What stands for a graph where nothing is captured."""

    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


def plan_of(
    targets: Sequence[Target],
    calls: Sequence[Call],
    resident: set[int] | None = None,
    unit_bytes: int = UNIT_BYTES,
    ring_bytes: int | None = None,
) -> Plan:
    """The plan for an order of calls: few bytes are copied whole, and so are parameters that no call owns.

    Args:
        targets: The trained parameters.
        calls: As `trace` found them.
        resident: Parameters to copy whole in any case.
        unit_bytes: See `make_plan`.
        ring_bytes: See `make_plan`.
    """
    if sum(t.tensor.nbytes for t in targets) <= SMALL_BYTES and ring_bytes is None:
        return make_plan(targets, [], set(range(len(targets))))
    owned = {i for call in calls for i in call.owned}
    whole = {i for i in range(len(targets)) if i not in owned} | (resident or set())
    return make_plan(targets, calls, whole, unit_bytes, ring_bytes)


def scalar(loss: Any) -> Tensor:
    """A loss as a 0-dim tensor; whether it is finite is for later, for asking makes the host wait.

    Raises:
        ValueError: If it is no tensor with one real element.
    """
    if not isinstance(loss, Tensor):
        raise ValueError(f"the loss returned a {type(loss).__name__}; it must return a tensor with one real number")
    return one_number(loss.detach(), "the loss")


def _check_random(before: list[Tensor], device: torch.device) -> None:
    if any(not torch.equal(a, b) for a, b in zip(before, _random_states(device), strict=True)):
        raise ValueError(
            "the loss draws random numbers, so L⁺ − L⁻ would mostly be their noise; turn dropout off (model.eval())"
        )


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
