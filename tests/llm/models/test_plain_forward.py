"""Every architecture's scores against a plain forward by transformers' own attention, one row at a time."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from architectures import NAMES, NotMade, make, row

from llm_bench.evaluation.evaluate import score
from llm_bench.evaluation.generation import generate
from llm_bench.evaluation.plain_forward import NEGLIGIBLE, choose_side, difference, transformers_attention
from llm_bench.evaluation.preflight import of_two_lengths, text_examples
from llm_bench.models.positions import accepts

SINKS = "gives its attention s_aux"
EXPECTED = {  # the side that is exact, or why it is refused
    ("causal", "bloom"): "left",  # attention of its own
    ("causal", "mamba"): "left",
    ("causal", "mistral"): "left",
    ("causal", "rwkv"): "right",  # a state that padding in front would change
    ("causal", "trocr"): "right",  # counts positions by itself
    ("causal", "gpt_oss"): SINKS,
    ("causal", "granite_swa"): SINKS,
    ("masked", "electra"): "right",
    ("masked", "fnet"): "differ from a plain forward",  # mixes padding with tokens, on either side
    ("masked", "xmod"): "does not run on tokens alone",
}
DEEP = [(kind, name) for kind, names in NAMES.items() for name in names] if "HELENE_DEEP" in os.environ else []


def plain(model, example):
    """By a forward of this test's own."""
    with transformers_attention(model.module), torch.no_grad():
        more = {"use_cache": False} if accepts(model.module, "use_cache") else {}
        logits = model.module(input_ids=torch.tensor(example.rows), **more).logits[0]
    likelihoods = logits.double().log_softmax(dim=-1)
    return np.array([likelihoods[example.sites[site][1], token].item() for ((site, token),) in example.options])


def outcome(kind, name):
    """The side, once other rows agree there too; or why the architecture is refused."""
    model = make(name, kind)
    try:
        seen = choose_side(model, of_two_lengths(model, row(43)))
    except ValueError as err:
        return str(err)
    assert seen["forward_difference"] <= seen["forward_limit"] < 1.1 * NEGLIGIBLE
    examples = [example for length in (30, 9, 1, 16) for example in text_examples(model, row(length))[:2]]
    for rows in (1, 100):
        scores = score(model, examples, max_rows=rows).totals
        assert difference(scores, [plain(model, example) for example in examples]) < NEGLIGIBLE, name
    return seen["padding_side"]


@pytest.mark.parametrize(("kind", "name"), EXPECTED)
def test_an_architecture_agrees_or_is_refused_with_the_reason(kind, name):
    assert EXPECTED[kind, name] in outcome(kind, name)


@pytest.mark.skipif(not DEEP, reason="two minutes: set HELENE_DEEP")
def test_all_architectures_agree_or_are_refused():
    counts = {"left": 0, "right": 0, "refused": 0}
    for kind, name in DEEP:
        try:
            result = outcome(kind, name)
        except NotMade:
            continue
        counts[result if result in counts else "refused"] += 1
        assert result in counts or "gives its attention" in result or "does not run on" in result or "nats" in result
    assert counts["left"] > 100, counts
    assert counts["right"] > 30, counts


def test_answers_are_those_of_prompts_alone_where_only_padding_on_the_right_is_exact():
    model = make("trocr", "causal")
    choose_side(model, of_two_lengths(model, row(43)))
    prompts = [row(length) for length in (5, 12, 5, 9)]
    model.tokenizer.batch_decode = lambda rows, **_: [" ".join(map(str, tokens.tolist())) for tokens in rows]
    alone = [generate(model, [prompt], 6)[0] for prompt in prompts]
    assert generate(model, prompts, 6) == alone
    model.side = "left"
    assert generate(model, prompts, 6) != alone
