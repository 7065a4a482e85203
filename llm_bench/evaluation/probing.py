"""Two classifiers on top of a frozen model: one bias a class, and a linear probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llm_bench.data.batches import collate
from llm_bench.data.encode import Encoded
from llm_bench.evaluation import metrics
from llm_bench.evaluation.scoring import site_states
from llm_bench.models.loading import LanguageModel

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # inverse strengths C, weakest signal first
Scores = Sequence[NDArray[np.float64]]
Gold = Sequence[Sequence[int]]


def fit_offsets(scores: Scores, gold: Gold) -> NDArray[np.float64]:
    """One bias a class, the first 0, that minimizes the option loss on the training set.

    The bias-only control: what a method gains up to here it may have gained by no more than learning which option the
    model prefers. The loss is convex in the offsets.
    """
    from scipy.optimize import minimize

    table, right = np.stack(list(scores)), np.array([g[0] for g in gold])

    def loss(offsets: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = table + np.concatenate([[0.0], offsets])
        normaliser = np.logaddexp.reduce(logits, axis=1)
        value = float(np.mean(normaliser - logits[np.arange(len(right)), right]))
        share = np.exp(logits - normaliser[:, None])
        share[np.arange(len(right)), right] -= 1
        return value, share.mean(axis=0)[1:]

    # A penalty far below any difference that counts keeps a separable training set from running to infinity.
    def damped(offsets: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = loss(offsets)
        return value + 1e-6 * float(offsets @ offsets), slope + 2e-6 * offsets

    fitted = minimize(damped, np.zeros(table.shape[1] - 1), jac=True, method="BFGS", options={"gtol": 1e-9})
    return np.concatenate([[0.0], fitted.x])


def with_offsets(scores: Scores, offsets: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Scores with each class's offset added."""
    return [s + offsets for s in scores]


@torch.inference_mode()
def features(model: LanguageModel, examples: Sequence[Encoded], max_rows: int = 16) -> NDArray[np.float64]:
    """What the head sees where the answer is due, shape (examples, width): behind the prompt, or at the mask."""
    chunks: list[NDArray[np.float64]] = []
    order = sorted(range(len(examples)), key=lambda i: -len(examples[i].prompt))
    for start in range(0, len(order), max_rows):
        chosen = [examples[i] for i in order[start : start + max_rows]]
        probes = [Encoded((e.prompt,), ((0, _place(model, e)),), (((0, 0),),), (0,)) for e in chosen]
        batch = collate(probes, model.pad_id, model.side, device=model.device)
        chunks.append(site_states(model.module, batch).double().cpu().numpy())
    table = np.concatenate(chunks)
    return table[np.argsort(order)]


def _place(model: LanguageModel, example: Encoded) -> int:
    return len(example.prompt) - 1 if model.kind == "causal" else example.sites[0][1]


def linear_probe(
    train: tuple[NDArray[np.float64], Gold],
    dev: tuple[NDArray[np.float64], Gold],
    test: NDArray[np.float64],
    num_classes: int,
) -> tuple[list[NDArray[np.float64]], dict[str, Any]]:
    """Logistic regression on standardised features; the penalty is chosen on dev, of equal ones the strongest.

    Args:
        train: Features and right options.
        dev: The same.
        test: Features.
        num_classes: Of the task, whether these rows have them all or not.

    Returns:
        Log-probabilities of the classes for the test features, and what was chosen.

    Raises:
        ValueError: If the training rows have one class alone.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = np.array([g[0] for g in train[1]])
    if len(set(labels.tolist())) < 2:
        raise ValueError(
            f"the {len(labels)} training rows are all of one class; a linear probe needs two, take more rows"
        )
    best: tuple[float, float, Any] | None = None
    for penalty in PENALTIES:
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=2000))
        probe.fit(train[0], labels)
        value = metrics.accuracy(_log_probabilities(probe, dev[0], num_classes), dev[1])
        if best is None or value > best[0]:
            best = (value, penalty, probe)
    assert best is not None
    value, penalty, probe = best
    return _log_probabilities(probe, test, num_classes), {"inverse_penalty": penalty, "dev_metric": value}


def _log_probabilities(probe: Any, table: NDArray[np.float64], num_classes: int) -> list[NDArray[np.float64]]:
    scores = np.full((len(table), num_classes), -np.inf)  # a class that training never saw
    scores[:, probe.classes_] = probe.predict_log_proba(table)
    return list(scores)
