"""docs/findings/groups.md against the committed records."""

from __future__ import annotations

from statistics import fmean, median

from helene.lab.runs.records import read_jsonl
from helene.steps.gradient_noise import gain
from llm_bench.protocol import speed
from tests.findings.committed import LLM, milliseconds, table, words

GROUPS = {
    "mezo": "MeZO",
    "zo-sgd-mmt": "MeZO with momentum",
    "zo-adam": "ZO-Adam",
    "mezo-grouped-4": "4 groups",
    "mezo-grouped-16": "16 groups",
}


def grouped_rows(task: str) -> list[list[str]]:
    """The table of a task on the page on groups: what each method's test runs came to."""
    rows = []
    for method, label in GROUPS.items():
        runs = [r for r in read_jsonl(LLM / "rows" / f"groups/causal-{task}.jsonl") if r.config["method"] == method]
        tests = sorted((r for r in runs if r.config["role"] == "test"), key=lambda r: r.config["seed"])
        if tests:
            targets = [r.result["target"] for r in tests]
            curves = [r.result["curve"]["training_seconds"] for r in runs if r.result["status"] != "diverged"]
            steps_after = tests[0].config["steps"] - tests[0].config["eval_every"]
            a_step = [1e3 * (seconds[-1] - seconds[1]) / steps_after for seconds in curves]
            alone = all(speed.had_the_card_alone(r) for r in runs)
            rows.append(
                [
                    label,
                    f"{tests[0].config['lr']:.0e}".replace("e-0", "e-"),
                    ", ".join(f"{target['steps']:,.0f}" for target in targets),
                    ", ".join(f"{target['training_seconds']:.1f}" for target in targets) if alone else "",
                    f"{min(a_step):.1f} to {max(a_step):.1f}" if alone else "",
                    ", ".join(f"{r.result['test']['metric']:.3f}" for r in tests),
                    f"{max(r.result['peak_bytes']['step'] for r in tests) / 1e9:.1f}",
                ]
            )
    return rows


def test_the_page_on_groups():
    """Each method's row on each task, what the first sentence says of them, and the gains of theory."""
    page = "docs/findings/groups.md"
    text = words(page)
    for task, head in (("sst2", "| SST-2, target"), ("cb", "| CB, target")):
        assert table(page, head)[1:] == grouped_rows(task)
    rows = {row[0]: row for row in grouped_rows("sst2")}
    ours, mezo, adam = (list(map(float, rows[name][2].split(", "))) for name in ("16 groups", "MeZO", "ZO-Adam"))
    assert all(a > b for a, b in zip(adam, mezo, strict=True)), "ZO-Adam takes more of them than MeZO with each seed"
    assert f"take a median of {median(ours):.0f} steps where MeZO takes {median(mezo):.0f}" in text
    assert (
        "take {:.2f}, {:.2f} and {:.2f} times MeZO's steps".format(*(a / b for a, b in zip(ours, mezo, strict=True)))
        in text
    )
    slower = [fmean(map(float, rows[name][4].split(" to "))) for name in ("16 groups", "MeZO")]
    assert f"takes {slower[0] / slower[1]:.1f} times as long" in text
    alone = [r for r in read_jsonl(LLM / "engine/h200-alone.jsonl") if r.config["length"] == 64]
    steps = {r.config["contestant"]: r.result for r in alone}
    ours, mezo = steps["GroupedMeZO, 16 groups"], steps["MeZO"]
    times = [f"{1e3 * r['median_seconds']:.1f}" for r in (ours, mezo)]
    assert "a step of 16 groups takes {} ms, MeZO's {}.".format(*times) in text
    assert f"{ours['over two forwards']:.2f} and {mezo['over two forwards']:.2f} times two captured forwards" in text
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
    floor = milliseconds("engine/h200")["two forwards"][0]
    assert f"the forward alone is {1e3 * profiles[64]['parts']['forward'] / floor:.1f} times" in text
    noise, gains = table(page, "| B = G = 16")
    assert gains[1:] == [f"{gain(16, 16, float(nu)):.1f}" for nu in noise[1:]]
