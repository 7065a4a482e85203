"""Budgets, choices, numbers and estimates, on records made by hand."""

import dataclasses
import math
import statistics

import numpy as np
import pytest
from handmade import MEZO, SMALL, judged, tuned
from small_runs import opt, random_models

from helene.lab.runs.store import Record, read_jsonl
from llm_bench.cli import committed_pages
from llm_bench.data.stream import BatchStream
from llm_bench.protocol import plan
from llm_bench.protocol.clock import Clock
from llm_bench.protocol.estimate import ModelSize, estimate, step_bytes
from llm_bench.protocol.execute import Bench, cell_records
from llm_bench.protocol.paper_tables import CONTROL, TABLES
from llm_bench.protocol.plan import Cell, cells, cells_of_table, choose
from llm_bench.protocol.presets import PRESETS, TUNING_SEED, get_preset
from llm_bench.protocol.speed import Model, Speeds, captured_once, had_the_card_alone, steady_seconds
from llm_bench.protocol.work import counted, typical
from llm_bench.report.cell_numbers import interval, numbers
from llm_bench.runs.config import UNTRAINED, RunConfig, from_dict
from llm_bench.runs.environment import Environment, environment, resolved
from llm_bench.runs.methods import METHODS, is_first_order
from llm_bench.runs.session import Session

MINILM = Model(22744506, 11917824, 6)


def test_the_papers_tables_are_whole():
    assert [len(table.rows) for table in TABLES.values()] == [12, 11, 25]
    assert len(TABLES["1"].printed) == 11 * 6
    assert len(TABLES["2"].printed) == 10 * 9
    assert len(TABLES["3"].printed) == 24 * 2
    assert TABLES["1"].printed[("mezo", "full"), ("masked", "sst2")] == (90.5, 1.2)
    assert TABLES["2"].printed[("helene", "full"), ("causal", "copa")] == (69.0, None)
    assert TABLES["3"].printed[("zo-sgd-sign", "prefix"), ("masked", "sst2")] == (53.6, None)
    assert TABLES["3"].printed[("zo-adam", "lora"), ("causal", "sst2")] == (92.3, None)
    assert all(CONTROL in table.rows for table in TABLES.values())


@pytest.mark.parametrize("name", ["1", "2"])
def test_preset_all_plans_every_number_of_tables_1_and_2(name):
    """But ReCoRD's, and those that cannot be run."""
    preset, table = get_preset("all"), TABLES[name]
    planned = {((c.method, c.tuning), (c.kind, c.task)) for c in cells(preset)}
    open_ones = {place for place in table.printed if place not in planned and place[1][1] != "record"}
    assert {(row[0], task) for row, (_, task) in open_ones} == (
        set() if name == "1" else {("linear-probe", "copa"), ("linear-probe", "squad")}
    )
    more = {place for place in planned if place[0][1] != "full" and place[1] in table.columns} - set(table.printed)
    assert not more, "LoRA and prefix alone where the paper prints them"
    assert {cell.tuning for cell in cells(get_preset("second-model"))} == {"full"}


def test_few_shot_tuning_reads_the_kind_of_text_that_is_tested_on():
    preset = get_preset("all")
    for cell in (c for c in cells(preset) if c.kind == "masked" and c.method not in UNTRAINED):
        tuned = {run.data_seed for run in plan.tuning_runs(preset, cell, "m", "cuda")}
        assert tuned < {run.data_seed for run in plan.test_runs(preset, cell, "m", "cuda", 1e-3)}


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_method_of_a_preset_has_the_same_budget(name):
    preset = get_preset(name)
    for cell in cells(preset):
        runs = plan.tuning_runs(preset, cell, "m", "cuda")
        if cell.method in UNTRAINED:
            assert not runs
            continue
        assert len(runs) == len(preset.multiples)
        assert {r.role for r in runs} == {"tune"}
        assert {r.seed for r in runs} == {TUNING_SEED}
        tests = plan.test_runs(preset, cell, "m", "cuda", 1e-3)
        assert len(tests) == len(plan.test_seeds(preset, cell))
        assert TUNING_SEED not in {r.seed for r in tests}
        assert {(r.role, r.lr) for r in tests} == {("test", 1e-3)}
        assert {(r.steps, r.batch_size, r.eval_every) for r in runs} == {
            (r.steps, r.batch_size, r.eval_every) for r in tests
        }


