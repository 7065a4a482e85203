"""What a task is: prompts made from rows, in plain data. One short file a task in ``causal/`` and ``masked/``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Row = Mapping[str, Any]
FieldKind = Literal["text", "texts", "answers"]  # texts: a list of them; answers: {"text": [...]}, as SQuAD has them
Kind = Literal["causal", "masked"]

MASK = "<mask>"  # stands for the tokenizer's own mask token in a template
DEV_SIZE, TEST_SIZE = 500, 1000
FEW_SHOT_SEEDS = (13, 21, 42, 87, 100)


class Sentence(str):
    """A piece of a template that comes from the row: the only kind that is cut where an example is too long."""


@dataclass(frozen=True)
class Example:
    """One prompt with its options.

    Attributes:
        prompt: Causal: the text before the option. Masked: empty, see ``pieces``.
        options: Causal: texts that continue the prompt. Masked: label words for the mask.
        gold: Indices of the right options; training uses the first.
        references: Right answers of a generation task, for token F1.
        pieces: Masked: the texts between the special tokens, one of them `MASK`; each is encoded apart.
    """

    prompt: str
    options: tuple[str, ...]
    gold: tuple[int, ...]
    references: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Labels:
    """The label column of a task.

    Attributes:
        column: Its name.
        names: The classes' names in the order of the Hugging Face data set: what the integers mean where the data do
            not say so themselves.
        unlabelled: Whether rows of label -1 occur and are dropped (SNLI, where annotators disagreed).
    """

    column: str
    names: tuple[str, ...]
    unlabelled: bool = False


@dataclass(frozen=True)
class HubSource:
    """Where the rows are on the Hugging Face Hub, and which of its splits plays which part here."""

    path: str
    config: str | None
    splits: Mapping[str, str]


@dataclass(frozen=True)
class Task:
    """A model kind and a task of it; made by `causal_task` or `masked_task`.

    Attributes:
        name: As in the commands, for instance ``sst2``.
        kind: Which models it is for.
        fields: Columns that every row must have, the label's apart, and what stands in them.
        labels: The label column, or None.
        classes: The labels' names in the order of the options, or () where options differ from row to row.
        make: Row (its label already one of the names) to example; ValueError names the field that has none.
        loss: ``classification``: cross-entropy over the options' mean log-likelihoods. ``language_model``: mean over
            the tokens of the right option.
        metric: ``accuracy`` or ``token_f1``.
        hub: Where to fetch it.
        dev_size: Most rows of the dev set.
        max_length: Longest sequence in tokens; the model may allow less.
        first_limit: Most tokens of the first sentence of a template, or None.
        max_new_tokens: Of a generation.
    """

    name: str
    kind: Kind
    fields: Mapping[str, FieldKind]
    labels: Labels | None
    classes: tuple[str, ...]
    make: Callable[[Row], Example]
    loss: Literal["classification", "language_model"]
    metric: Literal["accuracy", "token_f1"]
    hub: HubSource
    dev_size: int = DEV_SIZE
    max_length: int = 2048
    first_limit: int | None = None
    max_new_tokens: int = 50

    @property
    def generates(self) -> bool:
        """Whether the metric needs generated text."""
        return self.metric == "token_f1"


def causal_task(
    name: str,
    *,
    hub: HubSource,
    fields: Mapping[str, FieldKind],
    prompt: Callable[[Row], str],
    labels: Labels | None = None,
    words: Mapping[str, str] | None = None,
    options: Callable[[Row], Sequence[str]] | None = None,
    gold: Callable[[Row], Sequence[int]] | None = None,
    references: Callable[[Row], Sequence[str]] | None = None,
    loss: Literal["classification", "language_model"] = "classification",
    metric: Literal["accuracy", "token_f1"] = "accuracy",
    dev_size: int = DEV_SIZE,
) -> Task:
    """A task of a causal language model.

    Args:
        name: Of the task.
        hub: Where to fetch it.
        fields: Columns that ``prompt`` and the others read, and what stands in them.
        prompt: Row to the text before the option.
        labels: The label column.
        words: Option of each class, by the class's name; the order is that of the options. Or else
        options: Row to options, with
        gold: row to the right ones.
        references: Row to the right answers, for token F1.
        loss: See `Task`.
        metric: See `Task`.
        dev_size: See `Task`.
    """
    if (words is None) == (options is None):
        raise ValueError(f"task {name!r} needs either words (one option a class) or options (a function of the row)")
    classes = tuple(words or ())

    def make(row: Row) -> Example:
        if words is not None:
            assert labels is not None
            return Example(prompt(row), tuple(words.values()), (classes.index(row[labels.column]),))
        assert options is not None
        choices, right = tuple(options(row)), tuple(gold(row)) if gold else (0,)
        if not choices or not right:
            raise ValueError("no right option follows from it")
        return Example(prompt(row), choices, right, tuple(references(row)) if references else ())

    return Task(name, "causal", fields, labels, classes, _named(name, fields, make), loss, metric, hub, dev_size)


def masked_task(
    name: str,
    *,
    hub: HubSource,
    fields: Mapping[str, FieldKind],
    template: Callable[[Row], Sequence[str]],
    labels: Labels,
    words: Mapping[str, str],
    max_length: int,
    first_limit: int | None = None,
) -> Task:
    """A task of a masked language model: a template with one `MASK`, a label word for each class.

    Args:
        name: Of the task.
        hub: Where to fetch it.
        fields: Columns that ``template`` reads, and what stands in them.
        template: Row to the pieces of text between the special tokens, those from the row as `Sentence`.
        labels: The label column.
        words: Label word of each class, by the class's name, without the leading space.
        max_length: Longest sequence in tokens.
        first_limit: Most tokens of the first sentence.
    """
    classes = tuple(words)

    def make(row: Row) -> Example:
        gold = (classes.index(row[labels.column]),)
        return Example("", tuple(words.values()), gold, (), tuple(template(row)))

    return Task(
        name,
        "masked",
        fields,
        labels,
        classes,
        _named(name, fields, make),
        "classification",
        "accuracy",
        hub,
        max_length=max_length,
        first_limit=first_limit,
    )


def entailment_template(row: Row) -> tuple[str, ...]:
    """LM-BFF's template of premise and hypothesis: ``premise ? <mask> , hypothesis``."""
    premise, hypothesis = without_final_punctuation(row["premise"]), lower_first(row["hypothesis"].strip())
    return Sentence(premise), "?", MASK, ",", Sentence(f" {hypothesis}")


