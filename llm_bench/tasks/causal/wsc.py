"""Which noun a pronoun stands for."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, Row, causal_task


def _prompt(row: Row) -> str:
    question = f'does the pronoun "{row["span2_text"].lower()}" refer to {row["span1_text"]}? Yes or No?'
    return f"{row['text']}\nIn the previous sentence, {question}\n"


TASK = causal_task(
    "wsc",
    hub=HubSource("aps/super_glue", "wsc.fixed", GLUE_SPLITS),
    fields={"text": "text", "span1_text": "text", "span2_text": "text"},
    labels=Labels("label", ("False", "True")),
    prompt=_prompt,
    words={"False": "No", "True": "Yes"},
    dev_size=100,
)
