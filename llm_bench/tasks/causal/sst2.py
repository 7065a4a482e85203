"""Sentiment of film reviews."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, causal_task

TASK = causal_task(
    "sst2",
    hub=HubSource("nyu-mll/glue", "sst2", GLUE_SPLITS),
    fields={"sentence": "text"},
    labels=Labels("label", ("negative", "positive")),
    prompt=lambda row: f"{row['sentence'].strip()} It was",
    words={"negative": " terrible", "positive": " great"},
)
