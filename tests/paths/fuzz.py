"""Random configurations: ``python -m tests.paths.fuzz --deep 2000 --path engine [--seed S]``.

Prints each disagreement with the smallest configuration that still shows it, and counts at the end.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.paths import contract, workers
from tests.paths.agree import Verdict
from tests.paths.cases import Case, Event
from tests.paths.simulated import FIXED, MODELLED, SHARED
from tests.paths.table import BASE, FUSED, OTHER, defaults_of, rows

DTYPES = ("float32",) * 4 + ("bfloat16", "float16", "float64")
INTERPRETED_DTYPES = ("float32",) * 4 + ("float16",)  # Triton's interpreter cuts bfloat16 off instead of rounding
PAIRED = *FUSED, "ZOSophia", "ZONewton"  # methods of one pair of losses, most of them with kernels
WHOLE = "eps", "num_directions", "two_sided", "distribution", "direction_per_layer", "seed", "curvature", "batch_size"
WHOLE += "interval", "first_estimate"  # these belong to the whole step, so that groups that differ in them are refused
COMMON = "weight_decay", "rounding", "state_dtype", "floor", "curvature", "distribution", "num_directions"


def draw(rng: random.Random, path: str) -> Case:
    """One configuration."""
    if path == "simulator":
        method = rng.choice(tuple(MODELLED))
        given = {**BASE[method], **FIXED.get(method, {})}
        mine = {key: rng.choice(OTHER[key][:1]) for key in (*MODELLED[method][1], *SHARED) if rng.random() < 0.3}
        return Case(method, {**given, **mine, "seed": rng.randrange(1 << 64)})
    interpreted = path in contract.INTERPRETED
    narrow = interpreted or path in contract.RANKED
    first = rng.random() < (1.0 if path in ("torch", "model") else 0.1)  # what needs a gradient has other paths to go
    method = rng.choice(
        PAIRED if narrow and rng.random() < 0.9 else [m for m in BASE if first or not Case(m).first_order]
    )
    defaults, model = defaults_of(method), "odd" if interpreted and rng.random() < 0.7 else rng.choice(("odd", "tied"))
    options = {**BASE[method], **_some(rng, defaults, rng.choice((0, 1, 2, 3)), narrow)}
    layers = 2 if model == "odd" else 3
    groups: tuple[dict[str, Any], ...] = ()
    if path != "sharded" and rng.random() < 0.6:
        groups = tuple(_some(rng, defaults, rng.choice((0, 0, 1, 2)), narrow, own=True) for _ in range(layers))
    names = ("mix", "gain") if model == "odd" else ("embed", "first", "second", "scale")
    frozen = (rng.choice(names),) if rng.random() < 0.15 else ()
    events = sorted(_events(rng, defaults, narrow, len(groups), names, frozen), key=lambda e: e.step)
    return Case(
        method, options, model, rng.choice(INTERPRETED_DTYPES if interpreted else DTYPES), groups, frozen, tuple(events)
    )


def _some(rng: random.Random, defaults: dict[str, Any], count: int, narrow: bool, own: bool = False) -> dict[str, Any]:
    """Options set to another value; those that kernels and ranks do not take are rarer where they are asked."""
    found: dict[str, Any] = {}
    for _ in range(count):
        keys = [k for k in defaults if k in OTHER and (k not in WHOLE or not own or rng.random() < 0.1)]
        key = rng.choice([k for k in COMMON if k in keys] if rng.random() < 0.4 else keys)
        if narrow and key in WHOLE[1:5] and rng.random() < 0.8:
            continue
        found[key] = rng.choice([v for v in OTHER[key] if not own or not callable(v) or rng.random() < 0.2])
    return found


def _events(
    rng: random.Random,
    defaults: dict[str, Any],
    narrow: bool,
    groups: int,
    names: tuple[str, ...],
    frozen: tuple[str, ...],
) -> Iterator[Event]:
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        step = rng.randint(2, 11)
        kind = rng.choice(("set", "set", "set", "freeze", "unfreeze", "reload"))
        if kind == "set":
            group = rng.randrange(groups) if groups and rng.random() < 0.5 else None
            for key, value in _some(rng, defaults, 1, narrow, own=group is not None).items():
                if not (key == "state_dtype" or callable(value)) or rng.random() < 0.2:  # they are refused so late
                    yield Event(step, "set", (group, key, value))
        elif kind == "reload":
            yield Event(step, "reload", (rng.choice(("same", "same", "bare", "itself", "narrow")),))
        else:
            yield Event(step, kind, (frozen[0] if frozen and kind == "unfreeze" else rng.choice(names),))


def smaller(case: Case) -> Iterator[Case]:
    """Cases that are simpler by one thing."""
    for i in range(len(case.events)):
        yield replace(case, events=case.events[:i] + case.events[i + 1 :])
    if case.groups and any(case.groups):
        for i, group in enumerate(case.groups):
            for key in group:
                less = {k: v for k, v in group.items() if k != key}
                yield replace(case, groups=(*case.groups[:i], less, *case.groups[i + 1 :]))
    elif case.groups and not any(e.kind == "set" and e.what[0] is not None for e in case.events):
        yield replace(case, groups=())
    for key, value in case.options.items():
        usual = BASE[case.method].get(key)
        if value != usual:
            options = {k: v for k, v in case.options.items() if k != key}
            yield replace(case, options={**options, **({} if usual is None else {key: usual})})
    if case.frozen:
        yield replace(case, frozen=())
    if case.dtype != "float32":
        yield replace(case, dtype="float32")
    if case.steps > 2:
        yield replace(case, steps=case.steps // 2)
        yield replace(case, steps=case.steps - 1)
    if case.model != "odd" and not case.frozen and not case.groups and not case.events:
        yield replace(case, model="odd")


def shrink(case: Case, path: str, budget: int = 60) -> tuple[Case, Verdict]:
    """The smallest case found that still disagrees."""
    verdict, again = contract.check(case, path), True
    while again:
        again = False
        for less in smaller(case):
            budget -= 1
            if budget < 0:
                break
            found = contract.check(less, path)
            if found.kind == "disagreed":
                case, verdict, again = less, found, True
                break
    return case, verdict


def sweep(path: str, count: int, seed: int, say: Any = print, least: bool = True) -> tuple[Counter[str], list[str]]:
    """Run configurations on a path; the counts, and each kind of disagreement once."""
    rng, counts, found, seen = random.Random(f"{seed} {path}"), Counter[str](), [], set[str]()
    refusals = Counter[str]()
    for i in range(count):
        case = draw(rng, path)
        verdict = contract.check(case, path)
        counts[verdict.kind] += 1
        if verdict.kind == "refused":
            refusals[_digest(verdict.text)] += 1
        if verdict.kind != "disagreed":
            continue
        if least and len(seen) < 30:
            case, verdict = shrink(case, path)
        kinds = {(e.kind, *e.what[1:2]) if e.kind == "set" else e.kind for e in case.events}
        what = f"{sorted(map(str, kinds))} {sorted(case.asked - {*BASE[case.method]})} {_digest(verdict.text)}"
        if what not in seen:
            seen.add(what)
            found.append(f"{path}: {case!r}\n    {verdict.text}")
            say(f"[{path} {i}] {case!r}\n    {verdict.text}")
    for text, times in refusals.most_common(6):
        say(f"    refused {times} times: {text}")
    return counts, found


def _digest(text: str) -> str:
    return re.sub(r"[0-9.e+-]+", "#", text)[:60]


def whole_table(path: str, say: Any = print) -> tuple[Counter[str], list[str]]:
    """Every row of the table on a path; on plain torch, whether the option shows."""
    counts, methods = Counter[str](), dict[tuple[str, ...], list[str]]()
    for row in rows():
        if path in contract.INTERPRETED and row.case.method not in FUSED:
            continue
        verdict = contract.shows(row) if path == "torch" else contract.check(row.case, path)
        counts[verdict.kind] += 1
        if verdict.kind == "disagreed":
            case = str(row).split("-", 1)[1]
            methods.setdefault((case, _digest(verdict.text)), []).append(row.case.method)
            if len(methods[case, _digest(verdict.text)]) == 1:
                say(f"[{path}] {row}: {row.case!r}\n    {verdict.text}")
    return counts, [f"{path} {key[0]}: {', '.join(who)}" for key, who in methods.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Random configurations against the contract over paths.")
    parser.add_argument("--deep", type=int, default=20, help="configurations a path")
    parser.add_argument(
        "--path", action="append", choices=(*contract.PATHS, *contract.ON_GPU, "torch"), help="all unless given"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="the whole table instead of random configurations")
    given = parser.parse_args()
    failed = False
    for path in given.path or contract.PATHS:
        start = time.perf_counter()
        counts, found = whole_table(path) if given.table else sweep(path, given.deep, given.seed)
        if given.table:
            print("\n".join(found))
        failed = failed or bool(found)
        line = ", ".join(f"{kind} {counts[kind]}" for kind in ("agreed", "refused", "disagreed", "elsewhere"))
        print(f"{path}: run {sum(counts.values())}, {line}; {time.perf_counter() - start:.0f} s", flush=True)
    workers.stop()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
