"""docs/findings/groups.md against the committed records."""

from __future__ import annotations

import json
import math
from statistics import fmean, median

from helene.lab.runs.records import read_jsonl
from helene.lab.runs.store import Record
from helene.steps.gradient_noise import divisors, gain
from llm_bench.protocol import speed
from llm_bench.protocol.presets import get_preset
from llm_bench.report.cell_numbers import numbers
from llm_bench.report.compare import lead
from tests.findings.committed import LLM, full_runs, milliseconds, table, words

GROUPS = {
    "mezo": "MeZO",
    "zo-sgd-mmt": "MeZO with momentum",
    "zo-adam": "ZO-Adam",
    "mezo-grouped": "1 group, of rank one",
    "mezo-grouped-4": "4 groups",
    "mezo-grouped-16": "16 groups",
}


def three_tests(preset: str, method: str, task: str = "causal-sst2") -> list[Record]:
    runs = full_runs(f"{preset}/{task}", method, "test")
    return runs if len(runs) == 3 else []


def milliseconds_of(runs: list[Record]) -> list[float]:
    """Of a step, the first 50 left out."""
    curves = [run.result["curve"]["training_seconds"] for run in runs]
    return [1e3 * (seconds[-1] - seconds[1]) / (runs[0].config["steps"] - 50) for seconds in curves]


def lr_of(runs: list[Record]) -> str:
    (lr,) = {run.config["lr"] for run in runs}
    return f"{lr:.1e}".replace(".0e", "e").replace("e-0", "e-")


def listed(runs: list[Record], what: str, form: str) -> str:
    return ", ".join(format(run.result["target"][what], form) for run in runs)


def steps_of(runs: list[Record]) -> list[float]:
    return [run.result["target"]["steps"] for run in runs]


def shares(some: list[Record], others: list[Record], what: str) -> list[float]:
    """Of what others spend until the target, seed by seed."""
    return [a.result["target"][what] / b.result["target"][what] for a, b in zip(some, others, strict=True)]


def scores(runs: list[Record]) -> str:
    return ", ".join(f"{run.result['test']['metric']:.3f}" for run in runs)


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
                    f"{max(r.result['peak_bytes']['step'] for r in tests) / 1e9:.1f}",
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
    """Groups and FZOO beside MeZO, seed by seed."""
    page, text, task = "docs/findings/groups.md", words("docs/findings/groups.md"), "masked-trec"
    found = {m: three_tests("groups", m, task) for m in ("mezo", "mezo-grouped", "mezo-grouped-4", "mezo-grouped-16")}
    found["fzoo"] = three_tests("groups-fzoo", "fzoo", task)
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
    rows = [["MeZO", "mezo"], ["16 groups", "mezo-grouped-16"], ["FZOO", "fzoo"]]
    assert table(page, "| TREC | lr | forwards")[1:] == [
        [label, lr_of(found[method]), listed(found[method], "forwards", ",.0f"), scores(found[method])]
        for label, method in rows
    ]
    fewer = shares(found["fzoo"], found["mezo"], "forwards")
    assert max(fewer) < 1, "no more forwards than MeZO with each seed"
    assert "FZOO takes {:.2f}, {:.2f} and {:.2f} times MeZO's forwards".format(*fewer) in text


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


