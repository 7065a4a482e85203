"""The command line: exit codes, one line per error, lazy sub-commands."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from importlib.metadata import EntryPoint

import pytest

from helene import cli
from helene.inputs import extras
from helene.lab.runs.store import Record, Store


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Three packages: one that works, one that cannot be imported, one whose command fails in several ways."""
    (tmp_path / "lab_good_package.py").write_text(
        "def add_commands(subparsers):\n"
        "    parser = subparsers.add_parser('good', help='works')\n"
        "    parser.add_argument('--code', type=int, default=None)\n"
        "    parser.add_argument('--fail', default='')\n"
        "    parser.add_argument('--store', nargs='?', default='s')\n"
        "    parser.set_defaults(func=run)\n"
        "def run(arguments):\n"
        "    if arguments.fail:\n"
        "        raise {'value': ValueError('eps must be\\n positive'), 'key': KeyError('x'),"
        " 'file': FileNotFoundError(2, 'No such file', 'gone'), 'stop': KeyboardInterrupt()}[arguments.fail]\n"
        "    return arguments.code\n"
    )
    (tmp_path / "lab_broken_package.py").write_text("import a_module_that_does_not_exist\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [
        EntryPoint("good", "lab_good_package:add_commands", cli.GROUP),
        EntryPoint("broken", "lab_broken_package:add_commands", cli.GROUP),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == cli.GROUP else [])
    yield
    for name in ("lab_good_package", "lab_broken_package"):
        sys.modules.pop(name, None)


def run(*words):
    try:
        return cli.main(words)
    except SystemExit as stop:
        return stop.code


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as opened:
        for i in range(6):
            opened.put(Record.of("e", {"i": i, "method": ["helene", "mezo"][i % 2]}, {"steps": i}))
    return path


def test_help_lists_everything_loads_nothing(commands, capsys):
    assert run("--help") == 0
    said = capsys.readouterr().out
    for word in ("good", "broken", "records", "index", "examples:", "exit codes:"):
        assert word in said
    assert not {"lab_good_package", "lab_broken_package"} & set(sys.modules)
    assert run("good", "--help") == 0
    assert "--code" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["good"], 0, ""),
        (["good", "--code", "1"], 1, ""),
        (["good", "--fail", "value"], 2, "helene: eps must be positive\n"),
        (["good", "--fail", "file"], 2, "helene: [Errno 2] No such file: 'gone'\n"),
        (["good", "--fail", "key"], 1, "helene: KeyError: 'x' (--traceback shows where)\n"),
        (
            ["good", "--fail", "stop"],
            130,
            "interrupted; what was finished is kept, the same command goes on from there\n",
        ),
        (["good", "--fail", "stop", "--store"], 130, "interrupted; nothing is kept: no --store\n"),
        (["broken"], 1, "helene: RuntimeError: the command 'broken' cannot be loaded: ModuleNotFoundError: No module"),
    ],
)
def test_exit_codes_and_one_line(commands, capsys, words, code, said):
    assert run(*words) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == (1 if said else 0)


@pytest.mark.parametrize("words", [[], ["unknown"], ["good", "--unknown"], ["records"], ["records", "merge", "x"]])
def test_bad_usage_exits_with_2(commands, capsys, words):
    assert run(*words) == 2
    assert "usage: helene" in capsys.readouterr().err


