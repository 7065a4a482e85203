"""Kernels on a GPU against numpy's noise, torch's arithmetic and the generic loop of the optimizers."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from kernel_updates import FIRST_ORDER, along, by_kernels, by_torch, gradients_of, watch_launches, with_state

from helene import (
    FZOO,
    SGD,
    Adam,
    AdamW,
    Helene,
    Lion,
    MeZO,
    ZOAdam,
    ZOAdamW,
    ZOConservative,
    ZOLion,
    ZOMomentum,
    ZOSign,
    noise,
)
from helene.kernels.tiles import Piece, Tiles
from helene.noise import torch_generator
from helene.steps.fused import launches

pytestmark = pytest.mark.gpu

BOUND = 8 * 2.0**-24  # of the design, for accurate functions
FAST_BOUND = 4e-6  # and with a fast cosine
KEY = (2**63 + 12345, 2**31 + 7, 5, 2**47 + 99)


@pytest.mark.parametrize("rounds", [7, 10])
@pytest.mark.parametrize(("start", "count"), [(0, 100_003), (5, 70_001), (2**33 + 1, 4096)])
def test_integers_are_numpys(device: torch.device, rounds: int, start: int, count: int) -> None:
    from helene.kernels import launch

    got = launch.fill(*KEY, start, count, device, raw=True, rounds=rounds).cpu().numpy().view(np.uint32)
    expected = noise.integers(*KEY, start, count, rounds)
    assert np.array_equal(got, expected)
    slow = torch_generator.words(*KEY, start, count, device, rounds).cpu().numpy().view(np.uint32)
    assert np.array_equal(slow, expected)


def test_normals_are_within_the_designs_bound(device: torch.device) -> None:
    """4 million elements; the reference is numpy's float32, itself within the bound of the truth."""
    from helene.kernels import launch

    expected = noise.normal(*KEY, 3, 1 << 22)
    for bound, got in (
        (FAST_BOUND, noise.normal(*KEY, 3, 1 << 22, device)),
        (BOUND, launch.fill(*KEY, 3, 1 << 22, device, fast=False)),
        (BOUND, torch_generator.normal(*KEY, 3, 1 << 22, device, noise.ROUNDS)),
    ):
        error = ((got.cpu() - expected).abs() / expected.abs().clamp_min(1.0)).max().item()
        assert error <= bound, f"{error * 2**24} units of 2^-24"


