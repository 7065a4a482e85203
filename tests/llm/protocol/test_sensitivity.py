"""How forgiving a step size is, from made-up tuning runs whose answer is known."""

import dataclasses

import pytest

from helene import cli as helene_cli
from helene.lab.runs.store import Record, Store
from llm_bench.protocol import plan
from llm_bench.protocol.execute import CellRecords
from llm_bench.protocol.plan import Cell, choose
from llm_bench.protocol.presets import get_preset
from llm_bench.report import tables
from llm_bench.report.page_tables import begin, end, put_between_marks
from llm_bench.report.sensitivity import MARKS, grouped, markdown, sensitivity
from llm_bench.runs.natural_step import denominator

SMALL = get_preset("small")
MEZO = Cell("causal", "sst2", "mezo", "full")


def tuned(lr, loss, status="out_of_budget", cell=MEZO, metric=0.8):
    config = dataclasses.replace(plan.tuning_runs(SMALL, cell, "m", "cpu")[0], lr=lr)
    dev = None if loss is None else {"metric": metric, "loss": loss, "option_loss": loss, "auc": None}
    return Record.of("llm/small", config.to_dict(), {"status": status, "dev": dev, "curve": {"dev_loss": [1.0]}})


GRID = [
    tuned(1e-7, 0.7),
    tuned(1e-6, 0.53),
    tuned(1e-5, 0.49, metric=0.9),
    tuned(1e-4, 9.0, "diverged"),
    tuned(1e-3, None, "non_finite"),
]


def test_the_working_range_the_diverged_and_the_untuned():
    found = sensitivity(GRID)
    assert (found.best, found.loss, found.metric, found.edge) == (1e-5, 0.49, 0.9, False)
    assert found.width == pytest.approx(10)
    assert found.lost == pytest.approx(2 / 5)
    assert found.untuned == (1e-6, 0.53)
    assert sensitivity(GRID[:3]).edge
    assert sensitivity(GRID[:1]).width == 1
    assert sensitivity(GRID[2:3]).untuned is None, "the natural step size was not tried"
    assert sensitivity(GRID[4:]) is None


def test_a_method_is_summed_up_from_its_grids():
    """Three grids that work over factors of 10, 10 and 1; untuned works in the first two. Small grids do not count."""
    narrow = [tuned(10**-i, loss) for i, loss in ((7, 0.9), (6, 0.8), (5, 0.5), (4, 0.9))]
    found = [sensitivity(GRID), sensitivity(GRID), sensitivity(narrow), sensitivity(GRID[:3])]
    assert "| MeZO | 3 | 10 | 0 | 27% | 2 of 3 |" in markdown(found)
    assert "| grids |" not in markdown([sensitivity(GRID[:3])])


@pytest.mark.parametrize("losses", [(1.0,), (1.2, 1.1)])
def test_no_step_size_works_where_none_lowers_the_loss(losses):
    found = sensitivity([tuned(10**-i, loss) for i, loss in enumerate(losses, start=6)])
    assert found.width is None
    assert f"loss {min(losses):.3f} from 1.000 | – | 0%" in markdown([found])


def test_no_step_size_is_the_best_where_all_were_lost_with_the_model_as_it_was():
    lost = [tuned(1e-6, 1.0, "diverged"), tuned(1e-5, 1.0, "non_finite")]
    found = sensitivity(lost)
    assert (found.best, found.edge, found.lost) == (None, False, 1.0)
    assert "| none of 2 | 0.800, loss 1.000 from 1.000 | – | 100% |" in markdown([found])
    late = Record.of(lost[0].experiment, lost[0].config, {**lost[0].result, "best_step": 100})
    assert sensitivity([late, lost[1]]).best == 1e-6, "it learned before it was lost"


