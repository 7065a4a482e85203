"""The report's answer follows from the records, and flags itself."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import synthetic
from helene.lab.runs.records import read_jsonl
from helene.noise import NOISE_VERSION
from synthetic.analysis.results import collect
from synthetic.analysis.tuning import cells_where_h_acts, h_acts
from synthetic.analysis.verdicts import analyse, follows_what
from synthetic.design import Design, load
from synthetic.report.answers import answer, comparisons, conclusions, control_sentence
from tests.synthetic.scaling_cases import CONTROL_LAWS, STANDARD, WHOLE, follows_d, follows_max_d, made_up

RECORDS = Path(synthetic.__file__).parent / "records"
QUICK = load("quick", "noise")
FULL = load("full", "noise")


def analysed(design, laws, **options):
    return analyse(collect(design, made_up(design, laws, **options)))


def helene(rows):
    return next(a for a in rows if a.series.method == "helene")


def test_three_sets_of_records_give_three_answers():
    """Under the name HELENE: counts that follow max d_i, counts that follow d, and counts that do not tell."""
    rng = np.random.default_rng(1)
    noise = {(n, w): 8.0 ** rng.uniform(-1, 1) for n in (1, 2, 4, 8, 16, 32) for w in (4, 8, 16, 32, 64, 128)}
    cases = {
        "max_d": follows_max_d,
        "d": follows_d,
        "unknown": lambda n, w: 6.0 * w * n**0.5 * noise[n, w],
    }
    said, verdicts = {}, {}
    for name, law in cases.items():
        rows = analysed(QUICK, {**CONTROL_LAWS, "helene": law}, scatter=0.02 if name != "unknown" else 2.5)
        if name == "unknown":  # the controls must stay sharp while HELENE's own seeds scatter
            sharp = analysed(QUICK, {**CONTROL_LAWS, "helene": law})
            rows = [next(b for b in sharp if b.series.name == a.series.name) if a.control else a for a in rows]
            rows = analyse([a.series for a in rows])
        said[name], verdicts[name] = answer(rows), helene(rows).verdict
        assert helene(rows).follows == name
    assert verdicts == {"max_d": "consistent", "d": "not_consistent", "unknown": "not_resolved"}
    assert "follows max_i d_i, not d" in said["max_d"]
    assert "unexplained" in said["max_d"]
    assert "follows d, not max_i d_i" in said["d"]
    assert "cannot tell" in said["unknown"]


def test_an_exponent_has_the_interval_of_its_own_series():
    """Where d is fixed it has no exponent: beside such a family stands the other one's interval."""
    rows = analysed(QUICK, {**CONTROL_LAWS, "helene": follows_max_d})
    mine = helene(rows)
    law = replace(mine.main.law, exponents={"max_d": 1.0}, intervals={"max_d": (0.9, 1.1)})
    fits = {name: replace(mine.main, law=law, fixed_d=True) for name in mine.fits}
    fixed = replace(mine, series=replace(mine.series, family="relabelled"), fits=fits)
    (said,) = re.findall(r"The exponent of d is .*?\]", answer([mine]))
    assert said in answer([fixed, mine])


def test_an_exponent_in_between_grows_with_d():
    rows = analysed(QUICK, {**CONTROL_LAWS, "helene": lambda n, w: 6.0 * w * n**0.5 + 12})
    assert helene(rows).follows == "between"
    assert helene(rows).verdict == "not_consistent"


def test_no_dependence_at_all_is_said():
    rows = analysed(QUICK, {**CONTROL_LAWS, "helene": lambda n, w: 40.0})
    assert helene(rows).follows == "neither"
    assert helene(rows).verdict == "not_consistent", "exponents of 0 and 0 do not follow max d_i"
    assert "depends neither on max_i d_i nor on d" in answer(rows)


@pytest.mark.parametrize("control", ["mezo", "per_layer"])
def test_a_control_that_is_off_breaks_the_instrument(control):
    """Measured and predicted exponents 0.2 apart: nothing is concluded, whatever HELENE's records look like."""
    off = {control: lambda n, w: CONTROL_LAWS[control](n, w) * n**0.2}
    rows = analysed(QUICK, {**CONTROL_LAWS, "helene": follows_max_d}, predicted=off)
    assert {a.verdict for a in rows} == {"broken_instrument"}
    assert answer(rows).startswith("No answer on HELENE")
    assert "1 of 2 controls" in control_sentence(a.control for a in rows if a.control)


