"""Textual entailment."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, causal_task

TASK = causal_task(
    "rte",
    hub=HubSource("aps/super_glue", "rte", GLUE_SPLITS),
    fields={"premise": "text", "hypothesis": "text"},
    labels=Labels("label", ("entailment", "not_entailment")),
    prompt=lambda row: f'{row["premise"]}\nDoes this mean that "{row["hypothesis"]}" is true? Yes or No?\n',
    words={"entailment": "Yes", "not_entailment": "No"},
)
