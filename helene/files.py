"""Writing a file whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def write_whole(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let a function write a file beside the target, which it then replaces; a link is followed.

    Args:
        path: The target.
        write: Writes the file that it is told to.

    Raises:
        OSError: If it cannot be written, or the target is there and no regular file; what was there stays.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is no regular file, and would be replaced by one; choose another name")
    partial = target.with_name(target.name + ".part")
    try:
        try:
            write(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as err:
        raise OSError(
            f"cannot write {path}: {err.strerror or err}; free some space, or choose a folder that is there and may be "
            "written to"
        ) from err
