"""Yes-no questions about a passage."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, Row, causal_task, upper_first


def _prompt(row: Row) -> str:
    question = upper_first(row["question"])
    return f"{row['passage']} {question}{'' if question.endswith('?') else '?'}\n"


TASK = causal_task(
    "boolq",
    hub=HubSource("aps/super_glue", "boolq", GLUE_SPLITS),
    fields={"passage": "text", "question": "text"},
    labels=Labels("label", ("False", "True")),
    prompt=_prompt,
    words={"True": "Yes", "False": "No"},
)