def test_a_loss_that_is_no_number_is_none():
    assert sensitivity([tuned(1e-6, float("nan")), *GRID]).best == 1e-5
    assert sensitivity([tuned(1e-6, float("nan"))]) is None


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("fingerprint", ("a" * 64, "b" * 64), "fingerprint aaaaaaaa"),
        ("products", ("float32", "tf32"), "products float32"),
        ("batch_size", (8, 16), "batch_size 8"),
    ],
)
def test_rows_of_one_name_are_told_apart(name, values, said):
    runs = [Record.of("llm/small", {**r.config, name: value}, r.result) for value in values for r in GRID[:2]]
    rows = markdown(grouped(runs)).splitlines()[2:]
    assert len({row.partition(" | ")[0] for row in rows}) == len(rows) == 2
    assert f"| sst2 (causal), m, 2000, {said} |" in rows[0]
    assert "fingerprint" not in markdown(grouped(GRID)), "alone a row needs none"


def test_files_without_tuning_runs_and_two_results_of_one_run_are_one_line(tmp_path, capsys):
    from helene.lab.runs.records import write_jsonl

    names = [str(tmp_path / name) for name in ("empty.jsonl", "one.jsonl", "other.jsonl")]
    (tmp_path / "empty.jsonl").write_text("")
    assert helene_cli.main(["llm", "sensitivity", names[0]]) == 2
    assert "no tuning run with a dev loss is in" in capsys.readouterr().err
    write_jsonl(names[1], GRID, "test")
    write_jsonl(names[2], [tuned(1e-6, 0.1)], "test")
    assert helene_cli.main(["llm", "sensitivity", *names[1:]]) == 2
    assert f"{GRID[1].key} has two results, the other one in {names[2]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "name", "why"),
    [
        ("config", "method", "their config has no method"),
        ("config", "lr", "their config has no lr"),
        ("result", "status", "their result has no status"),
        ("result", "curve", "their result has no curve"),
    ],
)
def test_runs_that_lack_something_are_left_out_with_a_word(part, name, why, tmp_path, capsys):
    from helene.lab.runs.records import write_jsonl

    less = {"config": dict(GRID[2].config), "result": dict(GRID[2].result)}
    del less[part][name]
    write_jsonl(tmp_path / "r.jsonl", [*GRID[:2], Record.of("llm/small", **less)], "test")
    assert helene_cli.main(["llm", "sensitivity", str(tmp_path / "r.jsonl")]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == markdown(grouped(GRID[:2]))
    assert err.strip() == f"tuning runs left out: 1, {why}"


def test_runs_of_unknown_methods_are_left_out_with_a_word(tmp_path, capsys):
    from helene.lab.runs.records import write_jsonl

    others = [Record.of(r.experiment, {**r.config, "method": "mezzo"}, r.result) for r in GRID[:3]]
    write_jsonl(tmp_path / "r.jsonl", [*GRID, *others], "test")
    assert helene_cli.main(["llm", "sensitivity", str(tmp_path / "r.jsonl")]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == markdown(grouped(GRID))
    assert err.strip() == "tuning runs left out: 3, this version has no method 'mezzo'"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"config": {"tuning": "half"}}, "this version has no tuning 'half'"),
        ({"result": {"curve": {}}}, "their curve has no dev_loss"),
        ({"result": {"curve": None}}, "their curve has no dev_loss"),
    ],
)
def test_runs_that_cannot_be_read_are_left_out_with_a_word(change, why, tmp_path, capsys):
    from helene.lab.runs.records import write_jsonl

    parts = {name: {**getattr(GRID[2], name), **change.get(name, {})} for name in ("config", "result")}
    write_jsonl(tmp_path / "r.jsonl", [*GRID[:2], Record.of("llm/small", **parts)], "test")
    assert helene_cli.main(["llm", "sensitivity", str(tmp_path / "r.jsonl")]) == 0
    assert capsys.readouterr().err.strip() == f"tuning runs left out: 1, {why}"


def test_hyper_parameters_of_a_run_move_its_untuned_step_size():
    """Here by a floor that no h reaches: the divisor of HELENE's first moves is that floor."""
    cell, hyper = dataclasses.replace(MEZO, method="helene"), {"floor": 1e9}
    slope = {"mean_square": 1e4, "dimension": 1e6}
    lr = float(f"{1e-7 * denominator('helene', slope, 16, hyper):.3g}")
    assert lr == pytest.approx(100, rel=0.01)
    runs = [Record.of(r.experiment, {**r.config, "hyper": hyper}, r.result) for r in (tuned(lr, 0.6, cell=cell),)]
    measured = plan.slope_run(SMALL, cell, "m", "cpu").to_dict()
    found = sensitivity([Record.of("llm/small", measured, {"status": "out_of_budget", "slope": slope}), *runs])
    assert found.untuned == (lr, 0.6)