def test_the_paper_preset_has_every_cell_of_the_papers_tables():
    preset = get_preset("paper")
    for name, table in TABLES.items():
        have = {((c.method, c.tuning), (c.kind, c.task)) for c in cells_of_table(preset, table)}
        missing = set(table.printed) - have
        # the paper has linear probing where there are no common classes; its numbers there equal those of ICL
        assert {(row[0], column[1]) for row, column in missing} <= {
            ("linear-probe", t) for t in ("copa", "record", "squad")
        }, name


def test_few_shot_seeds_change_the_data_and_others_only_the_directions():
    masked = plan.test_runs(SMALL, Cell("masked", "sst2", "mezo", "full"), "m", "cpu", 1e-6)
    assert [(r.k, r.data_seed, r.seed) for r in masked] == [(16, 13, 13), (16, 21, 21), (16, 42, 42)]
    causal = plan.test_runs(SMALL, MEZO, "m", "cpu", 1e-6)
    assert [(r.k, r.data_seed, r.seed) for r in causal] == [(None, 0, 0), (None, 0, 1), (None, 0, 2)]
    assert len(plan.test_runs(SMALL, Cell("causal", "sst2", "zero-shot", "full"), "m", "cpu", None)) == 1


@pytest.mark.parametrize("method", [name for name in METHODS if is_first_order(name)])
def test_a_method_that_draws_nothing_has_one_test_run(method):
    """Directions, a start and few-shot rows are what seeds draw; `tests.llm.runs` makes the runs."""
    one, all_of = (0,), SMALL.seeds
    for tuning, wanted in (("full", one), ("lora", all_of["causal"]), ("prefix", all_of["causal"])):
        assert plan.test_seeds(SMALL, Cell("causal", "sst2", method, tuning)) == wanted
    assert plan.test_seeds(SMALL, Cell("masked", "sst2", method, "full")) == all_of["masked"]
    assert plan.test_seeds(SMALL, MEZO) == all_of["causal"]
    (run,) = plan.test_runs(SMALL, Cell("causal", "sst2", method, "full"), "m", "cpu", 1e-6)
    assert (run.seed, run.data_seed, run.role) == (0, 0, "test")


@pytest.mark.parametrize(
    ("kind", "method", "seeds"),
    [
        ("causal", "zero-shot", (0,)),
        ("causal", "linear-probe", (0,)),
        ("causal", "icl", (0, 1, 2)),
        ("masked", "zero-shot", (13,)),
        ("masked", "linear-probe", (13, 21, 42)),
    ],
)
def test_an_untrained_row_has_a_run_for_each_set_of_rows_that_it_sees(kind, method, seeds):
    assert plan.test_seeds(SMALL, Cell(kind, "sst2", method, "full")) == seeds


@pytest.mark.parametrize(("lr", "left"), [(None, 6 + 1), (1e-5, 1)])
def test_runs_left_count_the_seeds_that_are_planned(lr, left):
    """Adam on a causal model: six step sizes and one test run, before tuning and after it."""
    cell = Cell("causal", "sst2", "ft-adam", "full")
    bench = Bench(get_preset("paper"), {"causal": "m"}, Environment(""))
    found = {}
    for run in plan.tuning_runs(bench.preset, cell, "m", "cpu") if lr else []:
        dev = {"metric": 0.9 if run.lr == lr else 0.5, "loss": 0.5, "option_loss": 0.5, "auc": None}
        record = Record.of("x", bench.with_settings(run).to_dict(), {"status": "reached", "dev": dev})
        found[record.key] = record
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "_with_fingerprints", lambda self, config: config)
        what = cell_records(bench, cell, found)
    assert (what.wanted, what.left) == (1, left)


