"""Forwards of groups by the kernel that adds terms of rank one, in Triton's interpreter, against torch's operations."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
    pytest.skip("for machines with triton and no GPU", allow_module_level=True)

from helene.evaluation.directions import Target
from helene.evaluation.grouped.factors import Factors, Mirrored
from helene.evaluation.grouped.rowwise import RowPerturbation
from helene.kernels import launch


class Layers(torch.nn.Module):
    """A linear layer with a bias, one whose bias is no parameter of the optimizer, a Conv1D's product, one in a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = torch.nn.Parameter(torch.randn(width, 12, generator=generator))
        self.bias = torch.nn.Parameter(torch.randn(width, generator=generator))
        self.second = torch.nn.Parameter(torch.randn(width, 9, generator=generator))
        self.fixed = torch.randn(9, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.linear(x, self.first, self.bias).tanh()
        return torch.addmm(self.fixed.to(y.dtype), y.view(-1, y.shape[-1]), self.second)


@pytest.mark.parametrize(("groups", "shape", "width"), [(3, (6, 5), 16), (2, (4, 4), 11), (1, (3, 1), 2100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_forward_is_torchs(
    monkeypatch: pytest.MonkeyPatch, groups: int, shape: tuple[int, int], width: int, dtype: torch.dtype
) -> None:
    """Within what rounding each layer's result to its dtype makes; the term itself is far above."""
    model = Layers(width).to(dtype)
    targets = [Target(p, 7 + i, name) for i, (name, p) in enumerate(model.named_parameters())]
    factors = Factors(targets, groups=groups, rank=1).draw(3, 5)
    x = torch.randn(*shape, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    made, launched, add = [], [], launch.add_product
    monkeypatch.setattr(launch, "add_product", lambda *given: (launched.append(1), add(*given)))

    def forward(radius: float) -> Any:
        with torch.no_grad(), RowPerturbation(targets, factors, radius):
            return model(x).double()

    def doubled() -> Any:
        if groups == 1:  # where rows may see a parameter as a whole, so that there is no opposite
            return forward(0.1), forward(-0.1)
        with torch.no_grad(), RowPerturbation(targets, Mirrored(factors), 0.1):
            return model(torch.cat([x, x])).double().chunk(2)

    for choice in ("torch", "triton"):
        monkeypatch.setenv("HELENE_KERNELS", choice)
        made.append((forward(0.1), forward(-0.1)))
        assert len(launched) == 4 * (choice == "triton"), "two products in two forwards"
        for one, other in zip(made[-1], doubled(), strict=True):
            assert (one - other).abs().max() <= 16 * torch.finfo(dtype).eps * one.abs().max()
    each = x.shape[0] // groups
    for group in range(groups):
        place, launches = slice(group * each, (group + 1) * each), len(launched)
        with torch.no_grad(), RowPerturbation(targets, factors.part(group, 1), 0.1):
            alone = model(x[place]).double()
        assert len(launched) == launches + 2, "by kernels, as part of all groups"
        whole = made[-1][0].view(x.shape[0], -1, alone.shape[-1])[place].flatten(0, 1)
        assert (alone - whole).abs().max() <= 16 * torch.finfo(dtype).eps * whole.abs().max()
    (plus, minus), (ours, theirs) = made
    apart = max((plus - ours).abs().max(), (minus - theirs).abs().max())
    assert apart <= 16 * torch.finfo(dtype).eps * plus.abs().max()
    assert (plus - minus).abs().max() > 100 * apart * (1 if dtype == torch.float32 else 0.05)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_rows_under_vmap_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of torch.func has no memory that a kernel could read."""
    layer = torch.nn.Linear(5, 7)
    targets = [Target(p, 7 + i, name) for i, (name, p) in enumerate(layer.named_parameters())]
    factors, x = Factors(targets, groups=1, rank=1).draw(3, 5), torch.randn(4, 2, 5)
    made = []
    for choice in ("torch", "triton"):
        monkeypatch.setenv("HELENE_KERNELS", choice)
        with torch.no_grad(), RowPerturbation(targets, factors, 0.1):
            made.append(torch.func.vmap(layer)(x))
    assert torch.equal(*made)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_bias_of_another_form_is_left_to_torch(monkeypatch: pytest.MonkeyPatch, groups: int) -> None:
    """One number for all columns, and every second element of a longer vector."""
    generator = torch.Generator().manual_seed(0)
    weight, single = (torch.nn.Parameter(torch.randn(s, generator=generator)) for s in ((5, 8), (1,)))
    spaced = torch.nn.Parameter(torch.randn(16, generator=generator)[::2])
    targets = [Target(p, 7 + i, str(i)) for i, p in enumerate((weight, single, spaced))]
    factors, x = Factors(targets, groups=groups, rank=1).draw(3, 5), torch.randn(4, 5, generator=generator)
    for bias in (single, spaced):
        made = []
        for choice in ("torch", "triton"):
            monkeypatch.setenv("HELENE_KERNELS", choice)
            with torch.no_grad(), RowPerturbation(targets, factors, 0.1):
                made.append(torch.addmm(bias, x, weight))
        torch.testing.assert_close(*made, rtol=1e-5, atol=1e-5)
