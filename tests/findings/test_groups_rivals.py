"""docs/findings/groups.md: FZOO, and MeZO's batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from llm_bench.protocol import speed
from llm_bench.report.cell_numbers import numbers
from llm_bench.report.compare import lead
from tests.findings.committed import full_runs, table, words
from tests.findings.groups_rows import least_noise, listed, lr_of, scores, shares, three_tests


def test_fzoo():
    """Forwards beside MeZO's and those of 16 groups, seed by seed."""
    page, text, ratios = "docs/findings/groups.md", words("docs/findings/groups.md"), []
    for task, head in (("causal-sst2", "| SST-2 | lr | forwards"), ("masked-trec", "| TREC | lr | forwards")):
        mezo, fzoo = three_tests("groups", "mezo", task), three_tests("groups-fzoo", "fzoo", task)
        contestants = ("MeZO", mezo), ("16 groups", three_tests("groups", "mezo-grouped-16", task)), ("FZOO", fzoo)
        assert table(page, head)[1:] == [
            [label, lr_of(runs), listed(runs, "forwards", ",.0f"), scores(runs)] for label, runs in contestants
        ]
        ratios += shares(fzoo, mezo, "forwards")
        ours, theirs = numbers(fzoo), numbers(mezo)
        assert ours is not None
        assert theirs is not None
        assert not lead(ours, theirs).sure, "its test accuracy is MeZO's within noise on both"
        looks = {run.result["curve"]["forwards"][1] for run in (*fzoo, *mezo)}
        assert looks == {99, 100}, "forwards are counted in looks of 99 or 100"
        assert not any(speed.had_the_card_alone(run) for run in fzoo)
    told = "{:.2f}, {:.2f} and {:.2f} times MeZO's forwards on SST-2, and {:.2f}, {:.2f} and {:.2f} times on TREC."
    assert f"Seed by seed FZOO takes {told.format(*ratios)}" in text
    assert (len(ratios), max(ratios) < 1) == (6, True)
    assert f"Fewer with six seeds of six: a sign test has a two-sided p of {2 * 0.5**6:.2f}." in text
    assert "needs fewer forwards than MeZO with each seed of SST-2 and TREC." in text
    told = f"{min(ratios):.2f} to {max(ratios):.2f} of MeZO's forwards on SST-2 and TREC"
    assert told in words("docs/choosing.md")
    assert told in words("README.md")


def test_what_fzoo_has_tried():
    text, sizes = words("docs/findings/groups.md"), {}
    for task in ("masked-trec", "causal-sst2", "causal-cb"):
        runs = sorted(full_runs(f"groups-fzoo/{task}", "fzoo", "tune"), key=lambda run: run.config["lr"])
        best = max(runs, key=lambda run: run.result["dev"]["metric"])
        sizes[task] = len(runs), best.config["lr"], best is runs[-1]
        (published,) = (run for run in runs if run.config["lr"] == 5e-5)
        assert math.isinf(published.result["target"]["forwards"]), "the published one does not reach the target"
    assert sizes == {
        "masked-trec": (8, 3.2e-3, True),
        "causal-sst2": (6, 4e-4, False),
        "causal-cb": (4, 2e-4, True),
    }
    assert "On TREC its best lr is the largest of eight." in text
    assert "On CB four step sizes are tried, and the largest is the best yet. On SQuAD one is tried." in text
    assert len(full_runs("groups-fzoo/causal-squad", "fzoo", "tune")) == 1
    assert "the published 5e-5 is too small on all three." in words("docs/choosing.md")
    assert "The best is 3.2e-3 on TREC, the largest tried, and 4e-4 on SST-2." in words("docs/choosing.md")


def batches(task: str, sizes: Sequence[int]) -> tuple[list[list[str]], dict[tuple[str, int], list[float]]]:
    """Rows of a table of MeZO's batches and 16 groups, and the examples seen until the target."""
    rows, seen = [], {}
    presets = {4: "groups-4", 16: "groups", 64: "groups-64"}
    contestants = [("MeZO", "mezo", size) for size in sizes] + [("16 groups", "mezo-grouped-16", 16)]
    for name, method, batch in contestants:
        tests = three_tests(presets[batch], method, task)
        examples = [batch * r.result["target"]["steps"] for r in tests]
        seen[name, batch] = examples
        told = ", ".join("not reached" if math.isinf(n) else f"{n:,.0f}" for n in examples)
        rows.append([name, str(batch), lr_of(tests), told, scores(tests)])
        assert {r.config["steps"] * batch for r in tests} == {16_000}
    return rows, seen


def test_mezos_batch_on_cb():
    page = "docs/findings/groups.md"
    rows, seen = batches("causal-cb", (16, 64))
    assert table(page, "| CB | batch | lr |")[1:] == rows
    usual, large = seen["MeZO", 16], seen["MeZO", 64]
    more = [one / other for one, other in zip(large, usual, strict=True)]
    assert min(more) > 1, "more examples with each seed"
    told = (
        "**On CB batches of 64 take more examples with each seed**: {:.2f}, {:.2f} and {:.2f} times those of 16. They"
    )
    told += " take fewer steps, a median of {:.0f} against {:.0f}."
    assert told.format(*more, median(large) / 64, median(usual) / 16) in words(page)
    looks = [
        {run.result["curve"]["step"][1] for run in three_tests(preset, "mezo", "causal-cb")}
        for preset in ("groups-64", "groups")
    ]
    assert looks == [{12}, {50}]
    assert "Looks come every 12 steps there, every 50 with batches of 16." in words(page)


def test_mezos_batch_size():
    """Examples seen until the target, in equal numbers of examples."""
    page = "docs/findings/groups.md"
    rows, seen = batches("causal-sst2", (4, 16, 64))
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
