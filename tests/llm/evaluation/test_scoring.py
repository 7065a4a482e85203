"""Scores and losses against one plain forward an option, and that nothing about batches shows in them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_families import CAUSAL, MASKED, make
from torch.nn import functional as F

from helene.engine.batches import twice
from llm_bench.data.batches import AS_NEEDED, INDICES, collate
from llm_bench.data.encode import Encoded, encode
from llm_bench.data.folder import read_split
from llm_bench.data.row_lengths import RunSizes, option_sizes
from llm_bench.evaluation.evaluate import PADDING, ScoredRow, batches, evaluate, forget, score
from llm_bench.evaluation.scoring import (
    EXAMPLE_LOSSES,
    LOSSES,
    classification_loss,
    language_model_loss,
    option_scores,
)
from llm_bench.tasks import get_task

# float64 models; norms and softmaxes inside transformers are float32 in some families, so two batches may differ there
# by a few roundings of 2^-24 on log-likelihoods below 10.
TOLERANCE = {"opt": 1e-12, "gpt2": 1e-12, "roberta": 1e-12, "bert": 1e-12, "distilbert": 1e-12}
FAMILIES = CAUSAL + MASKED


def examples(model, name, folder, count=12):
    task = get_task(name, model.kind)
    return task, [encode(model, task, task.make(row)) for row in read_split(folder, task, "test")[:count]]


def tasks_of(model):
    return ("sst2", "copa", "record", "squad") if model.kind == "causal" else ("sst2", "snli", "trec")


def plain_score(model, encoded, option):
    """Mean log-softmax of an option's tokens from one unpadded forward."""
    total = 0.0
    for site, token in encoded.options[option]:
        row, place = encoded.sites[site]
        with torch.no_grad():
            logits = model.module(input_ids=torch.tensor([encoded.rows[row]])).logits
        total += F.log_softmax(logits[0, place].double(), dim=-1)[token].item()
    return total / len(encoded.options[option])


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_one_plain_forward_an_option(family, toy_data):
    model = make(family)
    for name in tasks_of(model):
        _, encoded = examples(model, name, toy_data, 4)
        found = score(model, encoded).means
        expected = [[plain_score(model, e, k) for k in range(len(e.options))] for e in encoded]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE.get(family, 1e-5))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_do_not_depend_on_batch_size_padding_side_or_order(family, toy_data):
    model = make(family)
    atol = TOLERANCE.get(family, 1e-5)
    sides = ["left", "right"] if family != "distilbert" else ["right"]  # it counts positions by itself, from the left
    rng = np.random.default_rng(0)
    for name in tasks_of(model):
        _, encoded = examples(model, name, toy_data)
        reference = score(model, encoded, max_rows=1).means
        order = rng.permutation(len(encoded))
        for side in sides:
            for max_rows, max_tokens in ((3, 10**6), (1000, 200), (1000, 10**6)):
                shuffled = score(
                    model, [encoded[i] for i in order], side=side, max_rows=max_rows, max_tokens=max_tokens
                ).means
                for place, i in enumerate(order):
                    np.testing.assert_allclose(shuffled[place], reference[i], rtol=0, atol=atol)


