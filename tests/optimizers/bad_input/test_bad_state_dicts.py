"""Saved states that do not fit: one clear error, nothing changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import helene
from tests.optimizers.contract.contract_table import METHODS, lora, one


def test_state_dicts_of_others():
    target = lora(torch.float32)
    optimizer = helene.ZOAdam(target.model.named_parameters(), 0.1)
    optimizer.step(target.loss)
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="state_dict is of method 'ZOAdam', this optimizer of 'ZOAdamW'"):
        helene.ZOAdamW(target.model.named_parameters()).load_state_dict(state)
    with pytest.raises(ValueError, match=r"first that differs is 0\.lora_a"):
        helene.ZOAdam(lora(torch.float16).model.named_parameters()).load_state_dict(state)
    wider = nn.Linear(9, 9)
    with pytest.raises(ValueError, match="belongs to 4 other parameters than these 2"):
        helene.ZOAdam(wider.named_parameters()).load_state_dict(state)
    with pytest.raises(ValueError, match="belongs to 4 other parameters"):  # names, so other directions
        helene.ZOAdam(target.model.parameters()).load_state_dict(state)
    with pytest.raises(ValueError, match="not made by an optimizer of helene"):
        optimizer.load_state_dict(torch.optim.Adam(target.model.parameters()).state_dict())
    old = {**state, "helene": {**state["helene"], "noise": "philox4x32-10/box-muller/0"}}
    with pytest.raises(ValueError, match="state_dict is of noise 'philox4x32-10"):
        optimizer.load_state_dict(old)
    helene_state = helene.Helene([one()], anneal_horizon=9, curvature="none").state_dict()
    with pytest.raises(ValueError, match=r"is of state \['momentum'\], this optimizer of \['momentum', 'curvature'\]"):
        helene.Helene([one()], anneal_horizon=9, batch_size=2).load_state_dict(helene_state)


@pytest.mark.parametrize("state_dtype", ["float32", "8bit"])
def test_state_dicts_that_are_damaged(state_dtype):
    """Nothing is changed by them; a parameter that joins late has state in them too."""
    p, q = one(), one()
    options = {"batch_size": 2, "state_dtype": state_dtype}
    optimizer = helene.ZOSophia([("p", p)], 0.1, **options)
    optimizer.step(lambda: p.square().sum())
    optimizer.add_param_group({"params": [("q", q)]})
    state = optimizer.state_dict()
    other = helene.ZOSophia([{"params": [("p", p)]}, {"params": [("q", q)]}], 0.1, **options)
    names = ["momentum", "curvature", "clipped"]
    for name in [*names, "momentum_scale"] if state_dtype == "8bit" else names:
        shape = r"\(\)" if name == "clipped" else r"\(1,\)" if name == "momentum_scale" else r"\(3,\)"
        cut = {**state, "state": {**state["state"], 1: {k: v for k, v in state["state"][1].items() if k != name}}}
        with pytest.raises(ValueError, match=f"no {name} of shape {shape} for parameter q; take a whole state_dict"):
            other.load_state_dict(cut)
        wrong = {**state, "state": {**state["state"], 1: {**state["state"][1], name: torch.ones(2)}}}
        with pytest.raises(ValueError, match=rf"has {name} of shape \(2,\) for parameter q, which needs {shape}; take"):
            other.load_state_dict(wrong)
        number = {**state, "state": {**state["state"], 1: {**state["state"][1], name: 1.0}}}
        with pytest.raises(ValueError, match=rf"has {name} as a float for parameter q, which needs {shape}; take"):
            other.load_state_dict(number)
    with pytest.raises(ValueError, match=r"no momentum of shape .* for parameter q"):
        other.load_state_dict({**state, "state": {0: state["state"][0]}})
    assert other.param_groups[0]["step"] == 0
    other.load_state_dict(state)
    other.step(lambda: p.square().sum() + q.square().sum())


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16", "8bit"])
def test_state_dicts_with_nan_or_infinity(method, state_dtype):
    """In every entry of floating-point numbers, the scales of 8-bit codes included; nothing is changed by them."""
    p = one()
    optimizer = method.build([("p", p)], 0.1, state_dtype=state_dtype)
    optimizer.step(lambda: p.square().sum())
    optimizer.state[p]["of_a_user"] = float("nan")  # is the user's
    state, other = optimizer.state_dict(), method.build([("p", p)], 0.1, state_dtype=state_dtype)
    entries = state["state"][0]
    floats = [name for name, stored in entries.items() if isinstance(stored, Tensor) and stored.is_floating_point()]
    assert len(floats) == len(optimizer.state_names)
    for name in floats:
        for bad in ("nan", "inf", "-inf"):
            spoilt = entries[name].clone()
            spoilt[-1] = float(bad)
            text = rf"has {bad} in {name} at element {spoilt.numel() - 1} for parameter p, .*take an earlier"
            with pytest.raises(ValueError, match=text):
                other.load_state_dict({**state, "state": {0: {**entries, name: spoilt}}})
    groups = [{**state["param_groups"][0], "lr": float("nan")}]
    with pytest.raises(ValueError, match="lr must be a finite number, 0 or above, got nan"):
        other.load_state_dict({**state, "param_groups": groups})
    assert other.param_groups[0]["step"] == 0
    assert other.param_groups[0]["lr"] == 0.1
    assert not other.state
    other.load_state_dict(state)
    assert set(other.state[p]) == {*entries}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "seed belongs to the whole step"),
        ({"step": 1.5}, "step must be an integer, 0 or above, got 1.5"),
        ({"step": -1}, "step must be an integer, 0 or above, got -1"),
        ({"lr": None}, "a group of the state_dict has no lr"),
        ({"step": None}, "a group of the state_dict has no step"),
    ],
    ids=["seed", "fraction", "negative", "no lr", "no step"],
)
def test_groups_of_a_state_dict_are_checked_before_anything_changes(change, message):
    def made():
        layers = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)]
        return helene.MeZO(layers, lr=0.1)

    optimizer, state = made(), made().state_dict()
    group = {**state["param_groups"][1], **change}
    spoilt = {key: value for key, value in group.items() if value is not None}
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict({**state, "param_groups": [state["param_groups"][0], spoilt]})
    assert [dict(group) for group in optimizer.param_groups] == before


def test_state_loaded_in_inference_mode_can_be_stepped():
    p = torch.nn.Parameter(torch.ones(4))
    optimizer = helene.ZOAdam([p], lr=0.1)
    optimizer.step(lambda: (p * p).sum())
    state = optimizer.state_dict()
    with torch.inference_mode():
        optimizer.load_state_dict(state)
    optimizer.step(lambda: (p * p).sum())


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "thawed"])
def test_parameters_frozen_or_thawed_since_the_last_step_are_known(frozen, tmp_path):
    """By state_dict, load_state_dict and recordings, before the next step sees them."""

    def made(when_built):
        first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
        second.requires_grad_(not frozen if when_built else frozen)
        optimizer = helene.ZOMomentum([("first", first), ("second", second)], 0.1)
        return first, second, optimizer

    first, second, optimizer = made(False)
    optimizer.step(lambda: first.sum() + second.sum())
    second.requires_grad_(not frozen)
    state = optimizer.state_dict()
    assert len(state["helene"]["parameters"]) == 2 - frozen
    assert optimizer.state_bytes() == 4 * (3 + 2 * (not frozen))
    assert optimizer.diagnostics()["layers"][0]["dimension"] == 3 + 2 * (not frozen)
    made(True)[2].load_state_dict(state)
    later = made(False)
    later[1].requires_grad_(not frozen)
    later[2].load_state_dict(state)
    helene.Trajectory.record(optimizer)
    optimizer.step(lambda: first.sum() + second.sum())


def test_a_model_frozen_as_a_whole_is_saved_as_it_was_trained():
    p = one()
    optimizer = helene.ZOMomentum([("p", p)], 0.1)
    optimizer.step(lambda: p.sum())
    before = optimizer.state_dict()["helene"]
    p.requires_grad_(False)
    assert optimizer.state_dict()["helene"] == before
