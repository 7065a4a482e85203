"""Does a word mean the same in two sentences."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, Row, causal_task


def _prompt(row: Row) -> str:
    question = f'Does the word "{row["word"]}" have the same meaning in these two sentences? Yes, No?'
    return f"{question}\n{row['sentence1']}\n{row['sentence2']}\n"


TASK = causal_task(
    "wic",
    hub=HubSource("aps/super_glue", "wic", GLUE_SPLITS),
    fields={"word": "text", "sentence1": "text", "sentence2": "text"},
    labels=Labels("label", ("False", "True")),
    prompt=_prompt,
    words={"False": "No", "True": "Yes"},
)
