"""Textual entailment, two classes."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, entailment_template, masked_task

TASK = masked_task(
    "rte",
    hub=HubSource("aps/super_glue", "rte", GLUE_SPLITS),
    fields={"premise": "text", "hypothesis": "text"},
    labels=Labels("label", ("entailment", "not_entailment")),
    template=entailment_template,
    words={"not_entailment": "No", "entailment": "Yes"},
    max_length=256,
    first_limit=240,
)
