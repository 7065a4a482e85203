"""Runs as data: one SQLite file of records, keyed by the hash of each run's config."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from helene.inputs.files import check_apart
from helene.lab.runs import canonical
from helene.lab.runs.lock import FileLock, LockHeldError
from helene.lab.runs.records import (
    EXPORT_LIMIT_BYTES,
    Record,
    StoreError,
    condition_in_words,
    config_key,
    digest,
    matches,
    read_jsonl,
    seal,
    write_jsonl,
)

__all__ = ["EXPORT_LIMIT_BYTES", "MergeReport", "Record", "Store", "StoreError", "config_key", "read_jsonl"]

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
_SELECT = (
    "SELECT r.key, r.experiment, r.config, r.result, p.json, {seal} "
    "FROM record r JOIN provenance p ON p.id = r.provenance"
)
_WITH_SEALS = _SELECT.format(seal="s.seal") + " LEFT JOIN seal s ON s.experiment = r.experiment AND s.key = r.key"


@dataclass(frozen=True)
class MergeReport:
    """What :meth:`Store.merge` did.

    Attributes:
        added: Records that were new.
        same: Records already here with an equal result (wall-clock apart).
        replaced: Records here with status ``error`` that gave way to a finished one.
        conflicts: Keys, as ``experiment/key``, finished on both sides with different results; this store's stays.
    """

    added: int
    same: int
    replaced: int
    conflicts: tuple[str, ...]


class Store:
    """A file of records with one writer and any number of readers; use it as a context manager.

    Each :meth:`put` is committed, synced to disk, before it returns: whatever happens next, it stays. The file is
    SQLite in WAL mode, which needs a local disk (not NFS). Each record has a checksum: one that no longer fits is
    damaged, and is left out with a warning, so that the next sweep runs it again.

    Args:
        path: The file; it and its folder are made when missing, unless ``read_only``.
        read_only: Open beside a writer, or where nothing may be written.

    Raises:
        StoreError: If the file is not a store, has another schema version, cannot be written, or another writer has
            it open.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._real = Path(os.path.realpath(path))  # beside which SQLite and the lock keep their files
        self.read_only = read_only
        self._lock: FileLock | None = None
        self._db: sqlite3.Connection | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let the next writer in; harmless when called again."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _open(self) -> None:
        if not self.read_only:
            self._take_lock()
            with self._as_store_errors():
                self._connect("rwc")
                self._opened = os.stat(self.path)
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=FULL")
                self._connection.execute(_SEALS)  # stores of before have none
            return
        if not self.path.is_file():
            raise StoreError(f"there is no store at {self.path}; check the path, or run the sweep that writes it")
        with self._as_store_errors():
            try:
                self._connect("rw")  # not "ro": beside a database in WAL mode a file must be made for shared memory
            except sqlite3.OperationalError as err:
                if not _named(err, "SQLITE_CANTOPEN", "SQLITE_READONLY"):
                    raise
                self._check_whole()
                self._connect("ro&immutable=1")  # nothing may be written here, so nobody writes
            self._connection.execute("PRAGMA query_only=ON")

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
        db = self._connection
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

    def _check_apart(self, path: str | os.PathLike[str]) -> None:
        try:
            check_apart(Path(path), *(self._real.with_name(self._real.name + end) for end in _BESIDE))
        except ValueError as err:
            raise StoreError(str(err)) from err

    def _as_store_errors(self) -> _StoreErrors:
        return _StoreErrors(self.path)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreError(f"{self.path} is closed; open it again with Store(path)")
        return self._db

    def put(self, record: Record) -> None:
        """Write one record and commit it; one of the same experiment and key is replaced.

        Raises:
            StoreError: If the disk is full, the store is read-only or closed, or its file was deleted or replaced. What
                was there before stays.
            ValueError: If the record has no JSON form.
        """
        self._write([record])

    def _write(self, records: Iterable[Record]) -> None:
        if self.read_only:
            raise StoreError(f"{self.path} is open read-only; open it with Store(path) to write")
        rows = [
            (r.experiment, r.key, canonical.dumps(r.config), canonical.dumps(r.result), canonical.dumps(r.provenance))
            for r in records
        ]
        db = self._connection
        self._check_there()
        with self._as_store_errors():
            db.execute("BEGIN IMMEDIATE")
            try:
                for experiment, key, config, result, provenance in rows:
                    origin = digest(provenance)
                    db.execute("INSERT OR IGNORE INTO provenance VALUES (?, ?)", (origin, provenance))
                    db.execute(
                        "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?)",
                        (experiment, key, config, result, origin),
                    )
                    checksum = seal(experiment, key, config, result, provenance)
                    db.execute("INSERT OR REPLACE INTO seal VALUES (?, ?, ?)", (experiment, key, checksum))
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _check_there(self) -> None:
        """SQLite goes on writing to a file that was deleted, and all of it is gone when that is closed."""
        if not self.path.exists() or not os.path.samestat(self._opened, os.stat(self.path)):
            raise StoreError(
                f"{self.path} was deleted or replaced while it was open, and what is put now would be lost; put the "
                "file back, or begin again with another store"
            )

    def get(self, key: str, experiment: str | None = None) -> Record | None:
        """The record of that key, or None.

        Args:
            key: A ``config_key``.
            experiment: Needed only where several experiments ran the same config.

        Raises:
            StoreError: If several experiments have that key and none is named.
        """
        where, values = "r.key = ?", [key]
        if experiment is not None:
            where, values = where + " AND r.experiment = ?", [key, experiment]
        records = self._select(f"WHERE {where} ORDER BY r.experiment", values)
        if len(records) > 1:
            names = ", ".join(r.experiment for r in records)
            raise StoreError(f"key {key} occurs in several experiments ({names}); name one: get(key, experiment)")
        return records[0] if records else None

    def __contains__(self, key: object) -> bool:
        """Whether a key, or an (experiment, key) pair, has a record."""
        if isinstance(key, tuple):
            return self.get(key[1], key[0]) is not None
        return isinstance(key, str) and bool(self._select("WHERE r.key = ?", [key]))

    def __len__(self) -> int:
        with self._as_store_errors():
            return int(self._connection.execute("SELECT count(*) FROM record").fetchone()[0])

    def records(self, experiment: str | None = None) -> list[Record]:
        """All records, or one experiment's, sorted by key (then experiment)."""
        if experiment is None:
            return self._select("ORDER BY r.key, r.experiment", [])
        return self._select("WHERE r.experiment = ? ORDER BY r.key", [experiment])

    def experiments(self) -> dict[str, int]:
        """Names of the experiments, sorted, and how many records each has."""
        with self._as_store_errors():
            rows = self._connection.execute("SELECT experiment, count(*) FROM record GROUP BY 1 ORDER BY 1")
            return dict(rows.fetchall())

    def _select(self, tail: str, values: list[str]) -> list[Record]:
        with self._as_store_errors():
            has_seals = self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone()
            select = _WITH_SEALS if has_seals else _SELECT.format(seal="NULL")
            rows = self._connection.execute(f"{select} {tail}", values).fetchall()
        records = []
        for key, experiment, config, result, provenance, sealed in rows:
            if sealed is not None and sealed != seal(experiment, key, config, result, provenance):
                warnings.warn(
                    f"record {experiment}/{key} of {self.path} is damaged: its content does not fit its checksum "
                    f"{sealed}; it is left out, and the next sweep runs it again",
                    stacklevel=3,
                )
                continue
            parts = (canonical.loads(text) for text in (config, result, provenance))
            records.append(Record(key, experiment, *parts))
        return records

    def merge(self, path: str | os.PathLike[str]) -> MergeReport:
        """Take in the records of another store or of an exported JSONL file, all or none.

        A finished record is never overwritten: see :class:`MergeReport` for what happens to keys on both sides.

        Raises:
            StoreError: If the file is neither, or a line of it is damaged (the message names the line).
        """
        source = Path(path)
        self._check_apart(source)
        if _is_sqlite(source):
            with Store(source, read_only=True) as other:
                incoming = other.records()
        else:
            incoming = read_jsonl(source)
        accepted: dict[tuple[str, str], Record] = {}  # a file of several exports may hold a key more than once
        same, replaced, conflicts = 0, 0, []
        for record in incoming:
            name = record.experiment, record.key
            mine = accepted.get(name) or self.get(record.key, record.experiment)
            if mine is None:
                accepted[name] = record
            elif mine.failed and not record.failed:
                accepted[name] = record
                replaced += 1
            elif record.failed or mine.comparable() == record.comparable():
                same += 1
            else:
                conflicts.append(f"{record.experiment}/{record.key}")
        self._write(accepted.values())
        return MergeReport(len(incoming) - same - replaced - len(conflicts), same, replaced, tuple(conflicts))

    def export_jsonl(
        self, path: str | os.PathLike[str], experiment: str, where: Mapping[str, Any] | None = None
    ) -> int:
        """Write an experiment's records, sorted by key, as JSONL; returns how many.

        Each distinct provenance is one line, ``{"id": ..., "provenance": {...}}``, ahead of the records, which name
        it by its id. The file appears whole or not at all. :func:`read_jsonl` and :meth:`merge` read it.

        Args:
            path: The file to write.
            experiment: The experiment.
            where: Only records whose config has these values.

        Raises:
            StoreError: If there is no such record, the file cannot be written, or it would pass 1 MiB, the most that
                is committed as one file: the message says by which config entry to split.
        """
        self._check_apart(path)
        there = self.records(experiment)
        records = [r for r in there if matches(r.config, where)]
        asked = f"{experiment!r}{condition_in_words(where)}"
        if there and (unknown := [name for name in where or () if not any(name in r.config for r in there)]):
            settings = ", ".join(sorted({name for r in there for name in r.config}))
            raise StoreError(
                f"no record of experiment {experiment!r} has a setting {unknown[0]!r}; there are {settings}"
            )
        if not records:
            known = ", ".join(self.experiments()) or "none"
            raise StoreError(f"{self.path} has no record of experiment {asked}; it holds experiments: {known}")
        write_jsonl(path, records, f"records of {asked}")
        return len(records)


_BESIDE = ("", "-wal", "-shm", "-lock")  # what SQLite and the lock keep beside the file


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\x00"
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}; give a store or an exported JSONL") from err


def _named(err: sqlite3.Error, *names: str) -> bool:
    return (getattr(err, "sqlite_errorname", None) or "").startswith(names)


class _StoreErrors:
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
