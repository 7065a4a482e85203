"""The captured step on a GPU against optimizer.step, and what can go wrong with it."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from engine_models import TiedModel, batch_of, loss
from torch import Tensor, nn

from helene import Helene, MeZO, Trajectory, ZOAdam, ZOConservative, ZONewton
from helene.engine import Engine

pytestmark = pytest.mark.gpu

SMALL_RING: dict[str, Any] = {"scratch_bytes": 1 << 16, "unit_bytes": 3000}


def _run(
    cls: Any, engine: dict[str, Any] | None, dtype: torch.dtype, steps: int = 12, **options: Any
) -> tuple[list[float], list[Tensor], Any]:
    torch.manual_seed(0)
    model = TiedModel().to("cuda", dtype)
    optimizer = cls(model.named_parameters(), seed=5, model=model, **options)
    made = None if engine is None else Engine(model, optimizer, loss, **engine)
    losses = []
    for step in range(steps):
        batch = {name: value.cuda() for name, value in batch_of(step).items()}
        value = made.step(batch) if made else optimizer.step(lambda b=batch: loss(model, b))
        losses.append(value)
    if made:
        made.flush()
    return [float(value) for value in losses], [p.detach().clone() for p in model.parameters()], made or optimizer


METHODS: list[Any] = [
    (MeZO, {"lr": 1e-3}),
    (MeZO, {"lr": lambda step: 1e-2 / step**2}),
    (MeZO, {"lr": 1e-3, "distribution": "rademacher"}),
    (Helene, {"lr": 1e-2, "anneal_horizon": 100, "batch_size": 16, "interval": 3}),
    (Helene, {"lr": 1e-2, "anneal_horizon": 100, "batch_size": 16, "interval": 3, "state_dtype": "8bit"}),
    (Helene, {"lr": 1e-4, "anneal_horizon": 100, "batch_size": 16, "interval": 5, "curvature": "backprop"}),
    (ZOAdam, {"lr": 1e-3, "state_dtype": "bfloat16"}),
    (ZONewton, {"lr": 1e-6, "batch_size": 16, "denominator_eps": 1.0}),
    (ZOConservative, {"lr": 1e-3}),
    (ZOConservative, {"lr": 3e-3, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("cls", "options"), METHODS)
@pytest.mark.parametrize(
    "engine",
    [{}, SMALL_RING, {**SMALL_RING, "concurrent": False}],
    ids=["whole", "ring", "turns"],
)
def test_the_trajectory_is_that_of_optimizer_step(cls: Any, options: dict[str, Any], engine: dict[str, Any]) -> None:
    """Float32, 12 steps. The forwards are the same operations, so their rounding agrees but for cuBLAS's choices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, weights, _ = _run(cls, None, torch.float32, **options)
        got, mine, made = _run(cls, engine, torch.float32, **options)
    assert made.mode == "graph"
    assert got == pytest.approx(expected, rel=1e-4)
    for a, b in zip(mine, weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("engine", [{}, {"scratch_bytes": 1 << 16}], ids=["whole", "ring"])
def test_compiled_blocks_give_the_trajectory_of_optimizer_step(engine: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, weights, _ = _run(MeZO, None, torch.float32, lr=1e-3)
        got, mine, made = _run(MeZO, {"compile": True, **engine}, torch.float32, lr=1e-3)
    assert made.mode == "graph"
    assert made.compiled
    assert got == pytest.approx(expected, rel=1e-4)
    for a, b in zip(mine, weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cls", [MeZO, Helene])
def test_learning_rate_zero_moves_no_bit(dtype: torch.dtype, cls: Any) -> None:
    torch.manual_seed(0)
    model = TiedModel().to("cuda", dtype)
    kept = copy.deepcopy(model.state_dict())
    more = {"anneal_horizon": 10, "batch_size": 4} if cls is Helene else {}
    optimizer = cls(model.named_parameters(), lr=0.0, seed=5, model=model, **more)
    engine = Engine(model, optimizer, loss, **SMALL_RING)
    batch = {name: value.cuda() for name, value in batch_of(0).items()}
    with torch.no_grad():
        before = loss(model, batch)
    for _ in range(200):
        engine.step(batch)
    engine.flush()
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(loss(model, batch), before)


def test_the_host_waits_for_nothing() -> None:
    torch.manual_seed(0)
    model = TiedModel().cuda()
    optimizer = Helene(model.named_parameters(), lr=1e-3, anneal_horizon=10, batch_size=4, seed=5, model=model)
    engine = Engine(model, optimizer, loss, **SMALL_RING)
    batch = {name: value.cuda() for name, value in batch_of(0).items()}
    for _ in range(3):
        engine.step(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(70):
            engine.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    engine.flush()
    assert optimizer.param_groups[0]["step"] == 73
    assert optimizer.diagnostics()["projected_gradient"]["count"] == 73


def test_shapes_change_and_buckets_join_them() -> None:
    torch.manual_seed(0)
    model = TiedModel().cuda()
    optimizer = MeZO(model.named_parameters(), lr=1e-3, seed=5, model=model)

    def masked(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())

    engine = Engine(model, optimizer, masked, buckets=(8, 16), padding={"ids": 0})
    for length in (5, 7, 8, 12, 6, 15, 9):
        batch = {name: value.cuda() for name, value in batch_of(length, length=length).items()}
        batch["attention_mask"] = torch.ones_like(batch["ids"])
        assert torch.isfinite(engine.step(batch))
    assert engine.mode == "graph"
    assert len(engine.schedules) == 2
    with pytest.raises(ValueError, match="above the largest bucket 16"):
        engine.step({"ids": torch.zeros(1, 17).long(), "attention_mask": torch.ones(1, 17)})


class Asking(TiedModel):
    """Its control flow depends on the data."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * (2.0 if ids.sum().item() % 2 else 1.0)


def test_what_cannot_be_captured_runs_without_a_graph() -> None:
    torch.manual_seed(0)
    model = Asking().cuda()
    optimizer = MeZO(model.named_parameters(), lr=1e-2, seed=5, model=model)
    engine = Engine(model, optimizer, loss)
    twin = copy.deepcopy(model)
    reference = MeZO(twin.named_parameters(), lr=1e-2, seed=5, model=twin)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(5):
            batch = {name: value.cuda() for name, value in batch_of(step).items()}
            mine, theirs = engine.step(batch), reference.step(lambda b=batch: loss(twin, b))
            assert float(mine) == pytest.approx(float(theirs), rel=1e-4)
    assert engine.mode == "eager"
    assert "cannot be captured" in engine.reason
    assert len({str(w.message) for w in said if "CUDA graph" in str(w.message)}) == 1
    model2 = TiedModel().cuda()  # and the next engine captures again
    second = Engine(model2, MeZO(model2.named_parameters(), lr=1e-2, model=model2), loss)
    for _ in range(3):
        second.step(batch)
    assert second.mode == "graph"


def test_dropout_is_refused() -> None:
    model = TiedModel(dropout=0.1).cuda()
    engine = Engine(model, MeZO(model.named_parameters(), model=model), loss)
    batch = {name: value.cuda() for name, value in batch_of(0).items()}
    with pytest.raises(ValueError, match="draws random numbers"):
        engine.step(batch)
    model.eval()
    engine.step(batch)


def test_a_loss_that_is_not_finite_moves_nothing_and_is_reported() -> None:
    torch.manual_seed(0)
    model = TiedModel().cuda()

    def scaled(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return loss(model, batch) * batch["factor"]

    optimizer = Helene(model.named_parameters(), lr=1e-2, anneal_horizon=10, batch_size=4, model=model)
    engine = Engine(model, optimizer, scaled)
    batch = {name: value.cuda() for name, value in batch_of(0).items()} | {"factor": torch.ones((), device="cuda")}
    for _ in range(3):
        engine.step(batch)
    kept = [p.detach().clone() for p in model.parameters()]
    state = [v.clone() for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    engine.step(batch | {"factor": torch.full((), torch.nan, device="cuda")})
    torch.cuda.synchronize()
    with pytest.raises(FloatingPointError, match="step 4"):
        engine.step(batch)
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))
    now = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(state, now, strict=True))
    engine.step(batch)
    assert not torch.equal(kept[0], next(iter(model.parameters())))


def test_a_loaded_state_and_a_changed_option_are_seen() -> None:
    torch.manual_seed(0)
    model = TiedModel().cuda()
    optimizer = ZOAdam(model.named_parameters(), lr=1e-2, seed=5, model=model)
    engine = Engine(model, optimizer, loss)
    batch = {name: value.cuda() for name, value in batch_of(0).items()}
    for _ in range(3):
        engine.step(batch)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        engine.step(batch)
    wanted = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    for _ in range(3):
        engine.step(batch)
    for a, b in zip(wanted, model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    optimizer.param_groups[0]["num_directions"] = 2
    with pytest.warns(UserWarning, match="optimizer.step"):
        engine.step(batch)
    assert engine.mode == "plain"


def test_trajectories_replay_to_the_bit() -> None:
    torch.manual_seed(0)
    model = TiedModel().to("cuda", torch.bfloat16)
    start = copy.deepcopy(model)
    optimizer = MeZO(model.named_parameters(), lr=1e-2, seed=5, model=model, rounding="stochastic")
    recorded = Trajectory.record(optimizer)
    engine = Engine(model, optimizer, loss, **SMALL_RING)
    for step in range(10):
        engine.step({name: value.cuda() for name, value in batch_of(step).items()})
    engine.flush()
    assert len(recorded) == 10
    recorded.replay(MeZO(start.named_parameters(), lr=1e-2, seed=5, model=start, rounding="stochastic"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), start.parameters(), strict=True))


@pytest.mark.llm
@pytest.mark.parametrize("tuning", ["full", "lora", "prefix"])
def test_a_transformers_model(tuning: str) -> None:
    """A small random OPT in bf16 with a padded batch, each way of tuning, against optimizer.step."""
    transformers = pytest.importorskip("transformers")
    from llm_bench.models.loading import LanguageModel
    from llm_bench.models.tuning import Tuning, prepare, trained

    config = transformers.OPTConfig(
        vocab_size=512, hidden_size=64, ffn_dim=256, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=128, word_embed_proj_dim=64, attn_implementation="helene",
    )  # fmt: skip
    results = []
    for engine_options in (None, SMALL_RING if tuning == "full" else {}):
        torch.manual_seed(0)
        module = transformers.OPTForCausalLM(config).to("cuda", torch.bfloat16).eval()
        prepare(LanguageModel(module, None, "causal", "tiny", "none", (), (), 128), Tuning(tuning))
        optimizer = MeZO(trained(module), lr=1e-3, eps=1e-2, seed=1, model=module, rounding="stochastic")
        engine = None if engine_options is None else Engine(module, optimizer, _lm_loss, **engine_options)
        losses = []
        for step in range(6):
            batch = {name: value.cuda() for name, value in batch_of(step, 4, 32, 512).items()}
            batch = {"input_ids": batch["ids"], "labels": batch["ids"], "attention_mask": torch.ones_like(batch["ids"])}
            batch["attention_mask"][0, :7] = 0
            value = engine.step(batch) if engine else optimizer.step(lambda m=module, b=batch: _lm_loss(m, b))
            losses.append(float(value))
        if engine:
            assert engine.mode == "graph", engine.reason
        results.append(losses)
    assert results[1] == pytest.approx(results[0], rel=2e-3)  # bf16 forwards


def _lm_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch, use_cache=False).loss
