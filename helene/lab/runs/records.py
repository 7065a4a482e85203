"""Records of runs, and the JSONL files in which they are committed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from helene.inputs.files import write_text
from helene.lab.runs import canonical

EXPORT_LIMIT_BYTES = 1 << 20
_PARTS = {"experiment": str, "config": dict, "result": dict, "provenance": dict}


class StoreError(Exception):
    """What is wrong with a store, in one sentence that says what to do."""


def config_key(config: Mapping[str, Any]) -> str:
    """The name of a config: the first 24 hexadecimal digits of the SHA-256 of its canonical JSON.

    The order of the entries does not matter, and a tuple counts as a list; 1 and 1.0 are different.

    Raises:
        ValueError: If the config has no JSON form.
    """
    return hashlib.sha256(canonical.dumps(config).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Record:
    """One finished run.

    Attributes:
        key: ``config_key(config)``.
        experiment: The experiment it belongs to; the same config may occur in several.
        config: What was asked, all of it: nothing that changes the result may be missing.
        result: What came out. Wall-clock numbers end in ``_seconds``. ``status`` is one of the design's words.
        provenance: Where and with what it ran (:func:`helene.lab.runs.provenance.provenance`).
    """

    key: str
    experiment: str
    config: dict[str, Any]
    result: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        experiment: str,
        config: Mapping[str, Any],
        result: Mapping[str, Any],
        provenance: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a record, its values plain (see :func:`helene.lab.runs.canonical.plain`) and its key computed.

        Raises:
            ValueError: If something in it has no JSON form.
        """
        return cls(
            key=config_key(config),
            experiment=experiment,
            config=canonical.plain(config, "config"),
            result=canonical.plain(result, "result"),
            provenance=canonical.plain(provenance or {}, "provenance"),
        )

    @property
    def failed(self) -> bool:
        """Whether the run raised or its process died (status ``error``): the next sweep tries it again."""
        return self.result.get("status") == "error"

    def comparable(self) -> str:
        """Canonical JSON without provenance and ``*_seconds``: equal, byte for byte, when the run is repeated."""
        compared = {"key": self.key, "experiment": self.experiment, "config": self.config, "result": self.result}
        return canonical.dumps(canonical.without_seconds(compared))


def seal(experiment: str, key: str, config: str, result: str, provenance: str) -> str:
    """The checksum that is kept beside a record, of its canonical JSON; see :class:`helene.lab.runs.store.Store`."""
    return hashlib.sha256("\n".join((experiment, key, config, result, provenance)).encode()).hexdigest()[:16]


def _sealed(record: Record) -> str:
    config, result, origin = (canonical.dumps(part) for part in (record.config, record.result, record.provenance))
    return seal(record.experiment, record.key, config, result, origin)


def write_jsonl(path: str | os.PathLike[str], records: Sequence[Record], name: str) -> None:
    """Write records as one file, whole or not at all; see :meth:`helene.lab.runs.store.Store.export_jsonl`.

    Raises:
        StoreError: If the file cannot be written, or would pass the limit; ``name`` names the records in the message.
    """
    text = _jsonl(records)
    if len(text) > EXPORT_LIMIT_BYTES:
        raise StoreError(
            f"{len(records)} {name} take {len(text)} bytes, above the limit of {EXPORT_LIMIT_BYTES} for one file; "
            + _split_advice(records)
        )
    try:
        write_text(Path(path), text)
    except OSError as err:
        raise StoreError(str(err)) from err


