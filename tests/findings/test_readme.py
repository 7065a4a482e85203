"""README.md and the links of all pages against the committed records."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest

from helene.lab.runs.records import Record, read_jsonl
from llm_bench.protocol.presets import BASE_LR, EPS
from tests.findings.committed import (
    ENGINES,
    FAMILIES,
    LLM,
    ROOT,
    accuracies,
    full_runs,
    milliseconds,
    records,
    table,
    words,
)
from tools import steps_picture

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / n / "README.md" for n in ("theory", "llm_bench"))]


SHAPES = {"1.3B": "opt-1.3b", "2.7B": "opt-2.7b", "6.7B": "opt-6.7b", "13B": "opt-13b"}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            there = (page.parent / path) if path else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def test_the_readme_fits_its_bounds():
    """A page of 120 lines at most; five findings of 40 words at most, with a link each."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    found = re.split(r"^\* ", text.partition("## What was found\n")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]
    assert len(found) == 5
    for bullet in found:
        assert bullet.count("](") == 1, bullet
        assert len(re.sub(r"\(\[.*?\]\(.*?\)\)", "", bullet, flags=re.DOTALL).split()) <= 40, bullet


def test_the_picture_shows_the_records():
    told = re.search(r'aria-label="([^"]+)"', steps_picture.PICTURE.read_text(encoding="utf-8"))
    assert told is not None
    assert told[1] == steps_picture.told(steps_picture.series()), f"run: {steps_picture.COMMAND}"


def test_the_readmes_gigabytes_and_milliseconds():
    def gigabytes(model: str, name: str) -> str:
        (found,) = [r["result"] for r in measured if (r["config"]["model"], r["config"]["name"]) == (model, name)]
        if found["peak_bytes"] is None:
            return f"{found['predicted_bytes']['total'] / 1e9:.0f} (predicted)"
        return f"{found['peak_bytes'] / 1e9:.1f}"

    measured = [r for r in records(LLM / "memory-h200.jsonl") if "config" in r and r["config"]["batch"] == "16x64"]
    _, *rows = table("README.md", "| | MeZO full, GB")
    assert [row[0] for row in rows] == list(SHAPES)
    for shape, full, lora, helene, adam, *_ in rows:
        model = SHAPES[shape]
        assert full == gigabytes(model, "MeZO")
        assert lora == gigabytes(model, "LoRA, MeZO")
        assert helene == f"{gigabytes(model, 'HELENE, 8-bit state')}, {gigabytes(model, 'HELENE, bf16 state')}"
        assert adam == gigabytes(model, "FT Adam, fp32 weights")
    for row, file in zip(rows, ENGINES, strict=True):
        steps = milliseconds(file)
        assert row[5] == ", ".join(f"{steps[name][0]:.0f}" for name in ("MeZO", "lora: MeZO", "prefix: MeZO"))
        assert row[6] == ", ".join(f"{steps[name][0]:.0f}" for name in ("HELENE, 8-bit state", "HELENE, bf16 state"))