@pytest.mark.parametrize(("fast", "bound"), [(True, FAST_BOUND), (False, BOUND)])
def test_no_angle_exceeds_the_bound(device: torch.device, fast: bool, bound: float) -> None:
    """All 2^24 angles at the largest radius, sqrt(66 ln 2), against float64 at the same rounded angle."""
    import triton
    import triton.language as tl

    from helene.kernels.philox import wave

    @triton.jit
    def waves(out, FAST: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
        k = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        cos, sin, flip = wave((k << 8).to(tl.uint32), FAST)
        sign = tl.where(flip < 0, -1.0, 1.0)
        tl.store(out + k, cos * sign)
        tl.store(out + 16777216 + k, sin * sign)

    got = torch.empty(2, 1 << 24, device=device)
    waves[((1 << 24) // 1024,)](got, fast, 1024)
    angles = (torch.arange(1 << 24, device=device).float() * np.float32(2 * np.pi / 2**24)).double()
    for found, exact in ((got[0], angles.cos()), (got[1], angles.sin())):
        radius = (66 * np.log(2.0)) ** 0.5
        error = (radius * (found.double() - exact).abs() / (radius * exact.abs()).clamp_min(1.0)).max().item()
        assert error <= bound, error


def test_words_and_signs_are_the_cpus(device: torch.device) -> None:
    assert torch.equal(noise.words(*KEY, 3, 9999, device).cpu(), noise.words(*KEY, 3, 9999))
    assert torch.equal(noise.signs(*KEY, 3, 9999, device).cpu(), noise.signs(*KEY, 3, 9999))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shapes", [[(64, 256), (8,), (4096,), (3, 1028)], [(33, 101), (5,), (2049,), (1, 7)]])
def test_perturbed_copies_are_torchs(device: torch.device, dtype: torch.dtype, shapes: list[Any]) -> None:
    """To the bit, given the same z: one fused multiply-add in float32, one rounding. Gaps between copies stay."""
    from helene.kernels import launch

    thetas = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    kept = [theta.clone() for theta in thetas]
    offsets = [0]
    for theta in thetas:
        offsets.append(offsets[-1] + -(-theta.numel() // 128) * 128)
    tiles = Tiles([Piece(theta, 77 + i, offsets[i]) for i, theta in enumerate(thetas)])
    control = torch.tensor(launch.control_words(*KEY[:3]), device=device)
    values = torch.tensor([1e-3, 0, 0, 0], device=device)
    for signs, draw in itertools.product(((1, -1), (1,), (-1,)), (noise.normal, noise.signs)):
        out = {sign: torch.full((offsets[-1],), 7.0, device=device, dtype=dtype) for sign in signs}
        launch.perturb(tiles, out.get(1), out.get(-1), control, values, signs=draw is noise.signs)
        for i, theta in enumerate(thetas):
            z = draw(*KEY[:3], 77 + i, 0, theta.numel(), device).view(theta.shape)
            for sign, buffer in out.items():
                got = buffer[offsets[i] : offsets[i] + theta.numel()].view(theta.shape)
                assert torch.equal(got, torch.add(theta.float(), z, alpha=sign * 1e-3).to(dtype))
                assert (buffer[offsets[i] + theta.numel() : offsets[i + 1]] == 7).all()
    assert all(torch.equal(a, b) for a, b in zip(thetas, kept, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [36, 2048])
def test_gathered_rows_are_those_of_the_copy(device: torch.device, dtype: torch.dtype, columns: int) -> None:
    from helene.kernels import launch

    table = torch.randn(501, columns, device=device).to(dtype)
    tiles = Tiles([Piece(table, 3)])
    control = torch.tensor(launch.control_words(*KEY[:3]), device=device)
    values = torch.tensor([1e-2, 0, 0, 0], device=device)
    ids = torch.randint(0, 501, (3, 17), device=device)
    for sign in (1, -1):
        copy = torch.empty_like(table).view(-1)
        launch.perturb(tiles, copy if sign > 0 else None, copy if sign < 0 else None, control, values)
        assert torch.equal(launch.gather(tiles, ids, sign, control, values), copy.view_as(table)[ids])
    assert launch.gather(tiles, torch.tensor([501, -1], device=device), 1, control, values).isnan().all()


DECAYS = {"weight_decay": 0.1}
FULL = {"anneal_horizon": 100, "batch_size": 16, "interval": 2, "weight_decay": 0.1, "floor": [1.0, 0.3]}
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CASES: list[Any] = [  # each is a kernel to compile: the products of all of these run in the interpreter
    (MeZO, DECAYS, F32, "float32", "nearest"),
    (MeZO, DECAYS, BF16, "float32", "nearest"),
    (MeZO, DECAYS, BF16, "float32", "stochastic"),
    (MeZO, DECAYS, F16, "float32", "stochastic"),
    (MeZO, {**DECAYS, "distribution": "rademacher"}, BF16, "float32", "stochastic"),
    (ZOSign, DECAYS, BF16, "float32", "nearest"),
    (ZOConservative, {}, BF16, "float32", "nearest"),
    (ZOConservative, DECAYS, BF16, "float32", "nearest"),
    (ZOMomentum, DECAYS, BF16, "bfloat16", "nearest"),
    (ZOLion, DECAYS, BF16, "8bit", "nearest"),
    (ZOAdam, DECAYS, BF16, "float32", "nearest"),
    (ZOAdamW, DECAYS, BF16, "bfloat16", "stochastic"),
    (Helene, FULL, F32, "float32", "nearest"),
    (Helene, FULL, BF16, "bfloat16", "nearest"),
    (Helene, FULL, BF16, "8bit", "stochastic"),
    (Helene, {"anneal_horizon": 100, "curvature": "none"}, BF16, "bfloat16", "nearest"),
    (MeZO, {"num_directions": 3}, F32, "float32", "nearest"),
    (FZOO, {**DECAYS, "num_directions": 3}, F32, "float32", "nearest"),
    (FZOO, {"num_directions": 3}, BF16, "float32", "stochastic"),
]


SHAPES = [(33, 100), (5,), (4096,), (2, 1028)]


@pytest.mark.parametrize(("cls", "options", "dtype", "state_dtype", "rounding"), CASES)
def test_updates_are_the_generic_loops(
    device: torch.device, cls: Any, options: dict[str, Any], dtype: torch.dtype, state_dtype: str, rounding: str
) -> None:
    """Two steps. To the bit but for division and root (2 ulp in the update), and what rounding makes of these."""
    made = []
    for fused in (False, True):
        optimizer = with_state(
            cls, SHAPES, dtype, device, seed=KEY[0], state_dtype=state_dtype, rounding=rounding, **options
        )
        for choice in (-1.0, 0.0):
            assert launches.kernel_of(optimizer, optimizer.plan())
            slopes = [0.37, -0.2, 0.11][: options.get("num_directions", 1)]
            (by_kernels if fused else by_torch)(optimizer, [0.37, choice] if cls is ZOConservative else slopes)
        made.append(optimizer)
    _agree(made, dtype, state_dtype, [0.1] * len(SHAPES) if cls in (Helene, ZOAdam, ZOAdamW) else None)


GIVEN: list[Any] = [
    *((cls, options, F32, "float32", "nearest") for cls, options in FIRST_ORDER),
    (SGD, {"momentum": 0.9}, BF16, "float32", "stochastic"),
    (SGD, {}, F16, "float32", "nearest"),
    (Adam, DECAYS, BF16, "float32", "nearest"),
    (AdamW, DECAYS, BF16, "bfloat16", "stochastic"),
    (Lion, DECAYS, BF16, "8bit", "stochastic"),
]


@pytest.mark.filterwarnings("ignore:.* of the updates of 16-bit weights to rounding")
@pytest.mark.parametrize(("cls", "options", "dtype", "state_dtype", "rounding"), GIVEN)
def test_updates_along_a_gradient_in_memory_are_the_generic_loops(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, cls: Any, options: dict[str, Any], dtype: torch.dtype,
    state_dtype: str, rounding: str,
) -> None:  # fmt: skip
    """Two steps, the second with another lr and a gradient where the first was."""
    launched = watch_launches(monkeypatch)
    more = {"seed": KEY[0], "state_dtype": state_dtype, "rounding": rounding}
    made = [with_state(cls, SHAPES, dtype, device, **options, **more) for _ in range(2)]
    kept, moved = gradients_of(made[1], 0), [torch.zeros(shape, device=device) for shape in SHAPES]
    for step in (1, 2):
        before = [target.tensor.detach().float().clone() for target in made[0].targets]
        for sink, value in zip(kept, gradients_of(made[1], step), strict=True):
            sink.copy_(value)
        for optimizer, gradients in zip(made, (list(kept), kept), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / step
            along(optimizer, gradients)
        after = [target.tensor.detach().float() for target in made[0].targets]
        moved = [torch.maximum(most, (a - b).abs()) for most, a, b in zip(moved, after, before, strict=True)]
    assert len(launched) == 2
    _agree(made, dtype, state_dtype, moved if cls in (Adam, AdamW) else None, coupled=cls is Adam)


def _agree(
    made: list[Any], dtype: torch.dtype, state_dtype: str, moved: list[Any] | None, coupled: bool = False
) -> None:
    """The loop's and the kernels' parameters and state after two steps.

    ``moved`` bounds what a step of a method that divides moves, element by element. Each step is off by 2 ulp of that
    and one of theta. With a ``coupled`` decay state sees theta.
    """
    for index, (a, b) in enumerate(zip(made[0].targets, made[1].targets, strict=True)):
        p, q, eps = a.tensor.float(), b.tensor.float(), torch.finfo(dtype).eps
        apart = (p - q).abs()
        if moved is None and state_dtype != "8bit":
            assert torch.equal(p, q)
        else:
            ulp = eps * (p.abs() + 2 * (0.1 if moved is None else moved[index]))
            assert (apart <= 2 * ulp).all(), f"{(apart / ulp).max()} ulp"
            if dtype != torch.float32:  # a bit of float32 seldom decides a rounding to 16
                assert (apart > 0).float().mean() <= 2e-3
        for name in made[0].state[a.tensor]:
            x, y = made[0].state[a.tensor][name], made[1].state[b.tensor][name]
            if x.dtype in (torch.int8, torch.uint8):  # the threshold of a stochastic rounding, off by some ulp
                assert (x.int() - y.int()).abs().max() <= 1
                assert (x != y).float().mean() <= 1e-3
            elif name.endswith("_scale") or state_dtype == "8bit":
                torch.testing.assert_close(x, y, rtol=1e-2, atol=0)  # after a code that differs
            elif coupled:
                decayed = DECAYS["weight_decay"] * apart.max().item()
                torch.testing.assert_close(x, y, rtol=4 * torch.finfo(torch.float32).eps, atol=decayed)
            else:
                assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_an_estimate_from_a_backward_is_taken_in_ahead_of_the_kernel(
    device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps: state to the bit, theta as above."""
    options = {**FULL, "interval": 1, "curvature": "backprop", "rounding": "stochastic"}
    looped, launched = (with_state(Helene, SHAPES, dtype, device, seed=KEY[0], **options) for _ in range(2))
    gradients = [torch.randn(shape, device=device) for shape in SHAPES]

    def two_steps(optimizer: Any) -> None:
        for _ in range(2):
            plan = optimizer.plan()
            method = launches.kernel_of(optimizer, launches.after_estimate(plan))
            assert (method is not None) is (optimizer is launched)
            optimizer.apply(plan, [0.37], (None, (gradients, plan.batch_size)))

    two_steps(launched)
    monkeypatch.setattr(launches, "kernel_of", lambda *_: None)
    two_steps(looped)
    for a, b in zip(looped.targets, launched.targets, strict=True):
        assert all(torch.equal(x, launched.state[b.tensor][name]) for name, x in looped.state[a.tensor].items())
        apart = (a.tensor.float() - b.tensor.float()).abs()
        assert (apart <= 2 * torch.finfo(dtype).eps * (a.tensor.float().abs() + 0.2)).all()


def test_the_optimizer_uses_the_kernels_and_agrees_with_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five steps of MeZO in float32 with the fused kernels and with plain torch: equal up to z's last bits."""
    made = []
    for choice in ("", "torch"):
        monkeypatch.setenv("HELENE_KERNELS", choice)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).to(device)
        x = torch.randn(16, 64, device=device)
        optimizer = MeZO(model.named_parameters(), lr=1e-3, seed=3, model=model)
        for _ in range(5):
            optimizer.step(lambda model=model, x=x: model(x).square().mean())
        made.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*made, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


class Layers(torch.nn.Module):
    """As many launches as there are modules, if each made its own: 32 small ones between two that are larger."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(large, 64), torch.nn.Linear(64, large)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


@pytest.mark.parametrize(
    ("large", "cls", "most"),
    [
        (100, MeZO, 3),  # all copies fit into what is held anyhow
        (1 << 15, MeZO, 2 * 3 + 1),  # 8 MiB an end, 0.5 MiB of layers: an end and the layers, or three blocks
        (1 << 15, Helene, 2 * 3 + 1),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_step_launches_by_block_and_waits_once(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, large: int, cls: Any, most: int, known: bool
) -> None:
    """The fifth step: no transfer is waited for but that of the two losses."""
    from helene.kernels import launch

    torch.manual_seed(0)
    net = Layers(large).to(device)
    ids, labels = torch.randint(0, 100, (2, 8, 16), device=device)
    options: dict[str, Any] = {"anneal_horizon": 100, "batch_size": 8} if cls is Helene else {}
    optimizer = cls(net.named_parameters(), 1e-4, model=net if known else None, **options)

    def closure() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(net(ids).flatten(0, 1), labels.flatten())

    for _ in range(4):
        optimizer.step(closure)
    counted = []
    for name in ("perturb", "update", "fill", "gather"):
        real = getattr(launch, name)
        monkeypatch.setattr(
            launch, name, lambda *a, real=real, name=name, **k: (counted.append(name), real(*a, **k))[1]
        )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            loss = optimizer.step(closure)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in said if "called a synchronizing" in str(w.message)]
    assert len(waits) == 1, [str(w.message) for w in waits]
    assert counted.count("update") == 1
    assert len(counted) == (3 if not known else counted.count("perturb") + 1)
    assert len(counted) <= most
    assert optimizer.scratch_bytes() <= (
        sum(p.nbytes for p in net.parameters()) if not known else max(4 << 20, 64 * large * 4 + (1 << 20))
    ) + 64 * len(optimizer.targets)
    assert loss.is_cuda


@pytest.mark.parametrize("known", [True, False])
def test_a_loss_that_is_not_finite_moves_nothing(device: torch.device, known: bool) -> None:
    """It is noticed where both losses are read, after the second forward."""
    net = torch.nn.Linear(8, 8).to(device)
    optimizer = Helene(net.named_parameters(), 1e-2, anneal_horizon=9, batch_size=4, model=net if known else None)
    x, factor = torch.randn(4, 8, device=device), torch.ones((), device=device)

    def closure() -> torch.Tensor:
        return net(x).square().mean() * factor

    for _ in range(3):
        optimizer.step(closure)
    kept = [p.detach().clone() for p in net.parameters()]
    factor.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="the loss is nan; parameters and state are unchanged"):
        optimizer.step(closure)
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        optimizer.check_closure(closure)
    assert all(map(torch.equal, kept, net.parameters()))
    assert optimizer.param_groups[0]["step"] == 3
    factor.fill_(1.0)
    optimizer.step(closure)
    assert not torch.equal(kept[0], net.weight)