def read_jsonl(path: str | os.PathLike[str]) -> list[Record]:
    """The records of a file written by :meth:`Store.export_jsonl`, in its order; needs no store.

    Raises:
        StoreError: If it cannot be read, or a line is damaged or was changed by hand (its key or its checksum no longer
            fits). Lines without a checksum are taken.
    """
    source = Path(path)
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        reason = err.strerror if isinstance(err, OSError) else "it is no text"
        raise StoreError(
            f"cannot read records from {source}: {reason}; give a file that `helene records export` has written"
        ) from err
    provenances: dict[str, dict[str, Any]] = {}
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = canonical.loads(line)
            if "config" not in row:
                provenances[row["id"]] = row["provenance"]
                continue
            origin = row["provenance"]
            record = Record.of(
                row["experiment"],
                row["config"],
                row["result"],
                provenances[origin] if isinstance(origin, str) else origin,
            )
            for part, kind in _PARTS.items():
                if not isinstance(getattr(record, part), kind):
                    raise TypeError(f"its {part} must be a {kind.__name__}")
        except (ValueError, KeyError, TypeError) as err:
            raise StoreError(
                f"line {number} of {source} is not a record ({type(err).__name__}: {err}); export the file again"
            ) from err
        if record.key != row.get("key"):
            raise StoreError(
                f"line {number} of {source} has key {row.get('key')}, but its config hashes to {record.key}: "
                "it was edited; export the file again"
            )
        if row.get("seal", found := _sealed(record)) != found:
            raise StoreError(
                f"line {number} of {source} has checksum {row['seal']}, but its content has {found}: it was edited or "
                "damaged; export the file again"
            )
        records.append(record)
    return records


def read_once(paths: Iterable[str | os.PathLike[str]]) -> list[Record]:
    """The records of several files, each once; one that finished comes before the same run that failed.

    Raises:
        StoreError: If two finished records of one run have different results; see also :func:`read_jsonl`.
    """
    found: dict[tuple[str, str], Record] = {}
    for path in paths:
        for record in read_jsonl(path):
            name = record.experiment, record.key
            known = found.get(name)
            if known is None or known.failed:
                found[name] = record
            elif not record.failed and known.comparable() != record.comparable():
                raise StoreError(
                    f"{record.experiment}/{record.key} has two results, the other one in {path}; keep the one that "
                    "holds and export the files again"
                )
    return list(found.values())


def _jsonl(records: Iterable[Record]) -> str:
    provenances: dict[str, dict[str, Any]] = {}
    lines = []
    for r in records:
        origin = digest(canonical.dumps(r.provenance))
        provenances[origin] = r.provenance
        row = {"key": r.key, "experiment": r.experiment, "config": r.config, "result": r.result, "provenance": origin}
        lines.append({**row, "seal": _sealed(r)})
    heads = [{"id": origin, "provenance": provenances[origin]} for origin in sorted(provenances)]
    return "".join(canonical.dumps(row) + "\n" for row in [*heads, *lines])


def digest(provenance: str) -> str:
    """The short name of a provenance, given its canonical JSON."""
    return hashlib.sha256(provenance.encode()).hexdigest()[:12]


def matches(config: Mapping[str, Any], where: Mapping[str, Any] | None) -> bool:
    """Whether a config has all of these values (nan is nan, 1 is 1.0); None asks for nothing."""
    return all(name in config and _equal(config[name], canonical.plain(value)) for name, value in (where or {}).items())


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or canonical.dumps(a) == canonical.dumps(b)


def condition_in_words(where: Mapping[str, Any] | None) -> str:
    """The condition in words, for messages."""
    return f" where {', '.join(f'{name}={value!r}' for name, value in where.items())}" if where else ""


def _split_advice(records: Sequence[Record]) -> str:
    """Name the config entry that splits the records into the fewest files that all fit."""
    best: tuple[int, str, list[str]] | None = None
    for name in sorted({name for r in records for name in r.config}):
        groups: dict[str, list[Record]] = {}
        for r in records:
            groups.setdefault(canonical.dumps(r.config.get(name)), []).append(r)
        fits = all(len(_jsonl(group)) <= EXPORT_LIMIT_BYTES for group in groups.values())
        if len(groups) > 1 and fits and (best is None or len(groups) < best[0]):
            best = (len(groups), name, sorted(groups))
    if best is None:
        return "no single config entry splits them into files that fit; shorten the results (no trajectories)"
    values = ", ".join(best[2][:6]) + (", ..." if len(best[2]) > 6 else "")
    return f"split by {best[1]!r} (--where {best[1]}=VALUE, values {values}): {best[0]} files, each within the limit"
