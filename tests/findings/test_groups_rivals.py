"""docs/findings/groups.md: FZOO, and MeZO's batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from tests.findings.committed import full_runs, table, words
from tests.findings.groups_rows import (
    least_noise,
    lr_of,
    scores,
    three_tests,
)


def test_what_fzoo_has_tried():
    """Its step sizes, and its best tuning run on SST-2 beside those of MeZO and 16 groups."""
    text, sizes = words("docs/findings/groups.md"), {}
    for task in ("masked-trec", "causal-sst2", "causal-cb"):
        runs = sorted(full_runs(f"groups-fzoo/{task}", "fzoo", "tune"), key=lambda run: run.config["lr"])
        best = max(runs, key=lambda run: run.result["dev"]["metric"])
        sizes[task] = len(runs), best.config["lr"], best is runs[-1]
        (published,) = (run for run in runs if run.config["lr"] == 5e-5)
        assert math.isinf(published.result["target"]["forwards"]), "the published one does not reach the target"
    assert "the published 5e-5 is too small on all three." in words("docs/choosing.md")
    assert "The best is 3.2e-3 on TREC, the largest tried, and 4e-4 on SST-2." in words("docs/choosing.md")
    assert sizes == {
        "masked-trec": (8, 3.2e-3, True),
        "causal-sst2": (6, 4e-4, False),
        "causal-cb": (4, 2e-4, True),
    }
    assert "On SST-2 six step sizes are tried, on CB four; on CB the largest is the best yet." in text
    ends = []
    for preset, method in (("groups-fzoo", "fzoo"), ("groups", "mezo"), ("groups", "mezo-grouped-16")):
        runs = full_runs(f"{preset}/causal-sst2", method, "tune")
        best = min(runs, key=lambda run: run.result["dev"]["loss"]).result
        ends += [best["target"]["forwards"], best["dev"]["loss"]]
    told = "has 0.82 on dev after {} forwards, and a dev loss of {:.3f} at its best look. MeZO's best tuning run has"
    told += " 0.82 after {} forwards, and a loss of {:.3f}. That of 16 groups has 0.82 after {} forwards, and a loss of"
    told += " {:.3f}."
    assert told.format(*ends) in text


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
