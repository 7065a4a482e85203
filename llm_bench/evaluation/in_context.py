"""In-context learning: solved training examples in front of each prompt, no training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_bench.data.encode import Encoded, encode
from llm_bench.data.splits import sample
from llm_bench.models.loading import LanguageModel
from llm_bench.tasks.task import Task

DEMONSTRATIONS = 32


def encode_in_context(
    model: LanguageModel,
    task: Task,
    train: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    seed: int,
    count: int = DEMONSTRATIONS,
) -> list[Encoded]:
    """Examples with ``count`` demonstrations each, a set of their own for every example, as MeZO draws them.

    Which ones is a function of the seed and the example's place. What does not fit is cut from the left.
    """
    if task.kind != "causal":
        raise ValueError(f"in-context learning needs a causal model; {task.name} is set for masked ones here")
    encoded = []
    for index, row in enumerate(rows):
        shown = [task.make(r) for r in sample(train, count, f"demonstrations/{seed}/{index}")]
        encoded.append(encode(model, task, task.make(row), shown))
    return encoded
