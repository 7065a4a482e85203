"""Textual entailment, two classes."""

from __future__ import annotations

from llm_bench.tasks.base import (
    GLUE_SPLITS,
    MASK,
    HubSource,
    Labels,
    Sentence,
    lower_first,
    masked_task,
    without_final_punctuation,
)

TASK = masked_task(
    "rte",
    hub=HubSource("nyu-mll/glue", "rte", GLUE_SPLITS),
    fields=("premise", "hypothesis"),
    labels=Labels("label", ("entailment", "not_entailment")),
    template=lambda row: (
        Sentence(without_final_punctuation(row["premise"])),
        "?",
        MASK,
        ",",
        Sentence(f" {lower_first(row['hypothesis'].strip())}"),
    ),
    words={"not_entailment": "No", "entailment": "Yes"},
    max_length=256,
    first_limit=240,
)