def test_a_small_departure_does_not():
    off = {"mezo": lambda n, w: follows_d(n, w) * n**0.03}
    assert "broken_instrument" not in {a.verdict for a in analysed(QUICK, CONTROL_LAWS, predicted=off)}


def test_missing_controls_break_the_instrument():
    rows = analyse([s for s in collect(QUICK, made_up(QUICK, CONTROL_LAWS)) if s.method != "per_layer"])
    assert {a.verdict for a in rows} == {"broken_instrument"}


def test_ratio_to_mezo_has_an_interval_that_covers():
    rows = analysed(QUICK, {**CONTROL_LAWS, "helene": lambda n, w: 0.7 * follows_d(n, w)})
    value, low, high = helene(rows).ratio
    assert low <= 0.7 <= high
    assert low < value < high
    assert high - low < 0.05


def win_on_quadratics(**laws):
    design = Design(
        "mini", "mini", tuple(c for c in FULL.cells if c.family == "quadratic" and c.starts[0] == "coordinate")
    )
    base = {**CONTROL_LAWS, "helene": lambda n, w: 0.7 * follows_d(n, w), **laws}
    rows = analysed(design, base)
    cause = helene(rows).explained.cause
    return cause, comparisons(rows)[0].says


def test_a_win_is_explained_by_a_control_that_does_as_well():
    cause, said = win_on_quadratics(helene_mean=lambda n, w: 0.7 * follows_d(n, w))
    assert cause == "HELENE, h replaced by its mean"
    assert "the curvature does not explain it" in said


def test_a_win_that_no_control_explains_is_the_curvatures():
    assert win_on_quadratics()[0] == "curvature"


def test_a_loss_is_explained_by_the_controls_that_need_as_many_steps():
    slow = lambda n, w: 1.2 * follows_d(n, w)  # noqa: E731
    cause, said = win_on_quadratics(helene=slow, heavy_ball=slow, helene_mean=lambda n, w: 1.5 * follows_d(n, w))
    assert cause == "heavy-ball MeZO"
    assert "needs more steps than tuned MeZO on quadratics (quadratics only)" in said
    assert said.endswith("As many are needed by heavy-ball MeZO, wherever those were run.")


def test_no_difference_needs_no_explanation():
    rows = analysed(QUICK, {**CONTROL_LAWS, "helene": follows_d}, scatter=0.3)
    found = helene(rows).explained
    assert (found.outcome, found.cause) == ("draw", "none needed")


def test_forwards_count_what_a_step_takes():
    """One direction per layer takes n times the forwards of a step: 0.1 of the steps are 0.1 n of the forwards."""
    cells = tuple(c for c in QUICK.cells if c.config["problem"]["layers"][0][0] == 4)
    design = Design("four", "four", cells)
    records = made_up(design, {**CONTROL_LAWS, "per_layer": lambda n, w: 0.1 * follows_d(n, w)}, scatter=0.0)
    for record in records:
        if record.config.get("method") == "per_layer":
            record.result["forwards_per_step"] = 8.0
    found = next(a for a in analyse(collect(design, records)) if a.series.method == "per_layer")
    np.testing.assert_allclose(np.array(found.forwards_ratio), 4.0 * np.array(found.ratio), rtol=1e-12)
    assert abs(found.forwards_ratio[0] - 0.4) < 0.01


def test_a_conclusion_says_how_far_it_reaches(standard_rows):
    assert "(quadratics only)" in answer(analysed(QUICK, CONTROL_LAWS))
    assert "quadratics only" not in answer(standard_rows)
    at_edge = [replace(a, series=with_edges(a.series)) for a in standard_rows]
    assert "(quadratics only)" in answer(at_edge), "a best step at the edge of its grid counts for nothing"


def with_edges(series):
    if series.problem == "quadratic":
        return series
    return replace(series, cells=tuple(replace(cell, edge=True) for cell in series.cells))


def test_without_matched_controls_a_win_is_unexplained():
    rows = analysed(QUICK, {**CONTROL_LAWS, "helene": lambda n, w: 0.7 * follows_d(n, w)})
    assert helene(rows).explained.cause == "unexplained"
    assert "unexplained until" in comparisons(rows)[0].says


