"""Examples to tokens: which rows a model runs on, at which places its logits are needed, and for which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llm_bench.models.loading import LanguageModel
from llm_bench.tasks.task import MASK, Example, Sentence, Task


@dataclass(frozen=True)
class Encoded:
    """One example in tokens.

    Attributes:
        rows: Token sequences to run, without the option's last token, from which nothing is predicted: options that
            differ in that one alone share a row.
        sites: (row, position): where logits are needed.
        options: For each option its tokens, as (site, token).
        gold: Indices of the right options.
        references: Right answers of a generation task.
        prompt: Tokens before the option, special ones included, for generation and probing.
        cut: Number of tokens that were cut off to fit.
        merged: Number of options at whose start the tokenizer merged the prompt's end, so that the option's tokens are
            not just those after the prompt's.
    """

    rows: tuple[tuple[int, ...], ...]
    sites: tuple[tuple[int, int], ...]
    options: tuple[tuple[tuple[int, int], ...], ...]
    gold: tuple[int, ...]
    references: tuple[str, ...] = ()
    prompt: tuple[int, ...] = ()
    cut: int = 0
    merged: int = 0

    def only_gold(self) -> Encoded:
        """The same with the first right option alone, as the language-model loss trains on."""
        tokens = self.options[self.gold[0]]
        row = self.sites[tokens[0][0]][0]
        sites = tuple((0, self.sites[site][1]) for site, _ in tokens)
        option = tuple((place, token) for place, (_, token) in enumerate(tokens))
        return replace(self, rows=(self.rows[row],), sites=sites, options=(option,), gold=(0,))


def encode(
    model: LanguageModel, task: Task, example: Example, demonstrations: Sequence[Example] = (), limit: int | None = None
) -> Encoded:
    """One example in the model's tokens.

    Args:
        model: Gives tokenizer, special tokens and longest sequence.
        task: Gives the limits of length.
        example: What to encode.
        demonstrations: Solved examples to put in front (causal only), each with its right option.
        limit: Longest sequence, if shorter than the task and the model allow.

    Raises:
        ValueError: If an option tokenizes to nothing or to unknown tokens, a label word is not one token, or what may
            not be cut is longer than the model takes.
    """
    limit = min(task.max_length, model.max_length, limit or task.max_length)
    if task.kind == "masked":
        return _masked(model, task, example, limit)
    return _causal(model, task, example, demonstrations, limit)


def demonstration(example: Example) -> str:
    """A solved example as text."""
    return (example.prompt + example.options[example.gold[0]]).strip()


DEMONSTRATION_SEPARATOR = "\n\n"


def _causal(
    model: LanguageModel, task: Task, example: Example, demonstrations: Sequence[Example], limit: int
) -> Encoded:
    shown = "".join(demonstration(d) + DEMONSTRATION_SEPARATOR for d in demonstrations)
    alone = _tokens(model, example.prompt.strip(" "))
    rows: dict[tuple[int, ...], int] = {}
    sites: dict[tuple[int, int], int] = {}
    options, cut, merged = [], 0, 0
    for option in example.options:
        # Only spaces are stripped: a newline belongs to the prompt, and a space would be counted as its last token.
        whole = _tokens(model, (example.prompt + option).strip(" "))
        count = len(whole) - len(alone)
        if count <= 0:
            raise ValueError(
                f"{task.name}: the option {option!r} adds no token to the prompt (…{example.prompt[-30:]!r}); "
                "the tokenizer merges it into the prompt, so it cannot be scored"
            )
        merged += whole[: len(alone)] != alone
        tokens = _tokens(model, (shown + example.prompt + option).lstrip().strip(" ")) if shown else whole
        room = limit - len(model.before)
        if count >= room + (not model.before):
            raise ValueError(
                f"{task.name}: the option {option[:40]!r} alone has {count} tokens, the model takes {limit}; "
                "use a model with longer positions"
            )
        cut = max(cut, len(tokens) - room)
        kept = (*model.before, *tokens[-room:])
        context = kept[:-1]  # nothing is predicted from the last token
        row = rows.setdefault(context, len(rows))
        places = range(len(kept) - count - 1, len(kept) - 1)
        options.append(tuple((sites.setdefault((row, p), len(sites)), kept[p + 1]) for p in places))
    # A generation that starts with a space the prompt had would miss it: the prompt is stripped as the options are.
    bare = _tokens(model, (shown + example.prompt).lstrip().strip(" "))
    room = limit - len(model.before) - (task.max_new_tokens if task.generates else 0)
    return Encoded(
        tuple(rows),
        tuple(sites),
        tuple(options),
        example.gold,
        example.references,
        (*model.before, *bare[-max(room, 1) :]),
        max(cut, 0),
        merged,
    )


def _masked(model: LanguageModel, task: Task, example: Example, limit: int) -> Encoded:
    tokenizer = model.tokenizer
    pieces = [[tokenizer.mask_token_id] if piece == MASK else _tokens(model, piece) for piece in example.pieces]
    sentences = [i for i, piece in enumerate(example.pieces) if isinstance(piece, Sentence)]
    before = sum(map(len, pieces))
    if task.first_limit is not None:
        pieces[sentences[0]] = pieces[sentences[0]][: task.first_limit]
    # The template must survive, the mask above all: sentences are cut at their ends, the last one first.
    over = sum(map(len, pieces)) + len(model.before) + len(model.after) - limit
    for index in reversed(sentences):
        drop = min(max(over, 0), len(pieces[index]))
        pieces[index] = pieces[index][: len(pieces[index]) - drop]
        over -= drop
    if over > 0:
        raise ValueError(f"{task.name}: the template alone is longer than the {limit} tokens that the model takes")
    row = (*model.before, *(token for piece in pieces for token in piece), *model.after)
    places = [i for i, token in enumerate(row) if token == tokenizer.mask_token_id]
    if len(places) != 1:
        raise ValueError(f"{task.name}: a prompt must hold the mask token once, this one holds it {len(places)} times")
    words = tuple(((0, label_word(model, word)),) for word in example.options)
    if len(set(words)) < len(words):
        raise ValueError(f"{task.name}: two label words of {', '.join(example.options)} are one token to this model")
    cut = before - sum(map(len, pieces))
    return Encoded((row,), ((0, places[0]),), words, example.gold, (), row, cut)


def label_word(model: LanguageModel, word: str) -> int:
    """The one token of a label word, with the space in front that a byte-level vocabulary needs.

    Raises:
        ValueError: If it is several tokens or unknown.
    """
    tokens = _tokens(model, f" {word}")
    if len(tokens) != 1 or tokens[0] == model.tokenizer.unk_token_id:
        shown = model.tokenizer.convert_ids_to_tokens(tokens)
        raise ValueError(f"the label word {word!r} must be one token of the model's vocabulary; it is {shown}")
    return tokens[0]


def _tokens(model: LanguageModel, text: str) -> list[int]:
    ids: list[int] = list(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    if ids and max(ids) >= model.num_tokens:
        token = model.tokenizer.convert_ids_to_tokens(max(ids))
        raise ValueError(
            f"the text has the token {token!r}, number {max(ids)} of the tokenizer, and the model's embedding has "
            f"{model.num_tokens} rows; take the token out of the data, or add a row for it"
        )
    return ids
