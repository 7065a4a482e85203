"""What README.md and docs/findings/ say is what the committed records say; their links lead somewhere."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from helene.lab.runs.records import read_jsonl
from helene.steps.gradient_noise import gain
from llm_bench.cost.instructions import PER_SECOND
from llm_bench.models.shapes import num_parameters
from llm_bench.protocol import speed
from llm_bench.report import sensitivity
from tools import halving, learned, steps_picture

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / n / "README.md" for n in ("theory", "llm_bench"))]
LLM = ROOT / "llm_bench" / "records"
SHAPES = {"1.3B": "opt-1.3b", "2.7B": "opt-2.7b", "6.7B": "opt-6.7b", "13B": "opt-13b"}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(page: str, head: str) -> list[list[str]]:
    """The rows of the table whose head starts so."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


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


ENGINES = [f"engine/h200{size}" for size in ("", "-2.7b", "-6.7b", "-13b")]  # of the shapes, in their order


def test_the_readmes_gigabytes_and_milliseconds():
    def gigabytes(model: str, name: str) -> str:
        (found,) = [r["result"] for r in measured if (r["config"]["model"], r["config"]["name"]) == (model, name)]
        if found["peak_bytes"] is None:
            return f"{found['predicted_bytes']['total'] / 1e9:.0f}, does not fit"
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
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    engine, step = milliseconds("engine/h200")["MeZO"][0], milliseconds("engine/h200-fourth")["MeZO, optimizer.step"][0]
    assert f"`optimizer.step` takes {step:.0f} ms (1.3B)" in text
    minutes = [f"{20_000 * ms / 60_000:.0f}" for ms in (engine, step)]
    assert "20,000 steps: {} minutes by the Engine, {} without".format(*minutes) in text

    series = {r["series"]: r for r in records(ROOT / "synthetic" / "records" / "full.jsonl") if "series" in r}
    grow = [series[f"{name}-helene"]["beta"] for name in FAMILIES.values()]
    follows = sum(interval is not None and interval[1] > 0 for interval in grow)
    assert f"on {follows} of {len(grow)} families" in text
    assert follows + 2 == len(grow), "two have one d"

    means = [fmean(accuracies("parts/causal-sst2", name)) for name in ("helene-no-curvature", "mezo", "helene")]
    assert "has {0:.2f} after 500 steps, as MeZO, with it {2:.2f}".format(*means) in text
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


def milliseconds(file: str, length: int = 64) -> dict[str, list[float]]:
    """Median and quartiles of a step of each contestant in an engine's records, at 16 x ``length`` tokens."""
    wanted = {"part": "alone" if file in ENGINES[2:] else "table", "length": length}
    return {
        r["config"]["contestant"]: [1e3 * r["result"][f"{part}_seconds"] for part in ("median", "p25", "p75")]
        for r in records(LLM / f"{file}.jsonl")
        if "config" in r and wanted.items() <= r["config"].items()
    }


def test_the_page_on_the_engine():
    """Steps of the larger shape, and those without the engine."""
    page = "docs/findings/engine.md"
    steps = milliseconds("engine/h200-2.7b")
    names = {"two captured forwards, the floor": "two forwards", "MeZO, full": "MeZO", "MeZO, LoRA": "lora: MeZO"}
    names |= {"MeZO, prefix": "prefix: MeZO", "published MeZO step": "rival: published MeZO"}
    _, *rows = table(page, "| ms | OPT-2.7B")
    assert rows == [[name, f"{steps[names.get(name, name)][0]:.1f}"] for name, _ in rows]
    _, *rows = table(page, "| ms | OPT-6.7B")
    for i, file in enumerate(ENGINES[2:]):
        steps = milliseconds(file)
        over = {
            r["config"]["contestant"]: r["result"]["over two forwards"]
            for r in records(LLM / f"{file}.jsonl")
            if "config" in r
        }
        assert max(max(high / middle, middle / low) for middle, low, high in steps.values()) < 1.02
        for name, *cells in rows:
            key = names.get(name, name)
            assert cells[i] == f"{steps[key][0]:.1f} ({over[key]:.2f})"
    _, *rows = table(page, "| ms | two eager forwards")
    for label, *cells in rows:
        shape, tuned = label.split(", ")
        steps = milliseconds({"OPT-1.3B": "engine/h200-fourth", "OPT-2.7B": "engine/h200-2.7b"}[shape])
        of = "" if tuned == "full" else f"{tuned.lower()}: "
        eager, ours = steps[f"{of}two eager forwards"], steps[f"{of}MeZO, optimizer.step"]
        assert cells == [
            *("{:.1f} ({:.1f}–{:.1f})".format(*times) for times in (eager, ours)),
            f"{ours[0] / eager[0]:.2f}",
        ]


