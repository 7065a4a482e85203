"""Sentiment of film reviews, two classes."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, MASK, HubSource, Labels, Sentence, masked_task

TASK = masked_task(
    "sst2",
    hub=HubSource("nyu-mll/glue", "sst2", GLUE_SPLITS),
    fields={"sentence": "text"},
    labels=Labels("label", ("negative", "positive")),
    template=lambda row: (Sentence(row["sentence"].strip()), " It was", MASK, "."),
    words={"negative": "terrible", "positive": "great"},
    max_length=128,
)
