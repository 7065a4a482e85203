"""Checks of what goes wrong without an error: a missing first token, a wrong tokenizer, options that are not seen.

Accuracy hides all of these: two options scored without the model's first token are often still ranked right.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helene.inputs.files import read_text
from llm_bench.data.encode import Encoded
from llm_bench.evaluation.evaluate import score
from llm_bench.evaluation.plain_forward import choose_side
from llm_bench.models.loading import LanguageModel
from llm_bench.tasks.task import Task

KNOWN_TEXT = (
    "The river rises in the mountains, flows past two small towns and reaches the sea near the old harbour. "
    "In winter the road along its bank is often closed because of snow."
)
KNOWN_FILE = "known_text.json"  # beside the weights: {"text": ..., "loss": ...}, made where the model was prepared
LOSS_TOLERANCE = 0.01  # nats a token; float32 on another device differs by 1e-5, bfloat16 weights by 1e-3
LETTERS_BITS = math.log2(27)  # a character, guessed blindly among letters and space
BOS_GAIN = 0.3  # nats a token that a forgotten first token costs at least, where it matters

# Families that were always trained with a first token.
_NEEDS_FIRST = ("opt", "gemma", "mistral")


def preflight(
    model: LanguageModel,
    task: Task,
    encoded: Sequence[Encoded],
    *,
    source: str | os.PathLike[str] | None = None,
    pretrained: bool = True,
) -> dict[str, Any]:
    """Check a model on a task; returns what was seen, for the record.

    Args:
        model: In evaluation mode.
        task: The task.
        encoded: Some of its examples.
        source: The model's folder, where `KNOWN_FILE` may say what the loss of a text must be.
        pretrained: Whether the model must know more than chance about plain English; False for random weights.

    Raises:
        ValueError: If something is wrong, with what to do.
    """
    report = {"first_token": _first_token(model), **_options(model, task, encoded)}
    text, expected = _known(source)
    report |= choose_side(model, of_two_lengths(model, _tokens(model, text)))
    loss, bits = known_loss(model, text)
    report |= {"known_text_loss": loss, "known_text_bits_per_character": bits}
    if expected is not None and not abs(loss - expected) <= LOSS_TOLERANCE:
        raise ValueError(
            f"the loss of the known text is {loss:.4f} nats a token, {KNOWN_FILE} says {expected:.4f}: tokenizer or "
            "weights were read otherwise here than where they were prepared; load the tokenizer from the saved folder"
        )
    if pretrained and expected is None and not bits < LETTERS_BITS:
        raise ValueError(
            f"plain English costs {bits:.2f} bits a character, more than guessing letters ({LETTERS_BITS:.2f}): the "
            "tokenizer does not fit the weights, or these are random"
        )
    blind = _blind_loss(model, text)
    if pretrained and expected is None and not loss < blind:
        raise ValueError(
            f"the known text costs {loss:.2f} nats a token, and a model that does not look at it, {blind:.2f} or more: "
            "the tokenizer does not fit the weights, or these are random"
        )
    if pretrained and model.kind == "causal" and not model.before:
        _check_forgotten_first(model, text, loss)
    return report


def known_loss(model: LanguageModel, text: str = KNOWN_TEXT) -> tuple[float, float]:
    """Mean loss (nats a token) of a text and its bits a character.

    Causal: of each token given those before. Masked: of every seventh token, each masked alone (then the bits are of
    those tokens' share of the characters). A text longer than the model's positions is cut.
    """
    ids = _tokens(model, text)
    scores = score(model, text_examples(model, ids))
    num_tokens = sum(int(count.sum()) for count in scores.counts)
    loss = -float(sum(total.sum() for total in scores.totals)) / num_tokens
    return loss, loss * len(ids) / len(text) / math.log(2)


def _blind_loss(model: LanguageModel, text: str) -> float:
    """What the known loss of a model whose logits do not depend on the text is above, but once in 30,000 times.

    With logits of standard deviation σ it is ln V + σ² / 2 in the mean, and that of n different tokens has a standard
    deviation of σ / √n: ln V + σ² / 2 − 4 σ / √n is least, ln V − 8 / n, where σ = 4 / √n.
    """
    tokens = [token for e in text_examples(model, _tokens(model, text)) for ((_, token),) in e.options]
    effective = len(tokens) ** 2 / sum(count**2 for count in Counter(tokens).values())
    return math.log(model.num_tokens) - 8.0 / effective


def text_examples(model: LanguageModel, ids: Sequence[int]) -> list[Encoded]:
    """The text's tokens as options of their own: of one row, or of one for each token that is masked."""
    ids = ids[: model.max_length - len(model.before) - len(model.after)]
    if model.kind == "causal":
        row = (*model.before, *ids)
        first = max(len(model.before), 1)
        options = tuple(((place - first, row[place]),) for place in range(first, len(row)))
        return [Encoded((row[:-1],), tuple((0, place - 1) for place in range(first, len(row))), options, (0,))]
    start, examples = len(model.before), []
    for place in range(0, len(ids), 7):
        masked = [*model.before, *ids, *model.after]
        masked[start + place] = model.tokenizer.mask_token_id
        examples.append(Encoded((tuple(masked),), ((0, start + place),), (((0, ids[place]),),), (0,)))
    return examples


def of_two_lengths(model: LanguageModel, ids: Sequence[int]) -> list[Encoded]:
    """Rows that are padded, though by no more than to the next length that rows have, and one that is padded more."""
    return [*text_examples(model, ids[:43])[:3], *text_examples(model, ids[:11])[:1]]


def _tokens(model: LanguageModel, text: str) -> list[int]:
    return list(model.tokenizer(text, add_special_tokens=False)["input_ids"])


def _first_token(model: LanguageModel) -> list[int]:
    config, tokenizer = model.module.config.get_text_config(), model.tokenizer
    first = config.bos_token_id if config.bos_token_id is not None else tokenizer.bos_token_id
    if model.kind == "causal" and config.model_type.startswith(_NEEDS_FIRST) and model.before != (first,):
        shown = tokenizer.convert_ids_to_tokens(list(model.before))
        raise ValueError(
            f"{model.name} was trained with the first token {first}, but its tokenizer puts {shown or 'nothing'} in "
            "front; load the tokenizer from the folder that save_pretrained wrote, not from a GGUF file"
        )
    if model.kind == "masked" and not (model.before and model.after):
        raise ValueError(f"{model.name}: the tokenizer adds no special tokens around a text; a masked model needs them")
    return list(model.before)


def _options(model: LanguageModel, task: Task, encoded: Sequence[Encoded]) -> dict[str, Any]:
    first = model.before[0] if model.before else None
    for example in encoded:
        for row in example.rows:
            if first is not None and (row[0] != first or (model.kind == "causal" and row[1:2] == (first,))):
                raise ValueError(
                    f"{task.name}: a row does not begin with the first token {first} exactly once: {row[:4]}"
                )
    shown = encoded[0].options
    tokens = [model.tokenizer.convert_ids_to_tokens([token for _, token in option]) for option in shown[:8]]
    return {
        "option_tokens": [token[:8] for token in tokens],
        "share_cut": float(np.mean([example.cut > 0 for example in encoded])),
        "share_merged": float(np.mean([example.merged > 0 for example in encoded])),
    }


def _check_forgotten_first(model: LanguageModel, text: str, loss: float) -> None:
    first = model.tokenizer.bos_token_id
    if first is None or first >= model.num_tokens:
        return
    helped, _ = known_loss(replace(model, before=(first,)), text)
    # One more token is predicted with it in front, hence a margin.
    if helped < loss - BOS_GAIN:
        raise ValueError(
            f"{model.name}: with its first token {first} in front the known text's loss is {helped:.2f} nats a token, "
            f"without it {loss:.2f}, and the tokenizer leaves it out; set add_bos_token in tokenizer_config.json"
        )


def _known(source: str | os.PathLike[str] | None) -> tuple[str, float | None]:
    path = Path(source) / KNOWN_FILE if source is not None else None
    if path is None or not path.is_file():
        return KNOWN_TEXT, None
    try:
        known = json.loads(read_text(path))
        return str(known["text"]), float(known["loss"])
    except (json.JSONDecodeError, LookupError, TypeError) as err:
        raise ValueError(
            f'{path} is damaged ({err!r}); it reads {{"text": ..., "loss": ...}}, or take it away'
        ) from err


def write_known(model: LanguageModel, folder: Path, text: str = KNOWN_TEXT) -> float:
    """Note the loss of a text beside the weights, so that other machines can check that they read them alike."""
    loss, _ = known_loss(model, text)
    (folder / KNOWN_FILE).write_text(json.dumps({"text": text, "loss": loss}), encoding="utf-8")
    return loss
