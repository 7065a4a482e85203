"""Parameters, options and groups that cannot be: one clear error that names value, limit and way out."""

from __future__ import annotations

import gc
import inspect
import io
import typing
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import helene
from tests.optimizers.contract.contract_table import METHODS, one


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_parameters_that_cannot_be_trained(method):
    quantised = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    quantised.requires_grad = False
    with torch.inference_mode():
        inference = nn.Parameter(torch.ones(3))
    cases = [
        ([nn.Parameter(torch.ones(1).expand(3))], r"shape \(3,\) and strides \(0,\) has elements that share memory"),
        ([nn.Parameter(torch.ones(4).as_strided((3, 2), (1, 1)))], r"strides \(1, 1\) has elements that share memory"),
        ([inference], "made in torch.inference_mode and cannot be updated; clone"),
        ([nn.Parameter(torch.ones(3, dtype=torch.complex64))], "complex64; supported are float64, float32"),
        ([nn.Parameter(torch.ones(3, dtype=torch.float8_e4m3fn))], "float8_e4m3fn; supported are"),
        ([nn.Parameter(torch.ones(3).to_sparse())], "only dense parameters"),
        ([nn.Parameter(torch.ones(3, device="meta"))], "meta device; load the weights"),
        ([quantised], r"of torch\.int8 none can; tune floating-point ones"),
        ([quantised, nn.Parameter(torch.ones(3), requires_grad=False)], "a gradient; unfreeze those to be tuned"),
        ([], "empty parameter list"),
    ]
    for params, text in cases:
        with pytest.raises(ValueError, match=text):
            method.build(params, 0.1)
    with pytest.raises(ValueError, match=r"no parameter of the model requires .* of torch\.int8 none can; tune"):
        helene.layer_groups(nn.ParameterList([quantised]))
    with pytest.raises(TypeError, match=r"no argument 'lamda'.*; it takes lr, .*weight_decay"):
        method.build([one()], 0.1, lamda=3)
    method.build([quantised, one()], 0.1)  # frozen quantised weights are none of its business


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_directions": 0}, "num_directions must be an integer, 1 or above, got 0"),
        ({"num_directions": 1 << 15}, "num_directions must be below 32704"),
        ({"two_sided": "both"}, "two_sided must be one of True, False; got 'both'"),
        ({"distribution": "cauchy"}, "distribution must be one of gaussian, rademacher, sphere; got 'cauchy'"),
        ({"direction_per_layer": 2}, "direction_per_layer must be one of"),
        ({"rounding": "up"}, "rounding must be one of nearest, stochastic; got 'up'"),
        ({"state_dtype": torch.float16}, "state_dtype must be one of float32, bfloat16, 8bit; got torch.float16"),
        ({"seed": 1 << 64}, "seed must be below"),
        ({"lr": float("nan")}, "lr must be a finite number, 0 or above, got nan"),
        ({"weight_decay": True}, "weight_decay must be a finite number"),
        ({"lr": 1e300}, r"lr must be at most 3\.4e\+38, the largest float32, got 1e\+300"),
        ({"eps": "1e-3"}, "eps must be positive, got '1e-3'"),
        ({"eps": float("inf")}, "eps must be a finite number, 0 or above, got inf"),
    ],
)
def test_options(options, text):
    with pytest.raises(ValueError, match=text):
        helene.MeZO([one()], **{"lr": 0.1, **options})


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("ZOMomentum", {"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ("ZOAdam", {"beta2": 1.5}, r"beta2 must be in \[0, 1\)"),
        ("ZOAdam", {"denominator_eps": -1.0}, "denominator_eps must be a finite number"),
        ("ZOLion", {"beta1": -0.1}, r"beta1 must be in \[0, 1\)"),
        ("ZOSophia", {}, "batch_size must be the number of examples"),
        ("ZOSophia", {"batch_size": 2, "clip": 0.0}, "clip must be positive"),
        ("ZOSophia", {"batch_size": 2, "gamma": -1.0}, "gamma must be positive"),
        ("ZONewton", {"curvature": "none"}, "MeZO is the method without h"),
        ("HiZOO", {"smooth": 1.0}, r"smooth must be in \[0, 1\)"),
        ("HiZOO", {"distribution": "sphere"}, "distribution of HiZOO must be one of gaussian, rademacher"),
        ("FZOO", {"num_directions": 1}, "num_directions must be an integer, 2 or above"),
        ("SophiaG", {"curvature": "spsa", "batch_size": 2}, "needs probes; use 'backprop' or 'sampled_labels'"),
        ("SGD", {"momentum": -0.5}, r"momentum must be in \[0, 1\)"),
    ],
)
def test_arguments_of_methods(name, options, text):
    with pytest.raises(ValueError, match=text):
        getattr(helene, name)([one()], 0.1, **options)
    with pytest.raises(TypeError, match="two_sided"):
        helene.FZOO([one()], two_sided=True)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_an_unknown_argument_is_told_all_known_ones(method):
    """Those of the signature, and the keys of the typed ``options``."""
    with pytest.raises(TypeError, match=r"; it takes ") as told:
        method.build([one()], 0.1, foreign=3)
    signature = inspect.signature(method.cls).parameters
    (options,) = typing.get_args(typing.get_type_hints(method.cls.__init__)["options"])
    listed = str(told.value).partition("; it takes ")[2].split(", ")
    assert sorted(listed) == sorted({*signature, *typing.get_type_hints(options)} - {"params", "options"})


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("MeZO", {"learning_rate": 0.02}, "no argument 'learning_rate'; it takes lr, "),
        (
            "GroupedMeZO",
            {"group": 4},
            r"'group' \(did you mean 'groups'\?\); it takes lr, groups, momentum",
        ),
        (
            "Helene",
            {"floors": 1, "anneal_horizon": 9},
            r"'floors' \(did you mean 'floor'\?\); it takes lr, ",
        ),
        ("MeZO", {"num_direction": 2}, r"no argument 'num_direction' \(did you mean 'num_directions'\?\)"),
    ],
)
def test_what_was_meant_is_said_first(name, options, text):
    with pytest.raises(TypeError, match=text):
        getattr(helene, name)([one()], **options)


