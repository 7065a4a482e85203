"""Which entity of an article fills the gap in a sentence about it."""

from __future__ import annotations

from llm_bench.tasks.task import GLUE_SPLITS, HubSource, Row, causal_task


def _entities(row: Row) -> list[str]:
    return list(dict.fromkeys(row["entities"]))


def _gold(row: Row) -> list[int]:
    entities, answers = _entities(row), list(dict.fromkeys(row["answers"]))
    for answer in answers:
        if answer not in entities:
            raise ValueError(f"{answer!r} is none of the entities {', '.join(entities)}")
    return [entities.index(answer) for answer in answers]


TASK = causal_task(
    "record",
    hub=HubSource("aps/super_glue", "record", GLUE_SPLITS),
    fields={"passage": "text", "query": "text", "entities": "texts", "answers": "texts"},
    prompt=lambda row: f"{row['passage']}\n-".replace("@highlight\n", "- "),
    options=lambda row: [f" {row['query'].replace('@placeholder', entity)}" for entity in _entities(row)],
    gold=_gold,
    loss="language_model",
)