def test_what_fzoo_has_tried():
    """Its largest step size is the best everywhere; its tuning run on SST-2 beside those of MeZO and 16 groups."""
    text, sizes = words("docs/findings/groups.md"), {}
    for task in ("masked-trec", "causal-sst2", "causal-cb"):
        runs = sorted(full_runs(f"groups-fzoo/{task}", "fzoo", "tune"), key=lambda run: run.config["lr"])
        assert max(runs, key=lambda run: run.result["dev"]["metric"]) is runs[-1], "the largest is the best yet"
        sizes[task] = len(runs)
        (published,) = (run for run in runs if run.config["lr"] == 5e-5)
        assert math.isinf(published.result["target"]["forwards"]), "the published one does not reach the target"
    assert "the published 5e-5 is too small on all three." in words("docs/choosing.md")
    told = "Best so far are {:.1e} on TREC and {:.0e} on SST-2, each the largest"
    best = [max(r.config["lr"] for r in full_runs(f"groups-fzoo/{t}", "fzoo", "tune")) for t in list(sizes)[:2]]
    assert told.format(*best).replace("e-0", "e-") in words("docs/choosing.md")
    assert sizes == {"masked-trec": 8, "causal-sst2": 5, "causal-cb": 4}
    assert "On SST-2 five step sizes are tried, on CB four; the largest is the best yet." in text
    ends = []
    for preset, method in (("groups-fzoo", "fzoo"), ("groups", "mezo"), ("groups", "mezo-grouped-16")):
        runs = full_runs(f"{preset}/causal-sst2", method, "tune")
        best = min(runs, key=lambda run: run.result["dev"]["loss"]).result
        ends += [best["target"]["forwards"], best["dev"]["loss"]]
    told = "has 0.82 on dev after {} forwards, and a dev loss of {:.3f} at its best look. MeZO's best tuning run has"
    told += " 0.82 after {} forwards, and a loss of {:.3f}. That of 16 groups has 0.82 after {} forwards, and a loss of"
    told += " {:.3f}."
    assert told.format(*ends) in text


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


def least_noise() -> list[float]:
    """The lower ends that the runs with four groups told last, by seed; they told no upper ones."""
    told = [r.result["optimizer"]["noise"] for r in full_runs("groups/causal-sst2", "mezo-grouped-4", "test")]
    assert {(noise["steps"], noise["noise"], noise["high"]) for noise in told} == {(200, None, None)}
    return [noise["low"] for noise in told]


def test_how_many_fewer_steps_the_noise_allows():
    lows, text = least_noise(), words("docs/findings/groups.md")
    assert "The 95 % intervals begin at {}, {} and {}, and have no upper end".format(*map(math.floor, lows)) in text
    gains = [f"{gain(16, 16, low):.1f}" for low in lows]
    assert "at most {}, {} and {} times fewer steps there".format(*gains) in text
    ours, mezo = (three_tests("groups", method) for method in ("mezo-grouped-16", "mezo"))
    needed = "they needed {:.1f}, {:.1f} and {:.1f} times fewer"
    assert needed.format(*(1 / share for share in shares(ours, mezo, "steps"))) in text


def test_the_model_of_many_cards():
    """From the profile of a step, what its bytes take, the noise that was told, and the formula of theory."""
    (profile,) = (r.result["account"] for r in read_jsonl(LLM / "engine/h200-groups.jsonl") if r.config["length"] == 64)
    floors = json.loads((LLM / "profile-h200.json").read_text(encoding="utf-8"))["mezo"]["floors"]
    alone = [r for r in read_jsonl(LLM / "engine/h200-alone.jsonl") if r.config["length"] == 64]
    (mezo,) = (r.result["median_seconds"] for r in alone if r.config["contestant"] == "MeZO")
    each = (profile["parts"]["update"] - floors["update"]) / 16
    rest, noise = profile["step_seconds"] - 16 * each, math.floor(median(least_noise()))
    text, rows = words("docs/findings/groups.md"), [["MeZO"], []]
    assert f"(1/G + ν/B) ({1e3 * rest:.2f} + {1e3 * each:.4f} G) ms. MeZO needs (1 + ν/B) {1e3 * mezo:.1f} ms" in text
    rows[1].append("the best number of groups, which the cards can share")

    def seconds(groups: int, batch: int) -> float:
        return (1 / groups + noise / batch) * (rest + each * groups)

    for cards in (1, 8, 64, 1000):
        batch, one = 16 * cards, (1 + noise / 16) * mezo
        shared = [groups for groups in divisors(batch) if groups % cards == 0]
        best = min(shared, key=lambda groups: seconds(groups, batch))
        rows[0].append(f"{one / ((1 + noise / batch) * mezo):.1f}")
        rows[1].append(f"{one / seconds(best, batch):.1f} ({best:,})")
    head, *found = table("docs/findings/groups.md", "| times as fast as MeZO on one card")
    assert f"ν = {noise}" in head[0]
    assert found == rows
    few = (1 + noise / 1024) * mezo / seconds(64, 1024)
    assert f"On 64 they need {few:.0f} times fewer seconds than MeZO on as many" in text
    whole = 1e3 * (rest + each * best)
    assert f"it takes {1e3 * (floors['update'] + each * best):.0f} of the {whole:.0f} ms of a step." in text
    (two,) = (
        r.result
        for r in read_jsonl(LLM / "parallel-h200.jsonl")
        if r.config["part"] == "throughput" and r.config["length"] == 64 and "contestant" in r.config
    )
    measured, alone_seconds = two["together_seconds"], two["alone_seconds"]
    assert f"a step takes {1e3 * measured:.1f} ms, alone {1e3 * alone_seconds:.1f}" in text
    model = rest + 32 * each
    told = f"has {1e3 * model:.1f} ms for the two cards' step, {100 * (model / measured - 1):.0f} % more than measured"
    assert told in text
    for file in ("parallel-h200", "parallel-4-h200"):
        found = [r.result for r in read_jsonl(LLM / f"{file}.jsonl") if r.config["part"] == "throughput"]
        least = min(found, key=lambda result: result["alone_seconds"])
        assert f"{1e3 * (least['together_seconds'] - least['alone_seconds']):.1f}" == "0.2"


