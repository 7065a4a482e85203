"""A folder's fingerprint changes with whatever decides a result, and with nothing else."""

import io
import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from llm_families import make
from safetensors.torch import load_file, save_file
from small_runs import opt

from llm_bench.models import fingerprint, loading
from llm_bench.runs.environment import environment, resolved

OLD = time.time() - 60


@pytest.fixture
def folder(tmp_path):
    model = make("opt", dtype=torch.float32, layers=1)
    where = tmp_path / "m"
    model.module.save_pretrained(where)
    model.tokenizer.save_pretrained(where)
    for path in where.iterdir():
        os.utime(path, (OLD, OLD))
    return where


def nan_row(folder):
    weights = load_file(folder / "model.safetensors")
    weights[max(weights, key=lambda name: weights[name].numel())][-1] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def one_byte(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 1] ^= 1
    path.write_bytes(data)


def other_tokenizer(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"model"', '"model" '))


@pytest.mark.parametrize("change", [nan_row, one_byte, other_tokenizer])
def test_changed_weights_and_tokenizers_are_another_model(change, folder, toy_data, tmp_path):
    env = environment(toy_data, models={"opt": folder}, pretrained=False)
    before = resolved(opt(), env)
    assert resolved(opt(), env) == before
    copied = shutil.copytree(folder, tmp_path / "copy")
    assert loading.fingerprint(copied) == before.fingerprint, "the same content elsewhere"
    change(folder)
    assert resolved(opt(), env).fingerprint != before.fingerprint, "in the same process, in the same place"
    with pytest.raises(ValueError, match="made with model"):
        resolved(before, env)


def test_files_are_read_once_until_they_change(folder, monkeypatch):
    read = []
    whole = fingerprint.hashlib.file_digest
    monkeypatch.setattr(fingerprint.hashlib, "file_digest", lambda *a: read.append(a[0].name) or whole(*a))
    first = loading.fingerprint(folder)
    names = len(read)
    assert names >= 2
    assert loading.fingerprint(folder) == first
    assert len(read) == names, "known by their identity"
    one_byte(folder)
    assert loading.fingerprint(folder) != first
    assert len(read) == names + 1, "only the changed file is read"
    assert loading.fingerprint(folder) != first
    assert len(read) == names + 2, "a file that was just written may change again within the clock's tick"


def test_a_damaged_cache_is_not_believed(folder):
    first = loading.fingerprint(folder)
    kept = list((fingerprint.cache_folder() / "digests").iterdir())
    for path in kept:
        path.write_text("abc")
    assert loading.fingerprint(folder) == first


@pytest.mark.parametrize("known", [True, False])
def test_a_models_own_python_files_are_not_run(known, folder, tmp_path, monkeypatch):
    """transformers would ask, and take a `y` from standard input for leave to run them."""
    mark = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Config: ...\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Config"}
    config["model_type"] = config["model_type"] if known else "of_its_own"
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    if known:
        loading.load(folder, "causal")
    else:
        with pytest.raises(ValueError, match=r"needs Python files of its own \(auto_map"):
            loading.load(folder, "causal")
    assert not mark.exists()


def test_without_a_home_folder_nothing_is_kept(folder, monkeypatch):
    monkeypatch.delenv("HELENE_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home")))
    with pytest.raises(OSError, match="there is no home folder to keep the cache in; set HELENE_CACHE"):
        fingerprint.cache_folder()
    assert len(fingerprint.content_digest(folder / "model.safetensors")) == 64
