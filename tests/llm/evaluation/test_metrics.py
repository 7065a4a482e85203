"""Metrics against values worked out by hand from the official SQuAD v1.1 script, and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from llm_bench.evaluation import metrics


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Sea!", "sea"),
        ("an apple, a day", "apple day"),
        ("U.S.A.", "usa"),
        ("theatre", "theatre"),
        ("the-end", "theend"),
        ("a the an", ""),
        ("L'été — 5 %", "lété — 5"),  # only ASCII punctuation goes
        (" x\t\ny ", "x y"),
    ],
)
def test_normalisation(text, normal):
    assert metrics.normalized(text) == normal


@pytest.mark.parametrize(
    ("prediction", "references", "f1"),
    [
        ("the sea", ["sea"], 1.0),
        ("in the sea", ["sea"], 2 / 3),  # in, sea against sea: precision 1/2, recall 1
        ("sea", ["in the sea"], 2 / 3),
        ("red red ball", ["red ball"], 0.8),  # shared counts: red once, ball once; precision 2/3, recall 1
        ("hill", ["sea"], 0.0),
        ("", ["sea"], 0.0),
        ("the", ["a"], 0.0),  # both empty once normalised: the v1.1 script gives 0
        ("big sea", ["sea", "big sea", "lake"], 1.0),
    ],
)
def test_token_f1(prediction, references, f1):
    assert metrics.token_f1(prediction, references) == pytest.approx(f1)


words = st.lists(st.sampled_from("red blue ball the a sea".split()), max_size=6).map(" ".join)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(a=words, b=words)
def test_f1_is_symmetric_between_0_and_1_and_1_for_equal_answers(a, b):
    value = metrics.token_f1(a, [b])
    assert value == pytest.approx(metrics.token_f1(b, [a]))
    assert 0 <= value <= 1
    if metrics.normalized(a):
        assert metrics.token_f1(a, [a]) == 1
    assert metrics.token_f1(a, [b, a]) >= value


def test_accuracy_takes_the_first_of_equal_scores_and_any_right_option():
    scores = [np.array([0.0, 0.0]), np.array([-1.0, -2.0, -0.5])]
    assert metrics.accuracy(scores, [(0,), (1, 2)]) == 1
    assert metrics.accuracy(scores, [(1,), (0,)]) == 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(4, 40), ties=st.booleans())
def test_auc_and_option_loss_agree_with_scikit_learn(seed, count, ties):
    rng = np.random.default_rng(seed)
    scores = rng.integers(-2, 3, (count, 2)).astype(float) if ties else rng.normal(size=(count, 2))
    labels = np.r_[0, 1, rng.integers(0, 2, count - 2)]
    gold = [(int(y),) for y in labels]
    assert metrics.auc(list(scores), gold) == pytest.approx(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert metrics.option_loss(list(scores), gold) == pytest.approx(log_loss(labels, probabilities, labels=[0, 1]))
    shifted = list(scores + np.array([3.0, 0.0]))
    assert metrics.auc(shifted, gold) == pytest.approx(metrics.auc(list(scores), gold)), "blind to a bias"


def test_auc_of_one_class_or_three_options_is_none():
    assert metrics.auc([np.array([0.0, 1.0])], [(0,)]) is None
    assert metrics.auc([np.zeros(3)], [(0,)]) is None
