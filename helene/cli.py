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
from helene.lab.commands import Help, add_command, shown
from helene.lab.runs.commands import add_records_command

GROUP = "helene.commands"
OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130
_EPILOG = """\
examples:
  helene llm demo                                    fine-tune tiny models on this CPU, minutes
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
    print("helene: " + shown(" ".join(said.split())), file=sys.stderr)
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
    add_records_command(commands)
    index = add_command(
        commands, "index", "rebuild the page that links all reports", example="helene index --out reports"
    )
    index.add_argument("--out", type=Path, default=Path("reports"), help="folder of the reports")
    index.set_defaults(func=_index)


def _index(arguments: argparse.Namespace) -> int:
    from helene.lab.report.index_page import write_index

    print(write_index(arguments.out))
    return OK


if __name__ == "__main__":
    sys.exit(main())
