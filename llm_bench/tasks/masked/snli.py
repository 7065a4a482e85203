"""Does the caption follow from, contradict or leave open the other one."""

from __future__ import annotations

from llm_bench.tasks.base import MASK, HubSource, Labels, Sentence, lower_first, masked_task, without_final_punctuation

TASK = masked_task(
    "snli",
    hub=HubSource("stanfordnlp/snli", None, {"train": "train", "test": "validation"}),
    fields=("premise", "hypothesis"),
    labels=Labels("label", ("entailment", "neutral", "contradiction"), unlabelled=True),
    template=lambda row: (
        Sentence(without_final_punctuation(row["premise"])),
        "?",
        MASK,
        ",",
        Sentence(f" {lower_first(row['hypothesis'].strip())}"),
    ),
    words={"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"},
    max_length=256,
)