def test_h_acts_where_another_floor_gives_other_steps():
    """Of two floors at one step size, the chosen trial's steps are the other's, or not; with one floor nobody knows."""
    plain = helene(analysed(QUICK, CONTROL_LAWS)).series.cells[0]
    trials = ({"q": 1.0, "floor_ratio": 0.3}, {"q": 1.0, "floor_ratio": 3.0}, {"q": 2.0, "floor_ratio": 3.0})
    cell = replace(plain, trials=trials, best=trials[0], tuning=((5.0, 7.0), (5.0, 7.0), (9.0, 9.0)))
    assert h_acts(cell) is False
    other_steps = replace(cell, tuning=((5.0, 7.0), (5.0, 8.0), (5.0, 7.0)))
    assert h_acts(other_steps) is True, "a trial of another step size says nothing of the floor"
    assert h_acts(replace(cell, trials=({"q": 1.0}, {"q": 2.0}, {"q": 3.0}))) is None
    assert cells_where_h_acts([cell, other_steps, plain]) == (2, 3)


def test_committed_records_say_where_h_never_acts():
    """Counted from the records: 32 of 121 cells of HELENE, most of them on real data and log-cosh."""
    records = read_jsonl(RECORDS / "standard" / "helene.jsonl")
    series = collect(load("standard", NOISE_VERSION), records)
    own = [s for s in series if s.method == "helene" and not s.borrowed]
    assert cells_where_h_acts(cell for s in own for cell in s.cells) == (121 - 32, 121)


def test_a_variant_is_explained_by_its_own_controls():
    """The page's answer on cells where h acts: a loss that the shuffled control shares, not the plain one's."""
    design = Design("low", "low", tuple(c for c in WHOLE.cells if c.family == "breast_cancer"))
    slow = lambda n, w: 1.5 * follows_d(n, w)  # noqa: E731
    rows = analysed(design, {**CONTROL_LAWS, "helene": slow, "helene_shuffled": slow})
    explained = {a.series.variant: a.explained for a in rows if a.explained and a.series.start == "coordinate"}
    assert explained["low floors"].cause == "HELENE, h shuffled"
    assert set(explained["low floors"].rivals) == {"helene_mean", "helene_shuffled"}
    assert set(explained[""].rivals) == {"heavy_ball"}


def test_cells_are_counted_that_lie_where_theory_says():
    """Medians of 10 to 16 runs with a scatter of 2 % lie within 5 %; where theory is 10 % off they do not."""
    sound = {a.series.method: a.control.within for a in analysed(QUICK, CONTROL_LAWS) if a.control}
    assert sound == {"mezo": (30, 30), "per_layer": (30, 30)}
    records = made_up(QUICK, CONTROL_LAWS, predicted={"mezo": lambda n, w: 1.1 * follows_d(n, w)})
    rows = [a for a in analyse(collect(QUICK, records)) if a.control]
    assert {a.series.method: a.control.within for a in rows} == {"mezo": (0, 30), "per_layer": (30, 30)}
    assert "Of 60 cells for which theory gives the law of the count, 30 lie" in control_sentence(
        a.control for a in rows
    )


def test_cells_that_may_miss_by_theory_itself_are_left_out_of_the_controls():
    """One cell that misses breaks a control where theory excludes it, and does not where theory says that it may."""
    records = made_up(QUICK, CONTROL_LAWS)
    for record in records:
        layers, test = record.config["problem"]["layers"], record.result.get("test")
        if layers == [[16, 8]] and record.config.get("method") == "per_layer":
            test.update(steps=[float("inf")] * len(test["steps"]), status="d" * len(test["steps"]))
    broken = next(a.control for a in analyse(collect(QUICK, records)) if a.series.method == "per_layer")
    assert (broken.passed, broken.left_out) == (False, 0)
    for record in records:
        if record.config["problem"]["layers"] == [[16, 8]] and record.config.get("control") == "per_layer":
            record.result["range"][1] = float("inf")
    sound = next(a.control for a in analyse(collect(QUICK, records)) if a.series.method == "per_layer")
    assert (sound.passed, sound.left_out) == (True, 1)


def test_censored_cells_enter_as_at_least_their_cap():
    """Cells that miss pull the exponent towards the truth, not towards the cap, and are counted."""
    records = made_up(QUICK, {**CONTROL_LAWS, "helene": follows_d})
    for record in records:
        config, test = record.config, record.result.get("test")
        if config.get("method") == "helene" and record.result["problem"]["d"] >= 256:
            test.update(steps=[float("inf")] * len(test["steps"]), status="o" * len(test["steps"]), budget=1200)
            record.result["status"] = "out_of_budget"
    rows = analyse(collect(QUICK, records))
    law = helene(rows).fits["all"].law
    assert law.num_censored == 9
    assert law.exponents["d"] > 0.8


