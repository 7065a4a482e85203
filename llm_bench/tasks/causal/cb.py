"""Does the speaker hold the clause to be true."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, causal_task

TASK = causal_task(
    "cb",
    hub=HubSource("aps/super_glue", "cb", GLUE_SPLITS),
    fields={"premise": "text", "hypothesis": "text"},
    labels=Labels("label", ("entailment", "contradiction", "neutral")),
    prompt=lambda row: f'Suppose {row["premise"]} Can we infer that "{row["hypothesis"]}"? Yes, No, or Maybe?\n',
    words={"entailment": "Yes", "contradiction": "No", "neutral": "Maybe"},
    dev_size=100,
)
