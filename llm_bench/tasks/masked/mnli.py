"""Entailment over many genres; tested on the matched ones."""

from __future__ import annotations

from llm_bench.tasks.task import HubSource, Labels, entailment_template, masked_task

TASK = masked_task(
    "mnli",
    hub=HubSource("nyu-mll/glue", "mnli", {"train": "train", "test": "validation_matched"}),
    fields={"premise": "text", "hypothesis": "text"},
    labels=Labels("label", ("entailment", "neutral", "contradiction")),
    template=entailment_template,
    words={"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"},
    max_length=256,
    first_limit=240,
)