def test_the_engines_milliseconds_and_ratios():
    """The page's first table, and the ratios that are held against targets, each of one process."""
    page, (short, long) = "docs/findings/engine.md", (milliseconds("engine/h200", n) for n in (64, 256))
    names = {"two captured forwards, the floor": "two forwards", "MeZO, prefix": "prefix: MeZO"}
    names |= {"MeZO, LoRA": "lora: MeZO", "MeZO, full": "MeZO", "published MeZO step": "rival: published MeZO"}
    names |= {"a fair rival: fused in place, captured": "rival: fused in place, captured"}
    _, *rows = table(page, "| ms | 16 x 64 tokens | 16 x 256 tokens")
    for name, *cells in rows:
        key = names.get(name, name)
        assert cells == [f"{steps[key][0]:.1f}" for steps in (short, long)], name
    found = {row[0]: (row[1], row[3]) for row in table(page, "| | 16 x 64 tokens | target")}

    def over(name: str, floor: str) -> tuple[str, ...]:
        return tuple(f"{steps[name][0] / steps[floor][0]:.2f}" for steps in (short, long))

    assert found["MeZO step / two captured forwards"] == over("MeZO", "two forwards")
    for bits in ("bf16", "8-bit"):
        ratios = over(f"HELENE, {bits} state", "two forwards")
        assert found[f"HELENE step ({bits} state) / two captured forwards"] == ratios
    published = [f"{steps['rival: published MeZO'][0] / steps['MeZO'][0]:.1f}" for steps in (short, long)]
    assert found["published MeZO step / ours"] == tuple(published)
    tuned = zip(*(over(f"{of}: MeZO", f"{of}: two forwards") for of in ("lora", "prefix")), strict=True)
    assert found["LoRA step, prefix step / two captured forwards of the tuned model"] == tuple(map(", ".join, tuned))
    quiet = milliseconds("engine/h200-fourth")
    steps = f"{quiet['MeZO, optimizer.step'][0] / quiet['two eager forwards'][0]:.2f}"
    assert found["MeZO by `optimizer.step` / two eager forwards"] == (
        steps,
        over("MeZO, optimizer.step", "two eager forwards")[1],
    )
    peaks = {
        r.config["length"]: r.result for r in read_jsonl(LLM / "engine/h200.jsonl") if r.config["part"] == "memory"
    }
    ratios = tuple(f"{peaks[n]['MeZO / inference']:.2f}" for n in (64, 256))
    assert found["MeZO peak bytes / inference peak"] == ratios
    held = ", ".join(f"{peaks[64][f'bytes a parameter, {bits} state']:.2f}" for bits in ("8-bit", "bf16"))
    assert found["HELENE's bytes a parameter beyond MeZO's: 8-bit, bf16 state"] == (held, held)
    assert held == ", ".join(f"{peaks[256][f'bytes a parameter, {bits} state']:.2f}" for bits in ("8-bit", "bf16"))
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    alone: dict[int, dict[str, float]] = {64: {}, 256: {}}
    for r in read_jsonl(LLM / "engine" / "h200-alone.jsonl"):
        alone[r.config["length"]][r.config["contestant"]] = r.result["over two forwards"]
    ours = [[f"{a[n]:.2f}" for n in ("MeZO", "HELENE, bf16 state", "HELENE, 8-bit state")] for a in alone.values()]
    assert "rows are {0[0]}, {0[1]} and {0[2]}, and {1[0]}, {1[1]} and {1[2]}".format(*ours) in text
    others = [milliseconds(f"engine/h200-{n}") for n in ("first", "second", "third", "fourth")]
    apart = [o[n][0] / short[n][0] for o in others for n in ("two forwards", "MeZO", "lora: MeZO", "prefix: MeZO")]
    assert max(max(apart) - 1, 1 - min(apart)) < 0.035


