"""The SQLite file of a store: opened, locked for one writer, checked, and its errors in one sentence."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from helene.inputs.files import check_apart
from helene.lab.runs.lock import FileLock, LockHeldError
from helene.lab.runs.records import StoreError

SCHEMA_VERSION = 1
APPLICATION_ID = 0x48454C45  # "HELE": tells a store from any other SQLite file
_SCHEMA = """
CREATE TABLE provenance (id TEXT PRIMARY KEY, json TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE record (
    experiment TEXT NOT NULL, key TEXT NOT NULL, config TEXT NOT NULL, result TEXT NOT NULL,
    provenance TEXT NOT NULL REFERENCES provenance (id),
    PRIMARY KEY (experiment, key)
);
"""
_SEALS = """
CREATE TABLE IF NOT EXISTS seal (
    experiment TEXT NOT NULL, key TEXT NOT NULL, seal TEXT NOT NULL, PRIMARY KEY (experiment, key)
) WITHOUT ROWID;
"""

_BESIDE = ("", "-wal", "-shm", "-lock")  # what SQLite and the lock keep beside the file


class Database:
    """An open file: of one writer, which holds its lock, or of any number of readers.

    Args:
        path: The file; it and its folder are made when missing, unless ``read_only``.
        read_only: Open beside a writer, or where nothing may be written.

    Raises:
        StoreError: If the file is not a store, has another schema version, cannot be written, or another writer has
            it open.
    """

    def __init__(self, path: Path, read_only: bool) -> None:
        self.path = path
        self._real = Path(os.path.realpath(path))  # beside which SQLite and the lock keep their files
        self.read_only = read_only
        self._lock: FileLock | None = None
        self._db: sqlite3.Connection | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and let the next writer in; harmless when called again."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection; StoreError where the file is closed."""
        if self._db is None:
            raise StoreError(f"{self.path} is closed; open it again with Store(path)")
        return self._db

    def errors(self) -> _Errors:
        """A context that turns what sqlite3 raises into a StoreError of one sentence."""
        return _Errors(self.path)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """What is written in it is committed whole, synced to disk, or not at all.

        Raises:
            StoreError: If the disk is full, the file is read-only or closed, or was deleted or replaced.
        """
        if self.read_only:
            raise StoreError(f"{self.path} is open read-only; open it with Store(path) to write")
        db = self.connection
        self._check_there()
        with self.errors():
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def check_apart(self, path: str | os.PathLike[str]) -> None:
        """Raise StoreError where a path is that of the file, or of what is kept beside it."""
        try:
            check_apart(Path(path), *(self._real.with_name(self._real.name + end) for end in _BESIDE))
        except ValueError as err:
            raise StoreError(str(err)) from err

    def _open(self) -> None:
        if not self.read_only:
            self._take_lock()
            with self.errors():
                self._connect("rwc")
                self._opened = os.stat(self.path)
                self.connection.execute("PRAGMA journal_mode=WAL")
                self.connection.execute("PRAGMA synchronous=FULL")
                self.connection.execute(_SEALS)  # stores of before have none
            return
        if not self.path.is_file():
            raise StoreError(f"there is no store at {self.path}; check the path, or run the sweep that writes it")
        with self.errors():
            try:
                self._connect("rw")  # not "ro": beside a database in WAL mode a file must be made for shared memory
            except sqlite3.OperationalError as err:
                if not _named(err, "SQLITE_CANTOPEN", "SQLITE_READONLY"):
                    raise
                self._check_whole()
                self._connect("ro&immutable=1")  # nothing may be written here, so nobody writes
            self.connection.execute("PRAGMA query_only=ON")

    def _check_whole(self) -> None:
        """What a writer that was killed has left in the file beside is read by writing, which is not allowed here."""
        beside = self._real.with_name(self._real.name + "-wal")
        if beside.is_file() and beside.stat().st_size:
            raise StoreError(
                f"{self.path} has records in {beside.name}, which cannot be read where nothing may be written; copy "
                "both files to a folder that you may write to"
            )

    def _connect(self, mode: str) -> None:
        if self._db is not None:
            self._db.close()
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        self._db = sqlite3.connect(uri, uri=True, timeout=10.0, isolation_level=None)
        self._check_schema()

    def _take_lock(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self._real.with_name(self._real.name + "-lock"))
        except LockHeldError as err:
            raise StoreError(
                f"{self.path} is being written by process {err.args[0]}; "
                "wait until it ends, or give this run a store of its own and merge the two afterwards"
            ) from err
        except OSError as err:
            raise StoreError(
                f"cannot write {self.path}: {err.strerror}; choose a store in a folder that you may write to"
            ) from err

    def _check_schema(self) -> None:
        db = self.connection
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        made = "SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%'"
        empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if empty and application == 0 and not self.read_only:
            pragmas = f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION};"
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {pragmas} COMMIT;")
        elif application != APPLICATION_ID:
            raise StoreError(f"{self.path} is a database, but not a store of helene; choose another file")
        elif db.execute(made).fetchone()[0]:
            raise StoreError(f"{self.path} has views or triggers, which no store of helene has; choose another file")
        elif version != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {version}, this helene reads {SCHEMA_VERSION}; export it with the "
                "helene that wrote it (helene records export) and merge the export into a new store"
            )

    def _check_there(self) -> None:
        """SQLite goes on writing to a file that was deleted, and all of it is gone when that is closed."""
        if not self.path.exists() or not os.path.samestat(self._opened, os.stat(self.path)):
            raise StoreError(
                f"{self.path} was deleted or replaced while it was open, and what is put now would be lost; put the "
                "file back, or begin again with another store"
            )


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as SQLite's do.

    Raises:
        StoreError: If it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\x00"
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}; give a store or an exported JSONL") from err


def _named(err: sqlite3.Error, *names: str) -> bool:
    return (getattr(err, "sqlite_errorname", None) or "").startswith(names)


class _Errors:
    """Turns what sqlite3 raises into a StoreError of one sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(err, sqlite3.Error):
            return
        if _named(err, "SQLITE_FULL", "SQLITE_IOERR"):
            advice = "the disk is full or failing; free some space and run again, what was committed is safe"
        elif _named(err, "SQLITE_NOTADB", "SQLITE_CORRUPT"):
            advice = "the file is no store or is damaged; `helene records merge STORE FILE` makes a store of an export"
        elif _named(err, "SQLITE_BUSY", "SQLITE_LOCKED"):
            advice = "another program holds the file; close it and run again"
        elif _named(err, "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM"):
            advice = "it cannot be opened for this; check that the path exists and that you may write there"
        else:
            advice = "check the file, or start a new store and merge the exports"
        raise StoreError(f"store {self.path}: {err}; {advice}") from err