def test_helene_is_untuned_where_its_measured_slope_says():
    cell = dataclasses.replace(MEZO, method="helene")
    slope = {"mean_square": 1e4, "dimension": 1e6}
    lr = float(f"{1e-7 * denominator('helene', slope, 16):.3g}")
    runs = [tuned(lr / 3, 0.9, cell=cell), tuned(lr, 0.6, cell=cell), tuned(3 * lr, 0.5, cell=cell)]
    assert sensitivity(runs).untuned is None
    measured = Record.of(
        "llm/small", plan.slope_run(SMALL, cell, "m", "cpu").to_dict(), {"status": "out_of_budget", "slope": slope}
    )
    assert sensitivity([measured, *runs]).untuned == (lr, 0.6)
    (one,) = grouped([*runs, measured])
    assert one == sensitivity([measured, *runs])
    both = grouped([*GRID, *runs, measured])
    assert [s.method for s in both] == ["mezo", "helene"]
    assert both[0] == sensitivity(GRID)


@pytest.mark.parametrize("other", [{"dtype": "bfloat16"}, {"batch_size": 8}, {"hyper": {"num_directions": 2}}])
def test_runs_that_differ_in_more_than_the_step_size_are_two_grids(other):
    """One store may hold both, made by --dtype, --products or another version of a preset."""
    again = [Record.of(r.experiment, {**r.config, **other}, r.result) for r in GRID[:2]]
    assert grouped([*again, *GRID]) == [sensitivity(again), sensitivity(GRID)]


def test_the_page_has_them_too():
    table = {MEZO: (CellRecords(choose(GRID[:4]), (), 3, 3, (), tuple(GRID[:4])), None)}
    ((_, task, width, lost, *losses),) = tables.sensitivity_rows(table)
    assert (task, width, lost) == ("SST-2 (causal)", pytest.approx(10), 0.25)
    assert losses == [0.49, 1.0, 0.53]
    assert "Untuned" in str(tables.sensitivity_section(table).body[0])


def test_the_table_is_put_between_its_marks_and_nowhere_else(tmp_path, capsys):
    from helene.lab.runs.records import write_jsonl

    write_jsonl(tmp_path / "r.jsonl", GRID, "test")
    target = tmp_path / "page.md"
    first, last = begin(MARKS), end(MARKS)
    target.write_text(f"# A\n\n{first}\nold\n{last}\nafter\n")
    words = ["llm", "sensitivity", str(tmp_path / "r.jsonl"), "--write", str(target)]
    assert helene_cli.main([*words[:3], *words[2:]]) == 0
    text = target.read_text()
    assert text == f"# A\n\n{first}\n{markdown(grouped(GRID))}\n{last}\nafter\n"
    assert "| 1.0e-05 of 5 | 0.900, loss 0.490 from 1.000 | 10 | 40% | 1.0e-06: loss 0.530 |" in text
    assert put_between_marks(text, MARKS, markdown(grouped(GRID))) == text
    for broken in ("no marks", first, f"{last}{first}", f"{first}{last}{first}"):
        with pytest.raises(ValueError, match="once each"):
            put_between_marks(broken, MARKS, "x")
    with Store(tmp_path / "r.sqlite"):
        assert helene_cli.main(["llm", "sensitivity", str(tmp_path / "r.sqlite")]) == 2
    assert "no text; give a file that `helene records export` has written" in capsys.readouterr().err
    target.write_text("no marks")
    assert helene_cli.main(words) == 2
    assert "once each" in capsys.readouterr().err
    made = tmp_path / "new" / "page.md"
    for _ in range(2):
        assert helene_cli.main([*words[:-1], str(made)]) == 0
        assert made.read_text() == f"{first}\n{markdown(grouped(GRID))}\n{last}\n", "a page that was missing"
