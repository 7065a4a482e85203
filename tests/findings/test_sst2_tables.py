"""What docs/findings/sst2.md tells of all methods on SST-2, against the committed records."""

from __future__ import annotations

import math
from statistics import median

from helene.lab.runs.store import Record
from llm_bench.protocol import speed
from llm_bench.protocol.plan import choose
from llm_bench.report.cell_numbers import Numbers, numbers
from llm_bench.report.compare import lead
from llm_bench.runs.config import UNTRAINED
from tests.findings.committed import full_runs, share_above_floor, table, words
from tools import all_tasks

PAGE, OVERVIEW = "docs/findings/sst2.md", "docs/findings/language_models.md"
METHODS = {method: label for method, label in all_tasks.METHODS.items() if method not in UNTRAINED}


def runs(method: str, role: str, preset: str = "all") -> list[Record]:
    return full_runs(f"{preset}/causal-sst2", method, role)


def numbers_of(method: str) -> Numbers:
    found = numbers(runs(method, "test"), runs(method, "tune"))
    assert found is not None
    return found


def test_the_table_of_all_methods():
    """The best mean first; milliseconds of runs that had the card alone."""
    expected = []
    for method in sorted(METHODS, key=lambda method: -numbers_of(method).mean):
        tests, tuning, found = runs(method, "test"), runs(method, "tune"), numbers_of(method)
        choice = choose(tuning)
        (forwards,) = {r.result["forwards"] for r in tests}
        alone = [speed.steady_seconds(r.result) for r in [*tuning, *tests] if speed.had_the_card_alone(r)]
        whole = len(alone) == len([*tuning, *tests])
        assert {r.config["lr"] for r in tests} == {choice.lr}
        assert found.bytes is not None
        assert found.forwards is not None
        expected.append(
            [
                METHODS[method],
                f"{len(tuning)}{' †' * choice.edge}",
                ", ".join(f"{value / 100:.3f}" for value in found.values),
                f"{found.mean / 100:.3f}",
                f"{forwards:,}",
                "not reached" if math.isinf(found.forwards) else f"{found.forwards:,.0f}",
                f"{found.bytes / 1e9:.1f}",
                f"{1e3 * median(filter(None, alone)):.1f}" if whole else "",
            ]
        )
    assert table(PAGE, "| method | step sizes tried | test accuracy | mean")[1:] == expected
    (target,) = {r.config["target"] for method in METHODS for r in runs(method, "test")}
    assert f"forwards to {target} on dev" in words(PAGE)
    assert choose(runs("zo-adam", "tune")).lr == max(r.config["lr"] for r in runs("zo-adam", "tune")), "†: the largest"
    (adam,) = runs("ft-adam", "test")
    assert f"Adam makes {adam.config['steps']} steps of {adam.config['batch_size']} examples." in words(PAGE)
    learned = [numbers_of(method) for method in METHODS if math.isfinite(numbers_of(method).forwards or math.inf)]
    errors = {math.sqrt(n.mean * (100 - n.mean) / n.test_rows) / 100 for n in learned}
    assert f"standard error of an accuracy is {max(errors):.3f} where a method learned" in words(PAGE)


def test_with_h_by_backpropagation_helene_ties_with_mezo():
    page, backprop, mezo = words(PAGE), numbers_of("helene-backprop"), numbers_of("mezo")
    tie = lead(backprop, mezo)
    assert not tie.sure
    assert f"difference of the means is {tie.points / 100:.3f} ± {(tie.high - tie.low) / 200:.3f} (95 %)" in page
    forwards = [runs(method, "test")[0].result["forwards"] for method in ("helene-backprop", "mezo")]
    more, memory = f"{100 * (forwards[0] / forwards[1] - 1):.0f} % more forwards", backprop.bytes / mezo.bytes
    assert f"so {more}. Its memory is {memory:.1f} times MeZO's" in page
    for other in (OVERVIEW, "docs/choosing.md"):
        assert f"for {more} and {memory:.1f} times the memory" in words(other)
    assert f"HELENE has MeZO's {mezo.mean / 100:.2f} as well" in words(OVERVIEW)
    assert f"{backprop.mean / 100:.2f}" == f"{mezo.mean / 100:.2f}"
    assert "By backpropagation it ties, on CB and TREC too" in words("README.md")


def test_where_backpropagation_gives_it_h_has_next_to_no_effect():
    """Coordinates above the floor, of all that there are; and the step size of MeZO with momentum."""
    for run in [*runs("helene-backprop", "test"), *runs("helene-backprop", "test", "parts")]:
        assert share_above_floor(run) < 1e-5
    assert words(PAGE).count("above the floor in fewer than one coordinate of 100,000") == 2, "of whole runs, of parts"
    ((lr,),) = {tuple({r.config["lr"] for r in runs(m, "test")}) for m in ("helene-backprop", "zo-sgd-mmt")}
    assert f"The best lr is that of MeZO with momentum, {lr:.0e}".replace("e-0", "e-") in words(PAGE)


def test_correcting_h_for_its_bias_mends_nothing():
    gain = lead(numbers_of("helene-corrected"), numbers_of("helene"))
    assert not gain.sure
    told = f"difference of the means is {gain.points / 100:.3f} ± {(gain.high - gain.low) / 200:.3f}. "
    tuned = max(r.result["dev"]["metric"] for r in runs("helene-corrected", "tune"))
    one, two, three = (f"{r.result['dev']['metric']:.3f}" for r in runs("helene-corrected", "test"))
    told += f"The chosen step size has {tuned:.3f} on dev in tuning, then {one}, {two} and {three} in the test runs."
    assert told in words(PAGE)
