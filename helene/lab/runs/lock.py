"""One writer at a time, by a lock file that the operating system frees when its holder dies, SIGKILL included."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows SQLite's locks keep the file whole; a second writer is not announced
    fcntl = None  # type: ignore[assignment]


class LockHeldError(Exception):
    """Another live process holds the lock; ``args[0]`` is its process id, as text, or ``'unknown'``."""


class FileLock:
    """An exclusive lock held from construction until :meth:`release`.

    The file is removed on release. After a SIGKILL it stays, empty of meaning: the lock is the kernel's, not the
    file's existence.

    Args:
        path: The lock file; its folder must exist and be writable.

    Raises:
        LockHeldError: If another process, or another object of this one, holds it.
        OSError: If the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        while self._fd is None:
            self._fd = self._try_once()

    def _try_once(self) -> int | None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)  # Windows lacks that
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder removes the file as it releases: a lock on a removed file excludes nobody, so try again.
            if not self.path.exists() or not os.path.samestat(os.fstat(fd), os.stat(self.path)):
                os.close(fd)
                return None
            os.ftruncate(fd, 0)
            os.write(fd, str(os.getpid()).encode())
        except BlockingIOError as err:
            holder = os.read(fd, 32).decode(errors="replace") or "unknown"
            os.close(fd)
            raise LockHeldError(holder) from err
        except OSError:
            os.close(fd)
            raise
        return fd

    def release(self) -> None:
        """Give the lock up; harmless when called again."""
        if self._fd is not None:
            with contextlib.suppress(PermissionError):  # Windows does not remove what is open
                self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None
            if fcntl is None:
                self.path.unlink(missing_ok=True)
