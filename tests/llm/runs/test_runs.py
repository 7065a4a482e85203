"""Runs: configs, batches, replaying the best step, the engine, and every way to end."""

import codecs
import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import comparable, opt, result_of

from helene.lab.runs import canonical
from helene.lab.runs.store import Store, config_key
from helene.lab.sweeps.executors import InlineExecutor
from helene.lab.sweeps.sweep import sweep
from llm_bench.data.stream import BatchStream
from llm_bench.runs import config as configs
from llm_bench.runs import methods
from llm_bench.runs.config import from_dict
from llm_bench.runs.environment import resolved
from llm_bench.runs.run import run
from llm_bench.runs.session import close_sessions, session
from llm_bench.runs.training.loop import Training

# Configs


def test_a_config_survives_toml_and_dicts(tmp_path):
    hyper = {"anneal_horizon": math.inf, "floor": "mean:1", "interval": 5, "low": -math.inf}
    config = opt(model="ein 🐘", method="helene", hyper=hyper, target=0.8)
    assert from_dict(config.to_dict()) == config
    (tmp_path / "run.toml").write_text(configs.to_toml(config))
    assert configs.load(tmp_path / "run.toml") == config
    changed = configs.load(tmp_path / "run.toml", ["lr=1e-2", "hyper.interval=7", "k=16", "task=rte", "target=none"])
    assert (changed.lr, changed.hyper["interval"], changed.k, changed.task, changed.target) == (
        0.01,
        7,
        16,
        "rte",
        None,
    )
    assert config_key(changed.to_dict()) != config_key(config.to_dict())
    shared = dataclasses.replace(config, ranks=2)
    assert from_dict(shared.to_dict()) == shared
    assert "ranks" not in config.to_dict(), "the keys of committed rows, none of which has it"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 1.0}, "a run has no setting 'learning_rate'; it has model"),
        ({"ranks": 0}, "ranks must be an integer, 1 or above"),
        ({"ranks": 3}, "a batch of 4 rows cannot be shared by 3 ranks; take a multiple of 3"),
        ({"ranks": 2, "role": "measure"}, r"mezo \(measure\) cannot be shared by 2 ranks.*set ranks=1"),
        ({"ranks": 2, "method": "ft-adam", "eps": None}, "ft-adam.*only training steps of pairs of losses or of group"),
        ({"ranks": 2, "method": "zero-shot"}, "zero-shot.*cannot be shared by 2 ranks"),
        ({"ranks": 2, "task": "squad"}, "the loss of squad is a mean over tokens, of which ranks have unequal numbers"),
        ({"steps": "many"}, "steps must be int, got 'many'"),
        ({"engine": 1}, "engine must be bool or str, got 1"),
        ({"engine": "fast"}, "engine must be False or True or compiled, got 'fast'"),
        ({"steps": True}, "steps must be int, got True"),
        ({"lr": 0}, "lr must be positive, got 0"),
        ({"lr": 10**400}, "lr must be at most"),
        ({"lr": math.inf}, "lr must be a finite number"),
        ({"target": math.nan}, "target is a dev metric"),
        ({"seed": 2**70}, "seed must be below"),
        ({"num_train": 0}, "num_train must be an integer, 1 or above"),
        ({"eps": None}, "mezo needs eps > 0; 1e-3 is usual, got None"),
        ({"method": "ft-adam"}, "ft-adam takes no eps, got 0.001"),
        ({"method": "zosgd"}, "no method 'zosgd'"),
        ({"task": "qqp"}, "no causal task 'qqp'"),
        ({"tuning": "bitfit"}, "tuning must be one of"),
        ({"role": "train"}, "role must be test or tune"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"eval_every": 0}, "steps, eval_every and batch_size must be at least 1"),
        ({"task": "squad", "target": 0.5}, "set no target"),
        ({"target": 1.5}, r"target is a dev metric in \[0, 1\], got 1.5"),
        ({"row_length": -5}, "row_length must be an integer, 0 or above, got -5"),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        from_dict({**opt().to_dict(), **values})