def leaves(parser, words=()):
    """Every command that takes no further word, and the words that lead to it."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below or words == ("scaling",):
        yield words, parser
    for action in below:
        for name, inner in action.choices.items():
            yield from leaves(inner, (*words, name))


@pytest.mark.parametrize("first", ["records", "index", "scaling", "llm"])
def test_every_command_has_a_description_an_example_and_its_defaults(first):
    parser = cli._parser([first])
    found = [(words, one) for words, one in leaves(parser) if words[0] == first]
    assert found
    for words, one in found:
        assert one.description, words
        examples = re.findall(r"^  helene (.+?)(?:   .*)?$", one.epilog or "", re.MULTILINE)
        assert examples, words
        for example in examples:
            parser.parse_args(shlex.split(example))
            assert tuple(example.split()[: len(words)]) == words
        said = one.format_help()
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
                continue
            assert action.help, (words, action.dest)
            if action.default not in (None, False, []):
                shown = one._get_formatter()._get_help_string(action)
                assert "default" in shown, (words, action.dest)
        assert "example" in said


@pytest.mark.parametrize(
    ("module", "preferred", "said"),
    [
        ("scipy.stats", "scaling", "scipy is not installed; pip install 'helene[suite]'"),
        ("flint", "", "python-flint is not installed; pip install 'helene[suite]'"),
        ("sklearn", "llm", "scikit-learn is not installed; pip install 'helene[llm]'"),
        ("jinja2", "index", "jinja2 is not installed; pip install 'helene[suite]'"),
        ("a_module_that_does_not_exist", "llm", None),
        (None, "", None),
    ],
)
def test_a_missing_extra_is_named(module, preferred, said):
    assert extras.advice(module, preferred) == said


def test_a_command_names_the_extra_that_it_lacks(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    for name in ("index_page", "pages"):
        monkeypatch.delitem(sys.modules, f"helene.lab.report.{name}", raising=False)
    assert run("index", "--out", str(tmp_path)) == 1
    assert capsys.readouterr().err == "helene: jinja2 is not installed; pip install 'helene[suite]'\n"


def test_a_clone_that_is_not_installed_says_so(monkeypatch, capsys):
    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    for asked in ("version", "requires"):
        monkeypatch.setattr(metadata, asked, unknown)
    assert run("llm", "pages") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("helene: helene is not installed here")
    assert line.endswith("pip install . in its clone, or there call python -m llm_bench.cli")


@pytest.mark.parametrize(("adapter", "lacks"), [("trainer", "transformers"), ("checkpoints", "safetensors")])
def test_an_adapter_names_the_extra_that_it_lacks(monkeypatch, adapter, lacks):
    monkeypatch.setitem(sys.modules, lacks, None)
    monkeypatch.delitem(sys.modules, f"helene.integrations.{adapter}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"{lacks} is not installed; pip install 'helene\[llm\]'"):
        importlib.import_module(f"helene.integrations.{adapter}")


def test_the_shell_completes():
    """The words that argcomplete writes to the shell; a package's options are known once its word stands."""
    pytest.importorskip("argcomplete")
    for line, expected in (("helene sca", "scaling "), ("helene scaling --pre", "--preset "), ("helene broken x", "")):
        env = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "|", "COMP_LINE": line, "COMP_POINT": str(len(line))}
        command = f"{shlex.quote(sys.executable)} -m helene.cli 8>&1 9>/dev/null >/dev/null"
        done = subprocess.run(["bash", "-c", command], env={**os.environ, **env}, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (expected, ""), line


def test_traceback_shows_all(commands):
    with pytest.raises(ValueError, match="eps"):
        run("good", "--fail", "value", "--traceback")
    with pytest.raises(RuntimeError, match="broken"):
        run("--traceback", "broken")


def test_records_list(store, capsys):
    exported = store.with_name("e.jsonl")
    assert run("records", "export", str(store), "e", str(exported)) == 0
    capsys.readouterr()
    for file in (store, exported):
        assert run("records", "list", str(file)) == 0
        assert capsys.readouterr().out.split() == ["6", "e"]
    assert run("records", "export", str(exported), "e", str(exported) + "x") == 2
    assert "`helene records merge STORE FILE` makes a store of an export" in capsys.readouterr().err
    assert run("records", "list", str(store) + "x") == 2
    assert capsys.readouterr().err.startswith("helene: there is no store at ")


def test_records_show(store, tmp_path, capsys, monkeypatch):
    with Store(store) as opened:
        record = opened.records()[0]
    assert run("records", "show", record.key[:8], "--in", str(store)) == 0
    assert json.loads(capsys.readouterr().out)["key"] == record.key
    monkeypatch.chdir(tmp_path)
    assert run("records", "show", record.key) == 2
    assert "name another file with --in FILE" in capsys.readouterr().err
    (tmp_path / "reports" / "part").mkdir(parents=True)
    with Store(tmp_path / "reports" / "part" / "a.sqlite") as opened:
        opened.put(record)
        opened.export_jsonl(tmp_path / "a.jsonl", record.experiment)
    assert run("records", "show", record.key) == 0
    assert run("records", "show", record.key, "--in", "a.jsonl") == 0
    first, second = capsys.readouterr().out.split("\n}\n")[:2]
    assert first == second
    with Store(tmp_path / "reports" / "part" / "b.sqlite") as opened:
        opened.put(Record.of("e", record.config, {"steps": 99}))
        opened.put(Record.of("other", record.config, record.result))
    assert run("records", "show", record.key) == 0
    assert capsys.readouterr().out.count('"key"') == 3, "two results and two experiments, each once"


def test_records_export_and_merge(store, tmp_path, capsys):
    file, other = tmp_path / "e.jsonl", tmp_path / "other.sqlite"
    assert run("records", "export", str(store), "e", str(file), "--where", "method=mezo") == 0
    assert run("records", "merge", str(other), str(file), str(store)) == 0
    out = capsys.readouterr().out
    assert "3 added, 0 already here" in out
    assert "3 added, 3 already here" in out
    with Store(other, read_only=True) as merged, Store(store, read_only=True) as source:
        assert merged.records() == source.records()
    assert run("records", "export", str(store), "e", str(file), "--where", "i=1") == 0
    assert "1 records" in capsys.readouterr().out
    assert run("records", "export", str(store), "nothing", str(file)) == 2
    assert "it holds experiments: e" in capsys.readouterr().err
    with Store(store) as opened:
        opened.put(Record.of("e", {"lr": float("inf")}, {"status": "reached"}))
    for said in ("lr=Infinity", 'lr={"$float":"inf"}'):  # the second as the advice to split writes it
        assert run("records", "export", str(store), "e", str(tmp_path / "infinite.jsonl"), "--where", said) == 0
    assert run("records", "export", str(store), "e", str(file), "--where", "i") == 2
    assert "--where takes NAME=VALUE, got 'i'" in capsys.readouterr().err


def test_conflicting_merge_exits_with_1(store, tmp_path, capsys):
    other = tmp_path / "other.sqlite"
    with Store(other) as opened:
        opened.put(Record.of("e", {"i": 0, "method": "helene"}, {"steps": 99}))
    assert run("records", "merge", str(other), str(store)) == 1
    assert "has another result here; kept this store's" in capsys.readouterr().err


def test_index(tmp_path, capsys):
    assert run("index", "--out", str(tmp_path / "reports")) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "reports" / "index.html")
    (tmp_path / "file").write_text("x")
    assert run("index", "--out", str(tmp_path / "file")) == 2


def test_importing_helene_loads_no_lab_and_help_no_torch():
    code = (
        "import sys, helene; assert not any(m.startswith('helene.lab') for m in sys.modules);"
        "import helene.cli\n"
        "try: helene.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'numpy', 'matplotlib', 'rich', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_output_that_nobody_reads_ends_quietly(store):
    command = f'"{sys.executable}" -m helene.cli records list "{store}" | true'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
