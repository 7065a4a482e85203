"""Provenance: what it says, what it must not say, and that it works anywhere."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helene.lab.runs import canonical
from helene.lab.runs import provenance as origin

ROOT = Path(__file__).parents[2]


def test_it_says_what_a_reader_needs():
    facts = origin.provenance("helene scaling --preset quick")
    assert facts["command"] == "helene scaling --preset quick"
    assert facts["versions"]["python"] == platform.python_version()
    assert {"numpy", "torch"} <= set(facts["versions"])
    assert facts["cpus"] >= 1
    assert facts["timestamp"].endswith("+00:00")
    assert canonical.loads(canonical.dumps(facts)) == facts


def test_commit_and_dirty_flag(tmp_path, monkeypatch):
    """A small repository with this module in it: clean, changed, and the module untracked."""

    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    module = tmp_path / "provenance.py"
    shutil.copy(origin.__file__, module)
    monkeypatch.setattr(origin, "__file__", str(module))
    assert origin._git_state() == (None, None)  # no repository
    git("init", "-q")
    assert origin._git_state() == (None, None)  # not tracked: an installed copy inside some checkout
    git("add", "provenance.py")
    git("commit", "-qm", "x")
    commit, dirty = origin._git_state()
    assert len(commit) == 40
    assert dirty is False
    (tmp_path / "notes").write_text("untracked files change no result")
    assert origin._git_state() == (commit, False)
    module.write_text(module.read_text() + "\n")
    assert origin._git_state() == (commit, True)


def test_without_git_and_without_imports(tmp_path):
    """No git on the path, another folder, a fresh process: no commit, no error, and neither torch nor numpy loaded."""
    code = (
        "import json, sys; from helene.lab.runs.provenance import provenance; facts = provenance();"
        "print(json.dumps([facts, 'torch' in sys.modules, 'numpy' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "secret" / "s.sqlite")],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    facts, torch, numpy = json.loads(done.stdout)
    assert (facts["commit"], facts["dirty"], torch, numpy) == (None, None, False, False)
    assert facts["threads"] == {"OMP_NUM_THREADS": "3"}
    assert facts["command"] == "python s.sqlite"


def test_a_module_is_named_as_it_was_run(tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some/rows.py").write_text(
        "from helene.lab.runs.provenance import provenance; print(provenance()['command'])"
    )
    words = [sys.executable, "-m", "some.rows", "--out", str(tmp_path / "x.jsonl")]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "python -m some.rows --out x.jsonl"


def test_nothing_private_is_said():
    facts = canonical.dumps(
        origin.provenance([sys.executable, f"--store={ROOT}/a b.sqlite", str(ROOT), "~/x/y", "rel/z"])
    )
    for private in (str(ROOT), str(Path.home()) + "/", platform.node(), sys.prefix):
        assert private not in facts, private
    assert f"/{getpass.getuser()}/" not in facts


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/usr/bin/helene", "scaling", "--out", "/data/me/reports"], "helene scaling --out reports"),
        (["helene", "--store=/data/my store.sqlite"], "helene '--store=my store.sqlite'"),
        (["helene", "--lr=1e-3", "reports/a"], "helene --lr=1e-3 reports/a"),
        (["helene", "--model", "opt=/data/me/opt"], "helene --model opt=opt"),
        (["helene", "--model=opt-1.3b=/data/me/opt", "opt-1.3b=~/opt"], "helene --model=opt-1.3b=opt opt-1.3b=opt"),
        (["helene", "/data/a=b/c"], "helene c"),
        (["-c", "~/x/"], "python x"),
        (["/x/__main__.py"], "python"),
        ([], ""),
    ],
)
def test_commands_without_paths(words, said):
    assert origin.public_command(words) == said
