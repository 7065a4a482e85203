"""Language models around their forwards: collation and evaluation, on tiny models with random weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .common import subject, values

NUM_EXAMPLES, ROWS = 128, 16


class Examples:
    """128 examples of the generated SST-2 on a model shaped as OPT (causal) or RoBERTa (masked), one block of 64."""

    params = (["causal", "masked"],)
    param_names = ("kind",)
    warmup_time = 0.2
    rounds = 1
    repeat = (2, 5, 2.0)

    def setup_cache(self) -> dict:
        return values(tiny, ((kind,) for kind in self.params[0]))

    def setup(self, cache: dict, kind: str) -> None:
        import torch

        torch.set_num_threads(1)
        if isinstance(cache[(kind,)], Exception):
            raise cache[(kind,)]
        from llm_bench.data.batches import collate
        from llm_bench.evaluation.evaluate import evaluate
        from llm_bench.tasks import get_task

        model, examples = cache[(kind,)]
        task = get_task("sst2", kind)
        self.collate = lambda rows: collate(rows, model.pad_id, "left" if kind == "causal" else "right", labels=True)
        self.evaluate = lambda: evaluate(model, task, examples)
        self.batches = [examples[i : i + ROWS] for i in range(0, NUM_EXAMPLES, ROWS)]

    def time_collate_80_batches_of_16(self, cache: dict, kind: str) -> None:
        for rows in self.batches * 10:
            self.collate(rows)

    def time_evaluate_128_examples(self, cache: dict, kind: str) -> None:
        self.evaluate()


def tiny(kind: str):
    """A model that was never trained, and encoded examples of a task."""
    with subject():
        import llm_bench.data.batches
        import llm_bench.evaluation.evaluate  # noqa: F401
        from llm_bench.data.encode import encode
        from llm_bench.data.folder import read_split
        from llm_bench.tasks import get_task
        from llm_bench.tiny.grammar import write_data
        from llm_bench.tiny.pretrain import Recipe, pretrain
    model, task = pretrain(Recipe(kind, steps=0)), get_task("sst2", kind)
    with tempfile.TemporaryDirectory() as folder:
        rows = read_split(write_data(Path(folder), sizes={"validation": NUM_EXAMPLES}), task, "validation")
    return model, [encode(model, task, task.make(row)) for row in rows]
