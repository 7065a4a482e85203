"""Sentiment of film reviews, five classes."""

from __future__ import annotations

from llm_bench.tasks.task import MASK, HubSource, Labels, Sentence, masked_task

_NAMES = ("very negative", "negative", "neutral", "positive", "very positive")

TASK = masked_task(
    "sst5",
    hub=HubSource("SetFit/sst5", None, {"train": "train", "validation": "validation", "test": "test"}),
    fields={"text": "text"},
    labels=Labels("label", _NAMES),
    template=lambda row: (Sentence(row["text"].strip()), " It was", MASK, "."),
    words=dict(zip(_NAMES, ("terrible", "bad", "okay", "good", "great"), strict=True)),
    max_length=128,
    first_limit=110,
)
