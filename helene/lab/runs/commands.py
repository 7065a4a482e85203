"""``helene records``: list, show, merge and export the records of runs. A store is opened once it is asked for."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from helene.lab.commands import Help, add_command, shown


def add_records_command(commands: Any) -> None:
    """Add the sub-command to ``helene``'s."""
    records = commands.add_parser(
        "records", help="list, show, merge and export the records of runs", formatter_class=Help
    )
    records.description = "List, show, merge and export the records of runs. A store is one SQLite file."
    actions = records.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = add_command(
        actions,
        "list",
        "experiments of a store or an exported JSONL file, and how many records each has",
        example="helene records list reports/scaling/records.sqlite",
    )
    listing.add_argument("file", type=Path, help="the store or the exported JSONL file to read")
    listing.set_defaults(func=_list)

    showing = add_command(
        actions,
        "show",
        "print the records whose ID begins with these characters, as JSON",
        more="Pages name runs by such an ID: config, result, and where and with what it was made are in the record.",
        example="helene records show 3f2a9c01\nhelene records show 3f2a9c01 --in runs.jsonl",
    )
    showing.add_argument("id", metavar="ID", help="as a page names it; the first characters suffice")
    showing.add_argument(
        "--in",
        dest="places",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="stores or exported JSONL files (default: every store in reports/)",
    )
    showing.set_defaults(func=_show)

    merging = add_command(
        actions,
        "merge",
        "take records of other stores or exported JSONL files into a store",
        more="Where two results differ, the store keeps its own and the exit code is 1.",
        example="helene records merge main.sqlite other.sqlite runs.jsonl",
    )
    merging.add_argument("store", type=Path, help="the store that grows; made when missing")
    merging.add_argument("sources", type=Path, nargs="+", metavar="source", help="a store or an exported JSONL file")
    merging.set_defaults(func=_merge)

    export = add_command(
        actions,
        "export",
        "write an experiment's records as sorted JSONL, to be committed",
        example="helene records export runs.sqlite scaling helene.jsonl --where method=helene",
    )
    export.add_argument("store", type=Path, help="the store to read")
    export.add_argument("experiment", help="its name, as `helene records list` shows it")
    export.add_argument("file", type=Path, help="the file to write")
    export.add_argument(
        "--where", action="append", default=[], metavar="NAME=VALUE", help="only configs with this value"
    )
    export.set_defaults(func=_export)


def _list(arguments: argparse.Namespace) -> int:
    from helene.lab.runs.store import Store, read_jsonl

    if arguments.file.suffix == ".jsonl":
        counts: dict[str, int] = Counter(record.experiment for record in read_jsonl(arguments.file))
    else:
        with Store(arguments.file, read_only=True) as store:
            counts = store.experiments()
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {shown(name)}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from helene.lab.runs import canonical
    from helene.lab.runs.records import read_jsonl
    from helene.lab.runs.store import Store

    places = arguments.places or sorted(Path("reports").glob("*/*.sqlite"))
    found: dict[str, None] = {}  # one ID may have several: of another experiment, or of another result
    for path in places:
        if path.suffix == ".jsonl":
            records = read_jsonl(path)
        else:
            with Store(path, read_only=True) as store:
                records = store.records()
        chosen = (record for record in records if record.key.startswith(arguments.id))
        found |= dict.fromkeys(canonical.dumps(asdict(record), indent=1) for record in chosen)
    if not found:
        searched = ", ".join(map(str, places)) or "reports/, which has no store"
        raise ValueError(f"no record's ID begins with {arguments.id!r} in {searched}; name another file with --in FILE")
    for text in found:
        print(text)
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    from helene.lab.runs.store import Store

    conflicts = 0
    with Store(arguments.store) as store:
        for source in arguments.sources:
            done = store.merge(source)
            print(f"{source}: {done.added} added, {done.same} already here, {done.replaced} errors replaced")
            for key in done.conflicts:
                print(f"{source}: {shown(key)} has another result here; kept this store's", file=sys.stderr)
            conflicts += len(done.conflicts)
    return int(conflicts > 0)


def _export(arguments: argparse.Namespace) -> int:
    import json

    from helene.lab.runs import canonical
    from helene.lab.runs.store import Store

    where = {}
    for pair in arguments.where:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--where takes NAME=VALUE, got {pair!r}")
        try:
            where[name] = canonical.loads(value)
        except json.JSONDecodeError:
            where[name] = value
    with Store(arguments.store, read_only=True) as store:
        count = store.export_jsonl(arguments.file, arguments.experiment, where or None)
    print(f"{count} records written to {arguments.file}")
    return 0
