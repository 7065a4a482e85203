"""The Triton kernels in Triton's interpreter, against numpy's noise and the generic loop of the optimizers.

The interpreter multiplies and adds in two roundings where a GPU fuses them, and cuts float32 to bfloat16 instead of
rounding; what is exact on a GPU is exact there (tests/gpu).
"""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import shard_steps
import torch
from kernel_updates import FIRST_ORDER, along, by_kernels, by_torch, gradients_of, watch_launches, with_state

if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
    pytest.skip("for machines with triton and no GPU", allow_module_level=True)

from helene import (
    FZOO,
    Adam,
    AdamW,
    GroupedMeZO,
    Helene,
    MeZO,
    ZOAdam,
    ZOAdamW,
    ZOConservative,
    ZOLion,
    ZOMomentum,
    ZOSign,
    noise,
)
from helene.evaluation.blocks import Copies, Scratch
from helene.evaluation.curvature import Estimate, Source, a_gnb_of, by_chunks
from helene.evaluation.directions import Direction, Target
from helene.evaluation.grouped.factors import Factors
from helene.kernels import launch
from helene.kernels.tiles import Piece, Tiles
from helene.rules import SGDRule
from helene.steps.fused import launches, methods

CPU = torch.device("cpu")
KEY = (2**63 + 12345, 2**31 + 7, 5)
PARAMETER = 2**47 + 99
CONTROL = torch.tensor(launch.control_words(*KEY))
VALUES = torch.tensor([1e-3, 0.37, 1.0, 0.0])


@pytest.mark.parametrize("rounds", [7, 10])
def test_integers_are_numpys(rounds: int) -> None:
    for start, count in ((5, 3000), (2**33 + 1, 100)):
        got = launch.fill(*KEY, PARAMETER, start, count, CPU, raw=True, rounds=rounds).numpy().view(np.uint32)
        assert np.array_equal(got, noise.integers(*KEY, PARAMETER, start, count, rounds))


def test_normals_are_within_the_designs_bound() -> None:
    z, expected = launch.fill(*KEY, PARAMETER, 3, 40_000, CPU), noise.normal(*KEY, PARAMETER, 3, 40_000)
    assert ((z - expected).abs() / expected.abs().clamp_min(1.0)).max() <= 8 * 2.0**-24