def test_bad_files_and_words_are_named(tmp_path):
    (tmp_path / "bad.toml").write_text("lr = = 3")
    with pytest.raises(ValueError, match=r"bad\.toml is not TOML"):
        configs.load(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes("lr = 3".encode("utf-16"))
    with pytest.raises(ValueError, match=r"bad\.toml is no UTF-8 text but UTF-16"):
        configs.load(tmp_path / "bad.toml")
    (tmp_path / "good.toml").write_bytes(codecs.BOM_UTF8 + configs.to_toml(opt()).encode())
    assert configs.load(tmp_path / "good.toml") == opt()
    with pytest.raises(ValueError, match="an override must read name=value, got 'lr'"):
        configs.load(None, ["lr"])
    with pytest.raises(ValueError, match="a run needs kind, task, method"):
        configs.load(None, ["model=x"])
    with pytest.raises(ValueError, match="hyper must be a table of settings, got 3"):
        configs.load(None, ["hyper=3", "hyper.gamma=1"])


def test_settings_of_their_own_are_no_hyper_parameters():
    """Else the record would keep one value and the optimizer take the other."""
    with pytest.raises(ValueError, match=r"hyper\.lr is 0\.5, but lr is a setting of its own; set lr=0\.5"):
        opt(hyper={"lr": 0.5})
    with pytest.raises(ValueError, match=r"hyper\.seed is 5, but seed is a setting of its own; set seed=5"):
        opt(hyper={"seed": 5})
    with pytest.raises(ValueError, match=r"hyper\.eps is 1, but eps is"):
        configs.load(
            None,
            ["model=m", "kind=causal", "task=sst2", "method=ft-adam", "lr=1", "steps=1", "eval_every=1", "hyper.eps=1"],
        )


def test_the_record_has_what_the_optimizer_was_told_and_how_steps_were_made(env):
    config = opt(method="helene", hyper={"gamma": 2.0})
    result = result_of(config, env)
    told = result["hyper"]
    assert {"lr": told["lr"], "eps": told["eps"], "gamma": told["gamma"]} == {"lr": 1e-3, "eps": 1e-3, "gamma": 2.0}
    assert (told["anneal_horizon"], told["batch_size"]) == (config.steps, config.batch_size)
    assert result["steps_made"] == [{"mode": "plain", "reason": "no engine was asked for", "steps": config.steps}]
    assert result["padded_tokens"] >= result["tokens"] > 0
    assert result["padded_tokens"] % (8 * config.batch_size) == 0


def test_fingerprints_belong_to_the_config(env):
    config = resolved(opt(), env)
    assert len(config.fingerprint) == len(config.rows) == 16
    assert resolved(config, env) == config
    assert resolved(opt(data_seed=1), env).rows != config.rows
    with pytest.raises(ValueError, match="made with model 0000, those here are"):
        resolved(opt(fingerprint="0000"), env)
    with pytest.raises(ValueError, match="run is for device 'cuda', this machine's is 'cpu'"):
        resolved(opt(device="cuda"), env)


# Batches


@settings(max_examples=50, deadline=None, derandomize=True)
@given(rows=st.integers(1, 40), size=st.integers(1, 50), seed=st.integers(0, 1000))
def test_each_row_comes_once_an_epoch_and_any_batch_can_be_had_alone(rows, size, seed):
    stream = BatchStream(rows, size, seed)
    batches = [stream.rows(t) for t in range(1, 8)]
    assert {len(batch) for batch in batches} == {min(rows, size)}
    flat = [row for batch in batches for row in batch]
    for start in range(0, len(flat) - rows + 1, rows):
        assert sorted(flat[start : start + rows]) == list(range(rows))
    assert BatchStream(rows, size, seed).rows(5) == batches[4]


def test_the_order_depends_on_the_seed():
    assert BatchStream(30, 30, 0).rows(1) != BatchStream(30, 30, 1).rows(1)
    assert BatchStream(30, 30, 0).rows(1) != BatchStream(30, 30, 0).rows(2)


# Results


@pytest.mark.parametrize(
    "config",
    [
        opt(tuning="full"),
        opt(method="helene", lr=1e-4, hyper={"interval": 3}),
        opt(method="helene-own-batch", lr=1e-4),
        opt(method="zo-sgd-cons", lr=1e-3),
        opt(method="forward-grad", eps=None),
        opt(method="fzoo", lr=1e-3, hyper={"num_directions": 2}),
        opt(method="ft-adam", eps=None),
        opt(task="copa", tuning="lora", lr=1e-2),
        opt(task="squad", lr=1e-3, num_test=3, num_dev=4),
        opt(model="roberta", kind="masked", task="snli", k=8, data_seed=13),
    ],
    ids=lambda c: f"{c.method}-{c.task}-{c.tuning}",
)
def test_a_run_is_complete_repeatable_and_plain(config, env):
    result = result_of(config, env)
    json.dumps(canonical.plain(result))
    assert result["status"] == "out_of_budget"
    assert result["curve"]["step"] == [0, 4, 8, 12]
    assert result["steps"] == 12
    per_step = {"helene-own-batch": None, "zo-sgd-cons": 5, "fzoo": 3, "ft-adam": 3}.get(config.method, 2)
    if per_step:
        assert result["forwards"] == 12 * per_step
    assert result["curve"]["forwards"][-1] == result["forwards"]
    assert result["test"]["num_examples"] == min(config.num_test, 30)
    assert result["data"]["train"] == (24 if config.k else 48)
    assert (result["curve"]["c_rms"][1] is None) == (config.method == "ft-adam")
    assert comparable(result_of(config, env)) == comparable(result)
    assert result["best_step"] in result["curve"]["step"]
    best = result["curve"]["step"].index(result["best_step"])
    if config.task != "squad":
        assert result["dev"]["metric"] == result["curve"]["dev_metric"][best] == max(result["curve"]["dev_metric"])


def test_seeds_of_data_and_of_directions_are_apart(env):
    base = result_of(opt(tuning="full"), env)
    other_z = result_of(opt(tuning="full", seed=1), env)
    other_data = result_of(opt(tuning="full", data_seed=1), env)
    assert other_z["curve"]["dev_loss"][0] == base["curve"]["dev_loss"][0]
    assert other_z["curve"]["dev_loss"][1:] != base["curve"]["dev_loss"][1:]
    assert other_data["curve"]["dev_loss"][0] != base["curve"]["dev_loss"][0]


FIRST_ORDER = [name for name in methods.METHODS if methods.is_first_order(name)]


@pytest.mark.parametrize(
    ("method", "tuning"), [*((name, "full") for name in FIRST_ORDER), ("ft-adam", "lora"), ("ft-adam", "prefix")]
)
def test_seeds_change_first_order_runs_only_where_adapters_start_by_seed(method, tuning, env):
    """What `plan.test_seeds` goes by. LoRA's first look is at the model itself, whatever its A."""
    config = opt(method=method, eps=None, lr=1e-2, tuning=tuning)
    one, other = (result_of(dataclasses.replace(config, seed=seed), env)["curve"]["dev_loss"] for seed in (0, 1))
    assert (one != other) == (tuning != "full")
    assert one[0] != one[-1], "nothing moved"


def test_the_size_of_c_is_known_without_a_trajectory_too(env):
    """Sums that the optimizer keeps against the recorded scalars."""
    kept = result_of(opt(best="copy"), env)["curve"]["c_rms"]
    recorded = result_of(opt(best="replay"), env)["curve"]["c_rms"]
    assert kept[0] is recorded[0] is None
    assert kept[1:] == pytest.approx(recorded[1:], rel=1e-6)


def test_slopes_that_are_all_zero_are_an_error_and_no_record(env):
    """A grid in units of 0 could not be made, at this call and all later ones."""
    with pytest.raises(ValueError, match=r"all 10 slopes .* are 0: .* larger eps than 1e-30"):
        result_of(opt(tuning="full", role="measure", steps=10, eval_every=10, eps=1e-30), env)


def test_tuning_runs_never_look_at_the_test_set(env, monkeypatch):
    from llm_bench.runs.session import Session

    monkeypatch.setattr(Session, "test_tokens", lambda *_: pytest.fail("the test set was looked at"))
    assert "test" not in result_of(opt(role="tune"), env)


def test_the_test_set_is_scored_with_the_weights_of_the_best_step(env):
    """Reached again by replay or from a copy, whichever step was the best; where none was, the untrained model."""
    settled = set()
    for seed in (0, 1, 7, *range(8, 14)):
        config = opt(tuning="full", lr=1e-2, steps=12, seed=seed)
        replayed, copied = result_of(config, env), result_of(dataclasses.replace(config, best="copy"), env)
        place = 0 if replayed["best_step"] == 0 else 2 if replayed["best_step"] == 12 else 1
        assert copied["best_step"] == replayed["best_step"]
        assert copied["test"] == replayed["test"]
        assert replayed["replayed"] is (True if place == 1 else None)
        assert copied["replayed"] is None
        if place == 0:
            zero_shot = opt(tuning="full", method="zero-shot", lr=None, eps=None, steps=0)
            assert replayed["test"] == result_of(zero_shot, env)["test"]
        settled.add(place)
        if len(settled) == 3:
            break
    assert settled >= {0, 1}


def test_the_target_is_the_first_look_that_has_it_and_a_miss_is_infinite(env):
    base = result_of(opt(), env)
    first = result_of(opt(target=base["curve"]["dev_metric"][0]), env)
    assert (first["status"], first["target"]["steps"], first["target"]["forwards"]) == ("reached", 0, 0)
    miss = result_of(opt(target=1.0), env)
    assert miss["status"] == "out_of_budget"
    assert miss["target"] == {"value": 1.0, "steps": math.inf, "forwards": math.inf, "training_seconds": math.inf}
    assert comparable(miss)["curve"] == comparable(base)["curve"]


@pytest.mark.parametrize("method", ["zero-shot", "icl", "linear-probe", "bias-only"])
def test_untrained_rows(method, env):
    config = opt(method=method, task="rte", lr=None, eps=None, steps=0)
    result = result_of(config, env)
    assert result["forwards"] == 0
    assert result["test"]["num_examples"] == 30
    assert comparable(result_of(config, env)) == comparable(result)
    if method == "bias-only":
        zero = result_of(opt(method="zero-shot", task="rte", lr=None, eps=None, steps=0), env)
        assert zero["test"]["auc"] == pytest.approx(result["test"]["auc"])


def test_what_a_method_cannot_do_is_said(env):
    with pytest.raises(ValueError, match="linear-probe on copa: copa has no classes"):
        result_of(opt(method="linear-probe", task="copa", lr=None, eps=None, steps=0), env)
    masked = {"model": "roberta", "kind": "masked", "k": 8}
    with pytest.raises(ValueError, match="in-context learning is for causal models"):
        result_of(opt(method="icl", lr=None, eps=None, steps=0, **masked), env)


def test_one_model_is_loaded_for_many_runs_and_no_run_marks_the_next(env):
    fresh = result_of(opt(), env)
    opened = session(resolved(opt(), env), env)
    for lr in (1.0, 1e-2):
        result_of(opt(lr=lr), env)
        assert session(resolved(opt(), env), env) is opened
    assert comparable(result_of(opt(), env)) == comparable(fresh)
    close_sessions()
    assert comparable(result_of(opt(), env)) == comparable(fresh)


# Ends


def test_a_step_size_far_too_large_ends_as_a_status_not_an_exception(env):
    result = result_of(opt(tuning="full", lr=1e4, steps=200, eval_every=50), env)
    assert result["status"] in ("diverged", "non_finite")
    assert result["steps"] < 200
    assert "test" in result, "the best dev step is there all the same"


@pytest.mark.filterwarnings("ignore:16 of 16 pairs of losses differ")
def test_a_loss_that_is_exactly_zero_ends_the_run(env, monkeypatch):
    from llm_bench.runs import session as sessions

    real = sessions.LOSSES["classification"]

    def collapsed(module, batch):
        return real(module, batch) * 0

    monkeypatch.setitem(sessions.LOSSES, "classification", collapsed)
    result = result_of(opt(steps=100, eval_every=50), env)
    assert (result["status"], result["steps"]) == ("diverged", 50)
    assert "exactly 0" in result["message"]


def test_a_loss_that_is_nan_ends_the_run(env, monkeypatch):
    from llm_bench.runs import session as sessions

    real, calls = sessions.LOSSES["classification"], []

    def sick(module, batch):
        calls.append(1)
        return real(module, batch) * (math.nan if len(calls) > 8 else 1)

    monkeypatch.setitem(sessions.LOSSES, "classification", sick)
    result = result_of(opt(), env)
    assert result["status"] == "non_finite"
    assert result["steps"] == 4
    assert result["curve"]["step"] == [0, 4]


def test_out_of_memory_is_a_row_and_the_sweep_goes_on(env, tmp_path, monkeypatch):
    real = Training.run

    def hungry(self):
        if self.config.batch_size == 8:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return real(self)

    monkeypatch.setattr(Training, "run", hungry)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**30, 80 * 2**30))
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: 79 * 2**30)
    cells = [resolved(opt(batch_size=b), env).to_dict() for b in (8, 4)]

    def call(config):
        return run(config, env)

    with Store(tmp_path / "s.sqlite") as store:
        first, second = sweep("x", cells, call, store, executor=InlineExecutor(), progress=False)
    assert first.result["status"] == "out_of_memory"
    assert "79.0 of 80.0 GiB" in first.result["message"]
    assert "a batch_size of 4" in first.result["message"]
    assert not first.failed
    assert second.result["status"] == "out_of_budget"


