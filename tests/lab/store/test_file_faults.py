"""Files that are outputs and inputs at once, half there, read-only or crafted: refused in one line, or whole."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from helene import cli
from helene.inputs import files
from helene.lab.report.drawing import Drawing
from helene.lab.report.index_page import write_index
from helene.lab.report.report_files import read_leaves, write_summary
from helene.lab.runs import canonical, lock
from helene.lab.runs.store import Record, Store, StoreError
from helene.lab.sweeps.sweep import sweep


def filled(path: Path, count: int = 3, experiment: str = "e") -> Path:
    with Store(path) as store:
        for i in range(count):
            store.put(Record.of(experiment, {"i": i}, {"status": "reached"}))
    return path


def _same(path: Path) -> Path:
    return path


def _link(path: Path) -> Path:
    made = path.with_name("link")
    made.symlink_to(path)
    return made


def _hard_link(path: Path) -> Path:
    made = path.with_name("hard")
    os.link(path, made)
    return made


def _around(path: Path) -> Path:
    return path.parent / "folder" / ".." / path.name


def _beside(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


@pytest.mark.parametrize("name_of", [_same, _link, _hard_link, _around, _beside])
def test_a_store_is_not_exported_over_itself(name_of, tmp_path, capsys):
    path = filled(tmp_path / "s.sqlite")
    (tmp_path / "folder").mkdir()
    other = name_of(path)
    assert cli.main(["records", "export", str(path), "e", str(other)]) == cli.BAD_USAGE
    assert "would be written over" in capsys.readouterr().err
    with Store(path, read_only=True) as store:
        assert len(store) == 3


def test_a_store_is_not_merged_into_itself(tmp_path, capsys):
    path = filled(tmp_path / "s.sqlite")
    assert cli.main(["records", "merge", str(path), str(path)]) == cli.BAD_USAGE
    assert "which is read; choose another file" in capsys.readouterr().err


def test_outputs_apart_from_inputs_are_let_pass(tmp_path):
    (tmp_path / "a").write_text("x")
    files.check_apart(tmp_path / "b", tmp_path / "a", None, tmp_path / "c")


def test_a_killed_writers_file_is_not_read_without_what_lies_beside_it(tmp_path, monkeypatch):
    """Its records are in the -wal; where nothing may be written that cannot be read, and was taken for empty."""
    path = tmp_path / "s.sqlite"
    copy = tmp_path / "copy"
    copy.mkdir()
    with Store(path) as store:
        store.put(Record.of("e", {"i": 0}, {"status": "reached"}))
        for name in ("s.sqlite", "s.sqlite-wal"):
            shutil.copy(tmp_path / name, copy / name)
    connect = sqlite3.connect

    def read_only(address, **more):
        if "mode=rw" in address:
            err = sqlite3.OperationalError("unable to open database file")
            err.sqlite_errorname = "SQLITE_CANTOPEN"
            raise err
        return connect(address, **more)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", read_only)
        with pytest.raises(StoreError, match=r"has records in s\.sqlite-wal, .*copy both files to a folder"):
            Store(copy / "s.sqlite", read_only=True)
        with Store(path, read_only=True) as store:
            assert len(store) == 1  # a closed store has nothing beside it
    with Store(copy / "s.sqlite", read_only=True) as store:
        assert len(store) == 1


def test_a_store_with_views_is_no_store(tmp_path):
    """A view of this name could compute for ever when it is listed."""
    path = filled(tmp_path / "s.sqlite")
    with sqlite3.connect(path) as db:
        db.executescript("ALTER TABLE record RENAME TO hidden; CREATE VIEW record AS SELECT * FROM hidden;")
    db.close()
    with pytest.raises(StoreError, match="has views or triggers"):
        Store(path, read_only=True)


def test_names_do_not_steer_the_terminal(tmp_path, capsys):
    path = filled(tmp_path / "s.sqlite", 1, "\x1b[2Jevil\n")
    assert cli.main(["records", "list", str(path)]) == 0
    assert capsys.readouterr().out == "       1  \\x1b[2Jevil\\n\n"


def test_the_lock_needs_nothing_that_windows_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    for name in ("O_CLOEXEC", "pread", "pwrite"):
        monkeypatch.delattr(os, name)
    unlink, opened = Path.unlink, set()

    def of_windows(path, missing_ok=False):
        if path in opened:
            opened.discard(path)
            raise PermissionError("being used by another process")
        return unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", of_windows)
    with Store(tmp_path / "s.sqlite") as store:
        opened.add(tmp_path / "s.sqlite-lock")
        assert len(store) == 0
    assert not (tmp_path / "s.sqlite-lock").exists()


def test_an_odd_summary_does_not_stop_the_index(tmp_path):
    for number, text in enumerate(["[" * 100_000, "9" * 5000, "[]", "{", "\x00"]):
        (tmp_path / f"part{number}").mkdir()
        (tmp_path / f"part{number}" / "summary.json").write_text(text)
    write_summary(tmp_path, "odd #%?name", title="T", answer="A", command="c")
    (tmp_path / "odd #%?name" / "index.html").write_text("x")
    (tmp_path / "odd #%?name" / "javascript:alert(1).html").write_text("x")
    (tmp_path / "odd #%?name" / "javascript:alert(1).json").write_text('{"title": "t", "answer": "a"}')
    page = write_index(tmp_path).read_text()
    assert page.count("cannot be read") == 5
    assert 'href="odd%20%23%25%3Fname/index.html"' in page
    assert [leaf.link for leaf in read_leaves(tmp_path / "odd #%?name")] == ["javascript%3Aalert%281%29.html"]


def test_a_drawing_that_cannot_be_written_leaves_none_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ValueError, match=r"cannot write .*d\.png: No space left on device; free some space"):
        Drawing("<svg/>", lambda: b"png", "alt").save(tmp_path, "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d.svg"]


def test_a_folder_appears_whole(tmp_path):
    def half(folder):
        (folder / "one").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_folder(tmp_path / "new", half)
    assert not list(tmp_path.iterdir())
    files.write_folder(tmp_path / "new", lambda folder: (folder / "one").write_text("x"))
    files.write_folder(tmp_path / "new", lambda folder: (folder / "two").write_text("x"))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one"]


def _huge(config):
    return {"status": "reached", "steps": 10 ** config["digits"]}


def test_an_integer_that_no_reader_takes_is_one_failed_cell(tmp_path):
    with pytest.raises(ValueError, match="over 4,000 digits"):
        canonical.plain({"x": 10**5000})
    from helene.lab.sweeps.executors import InlineExecutor

    with Store(tmp_path / "s.sqlite") as store:
        made = sweep("e", [{"digits": 5000}, {"digits": 10}], _huge, store, progress=False, executor=InlineExecutor())
    assert [record.result["status"] for record in made] == ["error", "reached"]


def test_the_command_speaks_in_any_encoding_and_into_closed_streams(tmp_path, monkeypatch, capsys):
    path = filled(tmp_path / "s.sqlite", 1, "θ")
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert cli.main(["records", "list", str(path)]) == 0
    narrow.flush()
    assert narrow.buffer.getvalue() == b"       1  \\u03b8\n"
    monkeypatch.undo()
    assert cli.main(["index", "--out", os.fsdecode(b"\xff")]) == cli.BAD_USAGE
    assert "is no UTF-8; rename the file or folder" in capsys.readouterr().err
    command = f"{sys.executable} -m helene.cli records list {path}.none 2>&- >&-"
    assert (
        subprocess.run(["sh", "-c", command], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode == 2
    )
