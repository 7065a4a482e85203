"""Files that appear whole or not at all, on disks that fill up and in places where nothing can be written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helene.inputs.files import write_text, write_whole


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space, or choose a folder on another disk$"),
        (errno.EDQUOT, "free some space, or choose a folder on another disk$"),
        (errno.EACCES, "choose a folder that is there and that you may write to$"),
        (errno.EROFS, "choose a folder that is there and that you may write to$"),
        (errno.EIO, "free some space, or .* and that you may write to$"),
    ],
)
def test_what_was_there_stays_and_the_advice_fits(tmp_path: Path, number: int, advice: str) -> None:
    target = tmp_path / "file"
    write_text(target, "before")

    def failing(partial: Path) -> None:
        partial.write_text("half of it")
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=rf"^cannot write .*/file: {os.strerror(number)}; {advice}"):
        write_whole(target, failing)
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write .*; choose a shorter name$"):
        write_text(tmp_path / ("x" * 300), "text")
    write_text(tmp_path / ("x" * 250), "text")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match=r"cannot write .*/a: "):
        write_text(tmp_path / "a", "text")


def test_two_writers_leave_the_file_of_one(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def slow(partial: Path) -> None:
        partial.write_text("slow")
        write_text(target, "fast")
        assert partial.read_text() == "slow"

    write_whole(target, slow)
    assert target.read_text() == "slow"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_other_errors_leave_nothing_behind_either(tmp_path: Path, error: type[BaseException]) -> None:
    def failing(partial: Path) -> None:
        partial.write_text("half of it")
        raise error

    with pytest.raises(error):
        write_whole(tmp_path / "file", failing)
    assert os.listdir(tmp_path) == []


def test_folders_that_are_missing_or_files(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "file", "text")
    assert (tmp_path / "new" / "file").read_text() == "text"
    with pytest.raises(OSError, match=r"cannot write .*; choose a folder that is there"):
        write_text(tmp_path / "new" / "file" / "below", "text")
    with pytest.raises(OSError, match=r"cannot write .*missing/file: No such file or directory; choose a folder"):
        write_whole(tmp_path / "missing" / "file", lambda partial: partial.write_text("text"))


@pytest.mark.skipif(sys.platform != "linux", reason="file size limits")
def test_records_and_reports_on_a_disk_that_fills_up(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the write fails in the operating system, as there."""
    code = f"""
import resource
from helene.lab.runs.records import Record, StoreError, write_jsonl
from helene.lab.report.report_files import write_report_text
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
records = [Record.of("e", {{"i": i}}, {{"steps": [i] * 50}}) for i in range(20)]
for write in (
    lambda: write_jsonl({str(tmp_path / "records.jsonl")!r}, records, "records of e"),
    lambda: write_report_text({str(tmp_path / "index.html")!r}, "x" * 2000),
):
    try:
        write()
    except (StoreError, ValueError) as err:
        print(err)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    for line, name in zip(said, ("records.jsonl", "index.html"), strict=True):
        assert line.startswith(f"cannot write {tmp_path / name}: File too large; free some space")
    assert os.listdir(tmp_path) == []