def test_the_best_dev_metric_is_chosen_then_the_lower_loss_and_edges_are_told():
    grid = [tuned(1e-7, 0.6, 0.7), tuned(1e-6, 0.8, 0.5), tuned(1e-5, 0.8, 0.4), tuned(1e-4, 0.5, 9.0)]
    assert choose(grid).lr == 1e-5
    assert not choose(grid).edge
    assert choose(grid[:3]).edge
    as_it_was = [tuned(1e-6, 0.5, 0.7), tuned(1e-5, 0.5, 0.7, "diverged"), tuned(1e-4, 0.5, 0.7, "non_finite")]
    assert choose(as_it_was).lr == 1e-6, "of equal ones none that was lost"
    failed = choose([tuned(1e-6, None, None, "non_finite"), tuned(1e-5, None, None, "out_of_memory")])
    assert failed.lr is None
    assert [status for *_, status in failed.tried] == ["non_finite", "out_of_memory"]


def test_numbers_are_means_with_students_interval_and_medians_with_misses():
    found = numbers([judged(0, 0.80, 100), judged(1, 0.82, math.inf), judged(2, 0.87, math.inf)])
    assert found.mean == pytest.approx(83.0)
    # t(0.975, 2) = 4.3027, sd = 3.6056
    assert found.high - found.mean == pytest.approx(4.302652730 * 3.605551275 / math.sqrt(3), rel=1e-8)
    assert found.steps == math.inf
    assert numbers([judged(0, 0.8, 100), judged(1, 0.8, 300)]).steps == 200
    assert numbers([judged(0, 0.8, 100), judged(1, 0.8, math.inf)]).steps == math.inf
    assert numbers([]) is None
    lost = judged(2, 0.8, math.inf)
    lost = Record.of("x", lost.config, {**lost.result, "test": None, "status": "non_finite"})
    some = numbers([judged(0, 0.8, 100), judged(1, 0.8, 300), lost])
    assert (some.steps, some.forwards, some.seconds) == (300, 600, 3.0), "a miss counts without a test metric too"
    dead = Record.of("x", lost.config, {"status": "out_of_memory", "message": "m"})
    without = numbers([judged(0, 0.8, 100), judged(1, 0.8, 300), dead])
    assert (without.steps, without.forwards, without.seconds) == (300, 600, 3.0), "and without any result"
    assert interval([5.0]) == (None, None)
    assert found.bytes == 10**9
    assert found.speed == 3000


def test_the_bytes_of_a_cell_are_those_of_the_run_that_held_least():
    """Test runs hold the best weights so far too."""
    tests = [judged(seed, 0.8) for seed in range(2)]
    tuning = Record.of("x", tests[0].config, {**tests[0].result, "peak_bytes": {"step": 7 * 10**8}})
    uncounted = Record.of("x", tests[0].config, {**tests[0].result, "peak_bytes": None})
    assert numbers(tests, [tuning, uncounted]).bytes == 7 * 10**8
    assert numbers([uncounted]).bytes is None


def test_estimates_take_measured_speed_where_there_is_one():
    shape = ModelSize(parameters=10**9, embedding=10**8, vocabulary=50_000, hidden=2048)
    runs = plan.tuning_runs(SMALL, MEZO, "m", "cuda")
    guess = estimate(runs, {"m": shape})
    assert guess.source == "counted"
    assert guess.bytes >= 4 * 10**9
    known = Record.of("x", runs[0].to_dict(), {"steps": 1000, "training_seconds": 20.0})
    told = estimate(runs, {"m": shape}, [known])
    assert told.source == "measured"
    slower = Record.of("x", runs[0].to_dict(), {"steps": 1000, "training_seconds": 30.0})
    assert estimate(runs, {"m": shape}, [slower]).seconds - told.seconds == pytest.approx(6 * 2000 * 0.01)
    assert told.seconds > 6 * 2000 * 0.02, "loading and looks at dev are in it"
    captured = Bench(SMALL, {"causal": "m"}, Environment(""), "cuda", {"engine": True})
    asked = [captured.with_settings(run) for run in runs]
    assert estimate(asked, {"m": shape}, [known]).source == "counted", "of a run without the engine"
    known.config["engine"] = True
    assert estimate(asked, {"m": shape}, [known]).source == "measured"
    helene = plan.tuning_runs(SMALL, dataclasses.replace(MEZO, method="helene"), "m", "cuda")[0]
    assert step_bytes(helene, shape) - step_bytes(runs[0], shape) == 2 * 4 * 10**9


