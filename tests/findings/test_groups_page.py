"""docs/findings/groups.md against the committed records: steps, seconds, two cards."""

from __future__ import annotations

import math
from statistics import fmean, median

from helene.lab.runs.records import read_jsonl
from helene.lab.runs.store import Record
from helene.steps.gradient_noise import gain
from llm_bench.protocol import speed
from llm_bench.protocol.presets import get_preset
from llm_bench.report.cell_numbers import least_peak, numbers
from llm_bench.report.compare import lead
from tests.findings.committed import LLM, full_runs, milliseconds, table, words
from tests.findings.groups_rows import (
    least_noise,
    listed,
    lr_of,
    milliseconds_of,
    scores,
    shares,
    steps_of,
    three_tests,
)

GROUPS = {
    "mezo": "MeZO",
    "zo-sgd-mmt": "MeZO with momentum",
    "zo-adam": "ZO-Adam",
    "mezo-grouped": "1 group, of rank one",
    "mezo-grouped-4": "4 groups",
    "mezo-grouped-16": "16 groups",
}


def grouped_rows(task: str) -> list[list[str]]:
    """The table of a task on the page on groups: what test runs came to; † marks those of an earlier commit."""
    rows, (latest,) = [], {run.provenance["commit"] for run in three_tests("groups", "mezo")}
    for method, label in GROUPS.items():
        if tests := three_tests("groups", method, task):
            alone = all(speed.had_the_card_alone(run) for run in tests)
            other = alone and {run.provenance["commit"] for run in tests} != {latest}
            ms = milliseconds_of(tests)
            rows.append(
                [
                    label + " †" * other,
                    lr_of(tests),
                    listed(tests, "steps", ",.0f"),
                    listed(tests, "training_seconds", ".1f") if alone else "",
                    f"{min(ms):.1f} to {max(ms):.1f}" if alone else "",
                    scores(tests),
                    f"{(least_peak([*tests, *full_runs(f'groups/{task}', method, 'tune')]) or 0) / 1e9:.1f}",
                ]
            )
    return rows


def test_the_page_on_groups():
    """Each method's row on each task, what the first sentence says of them, and the gains of theory."""
    page = "docs/findings/groups.md"
    text = words(page)
    for task, head in (("causal-sst2", "| SST-2, target"), ("causal-cb", "| CB, target")):
        assert table(page, head)[1:] == grouped_rows(task)
    trec = grouped_rows("masked-trec")
    assert table(page, "| TREC, target")[1:] == [[*row[:3], *row[5:]] for row in trec if not any(row[3:5])]
    ours, mezo = (three_tests("groups", method) for method in ("mezo-grouped-16", "mezo"))
    made = {how["mode"] for run in ours for how in run.result["steps_made"] if how["mode"] != "plain"}
    assert made == {"graph of the doubled batch"}
    for task in ("causal-sst2", "causal-cb", "masked-trec"):
        spent = [steps_of(three_tests("groups", method, task)) for method in ("mezo", "zo-adam")]
        more = [b > a or (task == "causal-cb" and a == b) for a, b in zip(*spent, strict=True)]
        assert all(more), "ZO-Adam takes more of them than MeZO with each seed"
    assert f"take a median of {median(steps_of(ours)):.0f} where MeZO takes {median(steps_of(mezo)):.0f};" in text
    told = "take {:.2f}, {:.2f} and {:.2f} times MeZO's steps and {:.2f}, {:.2f} and {:.2f} times its seconds"
    assert told.format(*shares(ours, mezo, "steps"), *shares(ours, mezo, "training_seconds")) in text
    slower = [fmean(milliseconds_of(runs)) for runs in (ours, mezo)]
    assert f"takes {slower[0] / slower[1]:.1f} times as long" in text
    best = [lr_of(three_tests("groups", method)) for method in ("zo-sgd-mmt", "zo-adam", "mezo-grouped-16")]
    assert "MeZO with momentum {}, ZO-Adam {}, 16 groups {}.".format(*best) in words("docs/choosing.md")
    alone = [r for r in read_jsonl(LLM / "engine/h200-alone.jsonl") if r.config["length"] == 64]
    steps = {r.config["contestant"]: r.result for r in alone}
    ours, mezo = steps["GroupedMeZO, 16 groups"], steps["MeZO"]
    assert [row[:3] for row in table(page, "| OPT-1.3B's shape, bfloat16")[1:]] == [
        [label, f"{1e3 * r['median_seconds']:.1f}", f"{r['over two forwards']:.2f}"]
        for label, r in (("16 groups", ours), ("MeZO", mezo))
    ]
    profiles = {r.config["length"]: r.result["account"] for r in read_jsonl(LLM / "engine/h200-groups.jsonl")}
    columns = []
    for length in (64, 256):
        kinds, parts = profiles[length]["kinds"], profiles[length]["parts"]
        rest = parts["forward"] - kinds["products"] - kinds["other"]
        columns.append([kinds["products"], kinds["other"], rest, parts["update"], parts["gap"]])
    shown = [[f"{1e3 * seconds:.1f}" for seconds in column] for column in columns]
    assert [row[1:] for row in table(page, "| ms, OPT-1.3B, 16 groups")[1:]] == [
        list(row) for row in zip(*shown, strict=True)
    ]
    assert f"in another process, in which a step took {1e3 * profiles[64]['step_seconds']:.1f} ms" in text
    floor = milliseconds("engine/h200")["two forwards"][0]
    assert f"the forward alone is {1e3 * profiles[64]['parts']['forward'] / floor:.1f} times" in text
    noise, gains = table(page, "| B = G = 16")
    assert gains[1:] == [f"{gain(16, 16, float(nu)):.1f}" for nu in noise[1:]]


