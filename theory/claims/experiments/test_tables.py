"""What the paper says about its tables, against the tables: exact arithmetic on the printed numbers."""

from __future__ import annotations

import itertools
from fractions import Fraction

from theory import ledger
from theory.sources import paper_numbers as paper
from theory.sources.measured import measured

ROUNDING = Fraction(1, 20)  # half a unit of the last printed place


# --- TAB-gains ----------------------------------------------------------------------------------------------------


def _gain(task: str) -> Fraction:
    return paper.mean_over_tunings("OPT", "HELENE", task) - paper.mean_over_tunings("OPT", "MeZO", task)


def _gain_sides(at: ledger.Instance) -> ledger.Sides:
    """Distance from the printed gain; six entries and the gain itself are rounded, so at most 2·0.05 + 0.05."""
    return abs(_gain(at["task"]) - paper.PRINTED_GAINS[at["task"]]), 3 * ROUNDING


GAINS = ledger.Claim(
    id="TAB-gains",
    place="Section 5.2 and Table 2",
    statement="On OPT-1.3B, averaged over full tuning, LoRA and prefix, HELENE exceeds MeZO by 5.3 on CB, 2.1 on SQuAD "
    "and 1.3 on COPA (points).",
    expected=ledger.Verdict.HOLDS_AFTER_REPAIR,
    answer="CB and COPA are right, SQuAD is 2.3, not 2.1.",
    evidence=(
        ledger.Witness(
            text=r"SQuAD: $\frac{63.8+60.4+68.4}{3} - \frac{62.2+67.6+56.0}{3} = \frac{6.8}{3} = 2.27$, which is "
            r"$\frac16$ away from 2.1. Rounding of the entries (twice 0.05) and of the gain (0.05) explains 0.15.",
            instance={"task": "SQuAD"},
            sides=_gain_sides,
            recorded=(Fraction(1, 6), Fraction(3, 20)),
            harmless={"task": "CB"},
        ),
        ledger.Search(
            text="All three tasks: each gain is within 0.05 of the repaired number.",
            target=ledger.Target.REPAIRED,
            cases=(("CB", Fraction("5.3")), ("SQuAD", Fraction("2.3")), ("COPA", Fraction("1.3"))),
            exhaustive=True,
            sides=lambda case: (abs(_gain(case[0]) - case[1]), ROUNDING),
            twin=ledger.Twin("the printed numbers", cases=tuple(paper.PRINTED_GAINS.items())),
        ),
    ),
    repair="The gains are 5.3 on CB, 2.3 on SQuAD and 1.3 on COPA.",
    note="These are three of the four tasks with a gain; over the tunings HELENE's average is below MeZO's on the "
    "other five (TAB-consistent).",
)


# --- TAB-lead -----------------------------------------------------------------------------------------------------


def _lead(case: tuple[str, str]) -> ledger.Sides:
    task, aggregate = case
    of = paper.mean_over_tunings if aggregate == "mean" else paper.best_of_tunings
    return of("RoBERTa", "HELENE", task), of("RoBERTa", "MeZO", task)


LEAD = ledger.Claim(
    id="TAB-lead",
    place="Section 5.1 and Table 1",
    statement="On RoBERTa-large HELENE leads MeZO in the average over the three tunings on SST-2, SST-5, MNLI and RTE.",
    expected=ledger.Verdict.REFUTED,
    answer="The averages lead on SST-2 and RTE, not on SST-5 and MNLI; another number, the best of three tunings, "
    "leads on all four.",
    evidence=(
        ledger.Witness(
            text=r"MNLI: HELENE $\frac{58.9+59.0+64.6}{3} = \frac{365}{6} = 60.8$, MeZO $\frac{58.7+64.0+63.4}{3} = "
            r"\frac{1861}{30} = 62.0$.",
            instance={"task": "MNLI"},
            sides=lambda at: _lead((at["task"], "mean")),
            recorded=(Fraction(365, 6), Fraction(1861, 30)),
            harmless={"task": "RTE"},
            relation=">",
        ),
        ledger.Witness(
            text=r"A tie within the rounding of both averages (0.05 each) counted as a lead. SST-5: HELENE "
            r"$\frac{44.7+41.8+46.0}{3} + \frac1{10} = \frac{664}{15} = 44.3$, MeZO $\frac{45.5+43.0+45.8}{3} = "
            r"\frac{1343}{30} = 44.8$.",
            target=ledger.Target.KINDEST,
            instance={"task": "SST-5"},
            sides=lambda at: (_lead((at["task"], "mean"))[0] + 2 * ROUNDING, _lead((at["task"], "mean"))[1]),
            recorded=(Fraction(664, 15), Fraction(1343, 30)),
            harmless={"task": "SST-2"},
            relation=">=",
        ),
    ),
    note="True is another assertion: on these four tasks the *best* of HELENE's three tunings leads the best of "
    "MeZO's, by 0.2 to 1.4, and on SNLI and TREC it does not. That best is chosen on the test numbers. TAB-noise sets "
    "the leads beside the printed deviations.",
)