def test_mezos_batch_size():
    """Examples seen until the target, in equal numbers of examples."""
    rows, seen = [], {}
    for name, method, batch, preset in (
        ("MeZO", "mezo", 4, "groups-4"),
        ("MeZO", "mezo", 16, "groups"),
        ("MeZO", "mezo", 64, "groups-64"),
        ("16 groups", "mezo-grouped-16", 16, "groups"),
    ):
        tests = full_runs(f"{preset}/causal-sst2", method, "test")
        examples = [batch * r.result["target"]["steps"] for r in tests]
        seen[name, batch] = examples
        told = ", ".join("not reached" if math.isinf(n) else f"{n:,.0f}" for n in examples)
        rows.append([name, str(batch), lr_of(tests), told, scores(tests)])
        assert {r.config["steps"] * batch for r in tests} == {16_000}
    page = "docs/findings/groups.md"
    assert table(page, "| SST-2 | batch | lr |")[1:] == rows
    few, usual, groups = seen["MeZO", 4], seen["MeZO", 16], seen["16 groups", 16]
    assert all(one < other for one, other in zip(few, groups, strict=True)), "fewer examples than 16 groups"
    less = [f"{one / other:.2f}" for one, other in zip(few, usual, strict=True)]
    steps = median(few) / 4, median(usual) / 16
    told = "take {}, {} and {} of the examples that 16 take, and more steps: a median of {:,.0f} against {:,.0f}."
    assert told.format(*less, *steps) in words(page)
    saved, more = f"{min(less)} to {max(less)} of the examples", f"{steps[0] / steps[1]:.1f} times the steps"
    assert f"take {saved} that 16 take, with half the lr" in words("docs/choosing.md")
    smaller = f"On SST-2 [batches of {rows[0][1]}](docs/findings/groups.md#mezos-batch)"
    assert f"{smaller} took half the lr and {saved}, and {more}." in words("README.md")
    noise = math.floor(median(least_noise()))
    need = [(size + noise) / (16 + noise) for size in (4, 1, 64)]  # B/G + ν
    assert max(one / other for one, other in zip(few, usual, strict=True)) < need[0], "saved more with each seed"
    told = "ν = {}, batches of 4 need {:.2f} of the examples that 16 need, 16 groups {:.2f}, and batches of 64 {:.2f}."
    assert told.format(noise, *need) in words(page)
    assert rows[0][2] == "5e-7"
    assert rows[1][2] == "1e-6"
