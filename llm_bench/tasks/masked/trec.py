"""What a question asks for, six classes."""

from __future__ import annotations

from llm_bench.tasks.task import MASK, HubSource, Labels, Sentence, masked_task

# The words go by name: LM-BFF numbers the classes otherwise than the Hugging Face data set does.
TASK = masked_task(
    "trec",
    hub=HubSource("CogComp/trec", None, {"train": "train", "test": "test"}),
    fields={"text": "text"},
    labels=Labels("coarse_label", ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")),
    template=lambda row: (MASK, ":", Sentence(f" {row['text'].strip()}")),
    words={
        "ABBR": "Expression",
        "ENTY": "Entity",
        "DESC": "Description",
        "HUM": "Human",
        "LOC": "Location",
        "NUM": "Number",
    },
    max_length=128,
    first_limit=110,
)