def test_what_bounds_a_step():
    """Least times from counts of instructions and bytes; measured ones from the profile and the part "overlap"."""
    profile, size = json.loads((LLM / "profile-h200.json").read_text(encoding="utf-8")), num_parameters("opt-1.3b")
    least, parts = profile["mezo"]["floors"], {}
    for r in read_jsonl(LLM / "engine" / "h200.jsonl"):
        parts[r.config["part"]] = r.result
    a_byte = least["update"] / 4  # MeZO's reads and writes two bytes of theta

    def update(name: str, num_bytes: int) -> float:
        """Seconds for the whole model of a kernel that was timed on fewer elements."""
        kernel = parts["micro"]["kernels"][name]
        return kernel["median_seconds"] * size * num_bytes / kernel["bytes"]

    counts = {
        r.config["contestant"]: r.result["instructions"] for r in read_jsonl(LLM / "engine" / "instructions.jsonl")
    }
    helene = update("HELENE update, bf16 state and estimate, fast", 12)
    rows = []
    for name, of, by_bytes, measured in (
        (
            "copies of both signs",
            "both copies",
            least["copies"],
            parts["overlap"]["seconds"]["copies"]["median_seconds"] * size / 2**28,
        ),
        ("MeZO's update", "MeZO update", least["update"], update("MeZO update, rounds 7 fast warps 4", 4)),
        ("HELENE's update, bf16 state", "HELENE update, bf16 state", 12 * a_byte, helene),
        (
            "HELENE's update, 8-bit state",
            "HELENE update, 8-bit state",
            8 * a_byte,
            update("HELENE update, 8-bit state and estimate, fast", 8),
        ),
    ):
        count = counts[of]
        times = [count * size / 32 / PER_SECOND, by_bytes, measured]
        rows.append([name, f"{count:.0f}", *(f"{1e3 * time:.1f}" for time in times)])
    assert table("docs/findings/engine.md", "| ms | instructions")[1:] == rows
    rounds = counts["both copies"] - counts["both copies, no rounds of the generator"]
    text = (ROOT / "docs/findings/engine.md").read_text(encoding="utf-8")
    assert f"The generator takes {rounds:.0f} of a draw's instructions." in text
    less, step = 1e3 * rounds / 2 * size / 32 / PER_SECOND, milliseconds("engine/h200")
    assert f"would take {less:.1f} ms less" in text
    assert f"That is {less / step['MeZO'][0]:.0%} of a step".replace("%", " %") in text
    floor, least_update = step["two forwards"][0], 1e3 * counts["MeZO update"] * size / 32 / PER_SECOND
    for target, method in ((1.2, "MeZO's"), (1.35, "HELENE's")):  # of the table above
        assert f"{method} target" in text
        assert f"{target * floor:.1f} ms" in text
    assert f"leaves {1.2 * floor - floor - least_update:.1f} ms for the copies beside forwards ({floor:.1f})" in text
    assert floor + 1e3 * helene > 1.35 * floor


PADDED = {  # of the page on the engine: tasks and the rows that a step of theirs was measured with
    "SST-2, causal": "groups/causal-sst2",
    "COPA, causal": "all/causal-copa",
    "WiC, causal": "all/causal-wic",
    "WSC, causal": "all/causal-wsc",
    "CB, causal": "groups/causal-cb",
    "SQuAD, causal": "brief/causal-squad",
    "SST-2, masked": "all/masked-sst2",
    "TREC, masked": "all/masked-trec",
    "SNLI, masked": "all/masked-snli",
    "MNLI, masked": "all/masked-mnli",
    "RTE, masked": "all/masked-rte",
}