def test_factors_of_groups_are_drawn_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice into the same memory, within the design's bound of numpy's; odd shapes start anywhere."""
    shapes = [(7, 5), (3,), (40, 24), (1, 1)]
    targets = [Target(torch.nn.Parameter(torch.zeros(shape)), 77 + i, "") for i, shape in enumerate(shapes)]
    made, reference = (Factors(targets, groups=3, rank=2) for _ in range(2))
    for step in (1, 2):
        reference.draw(5, step)
        monkeypatch.setenv("HELENE_KERNELS", "triton")
        made.draw(5, step)
        monkeypatch.delenv("HELENE_KERNELS")
        for i in range(len(shapes)):
            for a, b in zip(made.of(i), reference.of(i), strict=True):
                assert (a is None and b is None) or ((a - b).abs() / b.abs().clamp_min(1.0)).max() <= 8 * 2.0**-24


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shapes", [[(60, 64), (8,)], [(33, 61), (5,), (1, 7)]])
def test_perturbed_copies(dtype: torch.dtype, shapes: list[Any], signs: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    thetas = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    kept, offsets = [theta.clone() for theta in thetas], [0]
    for theta in thetas:
        offsets.append(offsets[-1] + -(-theta.numel() // 128) * 128)
    tiles = Tiles([Piece(theta, 77 + i, offsets[i]) for i, theta in enumerate(thetas)])
    plus, minus = (torch.full((offsets[-1],), 7.0, dtype=dtype) for _ in range(2))
    launch.perturb(tiles, plus, minus, CONTROL, VALUES, signs=signs)
    for i, theta in enumerate(thetas):
        z = (noise.signs if signs else noise.normal)(*KEY, 77 + i, 0, theta.numel()).view(theta.shape)
        for radius, buffer in ((1e-3, plus), (-1e-3, minus)):
            got = buffer[offsets[i] : offsets[i] + theta.numel()].view(theta.shape)
            exact = theta.double() + radius * z.double()
            # rounding of the result (bfloat16 is cut, float16 ends at 2^-24), sum and product, and z's own 8 units
            unit = torch.finfo(dtype).eps * (1.0 if dtype == torch.bfloat16 else 0.5)
            bound = unit * exact.abs() + 2.0**-24 * (exact.abs() + 9e-3 * z.double().abs().clamp_min(1.0))
            bound = bound + 2.0**-25 * (dtype == torch.float16)
            assert ((got.double() - exact).abs() <= bound).all()
            assert (buffer[offsets[i] + theta.numel() : offsets[i + 1]] == 7).all()
    assert all(torch.equal(a, b) for a, b in zip(thetas, kept, strict=True))


def test_parameters_of_several_dtypes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch a dtype, each copy in memory of its own, one not contiguous; again after both have moved."""
    monkeypatch.setenv("HELENE_KERNELS", "triton")
    dtypes = torch.float32, torch.bfloat16, torch.float32, torch.float32, torch.float64
    shapes = (33, 20), (64,), (5,), (0,), (7,)
    targets = [
        Target(torch.nn.Parameter(torch.randn(s).to(d)), 70 + i, "")
        for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    targets.append(Target(torch.nn.Parameter(torch.randn(6, 4).T), 80, ""))
    direction = Direction(*KEY)
    copies = Copies(targets, Scratch())
    for _ in range(2):
        copies.begin(direction, 1e-3)
        (block,), _ = copies.at(tuple(range(len(targets))), 0)
        for copy, target in zip(copies.write(block, direction, 1e-3).values(), targets, strict=True):
            z = noise.normal(*KEY, target.id, 0, copy.numel()).view(copy.shape)
            unit = 2.0**-7 if copy.dtype == torch.bfloat16 else 2.0**-22
            torch.testing.assert_close(copy, (target.tensor + 1e-3 * z).to(copy.dtype), rtol=unit, atol=1e-8)
            target.tensor.data = target.tensor.detach().clone()


@pytest.mark.parametrize("signs", [False, True])
def test_gathered_rows_are_those_of_the_copy(signs: bool) -> None:
    table = torch.randn(50, 36)
    tiles, copy, ids = Tiles([Piece(table, 3)]), torch.empty(50 * 36), torch.randint(0, 50, (2, 3))
    launch.perturb(tiles, None, copy, CONTROL, VALUES, signs=signs)
    assert torch.equal(launch.gather(tiles, ids, -1, CONTROL, VALUES, signs=signs), copy.view(50, 36)[ids])
    assert launch.gather(tiles, torch.tensor([50, -1]), 1, CONTROL, VALUES).isnan().all()


FULL = {"anneal_horizon": 100, "batch_size": 16, "interval": 2, "weight_decay": 0.1, "floor": [1.0, 0.3]}
DECAY = {"weight_decay": 0.1}
METHODS: list[Any] = [
    (MeZO, {}),
    (MeZO, DECAY),
    (MeZO, {**DECAY, "distribution": "rademacher"}),
    (ZOSign, DECAY),
    (ZOConservative, {}),
    (ZOConservative, DECAY),
    (ZOMomentum, DECAY),
    (ZOLion, DECAY),
    (ZOAdam, DECAY),
    (ZOAdamW, DECAY),
    (Helene, FULL),
    (Helene, {**FULL, "distribution": "rademacher"}),
    (Helene, {"anneal_horizon": 100, "curvature": "none"}),
    (MeZO, {"num_directions": 3}),
    (Helene, {**FULL, "num_directions": 2}),
    (FZOO, {**DECAY, "num_directions": 3}),
    (ZOConservative, {"num_directions": 2}),
]
STORAGE: list[Any] = [
    (torch.float32, "float32", "nearest"),
    (torch.bfloat16, "bfloat16", "stochastic"),
    (torch.float16, "8bit", "stochastic"),
]


def _optimizer(cls: Any, dtype: torch.dtype, **options: Any) -> Any:
    return with_state(cls, [(33, 20), (5,), (2, 516)], dtype, "cpu", seed=KEY[0], **options)


def _agree(generic: Any, fused: Any, dtype: torch.dtype) -> None:
    """Parameters and state are alike, up to the last bits of z or a root and what rounding makes of them."""
    for a, b in zip(generic.targets, fused.targets, strict=True):
        unit = 2 * torch.finfo(dtype).eps * (a.tensor.abs() + 0.2)  # some of Adam's updates are larger
        assert ((a.tensor - b.tensor).abs() <= unit).all()
        if dtype != torch.float32:
            assert (a.tensor != b.tensor).float().mean() <= 5e-3
        for name, x in generic.state[a.tensor].items():
            y = fused.state[b.tensor][name]
            if x.dtype in (torch.int8, torch.uint8):
                assert (x.int() - y.int()).abs().max() <= 1
                assert (x != y).float().mean() <= 5e-3
            else:
                torch.testing.assert_close(x, y, rtol=1e-2 if x.dtype == torch.bfloat16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize(("cls", "options"), METHODS)
@pytest.mark.parametrize(("dtype", "state_dtype", "rounding"), STORAGE)
def test_updates_are_the_generic_loops(
    cls: Any, options: dict[str, Any], dtype: torch.dtype, state_dtype: str, rounding: str
) -> None:
    """Two steps. z may differ in its last bits, and what rounding makes of it."""
    generic, fused = (_optimizer(cls, dtype, state_dtype=state_dtype, rounding=rounding, **options) for _ in range(2))
    for choice in (-1.0, 0.0):
        slopes = [0.37, -0.2, 0.11][: options.get("num_directions", 1)]
        scalars = [*slopes, choice] if cls is ZOConservative else slopes
        by_torch(generic, scalars)
        by_kernels(fused, scalars)
    _agree(generic, fused, dtype)


@pytest.mark.parametrize(
    ("groups", "rank", "momentum", "distribution", "dtype", "state_dtype", "rounding"),
    [
        (4, 1, 0.0, "gaussian", *STORAGE[0]),
        (3, 2, 0.9, "rademacher", *STORAGE[0]),
        (3, 2, 0.9, "gaussian", *STORAGE[1]),
        (4, 1, 0.0, "rademacher", *STORAGE[1]),
        (3, 2, 0.9, "gaussian", *STORAGE[2]),
    ],
)
def test_an_update_along_directions_of_low_rank_is_the_generic_loops(
    groups: int, rank: int, momentum: float, distribution: str, dtype: torch.dtype, state_dtype: str, rounding: str
) -> None:
    """Two steps, the second with others: sums of groups · rank products in another order, z off in its last bits."""
    options: dict[str, Any] = {"groups": groups, "rank": rank, "momentum": momentum, "distribution": distribution}
    options |= {"weight_decay": 0.1, "state_dtype": state_dtype, "rounding": rounding}
    shapes = [(33, 20), (5,), (2, 516), (32, 512)]  # the last has tiles of several rows
    made = [with_state(GroupedMeZO, shapes, dtype, "cpu", seed=KEY[0], **options) for _ in range(2)]
    for weights in ([0.3, -0.2, 0.11, 0.7], [-0.4, 0.1, 0.2, 0.3]):
        before = [t.tensor.detach().clone() for t in made[0].targets]
        by_torch(made[0], weights[:groups])
        by_kernels(made[1], weights[:groups])
    moved = [(t.tensor - p).abs().max() for t, p in zip(made[0].targets, before, strict=True)]
    assert min(moved) > 1e-3  # lr is 1e-2
    _agree(*made, dtype)


@pytest.mark.parametrize(("cls", "options"), FIRST_ORDER)
@pytest.mark.parametrize(("dtype", "state_dtype", "rounding"), STORAGE)
def test_updates_along_a_gradient_in_memory_are_the_generic_loops(
    cls: Any, options: dict[str, Any], dtype: torch.dtype, state_dtype: str, rounding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Three steps with other lr, written where the first gradient was, which is read where it lies."""
    monkeypatch.setenv("HELENE_KERNELS", "triton")
    launched = watch_launches(monkeypatch)
    options = {**options, "state_dtype": state_dtype, "rounding": rounding}
    generic, fused = (_optimizer(cls, dtype, **options) for _ in range(2))
    kept, tables = gradients_of(fused, 0), set()
    for step in (1, 2, 3):
        for each in (generic, fused):
            for group in each.param_groups:
                group["lr"] = 0.01 / step
        for sink, value in zip(kept, gradients_of(fused, step), strict=True):
            sink.copy_(value)
        along(generic, list(kept))
        assert len(launched) == step - 1
        along(fused, kept)
        tables.add(tuple(map(id, launches.tables(fused, fused.plan(), kept))))
    assert len(launched) == 3
    assert len(tables) == 1
    _agree(generic, fused, dtype)
    for a, b in zip(generic.targets, fused.targets, strict=True):
        ours, theirs = ([p, *optimizer.state[p].values()] for optimizer, p in ((generic, a.tensor), (fused, b.tensor)))
        assert cls in (Adam, AdamW) or all(map(torch.equal, ours, theirs)), "no root, so to the bit"


def test_a_table_takes_all_gradients_or_none() -> None:
    thetas, more = torch.zeros(2, 8), {"gradient": torch.zeros(8)}
    with pytest.raises(ValueError, match="1 of 2 parameters have a gradient"):
        Tiles([Piece(thetas[0], 1, **more), Piece(thetas[1], 2)])
    with pytest.raises(ValueError, match="one dtype and device"):
        Tiles([Piece(thetas[0], 1, gradient=torch.zeros(8, dtype=torch.bfloat16))])
    near = torch.zeros(24)
    assert [Tiles([Piece(near[:8], 1, gradient=near[i : i + 8])]).aligned for i in (8, 9)] == [True, False]


class _InterruptedOnce(Source):
    """ĥ = B ĝ ⊙ ĝ of given gradients; the third chunk is interrupted when it is first asked for."""

    name = "interrupted"
    uses_batch_size = True

    def __init__(self) -> None:
        self.asked = 0

    def estimate(self, optimizer: Any, plan: Any, gradient: Any, scalars: list[float], sample: Any) -> Estimate:
        """See `Source`."""
        found = a_gnb_of(by_chunks(sample), plan.batch_size)

        def estimate(*where: Any) -> torch.Tensor:
            self.asked += 1
            if self.asked == 3:
                raise KeyboardInterrupt
            return found(*where)

        return estimate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interrupted", [False, True])
def test_an_estimate_from_elsewhere_is_taken_in_ahead_of_the_kernel(
    dtype: torch.dtype, interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h is the loop's to the bit, since torch makes it; an interrupt leaves the step made."""
    options = {**FULL, "interval": 1, "rounding": "stochastic"}
    sources = [_InterruptedOnce() if interrupted else "backprop" for _ in range(2)]
    generic, fused = (_optimizer(Helene, dtype, curvature=source, **options) for source in sources)

    def two_steps(optimizer: Any) -> None:
        generator = torch.Generator().manual_seed(1)
        for step in (1, 2):
            plan = optimizer.plan()
            gradients = [torch.randn(t.tensor.shape, generator=generator) for t in optimizer.targets]
            sample = gradients if interrupted else (gradients, plan.batch_size)
            with pytest.raises(KeyboardInterrupt) if interrupted and step == 1 else nullcontext():
                optimizer.apply(plan, [0.37], (None, sample))

    two_steps(generic)
    launched, launch_all = [], launches.launch_all
    monkeypatch.setattr(launches, "launch_all", lambda *what: launched.append(launch_all(*what)))
    monkeypatch.setattr(launches, "kernel_of", lambda o, plan, _: methods.fused(plan, o.targets))
    two_steps(fused)
    assert len(launched) == 2
    for a, b in zip(generic.targets, fused.targets, strict=True):
        assert torch.equal(generic.state[a.tensor]["curvature"], fused.state[b.tensor]["curvature"])
        torch.testing.assert_close(
            generic.state[a.tensor]["momentum"], fused.state[b.tensor]["momentum"], rtol=1e-5, atol=1e-6
        )
        unit = 2 * torch.finfo(dtype).eps * (a.tensor.abs() + 0.2)
        assert ((a.tensor - b.tensor).abs() <= unit).all()


@pytest.mark.parametrize("state_dtype", ["bfloat16", "8bit"])
def test_a_narrow_h_is_estimated_by_the_loop(state_dtype: str) -> None:
    """The step reads h before it is rounded, and kernels only after that."""
    optimizer = _optimizer(Helene, torch.float32, **FULL, curvature="backprop", state_dtype=state_dtype)
    plan = optimizer.plan()
    assert plan.source is not None
    assert launches.after_estimate(plan) is plan
    assert "evaluated apart" in str(methods.fused(plan, optimizer.targets))


def test_nothing_moves_where_the_loss_was_not_finite() -> None:
    optimizer = _optimizer(Helene, torch.float32, **FULL)
    plan = optimizer.plan()
    method = methods.fused(plan, optimizer.targets)
    assert isinstance(method, methods.Fused)
    kept = [t.tensor.detach().clone() for t in optimizer.targets]
    state = [v.clone() for t in optimizer.targets for v in optimizer.state[t.tensor].values()]
    values = torch.tensor([1e-3, torch.nan, 0.0, 0.0])
    for tiles in launches.tables(optimizer, plan):
        launch.update(tiles, method.code, CONTROL, values, method.rows(plan))
    assert all(torch.equal(a, t.tensor) for a, t in zip(kept, optimizer.targets, strict=True))
    now = [v for t in optimizer.targets for v in optimizer.state[t.tensor].values()]
    assert all(torch.equal(a, b) for a, b in zip(state, now, strict=True))


def test_a_negative_zero_that_does_not_move_keeps_its_sign() -> None:
    p = torch.nn.Parameter(torch.tensor([-0.0, 0.0, 1.0, -0.0] * 32, dtype=torch.float16))
    optimizer = MeZO([p], lr=0.0)
    plan = optimizer.plan()
    method = methods.fused(plan, optimizer.targets)
    assert isinstance(method, methods.Fused)
    kept = p.detach().view(torch.int16).clone()
    for tiles in launches.tables(optimizer, plan):
        launch.update(tiles, method.code, CONTROL, VALUES, method.rows(plan))
    assert torch.equal(p.detach().view(torch.int16), kept)


def test_a_rules_subclass_is_not_taken_for_its_parent() -> None:
    class MyRule(SGDRule):
        pass

    class Mine(MeZO):
        RULE = MyRule

    optimizer = Mine([torch.nn.Parameter(torch.zeros(4))])
    assert methods.fused(optimizer.plan(), optimizer.targets) == "MyRule has no fused update"


@pytest.mark.parametrize(("method", "options", "dtype"), shard_steps.UPDATES)
def test_rows_of_a_shard_move_as_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, method: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    """To the bit: z and the words of rounding are functions of an element's place, and all else is by element."""
    monkeypatch.setenv("HELENE_KERNELS", "triton")
    for mine, whole in shard_steps.update_rows(monkeypatch, CPU, method, options, dtype):
        assert torch.equal(mine, whole)


@pytest.mark.parametrize("way", ["tensor", "engine"])
@pytest.mark.parametrize(("method", "options"), shard_steps.STEPS[1:])
def test_a_sharded_model_of_one_rank_makes_the_steps_of_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, method: Any, options: dict[str, Any], way: str
) -> None:
    monkeypatch.setenv("HELENE_KERNELS", "triton")
    with shard_steps.one_rank(CPU):
        shard_steps.check_steps(CPU, method, options, way)