def test_helene_without_its_horizon():
    text = "Helene needs anneal_horizon; give T of the anneal: the steps of the run, or math.inf for no anneal"
    with pytest.raises(TypeError, match=text):
        helene.Helene([one()], batch_size=2)
    assert inspect.signature(helene.Helene).parameters["anneal_horizon"].default is inspect.Parameter.empty


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))], ids=["plain", "iterable"])
def test_a_module_in_the_place_of_its_parameters(method, model):
    text = rf"params must be parameters, got a module \({type(model).__name__}\); give model\.named_parameters\(\)"
    for params in (model, [model], model.named_modules(), [{"params": model}], [{"params": [("all", model)]}]):
        with pytest.raises(TypeError, match=text):
            method.build(params, 0.1)


@pytest.mark.parametrize(
    "options",
    [{"seed": np.int64(3)}, {"lr": np.float32(0.25)}, {"eps": np.float64(1e-3)}, {"weight_decay": np.int32(1)}],
)
def test_numbers_of_numpy_are_numbers(options):
    """As sweeps have them; each is taken for Python's own, in state_dicts too."""
    (name, value) = next(iter(options.items()))
    ends = []
    for given in (options, {name: value.item()}):
        p = one()
        optimizer = helene.MeZO([("p", p)], **{"lr": 0.1, **given})
        optimizer.step(lambda p=p: (p**2).sum())
        ends.append(p.detach().clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize("lr", [np.float32(0.5), lambda step: np.float64(0.5) / step], ids=["number", "function"])
def test_state_dicts_of_numpys_numbers_are_read_without_numpy(lr):
    """torch.load takes no class of numpy's unless it is told to."""
    p, file = one(), io.BytesIO()
    optimizer = helene.MeZO([("p", p)], lr=lr)
    optimizer.step(lambda: (p**2).sum())
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_one_value_for_the_whole_step():
    with pytest.raises(ValueError, match=r"eps belongs to the whole step, but groups have 0\.1 and others"):
        helene.MeZO([{"params": [one()]}, {"params": [one()], "eps": 0.1}])
    p = one()
    optimizer = helene.MeZO([p], 0.1)
    with pytest.raises(ValueError, match="num_directions belongs to the whole step"):
        optimizer.add_param_group({"params": [one()], "num_directions": 2})
    assert len(optimizer.param_groups) == 1
    optimizer.step(lambda: p.sum())


def test_two_optimizers_on_one_parameter():
    """In turn is an error, one after the other is not; a copy of the model is another parameter."""
    p = one()
    first, second = helene.MeZO([p], 0.1), helene.ZOAdam([p, one()], 0.1)
    first.step(lambda: p.sum())
    second.step(lambda: p.sum())
    second.step(lambda: p.sum())
    with pytest.raises(ValueError, match=r"parameter at position 0 has been stepped by another optimizer \(ZOAdam\)"):
        first.step(lambda: p.sum())
    resumed = helene.MeZO([p], 0.1)
    resumed.load_state_dict(first.state_dict())
    resumed.step(lambda: p.sum())
    assert resumed.param_groups[0]["step"] == 2


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_parameters_given_twice(method):
    """Whatever they are given as, iterators included; the optimizer that refuses a group goes on without it."""
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    p = tied[0].weight
    cases = [
        ([p, one(), p], "parameter 0 of group 0 is given again as parameter 2 of group 0 and would move twice a step"),
        (
            tied.named_parameters(remove_duplicate=False),
            r"parameter 0\.weight .* again as parameter 1\.weight of group 0",
        ),
        ([{"params": p}, {"params": [one(), p]}], "parameter 0 of group 0 is given again as parameter 1 of group 1"),
        ([{"params": iter(layer.named_parameters())} for layer in tied], "parameter weight of group 0 .* of group 1"),
    ]
    for params, text in cases:
        with pytest.raises(ValueError, match=text):
            method.build(params, 0.1)
    optimizer = method.build([p], 0.1)
    with pytest.raises(ValueError, match="parameter 0 of group 0 is given again as parameter 1 of group 1"):
        optimizer.add_param_group({"params": [one(), p]})
    assert len(optimizer.param_groups) == 1
    optimizer.step(lambda: p.square().sum())


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_misspelt_keys_of_groups(method):
    """Keys of the method, of names and of torch's schedulers are known; after those were added, checkpoints load."""
    p = one()
    for group in ({"layr": "a"}, {"model": None}, {"Lr": 0.1}):
        (key,) = group
        with pytest.raises(
            ValueError, match=f"group 1 has the key '{key}', which nothing .* params, .*lr, .*schedulers"
        ):
            method.build([{"params": [p]}, {"params": [one()], **group}], 0.1)
    with pytest.raises(ValueError, match="group 0 has the key 'parms'"):
        method.build([{"parms": [p]}], 0.1)
    with pytest.raises(ValueError, match="group 0 has no 'params'; it has lr"):
        method.build([{"lr": 0.1}], 0.1)

    optimizer = method.build([{"params": [("p", p)], "layer": "a", "name": "b", "lr": 0.2}], 0.1)
    with pytest.raises(ValueError, match="group 1 has the key 'layr'"):
        optimizer.add_param_group({"params": [("q", one())], "layr": "b"})
    torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False)
    optimizer.add_param_group({"params": [("q", one())], "initial_lr": 0.1})
    optimizer.param_groups[0]["of_a_user"] = 1
    groups = [{"params": [("p", p)]}, {"params": [("q", one())]}]
    again = method.build(groups, 0.1)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["of_a_user"] == 1
    assert [group["initial_lr"] for group in again.param_groups] == [0.1, 0.1]
    torch.optim.lr_scheduler.LambdaLR(again, lambda t: 0.5, last_epoch=3)