@pytest.mark.parametrize("other", [{"method": "mezzo"}, {"momentum": 0.9}])
def test_estimates_pass_over_runs_that_this_version_could_not_make(other):
    shape = ModelSize(parameters=10**9, embedding=10**8, vocabulary=50_000, hidden=2048)
    runs = plan.tuning_runs(SMALL, MEZO, "m", "cuda")
    known, foreign = (
        Record.of("x", {**runs[0].to_dict(), **more}, {"steps": 1000, "training_seconds": 20.0}) for more in ({}, other)
    )
    assert estimate(runs, {"m": shape}, [foreign, known]) == estimate(runs, {"m": shape}, [known])
    assert estimate(runs, {"m": shape}, [foreign]) == estimate(runs, {"m": shape})


def test_time_is_judged_by_runs_of_the_same_kind_that_went_to_their_end():
    config = dataclasses.replace(plan.tuning_runs(SMALL, MEZO, "m", "cpu")[0], lr=1e-5)

    def ended(seconds, steps=config.steps, **more):
        made = dataclasses.replace(config, **more)
        return Record.of("x", made.to_dict(), {"status": "out_of_budget", "steps": steps, "run_seconds": seconds})

    assert Clock(None, [ended(1e9)]).has_time(config), "no limit"
    assert Clock(1.0).has_time(config), "one of an unknown kind is begun"
    assert not Clock(0.0).has_time(config)
    assert Clock(1.0, [ended(50.0)]).has_time(config)
    assert not Clock(1.0, [ended(70.0)]).has_time(config)
    assert Clock(1.0, [ended(70.0, steps=50)]).has_time(config), "one that diverged tells nothing"
    assert Clock(1.0, [ended(70.0, task="copa")]).has_time(config)
    assert not Clock(1.0, [ended(70.0, method="helene")]).has_time(config), "another method's on the task"
    assert Clock(1.0, [ended(70.0, method="helene"), ended(50.0)]).has_time(config)
    assert Clock(1.0, [ended(70.0), ended(50.0)]).has_time(config), "the latest counts"


def test_configs_of_a_plan_are_plain():
    for cell in cells(SMALL):
        for run in plan.tuning_runs(SMALL, cell, "m", "cpu"):
            assert isinstance(run, RunConfig)
            assert np.isfinite(run.lr)


def test_generating_tasks_are_tuned_by_loss():
    """Whether or not earlier runs generated on dev."""
    squad = dataclasses.replace(MEZO, task="squad")
    config = plan.tuning_runs(dataclasses.replace(SMALL, tasks={"causal": ("squad",)}), squad, "m", "cpu")[0]

    def one(lr, metric, loss):
        dev = {"metric": metric, "loss": loss, "option_loss": loss, "auc": None}
        return Record.of("x", dataclasses.replace(config, lr=lr).to_dict(), {"status": "out_of_budget", "dev": dev})

    assert choose([one(1e-7, 0.4, 1.0), one(1e-6, 0.3, 0.9), one(1e-5, None, 1.2)]).lr == 1e-6


def test_estimates_are_right_on_tasks_that_were_not_measured():
    """From the committed rows of all tasks but one, those of that one: whole runs of one card within a quarter.

    SQuAD's rows generated answers on dev, which runs do not do, so that its seconds beside the steps are left out. The
    one run of a first-order method spent most of its time sorting indices, which steps do not do.
    """
    models = {"gemma": Model(268098176, 167772160, 18), "MiniLM-L6 with an MLM head trained here": MINILM}
    rows = [r for path in sorted((committed_pages.RECORDS / "rows").glob("*/*.jsonl")) for r in read_jsonl(path)]
    rows = [r for r in rows if r.config["role"] in ("tune", "test") and r.result.get("steps") == r.config["steps"]]
    rows = [r for r in rows if r.config["steps"] and "H200" in r.provenance["gpu"][0] and captured_once(r.result)]
    rows = [r for r in rows if had_the_card_alone(r) and not is_first_order(r.config["method"])]
    rows = [r for r in rows if "ranks" not in r.config]
    for task in ("sst2", "copa", "rte", "cb", "squad"):
        speeds = Speeds([r for r in rows if r.config["task"] != task], models)
        ratios = {}
        for record in (r for r in rows if r.config["task"] == task):
            config = from_dict(record.config)
            work = typical(config)
            if padded := record.result.get("padded_tokens"):  # as an estimate counts it from the rows
                shapes = sum(made["steps"] for made in record.result["steps_made"] if made["mode"] == "eager")
                work = dataclasses.replace(work, padded=padded / record.result["steps"], shapes=shapes)
            said, took = speeds.run(config, work), record.result["run_seconds"]
            if task == "squad":
                said, took = speeds.step(config, work), steady_seconds(record.result)
            ratios.setdefault((config.kind, config.method), []).append(said / took)
        assert ratios
        for cell, found in ratios.items():
            assert 0.75 < statistics.median(found) < 1.25, (task, cell)