def test_trec():
    """Groups beside MeZO, seed by seed."""
    text, task = words("docs/findings/groups.md"), "masked-trec"
    found = {m: three_tests("groups", m, task) for m in ("mezo", "mezo-grouped", "mezo-grouped-4", "mezo-grouped-16")}
    lists = ["{:.0f}, {:.0f} and {:.0f}".format(*steps_of(found[m])) for m in ("mezo-grouped-16", "mezo")]
    assert "On TREC 16 groups take {} steps where MeZO takes {}.".format(*lists) in text
    shown = {
        method: "{:.2f}, {:.2f} and {:.2f}".format(*shares(runs, found["mezo"], "steps"))
        for method, runs in found.items()
    }
    halves = shares(found["mezo-grouped-16"], found["mezo"], "steps")
    assert (min(halves), max(halves)) == (0.5, 0.75), "16 groups take half to three quarters of MeZO's steps on TREC"
    assert "16 groups take half to three quarters of MeZO's steps on TREC;" in words("docs/choosing.md")
    told = "[`GroupedMeZO`](docs/findings/groups.md) with 16 groups took half to three quarters of the steps."
    assert f"On TREC, in batches of 64, {told}" in words("README.md")
    told = "16 groups take {} times MeZO's steps, 4 groups {}, one group {}."
    assert told.format(shown["mezo-grouped-16"], shown["mezo-grouped-4"], shown["mezo-grouped"]) in text
    for groups in (4, 16):
        sizes = {run.config["lr"] for run in full_runs(f"groups/{task}", f"mezo-grouped-{groups}", "tune")}
        (lr,) = {run.config["lr"] for run in found[f"mezo-grouped-{groups}"]}
        assert (len(sizes), max(sizes), 2 * found["mezo"][0].config["lr"]) == (8, lr, lr)


def test_how_step_sizes_were_tried():
    """Four, and at most four more; the one of test runs is the best on dev by accuracy, then by loss."""
    preset, sizes = get_preset("groups"), set()
    assert (len(preset.multiples), set(preset.extend.values())) == (4, {4})
    assert "four step sizes (up to four more where the best is at the edge), chosen by accuracy on dev" in words(
        "docs/findings/groups.md"
    )
    for task in ("causal-sst2", "causal-cb", "masked-trec"):
        for method in GROUPS:
            if tests := three_tests("groups", method, task):
                tried = full_runs(f"groups/{task}", method, "tune")
                best = max(tried, key=lambda run: (run.result["dev"]["metric"], -run.result["dev"]["loss"]))
                assert best.config["lr"] == tests[0].config["lr"]
                sizes.add(len(tried))
    assert max(sizes) == 8
    for task in ("masked-trec", "causal-cb"):
        tried = {run.config["lr"] for run in full_runs(f"groups/{task}", "zo-adam", "tune")}
        assert (len(tried), {run.config["lr"] for run in three_tests("groups", "zo-adam", task)}) == (8, {max(tried)})
    assert "Its step size is the largest of eight on TREC and on CB," in words("docs/findings/groups.md")


def test_groups_never_took_more_steps():
    tasks = ("causal-sst2", "causal-cb", "masked-trec")
    ratios = [
        ratio
        for task in tasks
        for ratio in shares(*(three_tests("groups", m, task) for m in ("mezo-grouped-16", "mezo")), "steps")
    ]
    fewer = sum(ratio < 1 for ratio in ratios)
    assert (fewer, sum(ratio == 1 for ratio in ratios), len(ratios)) == (6, 3, 9)
    assert f"two-sided p of {2 * 0.5**fewer:.2f};" in words("docs/findings/groups.md")
    seeds = {task: {run.config["data_seed"] for run in three_tests("groups", "mezo", task)} for task in tasks}
    assert [len(seeds[task]) for task in tasks] == [1, 1, 3]


def test_where_16_groups_end():
    told = "Test accuracies are those of the best look on dev, and there 16 groups have MeZO's within noise."
    assert told in words("docs/findings/groups.md")
    for task in ("causal-sst2", "causal-cb", "masked-trec"):
        ours, mezo = (numbers(three_tests("groups", method, task)) for method in ("mezo-grouped-16", "mezo"))
        assert ours is not None
        assert mezo is not None
        assert not lead(ours, mezo).sure, "the accuracy at the best look is the same"


