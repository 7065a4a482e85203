"""``helene scaling`` from the outside: resumes after SIGKILL, repeats nothing, answers the same, explains bad input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from helene.lab.runs import canonical
from helene.lab.runs.store import Store
from synthetic.run import run_cell

TINY = """
title = "tiny"
[[block]]
family = "quadratic"
problem = { kind = "quadratic", spectrum = { levels = [1.0, 2.0] } }
n = [1, 2, 4]
w = [4, 8]
max_d = 32
starts = [{ kind = "coordinate", size = 1.0 }]
methods = ["helene", "mezo", "per_layer"]
"""


def command(preset, out, *more):
    words = [sys.executable, "-m", "helene.cli", "scaling", "--preset", str(preset), "--out", str(out), "--jobs", "1"]
    return [*words, *more]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def comparable(out):
    summary = canonical.loads((out / "scaling" / "summary.json").read_text())
    summary.pop("provenance")
    return canonical.dumps(canonical.without_seconds(summary))


def records(out):
    with Store(out / "scaling" / "records.sqlite", read_only=True) as store:
        return {r.key: r for r in store.records("scaling")}


def test_killed_at_any_moment_it_goes_on_and_ends_the_same(tmp_path, tiny, capsys):
    """SIGKILL after 10 finished cells of 30: the same bytes in the end but for provenance and seconds."""
    from helene.cli import main

    whole = main(command(tiny, tmp_path / "a" / "reports")[3:])
    assert whole in (0, 1), capsys.readouterr().err
    out = tmp_path / "b" / "reports"
    path, kept = out / "scaling" / "records.sqlite", {}
    for least in (10,):
        process = subprocess.Popen(
            command(tiny, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if path.exists() and path.stat().st_size and len(done := _records_or_nothing(out)) >= least:
                assert kept.items() <= {k: r.result["run_seconds"] for k, r in done.items()}.items()
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = {key: record.result["run_seconds"] for key, record in _records_or_nothing(out).items()}
        assert len(kept) >= least
    assert main(command(tiny, out)[3:]) == whole, capsys.readouterr().err
    assert comparable(out) == comparable(tmp_path / "a" / "reports")
    again = {key: record.result["run_seconds"] for key, record in records(out).items()}
    assert kept.items() <= again.items(), "a finished cell was run again"
    assert {k: r.comparable() for k, r in records(out).items()} == {
        k: r.comparable() for k, r in records(tmp_path / "a" / "reports").items()
    }


def _records_or_nothing(out):
    try:
        return records(out)
    except Exception:
        return {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--preset", "huge"], "preset must be one of quick, standard"),
        (["--preset", "nowhere.toml"], "cannot read the preset"),
        (["--preset", "quick", "--jobs", "0"], "--jobs must be at least 1"),
        (["--preset", "quick", "--out", "/proc/nothing"], "that you may write to"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, said, capsys):
    from helene.cli import main

    assert main(["scaling", *words]) == 2
    err = capsys.readouterr().err.strip()
    assert said in err
    assert "\n" not in err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"helene", "mezo"', '"newton", "mezo"', "method must be one of"),
        ("n = [1, 2, 4]", "n = [1000000000000]", "has no cell: every n x w is above max_d = 32"),
        ("max_d = 32", "max_d = 1" + "0" * 5000, "cannot read the preset"),
        ("starts = [", "target = nan\nstarts = [", "target must be in (0, 1), got nan"),
        ("size = 1.0", "size = inf", "size of the start must be positive and finite, got inf"),
        ('title = "tiny"', "", "lacks an entry"),
        ("starts = ", "begins = ", "lacks an entry"),
        ("max_d = 32", "target = 0.0", "target must be in (0, 1), got 0.0"),
        ('kind = "quadratic"', 'kind = "cubic"', "kind must be one of"),
        ('kind = "quadratic"', 'kind = "coupled"', "the preset lacks 'coupling'"),
        ("levels", "level", "a spectrum is given by levels, condition or power"),
        ('"coordinate"', '"corner"', "start must be one of"),
    ],
)
def test_a_broken_preset_is_explained(tiny, tmp_path, capsys, old, new, said):
    from helene.cli import main

    assert old in TINY
    tiny.write_text(TINY.replace(old, new))
    assert main(["scaling", "--preset", str(tiny), "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_a_scheduler_that_is_gone_is_one_line(tiny, tmp_path, capsys):
    from helene.cli import main

    pytest.importorskip("distributed")
    words = ["scaling", "--preset", str(tiny), "--out", str(tmp_path / "out"), "--scheduler", "tcp://localhost:port"]
    assert main(words) == 2
    assert "no Dask scheduler answers at tcp://localhost:port" in capsys.readouterr().err


def test_a_target_below_the_noise_floor_is_an_error():
    """Float32 losses of real data are differences of numbers near 1: some 1e-6 of the gap at the start."""
    block = {"kind": "regression", "data": "digits_16_parity", "l2": 0.1, "layers": [[1, 16]]}
    config = {
        "problem": block,
        "start": {"kind": "coordinate", "size": 0.5},
        "method": "mezo",
        "space": {"log2_q": {"from": 0, "to": 0, "per_octave": 1}},
        "target": 1e-9,
        "seeds": {"tuning": [1], "test": [0]},
        "cap": 20.0,
        "race": 1.5,
        "dtype": "float32",
    }
    with pytest.raises(ValueError, match=r"target 1e-09 is below the noise floor of torch.float32"):
        run_cell(config)
    assert run_cell({**config, "dtype": "float64"})["status"] == "reached"


def test_a_disk_that_fills_up_keeps_what_is_finished(tiny, tmp_path):
    """A limit on the size of files stands in for a full disk."""
    limited = ["bash", "-c", 'ulimit -f 60 && exec "$@"', "bash", *command(tiny, tmp_path)]  # KiB: some of the 30 cells
    full = subprocess.run(limited, capture_output=True, text=True, env=environment())
    assert full.returncode == 2, full.stderr
    assert "free some space" in full.stderr.splitlines()[-1]
    assert 0 < len(records(tmp_path)) < 30


def test_a_preset_may_begin_with_a_byte_order_mark(tiny):
    from synthetic.design import load

    tiny.write_text(TINY, encoding="utf-8-sig")
    assert load(str(tiny), "1").title == "tiny"
