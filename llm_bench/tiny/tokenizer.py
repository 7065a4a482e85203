"""A byte-level tokenizer of the generated language, with OPT's or RoBERTa's special tokens in their places."""

from __future__ import annotations

import itertools
from typing import Any

from llm_bench.tasks import get_task, task_names
from llm_bench.tasks.task import Kind
from llm_bench.tiny import grammar

VOCABULARY = 768
_DOCUMENTS = 1500
_SPECIAL = {"causal": ("<s>", "<pad>", "</s>", "<unk>"), "masked": ("<s>", "<pad>", "</s>", "<unk>", "<mask>")}


def make_tokenizer(kind: Kind) -> Any:
    """Train the tokenizer; ids 0 to 3 are ``<s>``, ``<pad>``, ``</s>``, ``<unk>``, as in both model families.

    Like OPT's, the causal one puts ``</s>`` in front of a text; like RoBERTa's, the masked one puts ``<s>`` in front
    and ``</s>`` behind. Every label word is one token.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL[kind]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(itertools.chain(_text(), _label_words()), trainer)
    single, special = ("</s> $A", [("</s>", 2)]) if kind == "causal" else ("<s> $A </s>", [("<s>", 0), ("</s>", 2)])
    core.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    names: dict[str, Any] = {"bos_token": "</s>" if kind == "causal" else "<s>", "eos_token": "</s>"}
    names |= {"pad_token": "<pad>", "unk_token": "<unk>"}
    if kind == "masked":
        names["mask_token"] = AddedToken("<mask>", lstrip=True, special=True)
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def _text() -> list[str]:
    return list(itertools.islice(grammar.documents(0), _DOCUMENTS))


def _label_words() -> list[str]:
    """Each label word often enough to become one token, with the space that precedes it in a template."""
    words: set[str] = set()
    for name in task_names("masked"):
        task = get_task(name, "masked")
        assert task.labels is not None
        row = dict.fromkeys(task.fields, "x") | {task.labels.column: task.classes[0]}
        words.update(task.make(row).options)
    return [f" {word}" for word in sorted(words)] * 400
