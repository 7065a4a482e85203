"""Writing a file whole or not at all; reading text."""

from __future__ import annotations

import codecs
import contextlib
import errno
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_SPACE = "free some space, or choose a folder on another disk"
_PLACE = "choose a folder that is there and that you may write to"
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _SPACE),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS), _PLACE),
    errno.ENAMETOOLONG: "choose a shorter name",
}


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8, with or without a byte-order mark.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is in another encoding.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as err:
        raise not_utf8(path, err) from err


def not_utf8(path: str | Path, err: UnicodeDecodeError) -> ValueError:
    """The error of a file that is in another encoding."""
    with Path(path).open("rb") as file:
        kind = "UTF-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "another encoding"
    return ValueError(f"{path} is no UTF-8 text but {kind} ({err.reason}); save it as UTF-8")


def write_whole(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let a function write a file beside the target, which it then replaces; a link is followed.

    Args:
        path: The target.
        write: Writes the file that it is told to.

    Raises:
        OSError: If it cannot be written, or the target is there and no regular file; what was there stays, and nothing
            half written is left.
    """
    try:
        target = Path(path).resolve()
        taken = target.exists() and not target.is_file()
    except (OSError, RuntimeError) as err:  # Python 3.11 and 3.12 call links in a circle a RuntimeError
        raise _told(path, err) from err
    if taken:
        raise OSError(f"{path} is no regular file, and would be replaced by one; choose another name")
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")  # of this call alone, and short
    try:
        write(partial)
        partial.replace(target)
    except OSError as err:
        raise _told(path, err) from err
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Let a function fill a folder beside the target, which it then becomes; a target that is there stays as it is.

    Args:
        path: The target; its parent folder is made where it is missing.
        write: Fills the folder that it is told to.

    Raises:
        OSError: If it cannot be written; nothing half made is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        write(partial)
        partial.chmod(0o755)
        partial.rename(path)
    except OSError as err:
        if not path.is_dir():  # else another process was faster
            raise _told(path, err) from err
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_apart(output: str | Path, *inputs: str | Path | None) -> None:
    """Raise ValueError if an output is one of the files that are read, by whatever name."""
    for source in inputs:
        if source is not None and _is_same(Path(output), Path(source)):
            raise ValueError(f"{output} would be written over {source}, which is read; choose another file")


def _is_same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:  # one is not there
        return a.resolve() == b.resolve()


def _told(path: str | Path, err: Exception) -> OSError:
    advice = _ADVICE.get(getattr(err, "errno", None) or 0, f"{_SPACE}, or {_PLACE}")
    return OSError(f"cannot write {path}: {getattr(err, 'strerror', None) or err}; {advice}")


def write_text(path: str | Path, text: str) -> None:
    """`write_whole` of text in UTF-8, its folder made where it is missing."""

    def write(partial: Path) -> None:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")

    write_whole(path, write)
