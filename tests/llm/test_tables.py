"""Plans, choices, numbers and pages, on records made by hand; and one short run of everything."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import llm_bench
from helene import cli as helene_cli
from helene.lab import canonical
from helene.lab.store import Record, Store
from llm_bench import arguments, committed, demo
from llm_bench.estimate import Shape, estimate, step_bytes
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.environment import Environment
from llm_bench.tables import details, draw, page, plan
from llm_bench.tables.execute import Bench, Clock, Measured, execute, experiment, measured
from llm_bench.tables.numbers import interval, numbers
from llm_bench.tables.paper import CONTROL, TABLES
from llm_bench.tables.plan import Cell, cells, cells_of_table, choose
from llm_bench.tables.presets import PRESETS, TUNING_SEED, get_preset
from llm_bench.tiny.pretrain import Recipe

ROWS = Path(llm_bench.__file__).parent / "records" / "rows"
SMALL = get_preset("small")
MEZO = Cell("causal", "sst2", "mezo", "full")


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


def tuned(lr, metric, loss, status="out_of_budget"):
    config = plan.tuning_runs(SMALL, MEZO, "m", "cpu")[0]
    dev = None if metric is None else {"metric": metric, "loss": loss, "option_loss": loss, "auc": None}
    return Record.of("x", dataclasses.replace(config, lr=lr).to_dict(), {"status": status, "dev": dev})


def test_the_best_dev_metric_is_chosen_then_the_lower_loss_and_edges_are_told():
    grid = [tuned(1e-7, 0.6, 0.7), tuned(1e-6, 0.8, 0.5), tuned(1e-5, 0.8, 0.4), tuned(1e-4, 0.5, 9.0)]
    assert choose(grid).lr == 1e-5
    assert not choose(grid).edge
    assert choose(grid[:3]).edge
    failed = choose([tuned(1e-6, None, None, "non_finite"), tuned(1e-5, None, None, "out_of_memory")])
    assert failed.lr is None
    assert [status for *_, status in failed.tried] == ["non_finite", "out_of_memory"]


def judged(seed, metric, steps=100, target=0.8, method="mezo", kind="causal", task="sst2", auc=0.9):
    cell = Cell(kind, task, method, "full")
    config = dataclasses.replace(plan.test_runs(SMALL, cell, "m", "cpu", 1e-6)[0], seed=seed)
    curve = {"step": [0, 100, 200], "dev_metric": [0.5, metric, metric], "dev_loss": [0.7, 0.5, 0.4]}
    curve |= {"forwards": [0, 200, 400], "training_seconds": [0.0, 1.0, 2.0], "train_loss": [None, 0.6, 0.5]}
    result = {
        "status": "reached",
        "test": {"metric": metric, "loss": 0.4, "option_loss": 0.4, "auc": auc, "num_examples": 100},
        "target": {"value": target, "steps": steps, "forwards": 2 * steps, "training_seconds": steps / 100},
        "curve": curve,
        "training_seconds": 2.0,
        "tokens": 6000,
        "best_step": 100,
        "peak_bytes": {"step": 10**9},
        "data": {"source": "drawn", "overlap_with_test": 0, "train": 10, "dev": 10, "test": 10},
    }
    return Record.of("x", config.to_dict(), result)


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


def table_of(*records, choice=None):
    grouped = {}
    for record in records:
        c = record.config
        grouped.setdefault(Cell(c["kind"], c["task"], c["method"], c["tuning"]), []).append(record)
    return {cell: (Measured(choice, tuple(rs), len(rs), 0), numbers(rs)) for cell, rs in grouped.items()}


def test_the_first_line_says_when_nothing_beats_the_controls():
    control, mezo = judged(0, 0.77, method="bias-only"), judged(0, 0.75)
    assert page.answer(table_of(control, mezo)).startswith("No row beats the controls that were run (bias-only)")
    better = page.answer(table_of(control, judged(0, 0.85)))
    assert "MeZO reaches 85.0, the best control run here (Bias only" in better
    assert "nothing can be said" in page.answer(table_of(mezo))
    choices = table_of(judged(0, 0.68, method="zero-shot", task="copa"), judged(0, 0.67, task="copa"))
    assert "no trained row beats the controls (Zero-shot 68.0, MeZO 67.0)" in page.answer(choices)
    tie = page.answer(table_of(control, judged(0, 0.77)))
    assert tie.startswith("No row beats")


def shown(section):
    return "".join(str(piece) for piece in section.body)


def test_seconds_of_steps_without_the_engine_are_told_apart():
    captured, plain = judged(0, 0.8), judged(0, 0.7, method="helene-backprop")
    captured.config["engine"] = True
    assert "Steps without the engine: HELENE, h by backward (Algorithm 2)." in shown(
        page.costs_section(table_of(captured, plain))
    )
    assert "without the engine" not in shown(page.costs_section(table_of(captured)))
    assert "without the engine" not in shown(page.costs_section(table_of(plain)))


def test_prompts_that_were_cut_are_told():
    long = judged(0, 0.5, method="icl", task="rte")
    long.result["method"] = {"share_cut": 0.25}
    assert "rte (causal), ICL, 32 demonstrations: 25 % of the prompts" in shown(page.facts_section(table_of(long)))
    long.result["method"] = {"share_cut": 0.0}
    assert "prompts" not in shown(page.facts_section(table_of(long)))


def test_a_cell_under_way_shows_what_was_tried_and_that_no_test_run_is_there():
    grid = tuned(1e-6, 0.7, 0.5), tuned(3e-6, 0.6, 0.6)
    table = {MEZO: (Measured(None, (), 3, 4, tuning=grid), None)}
    html = shown(page.table_section(table, TABLES["2"], {"causal": "gemma"}))
    assert f'href="#{page.anchor(MEZO)}">not tested yet' in html
    under_way = shown(details.cells_section(table, "helene llm table 2"))
    assert f'id="{page.anchor(MEZO)}"' in under_way
    assert "2 step sizes" in under_way
    assert "No test run is there yet." in under_way
    failed = table_of(judged(0, 0.8))
    for record in failed[MEZO][0].tests:
        record.result.update(status="out_of_memory", test=None, curve=None)
    assert "out of memory" in shown(details.cells_section(failed, ""))
    of_failed = {MEZO: (failed[MEZO][0], None)}
    assert ">out of memory</a>" in shown(page.table_section(of_failed, TABLES["2"], {"causal": "gemma"}))
    hopeless = {MEZO: (Measured(choose(grid), (), 3, 0, tuning=grid), None)}
    assert ">no step size ended well</a>" in shown(page.table_section(hopeless, TABLES["2"], {"causal": "gemma"}))
    of_another = table_of(judged(0, 0.8, task="copa"))
    assert "so not drawn: MeZO on sst2 (causal)." in shown(draw.section(table | of_another))


def test_the_page_shows_both_numbers_links_and_what_was_not_run(tmp_path):
    records = [judged(0, 0.8), judged(1, 0.84), judged(0, 0.77, method="bias-only")]
    table = table_of(*records)
    paper = TABLES["2"]
    html = shown(page.table_section(table, paper, {"causal": "gemma"}))
    assert "89.6" in html
    assert f'href="#{page.anchor(MEZO)}"' in html
    assert html.count("not run") == len(paper.rows) - 2
    assert "gemma" in html
    cells_html = shown(details.cells_section(table, "helene llm table 2"))
    assert "method = &#34;mezo&#34;" in cells_html
    assert f'id="{page.anchor(MEZO)}"' in cells_html
    costs = shown(page.costs_section(table))
    assert "200" in costs
    path = page.write(
        tmp_path,
        "table-2",
        title="t",
        table=table,
        sections=[draw.section(table)],
        command="helene llm",
        provenance={},
    )
    assert path.read_text().count("<svg") >= 2
    assert json.loads((tmp_path / "llm/summary.json").read_text())["cells"]


def test_profiles_compare_task_and_seed_pairs_and_a_miss_is_never_within_a_factor():
    records = [judged(0, 0.8, 100), judged(1, 0.8, math.inf)]
    records += [judged(0, 0.8, 300, method="helene"), judged(1, 0.8, 100, method="helene")]
    assert draw.profile(table_of(*records)) is not None
    assert draw.profile(table_of(*records[:2])) is None
    missed = [judged(0, 0.8, math.inf), judged(0, 0.8, math.inf, method="helene")]
    assert draw.profile(table_of(*missed)) is None


def test_figures_name_known_methods():
    from llm_bench import methods

    for names in draw.FIGURES.values():
        assert all(name in methods.METHODS for name in names)
    with pytest.raises(ValueError, match="there is no figure 'pie'"):
        draw.figure_cells([], "pie")
    assert draw.FIGURES.keys() == draw.TITLES.keys()


def test_estimates_take_measured_speed_where_there_is_one():
    shape = Shape(parameters=10**9, embedding=10**8, vocabulary=50_000, hidden=2048)
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


# Everything, once, in small


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A bench of an unripe tiny model: the way there, not the accuracy."""
    import llm_bench.demo as module

    cache = tmp_path_factory.mktemp("cache")
    preset = dataclasses.replace(
        get_preset("smoke"),
        tasks={"causal": ("sst2",)},
        methods=("mezo",),
        steps={"causal": 6},
        looks=2,
        num_train=20,
        num_dev=10,
        num_test=20,
    )
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "Recipe", lambda kind: Recipe(kind, steps=4, width=16, heads=2))
    made = demo.tiny_bench(preset, cache, ("causal",))
    yield made, cache, patch
    patch.undo()


