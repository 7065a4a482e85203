"""The command ``helene``: its own sub-commands, and one of each package that registers any.

A package registers by an entry point of the group ``helene.commands`` that names a function
``add_commands(subparsers)``; it adds parsers and sets ``func``, which takes the parsed arguments and returns an exit
code (None is 0). A package is loaded only when its command, named like the entry point, is asked for.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from helene.inputs import extras
from helene.lab.commands import Help, add_command

GROUP = "helene.commands"
OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
_EPILOG = """\
examples:
  helene llm demo                                    fine-tune tiny models on this CPU, two minutes
  helene scaling --preset quick --out reports        measure scaling laws, write the report
  helene records merge main.sqlite other.sqlite      take in what another machine computed
  helene COMMAND --help                              all about one command, with an example

exit codes:
  0    done
  1    the work failed, or a finding differs from what is expected
  2    bad usage or bad input; one line on stderr says what is wrong and how to mend it
  130  interrupted (Ctrl-C); what was finished is kept

completion in bash and zsh:
  pip install 'helene[completion]' && eval "$(register-python-argcomplete helene)"
"""
# What `helene --help` says of the packages' commands without loading them; others are listed by name.
_HELP = {
    "scaling": "measure how steps to target scale with dimension, write the report",
    "theory": "judge the claims of the paper, write the ledger",
    "llm": "fine-tune language models: tables, figures, estimates",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code (argparse itself exits with 2 on bad usage, 0 after help)."""
    words = list(sys.argv[1:] if argv is None else argv)
    traceback = "--traceback" in words
    _mend_streams()
    words = [word for word in words if word != "--traceback"]
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    arguments: argparse.Namespace | None = None
    try:
        _check_words(words)
        arguments = _parser(words).parse_args(words)
        return int(arguments.func(arguments) or OK)
    except KeyboardInterrupt:
        if traceback:
            raise
        kept = getattr(arguments, "store", "") is not None
        said = (
            "what was finished is kept, the same command goes on from there" if kept else "nothing is kept: no --store"
        )
        print(f"interrupted; {said}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has had enough; say nothing more, at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as err:
        if traceback:
            raise
        return _explain(err, words)


def _complete() -> None:
    """Answer the shell, which asks by its environment what a line may go on with; the process ends here."""
    try:
        import argcomplete

        parser = _parser(os.environ["COMP_LINE"].split()[1:])
    except Exception:  # a shell that waits for words shows nothing else
        sys.exit(FAILED)
    argcomplete.autocomplete(parser)


def _mend_streams() -> None:
    """Streams that are closed take what is said, and those of few characters write the others by their numbers."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # for as long as the process
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _check_words(words: Sequence[str]) -> None:
    """Raise ValueError for a word that no page, record or message could name."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as err:
            raise ValueError(f"{os.fsencode(word)!r} is no UTF-8; rename the file or folder") from err


def _shown(text: str) -> str:
    """A name from a file, without what would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _explain(err: Exception, words: Sequence[str]) -> int:
    missing = err if isinstance(err, ModuleNotFoundError) else err.__cause__
    if isinstance(missing, ModuleNotFoundError):
        advice = extras.advice(missing.name, words[0] if words else "")
        if advice is not None:
            print(f"helene: {advice}", file=sys.stderr)
            return FAILED
    # By name: importing the store for this would cost every command line its start.
    bad_input = isinstance(err, ValueError | FileNotFoundError) or type(err).__name__ == "StoreError"
    said = str(err) if bad_input else f"{type(err).__name__}: {err} (--traceback shows where)"
    print("helene: " + _shown(" ".join(said.split())), file=sys.stderr)
    return BAD_USAGE if bad_input else FAILED


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="helene",
        description="Zeroth-order optimizers for PyTorch, and the evidence about the claims of the HELENE paper.",
        epilog=_EPILOG,
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"helene {metadata.version('helene')}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from (anywhere on the line)")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_own(commands)
    wanted = next((word for word in words if not word.startswith("-")), None)
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda e: e.name):
        if entry.name == wanted:
            _load(entry, commands)
        else:
            commands.add_parser(entry.name, help=_HELP.get(entry.name, f"from {entry.module}"))
    return parser


def _load(entry: metadata.EntryPoint, commands: Any) -> None:
    try:
        entry.load()(commands)
    except Exception as err:
        raise RuntimeError(f"the command {entry.name!r} cannot be loaded: {type(err).__name__}: {err}") from err


def _add_own(commands: Any) -> None:
    records = commands.add_parser("records", help="list, merge and export the records of runs", formatter_class=Help)
    records.description = "List, merge and export the records of runs. A store is one SQLite file."
    actions = records.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = add_command(
        actions,
        "list",
        "experiments of a store and how many records each has",
        example="helene records list reports/scaling/records.sqlite",
    )
    listing.add_argument("store", type=Path, help="the store to read")
    listing.set_defaults(func=_records_list)

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
    showing.set_defaults(func=_records_show)

    merging = add_command(
        actions,
        "merge",
        "take records of other stores or exported JSONL files into a store",
        more="Where two results differ, the store keeps its own and the exit code is 1.",
        example="helene records merge main.sqlite other.sqlite runs.jsonl",
    )
    merging.add_argument("store", type=Path, help="the store that grows; made when missing")
    merging.add_argument("sources", type=Path, nargs="+", metavar="source", help="a store or an exported JSONL file")
    merging.set_defaults(func=_records_merge)

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
    export.set_defaults(func=_records_export)

    index = add_command(
        commands, "index", "rebuild the page that links all reports", example="helene index --out reports"
    )
    index.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports")
    index.set_defaults(func=_index)


def _records_list(arguments: argparse.Namespace) -> int:
    from helene.lab.runs.store import Store

    with Store(arguments.store, read_only=True) as store:
        for name, count in store.experiments().items():
            print(f"{count:8d}  {_shown(name)}")
    return OK


def _records_show(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from helene.lab.runs import canonical
    from helene.lab.runs.records import read_jsonl
    from helene.lab.runs.store import Store

    places = arguments.places or sorted(Path("reports").glob("*/*.sqlite"))
    found: dict[Any, Any] = {}
    for path in places:
        if path.suffix == ".jsonl":
            records = read_jsonl(path)
        else:
            with Store(path, read_only=True) as store:
                records = store.records()
        found |= {record.key: record for record in records if record.key.startswith(arguments.id)}
    if not found:
        searched = ", ".join(map(str, places)) or "reports/, which has no store"
        raise ValueError(f"no record's ID begins with {arguments.id!r} in {searched}; name another file with --in FILE")
    for record in found.values():
        print(canonical.dumps(asdict(record), indent=1))
    return OK


def _records_merge(arguments: argparse.Namespace) -> int:
    from helene.lab.runs.store import Store

    conflicts = 0
    with Store(arguments.store) as store:
        for source in arguments.sources:
            done = store.merge(source)
            print(f"{source}: {done.added} added, {done.same} already here, {done.replaced} errors replaced")
            for key in done.conflicts:
                print(f"{source}: {_shown(key)} has another result here; kept this store's", file=sys.stderr)
            conflicts += len(done.conflicts)
    return FAILED if conflicts else OK


def _records_export(arguments: argparse.Namespace) -> int:
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
    return OK


def _index(arguments: argparse.Namespace) -> int:
    from helene.lab.report.pages import write_index

    print(write_index(arguments.out))
    return OK


if __name__ == "__main__":
    sys.exit(main())
