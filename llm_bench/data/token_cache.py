"""Tokens on disk: a task's rows are tokenized once for a tokenizer, not once a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from helene.inputs.files import write_text
from llm_bench.data import encode
from llm_bench.data.encode import Encoded
from llm_bench.models.fingerprint import cache_folder
from llm_bench.models.loading import LanguageModel
from llm_bench.tasks.task import Example, Task


def encoded(model: LanguageModel, task: Task, examples: Sequence[Example]) -> list[Encoded]:
    """Each example in tokens, from the disk where they were made before.

    What a file's name stands for: the tokenizer with its special tokens, the longest sequence, the task's limits, the
    examples (and with them the rows and the template), and the code that encodes. A damaged file is made
    again; where none can be written, nothing is kept.
    """
    name = f"{key(model, task, examples)}.json"
    with contextlib.suppress(OSError, ValueError):
        digest, _, text = (cache_folder() / "tokens" / name).read_text(encoding="utf-8").partition("\n")
        if digest == _digest(text):
            return [_read(entry) for entry in json.loads(text)]
    made = [encode.encode(model, task, example) for example in examples]
    with contextlib.suppress(OSError):
        text = json.dumps([vars(example) for example in made], separators=(",", ":"))
        write_text(cache_folder() / "tokens" / name, f"{_digest(text)}\n{text}")
    return made


def key(model: LanguageModel, task: Task, examples: Sequence[Example]) -> str:
    """Twenty-four digits that stand for all that decides the tokens."""
    limits = (task.name, task.kind, task.max_length, task.first_limit, task.generates, task.max_new_tokens)
    digest = hashlib.sha256(_code().encode())
    digest.update(tokenizer_fingerprint(model).encode())
    digest.update(repr((model.max_length, model.num_tokens, model.before, model.after, limits)).encode())
    for example in examples:
        digest.update(repr((example, [type(piece).__name__ for piece in example.pieces])).encode())
    return digest.hexdigest()[:24]


def tokenizer_fingerprint(model: LanguageModel) -> str:
    """Of the vocabulary, the rules and the special tokens; made once for a tokenizer."""
    known = getattr(model.tokenizer, "_helene_fingerprint", None)
    if known is None:
        digest = hashlib.sha256(model.tokenizer.backend_tokenizer.to_str().encode())
        digest.update(repr(sorted(map(str, model.tokenizer.special_tokens_map.items()))).encode())
        known = model.tokenizer._helene_fingerprint = digest.hexdigest()
    return str(known)


@lru_cache(maxsize=1)
def _code() -> str:
    return Path(encode.__file__).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(entry: dict[str, Any]) -> Encoded:
    return Encoded(**{name: _tuples(value) for name, value in entry.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
