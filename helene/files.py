"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

_SPACE = "free some space, or choose a folder on another disk"
_PLACE = "choose a folder that is there and that you may write to"
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _SPACE),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS), _PLACE),
}


def write_whole(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let a function write a file beside the target, which it then replaces; a link is followed.

    Args:
        path: The target.
        write: Writes the file that it is told to.

    Raises:
        OSError: If it cannot be written, or the target is there and no regular file; what was there stays, and nothing
            half written is left.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        raise OSError(f"{path} is no regular file, and would be replaced by one; choose another name")
    partial = target.with_name(target.name + ".partial")
    try:
        write(partial)
        partial.replace(target)
    except OSError as err:
        advice = _ADVICE.get(err.errno or 0, f"{_SPACE}, or {_PLACE}")
        raise OSError(f"cannot write {path}: {err.strerror or err}; {advice}") from err
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """`write_whole` of text in UTF-8, its folder made where it is missing."""

    def write(partial: Path) -> None:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")

    write_whole(path, write)