class _Noting(dict[str, Any]):
    """A row that knows which field was read last."""

    last = ""

    def __getitem__(self, name: str) -> Any:
        self.last = name
        return super().__getitem__(name)


def _named(task: str, fields: Mapping[str, FieldKind], make: Callable[[Row], Example]) -> Callable[[Row], Example]:
    """The same function; its errors name the field that they come from, and fields of another type are refused."""

    def named(row: Row) -> Example:
        for name, kind in fields.items():
            if name in row and not _fits(row[name], kind):
                raise ValueError(f"{task} reads {_KINDS[kind]} in {name!r}, the row has {_shown(row[name])}")
        noting = _Noting(row)
        try:
            return make(noting)
        except (LookupError, TypeError, AttributeError, ValueError) as err:
            have, last = f"the row has {', '.join(row) or 'no field'}", noting.last
            if last not in row:
                raise ValueError(f"{task} needs the field {last!r}; {have}") from None
            reason = f"({type(err).__name__}: {err})"
            raise ValueError(f"{task} makes no example of {last!r} = {_shown(row[last])} {reason}; {have}") from err

    return named


_KINDS: Mapping[FieldKind, str] = {
    "text": "text",
    "texts": "a list of texts",
    "answers": "an object with a list of texts under 'text'",
}


def _fits(value: Any, kind: FieldKind) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "answers":
        return isinstance(value, Mapping) and _fits(value.get("text"), "texts")
    return isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def without_final_punctuation(text: str) -> str:
    """The sentence stripped, its last character dropped where that is punctuation.

    Departure from LM-BFF, whose code drops the last character whatever it is.
    """
    text = text.strip()
    return text[:-1] if text and text[-1] in PUNCTUATION else text


def lower_first(text: str) -> str:
    """The text with its first letter in lower case."""
    return text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

GLUE_SPLITS: Mapping[str, str] = {"train": "train", "test": "validation"}