def padded_rows() -> list[list[str]]:
    """Of MeZO's runs: tokens that a batch holds, places that a forward computes, the share of padding among these."""
    found = []
    for name, file in PADDED.items():
        runs = [r for r in read_jsonl(LLM / "rows" / f"{file}.jsonl") if r.config["method"] == "mezo"]
        runs = [r.result for r in runs if r.result.get("padded_tokens") and r.result["steps"]]
        held, computed = (median(r[key] / r["steps"] for r in runs) for key in ("tokens", "padded_tokens"))
        found.append([name, f"{held:,.0f}", f"{computed:,.0f}", f"{1 - held / computed:.0%}".replace("%", " %")])
    return found


def test_the_padding_that_the_page_on_the_engine_tells_of():
    assert table("docs/findings/engine.md", "| task | tokens a batch")[1:] == padded_rows()


PACKED = {  # of the same page: tasks and their runs with rows, with packed tokens, and with compiled layers too
    "SST-2": ("rows/groups/causal-sst2", "rows/all/causal-sst2", None),
    "CB": ("rows/groups/causal-cb", "rows/all/causal-cb", None),
    "RTE": (None, "rows/all/causal-rte", None),
    "BoolQ": (None, "boolq-not-compiled", "rows/all/causal-boolq"),
}


def test_what_packing_brings():
    def padding_and_time(file: str | None) -> tuple[str, str]:
        if file is None:
            return "", ""
        runs = [r.result for r in read_jsonl(LLM / f"{file}.jsonl") if r.config["method"] == "mezo"]
        runs = [r for r in runs if r["status"] != "diverged" and r.get("padded_tokens")]
        padding = median(1 - r["tokens"] / r["padded_tokens"] for r in runs)
        return f"{padding:.0%}".replace("%", " %"), f"{1e3 * median(map(speed.steady_seconds, runs)):.1f}"

    rows = []
    for name, files in PACKED.items():
        (padding, before), (less, after), (_, compiled) = map(padding_and_time, files)
        rows.append([name, padding, less, before, after, compiled])
    assert table("docs/findings/engine.md", "| task, causal")[1:] == rows


def test_what_the_rest_of_the_padding_costs():
    """A place from two tasks' steps; a capture from what the first look's steps take beyond later ones."""
    told = {}
    for task in ("sst2", "rte"):
        runs = [r.result for r in read_jsonl(LLM / "rows" / f"all/causal-{task}.jsonl") if r.config["method"] == "mezo"]
        runs = [r for r in runs if r["status"] != "diverged" and r.get("padded_tokens")]
        shapes = [sum(made["steps"] for made in r["steps_made"] if made["mode"] == "eager") for r in runs]
        steady = [speed.steady_seconds(r) for r in runs]
        first = [
            r["curve"]["training_seconds"][1] - r["curve"]["step"][1] * s for r, s in zip(runs, steady, strict=True)
        ]
        capture = median(seconds / count for seconds, count in zip(first, shapes, strict=True))
        held, computed = (median(r[key] / r["steps"] for r in runs) for key in ("tokens", "padded_tokens"))
        told[task] = computed, median(steady), computed - held, capture
    (places, seconds, padding, capture), (more, longer, *_) = told["sst2"], told["rte"]
    place = (longer - seconds) / (more - places)
    text = " ".join((ROOT / "docs/findings/engine.md").read_text(encoding="utf-8").split())
    assert f"a place takes {1e3 * place:.4f} ms" in text
    assert f"takes {1e3 * place * padding:.1f} ms of a step, {2000 * place * padding:.1f} seconds" in text
    assert f"A sum's capture takes {capture:.1f}." in text


