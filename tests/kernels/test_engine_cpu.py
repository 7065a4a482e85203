"""The engine without a GPU: schedules, turns and copies give the trajectory of optimizer.step, bit for bit."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from engine_models import TiedModel, batch_of, loss
from torch import Tensor, nn

from helene import FZOO, Helene, MeZO, ZOAdam, ZONewton
from helene.engine import Engine
from helene.engine.batches import Layout, pad_to_bucket
from helene.engine.groups import GroupEngine
from helene.engine.pairs.schedule import Call, make_schedule, trace
from helene.engine.sharded import sharded
from helene.engine.spreads import SpreadEngine
from helene.engine.tangents import TangentEngine
from helene.evaluation.directions import Target

RINGS: list[dict[str, Any]] = [
    {},
    {"scratch_bytes": 1 << 15, "unit_bytes": 3000},
    {"scratch_bytes": 12_800, "unit_bytes": 20_000},
]


def _run(
    cls: Any, engine: dict[str, Any] | None, dtype: torch.dtype, steps: int = 5, **options: Any
) -> tuple[list[float], list[Tensor], Any]:
    torch.manual_seed(0)
    model = TiedModel().to(dtype)
    optimizer = cls(model.named_parameters(), lr=1e-3, seed=5, model=model, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = None if engine is None else Engine(model, optimizer, loss, **engine)
        step = (lambda b: optimizer.step(lambda: loss(model, b))) if made is None else made.step
        losses = [float(step(batch_of(i))) for i in range(steps)]
    return losses, [p.detach().clone() for p in model.parameters()], made


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (MeZO, {}),
        (Helene, {"anneal_horizon": 100, "batch_size": 16, "interval": 2, "state_dtype": "8bit"}),
        (ZOAdam, {}),
        (ZONewton, {"batch_size": 16, "denominator_eps": 1.0}),
    ],
)
@pytest.mark.parametrize("engine", RINGS, ids=["whole", "ring", "narrow"])
def test_the_trajectory_is_that_of_optimizer_step(cls: Any, options: dict[str, Any], engine: dict[str, Any]) -> None:
    expected, weights, _ = _run(cls, None, torch.float32, **options)
    got, mine, made = _run(cls, engine, torch.float32, **options)
    assert got == expected
    assert all(torch.equal(a, b) for a, b in zip(mine, weights, strict=True))
    assert made.mode == "eager"
    assert made.reason == "no CUDA device"


@pytest.mark.parametrize("source", ["backprop", "spsa_own_batch"])
def test_estimates_of_a_batch_or_backward_of_their_own(source: str) -> None:
    """Made at every third step; losses, weights and h are those of plain steps."""
    options = {"eps": 1e-2, "anneal_horizon": 100, "batch_size": 4, "interval": 3, "floor": 0.1, "curvature": source}
    models, modes = [], []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(TiedModel())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, captured = (Helene(model.named_parameters(), 1e-5, model=model, **options) for model in models)
        engine = Engine(models[1], captured, loss, capture="repeat", **RINGS[1])
        for step in range(8):
            batch, other = batch_of(step), batch_of(step + 100)
            own = [None if source == "backprop" else (lambda m=model, b=other: loss(m, b)) for model in models]
            expected = plain.step(lambda b=batch: loss(models[0], b), own[0])
            assert torch.equal(engine.step(batch, own[1]), expected)
            modes.append(engine.mode)
    assert modes == ["eager", *["graph"] * 7]
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(plain.state[a]["curvature"], captured.state[b]["curvature"])


def test_learning_rate_zero_moves_no_bit_in_bfloat16() -> None:
    torch.manual_seed(0)
    model = TiedModel().to(torch.bfloat16)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(UserWarning, match="without a CUDA graph: no CUDA device"):
        engine = Engine(model, MeZO(model.named_parameters(), lr=0.0, model=model), loss, **RINGS[1])
    for step in range(20):
        engine.step(batch_of(step))
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


def test_an_exception_leaves_everything_as_before() -> None:
    torch.manual_seed(0)
    model = TiedModel()
    kept = [p.detach().clone() for p in model.parameters()]
    addresses = [p.data_ptr() for p in model.parameters()]
    optimizer = MeZO(model.named_parameters(), lr=1e-3, model=model)

    def failing(model: Any, batch: dict[str, Tensor]) -> Tensor:
        loss(model, batch)
        raise KeyError("boom")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = Engine(model, optimizer, failing, **RINGS[1])
    with pytest.raises(KeyError, match="boom"):
        engine.step(batch_of(0))
    assert addresses == [p.data_ptr() for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))
    assert optimizer.param_groups[0]["step"] == 0


def test_shapes_that_come_again_after_they_were_given_up_are_told_once() -> None:
    model = TiedModel()
    engine = Engine(model, MeZO(model.named_parameters(), model=model), loss, capture="repeat", max_shapes=2)
    told = []
    for length in (5, 6, 5, 7, 6, 5, 7):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine.step(batch_of(1, length=length))
        told.append([str(warning.message) for warning in caught])
    assert told[:4] == [[]] * 4
    assert told[5:] == [[]] * 2
    (text,) = told[4]
    assert text.startswith("batches take turns in more than max_shapes=2 shapes")


@pytest.mark.parametrize("name", ["max_shapes", "check_every", "unit_bytes"])
@pytest.mark.parametrize("value", [0, 1.5, None, True])
def test_a_number_that_is_none_is_refused(name: str, value: Any) -> None:
    model = TiedModel()
    with pytest.raises(ValueError, match=f"^{name} must be an integer, 1 or above, got {value}; .* is usual$"):
        Engine(model, MeZO(model.named_parameters(), model=model), loss, **{name: value})


def test_what_the_engine_cannot_do_is_done_by_the_optimizer_or_refused() -> None:
    model = TiedModel()
    with pytest.warns(UserWarning, match=r"made by optimizer\.step: FZOO measures something else than pairs"):
        engine = Engine(model, FZOO(model.named_parameters(), lr=1e-3, model=model), loss)
    engine.step(batch_of(0))
    assert engine.mode == "plain"
    with pytest.raises(ValueError, match=r"zeroth-order optimizer.*helene\.engine\.gradients\.GradientEngine takes"):
        Engine(model, torch.optim.SGD(model.parameters()), loss)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda batch: 0.0, "too many positional arguments"),
        (lambda model, batch, rows: 0.0, "missing a required argument: 'rows'"),
        (3, "3 does not take these two: 3 is not a callable object"),
        (torch.nn.Identity(), "too many positional arguments"),
    ],
)
def test_a_loss_that_takes_no_model_and_batch_is_refused(bad: Any, said: str) -> None:
    model = TiedModel()
    engine: Any
    for engine, method in ((Engine, MeZO), (SpreadEngine, FZOO)):
        with pytest.raises(ValueError, match=rf"calls loss\(model, batch\), and .*{said}.*; give a function"):
            engine(model, method(model.named_parameters()), bad)
    made = Engine(model, MeZO(model.named_parameters()), loss, capture="repeat")
    with pytest.raises(ValueError, match=r"calls loss\(model, batch\)"):
        made.loss = bad


def test_a_wrapped_loss_is_looked_at_from_outside() -> None:
    def scaled(model: Any, batch: Any, scale: float) -> torch.Tensor:
        return loss(model, batch) * scale

    @functools.wraps(scaled)
    def wrapped(model: Any, batch: Any) -> torch.Tensor:
        return scaled(model, batch, 2.0)

    model = TiedModel()
    Engine(model, MeZO(model.named_parameters()), wrapped, capture="repeat").step(batch_of(0))


@pytest.mark.parametrize("cls", ["mezo", torch.optim.AdamW])
def test_what_is_no_class_of_ours_is_not_sharded(cls: Any) -> None:
    with pytest.raises(ValueError, match=rf"class of helene, such as MeZO, got .*{getattr(cls, '__name__', cls)}"):
        sharded(cls, TiedModel())


@pytest.mark.parametrize("engine", [SpreadEngine, GroupEngine, TangentEngine])
def test_the_engine_that_captures_a_method_is_named(engine: Any) -> None:
    model = TiedModel()
    name = f"{engine.__module__}.{engine.__name__}"
    with pytest.warns(UserWarning, match=rf"something else than pairs of losses; {name} captures its steps"):
        Engine(model, engine.METHOD(model.named_parameters()), loss)


def test_dropout_is_refused() -> None:
    model = TiedModel(dropout=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = Engine(model, MeZO(model.named_parameters(), model=model), loss)
    with pytest.raises(ValueError, match="draws random numbers"):
        engine.step(batch_of(0))


def test_a_loss_in_16_bits_is_told_once() -> None:
    """Its pairs are equal or a unit in the last place apart."""
    model = TiedModel()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = Engine(model, MeZO(model.named_parameters(), model=model), lambda m, b: loss(m, b).bfloat16())
        for step in range(2):
            engine.step(batch_of(step))
    assert sum("the loss is in bfloat16" in str(warning.message) for warning in caught) == 1
    assert all(warning.filename == __file__ for warning in caught if "bfloat16" in str(warning.message))


def test_a_loss_that_is_not_finite_or_no_scalar_is_refused() -> None:
    for bad, error, text in (
        (lambda m, b: loss(m, b) * torch.nan, FloatingPointError, "the loss is nan"),
        (
            lambda m, b: m(b["ids"]),
            ValueError,
            r"loss returned torch.float32 of shape .*; it must return one real number",
        ),
        (
            lambda m, b: [m(b["ids"])],
            ValueError,
            "the loss returned a list; it must return a tensor with one real number",
        ),
    ):
        model = TiedModel()
        kept = [p.detach().clone() for p in model.parameters()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = Engine(model, MeZO(model.named_parameters(), model=model), bad)
        with pytest.raises(error, match=text):
            engine.step(batch_of(0))
        assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))


class Reordering(TiedModel):
    """Runs its blocks in an order that changes from one forward to the next."""

    count = 0

    def forward(self, ids: Tensor) -> Tensor:
        Reordering.count += 1
        blocks = list(self.blocks)[:: -1 if Reordering.count % 2 else 1]
        x = self.embed(ids)
        for block in blocks:
            x = block(x)
        return self.head(x * self.scale)


def test_a_model_without_a_fixed_order_is_refused() -> None:
    model = Reordering()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = Engine(model, MeZO(model.named_parameters(), model=model), loss, **RINGS[1])
    with pytest.raises(ValueError, match="changes from one forward to the next"):
        engine.step(batch_of(0))


def _targets(model: nn.Module) -> list[Target]:
    return [Target(p, i, name) for i, (name, p) in enumerate(model.named_parameters())]


@pytest.mark.parametrize("ring", [None, 12_800, 20_000, 1 << 16])
@pytest.mark.parametrize("unit", [1000, 5000, 1 << 20])
def test_no_unit_overwrites_one_that_may_still_be_read(ring: int | None, unit: int) -> None:
    model = TiedModel(depth=5)
    targets = _targets(model)
    calls = trace(model, targets, lambda: loss(model, batch_of(0)), lambda weight: False)
    schedule = make_schedule(targets, calls, {0}, unit, ring)
    for u, later in enumerate(schedule.units):
        end = later.start + (2 if later.together else 1) * later.size
        assert end <= schedule.ring_bytes
        assert later.after < u
        for v, earlier in enumerate(schedule.units[:u]):
            stop = earlier.start + (2 if earlier.together else 1) * earlier.size
            if earlier.start < end and later.start < stop:
                assert v <= later.after
    copied = [i for unit_ in schedule.units for i in unit_.owned]
    assert set(copied) | {0} | {i for i, t in enumerate(targets) if t.name == "scale"} == set(range(len(targets)))


def test_a_ring_that_is_too_small_is_refused() -> None:
    model = nn.Linear(100, 100)
    calls = [Call(model, (0, 1))]
    with pytest.raises(ValueError, match="must be at least 40704, the largest copy, got 1000"):
        make_schedule(_targets(model), calls, set(), 1 << 20, 1000)


def test_only_lookups_are_read_by_rows() -> None:
    model = TiedModel()
    calls = trace(model, _targets(model), lambda: loss(model, batch_of(0)), lambda weight: True)
    assert [call.rows for call in calls if call.module is model.embed] == [True]

    class Scaled(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * self.weight.norm()

    model.embed = Scaled(100, 16)
    calls = trace(model, _targets(model), lambda: loss(model, batch_of(0)), lambda weight: True)
    assert [call.rows for call in calls if call.module is model.embed] == [False]


def test_buckets_pad_what_has_the_length_and_nothing_else() -> None:
    batch = {"input_ids": torch.ones(2, 5).long(), "attention_mask": torch.ones(2, 5).long(), "kind": torch.zeros(2)}
    padding = {"input_ids": 7, "attention_mask": 0}
    left = pad_to_bucket(batch, (4, 8), padding, "left")
    assert left["input_ids"].tolist()[0] == [7, 7, 7, 1, 1, 1, 1, 1]
    assert left["attention_mask"].sum() == 10
    assert left["kind"] is batch["kind"]
    assert pad_to_bucket(batch, (4, 8), padding, "right")["input_ids"].tolist()[0] == [1, 1, 1, 1, 1, 7, 7, 7]
    with pytest.raises(ValueError, match="above the largest bucket 4"):
        pad_to_bucket(batch, (4,), padding, "left")
    with pytest.raises(ValueError, match="no padding value"):
        pad_to_bucket(batch | {"extra": torch.ones(2, 5)}, (8,), padding, "left")
    with pytest.raises(ValueError, match="attention_mask"):
        pad_to_bucket({"input_ids": torch.ones(2, 5)}, (8,), padding, "left")


def test_a_batch_of_unknown_things_is_refused() -> None:
    with pytest.raises(ValueError, match="give tensors, numbers and text"):
        Layout({"x": torch.ones(2), "y": object()})
    with pytest.raises(ValueError, match=r"a tensor of layout torch\.sparse_coo; give dense ones"):
        Layout({"x": torch.ones(2).to_sparse()})