def test_the_best_of_three_tunings():
    """What the note of TAB-lead says, by exact arithmetic."""
    leads = {task: own - other for task in paper.ROBERTA_TASKS for own, other in [_lead((task, "best"))]}
    assert [task for task, lead in leads.items() if lead > 0] == list(paper.PRINTED_LEADS)
    found = [leads[task] for task in paper.PRINTED_LEADS]
    assert (min(found), max(found)) == (Fraction("0.2"), Fraction("1.4"))


# --- TAB-1.5 ------------------------------------------------------------------------------------------------------


def _average_gain(at: ledger.Instance) -> ledger.Sides:
    gains = [
        helene.value - mezo.value
        for model in at["models"]
        for tuning, _, mezo, helene in paper.pairs(model)
        if tuning in at["tunings"]
    ]
    return sum(gains, Fraction(0)) / len(gains), paper.PRINTED_AVERAGE_GAIN - ROUNDING


AVERAGE = ledger.Claim(
    id="TAB-1.5",
    place="Abstract, introduction, section 5, conclusion; Tables 1 and 2",
    statement="HELENE improves on MeZO by 1.5 points on average across all settings.",
    expected=ledger.Verdict.REFUTED,
    answer="The average over all 45 pairs of cells is +0.23 (RoBERTa −0.51, OPT +0.72).",
    evidence=(
        ledger.Witness(
            text=r"All 45 pairs of cells (two models, three tunings): $\frac{19.5-9.1}{45} = \frac{52}{225} = 0.23 < "
            r"1.45$.",
            instance={"models": ("RoBERTa", "OPT"), "tunings": paper.TUNINGS},
            sides=_average_gain,
            recorded=(Fraction(52, 225), Fraction(29, 20)),
            harmless={"models": ("OPT",), "tunings": ("FT",)},
            relation=">=",
        ),
        ledger.Witness(
            text=r"Full tuning alone, both models: $\frac{4.9 + 14.4}{15} = \frac{193}{150} = 1.29 < 1.45$, rounded "
            r"1.3.",
            target=ledger.Target.KINDEST,
            instance={"models": ("RoBERTa", "OPT"), "tunings": ("FT",)},
            sides=_average_gain,
            recorded=(Fraction(193, 150), Fraction(29, 20)),
            harmless={"models": ("OPT",), "tunings": ("FT",)},
            relation=">=",
        ),
    ),
    note="Other readings, in points (the unit of the paper's other gains, see TAB-gains): each method's best of three "
    "tunings +0.71 (RoBERTa −0.22, OPT +1.33); prefix alone +2.06, LoRA alone −2.65; full tuning on OPT alone +1.6. "
    "Relative to MeZO's numbers: all cells +0.4 %, each method's best +1.0 %; full tuning alone +1.9 %, prefix alone "
    "+3.5 %, LoRA alone −4.2 %. Over both models and all three tunings no reading reaches 1.5; the gains without the "
    "losses average +2.69." + measured("TAB-1.5"),
)


# --- TAB-consistent -----------------------------------------------------------------------------------------------


def _cell_pair(at: ledger.Instance) -> ledger.Sides:
    return paper.OPT[f"HELENE {at['tuning']}"][at["task"]].value, paper.OPT[f"MeZO {at['tuning']}"][at["task"]].value


