"""Helene and MeZO as torch optimizers: checkpoints, groups, chunks, layers, bad input, imports."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import helene
from helene.evaluation.directions import CHUNK
from tests.core.small_problem import BATCH, problem


@pytest.mark.parametrize("make", ["mezo", "helene"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_state_dict_and_pickle_continue_bit_for_bit(make, dtype):
    def build(model):
        if make == "mezo":
            return helene.MeZO(model.named_parameters(), 1e-2, seed=4, model=model)
        groups = helene.layer_groups(model)
        return helene.Helene(groups, lambda t: 0.1 / t, anneal_horizon=20, batch_size=BATCH, interval=2, seed=4)

    model, loss, _, batch = problem(dtype)
    optimizer = build(model)
    for _ in range(3):
        optimizer.step(loss)
    buffer = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), buffer)
    buffer.seek(0)
    weights, state = torch.load(buffer, weights_only=True)
    other, other_loss, _, _ = problem(dtype)
    other.load_state_dict(weights)
    resumed = build(other)
    resumed.load_state_dict(state)
    twin, twin_optimizer = copy.deepcopy((model, optimizer)) if make == "mezo" else (None, None)
    for _ in range(3):
        optimizer.step(loss)
        resumed.step(other_loss)
        if twin:
            twin_optimizer.step(lambda: F.cross_entropy(twin(batch[0]), batch[1]))
    for others in (other, twin):
        if others:
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), others.parameters(), strict=True))
    if make == "mezo":
        assert len(pickle.dumps(optimizer)) > 0


@pytest.mark.filterwarnings("ignore:.*pairs of losses differ")  # of 16 bits, with the parameters
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_bit_moves_at_learning_rate_zero(dtype):
    model, loss, _, _ = problem(dtype)
    with torch.no_grad():
        model[0].weight[0] = -0.0
    before = copy.deepcopy(model.state_dict())
    for optimizer in (
        helene.MeZO(model.named_parameters(), 0.0, model=model),
        helene.Helene(model.named_parameters(), 0.0, anneal_horizon=9, batch_size=BATCH),
    ):
        for _ in range(50):
            optimizer.step(loss)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model[0].weight[0].signbit().all()


@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_a_failing_closure_changes_nothing(fail_at):
    """Whichever call fails, parameters, state and step stay, and the run goes on as if nothing had happened."""
    model, loss, _, _ = problem()
    straight, straight_loss, _, _ = problem()

    def build(m):
        return helene.Helene(m.named_parameters(), 0.1, anneal_horizon=9, batch_size=BATCH, curvature="backprop")

    optimizer, other = build(model), build(straight)
    optimizer.step(loss)
    other.step(straight_loss)
    calls = iter(range(9))

    def flaky():
        if next(calls) == fail_at:
            return torch.tensor(float("nan"))
        return loss()

    optimizer.param_groups[0]["interval"] = other.param_groups[0]["interval"] = 1
    with pytest.raises(FloatingPointError, match="unchanged"):
        optimizer.step(flaky)
    assert optimizer.param_groups[0]["step"] == 1
    optimizer.step(loss)
    other.step(straight_loss)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), straight.parameters(), strict=True))


def test_named_layers_may_be_reordered():
    model, loss, _, _ = problem()
    other, other_loss, _, _ = problem()
    groups = helene.layer_groups(other)[::-1]
    a = helene.Helene(helene.layer_groups(model), 0.1, anneal_horizon=9, batch_size=BATCH)
    b = helene.Helene([{**g, "params": g["params"][::-1]} for g in groups], 0.1, anneal_horizon=9, batch_size=BATCH)
    for _ in range(3):
        a.step(loss)
        b.step(other_loss)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_chunks_and_strides_do_not_matter():
    """A parameter of several chunks, transposed: same trajectory as its contiguous twin."""
    base = torch.randn(3, CHUNK // 2)
    flat, strided = nn.Parameter(base.clone()), nn.Parameter(base.t().contiguous().t())
    assert not strided.is_contiguous()
    for p in (flat, strided):
        optimizer = helene.Helene([p], 1e-3, anneal_horizon=9, batch_size=1)
        for _ in range(2):
            optimizer.step(lambda p=p: p.double().square().mean())
    assert torch.equal(flat, strided)


def test_torch_schedulers_drive_the_learning_rate():
    model, loss, _, _ = problem()
    optimizer = helene.MeZO(model.named_parameters(), 0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    optimizer.step(loss)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_group_added_later_joins_at_the_current_step():
    model, loss, _, _ = problem()
    optimizer = helene.MeZO(model[0].parameters(), 0.1)
    optimizer.step(loss)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    before = model[2].weight.detach().clone()
    optimizer.step(loss)
    assert {g["step"] for g in optimizer.param_groups} == {2}
    assert not torch.equal(before, model[2].weight)


def test_a_frozen_parameter_stays_and_may_be_thawed():
    model, loss, _, _ = problem()
    model[0].weight.requires_grad_(False)
    optimizer = helene.MeZO(model.named_parameters(), 0.1, model=model)
    before = model[0].weight.detach().clone()
    optimizer.step(loss)
    assert torch.equal(before, model[0].weight)
    model[0].weight.requires_grad_(True)
    optimizer.step(loss)
    assert not torch.equal(before, model[0].weight)


GOOD = {"anneal_horizon": 10, "batch_size": 4}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"eps": 0.0}, "eps must be positive, got 0.0; 1e-3 is usual"),
        ({"eps": float("nan")}, "eps must be positive, got nan"),
        ({"lr": -1.0}, "lr must be a finite number, 0 or above, got -1.0"),
        ({"beta1": 1.0}, r"beta1 must be in \[0, 1\), got 1.0"),
        ({"beta2": -0.1}, r"beta2 must be in \[0, 1\), got -0.1"),
        ({"interval": 0}, "interval must be an integer, 1 or above, got 0"),
        ({"first_estimate": 0}, "first_estimate must be an integer, 1 or above"),
        ({"gamma": 0.0}, "gamma must be positive"),
        ({"floor": 0.0}, "floor must be positive, got 0.0; the paper"),
        ({"floor": [1.0, 2.0]}, "floor has 2 values for 1 layers"),
        ({"denominator_eps": -1.0}, "denominator_eps must be a finite number"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number"),
        ({"anneal_horizon": 0}, "anneal_horizon must be positive"),
        ({"batch_size": None}, "batch_size must be the number of examples"),
        ({"curvature": "hutchinson"}, "curvature must be one of spsa, .*got 'hutchinson'"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_bad_hyper_parameters(changes, text):
    with pytest.raises(ValueError, match=text):
        helene.Helene([nn.Parameter(torch.ones(2))], **{**GOOD, **changes})


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ([], "empty parameter list"),
        ([nn.Parameter(torch.ones(2), requires_grad=False)], "no parameter requires a gradient; unfreeze"),
        (
            [nn.Parameter(torch.ones(2, dtype=torch.complex64))],
            "at position 0 is torch.complex64; supported are float64",
        ),
        ([nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn))], "float8_e4m3fn; supported"),
        ([{"params": [("w", nn.Parameter(torch.ones(2)))]}, {"params": [("w", nn.Parameter(torch.ones(2)))]}], "share"),
    ],
)
def test_bad_parameters(params, text):
    for build in (helene.MeZO, lambda p: helene.Helene(p, **GOOD)):
        with pytest.raises(ValueError, match=text):
            build(params)


def test_integer_parameters_can_only_be_frozen():
    p = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        helene.MeZO([p])


def test_missing_curvature_closure():
    model, loss, _, _ = problem()
    optimizer = helene.Helene(model.named_parameters(), curvature="sampled_labels", anneal_horizon=9)
    with pytest.raises(ValueError, match=r"needs step\(closure, curvature_closure\)"):
        optimizer.step(loss)
    with pytest.raises(ValueError, match=r"logits of shape \(..., num_classes\), got \(\)"):
        optimizer.step(loss, loss)


def test_state_bytes():
    """As documented: m and h in float32 for 16-bit parameters; only m without a curvature source; none for MeZO."""
    p = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    for source, tensors in (("spsa", 2), ("none", 1)):
        optimizer = helene.Helene([p], curvature=source, rounding="stochastic", **GOOD)
        optimizer.step(lambda: p.float().square().mean())
        assert sum(v.nbytes for v in optimizer.state[p].values()) == tensors * 4000
    optimizer = helene.MeZO([p], rounding="stochastic")
    optimizer.step(lambda: p.float().square().mean())
    assert not optimizer.state[p]


def test_layers_follow_the_structure():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Linear(2, 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(5, 2)
            self.h = nn.ModuleList([Block(), Block()])
            self.norm = nn.LayerNorm(2)
            self.head = nn.Linear(2, 5, bias=False)
            self.head.weight = self.tokens.weight

    groups = helene.layer_groups(Model())
    found = {g["layer"]: [n for n, _ in g["params"]] for g in groups}
    assert found == {
        "embeddings": ["tokens.weight"],
        "h.0": ["h.0.mix.weight", "h.0.mix.bias"],
        "h.1": ["h.1.mix.weight", "h.1.mix.bias"],
        "head": ["norm.weight", "norm.bias"],
    }
    with pytest.raises(ValueError, match="no parameter of the model requires"):
        helene.layer_groups(nn.ReLU())


def test_core_imports_torch_and_numpy_only():
    """The rule of imports, held by a process in which everything else is blocked."""
    others = ["scipy", "sympy", "sklearn", "numba", "matplotlib", "jinja2", "rich", "transformers", "triton"]
    blocked = [*others, "helene.lab"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import helene; helene.MeZO; print('ok')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "ok", result.stderr