def test_what_compiled_layers_bring():
    page, seconds = "docs/findings/engine.md", dict[tuple[str, int, str], float]()
    capture: dict[tuple[str, int], float] = {}
    for record in read_jsonl(LLM / "engine" / "h200-compiled.jsonl"):
        c = record.config
        seconds[c["model"], c["length"], c["contestant"]] = record.result["median_seconds"]
        if record.result.get("compiled"):
            capture[c["model"], c["length"]] = record.result["capture_seconds"]
    shapes = {"Gemma 3 270M": "gemma3-270m", "OPT-1.3B": "opt-1.3b"}
    rows = []
    for name, shape in shapes.items():
        for length in (64, 256):
            plain, compiled = (seconds[shape, length, method] for method in ("MeZO", "MeZO, compiled"))
            cells = [f"{1e3 * plain:.1f}", f"{1e3 * compiled:.1f}", f"{compiled / plain:.2f}"]
            rows.append([f"{name}, 16 x {length}", *cells])
    assert table(page, "| ms | as it is | compiled")[1:] == rows
    text = (ROOT / page).read_text(encoding="utf-8")
    captures = [capture["gemma3-270m", 64], capture["opt-1.3b", 64]]
    assert "takes {:.0f} seconds (Gemma) and {:.0f} (OPT)".format(*captures) in text
    assert all(0.5 <= capture[shape, 256] < 1.5 for shape in shapes.values())  # "about a second"
    assert f"{min(captures):.0f} to {max(captures):.0f} seconds" in (ROOT / "docs" / "engine.md").read_text("utf-8")
    ratios = [row[3] for row in rows[:2]]
    assert f"Gemma's steps take {ratios[0]} to {ratios[1]} times" in (ROOT / "docs" / "engine.md").read_text("utf-8")


FAMILIES = {  # of the page on scaling: the series of its records, without the method
    "quadratics": "quadratic-coordinate",
    "quadratics, d to 4,096": "large-coordinate",
    "ill-conditioned quadratics": "ill_conditioned-coordinate",
    "low-rank quadratics": "low_rank-coordinate",
    "quadratics, unlike layers": "heterogeneous-layer_gap",
    "coupled layers": "coupled_half-coordinate",
    "strongly coupled layers": "coupled_strong-coordinate",
    "log-cosh": "log_cosh-coordinate",
    "log-cosh, one wide layer": "one_wide-coordinate",
    "log-cosh, unlike layers": "heterogeneous_log_cosh-layer_gap",
    "log-cosh, one function in four partitions": "relabelled-coordinate",
    "softplus": "softplus-coordinate",
    "quartic": "quartic-coordinate",
    "digits, real data": "digits-coordinate",
    "softmax regression, real data": "softmax-coordinate",
    "breast cancer, real data": "breast_cancer-coordinate",
}


