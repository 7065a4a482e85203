"""Softmax regression on scikit-learn's handwritten digits, many zeroth-order runs at once.

Directions are those of the optimizers, bit for bit; slopes along them are exact derivatives, which equal two-point ones
up to the probe's truncation and rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synthetic.figures.trials import EVERY
from synthetic.figures.updates import ManyRuns
from synthetic.simulation.directions import BatchedDirections

NUM_TRAIN, CLASSES, FEATURES = 1200, 10, 65
DIMENSION = FEATURES * CLASSES
_BLOCK = 64  # steps whose directions are drawn at once


@dataclass(frozen=True)
class Digits:
    """Images (rows, 65), the last feature 1, and labels (rows,)."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @property
    def natural_step(self) -> float:
        """1/(tr H + 2 λ_max) at theta = 0, where H is S ⊗ E[x xᵀ], S = I/10 − 1/100."""
        second = self.train.double().T @ self.train.double() / len(self.train)
        trace, top = 0.9 * float(second.trace()), 0.1 * float(torch.linalg.eigvalsh(second)[-1])
        return 1.0 / (trace + 2 * top)


@cache
def digits() -> Digits:
    """The data, split by a fixed permutation."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = torch.from_numpy(np.column_stack([images[order] / 16, np.ones(len(images))])).float()
    y = torch.from_numpy(labels[order]).long()
    return Digits(x[:NUM_TRAIN], y[:NUM_TRAIN], x[NUM_TRAIN:], y[NUM_TRAIN:])


def minibatches(seed: int, steps: int, batch: int) -> Tensor:
    """Indices of the minibatches of a run, shape (steps, batch), with replacement."""
    return torch.from_numpy(np.random.default_rng([seed, 9]).integers(NUM_TRAIN, size=(steps, batch)))


def race(
    method: str,
    trials: Sequence[Mapping[str, float]],
    seeds: Sequence[int],
    *,
    budget: int,
    batch: int,
    horizon: float,
) -> dict[str, Any]:
    """Run all trials with all seeds from theta = 0; seeds share minibatches and directions across trials and methods.

    Args:
        method: Of `synthetic.figures.updates.ManyRuns`.
        trials: Settings that differ, all with the same names.
        seeds: Run seeds.
        budget: Steps.
        batch: Examples of a minibatch, B.
        horizon: Of HELENE's anneal, in steps.

    Returns:
        ``loss``, on all training images every 20 steps, shape (trials, seeds, evaluations); ``accuracy`` at the end on
        the test images, (trials, seeds); ``above``, the share of h above the floor at the end, for HELENE.
    """
    data = digits()
    settings: dict[str, Any] = {"horizon": float(horizon), "batch": batch}
    settings |= {name: torch.tensor([t[name] for t in trials])[:, None, None] for name in trials[0]}
    runs = ManyRuns(method, torch.zeros(len(trials), len(seeds), DIMENSION), settings)
    chosen = torch.stack([minibatches(seed, budget, batch) for seed in seeds])
    losses = []
    for start in range(0, budget, _BLOCK):
        steps = range(start + 1, min(start + _BLOCK, budget) + 1)
        z = directions(seeds, steps)
        for i, step in enumerate(steps):
            index = chosen[:, step - 1]
            g = slope(runs.theta, z[:, i], data.train[index], data.train_labels[index])[..., None] * z[:, i]
            runs.step(g)
            if step % EVERY == 0:
                losses.append(_loss(runs.theta, data.train, data.train_labels))
    out = {"loss": torch.stack(losses, -1), "accuracy": _accuracy(runs.theta, data.test, data.test_labels)}
    if method == "helene":
        out["above"] = (runs.h > settings["floor"]).float().mean(-1)
    return out


def slope(theta: Tensor, z: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Derivative of the minibatch loss along z.

    Args:
        theta: Shape (trials, seeds, d).
        z: Shape (seeds, d).
        x: Shape (seeds, B, 65).
        y: Shape (seeds, B).

    Returns:
        Shape (trials, seeds).
    """
    seeds, batch = y.shape
    weights = theta.reshape(-1, seeds, FEATURES, CLASSES).permute(1, 2, 0, 3).reshape(seeds, FEATURES, -1)
    p = (x @ weights).reshape(seeds, batch, -1, CLASSES).softmax(-1)
    along = x @ z.reshape(seeds, FEATURES, CLASSES)
    right = along.gather(-1, y[..., None])[..., 0]
    return ((p * along[:, :, None]).sum(-1) - right[..., None]).mean(1).T


def initial_curvature(seeds: Sequence[int], batch: int) -> float:
    """h_0 = B ‖g_0‖², g_0 the minibatch gradient at theta = 0, mean over seeds: what A-GNB's SPSA estimate averages."""
    data, total = digits(), 0.0
    for seed in seeds:
        index = minibatches(seed, 1, batch)[0]
        residual = 0.1 - torch.nn.functional.one_hot(data.train_labels[index], CLASSES).float()
        total += batch * float((data.train[index].T @ residual / batch).square().sum())
    return total / len(seeds)


def directions(seeds: Sequence[int], steps: Sequence[int]) -> Tensor:
    """z of the optimizers for one unnamed parameter of shape (65, 10), shape (seeds, steps, d)."""
    return BatchedDirections([DIMENSION])(seeds, steps)


def _logits(theta: Tensor, x: Tensor) -> Tensor:
    return x @ theta.reshape(*theta.shape[:-1], FEATURES, CLASSES)


def _loss(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    logits = _logits(theta, x)
    right = logits.gather(-1, y.expand(logits.shape[:-1])[..., None])[..., 0]
    return (logits.logsumexp(-1) - right).mean(-1)


def _accuracy(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return (_logits(theta, x).argmax(-1) == y).float().mean(-1)
