"""The shapes that public signatures state, resolved and checked; users pay nothing for them."""

from __future__ import annotations

import typing

import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import jaxtyped
from torch import Tensor

import synthetic.problems.base
import synthetic.simulation.simulator
from synthetic.measure import OtherPrograms, measure_speed
from synthetic.methods import METHODS
from synthetic.methods.scale import scale_of
from synthetic.problems import build
from synthetic.problems.base import Problem
from synthetic.problems.starts import starts
from synthetic.simulation.simulator import simulate
from synthetic.simulation.speed import compare, directions_over_randn, share_of_floor

SPECS = [
    {"kind": "log_cosh", "layers": [[2, 3], [1, 4]]},
    {"kind": "coupled", "layers": [[2, 3]], "nu": 1.5},
    {"kind": "regression", "layers": [[2, 6]], "data": "iris", "l2": 0.1},
]


def hints_of(function):
    names = {"Float": jaxtyping.Float, "Tensor": Tensor, "Self": object}
    return typing.get_type_hints(function, localns=names)


@pytest.mark.parametrize("spec", SPECS, ids=[s["kind"] for s in SPECS])
def test_problems_keep_their_shapes(spec):
    problem = build(spec)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 5, problem.layers.d)))
    p = problem.features(x)
    arguments = {"x": x, "theta": x, "p": p, "s": problem.slope(p)}
    checked = 0
    for name in ("features", "pullback", "slope", "gap", "gap_below", "loss", "gradient", "hessian", "diagonal"):
        hints = hints_of(getattr(Problem, name))
        given = {key: arguments[key] for key in hints if key != "return"}
        result = getattr(problem, name)(**given)
        with jaxtyped("context"):
            for key, value in given.items():
                assert isinstance(value, hints[key]), (name, key, tuple(value.shape))
            assert isinstance(result, hints["return"]), (name, tuple(result.shape))
        checked += 1
    assert checked == 9


def test_a_wrong_shape_is_seen():
    """The false twin: the check tells d from p."""
    hints = hints_of(Problem.pullback)
    with jaxtyped("context"):
        assert isinstance(torch.zeros(2, 7), hints["s"])
        assert not isinstance(torch.zeros(3, 5), hints["return"]), "another batch"


def test_the_simulator_takes_what_it_says():
    problem = build(SPECS[0])
    x0 = starts(problem, "coordinate", 1.0, [1, 2])
    hints = hints_of(simulate)
    with jaxtyped("context"):
        assert isinstance(x0, hints["x0"])
    settings = [METHODS["mezo"].settings({"q": 1.0}, scale_of(problem, x0[0], 0.1), problem)]
    out = simulate(problem, METHODS["mezo"], x0, [1, 2], settings, target=0.1, budget=500)
    assert out.steps.shape == out.status.shape == out.stopped.shape == (2, 1)


def test_names_of_shapes_are_imported_for_checkers_only():
    for module in (synthetic.problems.base, synthetic.simulation.simulator):
        assert not hasattr(module, "Float")


def test_a_batch_beats_the_loop():
    """At least 20x, the promise; measured hundreds, so noise cannot reach it."""
    assert compare("mezo", n=4, width=16, num_steps=40, repeats=1).ratio >= 20


def test_the_share_of_the_floor_and_of_others_are_numbers():
    """Run on machines that are busy, so that only the kind of number is checked."""
    others = OtherPrograms()
    assert share_of_floor(2, 8, num_steps=32, rounds=1) > 0
    assert directions_over_randn(8, num_steps=8, rounds=2) > 0
    assert 0 <= others.share() <= 1


def test_a_path_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    for path, message in ((tmp_path / "missing" / "speed.jsonl", "No such file"), (tmp_path, "is no regular file")):
        with pytest.raises(ValueError, match=message):
            measure_speed(path)