@pytest.fixture(scope="module")
def standard_rows():
    return analysed(STANDARD, {**CONTROL_LAWS, "theorem": follows_max_d})


@pytest.mark.parametrize("axis", ["n", "w"])
def test_a_grid_of_one_width_or_one_depth_determines_nothing(axis):
    """Both exponents move together there: no fit, a reason, and no verdict but for the instrument's."""
    kept = [c for c in QUICK.cells if c.config["problem"]["layers"][0][axis == "w"] == 8]
    rows = analysed(Design("one", "one", tuple(kept)), CONTROL_LAWS)
    assert helene(rows).main.law is None
    assert "vary each of them apart" in helene(rows).main.reason
    assert {a.verdict for a in rows} == {"broken_instrument"}


def test_borrowed_starts_are_shown_as_such(standard_rows):
    rows = standard_rows
    quadratic = {(a.series.start, a.series.method, a.series.variant): a for a in rows if a.series.family == "quadratic"}
    assert "same path at every scale" in quadratic["layer", "helene", ""].series.borrowed
    assert not quadratic["coordinate", "helene", ""].series.borrowed
    assert not quadratic["coordinate", "theorem", "R = 1"].series.borrowed


def test_layers_that_interact_are_outside_the_theorem(standard_rows):
    verdicts = {(a.series.family, a.verdict) for a in standard_rows if a.series.method == "theorem"}
    assert ("digits", "outside_hypotheses") in verdicts
    assert ("quadratic", "consistent") in verdicts


def test_an_interval_wider_than_the_controls_are_apart_tells_nothing():
    """An exponent of 0.07 [-2.79, 0.10] at fixed d is not one of 0, whatever lies above it."""
    references = {"max_d": (0.81, 0.0), "d": (0.0, 1.0)}
    mine = helene(analysed(QUICK, CONTROL_LAWS)).main

    def fit(**spans):
        exponents, intervals = ({n: part(s) for n, s in spans.items()} for part in (lambda s: s[0], lambda s: s[1:]))
        law = replace(mine.law, exponents=exponents, intervals=intervals)
        return replace(mine, law=law, fixed_d="d" not in spans)

    assert follows_what(fit(max_d=(0.07, -2.79, 0.10)), references) == "unknown"
    assert follows_what(fit(max_d=(0.07, -0.20, 0.10)), references) == "not_max_d"
    assert follows_what(fit(max_d=(0.0, -0.1, 0.1), d=(1.0, 0.9, 1.95)), references) == "unknown"
    assert follows_what(fit(max_d=(0.0, -0.1, 0.1), d=(1.0, 0.9, 1.85)), references) == "d"


def test_an_exponent_far_below_one_is_not_called_following():
    """It is told where, with the R that gives it; no growth at the other R."""
    laws = {**CONTROL_LAWS, "theorem": lambda n, w: 40.0 * w**0.5}
    quadratics = tuple(c for c in STANDARD.cells if c.family == "quadratic")
    records = made_up(Design("two", "two", quadratics), laws, scatter=0.0)
    for record in records:
        if record.config.get("variant") == "R = distance":
            count = len(record.result["test"]["steps"])
            record.result["test"]["steps"] = [40.0] * count
    rows = analyse(collect(Design("two", "two", quadratics), records))
    said = answer([a for a in rows if a.series.start == "coordinate"], "theorem", "The theorem's update")
    assert "depends neither on max_i d_i nor on d, on quadratics (fixed distance per coordinate, R = distance)" in said
    told = (
        "grows with max_i d_i, though more slowly than it, and not with d, on quadratics (fixed distance per coordinate"
    )
    assert f"{told}, R = 1)" in said
    assert "follows" not in said


def test_the_controls_say_on_which_cells_their_exponents_rest(standard_rows):
    *_, last = conclusions(standard_rows)
    assert "of the cells with d ≥ 64 where there are eight or more" in last.says
    assert "Controls compares with theory on all cells" in last.says
    *_, last = conclusions([a for a in standard_rows if a.main.subset == "all"])
    assert "d ≥ 64" not in last.says