def test_estimates_know_captured_steps_products_and_evaluation():
    model = {"m": Model(268098176, 167772160, 18)}
    speeds = Speeds([], model)
    run = dataclasses.replace(plan.tuning_runs(SMALL, MEZO, "m", "cuda")[0], engine=True)
    work = typical(run)
    captured, plain = (speeds.step(dataclasses.replace(run, engine=e), work) for e in (True, False))
    assert plain > 5 * captured, "the host launches what a graph replays"
    assert speeds.step(dataclasses.replace(run, products="tf32"), work) < captured
    hizoo = dataclasses.replace(run, method="hizoo")
    assert speeds.step(hizoo, work) == plain, "no captured step, whatever is asked"
    fzoo = dataclasses.replace(run, method="fzoo")
    assert speeds.step(fzoo, work) == pytest.approx(4.5 * captured), "nine forwards"
    cons = dataclasses.replace(run, method="zo-sgd-cons")
    assert captured < speeds.step(cons, work) < plain
    few, many = (dataclasses.replace(run, eval_every=every) for every in (1000, 10))
    looked = speeds.run(many, work) - speeds.run(few, work)
    body = 268098176 - 167772160
    assert looked > (200 - 2) * body * work.dev / 1.55e13, "looks at dev cost their forwards at least"
    test = dataclasses.replace(run, role="test")
    assert speeds.run(test, work) > speeds.run(run, work)
    assert speeds.run(dataclasses.replace(test, method="icl", eps=None, lr=None), work) > 5 * speeds.run(
        dataclasses.replace(test, method="zero-shot", eps=None, lr=None), work
    )


def test_work_is_counted_from_the_rows(toy_data, tmp_path):
    """The padded tokens that a run's own batches have."""
    env = environment(toy_data, models=random_models(tmp_path), pretrained=False)
    config = resolved(opt(steps=20, batch_size=6), env)
    work = counted(config, env)
    session = Session(config, env)
    stream = BatchStream(len(session.tokens(config).train), 6, config.data_seed)
    sizes = [session.batch(config, stream.rows(step))["input_ids"].numel() for step in range(1, 21)]
    assert work.padded == sum(sizes) / 20
    assert work.dev == sum(len(row) for e in session.tokens(config).dev for row in e.rows)
    assert work.test_rows == len(session.tokens(config).split.test)
    assert counted(dataclasses.replace(config, engine=True), env).shapes == 1


@pytest.mark.parametrize(
    ("words", "alone"), [("", True), (" --sharing 1 --out o", True), (" --sharing 2", False), (" --sharing=2", False)]
)
def test_seconds_of_runs_that_shared_a_card_are_left_out(words, alone):
    config = dataclasses.replace(plan.tuning_runs(SMALL, MEZO, "m", "cuda")[0], engine=True)
    result = {"status": "out_of_budget", "steps": 10, "training_seconds": 3.0}
    record = Record.of("x", config.to_dict(), result, {"command": f"python -m tools.gpu_rows{words}"})
    assert had_the_card_alone(record) == alone
    assert Speeds([record], {"m": Model(10, 2, 1)}).known(config) == alone


def test_seconds_of_several_ranks_are_left_out():
    config = dataclasses.replace(plan.tuning_runs(SMALL, MEZO, "m", "cuda")[0], engine=True)
    result = {"status": "out_of_budget", "steps": 10, "training_seconds": 3.0}
    for ranks in (1, 2):
        record = Record.of("x", dataclasses.replace(config, ranks=ranks).to_dict(), result)
        assert Speeds([record], {"m": Model(10, 2, 1)}).known(config) == (ranks == 1)
