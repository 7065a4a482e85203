"""`GroupedMeZO` on a GPU: directions, steps against perturbed copies, captured forwards against plain ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from kernel_updates import by_kernels, by_torch, with_state

from helene import GroupedMeZO, Trajectory
from helene.engine.groups import GroupEngine
from helene.evaluation.directions import Target
from helene.evaluation.grouped.factors import Factors
from helene.steps.fused import launches
from tests.optimizers.groups.grouped_models import (
    MODELS,
    gemma,
    llama_tied,
    lora,
    losses,
    made,
    opt,
    tokens_of,
)

pytestmark = pytest.mark.gpu


def batch_of(step: int, length: int = 5) -> dict[str, Any]:
    return tokens_of(step, length, "cuda")


def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if hasattr(model, "config"):
        inputs["use_cache"] = False  # a cache of keys copies from the CPU where windows slide
    return losses(model, inputs, batch["labels"]).float()


@pytest.mark.parametrize("rank", [1, 3])
def test_directions_are_the_cpus(rank: int) -> None:
    """Normals agree to 4e-6 max(1, |z|), signs to the bit; odd shapes, which start anywhere."""
    shapes = [(7, 5), (3,), (129, 64), (1, 1), (4000,)]
    for signs in (False, True):
        found = []
        for device in ("cpu", "cuda"):
            targets = [
                Target(torch.nn.Parameter(torch.zeros(s, device=device)), 9 + i, "") for i, s in enumerate(shapes)
            ]
            factors = Factors(targets, groups=4, rank=rank, signs=signs).draw(3, 8)
            found.append([t.cpu() for i in range(len(shapes)) for t in factors.of(i) if t is not None])
        for a, b in zip(*found, strict=True):
            assert ((a - b).abs() <= (0.0 if signs else 4e-6) * a.abs().clamp_min(1.0)).all()


@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_a_step_is_the_cpus(make: Any) -> None:
    """float64 weights: slopes along directions that are off by 4e-6, so 1e-4 of the largest move."""
    ends = []
    for device in ("cpu", "cuda"):
        model = made(make).to(device)
        optimizer = GroupedMeZO(model.named_parameters(), 0.01, groups=3, eps=1e-3, model=model)
        start = [p.detach().clone() for p in model.parameters()]
        batch = {name: value.to(device) for name, value in batch_of(1).items()}
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        optimizer.step(lambda model=model, inputs=inputs, batch=batch: losses(model, inputs, batch["labels"]))
        ends.append([(p.detach() - q).cpu() for p, q in zip(model.parameters(), start, strict=True)])
    for a, b in zip(*ends, strict=True):
        assert (a - b).abs().max() <= 1e-4 * a.abs().max()


@pytest.mark.parametrize("doubled", [None, {}], ids=["two-forwards", "doubled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [gemma, opt, llama_tied, lora], ids=lambda m: m.__name__)
def test_captured_steps_are_the_plain_ones(make: Any, dtype: torch.dtype, doubled: Any) -> None:
    """Ten steps of two shapes; the graph replays the same operations, so that cuBLAS's choices alone may differ."""
    model = made(make, dtype).cuda()
    twin, fresh = copy.deepcopy(model), copy.deepcopy(model)
    options: dict[str, Any] = {"groups": 3, "eps": 1e-2, "rounding": "stochastic"}
    first, second = (GroupedMeZO(m.named_parameters(), 1e-3, **options) for m in (model, twin))
    engine, recorded, modes = GroupEngine(model, first, loss, doubled=doubled), Trajectory.record(first), []
    for step in range(1, 11):
        batch = batch_of(step, 8 if step % 2 else 5)
        ours = engine.step(batch)
        modes.append((engine.mode, engine.reason))
        theirs = second.step(lambda batch=batch: loss(twin, batch))
        assert abs(ours.item() - theirs.item()) <= (1e-4 if dtype == torch.float32 else 3e-2) * abs(theirs.item())
    assert modes[2:] == [("graph", "")] * 8
    recorded.replay(GroupedMeZO(fresh.named_parameters(), 9.0))
    assert all(map(torch.equal, model.parameters(), fresh.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("groups", "rank", "momentum"), [(16, 1, 0.0), (3, 2, 0.9)])
def test_an_update_is_the_generic_loops(groups: int, rank: int, momentum: float, dtype: torch.dtype) -> None:
    """Two steps: sums of groups · rank products in another order, so some ulp of an update that 0.2 bounds."""
    options: dict[str, Any] = {"groups": groups, "rank": rank, "momentum": momentum, "weight_decay": 0.1}
    shapes = [(33, 100), (5,), (4096,), (2, 1028), (300, 257), (64, 640)]
    made = [with_state(GroupedMeZO, shapes, dtype, "cuda", rounding="stochastic", **options) for _ in range(2)]
    for step in range(2):
        weights = [0.1 * (-1) ** g / (1 + g + step) for g in range(groups)]
        assert launches.kernel_of(made[1], made[1].plan())
        by_torch(made[0], weights)
        by_kernels(made[1], weights)
    for a, b in zip(*(optimizer.targets for optimizer in made), strict=True):
        apart = (a.tensor.float() - b.tensor.float()).abs()
        assert (apart <= 2 * torch.finfo(dtype).eps * (a.tensor.float().abs() + 0.2)).all()
        assert dtype == torch.float32 or (apart > 0).float().mean() <= 5e-3
        for name, x in made[0].state[a.tensor].items():
            torch.testing.assert_close(x, made[1].state[b.tensor][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("places", "num_in", "num_out"), [(48, 640, 2048), (64, 2048, 640), (16, 640, 20_000)])
def test_a_term_of_rank_one_is_torchs(dtype: torch.dtype, places: int, num_in: int, num_out: int) -> None:
    """With a bias: against float64, one rounding to the dtype and float32's of a sum over the inputs."""
    groups, radius, device = 16, 1e-2, "cuda"
    weight, bias = torch.randn(num_out, num_in, device=device) / num_in**0.5, torch.randn(num_out, device=device)
    targets = [Target(torch.nn.Parameter(p.to(dtype)), 5 + i, "") for i, p in enumerate((weight, bias))]
    factors = Factors(targets, groups=groups, rank=1).draw(3, 8)
    x, y = (torch.randn(places, n, device=device).to(dtype) for n in (num_in, num_out))
    (left, right), (own, _) = (factors.of(i, torch.float64) for i in (0, 1))
    start, at = factors.place(0)[0], torch.arange(places, device=device) * groups // places
    near = (targets[1].tensor.double() + radius * own).to(dtype).double()
    dot = (x.double() * right[:, 0][at]).sum(dim=1, keepdim=True)  # type: ignore[index]
    exact = y.double() + radius * dot * left[:, 0][at] + near[at]
    from helene.kernels import launch

    launch.add_product(
        y, x, factors.numbers(y.device), radius, groups, False, start + num_out, start, targets[1].tensor.detach(),
        factors.place(1)[0],
    )  # fmt: skip
    apart = (y.double() - exact).abs()
    assert (apart <= torch.finfo(dtype).eps * (exact.abs() + 4.0) + 1e-5 * radius * num_in**0.5).all()


def test_bfloat16_products_in_autocast_are_captured() -> None:
    model = made(gemma, torch.float32).cuda()
    optimizer = GroupedMeZO(model.named_parameters(), 1e-3, groups=3, eps=1e-2)

    def cast(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return loss(model, batch)

    engine = GroupEngine(model, optimizer, cast)
    twin = copy.deepcopy(model)
    plain = GroupedMeZO(twin.named_parameters(), 1e-3, groups=3, eps=1e-2)
    for step in range(1, 5):
        theirs = plain.step(lambda step=step: cast(twin, batch_of(step)))
        assert (
            abs(engine.step(batch_of(step)).item() - theirs.item()) <= 2.0**-8 * theirs.item()
        )  # bfloat16's half unit
    assert engine.mode == "graph", engine.reason
