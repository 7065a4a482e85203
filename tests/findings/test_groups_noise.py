"""docs/findings/groups.md: what the noise allows, and the model of many cards."""

from __future__ import annotations

import json
import math
from statistics import median

from helene.lab.runs.records import read_jsonl
from helene.steps.gradient_noise import divisors, gain
from tests.findings.committed import LLM, table, words
from tests.findings.groups_rows import (
    least_noise,
    shares,
    three_tests,
)


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