def test_16_groups_lose_on_cb_what_they_learned():
    """Dev at the best look, whose weights are tested, and at the last one; and the tuning runs of a step size alone."""

    def last(runs: list[Record], what: str) -> str:
        assert {run.result["curve"]["step"][-1] for run in runs} == {1000}
        *some, end = (f"{run.result['curve'][what][-1]:.2f}" for run in runs)
        return f"{', '.join(some)} and {end}"

    def tuned(method: str, lr: float) -> float:
        (run,) = (run for run in full_runs("groups/causal-cb", method, "tune") if run.config["lr"] == lr)
        return float(run.result["curve"]["dev_metric"][-1])

    ours, mezo = (three_tests("groups", method, "causal-cb") for method in ("mezo-grouped-16", "mezo"))
    looks = [f"{run.result['dev']['metric']:.2f}" for run in ours], [run.result["best_step"] for run in ours]
    told = "Their best looks have {}, {} and {} on dev, after {}, {} and {} steps.".format(*looks[0], *looks[1])
    told += f" At step 1,000 they have {last(ours, 'dev_metric')}, with losses of {last(ours, 'dev_loss')};"
    told += f" MeZO has {last(mezo, 'dev_metric')}. In tuning, MeZO with {lr_of(ours)} ends at"
    told += f" {tuned('mezo', ours[0].config['lr']):.2f} as well, and 16 groups with {lr_of(mezo)} at"
    text = words("docs/findings/groups.md")
    assert f"{told} {tuned('mezo-grouped-16', mezo[0].config['lr']):.2f}." in text
    kept = [[r.result["curve"]["dev_metric"][-1] / r.result["dev"]["metric"] for r in runs] for runs in (ours, mezo)]
    assert max(kept[0]) < 0.7 < 0.9 < min(kept[1]), "16 groups lose, MeZO does not"


def test_two_cards():
    """The same batch a card; each seed beside its own on one card, and what the formula says of them."""
    page, rows, found = "docs/findings/groups.md", [], {}
    for label, method, preset, cards in (
        ("MeZO", "mezo", "groups", "1"),
        ("MeZO", "mezo", "groups-2x16", "2"),
        ("16 groups", "mezo-grouped-16", "groups", "1"),
        ("32 groups", "mezo-grouped-32", "groups-2x16", "2"),
    ):
        found[label, cards] = runs = three_tests(preset, method)
        assert str(runs[0].config.get("ranks", 1)) == cards
        ms = milliseconds_of(runs)
        what = [label, cards, str(runs[0].config["batch_size"]), lr_of(runs), listed(runs, "steps", ",.0f")]
        what += [listed(runs, "training_seconds", ".1f"), f"{min(ms):.1f} to {max(ms):.1f}", scores(runs)]
        rows.append(what)
    assert table(page, "| SST-2, 16 examples a card | cards")[1:] == rows
    assert len({run.provenance["commit"] for runs in found.values() for run in runs}) == 1
    (mezo, mezos), (ours, ours_of_two) = (
        [found[label, cards] for label, cards in pair]
        for pair in ([("MeZO", "1"), ("MeZO", "2")], [("16 groups", "1"), ("32 groups", "2")])
    )
    noise, text = math.floor(median(least_noise())), words(page)
    told = "MeZO takes {:.2f}, {:.2f} and {:.2f} of its steps on one card, 32 groups {:.2f}, {:.2f} and {:.2f} of those"
    assert told.format(*shares(mezos, mezo, "steps"), *shares(ours_of_two, ours, "steps")) in text
    told = "32 groups take {:.2f}, {:.2f} and {:.2f} of MeZO's seconds on as many cards"
    assert told.format(*shares(ours_of_two, mezos, "training_seconds")) in text
    expected = (1 + noise / 32) / (1 + noise / 16), (1 / 32 + noise / 32) / (1 / 16 + noise / 16)
    assert "the formula says {:.2f} and {:.2f}".format(*expected) in text


def test_four_groups_on_causal_tasks():
    told = "take fewer steps than MeZO with two seeds and more with one. Their test accuracy is lower with each. On CB"
    assert f"{told} they take more steps with each seed: their best step size is half of MeZO's." in words(
        "docs/findings/groups.md"
    )
    for task, fewer in (("causal-sst2", 2), ("causal-cb", 0)):
        ours, mezo = (three_tests("groups", method, task) for method in ("mezo-grouped-4", "mezo"))
        ratios = shares(ours, mezo, "steps")
        assert (sum(ratio < 1 for ratio in ratios), sum(ratio > 1 for ratio in ratios)) == (fewer, 3 - fewer)
        if task == "causal-cb":
            assert 2 * ours[0].config["lr"] == mezo[0].config["lr"]
        else:
            tests = [[run.result["test"]["metric"] for run in runs] for runs in (ours, mezo)]
            assert all(a < b for a, b in zip(*tests, strict=True)), "their test accuracy is lower with each"
