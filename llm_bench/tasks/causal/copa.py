"""Which of two sentences is the cause or the effect."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Labels, Row, causal_task, lower_first

_NAMES = ("choice1", "choice2")


def _prompt(row: Row) -> str:
    premise = row["premise"].rstrip()
    premise = premise[:-1] if premise.endswith(".") else premise
    return f"{premise} {'so' if row['question'] == 'effect' else 'because'}"


def _choice(text: str) -> str:
    return f" {text if text.split(' ')[0] == 'I' else lower_first(text)}"


TASK = causal_task(
    "copa",
    hub=HubSource("aps/super_glue", "copa", GLUE_SPLITS),
    fields={"premise": "text", "choice1": "text", "choice2": "text", "question": "text"},
    labels=Labels("label", _NAMES),
    prompt=_prompt,
    options=lambda row: [_choice(row[name]) for name in _NAMES],
    gold=lambda row: [_NAMES.index(row["label"])],
    loss="language_model",
    dev_size=100,
)