def test_a_group_that_is_deleted_is_told():
    p, q = one(), one()
    optimizer = helene.MeZO([{"params": [p]}, {"params": [q]}], 0.1)
    del optimizer.param_groups[1]
    with pytest.raises(ValueError, match=r"param_groups has 1 group, 2 were given; .* requires_grad_\(False\)"):
        optimizer.step(lambda: (p**2).sum())
    assert torch.equal(p, torch.ones(3))


def test_a_function_that_gave_nan_is_asked_again():
    """nan is not equal to itself, and was taken for an lr that was set by hand."""
    p, given = one(), iter([0.1, 0.1, float("nan"), 0.2])
    optimizer = helene.MeZO([p], lr=lambda step: next(given))
    optimizer.step(lambda: (p**2).sum())
    with pytest.raises(ValueError, match=r"lr must be a finite number, 0 or above, got nan"):
        optimizer.step(lambda: (p**2).sum())
    optimizer.step(lambda: (p**2).sum())
    assert (optimizer.steps_made, optimizer.param_groups[0]["lr"]) == (2, 0.2)


def test_learning_rates_that_leave_their_range():
    p = one()
    optimizer = helene.MeZO([p], lr=lambda t: 0.1 if t < 2 else float("nan"))
    optimizer.step(lambda: (p > 0).sum())
    with pytest.raises(ValueError, match="lr must be a finite number, 0 or above, got nan"):
        optimizer.step(lambda: (p > 0).sum())
    optimizer = helene.MeZO([p], 0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - 2 * t)
    optimizer.step(lambda: (p > 0).sum())
    scheduler.step()
    with pytest.raises(ValueError, match=r"lr must be a finite number, 0 or above, got -0\.1"):
        optimizer.step(lambda: (p > 0).sum())
    assert torch.equal(p, torch.ones(3))