@pytest.mark.parametrize("family", ["opt", "roberta"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data_seed=st.integers(0, 2**16), count=st.integers(1, 6), side=st.sampled_from(["left", "right"]))
def test_training_losses_are_the_evaluations_losses(family, toy_data, data_seed, count, side):
    """The mean over one batch is what evaluation reports for the same examples."""
    model = make(family)
    rng = np.random.default_rng(data_seed)
    for name in tasks_of(model):
        task, encoded = examples(model, name, toy_data)
        chosen = [encoded[i] for i in rng.choice(len(encoded), count, replace=False)]
        report = evaluate(model, task, chosen) if not task.generates else None
        if task.loss == "language_model":
            chosen = [example.only_gold() for example in chosen]
        least = option_sizes([chosen, encoded]) if rng.integers(2) else AS_NEEDED
        options = {"length": int(rng.integers(0, 200)), "options_at_least": least}
        batch = collate(chosen, model.pad_id, side, labels=task.loss == "classification", **options)
        with torch.no_grad():
            loss = LOSSES[task.loss](model.module, batch).item()
        expected = report.loss if report else -score_of_gold(model, chosen)
        assert loss == pytest.approx(expected, rel=1e-6)  # option masks are float32


def score_of_gold(model, chosen):
    scores = score(model, chosen)
    return sum(t[0] for t in scores.totals) / sum(c[0] for c in scores.counts)


def test_the_classification_loss_is_cross_entropy_over_mean_log_likelihoods(toy_data):
    model = make("opt")
    _, encoded = examples(model, "copa", toy_data, 6)
    batch = collate(encoded, model.pad_id, "left", labels=True)
    with torch.no_grad():
        loss = classification_loss(model.module, batch).item()
        scores = option_scores(model.module, batch).view(6, 2)
    by_hand = [[plain_score(model, e, k) for k in range(2)] for e in encoded]
    np.testing.assert_allclose(scores, by_hand, atol=1e-6)
    expected = np.mean([np.logaddexp(*s) - s[e.gold[0]] for s, e in zip(by_hand, encoded, strict=True)])
    assert loss == pytest.approx(expected, rel=1e-6)


def test_the_language_model_loss_weighs_tokens_not_examples(toy_data):
    model = make("opt")
    _, encoded = examples(model, "copa", toy_data, 6)
    gold = [e.only_gold() for e in encoded]
    with torch.no_grad():
        loss = language_model_loss(model.module, collate(gold, model.pad_id, "left")).item()
    tokens = [len(e.options[0]) for e in gold]
    means = [plain_score(model, e, 0) for e in gold]
    assert len(set(tokens)) > 1
    assert loss == pytest.approx(-np.dot(tokens, means) / sum(tokens), rel=1e-6)


@pytest.mark.parametrize("family", ["opt", "roberta"])
def test_a_batch_that_holds_its_examples_twice_has_their_losses_twice(family, toy_data):
    model = make(family)
    for name in tasks_of(model)[:4:3] if family == "opt" else tasks_of(model):  # SQuAD's answers have several tokens
        task, encoded = examples(model, name, toy_data, 5)
        if task.loss == "language_model":
            encoded = [example.only_gold() for example in encoded]
        batch = collate(encoded, model.pad_id, model.side, labels=task.loss == "classification")
        with torch.no_grad():
            once, doubled = (EXAMPLE_LOSSES[task.loss](model.module, b) for b in (batch, twice(batch, INDICES)))
        torch.testing.assert_close(doubled, torch.cat([once, once]), rtol=1e-12, atol=0)


def test_left_padding_beyond_need_changes_nothing(toy_data):
    model = make("gpt2")
    _, encoded = examples(model, "sst2", toy_data, 3)
    with torch.no_grad():
        short = option_scores(model.module, collate(encoded, model.pad_id, "left"))
        long = option_scores(model.module, collate(encoded, model.pad_id, "left", length=128))
    torch.testing.assert_close(short, long, rtol=0, atol=1e-12)


def test_only_the_needed_logits_are_computed(toy_data):
    model = make("opt")
    _, encoded = examples(model, "sst2", toy_data, 5)
    seen = []
    head = model.module.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    score(model, encoded)
    handle.remove()
    assert seen == [(1, 5, len(model.tokenizer))]
    assert not head._forward_pre_hooks, "the hook must be gone"


@pytest.mark.parametrize(("family", "name"), [("opt", "sst2"), ("roberta", "trec"), ("opt", "copa"), ("opt", "squad")])
def test_batches_have_one_shape(family, name, toy_data):
    """A captured step can only be replayed on equal shapes; answers have unlike numbers of tokens."""
    model = make(family)
    task, encoded = examples(model, name, toy_data, 60)
    encoded = [e.only_gold() for e in encoded] if task.loss == "language_model" else encoded
    shapes, chunks = set(), [encoded[start : start + 4] for start in range(0, 60, 4)]
    sizes = RunSizes(chunks)
    for chunk in chunks:
        batch = collate(chunk, model.pad_id, "left", length=max(sizes.lengths), options_at_least=sizes.options)
        shapes.add(tuple(sorted((name, tuple(t.shape)) for name, t in batch.items())))
    assert len(shapes) == 1


def test_unequal_numbers_of_options_are_refused_for_classification(toy_data):
    model = make("opt")
    _, encoded = examples(model, "copa", toy_data, 2)
    from dataclasses import replace

    mixed = [encoded[0], replace(encoded[1], options=encoded[1].options[:1])]
    with pytest.raises(ValueError, match=r"examples of one batch have \[1, 2\] options"):
        collate(mixed, model.pad_id, "left", labels=True)


def test_a_log_likelihood_that_is_not_finite_is_an_error(toy_data):
    model = make("opt", seed=5)
    _, encoded = examples(model, "sst2", toy_data, 2)
    model.module.get_output_embeddings().weight.data[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="log-likelihood is not finite"):
        score(model, encoded)


def test_evaluation_reports_what_its_scores_say(toy_data):
    model = make("roberta")
    task, encoded = examples(model, "snli", toy_data, 30)
    report = evaluate(model, task, encoded)
    right = [int(np.argmax(s)) in e.gold for s, e in zip(report.scores, encoded, strict=True)]
    assert report.metric == pytest.approx(np.mean(right))
    assert report.auc is None
    assert report.loss == report.option_loss
    assert report.summary()["num_examples"] == 30


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80),
    limits=st.tuples(st.integers(60, 600), st.integers(1, 40), st.integers(1, 40), st.integers(1, 400)),
)
def test_batches_keep_their_limits_lose_no_row_and_pad_little_once_they_are_full(lengths, limits):
    max_tokens, max_rows, max_sites, full = limits
    rows = [ScoredRow(Encoded((tuple(range(n)),), ((0, 0),), (((0, 1),),), (0,)), (i,)) for i, n in enumerate(lengths)]
    made = list(batches(rows, max_tokens, max_rows, max_sites, full))
    assert sorted(row.options[0] for chunk in made for row in chunk) == list(range(len(lengths)))
    longest = [len(chunk[0].encoded.rows[0]) for chunk in made]
    assert longest == sorted(longest, reverse=True)
    for chunk in made:
        own = [len(row.encoded.rows[0]) for row in chunk]
        assert max(own) == own[0], "the longest comes first"
        assert own[0] * len(own) <= max_tokens
        assert len(own) <= min(max_rows, max_sites)
        before = sum(own[:-1])
        assert before < full or own[0] * len(own) <= PADDING * sum(own)


def test_batches_of_a_set_are_made_once_and_never_taken_for_anothers(toy_data, monkeypatch):
    model = make("opt")
    task, encoded = examples(model, "sst2", toy_data)
    made = []
    monkeypatch.setattr("llm_bench.evaluation.evaluate.collate", lambda *a, **k: made.append(1) or collate(*a, **k))
    first = evaluate(model, task, encoded)
    count = len(made)
    assert count
    assert evaluate(model, task, encoded).summary() == first.summary()
    assert evaluate(model, task, list(encoded)).summary() == first.summary(), "the same examples in another list"
    assert len(made) == count
    fewer = evaluate(model, task, encoded[1:])
    assert len(made) > count
    np.testing.assert_allclose(np.array(fewer.scores), np.array(first.scores[1:]), rtol=0, atol=1e-12)
    _, fresh = examples(model, "sst2", toy_data)  # equal examples, other objects
    assert evaluate(model, task, fresh[::-1]).metric == first.metric
    forget()
    count = len(made)
    evaluate(model, task, encoded)
    assert len(made) > count
