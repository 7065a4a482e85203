"""What is said of rows beside each other: leads, means that mix nothing, the sentence of a page."""

import math

import pytest
from handmade import judged, table_of
from scipy import stats

from helene.lab.runs.records import write_jsonl
from helene.lab.runs.store import Record
from llm_bench.report import changes, tables
from llm_bench.report.cell_numbers import numbers
from llm_bench.report.compare import lead
from tools import learned


def test_the_first_line_names_both_with_numbers_and_a_lead_within_its_interval_is_none():
    """Two seeds each: 50 and 52 against 80 and 84 is a lead; against 40 and 64 it is none."""
    helene = [judged(0, 0.50, method="helene"), judged(1, 0.52, method="helene")]
    mezo = [judged(0, 0.80), judged(1, 0.84)]
    control = judged(0, 0.77, method="bias-only")
    said = tables.answer(table_of(*helene, *mezo, control))
    assert said.startswith("On SST-2 (causal) HELENE reaches 51.0 % and MeZO 82.0 %: MeZO leads by 31.0 points.")
    assert said.endswith("Neither beats the best control beyond noise.")
    lower = judged(0, 0.45, method="bias-only")
    said = tables.answer(table_of(*helene, *mezo, lower))
    assert said.endswith("MeZO beats it on SST-2 (causal), HELENE beats it on none.")
    unsure = tables.answer(table_of(*helene, judged(0, 0.40), judged(1, 0.64)))
    assert unsure == "On SST-2 (causal) HELENE reaches 51.0 % and MeZO 52.0 %: neither leads beyond noise."
    assert "not both been tested" in tables.answer(table_of(*mezo))
    single = [judged(0, 0.51, method="helene", task="cb"), *(judged(i, 0.6, task="cb") for i in (0, 1))]
    assert tables.answer(table_of(*single)).startswith(
        "On CB (causal) HELENE reaches 51.0 % and MeZO 60.0 %: one seed of a method decides nothing."
    )
    assert "CB" not in tables.answer(table_of(*single, *helene, *mezo))
    other = [judged(i, 0.6 + i / 100, method=m, task="rte") for m in ("helene", "mezo") for i in (0, 1)]
    two = tables.answer(table_of(*helene, *mezo, *other))
    first, second, third, *_ = two.split(". ")
    assert first == "HELENE beats MeZO on none of 2 tasks, MeZO beats HELENE on 1"
    assert second == "On the other one neither leads beyond noise"
    assert third.startswith("On SST-2 (causal) HELENE reaches 51.0 %")
    assert "RTE" not in two, "no lead, so it is said beside its table alone"


def test_a_comparison_answers_its_own_question():
    """Two seeds each: 80 and 84 against 50 and 52 is beyond noise, 40 and 64 is not."""
    helene = [judged(0, 0.50, method="helene"), judged(1, 0.52, method="helene")]
    mezo = [judged(0, 0.80), judged(1, 0.84)]
    better = [judged(0, 0.80, method="helene-no-curvature"), judged(1, 0.84, method="helene-no-curvature")]
    unsure = [judged(0, 0.40, method="helene-no-anneal"), judged(1, 0.64, method="helene-no-anneal")]
    one = changes.answer(table_of(*helene, *mezo, *better, *unsure), "ablation")
    said = "On SST-2 (causal) 1 of 2 changed parts raises HELENE's 51.0 % beyond noise: HELENE without h 82.0 %."
    assert one == f"{said} MeZO reaches 82.0 %."
    none = changes.answer(table_of(*helene, *unsure), "ablation")
    assert none.startswith("On SST-2 (causal) none of 1 changed parts raises HELENE's 51.0 % beyond noise.")
    assert none.endswith("HELENE without anneal, reaches 52.0 %.")
    rivals = changes.answer(table_of(*helene, *mezo), "optimizers")
    assert rivals == "On SST-2 (causal) MeZO reaches 82.0 %, HELENE 51.0 %."
    assert "not both been tested" in changes.answer(table_of(*mezo), "ablation")
    grouped = changes.answer(table_of(*mezo, judged(0, 0.83, method="mezo-grouped-16")), "groups")
    assert grouped == "On SST-2 (causal) Grouped MeZO, 16 groups reaches 83.0 % in one run, MeZO 82.0 %."


