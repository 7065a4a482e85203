"""Products of a run are those of its config, and torch's setting of before is back afterwards."""

import contextlib

import numpy as np
import pytest
import torch
from small_runs import opt, result_of

from helene import cli as helene_cli
from helene.lab.runs.store import read_jsonl
from llm_bench.cost import products as measured
from llm_bench.runs import products
from llm_bench.runs.run import run


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", ["float32", "tf32"])
def test_the_switch_is_set_inside_and_put_back(name, before):
    matmul = torch.backends.cuda.matmul
    was = matmul.allow_tf32
    try:
        matmul.allow_tf32 = before
        with contextlib.suppress(ZeroDivisionError), products.matmuls(name):
            assert matmul.allow_tf32 == (name == "tf32")
            raise ZeroDivisionError
        assert matmul.allow_tf32 == before
    finally:
        matmul.allow_tf32 = was


def test_bfloat16_products_are_close_to_float32s_and_not_the_same(env):
    wide, narrow = (result_of(opt(products=name), env) for name in ("float32", "bfloat16"))
    one, two = (r["curve"]["dev_loss"][0] for r in (wide, narrow))
    assert one != two
    assert one == pytest.approx(two, rel=2.0**-6), "a few roundings to 8 bits"
    assert not torch.is_autocast_enabled("cpu")


def test_products_that_cannot_be_had_are_refused():
    with pytest.raises(ValueError, match="products 'tf32' need device 'cuda'"):
        opt(products="tf32")
    with pytest.raises(ValueError, match="are of float32 weights, dtype is 'bfloat16'"):
        opt(products="bfloat16", dtype="bfloat16")
    with pytest.raises(ValueError, match="products must be float32 or tf32 or bfloat16"):
        opt(products="fp8")
    assert opt(products="bfloat16").to_dict()["products"] == "bfloat16"
    assert opt(products="tf32", device="cuda") != opt(device="cuda")


def test_a_run_sets_its_products(env, monkeypatch):
    seen = []
    monkeypatch.setattr("llm_bench.runs.run.matmuls", lambda name: seen.append(name) or products.matmuls(name))
    from llm_bench.runs.environment import resolved

    run(resolved(opt(method="zero-shot", steps=0, lr=None, eps=None, tuning="full"), env).to_dict(), env)
    assert seen == ["float32"]


def test_the_measurement_of_products(env, toy_data, tmp_path, capsys):
    """Float32 against bfloat16 on a CPU: c along the same directions differs by rounding, and the curves are runs."""
    words = ["--model", f"causal={env.models['opt']}", "--names", "causal=tiny", "--data", str(toy_data)]
    words += ["--out", str(tmp_path), "--device", "cpu", "--tasks", "causal/sst2:2:1", "--directions", "6"]
    words += ["--products", "float32", "bfloat16", "--random-models"]
    assert helene_cli.main(["llm", "measure", "products", *words]) == 0
    found = read_jsonl(tmp_path / "products.jsonl")
    parts = {(r.config.get("part", "curve"), r.config["products"]): r.result for r in found}
    assert len(parts) == len(found) == 4
    wide, narrow = (parts["slopes", name] for name in ("float32", "bfloat16"))
    assert (wide["rms_difference"], wide["correlation"]) == (0.0, pytest.approx(1.0))
    assert narrow["rms_difference"] == pytest.approx(np.sqrt(np.mean(np.subtract(narrow["c"], wide["c"]) ** 2)))
    assert narrow["c"] != wide["c"]
    assert len(parts["curve", "float32"]["curve"]["dev_loss"]) == 3
    with pytest.raises(ValueError, match="such as causal/sst2:500:2, got 'sst2'"):
        measured.asked("sst2")