def test_the_page_on_scaling():
    """Every family's exponents and ratios, with their intervals."""

    def shown(interval: list[float] | None) -> str:
        if interval is None:
            return "d is fixed"
        middle, low, high = (f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−") for value in interval)
        return f"{middle} [{low}, {high}]"

    series = {r["series"]: r for r in records(ROOT / "synthetic" / "records" / "full.jsonl") if "series" in r}
    _, *rows = table("docs/findings/scaling.md", "| family | β")
    assert [row[0] for row in rows] == list(FAMILIES)
    for label, *cells in rows:
        helene, ball = (series[f"{FAMILIES[label]}-{method}"] for method in ("helene", "heavy_ball"))
        against = (helene["steps_against_mezo"], ball["steps_against_mezo"])
        assert cells == [shown(value) for value in (helene["beta"], helene["alpha"], *against)], label


def accuracies(file: str, method: str) -> list[float]:
    """Of the test runs, by seed."""
    runs = [r for r in records(LLM / "rows" / f"{file}.jsonl") if r.get("config", {}).get("method") == method]
    tests = [r for r in runs if r["config"]["role"] == "test"]
    return [r["result"]["test"]["metric"] for r in sorted(tests, key=lambda r: r["config"]["seed"])]


def test_the_page_on_language_models():
    """Its table and the README's line are those of the records; where a section lists seeds, they are these."""
    found = learned.rows()
    page = learned.PAGE.read_text(encoding="utf-8")
    assert page == learned.placed(page, found), f"run: {learned.COMMAND}"
    readme = learned.README.read_text(encoding="utf-8")
    assert learned.sentence(found) in readme, f"run: {learned.COMMAND}"
    assert learned.count(found) in readme, f"run: {learned.COMMAND}"
    for file in (
        "small/causal-sst2",
        "parts/causal-sst2",
        "small/masked-sst2",
        "all/causal-wic",
        "all/causal-wsc",
        "all/causal-sst2",
        "all/causal-cb",
        "all/causal-rte",
        "brief/causal-rte",
        "all/causal-boolq",
    ):
        for method in ("mezo", "helene"):
            assert ", ".join(f"{value:.3f}" for value in accuracies(file, method)) in page, (file, method)


TUNED = {  # methods of the table of tunings
    "mezo": "MeZO",
    "zo-sgd-mmt": "MeZO with momentum (ZO-SGD-MMT)",
    "zo-adam": "ZO-Adam",
    "zo-sgd-sign": "ZO-SGD-Sign",
    "helene": "HELENE, Algorithm 1",
}


def test_the_table_of_tunings():
    page, names = "docs/findings/language_models.md", {"full": "all parameters", "lora": "LoRA, rank 8"}
    names |= {"prefix": "a prefix of 5"}
    every = read_jsonl(LLM / "rows" / "table-3" / "causal-sst2.jsonl")
    found = [r for r in every if r.config["method"] == "mezo"]

    def cell(method: str, tuning: str) -> str:
        runs = [r for r in every if (r.config["method"], r.config["tuning"]) == (method, tuning)]
        tried = {r.config["lr"] for r in runs if r.config["role"] == "tune"}
        tests = sorted((r for r in runs if r.config["role"] == "test"), key=lambda r: r.config["seed"])
        shown = ", ".join(f"{r.result['test']['metric']:.3f}" for r in tests)
        return shown + " †" * (tests[0].config["lr"] in (min(tried), max(tried)))

    assert table(page, "| test accuracy | all parameters")[1:] == [
        [label, *(cell(method, tuning) for tuning in names)] for method, label in TUNED.items()
    ]
    rows = []
    for tuning, name in names.items():
        runs = [r for r in found if r.config["tuning"] == tuning and r.config["role"] != "measure"]
        ms = 1e3 * median(speed.steady_seconds(r.result) for r in runs)
        rows.append([name, str(len({r.config["lr"] for r in runs})), f"{ms:.1f}"])
    assert table(page, "| MeZO tunes")[1:] == rows
    tested = {r.config["tuning"]: r.config["lr"] for r in found if r.config["role"] == "test"}
    largest = max(r.config["lr"] for r in found if r.config["tuning"] == "prefix")
    assert (tested["lora"], tested["prefix"], largest) == (4e-4, 0.16, 0.16)
    for page in ("README.md", "docs/choosing.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "did best with 4e-4" in text
        assert "with 0.16, the largest that was tried" in text


def test_the_table_of_step_sizes():
    """That of all committed rows."""
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    table_now = sensitivity.table_of(sorted((LLM / "rows").glob("*/*.jsonl")))
    told = "run: helene llm sensitivity llm_bench/records/rows/*/*.jsonl --write docs/choosing.md"
    assert page == sensitivity.put_between_marks(page, table_now), told


GROUPS = {
    "mezo": "MeZO",
    "zo-sgd-mmt": "MeZO with momentum",
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
            rows.append(
                [
                    label,
                    f"{tests[0].config['lr']:.0e}".replace("e-0", "e-"),
                    ", ".join(f"{target['steps']:,.0f}" for target in targets),
                    ", ".join(f"{target['training_seconds']:.1f}" for target in targets),
                    f"{min(a_step):.1f} to {max(a_step):.1f}",
                    ", ".join(f"{r.result['test']['metric']:.3f}" for r in tests),
                    f"{max(r.result['peak_bytes']['step'] for r in tests) / 1e9:.1f}",
                ]
            )
    return rows


def test_the_page_on_groups():
    """Each method's row on each task, what the first sentence says of them, and the gains of theory."""
    page = "docs/findings/groups.md"
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for task, head in (("sst2", "| SST-2, target"), ("cb", "| CB, target")):
        assert table(page, head)[1:] == grouped_rows(task)
    rows = {row[0]: row for row in grouped_rows("sst2")}
    ours, mezo = ([float(n.replace(",", "")) for n in rows[name][2].split(", ")] for name in ("16 groups", "MeZO"))
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


def test_what_the_papers_claims_come_to():
    """The table's numbers are those of the answers that the ledger links."""
    said = {line["claim"]: line["answer"] for line in records(LLM / "claims.jsonl")}
    rows = [row[1] for row in table("docs/findings/language_models.md", "| the paper says of HELENE")[1:]]
    mezo, helene = re.findall(r"in (\d) of (\d) seeds", said["SPEED-20x"])
    assert rows[0] == f"SST-2: MeZO reaches the target in {' of '.join(mezo)} seeds, HELENE in none"
    assert helene[0] == "0"
    tasks, points = re.findall(r"over (\d+) tasks with full tuning HELENE − MeZO is -([\d.]+) points", said["TAB-1.5"])[
        0
    ]
    assert rows[1] == f"−{points} points on average over {tasks} tasks, all parameters tuned"
    of, higher, sure, lost = re.findall(r"\d+", said["TAB-consistent"])
    assert rows[2] == f"the higher mean in {higher} of {of} pairs, beyond noise in none; MeZO beyond noise in {lost}"
    assert sure == "0"
    least, _, most = re.findall(r"([\d.]+) with \S+ state", said["MEM-3x"])
    assert rows[3] == f"{least} to {most} times, by how its state is stored"


def test_what_halving_would_choose():
    counts = halving.counts(halving.cells())
    (mezo, mezos), (helene, helenes) = counts["mezo"], counts["helene"]
    text = " ".join(learned.PAGE.read_text(encoding="utf-8").split())
    assert f"in {mezo + helene} of {mezos + helenes} cells" in text
    assert f"in {mezo} of MeZO's {mezos} and in {helene} of HELENE's {helenes}" in text


def test_halving_goes_by_what_a_run_has_shown_so_far():
    """The second step size is behind at first and leads in the end, so halving drops it."""
    at = {"step": [0, 500, 2000], "dev_loss": [1.0, 0.5, 0.5]}
    curves = {1.0: {**at, "dev_metric": [0.5, 0.7, 0.7]}, 2.0: {**at, "dev_metric": [0.5, 0.6, 0.9]}}
    assert halving.ranked(curves, [1.0, 2.0]) == [2.0, 1.0]
    assert halving.ranked(curves, [1.0, 2.0], 500) == [1.0, 2.0]
    assert halving.counts([halving.Cell("t", "m", 2.0, 1.0), halving.Cell("u", "m", 1.0, 1.0)]) == {"m": (1, 2)}


def test_what_counts_as_learned():
    """Two standard errors above the better control; a method that was not run has no verdict."""
    row = learned.Row("masked", "t", "m", 9, "f", {"zero-shot": [0.5], "bias-only": [0.6, 0.7], "mezo": [0.74]}, 100)
    assert (row.error, row.learned("mezo"), row.learned("helene")) == (0.05, False, None)
    row.results["mezo"] = [0.7, 0.81]
    assert row.learned("mezo")
    chance = 0.5 + 2 * math.sqrt(1 / 300)  # of 100 rows, half of each kind
    for auc, learned_it in ((chance - 1e-6, False), (chance + 1e-6, True)):
        row.aucs["mezo"] = [auc, auc]
        assert row.learned("mezo") is learned_it


def test_the_readmes_headline():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    told = re.search(r"HELENE reaches ([\d.]+) where MeZO reaches ([\d.]+) .* linear probe .* reaches ([\d.]+)\.", text)
    assert told is not None
    means = [fmean(accuracies("small/causal-sst2", method)) for method in ("helene", "mezo", "linear-probe")]
    assert list(told.groups()) == [f"{mean:.2f}" for mean in means]
