"""What can go wrong with the file: each fault gives one sentence, and what was committed stays."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from helene.lab.runs.store import Record, Store, StoreError


def rec(i, size=1):
    return Record.of("e", {"i": i}, {"status": "reached", "steps": [i] * size})


def filled(path, count=50):
    with Store(path) as store:
        for i in range(count):
            store.put(rec(i, 50))
    return path


def one_sentence(err):
    text = str(err.value)
    assert "\n" not in text
    assert "; " in text  # what is wrong; the way out
    return text


def test_second_writer_is_refused_and_a_reader_is_not(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put(rec(1))
        with pytest.raises(StoreError, match=f"being written by process {os.getpid()}") as err:
            Store(path)
        one_sentence(err)
        code = f"from helene.lab.runs.store import Store; Store({str(path)!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"being written by process {os.getpid()}" in done.stderr
        with Store(path, read_only=True) as reader:
            assert len(reader) == 1
            store.put(rec(2))
            assert len(reader) == 2
            with pytest.raises(StoreError, match="read-only"):
                reader.put(rec(3))
    with Store(path) as store:
        assert len(store) == 2


def test_lock_of_a_killed_writer_is_free_and_its_records_are_there(tmp_path):
    path = tmp_path / "s.sqlite"
    code = f"""
import os, signal
from helene.lab.runs.store import Record, Store
store = Store({str(path)!r})
store.put(Record.of("e", {{"i": 1}}, {{"steps": 1}}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.with_name("s.sqlite-wal").exists()
    with Store(path, read_only=True) as store:
        assert len(store) == 1
    with Store(path) as store:
        assert len(store) == 1


def test_not_a_database(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but long enough to have a header\n" * 20)
    with pytest.raises(StoreError, match="not a database") as err:
        Store(path)
    one_sentence(err)
    assert path.read_text().startswith("not a database")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_damaged_database(tmp_path):
    path = filled(tmp_path / "s.sqlite")
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    with pytest.raises(StoreError, match="damaged") as err, Store(path) as store:
        store.records()
    one_sentence(err)


def test_truncated_database(tmp_path):
    path = filled(tmp_path / "s.sqlite")
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(StoreError, match="damaged") as err, Store(path) as store:
        store.records()
    one_sentence(err)


def test_database_of_another_program(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="not a store of helene") as err:
            Store(path, read_only=read_only)
        one_sentence(err)


def test_other_schema_version(tmp_path):
    path = filled(tmp_path / "s.sqlite", 1)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(StoreError, match=r"schema version 99, this helene reads 1; export it") as err:
        Store(path)
    one_sentence(err)


@pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")
def test_unwritable_folder():
    with pytest.raises(StoreError, match="cannot write") as err:
        Store("/proc/helene/s.sqlite")
    one_sentence(err)


def test_folder_that_is_a_file_and_file_that_is_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "file" / "s.sqlite")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "folder")


@pytest.fixture
def nobody():
    """Run the test without root's rights, which no permission could stop."""
    if not hasattr(os, "seteuid"):
        pytest.skip("needs POSIX permissions")
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield
    os.seteuid(was)


@pytest.fixture
def open_folder():
    """A folder whose parents anyone may enter (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_folder_without_permission(open_folder, request):
    path = filled(open_folder / "locked" / "s.sqlite", 3)
    path.parent.chmod(0o555)
    request.getfixturevalue("nobody")
    with pytest.raises(StoreError, match=r"cannot write .*: Permission denied; choose") as err:
        Store(path)
    one_sentence(err)
    with Store(path, read_only=True) as store:
        assert len(store) == 3


def test_missing_store_to_read(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "none.sqlite", read_only=True)
    with Store(tmp_path / "s.sqlite") as store, pytest.raises(StoreError, match="cannot read"):
        store.merge(tmp_path / "none.sqlite")


def test_closed_store(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.put(rec(1))


@pytest.mark.skipif(sys.platform != "linux", reason="file size limits")
def test_full_disk_keeps_what_was_committed(tmp_path):
    """A file size limit stands for the full disk: the write fails in the operating system, as there."""
    path = tmp_path / "s.sqlite"
    code = f"""
import resource
from helene.lab.runs.store import Record, Store, StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
done = 0
with Store({str(path)!r}) as store:
    try:
        for i in range(10_000):
            store.put(Record.of("e", {{"i": i}}, {{"steps": [i] * 500}}))
            done += 1
    except StoreError as err:
        print(err)
    print(done, len(store))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert "the disk is full or failing; free some space" in out[0]
    done, seen = map(int, out[1].split())
    assert 10 < done == seen < 10_000
    with Store(path) as store:  # the disk has room again
        assert len(store) == done
        store.put(rec(-1))
        assert len(store) == done + 1


def test_no_space_left_according_to_sqlite(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put(rec(0))
        pages = store._database.connection.execute("PRAGMA page_count").fetchone()[0]
        store._database.connection.execute(f"PRAGMA max_page_count={pages + 1}")
        with pytest.raises(StoreError, match="full") as err:
            store.put(rec(1, 10_000))
        one_sentence(err)
        assert [r.config["i"] for r in store.records()] == [0]


def test_export_into_an_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("x")
    with Store(tmp_path / "s.sqlite") as store:
        store.put(rec(1))
        with pytest.raises(StoreError, match="cannot write"):
            store.export_jsonl(tmp_path / "file" / "e.jsonl", "e")


def test_a_damaged_record_is_left_out_and_said(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put(Record.of("e", {"i": 1}, {"status": "reached", "steps": 117}))
        store.put(Record.of("e", {"i": 2}, {"status": "reached", "steps": 118}))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE record SET result = replace(result, '117', '111')")
    with Store(path) as store:
        with pytest.warns(UserWarning, match=r"record e/.* is damaged: its content does not fit its checksum"):
            assert [record.config for record in store.records("e")] == [{"i": 2}]
        store.put(Record.of("e", {"i": 1}, {"status": "reached", "steps": 117}))
        assert len(store.records("e")) == 2


def test_a_store_without_checksums_is_read(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put(Record.of("e", {"i": 1}, {"status": "reached"}))
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE seal")
    with Store(path, read_only=True) as store:
        assert len(store.records("e")) == 1
    with Store(path) as store:
        assert len(store.records("e")) == 1


def test_an_export_that_was_edited_is_refused(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put(Record.of("e", {"i": 1}, {"status": "reached", "steps": 117}))
        store.export_jsonl(tmp_path / "e.jsonl", "e")
    text = (tmp_path / "e.jsonl").read_text()
    (tmp_path / "edited.jsonl").write_text(text.replace("117", "111"))
    with Store(tmp_path / "t.sqlite") as store:
        with pytest.raises(StoreError, match=r"line 2 of .* has checksum .* but its content has"):
            store.merge(tmp_path / "edited.jsonl")
        assert len(store) == 0


def test_a_link_to_a_store_has_the_stores_one_writer(tmp_path):
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "s.sqlite")
    with Store(tmp_path / "s.sqlite"), pytest.raises(StoreError, match="is being written by process"):
        Store(tmp_path / "link.sqlite")


def test_a_store_that_is_deleted_or_replaced_takes_no_more_records(tmp_path):
    """SQLite would go on writing to a file that nobody can open any more."""
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.put(Record.of("e", {"i": 1}, {"status": "ok"}))
        path.unlink()
        with pytest.raises(StoreError, match=r"s\.sqlite was deleted or replaced while it was open"):
            store.put(Record.of("e", {"i": 2}, {"status": "ok"}))
        path.write_bytes(b"")
        with pytest.raises(StoreError, match=r"deleted or replaced"):
            store.put(Record.of("e", {"i": 2}, {"status": "ok"}))
