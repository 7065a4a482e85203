"""Does the caption follow from, contradict or leave open the other one."""

from __future__ import annotations

from llm_bench.tasks.task import HubSource, Labels, entailment_template, masked_task

TASK = masked_task(
    "snli",
    hub=HubSource("stanfordnlp/snli", None, {"train": "train", "test": "validation"}),
    fields={"premise": "text", "hypothesis": "text"},
    labels=Labels("label", ("entailment", "neutral", "contradiction"), unlabelled=True),
    template=entailment_template,
    words={"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"},
    max_length=256,
)