@pytest.mark.parametrize("config", [opt(), opt(method="helene", lr=1e-4), opt(task="copa", tuning="lora")], ids=str)
def test_the_engine_makes_the_same_steps(config, env, monkeypatch):
    """Here without a graph: its two forwards run in threads of their own, each with hooks on the same modules."""
    import llm_bench.runs.training.loop as train
    from llm_bench.runs.training.stepper import EngineStepper

    plain = result_of(config, env)
    monkeypatch.setattr(
        train, "make_stepper", lambda module, optimizer, loss, method, engine: EngineStepper(module, optimizer, loss)
    )
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        captured = result_of(config, env)
    assert captured["forwards"] == plain["forwards"]
    assert captured["curve"]["dev_loss"] == pytest.approx(plain["curve"]["dev_loss"], rel=1e-4)
    assert captured["curve"]["c_rms"][1:] == pytest.approx(plain["curve"]["c_rms"][1:], rel=1e-2)


def test_a_recorded_forward_makes_the_steps_of_fzoo(env, monkeypatch):
    """On packed tokens, as captured steps are, beside plain ones. Steps 1, 2, 4 and 8 look whether the loss draws."""
    import llm_bench.runs.training.loop as train
    from helene.engine.spreads import SpreadEngine
    from llm_bench.runs.training.stepper import EngineStepper

    config = dataclasses.replace(opt(method="fzoo", lr=1e-3, hyper={"num_directions": 2}), engine=True)
    results = []
    for capture in ("repeat", False):

        def made(module, optimizer, loss, method, engine, capture=capture):
            stepper = EngineStepper(module, optimizer, loss)
            assert isinstance(stepper.engine, SpreadEngine)
            stepper.engine = SpreadEngine(module, optimizer, loss, capture=capture)
            return stepper

        monkeypatch.setattr(train, "make_stepper", made)
        results.append(result_of(config, env))
    recorded, plain = results
    assert {how["mode"]: how["steps"] for how in recorded["steps_made"]} == {"graph": 8, "plain": 4}
    assert {how["mode"] for how in plain["steps_made"]} == {"plain"}
    for part in ("forwards", "padded_tokens"):
        assert recorded[part] == plain[part]
    assert recorded["curve"]["dev_loss"] == plain["curve"]["dev_loss"]


def test_the_engine_is_refused_where_it_is_not(env):
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="engine = true needs a CUDA device"):
            result_of(opt(engine=True), env)


def test_measuring_imports_with_little_installed():
    """What a bare GPU machine has; drawing needs more, and is not imported for measuring."""
    import subprocess
    import sys

    blocked = ("matplotlib", "datasets", "distributed", "jaxtyping", "hypothesis", "helene.lab.report.pages")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
import tools.gpu_rows, llm_bench.runs.run, llm_bench.protocol.execute, llm_bench.cli
import llm_bench.protocol.step_size_search, llm_bench.protocol.estimate, llm_bench.evaluation.probing
import llm_bench.models.tuning.lora, llm_bench.models.tuning.prefix
import llm_bench.cost.step_profile
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
