"""Accuracy, token F1 and what stands beside them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def normalized(answer: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces: as SQuAD v1.1's official script compares."""
    text = "".join(c for c in answer.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(prediction: str, references: Sequence[str]) -> float:
    """The best F1 of the prediction's words over the right answers, in [0, 1]; 0 where no word is shared."""
    return max(_f1(prediction, reference) for reference in references)


def _f1(prediction: str, reference: str) -> float:
    said, right = normalized(prediction).split(), normalized(reference).split()
    shared = sum((Counter(said) & Counter(right)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def predicted(scores: Sequence[float] | NDArray[np.float64]) -> int:
    """The option with the highest score; of equal ones the first."""
    return int(np.argmax(np.asarray(scores)))


def accuracy(scores: Sequence[NDArray[np.float64]], gold: Sequence[Sequence[int]]) -> float:
    """Share of examples whose best option is a right one."""
    return float(np.mean([predicted(s) in right for s, right in zip(scores, gold, strict=True)]))


def option_loss(scores: Sequence[NDArray[np.float64]], gold: Sequence[Sequence[int]]) -> float:
    """Mean cross-entropy (nats) of the first right option under a softmax over the options' scores.

    A model that knows the classes but favours one of them shows here while accuracy is still near chance.
    """
    losses = [np.logaddexp.reduce(s) - s[right[0]] for s, right in zip(scores, gold, strict=True)]
    return float(np.mean(losses))


def auc(scores: Sequence[NDArray[np.float64]], gold: Sequence[Sequence[int]]) -> float | None:
    """Area under the ROC curve of the score difference, for two options; None for more, or with one class alone.

    Blind to a bias towards one option: what is left to learn once the bias is gone.
    """
    if any(len(s) != 2 for s in scores):
        return None
    margin = np.array([s[1] - s[0] for s in scores])
    positive = np.array([right[0] == 1 for right in gold])
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        return None
    order = np.argsort(margin, kind="stable")
    _, inverse, counts = np.unique(margin[order], return_inverse=True, return_counts=True)
    ranks = np.empty(len(margin))
    ranks[order] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))
