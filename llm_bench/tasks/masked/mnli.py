"""Entailment over many genres; tested on the matched ones."""

from __future__ import annotations

from llm_bench.tasks.base import MASK, HubSource, Labels, Sentence, lower_first, masked_task, without_final_punctuation

TASK = masked_task(
    "mnli",
    hub=HubSource("nyu-mll/glue", "mnli", {"train": "train", "test": "validation_matched"}),
    fields=("premise", "hypothesis"),
    labels=Labels("label", ("entailment", "neutral", "contradiction")),
    template=lambda row: (
        Sentence(without_final_punctuation(row["premise"])),
        "?",
        MASK,
        ",",
        Sentence(f" {lower_first(row['hypothesis'].strip())}"),
    ),
    words={"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"},
    max_length=256,
    first_limit=240,
)
