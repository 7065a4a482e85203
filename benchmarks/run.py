"""The benchmarks without asv: deterministic counts against the committed baseline, and records on a bare machine.

python -m benchmarks.run --check        compare the deterministic counts with benchmarks/records/baseline.json
python -m benchmarks.run --accept       write that file anew, when a change of counts is meant
python -m benchmarks.run --jsonl FILE   run everything once, GPU benchmarks included, into records
    --only gpu,step     these modules alone
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import pkgutil
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from .common import Lookup

BASELINE = Path(__file__).parent / "records" / "baseline.json"
PREFIXES = ("track_", "time_")
# A count of steps may differ by one on another kind of CPU, forwards (two a step, and layer at most) and exponents with
# it; all else is exact.
SLACK = {"track_steps": 1, "track_forwards": 8, "track_alpha": 0.02, "track_beta": 0.02}
SLACK["track_measured_over_predicted"] = 0.01


def modules() -> list[str]:
    """Names of this folder's modules of benchmarks."""
    found = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return [name for name in found if name not in ("run", "common")]


def suites(only: Collection[str] = ()) -> Iterator[type]:
    """The benchmark classes of some modules, or of all."""
    for name in only or modules():
        found = importlib.import_module(f"{__package__}.{name}")
        own = [v for v in vars(found).values() if isinstance(v, type) and v.__module__ == found.__name__]
        yield from [suite for suite in own if any(n.startswith(PREFIXES) for n in dir(suite))]


def measurements(suite: type) -> Iterator[tuple[str, object]]:
    """(name, value) of each benchmark and parameter combination; why there is none, as text."""
    bench = suite()
    arguments = (_cache(bench),) if hasattr(bench, "setup_cache") else ()
    methods = [name for name in dir(bench) if name.startswith(PREFIXES)]
    for name, key in itertools.product(methods, itertools.product(*getattr(bench, "params", ()))):
        label = f"{suite.__module__.split('.')[-1]}.{suite.__name__}.{name}" + (f"{list(key)}" if key else "")
        try:
            if hasattr(bench, "setup"):
                bench.setup(*arguments, *key)
            start = time.perf_counter()
            value = getattr(bench, name)(*arguments, *key)
            yield label, time.perf_counter() - start if name.startswith("time_") else value
        except NotImplementedError as reason:
            yield label, f"skipped: {reason}"
        except Exception as error:
            yield label, f"failed: {type(error).__name__}: {error}"
        finally:
            if hasattr(bench, "teardown"):
                bench.teardown()


_caches: dict = {}


def _cache(bench):
    """Suites that inherit one `setup_cache` share its result, as asv has it."""
    key = type(bench).setup_cache
    if key not in _caches:
        _caches[key] = bench.setup_cache()
    return _caches[key]


def deterministic() -> dict[str, object]:
    """Every count that is equal on each machine."""
    rows = (row for suite in suites() if issubclass(suite, Lookup) for row in measurements(suite))
    return {label: value for label, value in rows if not str(value).startswith("skipped")}


def differences(found: dict[str, object], baseline: dict[str, object]) -> list[str]:
    """What moved beyond `SLACK`."""
    lines = []
    for label in sorted({*found, *baseline}):
        old, new = baseline.get(label), found.get(label)
        slack = next((v for name, v in SLACK.items() if name in label), 0)
        numbers = isinstance(old, int | float) and isinstance(new, int | float)
        if old == new or (numbers and abs(old - new) <= slack):
            continue
        lines.append(f"{label}: {old} -> {new}")
    return lines


def main() -> int:
    """Run the command line; exit code 1 if a count moved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare the deterministic counts with the baseline")
    action.add_argument("--accept", action="store_true", help="make what is counted now the baseline")
    action.add_argument("--jsonl", type=Path, metavar="FILE", help="run everything once and write a line a benchmark")
    parser.add_argument("--only", default="", help=f"with --jsonl: some of {','.join(modules())}")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - set(modules()):
        parser.error(f"--only must name some of {', '.join(modules())}, got {', '.join(sorted(unknown))}")
    if options.jsonl:
        return _record(options.jsonl, only)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler tells of each start and stop
    found = deterministic()
    if options.accept:
        if failed := [f"{name}: {value}" for name, value in found.items() if isinstance(value, str)]:
            print("\n".join([*failed, "a count that fails cannot be accepted"]), file=sys.stderr)
            return 1
        BASELINE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} counts written to {BASELINE.name}")
        return 0
    moved = differences(found, json.loads(BASELINE.read_text()))
    for line in moved:
        print(line, file=sys.stderr)
    if moved:
        print(
            f"{len(moved)} deterministic counts moved. If that is meant, run `python -m benchmarks.run --accept` and "
            "commit benchmarks/records/baseline.json with the change that moved them.",
            file=sys.stderr,
        )
        return 1
    print(f"{len(found)} deterministic counts are as committed")
    return 0


def _record(path: Path, only: Collection[str]) -> int:
    """One line a benchmark, each written as it comes; exit code 1 if one failed."""
    from helene.lab.runs.provenance import provenance

    facts = provenance("python -m benchmarks.run --jsonl FILE" + (f" --only {','.join(only)}" if only else ""))
    states: Counter[str] = Counter()
    with path.open("w") as file:
        for name, value in (row for suite in suites(only) for row in measurements(suite)):
            state = value.split(":")[0] if isinstance(value, str) else "measured"
            states[state] += 1
            print(f"{name}: {value}", flush=True)
            file.write(json.dumps({"benchmark": name, "value": value, "provenance": facts}) + "\n")
            file.flush()
    print(f"{path.name}: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return 1 if states["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