def test_a_comparison_on_many_tasks_is_summed_up_by_method():
    """Ahead on SST-2 alone, of three tasks; on RTE the variant has one seed, which decides nothing."""
    made = []
    for task, of_variant in (("sst2", (0.80, 0.84)), ("cb", (0.40, 0.64)), ("copa", (0.51, 0.50)), ("rte", (0.99,))):
        for method, values in (("helene", (0.50, 0.52)), ("helene-no-anneal", of_variant), ("mezo", (0.60, 0.62))):
            made += [judged(i, value, method=method, task=task) for i, value in enumerate(values)]
    table = table_of(*made)
    ahead = "Ahead of HELENE beyond noise: HELENE without anneal on 1 of 3 tasks, SST-2 (causal)."
    assert changes.answer(table, "ablation") == ahead
    first = "The highest mean, beyond noise or not, of 4 tasks: HELENE without anneal on 2, MeZO on 2."
    assert changes.answer(table, "optimizers") == first


def test_one_seed_of_each_method_decides_nothing_however_many_tasks():
    tasks = [
        judged(0, value, method=m, task=t) for m, value in (("helene", 0.5), ("mezo", 0.9)) for t in ("sst2", "cb")
    ]
    control = judged(0, 0.3, method="bias-only")
    one = "One seed of a method decides nothing: HELENE and MeZO have no second one on any of 2 tasks."
    assert tables.answer(table_of(*tasks, control)) == one, "of the control too"
    changed = table_of(judged(0, 0.5, method="helene"), judged(0, 0.9, method="helene-no-anneal"))
    assert changes.answer(changed, "ablation").startswith(
        "On SST-2 (causal) one seed of a method decides nothing: HELENE without anneal reaches 90.0 % in one run"
    )


def test_a_lead_counts_seeds_and_test_rows_and_needs_two_seeds():
    """Against the closed form: Welch with equal spreads has 2 (n - 1) degrees of freedom; 100 test rows add theirs."""
    one, other = numbers([judged(i, m) for i, m in enumerate((0.9, 0.92))]), numbers([judged(0, 0.5), judged(1, 0.52)])
    found = lead(one, other)
    seeds, sampling = 2 * 1.0, (91 * 9 + 51 * 49) / 100
    total = seeds + sampling
    freedom = total**2 / 2.0
    half = max(stats.t.ppf(0.975, 2) * math.sqrt(seeds), stats.t.ppf(0.975, freedom) * math.sqrt(total))
    assert found.points == pytest.approx(40.0)
    assert (found.low, found.high) == pytest.approx((40.0 - half, 40.0 + half))
    assert found.sure
    alone = numbers([judged(0, 0.9)])
    assert not lead(alone, other).sure
    assert lead(alone, other, fixed=(True, False)).sure


def test_two_trainings_of_a_model_under_one_name_are_never_mixed(tmp_path, monkeypatch):
    record = judged(0, 0.8)
    one, other = (
        Record.of("x", {**record.config, "fingerprint": mark * 8, "seed": seed}, record.result)
        for seed, mark in enumerate("ac")
    )
    with pytest.raises(ValueError, match="runs of 2 values of fingerprint, aaaaaaaa and cccccccc"):
        numbers([one, other])
    (tmp_path / "small").mkdir()
    write_jsonl(tmp_path / "small" / "causal-sst2.jsonl", [one, other], "test")
    monkeypatch.setattr(learned, "ROWS", tmp_path)
    with pytest.raises(ValueError, match=r"small/causal-sst2.jsonl has runs of 2 values of fingerprint"):
        learned.rows()


@pytest.mark.parametrize(("name", "value"), [("lr", 1.0), ("products", "tf32"), ("steps", 9)])
def test_a_mean_is_of_runs_that_differ_in_their_seeds(name, value):
    one = judged(0, 0.8)
    with pytest.raises(ValueError, match=f"values of {name}"):
        numbers([one, Record.of("x", {**one.config, name: value, "seed": 1}, one.result)])


def test_a_metric_of_no_test_rows_is_none():
    assert numbers([judged(0, math.nan)]) is None
    assert numbers([judged(0, math.nan), judged(1, 0.8)]).values == (80.0,)


def test_peaks_and_seconds_that_are_not_known_are_left_out():
    record = judged(0, 0.8)
    record.result.update(peak_bytes=None, training_seconds=None)
    found = numbers([record])
    assert (found.bytes, found.training_seconds, found.speed) == (None, None, None)


def test_a_seed_counts_once_in_a_mean():
    """Two runs of a seed, such as on two devices, would narrow the interval."""
    other = judged(1, 0.7)
    other = Record.of(other.experiment, {**other.config, "device": "cuda"}, other.result)
    assert numbers([judged(0, 0.8), judged(1, 0.7)]).values == (80.0, 70.0)
    with pytest.raises(ValueError, match=r"mezo on sst2 .causal. has 2 runs of seed 1 .of the data 0., each of which"):
        numbers([judged(0, 0.8), judged(1, 0.7), other])