def test_the_readmes_other_numbers():
    """Those of the findings' bullets and of the sentence on time, each from its record."""
    text = words("README.md")
    engine, step = milliseconds("engine/h200")["MeZO"][0], milliseconds("engine/h200-sixth")["MeZO, optimizer.step"][0]
    assert f"`optimizer.step` takes {step:.0f} ms (1.3B)" in text
    (config,) = {
        (c["dtype"], c["rows"], c["length"])
        for c in (r.config for r in read_jsonl(LLM / "engine" / "h200.jsonl"))
        if (c["part"], c.get("length"), c.get("contestant")) == ("table", 64, "MeZO")
    }
    assert "OPT shapes, {}, {} x {} tokens, one H200".format(*config) in text
    minutes = [f"{20_000 * ms / 60_000:.0f}" for ms in (engine, step)]
    assert "20,000 steps: {} minutes by the Engine, {} without".format(*minutes) in text

    runs = [r for r in read_jsonl(LLM / "rows" / "small" / "causal-sst2.jsonl") if r.config["role"] == "test"]
    steps = sorted(r.result["target"]["steps"] for r in runs if r.config["method"] == "mezo")
    (target,) = {r.result["target"]["value"] for r in runs if r.config["method"] == "mezo"}
    assert f"{target} on SST-2's dev rows after {steps[0]} to {steps[-1]} steps" in text

    series = {r["series"]: r for r in records(ROOT / "synthetic" / "records" / "full.jsonl") if "series" in r}
    grow = [series[f"{name}-helene"]["beta"] for name in FAMILIES.values()]
    follows = sum(interval is not None and interval[1] > 0 for interval in grow)
    assert f"on {follows} of {len(grow)} families" in text
    assert follows + 2 == len(grow), "two have one d"

    means = [fmean(accuracies("parts/causal-sst2", name)) for name in ("helene-no-curvature", "mezo", "helene")]
    assert "has {0:.2f} after 500 steps, as MeZO, with it the untrained {2:.2f}".format(*means) in text
    (untrained,) = accuracies("all/causal-sst2", "zero-shot")
    assert f"{untrained:.2f}" == f"{means[2]:.2f}"
    assert f"{means[0]:.2f}" == f"{means[1]:.2f}"

    held = [r for r in records(LLM / "memory-h200.jsonl") if "config" in r and r["config"]["batch"] == "16x64"]
    peaks = {(r["config"]["model"], r["config"]["name"]): r["result"]["peak_bytes"] for r in held}
    more: dict[str, list[float]] = {"8-bit": [], "bf16": []}
    for bits, ratios in more.items():
        ratios += [peaks[model, f"HELENE, {bits} state"] / peaks[model, "MeZO"] for model in SHAPES.values()]
    assert f"{min(more['8-bit']):.1f} (8-bit state) to {max(more['bf16']):.1f} (bfloat16) times" in text
    slower = []
    for file in ENGINES:
        for length in (64, 256) if file == "engine/h200" else (64,):
            ms = milliseconds(file, length)
            slower += [ms[f"HELENE, {bits} state"][0] / ms["MeZO"][0] for bits in more]
    assert f"{min(slower):.1f} to {max(slower):.1f} times its time" in text


def test_the_readmes_settings():
    """Of MeZO by tuning: those of the presets, and those of the runs that are quoted beside them."""
    text = words("README.md")
    quoted = {r.config["tuning"]: r.config for r in _tests_of_mezo("table-3")}
    (ours,) = {(c["lr"], c["eps"], c["batch_size"], c["steps"]) for c in (r.config for r in _tests_of_mezo("small"))}
    assert ours[:2] == (BASE_LR["full"], EPS["causal", "full"])
    assert f"**Learning rates for MeZO** ({ours[2]} rows a batch" in text
    assert f"with Gemma 3 270M ([{ours[3]:,} steps, three seeds]" in text
    shown = dict(zip(BASE_LR, table("README.md", "| | lr | eps | from |")[1:], strict=True))
    for tuning, (name, lr, eps, _) in shown.items():
        assert name.lower() == tuning
        assert float(lr) == BASE_LR[tuning]
        causal, masked = EPS["causal", tuning], EPS["masked", tuning]
        by_kind = [float(number) for number in re.findall(r"\de-\d", eps)]
        assert by_kind == ([causal] if causal == masked else [causal, masked])
    assert f"in {quoted['lora']['steps']} steps of SST-2 Gemma 3 270M did best with" in text


def _tests_of_mezo(preset: str) -> list[Record]:
    paths = sorted((LLM / "rows" / preset).glob("causal-sst2*.jsonl"))
    runs = [r for path in paths for r in read_jsonl(path)]
    return [r for r in runs if r.config["method"] == "mezo" and r.config["role"] == "test"]


def test_the_readmes_headline():
    helene, mezo, (probe,) = (accuracies("small/causal-sst2", m) for m in ("helene", "mezo", "linear-probe"))
    seeds = "{:.2f}, {:.2f} and {:.2f}".format(*helene)
    told = f"HELENE reaches {seeds} of test accuracy, MeZO {min(mezo):.2f} to {max(mezo):.2f}, a linear probe on the"
    (adam,) = {f"{accuracy:.2f}" for accuracy in accuracies("all/causal-sst2", "ft-adam")}
    (steps,) = {run.config["steps"] for run in full_runs("all/causal-sst2", "ft-adam", "test")}
    assert f"{told} frozen model {probe:.2f}, Adam with gradients {adam} after {steps}." in words("README.md")