def _best_pair(at: ledger.Instance) -> ledger.Sides:
    return paper.best_of_tunings("OPT", "HELENE", at["task"]), paper.best_of_tunings("OPT", "MeZO", at["task"])


CONSISTENT = ledger.Claim(
    id="TAB-consistent",
    place="Section 5.2 and Table 2",
    statement="On OPT-1.3B HELENE with its LoRA and prefix variants consistently outperforms MeZO.",
    expected=ledger.Verdict.REFUTED,
    answer="Of 27 pairs of cells HELENE wins 17, ties 1, loses 9; in the average over tunings it loses 5 of 9 tasks.",
    evidence=(
        ledger.Witness(
            text="RTE with LoRA: HELENE 50.6, MeZO 63.0.",
            instance={"task": "RTE", "tuning": "LoRA"},
            sides=_cell_pair,
            recorded=(Fraction("50.6"), Fraction("63.0")),
            harmless={"task": "CB", "tuning": "FT"},
            relation=">=",
        ),
        ledger.Witness(
            text="Each method's best of three tunings, ties allowed: BoolQ, HELENE 64.0, MeZO 67.2.",
            target=ledger.Target.KINDEST,
            instance={"task": "BoolQ"},
            sides=_best_pair,
            recorded=(Fraction("64.0"), Fraction("67.2")),
            harmless={"task": "CB"},
            relation=">=",
        ),
    ),
    note="In the average over the three tunings HELENE is below MeZO on RTE, BoolQ, WSC, WIC and ReCoRD. On RoBERTa "
    "(Table 1) it wins 10 and loses 8 of 18." + measured("TAB-consistent"),
)


# --- TAB-cross ----------------------------------------------------------------------------------------------------


def _cross(at: ledger.Instance) -> ledger.Sides:
    model, tuning = at["setting"].split()
    first = paper.TABLES[model][0][f"HELENE {tuning}"]["SST-2"].value
    second = paper.SST2["HELENE"][at["setting"]].value
    return abs(first - second), at["slack"]


CROSS = ledger.Claim(
    id="TAB-cross",
    place="Tables 1, 2 and 3",
    statement="One setting has one number: HELENE's SST-2 results in Table 3 are those of Tables 1 and 2.",
    expected=ledger.Verdict.REFUTED,
    answer="Full tuning: 91.6 and 91.1 on RoBERTa, 91.2 and 90.8 on OPT; the other four agree.",
    evidence=(
        ledger.Witness(
            text=r"RoBERTa-large, SST-2, full tuning: 91.6 in Table 1, 91.1 in Table 3: $\frac12$ apart, not 0.",
            instance={"setting": "RoBERTa FT", "slack": 0},
            sides=_cross,
            recorded=(Fraction(1, 2), 0),
            harmless={"setting": "RoBERTa LoRA", "slack": 0},
        ),
        ledger.Witness(
            text=r"Both numbers rounded, so 0.1 of slack. OPT-1.3B, SST-2, full tuning: 91.2 in Table 2, 90.8 in "
            r"Table 3: $\frac25$ apart.",
            target=ledger.Target.KINDEST,
            instance={"setting": "OPT FT", "slack": 2 * ROUNDING},
            sides=_cross,
            recorded=(Fraction(2, 5), Fraction(1, 10)),
            harmless={"setting": "OPT LoRA", "slack": 2 * ROUNDING},
        ),
    ),
    note="If Table 3 is another setting, that four of its six HELENE entries equal those of Tables 1 and 2 to the last "
    "digit is unexplained; if it is the same, two differ. With 91.2 in place of 90.8 HELENE would not tie with ZO-SGD "
    "(TAB-best-zo).",
)


# --- TAB-zeroshot -------------------------------------------------------------------------------------------------


def _against_baseline(case: tuple[str, str, str], margin: Fraction) -> ledger.Sides:
    tuning, baseline, task = case
    return paper.ROBERTA[f"HELENE {tuning}"][task].value, paper.ROBERTA[baseline][task].value + margin


