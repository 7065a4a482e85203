"""Parameters that a loss reads without their module's hooks, or not at all: never a slope of theta itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helene import MeZO, layer_groups
from helene.engine import Engine
from helene.evaluation.directions import Direction, Target
from helene.evaluation.probe import Probe
from tests.optimizers.contract.contract_table import METHODS, Method


def _net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def _optimizer(net: nn.Module, **options: Any) -> MeZO:
    return MeZO(net.named_parameters(), lr=1e-2, seed=3, **options)


X = torch.linspace(-1.0, 1.0, 15).view(5, 3)


def _with_hooks(model: Any) -> Tensor:
    return model(X).square().mean()


def _without(model: Any) -> Tensor:
    return model[2].forward(torch.tanh(model[0].forward(X))).square().mean()


def _half(model: Any) -> Tensor:
    return model[2].forward(torch.tanh(model[0](X))).square().mean()


def _twice(model: Any) -> Tensor:
    return (model(X) + model(2 * X)).square().mean()


def _once_with(model: Any) -> Tensor:
    return (model(X) + model[2].forward(torch.tanh(model[0].forward(2 * X)))).square().mean()


@pytest.mark.parametrize(
    "losses",
    [
        [_with_hooks, _without, _without, _with_hooks],
        [_with_hooks, _half, _half],
        [_with_hooks, _half, _without],
        [_twice, _once_with, _twice],
    ],
)
def test_a_later_loss_may_call_forward_itself(losses: list[Any]) -> None:
    """Against full copies, which no way of reading escapes: the same trajectory to the bit."""
    model, twin = _net(), _net()
    optimizer, reference = _optimizer(model, model=model), _optimizer(twin)
    for loss in losses:
        mine, theirs = optimizer.step(lambda f=loss: f(model)), reference.step(lambda f=loss: f(twin))
        assert torch.equal(mine, theirs)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (lambda model: model[2].weight.square().sum(), "2.weight: read outside their own module's forward"),
        (lambda model: F.linear(X, model[0].weight).square().mean(), "0.weight: read outside their own module's"),
    ],
)
def test_a_read_that_comes_later_is_found_at_a_power_of_two(extra: Any, text: str) -> None:
    """Against full copies: the same trajectory to the bit, from the fourth step on."""
    model, twin = _net(), _net()
    optimizer, reference = _optimizer(model, model=model), _optimizer(twin)

    def loss(net: Any, step: int) -> Tensor:
        return _with_hooks(net) + (extra(net) if step > 3 else 0.0)

    def both(step: int) -> None:
        mine, theirs = (o.step(lambda n=n: loss(n, step)) for o, n in ((optimizer, model), (reference, twin)))
        assert torch.equal(mine, theirs)

    for step in (1, 2, 3):
        both(step)
    with pytest.warns(UserWarning, match=text):
        both(4)
    for step in (5, 6):
        both(step)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_looking_again_forgets_no_forward_that_was_seen() -> None:
    """The second step runs each module once with its hooks, the third too, and once more without."""
    model, twin = _net(), _net()
    optimizer, reference = _optimizer(model, model=model), _optimizer(twin)
    for loss in (_twice, _with_hooks, _once_with):
        mine, theirs = optimizer.step(lambda f=loss: f(model)), reference.step(lambda f=loss: f(twin))
        assert torch.equal(mine, theirs)


def test_a_loss_that_reads_no_trained_parameter_is_refused() -> None:
    model, other = _net(), _net()
    optimizer = _optimizer(model, model=model)
    with pytest.raises(ValueError, match=r"reads none of the 4 trained parameters \(0.weight, 0.bias, 2.weight"):
        optimizer.step(lambda: _with_hooks(other))
    assert optimizer.param_groups[0]["step"] == 0


ZEROTH_ORDER = [m for m in METHODS if m.zeroth_order and m.name != "ForwardGrad"]  # which refuses such a loss


@pytest.mark.parametrize("method", ZEROTH_ORDER, ids=lambda m: m.name)
def test_a_loss_of_another_model_is_noticed_without_the_model(method: Method) -> None:
    """At the first step, once; with parameters alone and the same loss of the right model, nothing is said."""
    model, other = _net(), _net()
    optimizer = method.build(model.named_parameters(), 1e-2)
    with pytest.warns(UserWarning, match="reads none of the 4 trained parameters .* or is it another model's") as told:
        optimizer.step(lambda: _with_hooks(other))
    assert len(told) == 1
    optimizer.step(lambda: _with_hooks(other))
    method.build(model.named_parameters(), 1e-2).step(lambda: _with_hooks(model))


@pytest.mark.parametrize("options", [{"two_sided": False}, {"direction_per_layer": True}, {"num_directions": 2}])
def test_another_model_is_noticed_with_other_probes_too(options: dict[str, Any]) -> None:
    model, other = _net(), _net()
    with pytest.warns(UserWarning, match="reads none of the 4 trained parameters"):
        MeZO(layer_groups(model), **options).step(lambda: _with_hooks(other))


@pytest.mark.parametrize(
    "loss",
    [
        lambda p: (p.sum() > 0).float(),  # flat, as an accuracy is
        lambda p: p.half().sum() * 1e-3,  # float16 rounds the difference away
        lambda p: float(p.data.numpy().sum()),  # out of torch's sight
        lambda p: sum(p.tolist()),
    ],
)
def test_no_loss_that_reads_its_parameters_is_warned_of(loss: Any) -> None:
    p = nn.Parameter(torch.ones(3))
    MeZO([p], 1e-2, eps=1e-5).step(lambda: loss(p))


def test_reading_through_data_counts_as_reading() -> None:
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    probe = Probe([Target(p, 1, "p")])
    plus = probe.loss(lambda: p.data.square().sum(), Direction(0, 1), 1e-3)
    minus = probe.loss(lambda: p.data.square().sum(), Direction(0, 1), -1e-3)
    assert plus != minus


def test_merged_adapters_are_told() -> None:
    peft = pytest.importorskip("peft")
    model = nn.ModuleDict({"q_proj": nn.Linear(4, 4)})
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["q_proj"]), model)
    model["q_proj"].merge()
    named = [(name, p) for name, p in model.named_parameters() if "lora_" in name]
    for _, p in named:
        p.requires_grad_(True)
    optimizer = MeZO(named, lr=1e-2, model=model)
    with pytest.raises(ValueError, match="are adapters merged"):
        optimizer.step(lambda: model["q_proj"](torch.ones(2, 4)).square().mean())


def test_a_loss_with_a_transform_of_torch_func() -> None:
    """A derivative by torch.func.grad in the loss: full copies, and the same trajectory as by them alone."""
    x = torch.linspace(0.0, 1.0, 5)[:, None]

    def net() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(model: Any) -> Tensor:
        return (torch.func.grad(lambda s: model(s).sum())(x) - 1).square().mean()

    model, twin, later = net(), net(), net()
    optimizer, reference = _optimizer(model, model=model), _optimizer(twin)
    with pytest.warns(UserWarning, match=r"their module runs inside a transform of torch\.func; copied for the whole"):
        optimizer.step(lambda: loss(model))
    optimizer.step(lambda: loss(model))
    for _ in range(2):
        reference.step(lambda: loss(twin))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    changes = _optimizer(later, model=later)  # a transform that comes later is noticed too
    changes.step(lambda: later(x).square().mean())
    before = [p.detach().clone() for p in later.parameters()]
    changes.step(lambda: loss(later))
    fresh = net()
    fresh.load_state_dict(dict(zip(fresh.state_dict(), before, strict=True)))
    one = _optimizer(fresh)
    one.param_groups[0]["step"] = 1
    one.step(lambda: loss(fresh))
    assert all(map(torch.equal, later.parameters(), fresh.parameters()))


def test_a_view_that_a_module_keeps_for_another_one() -> None:
    """Its memory is another copy's by then; found in the first loss, where the copy is still held when it is left."""

    class Keeps(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.turned = self.weight.t()
            return super().forward(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.middle = Keeps(3, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.middle(torch.tanh(self.first(x)))) @ self.first.turned.t()

    model, twin = Net(), Net()
    optimizer, reference = _optimizer(model, model=model), _optimizer(twin)
    with pytest.warns(
        UserWarning, match=r"first\.weight, first\.bias: read outside their own module's forward; copied"
    ):
        optimizer.step(lambda: _with_hooks(model))
    reference.step(lambda: _with_hooks(twin))
    for _ in range(5):
        optimizer.step(lambda: _with_hooks(model))
        reference.step(lambda: _with_hooks(twin))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


@pytest.mark.parametrize("mixed", [False, True], ids=["derivative", "and values"])
def test_a_loss_with_a_backward_in_it(mixed: bool) -> None:
    """It reads weights after their modules have ended: the same trajectory as by full copies, the engine's too."""
    x = torch.linspace(0.0, 1.0, 5)[:, None]

    def net() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))

    def loss(model: Any, x: Tensor) -> Tensor:
        value = model(x).square().mean() if mixed else torch.zeros(())
        with torch.enable_grad():
            inputs = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        return value + (slope - 1).square().mean()

    model, twin, captured = net(), net(), net()
    optimizer, reference, recorded = _optimizer(model, model=model), _optimizer(twin), _optimizer(captured)
    with pytest.warns(
        UserWarning, match="their module runs with gradients enabled, for a backward in the loss; copied"
    ):
        optimizer.step(lambda: loss(model, x))
    engine = Engine(captured, recorded, loss, capture="repeat", unit_bytes=1, scratch_bytes=1024)
    engine.step(x)
    reference.step(lambda: loss(twin, x))
    for _ in range(3):
        optimizer.step(lambda: loss(model, x))
        engine.step(x)
        reference.step(lambda: loss(twin, x))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    for p, q in zip(captured.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_script_calls_no_hooks_of_its_modules() -> None:
    """Against full copies: the same trajectory to the bit."""

    def net() -> Any:
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        return nn.Sequential(torch.jit.script(inner), nn.Linear(3, 2))

    model, twin = net(), net()
    optimizer, reference = _optimizer(model, model=model), _optimizer(twin)
    with pytest.warns(UserWarning, match=r"0\.0\.weight, 0\.0\.bias: read outside their own module's forward"):
        optimizer.step(lambda: _with_hooks(model))
    reference.step(lambda: _with_hooks(twin))
    for _ in range(3):
        assert torch.equal(optimizer.step(lambda: _with_hooks(model)), reference.step(lambda: _with_hooks(twin)))
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_a_closure_that_changes_a_weight_is_told(with_model: bool, later: bool) -> None:
    net = _net()
    optimizer = _optimizer(net, model=net if with_model else None)
    if later:
        optimizer.step(lambda: _with_hooks(net))

    def changing() -> Tensor:
        loss = _with_hooks(net)
        net[2].bias.add_(1.0)
        return loss

    with pytest.raises(ValueError, match=r"the closure changes parameters 2\.bias; it must only return the loss"):
        optimizer.step(changing)
    assert optimizer.param_groups[0]["step"] == int(later)
