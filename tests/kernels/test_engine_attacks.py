"""Models and losses that could give the engine another z than it thinks: the right trajectory, or a clear error.

The oracle is `optimizer.step` without a model: full copies, which no way of reading a parameter escapes.
"""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_models import TiedModel, batch_of, loss
from torch import Tensor, nn
from torch.nn import functional as F

from helene import MeZO
from helene.engine import Engine

STEPS = 4


def _engine(model: nn.Module, loss: Callable[..., Any] = loss, *, repeat: bool = False) -> Engine:
    """An engine; ``repeat`` goes the way of a captured step as far as that goes without a GPU."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer = MeZO(named, lr=1e-2, seed=5, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ring = {"scratch_bytes": 1 << 15, "unit_bytes": 3000}
        return Engine(model, optimizer, loss, capture="repeat" if repeat else True, **ring)


def _check(model: nn.Module, losses: list[Callable[..., Any]], batches: list[Any] | None = None) -> Engine:
    """The engine's trajectory on a model is that of full copies on its twin, bit for bit."""
    twin = copy.deepcopy(model)
    reference = MeZO([(n, p) for n, p in twin.named_parameters() if p.requires_grad], lr=1e-2, seed=5)
    current: list[Any] = []
    engine = _engine(model, lambda m, b: current[0](m, b))
    for step, loss_of_step in enumerate(losses):
        current[:] = [loss_of_step]
        batch = batch_of(step) if batches is None else batches[step]
        theirs = reference.step(lambda f=loss_of_step, b=batch: f(twin, copy.deepcopy(b)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mine = engine.step(batch)
        assert torch.equal(mine, theirs), (step, mine, theirs)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    return engine


class Holder(nn.Module):
    """Gives its weight away, as it is or as a view, for others to read when it has long returned."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = nn.Parameter(torch.randn(width, width) / width), kind

    def forward(self) -> Tensor:
        return {"itself": lambda: self.weight, "view": lambda: self.weight.t(), "row": lambda: self.weight[1]}[
            self.kind
        ]()


class Lender(TiedModel):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.holder = Holder(16, kind)

    def forward(self, ids: Tensor) -> Tensor:
        lent = self.holder()
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        x = x @ lent if lent.dim() == 2 else x * lent
        return self.head(x * self.scale)


@pytest.mark.parametrize("kind", ["itself", "view", "row"])
def test_a_weight_that_is_given_away(kind: str) -> None:
    torch.manual_seed(0)
    _check(Lender(kind), [loss] * STEPS)


class Borrower(TiedModel):
    """Reads the weights of one block while another runs, and one of a module that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = block(x) + F.linear(x, self.blocks[i - 1].query.weight, self.idle.bias)
        return self.head(x * self.scale)


def test_weights_that_other_modules_read() -> None:
    torch.manual_seed(0)
    _check(Borrower(), [loss] * STEPS)


def _by_forward(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """All but the top calls ``forward`` without hooks."""
    x = model.embed.forward(batch["ids"])
    for block in model.blocks:
        x = block.forward(x)
    return F.cross_entropy(model.head.forward(x * model.scale).flatten(0, 1), batch["labels"].flatten())


def test_forward_called_without_hooks_at_later_steps() -> None:
    torch.manual_seed(0)
    _check(TiedModel(), [loss, _by_forward, _by_forward, loss, _by_forward])


class Routed(TiedModel):
    """Which blocks run is decided by the data; some run first at a later step."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            if (int(ids.sum()) + i) % 2:
                x = block(x)
        return self.head(x * self.scale)


def test_modules_that_run_at_some_steps_only() -> None:
    torch.manual_seed(0)
    model = Routed()
    odd = {int(batch_of(step)["ids"].sum()) % 2 for step in range(8)}
    assert odd == {0, 1}
    _check(model, [loss] * 8)


class Keeper(TiedModel):
    """One block keeps a tensor on the model, a later one reads it."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 0:
                self.kept = x
        return self.head((x + self.kept) * self.scale)


def test_forwards_that_disturb_each_other_are_refused() -> None:
    torch.manual_seed(0)
    model = Keeper()
    start = [p.detach().clone() for p in model.parameters()]
    engine = _engine(model)
    with pytest.raises(ValueError, match="disturb each other"):
        engine.step(batch_of(0))
    assert all(torch.equal(a, b) for a, b in zip(start, model.parameters(), strict=True))


def test_an_alias_made_before_is_refused() -> None:
    class Aliased(TiedModel):
        def __init__(self) -> None:
            super().__init__()
            self.alias = self.scale.detach().view(4, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * self.alias.sum()

    with pytest.raises(ValueError, match="read through another tensor that shares their memory"):
        _engine(Aliased()).step(batch_of(0))


def test_dropout_switched_on_later_in_a_child_is_refused() -> None:
    torch.manual_seed(0)
    model = TiedModel(dropout=0.3).eval()
    engine = _engine(model)
    engine.step(batch_of(0))
    engine.step(batch_of(0))
    model.dropout.train()
    with pytest.raises(ValueError, match="draws random numbers"):
        engine.step(batch_of(0))


def test_a_loss_that_writes_to_the_batch_is_refused() -> None:
    def writing(model: Any, batch: dict[str, Tensor]) -> Tensor:
        batch["labels"].masked_fill_(batch["ids"] % 2 == 0, 3)
        return loss(model, batch)

    given = batch_of(0)
    kept = copy.deepcopy(given)
    with pytest.raises(ValueError, match="writes to the batch"):
        _engine(TiedModel(), writing).step(given)
    assert all(torch.equal(given[name], kept[name]) for name in kept)


def test_parameters_that_no_loss_reads_move_as_by_the_optimizer() -> None:
    torch.manual_seed(0)
    model = TiedModel()
    model.unread = nn.Linear(7, 3)
    _check(model, [loss] * STEPS)


def test_parameters_that_are_not_the_models_and_that_no_loss_reads_are_told_of_once() -> None:
    """As `optimizer.step` does; of a temperature that the loss reads itself nothing is said."""
    torch.manual_seed(0)
    model, other, temperature = TiedModel(), nn.Linear(3, 3, bias=False), nn.Parameter(torch.ones(()))
    named = [*model.named_parameters(), ("temperature", temperature), ("other", other.weight)]
    optimizer = MeZO(named, lr=1e-2, model=model)
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        engine = Engine(model, optimizer, lambda m, b: loss(m, b) / temperature)
    with pytest.warns(UserWarning, match=r"^other: not the model's, and not read by the first loss.*leave it out"):
        engine.step(batch_of(0))
    engine.step(batch_of(1))
    engine.step(batch_of(1, length=5))


def test_batch_norm_in_training_mode_is_warned_of_once() -> None:
    class Normed(TiedModel):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(16)

        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + self.norm(self.embed(ids).mean(1)).mean()

    engine = _engine(Normed())
    with pytest.warns(UserWarning, match=r"changes the model's buffer norm\.num_batches_tracked, .*model\.eval\(\)"):
        engine.step(batch_of(0))
    engine.step(batch_of(1))
    _engine(Normed().eval()).step(batch_of(0))


def test_a_loss_of_another_model_is_refused() -> None:
    other = TiedModel()
    with pytest.raises(ValueError, match="reads none of the"):
        _engine(TiedModel(), lambda model, batch: loss(other, batch)).step(batch_of(0))


def _with_adapters() -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = TiedModel()
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["query"]), model)
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name)
        if "lora_B" in name:
            nn.init.normal_(p)
    return model


def test_adapters_merged_before_the_first_step_are_refused() -> None:
    model = _with_adapters()
    for block in model.blocks:
        block.query.merge()
    with pytest.raises(ValueError, match="are adapters merged"):
        _engine(model).step(batch_of(0))


def test_adapters_merged_at_a_later_step_are_refused() -> None:
    """Also where a graph would replay the adapters that are merged: its shapes are forgotten first."""
    model = _with_adapters()
    engine = _engine(model, repeat=True)
    for _ in range(3):
        engine.step(batch_of(0))
    assert engine.mode == "graph"
    for block in model.blocks:
        block.query.merge()
    with pytest.raises(ValueError, match="are adapters merged"):
        engine.step(batch_of(0))


@pytest.mark.parametrize("change", ["frozen", "module", "hook", "buffer", "mode"])
def test_a_model_that_changes_after_the_capture_is_captured_again(change: str) -> None:
    torch.manual_seed(0)
    model = TiedModel()
    model.register_buffer("shift", torch.zeros(1))
    model.head = nn.Linear(16, 100)
    model.head.requires_grad_(False)
    engine = _engine(model, repeat=True)
    for _ in range(3):
        engine.step(batch_of(0))
    assert engine.mode == "graph"
    if change == "frozen":
        model.head.weight.data = model.head.weight.detach().clone()
    elif change == "module":
        model.head = copy.deepcopy(model.head)
    elif change == "hook":
        model.blocks[0].register_forward_hook(lambda module, args, output: 2 * output)
    elif change == "buffer":
        model.shift = torch.ones(1)
    else:
        model.blocks[1].eval()
    engine.step(batch_of(0))
    assert engine.mode == "eager"
    engine.step(batch_of(0))
    assert engine.mode == "graph"


def test_the_trained_parameters_may_be_replaced_by_others_in_memory() -> None:
    torch.manual_seed(0)
    model = TiedModel()
    engine = _engine(model)
    for step in range(3):
        engine.step(batch_of(step))
    twin = copy.deepcopy(model)
    for p in model.parameters():
        p.data = p.detach().clone()
    reference = MeZO(twin.named_parameters(), lr=1e-2, seed=5)
    reference.param_groups[0]["step"] = 3
    assert torch.equal(engine.step(batch_of(3)), reference.step(lambda: loss(twin, batch_of(3))))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_why_kernels_are_not_used_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old GPU, no Triton, a wish: one line each."""
    module = importlib.import_module("helene.kernels.backend")

    cuda = torch.device("cuda", 0)
    choose = module._of_device.__wrapped__
    assert choose(torch.device("cpu")).reason == "the parameters are on cpu, not on an NVIDIA GPU"
    monkeypatch.setattr(module, "has_triton", lambda: False)
    assert choose(cuda) == ("torch", "triton is not installed")
    monkeypatch.setattr(module, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose(cuda) == ("torch", "the GPU has compute capability 7.5, the kernels need 8.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose(cuda).is_triton
    monkeypatch.setenv(module.VARIABLE, "torch")
    assert module.backend(torch.ones(1)) == ("torch", "HELENE_KERNELS=torch")
    monkeypatch.setenv(module.VARIABLE, "cuda")
    with pytest.raises(ValueError, match="HELENE_KERNELS must be torch or triton, got 'cuda'"):
        module.backend(torch.ones(1))