def test_empty_layers_have_directions_too():
    empty, p = nn.Parameter(torch.ones(0, 3)), one()
    groups = [{"params": [empty]}, {"params": [p]}]
    optimizer = helene.MeZO(groups, 0.1, distribution="sphere", direction_per_layer=True)
    optimizer.step(lambda: p.square().sum())
    assert not torch.equal(p, torch.ones(3))


def test_optimizers_keep_no_dropped_parameter_alive():
    def train():
        p = one()
        helene.MeZO([p], 0.1).step(lambda: p.sum())
        return weakref.ref(p)

    reference = train()
    gc.collect()
    assert reference() is None


def test_parameters_that_were_changed_by_hand():
    p, q = one(), one()
    optimizer = helene.MeZO([("p", p), ("q", q)], 0.1)
    optimizer.param_groups[0]["params"].append(one())
    with pytest.raises(ValueError, match="group 0 has 3 parameters and 2 names; add parameters by add_param_group"):
        optimizer.step(lambda: p.sum() + q.sum())
    optimizer.param_groups[0]["params"].pop()
    optimizer.step(lambda: p.sum() + q.sum())


@pytest.mark.parametrize("name", ["interval", "first_estimate"])
def test_estimates_that_bias_correction_would_count_wrongly(name):
    p = one()
    options = {"batch_size": 2, "interval": 10, "bias_correction": True}
    optimizer = helene.Helene([p], 0.1, anneal_horizon=9, **options)
    for _ in range(12):
        optimizer.step(lambda: p.square().sum())
    optimizer.param_groups[0][name] = 2
    with pytest.raises(
        ValueError, match=r"of layer 0 were \(10, 1\) and are .* counts the estimates of h by them; set"
    ):
        optimizer.step(lambda: p.square().sum())
    optimizer.param_groups[0]["bias_correction"] = False
    optimizer.step(lambda: p.square().sum())
    loaded = helene.Helene([p], 0.1, anneal_horizon=9, **{**options, "interval": 3})
    loaded.load_state_dict(helene.Helene([p], 0.1, anneal_horizon=9, **options).state_dict())
    loaded.step(lambda: p.square().sum())
    loaded.param_groups[0]["interval"] = 3
    with pytest.raises(ValueError, match=r"were \(10, 1\) and are \(3, 1\)"):
        loaded.step(lambda: p.square().sum())


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay", "momentum"])
def test_hyper_parameters_of_several_numbers(name):
    """They broadcast over a parameter of as many elements, and ended a step half made over others."""
    p = torch.nn.Parameter(torch.ones(2))
    several = torch.tensor([0.1, 0.2])
    with pytest.raises(ValueError, match=rf"{name} must be one number, got a tensor of shape \(2,\); give each layer"):
        helene.ZOMomentum([p], **{"lr": 0.1, name: several})
    optimizer = helene.ZOMomentum([p], 0.1)
    optimizer.step(lambda: p.square().sum())
    optimizer.param_groups[0][name] = several
    with pytest.raises(ValueError, match=f"{name} must be one number"):
        optimizer.step(lambda: p.square().sum())
