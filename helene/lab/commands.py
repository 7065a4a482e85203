"""What commands have in common: a description, an example, the defaults of options, names that are safe to print."""

from __future__ import annotations

import argparse
from typing import Any


class Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of examples; adds the default of each option that has one, unless its help names it."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        raw = "\n" in text
        return (
            super()._fill_text(text, width, indent)
            if raw
            else argparse.HelpFormatter._fill_text(self, text, width, indent)
        )

    def _get_help_string(self, action: argparse.Action) -> str | None:
        said, default = action.help, action.default
        if not said or "default" in said or default in (None, False, argparse.SUPPRESS, []):
            return said
        return f"{said} (default: {' '.join(default) if isinstance(default, list) else default})"


def shown(text: str) -> str:
    """A name from a file, without what would steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def add_command(actions: Any, name: str, said: str, *, example: str, more: str = "") -> argparse.ArgumentParser:
    """A command of a parser's sub-commands.

    Args:
        actions: The sub-commands.
        name: Its word.
        said: One sentence without full stop: its line in the list of commands, and its description.
        example: A command line, or several lines of them.
        more: Further sentences of the description.
    """
    lines = "\n".join(f"  {line}" for line in example.splitlines())
    return actions.add_parser(
        name,
        help=said,
        description=f"{said[:1].upper()}{said[1:]}. {more}".rstrip(),
        epilog=f"example:\n{lines}",
        formatter_class=Help,
    )