ZERO_SHOT = ledger.Claim(
    id="TAB-zeroshot",
    place="Section 5.1 and Table 1",
    statement="On all six RoBERTa tasks HELENE is better than zero-shot and linear probing.",
    expected=ledger.Verdict.HOLDS,
    answer="True of all 36 comparisons of printed means; the smallest margin is 1.5 (SST-5, LoRA, linear probing).",
    constants={"margin": ledger.Constant(0, Fraction(3, 2))},
    evidence=(
        ledger.Search(
            text="All 36 cases: three tunings, two baselines, six tasks. Printed means; the least margin, 1.5, is "
            "beyond the 0.1 that rounding explains.",
            cases=tuple(itertools.product(paper.TUNINGS, ("zero-shot", "LP"), paper.ROBERTA_TASKS)),
            exhaustive=True,
            sides=_against_baseline,
            relation=">",
        ),
    ),
    note="On OPT-1.3B (Table 2) the like is false: zero-shot ReCoRD is 70.3, HELENE 55.6 to 60.2.",
)


def test_other_readings():
    """The numbers of the notes of TAB-1.5 and TAB-consistent, by exact arithmetic."""
    means = {}
    for models in (("RoBERTa",), ("OPT",), ("RoBERTa", "OPT")):
        for tunings in (("FT",), ("LoRA",), ("prefix",), paper.TUNINGS):
            means[models, tunings] = paper.rounded(_average_gain({"models": models, "tunings": tunings})[0], 2)
    both = ("RoBERTa", "OPT")
    assert means[both, ("prefix",)] == Fraction("2.06")
    assert means[both, ("LoRA",)] == Fraction("-2.65")
    assert means[("OPT",), ("FT",)] == Fraction("1.6")
    assert (means[("RoBERTa",), paper.TUNINGS], means[("OPT",), paper.TUNINGS]) == (Fraction("-0.51"), Fraction("0.72"))
    best = {
        model: [paper.best_of_tunings(model, "HELENE", t) - paper.best_of_tunings(model, "MeZO", t) for t in tasks]
        for model, (_, tasks) in paper.TABLES.items()
    }
    relative = {}
    for tunings in (paper.TUNINGS, ("FT",), ("prefix",), ("LoRA",)):
        gains = [
            (helene.value - mezo.value) / mezo.value
            for model in both
            for tuning, _, mezo, helene in paper.pairs(model)
            if tuning in tunings
        ]
        relative[tunings] = paper.rounded(100 * sum(gains, Fraction(0)) / len(gains))
    assert list(relative.values()) == [Fraction("0.4"), Fraction("1.9"), Fraction("3.5"), Fraction("-4.2")]
    shares = [
        best[model][k] / paper.best_of_tunings(model, "MeZO", task)
        for model, (_, tasks) in paper.TABLES.items()
        for k, task in enumerate(tasks)
    ]
    assert paper.rounded(100 * sum(shares, Fraction(0)) / len(shares)) == Fraction("1.0")
    assert paper.rounded(sum(best["RoBERTa"], Fraction(0)) / 6, 2) == Fraction("-0.22")
    assert paper.rounded(sum(best["OPT"], Fraction(0)) / 9, 2) == Fraction("1.33")
    assert paper.rounded(sum(best["RoBERTa"] + best["OPT"], Fraction(0)) / 15, 2) == Fraction("0.71")
    differences = {m: [helene.value - mezo.value for _, _, mezo, helene in paper.pairs(m)] for m in both}
    signs = {
        m: [sum(d > 0 for d in ds), sum(d == 0 for d in ds), sum(d < 0 for d in ds)] for m, ds in differences.items()
    }
    assert signs == {"OPT": [17, 1, 9], "RoBERTa": [10, 0, 8]}
    gains = [d for ds in differences.values() for d in ds if d > 0]
    assert paper.rounded(sum(gains, Fraction(0)) / len(gains), 2) == Fraction("2.69")
    assert [t for t in paper.OPT_TASKS if _gain(t) < 0] == ["RTE", "BoolQ", "WSC", "WIC", "ReCoRD"]


CLAIMS = (GAINS, LEAD, AVERAGE, CONSISTENT, CROSS, ZERO_SHOT)
