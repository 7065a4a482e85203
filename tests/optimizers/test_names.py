"""A parameter has one name, and so one z, whatever its model is wrapped in; older files load as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helene import MeZO, Trajectory, ZOAdam, layer_groups
from helene.inputs.names import canonical
from helene.integrations.checkpoints import load_checkpoint, save_checkpoint
from helene.steps.layered import Layered

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
WRAPPERS = {
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "parallel": nn.DataParallel,  # as DistributedDataParallel names parameters
    "both": lambda m: torch.compile(nn.DataParallel(m), backend="eager"),
}
wrapped = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers[1](self.layers[0](x).tanh()).tanh())


def steps(optimizer: Any, model: nn.Module, count: int) -> None:
    for _ in range(count):
        optimizer.step(lambda: F.cross_entropy(model(X), Y))


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, a.parameters(), b.parameters()))


@wrapped
def test_a_wrapped_model_makes_the_plain_ones_steps_and_takes_its_files(wrap: Any, tmp_path: Path) -> None:
    plain, other = Net(), wrap(Net())
    optimizers = [ZOAdam(layer_groups(model), 1e-2) for model in (plain, other)]
    assert [g["layer"] for g in optimizers[0].param_groups] == [g["layer"] for g in optimizers[1].param_groups]
    recorded = Trajectory.record(optimizers[0])
    for optimizer, model in zip(optimizers, (plain, other), strict=True):
        steps(optimizer, model, 2)
    assert equal(plain, other)
    recorded.save(tmp_path / "t.npz")
    save_checkpoint(tmp_path / "c.safetensors", plain, optimizers[0])
    again = wrap(Net())
    Trajectory.load(tmp_path / "t.npz").replay(ZOAdam(layer_groups(again)))
    assert equal(plain, again)
    back = ZOAdam(layer_groups(again))
    load_checkpoint(tmp_path / "c.safetensors", again, back)
    back.load_state_dict(optimizers[0].state_dict())
    save_checkpoint(tmp_path / "w.safetensors", again, back)
    steps(optimizers[0], plain, 2)
    steps(back, again, 2)
    assert equal(plain, again)
    home = Net()
    load_checkpoint(tmp_path / "w.safetensors", home, ZOAdam(layer_groups(home)))


@wrapped
def test_files_whose_ids_are_of_prefixed_names_go_on(
    wrap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they were made: other directions than the plain model's, the same ones after loading."""
    with monkeypatch.context() as patch:
        patch.setattr(Layered, "_as_given", True)
        model = wrap(Net())
        old = ZOAdam(model.named_parameters(), 1e-2)
        recorded = Trajectory.record(old)
        steps(old, model, 2)
        recorded.save(tmp_path / "t.npz")
        state = old.state_dict()
        again = wrap(Net())
    fresh = ZOAdam(again.named_parameters())
    Trajectory.load(tmp_path / "t.npz").replay(fresh)
    assert equal(model, again)
    later = ZOAdam(again.named_parameters())
    later.load_state_dict(state)
    steps(old, model, 2)
    steps(later, again, 2)
    assert equal(model, again)
    plain = Net()
    steps(ZOAdam(plain.named_parameters(), 1e-2), plain, 4)
    assert not equal(model, plain)
    with pytest.raises(ValueError, match="belongs to 6 other parameters"):
        ZOAdam(plain.named_parameters()).load_state_dict(state)


def test_names_that_would_be_one_stay_apart() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.weight = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(2, 2))

    optimizer = MeZO(Both().named_parameters())
    assert len({target.id for target in optimizer.targets}) == 2


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("module._orig_mod.blocks.0.weight", "blocks.0.weight"),
        ("_orig_mod.module.weight", "weight"),
        ("blocks._checkpoint_wrapped_module.0._fsdp_wrapped_module.weight", "blocks.0.weight"),
        ("blocks.module.weight", "blocks.module.weight"),
        ("module", "module"),
    ],
)
def test_canonical_names(name: str, plain: str) -> None:
    assert canonical(name) == plain
