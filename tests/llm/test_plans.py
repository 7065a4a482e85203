"""Budgets, choices, numbers and estimates, on records made by hand."""

import dataclasses
import math

import numpy as np
import pytest
from handmade import MEZO, SMALL, judged, tuned

from helene.lab.store import Record
from llm_bench.protocol import plan
from llm_bench.protocol.estimate import ModelSize, estimate, step_bytes
from llm_bench.protocol.execute import Bench, Clock
from llm_bench.protocol.paper_tables import CONTROL, TABLES
from llm_bench.protocol.plan import Cell, cells, cells_of_table, choose
from llm_bench.protocol.presets import PRESETS, TUNING_SEED, get_preset
from llm_bench.report.cell_numbers import interval, numbers
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.environment import Environment


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


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_method_of_a_preset_has_the_same_budget(name):
    preset = get_preset(name)
    for cell in cells(preset):
        runs = plan.tuning_runs(preset, cell, "m", "cpu")
        if cell.method in UNTRAINED:
            assert not runs
            continue
        assert len(runs) == len(preset.multiples)
        assert {r.role for r in runs} == {"tune"}
        assert {r.seed for r in runs} == {TUNING_SEED}
        tests = plan.test_runs(preset, cell, "m", "cpu", 1e-3)
        assert len(tests) == len(preset.seeds[cell.kind])
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


def test_the_best_dev_metric_is_chosen_then_the_lower_loss_and_edges_are_told():
    grid = [tuned(1e-7, 0.6, 0.7), tuned(1e-6, 0.8, 0.5), tuned(1e-5, 0.8, 0.4), tuned(1e-4, 0.5, 9.0)]
    assert choose(grid).lr == 1e-5
    assert not choose(grid).edge
    assert choose(grid[:3]).edge
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
    assert interval([5.0]) == (None, None)
    assert found.bytes == 10**9
    assert found.speed == 3000


def test_estimates_take_measured_speed_where_there_is_one():
    shape = ModelSize(parameters=10**9, embedding=10**8, vocabulary=50_000, hidden=2048)
    runs = plan.tuning_runs(SMALL, MEZO, "m", "cuda")
    guess = estimate(runs, {"m": shape})
    assert guess.source == "counted"
    assert guess.bytes >= 4 * 10**9
    known = Record.of("x", runs[0].to_dict(), {"steps": 1000, "training_seconds": 20.0})
    told = estimate(runs, {"m": shape}, [known])
    assert told.source == "measured"
    assert told.seconds == pytest.approx(6 * 2000 * 0.02)
    captured = Bench(SMALL, {"causal": "m"}, Environment(""), "cuda", {"engine": True})
    asked = [captured.asked(run) for run in runs]
    assert estimate(asked, {"m": shape}, [known]).source == "counted", "of a run without the engine"
    known.config["engine"] = True
    assert estimate(asked, {"m": shape}, [known]).source == "measured"
    helene = plan.tuning_runs(SMALL, dataclasses.replace(MEZO, method="helene"), "m", "cuda")[0]
    assert step_bytes(helene, shape) - step_bytes(runs[0], shape) == 2 * 4 * 10**9


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
    assert Clock(1.0, [ended(70.0), ended(50.0)]).has_time(config), "the latest counts"


def test_configs_of_a_plan_are_plain():
    for cell in cells(SMALL):
        for run in plan.tuning_runs(SMALL, cell, "m", "cpu"):
            assert isinstance(run, RunConfig)
            assert np.isfinite(run.lr)
