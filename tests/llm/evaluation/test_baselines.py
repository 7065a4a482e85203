"""Offsets against a grid, probing against scikit-learn by hand, demonstrations against text written out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_families import make

from llm_bench.data.encode import encode
from llm_bench.data.folder import read_split
from llm_bench.evaluation import metrics
from llm_bench.evaluation.in_context import encode_in_context
from llm_bench.evaluation.probing import features, fit_offsets, linear_probe, with_offsets
from llm_bench.runs import methods
from llm_bench.tasks import get_task


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), bias=st.floats(-5, 5), classes=st.integers(2, 4))
def test_offsets_minimize_the_option_loss(seed, bias, classes):
    rng = np.random.default_rng(seed)
    gold = [(int(y),) for y in np.r_[np.arange(classes), rng.integers(0, classes, 40)]]
    scores = [rng.normal(size=classes) + np.r_[bias, np.zeros(classes - 1)] for _ in gold]
    offsets = fit_offsets(scores, gold)
    best = metrics.option_loss(with_offsets(scores, offsets), gold)
    assert offsets[0] == 0
    for _ in range(30):
        other = offsets + np.r_[0, rng.normal(scale=0.3, size=classes - 1)]
        assert best <= metrics.option_loss(with_offsets(scores, other), gold) + 1e-5  # the penalty moves it by less
    shifted = [s + np.arange(classes) for s in scores]
    np.testing.assert_allclose(fit_offsets(shifted, gold), offsets - np.arange(classes), atol=1e-2)


def test_offsets_of_separable_scores_are_finite():
    scores = [np.array([0.0, -9.0]), np.array([0.0, -1.0])]
    offsets = fit_offsets(scores, [(0,), (1,)])
    assert np.isfinite(offsets).all()
    assert metrics.accuracy(with_offsets(scores, offsets), [(0,), (1,)]) == 1


def test_offsets_cannot_change_the_auc():
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=2) for _ in range(20)]
    gold = [(int(rng.integers(2)),) for _ in range(20)]
    assert metrics.auc(with_offsets(scores, fit_offsets(scores, gold)), gold) == pytest.approx(
        metrics.auc(scores, gold)
    )


@pytest.mark.parametrize("family", ["opt", "gemma3_text", "roberta", "bert"])
def test_features_are_what_the_head_sees_where_the_answer_is_due(family, toy_data):
    model = make(family)
    task = get_task("sst2", model.kind)
    encoded = [encode(model, task, task.make(row)) for row in read_split(toy_data, task, "test")[:7]]
    found = features(model, encoded, max_rows=3)
    for row, example in zip(found, encoded, strict=True):
        ids = torch.tensor([example.prompt])
        with torch.no_grad():
            states = model.module.base_model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        place = -1 if model.kind == "causal" else example.sites[0][1]
        np.testing.assert_allclose(row, states[0, place], rtol=0, atol=1e-5 if family == "gemma3_text" else 1e-12)


def test_a_probe_finds_a_direction_and_chooses_its_penalty_on_dev():
    rng = np.random.default_rng(1)

    def draw(count):
        labels = rng.integers(0, 3, count)
        return rng.normal(size=(count, 10)) + 3 * np.eye(10)[labels], [(int(y),) for y in labels]

    train, dev, test = draw(200), draw(100), draw(200)
    scores, chosen = linear_probe(train, dev, test[0], 3)
    assert metrics.accuracy(scores, test[1]) > 0.9  # the best possible is 0.97; chance 0.33
    assert chosen["inverse_penalty"] in (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1)
    random, _ = linear_probe((train[0], [(int(rng.integers(3)),) for _ in train[1]]), dev, test[0], 3)
    assert metrics.accuracy(random, test[1]) < 0.7


def test_a_class_that_training_never_saw_is_never_predicted():
    rng = np.random.default_rng(2)
    table = rng.normal(size=(20, 4))
    labels = [(i % 2,) for i in range(20)]
    scores, _ = linear_probe((table, labels), (table, [(2,)] * 20), table, 3)
    assert all(s[2] == -np.inf for s in scores)
    scores, _ = linear_probe((table, labels), (table, labels), table, 3)
    assert metrics.option_loss(scores, [(2,)] * 20) == np.inf, "a test row may be of a class in neither"
    with pytest.raises(ValueError, match="the 20 training rows are all of one class; a linear probe needs two"):
        linear_probe((table, [(1,)] * 20), (table, labels), table, 3)


def test_demonstrations_differ_between_examples_and_not_between_calls(toy_data):
    model, task = make("opt", positions=2048), get_task("rte", "causal")
    train, rows = read_split(toy_data, task, "train")[:50], read_split(toy_data, task, "test")[:3]
    encoded = encode_in_context(model, task, train, rows, seed=0, count=4)
    assert encoded == encode_in_context(model, task, train, rows, seed=0, count=4)
    assert encoded != encode_in_context(model, task, train, rows, seed=1, count=4)
    texts = [model.tokenizer.decode(e.rows[0], skip_special_tokens=True) for e in encoded]
    assert all(text.count("Does this mean that") == 5 for text in texts)
    assert len({text.split("\n\n")[0] for text in texts}) > 1
    assert texts[0].split("\n\n")[-1] == task.make(rows[0]).prompt.strip(" ")
    solved = texts[0].split("\n\n")[0]
    assert solved.endswith(("\nYes", "\nNo"))
    with pytest.raises(ValueError, match="in-context learning needs a causal model"):
        encode_in_context(model, get_task("rte", "masked"), train, rows, seed=0)


@pytest.mark.parametrize("name", list(methods.METHODS))
def test_every_method_can_be_built_and_makes_a_step(name, toy_data):
    from llm_bench.data.batches import collate
    from llm_bench.evaluation.scoring import classification_loss, classification_losses
    from llm_bench.models.tuning import Tuning, prepare, trained

    model, task = make("opt", dtype=torch.float32, layers=1), get_task("sst2", "causal")
    prepare(model, Tuning("lora", rank=1))
    encoded = [encode(model, task, task.make(row)) for row in read_split(toy_data, task, "train")[:32]]
    batch = collate(encoded, model.pad_id, "left", labels=True)
    optimizer = methods.build(name, model.module, {"lr": 1e-3}, seed=1, batch_size=32, steps=10)
    before = [p.detach().clone() for _, p in trained(model.module)]

    def closure():
        told = classification_losses if methods.takes_examples(name) else classification_loss
        return told(model.module, batch)

    loss = optimizer.step(closure, closure) if "own-batch" in name else optimizer.step(closure)
    assert torch.isfinite(loss)
    if name != "zo-sgd-cons":  # which may refuse to move
        assert any(not torch.equal(a, b) for a, (_, b) in zip(before, trained(model.module), strict=True))


def test_unknown_methods_and_hyper_parameters_are_named():
    model = make("opt")
    with pytest.raises(ValueError, match="no method 'sgd'; there are mezo, helene"):
        methods.get_method("sgd")
    with pytest.raises(ValueError, match=r"method 'mezo': .*momentum"):
        methods.build("mezo", model.module, {"momentum": 0.9}, seed=0, batch_size=1, steps=1)
    with pytest.raises(ValueError, match="floor must be a number or one of quantile, mean, radius"):
        methods.build("helene", model.module, {"floor": "median"}, seed=0, batch_size=1, steps=1)


def test_helene_is_told_the_batch_size_and_the_horizon_of_the_run():
    model = make("opt")
    group = methods.build("helene", model.module, {"lr": 0.1}, seed=7, batch_size=16, steps=300).param_groups[0]
    assert (group["batch_size"], group["anneal_horizon"], group["seed"], group["lr"]) == (16, 300, 7, 0.1)
    group = methods.build("helene-no-anneal", model.module, {}, seed=7, batch_size=16, steps=300).param_groups[0]
    assert group["anneal_horizon"] == float("inf")
    assert len(methods.build("helene", model.module, {}, seed=7, batch_size=16, steps=300).param_groups) > 2
