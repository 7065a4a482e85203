"""docs/findings/engine.md against the committed records."""

from __future__ import annotations

import json
from statistics import median, quantiles
from typing import Any

from helene.lab.runs.records import read_jsonl
from llm_bench.cost import host_time
from llm_bench.cost.instructions import PER_SECOND
from llm_bench.models.shapes import num_parameters
from llm_bench.protocol import speed
from tests.findings.committed import ENGINES, LLM, ROOT, milliseconds, records, table, words


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
        shape, tuned, batch = label.split(", ")
        length = int(batch.removeprefix("16 x "))
        steps = milliseconds({"OPT-1.3B": "engine/h200-sixth", "OPT-2.7B": "engine/h200-2.7b"}[shape], length)
        of = "" if tuned == "full" else f"{tuned.lower()}: "
        eager, ours = steps[f"{of}two eager forwards"], steps[f"{of}MeZO, optimizer.step"]
        assert cells == [
            *("{:.1f} ({:.1f}–{:.1f})".format(*times) for times in (eager, ours)),
            f"{ours[0] / eager[0]:.2f}",
            {64: "1.25", 256: "1.1"}[length],
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
    sixth = [milliseconds("engine/h200-sixth", length) for length in (64, 256)]
    by_step = tuple(f"{ms['MeZO, optimizer.step'][0] / ms['two eager forwards'][0]:.2f}" for ms in sixth)
    assert found["MeZO by `optimizer.step` / two eager forwards"] == by_step
    peaks = {
        r.config["length"]: r.result for r in read_jsonl(LLM / "engine/h200.jsonl") if r.config["part"] == "memory"
    }
    ratios = tuple(f"{peaks[n]['MeZO / inference']:.2f}" for n in (64, 256))
    assert found["MeZO peak bytes / inference peak"] == ratios
    held = ", ".join(f"{peaks[64][f'bytes a parameter, {bits} state']:.2f}" for bits in ("8-bit", "bf16"))
    assert found["HELENE's bytes a parameter beyond MeZO's: 8-bit, bf16 state"] == (held, held)
    assert held == ", ".join(f"{peaks[256][f'bytes a parameter, {bits} state']:.2f}" for bits in ("8-bit", "bf16"))
    text = words(page)
    alone: dict[int, dict[str, float]] = {64: {}, 256: {}}
    for r in read_jsonl(LLM / "engine" / "h200-alone.jsonl"):
        alone[r.config["length"]][r.config["contestant"]] = r.result["over two forwards"]
    ours = [[f"{a[n]:.2f}" for n in ("MeZO", "HELENE, bf16 state", "HELENE, 8-bit state")] for a in alone.values()]
    assert "rows are {0[0]}, {0[1]} and {0[2]}, and {1[0]}, {1[1]} and {1[2]}".format(*ours) in text
    others = [milliseconds(f"engine/h200-{n}") for n in ("first", "second", "third", "fourth", "fifth", "sixth")]
    apart = [o[n][0] / short[n][0] for o in others for n in ("two forwards", "MeZO", "lora: MeZO", "prefix: MeZO")]
    assert max(max(apart) - 1, 1 - min(apart)) < 0.035


def test_how_much_faster_the_engine_is_than_optimizer_step():
    def faster(tunings: tuple[str, ...], *measured: tuple[str, int]) -> tuple[float, float]:
        names = [f"{tuning}MeZO" for tuning in tunings]
        steps = [milliseconds(*one) for one in measured]
        ratios = [of[f"{name}, optimizer.step"][0] / of[name][0] for of in steps for name in names]
        return min(ratios), max(ratios)

    short, long = [("engine/h200-sixth", 64), ("engine/h200-2.7b", 64)], ("engine/h200-sixth", 256)
    full, others, every = faster(("",), *short), faster(("lora: ", "prefix: "), *short), faster(("", "lora: "), long)
    text = words("docs/engine.md")
    assert (
        "it is {:.1f} to {:.1f} times as fast as `optimizer.step` where all parameters are tuned".format(*full) in text
    )
    assert "{:.1f} to {:.1f} times with LoRA and a prefix".format(*others) in text
    assert {f"{ratio:.1f}" for ratio in (*every, *faster(("prefix: ",), long))} == {"1.1"}
    assert f"With 16 x {long[1]} tokens, on OPT-1.3B's, it is 1.1 times as fast." in text
    told = f"at 16 x {short[0][1]} tokens by a factor of [{full[0]:.1f} to {others[1]:.1f}](docs/engine.md)"
    assert told in words("README.md")


def test_the_hosts_time_of_a_step():
    """Medians by what was called, ratios in the same turn, and what a profile says of the GPU at 16 x 256."""
    page = "docs/findings/engine.md"
    text, alone, first, ahead = words(page), of_the_host("alone"), of_the_host("first"), of_the_host("ahead")
    seconds = {length: result["host_seconds"] for length, result in alone.items()}
    whole = [host_time.EAGER, host_time.BARE, host_time.STEP]
    parts = sorted(seconds[64].keys() - set(whole), key=lambda name: -median(seconds[64][name]))
    rows = [[n, *(f"{1e3 * median(seconds[length][n]):.1f}" for length in (64, 256))] for n in [*whole, *parts]]
    assert table(page, "| ms of the host")[1:] == rows
    for name, told in ((host_time.STEP, "takes {1:.2f} (quartiles {0:.2f}–{2:.2f})"), (host_time.BARE, BARE)):
        assert told.format(*over_eager(alone, name)) in text
    _, bare, _ = over_eager(alone, host_time.BARE)
    assert 1.25 - bare < 0.05, "Python leaves hardly any room"
    busier = [over_eager(first, name)[1] for name in (host_time.BARE, host_time.STEP)]
    assert "it took {:.2f}, and the step {:.2f}.".format(*busier) in text
    busy = [f"{1e3 * alone[256]['account']['parts'][name]:.1f}" for name in ("forward", "copies", "update")]
    assert "forwards' kernels take {} ms, the copies {}, the update {}.".format(*busy) in text
    over = sum(map(float, busy)) / float(busy[0])
    assert f"That is {over:.2f} times the forwards alone" in text
    assert over > 1.1
    tried = ahead[256]
    waits = [f"{1e3 * s:.{d}f}" for s, d in ((tried["until_update_seconds"], 3), (tried["account"]["parts"]["gap"], 1))]
    assert "then {} ms pass before it, and {} ms behind it".format(*waits) in text
    took = [f"{1e3 * median(s[256]['host_seconds'][host_time.STEP]):.1f}" for s in (ahead, first, alone)]
    assert "A step took {} ms so, and {} and {} as it is".format(*took) in text


BARE = "a step that launches no kernel of its own takes {1:.2f} ({0:.2f}–{2:.2f})"


def of_the_host(name: str) -> dict[int, Any]:
    """Results of a record of the host's time, by the rows' length."""
    found = read_jsonl(LLM / "host" / f"{name}.jsonl")
    return {r.config["length"]: r.result for r in found if r.config["part"] == "host"}


def over_eager(results: dict[int, Any], name: str) -> list[float]:
    """Quartiles at 16 x 64 over two eager forwards in the same turn."""
    seconds = results[64]["host_seconds"]
    ratios = [a / b for a, b in zip(seconds[name], seconds[host_time.EAGER], strict=True)]
    return quantiles(ratios, method="inclusive")


def test_several_cards():
    """Throughputs, and how far losses and weights are from those of one card with the whole batch."""
    rows = []
    for file, cards in (("parallel-h200", 2), ("parallel-4-h200", 4)):
        parts_of = {"MeZO": ("data parallel", "sharded"), "groups": ("groups",)}
        found = read_jsonl(LLM / f"{file}.jsonl")
        assert all(r.result.get("same", True) for r in found)
        for method, parts in parts_of.items():
            grouped = method == "groups"
            times = {
                r.config["length"]: f"{r.result['throughput']:.2f}"
                for r in found
                if r.config["part"] == "throughput" and ("contestant" in r.config) == grouped
            }
            apart = [r.result for r in found if r.config["part"] in parts]
            if apart:
                most = [max(r[f"largest_{what}_difference"] for r in apart) for what in ("loss", "theta")]
                rows.append([cards, times[64], times[256], *most])
    found = table("docs/findings/engine.md", "| cards, over NCCL")[1:]
    for (label, short, long, losses, theta), (cards, *times, loss, weight) in zip(found, rows, strict=True):
        assert label.startswith(str(cards))
        assert [short, long] == times
        for told, measured in ((losses, loss), (theta, weight)):
            assert measured <= float(told) < 2 * measured
    targets = {row[0]: (row[1], row[3]) for row in table("docs/findings/engine.md", "| | 16 x 64 tokens | target")}
    assert targets["throughput of two cards / one, at a fixed batch a card"] == (rows[0][1], rows[0][2])


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
    for target, method in ((1.15, "MeZO's"), (1.35, "HELENE's")):  # of the table above
        assert f"{method} target" in text
        assert f"{target * floor:.1f} ms" in text
    assert 1.15 * floor < floor + least_update
    assert f"is less than the forwards ({floor:.1f}) and the update's instructions ({least_update:.1f})" in text
    assert floor + 1e3 * helene > 1.35 * floor


PADDED = {  # of the page on the engine: tasks and the rows that a step of theirs was measured with
    "SST-2, causal": "rows/groups/causal-sst2",
    "COPA, causal": "rows/all/causal-copa",
    "WiC, causal": "rows/all/causal-wic",
    "WSC, causal": "rows/all/causal-wsc",
    "CB, causal": "rows/groups/causal-cb",
    "SQuAD, causal": "rows/brief/causal-squad",
    "SST-2, masked": "heads/first/masked-sst2",
    "TREC, masked": "heads/first/masked-trec",
    "SNLI, masked": "heads/first/masked-snli",
    "MNLI, masked": "heads/first/masked-mnli",
    "RTE, masked": "heads/first/masked-rte",
}


def padded_rows() -> list[list[str]]:
    """Of MeZO's runs: tokens that a batch holds, places that a forward computes, the share of padding among these."""
    found = []
    for name, file in PADDED.items():
        runs = [r for r in read_jsonl(LLM / f"{file}.jsonl") if r.config["method"] == "mezo"]
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


def mezos(file: str) -> list[dict[str, Any]]:
    """Results of MeZO's runs that tell of padding."""
    runs = [r.result for r in read_jsonl(LLM / f"{file}.jsonl") if r.config["method"] == "mezo"]
    return [r for r in runs if r["status"] != "diverged" and r.get("padded_tokens")]


def padding_of(runs: list[dict[str, Any]]) -> str:
    return f"{median(1 - r['tokens'] / r['padded_tokens'] for r in runs):.0%}".replace("%", " %")


def test_what_packing_brings():
    def padding_and_time(file: str | None) -> tuple[str, str]:
        if file is None:
            return "", ""
        runs = mezos(file)
        return padding_of(runs), f"{1e3 * median(map(speed.steady_seconds, runs)):.1f}"

    rows = []
    for name, files in PACKED.items():
        (padding, before), (less, after), (_, compiled) = map(padding_and_time, files)
        rows.append([name, padding, less, before, after, compiled])
    assert table("docs/findings/engine.md", "| task, causal")[1:] == rows
    text = words("docs/findings/engine.md")
    packed = mezos("rows/all/causal-squad")
    one_size, two_sizes = sorted({sum(m["steps"] for m in r["steps_made"] if m["mode"] == "eager") for r in packed})
    assert f"SQuAD's packed tokens have {padding_of(packed)} padding." in text
    masked = [padding_of(mezos(f"rows/all/masked-{task}")) for task in ("rte", "sst2", "trec", "snli", "mnli")]
    assert "Masked batches of RTE, SST-2, TREC, SNLI and MNLI have {}, {}, {}, {} and {}.".format(*masked) in text
    assert f"made {two_sizes} captures where answers came in two sizes" in text
    assert f"Where all answers have one size they made {one_size}." in text


def test_what_the_rest_of_the_padding_costs():
    """A place from two tasks' steps; a capture from what the first look's steps take beyond later ones."""
    told = {}
    for task in ("sst2", "rte"):
        runs = mezos(f"rows/all/causal-{task}")
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
    text = words("docs/findings/engine.md")
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


def test_how_many_targets_are_missed():
    """A row misses where one of its sizes does; of two numbers with one target each counts."""
    _, *rows = table("docs/findings/engine.md", "| | 16 x 64 tokens | target")

    def misses(name: str, cells: list[str]) -> bool:
        more = name.startswith(("published MeZO step / ours", "throughput"))
        pairs = zip(cells[::2], (cells[1], cells[1] if cells[3] == "the same" else cells[3]), strict=True)
        for numbers, limits in pairs:
            found, bounds = ([float(x) for x in cell.split(",")] for cell in (numbers, limits))
            for number, bound in zip(found, bounds * len(found) if len(bounds) == 1 else bounds, strict=True):
                if number < bound if more else number > bound:
                    return True
        return False

    missed = [misses(name, cells) for name, *cells in rows]
    assert (len(missed), sum(missed)) == (10, 5)
    assert missed == [True] * 4 + [False] * 5 + [True], "the first four rows of that table miss a target, and the last"
    told = "Of this project's ten [targets](#against-targets) five are missed at one size or both."
    assert told in words("docs/findings/engine.md")