def test_a_preset_runs_to_a_page_and_a_second_call_runs_nothing(tiny, tmp_path):
    made, _, _ = tiny
    wanted = cells(made.preset)
    with Store(tmp_path / "s.sqlite") as store:
        assert execute(made, wanted, store, minutes=0.0, progress=False) == sum(
            measured(made, c, {}).left for c in wanted
        ), "no time, no run"
        assert execute(made, wanted, store, progress=False) == 0
        records = store.records(experiment("smoke"))
        assert len(records) == 3 + 2 + 3
        assert execute(made, wanted, store, minutes=1.0, progress=False) == 0
        assert store.records(experiment("smoke")) == records
    path = demo.demo_page(tmp_path, made, records)
    html = path.read_text()
    assert "MeZO" in html
    assert "not run" in html
    assert (tmp_path / "index.html").is_file()


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


def test_commands(tiny, tmp_path, capsys, monkeypatch):
    made, _, _ = tiny
    model = f"tiny OPT={made.env.models['tiny OPT']}"
    where = ["--model", model, "--data", made.env.data]
    settings = ["kind=causal", "task=sst2", "method=zero-shot", "num_train=20", "num_dev=10", "num_test=20"]
    words = ["llm", "run", *where, *(w for s in settings for w in ("--set", s))]
    # the tiny model's language is not English: the noted loss is what is checked
    assert helene_cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["test"]["num_examples"] == 20
    store = ["--store", str(tmp_path / "c.sqlite")]
    assert helene_cli.main([*words, *store]) == 0
    said = capsys.readouterr().out
    with Store(tmp_path / "c.sqlite", read_only=True) as kept:
        (record,) = kept.records("llm/run")
    assert canonical.loads(said) == record.result
    assert record.config["method"] == "zero-shot"
    with monkeypatch.context() as patch:
        patch.setattr("llm_bench.runs.run.run", lambda *_, **__: pytest.fail("a run that is there was made again"))
        assert helene_cli.main([*words, *store]) == 0
    assert capsys.readouterr().out == said
    with monkeypatch.context() as patch:
        patch.setattr("llm_bench.runs.run.evaluated", lambda *_: 1 / 0)
        assert helene_cli.main([*words, "--set", "data_seed=1", *store]) == 1
    printed = capsys.readouterr()
    assert canonical.loads(printed.out)["status"] == "error"
    assert "the run failed: ZeroDivisionError" in printed.err
    assert helene_cli.main(["llm", "estimate", "--preset", "smoke", *where, *store]) == 0
    assert "causal, tiny OPT: " in capsys.readouterr().out
    elsewhere = ["--device", "cuda", "--engine"]
    assert helene_cli.main(["llm", "estimate", "--preset", "smoke", *where, *store, *elsewhere]) == 0
    assert "(counted speed)" in capsys.readouterr().out, "a forecast for a GPU needs none"
    tune = ["llm", "tune", "--forwards", "300", "--kind", "causal", "--task", "sst2", *where, *store]
    small = ["num_train=20", "num_dev=10", "batch_size=4"]
    assert helene_cli.main([*tune, *(w for s in small for w in ("--set", s))]) == 0
    assert "best: lr=" in capsys.readouterr().out
    assert helene_cli.main([*tune[:3], "50", *tune[4:]]) == 2
    assert "forwards must be at least 240" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table", "1", "--preset", "none"], "there is no preset 'none'"),
        (
            ["table", "1", "--tasks", "sst2", "nope"],
            "--tasks has 'nope', which preset small does not; it has sst2, copa",
        ),
        (["sweep", "--tunings", "half"], "--tunings has 'half', which preset small does not"),
        (["table", "1", "--model", "/nowhere"], "there is no model folder /nowhere"),
        (["table", "1", "--device", "cuda"], "torch sees no CUDA device"),
        (["table", "1", "--device", "tpu"], "the device must be cpu, cuda or one such as cuda:1, got 'tpu'"),
        (["table", "memory", "--device", "tpu"], "the device must be cpu, cuda or one such as cuda:1, got 'tpu'"),
        (["profile", "--shape", "opt-tiny", "--device", "tpu"], "the device must be cpu, cuda or one such as cuda:1"),
        (["table", "memory", "--batches", "16x64,16y64"], "rows and tokens a row, such as 16x64; got '16y64'"),
        (["profile", "--shape", "opt-tiny", "--batch", "0x4"], "rows and tokens a row, such as 16x64; got '0x4'"),
        (["table", "1", "--methods", "mezo", "nope"], "there is no method 'nope'; there are mezo, helene"),
        (["table", "1", "--methods", "nope", "--draw-only"], "there is no method 'nope'; there are mezo, helene"),
        (["run", "--config", "nofile.toml"], "there is no file nofile.toml; a run's settings are a TOML file"),
    ],
)
def test_bad_words_are_one_line(words, message, tiny, tmp_path, capsys):
    import torch

    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    made, _, _ = tiny
    base = {"--model": made.env.models["tiny OPT"], "--data": made.env.data, "--store": str(tmp_path / "b.sqlite")}
    if words[0] == "profile":
        del base["--store"]
    given = [w for name, value in base.items() if name not in words for w in (name, value)]
    assert helene_cli.main(["llm", *words, *given]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("minutes", ["-1", "nan", "soon"])
def test_minutes_are_not_negative(minutes, capsys):
    with pytest.raises(SystemExit, match="2"):
        helene_cli.main(["llm", "sweep", "--model", "x", "--data", "x", "--store", "x", "--minutes", minutes])
    assert "argument --minutes: " in capsys.readouterr().err


def test_a_damaged_weight_file_is_named(tiny, tmp_path, capsys):
    made, _, _ = tiny
    shutil.copytree(made.env.models["tiny OPT"], tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    words = ["llm", "run", "--model", str(tmp_path / "model"), "--data", made.env.data]
    settings = ["kind=causal", "task=sst2", "method=zero-shot"]
    assert helene_cli.main([*words, *(w for s in settings for w in ("--set", s))]) == 2
    said = capsys.readouterr().err
    assert f"{weights} is damaged: " in said
    assert said.count("\n") == 1


def test_a_page_can_be_drawn_where_the_device_of_its_runs_is_not(tiny, tmp_path, capsys):
    made, _, _ = tiny
    Store(tmp_path / "b.sqlite").close()
    where = ["--model", made.env.models["tiny OPT"], "--data", made.env.data, "--store", str(tmp_path / "b.sqlite")]
    words = ["llm", "table", "2", *where, "--device", "cuda", "--engine", "--tasks", "sst2", "--methods", "mezo"]
    assert helene_cli.main([*words, "--draw-only", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "llm" / "table-2-small.html").read_text()
    assert "--methods mezo --tasks sst2 --device cuda --engine" in text, "the command is the whole of it"


def test_every_page_of_the_committed_rows_is_drawn(tmp_path, capsys):
    (tmp_path / "llm").mkdir()
    (tmp_path / "llm" / "committed.sqlite").write_text("an earlier call's")
    assert committed.main(["--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(committed.PAGES)
    assert all(Path(line).is_file() for line in said)
    assert "Table 2: Causal language models" in (tmp_path / "index.html").read_text()


def test_committed_rows_that_cannot_be_put_together_are_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "o" / "llm" / "committed.sqlite").mkdir(parents=True)
    for out, message in (("file", "Not a directory"), ("o", "is no regular file")):
        with pytest.raises(SystemExit):
            committed.main(["--out", str(tmp_path / out)])
        assert message in capsys.readouterr().err
    monkeypatch.setattr(committed, "RECORDS", tmp_path / "none")
    with pytest.raises(SystemExit):
        committed.main(["--out", str(tmp_path / "p")])
    assert "memory-h200.jsonl" in capsys.readouterr().err


def test_committed_rows_are_drawn_without_their_models_and_data(tmp_path, capsys):
    store = tmp_path / "rows.sqlite"
    with Store(store) as opened:
        opened.merge(ROWS / "small-masked-sst2.jsonl")
        rows = opened.records("llm/small")
    words = ["llm", "table", "1", "--draw-only", "--store", str(store), "--out", str(tmp_path)]
    assert helene_cli.main(words) == 0
    text = (tmp_path / "llm" / "table-1-small.html").read_text()
    tests = [r.result["test"]["metric"] for r in rows if (r.config["method"], r.config["role"]) == ("mezo", "test")]
    assert f"{100 * np.mean(tests):.1f} [" in text
    with Store(store) as opened:
        opened.put(dataclasses.replace(rows[0], config={**rows[0].config, "fingerprint": "other"}, key="0" * 24))
    assert helene_cli.main(words) == 2
    assert "the store has runs of several masked models" in capsys.readouterr().err


def test_models_may_be_named():
    assert arguments.named_models(["gemma=/x/y", "facebook/opt-125m"]) == {
        "gemma": "/x/y",
        "facebook/opt-125m": "facebook/opt-125m",
    }


def test_configs_of_a_plan_are_plain():
    for cell in cells(SMALL):
        for run in plan.tuning_runs(SMALL, cell, "m", "cpu"):
            assert isinstance(run, RunConfig)
            assert np.isfinite(run.lr)
