"""Tokens on disk: the same as fresh ones, found again, and made anew when anything that decides them changes."""

import dataclasses
import os
from pathlib import Path

import pytest
from llm_families import make

from llm_bench.data import encode, token_cache
from llm_bench.data.folder import read_split
from llm_bench.runs.environment import environment
from llm_bench.runs.run import run
from llm_bench.runs.session import close_sessions
from llm_bench.tasks import get_task, task_names


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """How often the tokenizing code is entered, with an empty cache."""
    monkeypatch.setenv("HELENE_CACHE", str(tmp_path / "cache"))
    calls, real = [], encode.encode
    monkeypatch.setattr(encode, "encode", lambda *args: calls.append(1) or real(*args))
    return calls


def rows_of(folder, task, count=6):
    return [task.make(row) for row in read_split(Path(folder), task, "train")[:count]]


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_cached_tokens_are_equal_to_fresh_ones_for_every_task(kind, toy_data, counted):
    model = make("opt" if kind == "causal" else "roberta")
    for name in task_names(kind):
        task = get_task(name, kind)
        examples = rows_of(toy_data, task)
        counted.clear()
        fresh = token_cache.encoded(model, task, examples)
        assert len(counted) == len(examples)
        assert token_cache.encoded(model, task, examples) == fresh, name
        assert len(counted) == len(examples), f"{name} was tokenized twice"
        assert fresh == [encode.encode(model, task, example) for example in examples]


def test_whatever_decides_the_tokens_makes_another_file(toy_data, counted):
    task, model = get_task("rte", "masked"), make("roberta")
    examples = rows_of(toy_data, task)
    first = examples[0]
    keys = {
        "as it is": token_cache.key(model, task, examples),
        "rows": token_cache.key(model, task, examples[1:]),
        "order": token_cache.key(model, task, examples[::-1]),
        "right option": token_cache.key(model, task, [dataclasses.replace(first, gold=(1 - first.gold[0],))]),
        "one row": token_cache.key(model, task, [first]),
        "what may be cut": token_cache.key(
            model, task, [dataclasses.replace(first, pieces=tuple(str(p) for p in first.pieces))]
        ),
        "limit": token_cache.key(model, dataclasses.replace(task, max_length=100), examples),
        "positions": token_cache.key(dataclasses.replace(model, max_length=77), task, examples),
        "special tokens": token_cache.key(dataclasses.replace(model, before=()), task, examples),
        "tokenizer": token_cache.key(make("bert"), task, examples),
    }
    assert len(set(keys.values())) == len(keys)
    assert token_cache.key(make("roberta"), task, examples) == keys["as it is"], "another object, the same tokenizer"


def test_a_damaged_file_is_made_again_and_a_folder_that_cannot_be_written_harms_nothing(toy_data, counted, tmp_path):
    task, model = get_task("sst2", "causal"), make("opt")
    examples = rows_of(toy_data, task)
    fresh = token_cache.encoded(model, task, examples)
    (file,) = (tmp_path / "cache" / "tokens").iterdir()
    whole = file.read_text()
    for damaged in ("", "[", "[]", "[{}]", '{"a": 1}', whole[: len(whole) // 2], whole.replace("1", "2")):
        file.write_text(damaged)
        assert token_cache.encoded(model, task, examples) == fresh, damaged[:20]
        assert file.read_text() == whole, "mended"
    os.environ["HELENE_CACHE"] = str(file)  # a file where a folder is needed
    assert token_cache.encoded(model, task, examples) == fresh


def test_a_second_run_of_a_task_tokenizes_nothing(toy_data, counted, tmp_path):
    model = make("opt")
    model.module.save_pretrained(tmp_path / "m")
    model.tokenizer.save_pretrained(tmp_path / "m")
    env = environment(toy_data, models={"m": str(tmp_path / "m")}, pretrained=False)
    config = {"model": "m", "kind": "causal", "task": "sst2", "method": "zero-shot", "num_train": 8, "num_dev": 8}
    close_sessions()
    first = run({**config, "num_test": 10}, env)
    made = len(counted)
    assert made == 8 + 8 + 10
    close_sessions()  # as another process would begin
    second = run({**config, "num_test": 10}, env)
    assert len(counted) == made
    assert second["test"] == first["test"]
    close_sessions()
