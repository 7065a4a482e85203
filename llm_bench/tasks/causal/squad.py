"""Answers that are spans of a passage, generated."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Row, causal_task


def _prompt(row: Row) -> str:
    return f"Title: {row['title']}\nContext: {row['context']}\nQuestion: {row['question'].strip()}\nAnswer:"


TASK = causal_task(
    "squad",
    hub=HubSource("rajpurkar/squad", None, GLUE_SPLITS),
    fields={"title": "text", "context": "text", "question": "text", "answers": "answers"},
    prompt=_prompt,
    options=lambda row: [f" {row['answers']['text'][0]}\n"],
    references=lambda row: row["answers"]["text"],
    loss="language_model",
    metric="token_f1",
)
