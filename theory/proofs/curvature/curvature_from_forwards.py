r"""Four diagonals from forwards, how well they follow the truth: ``curvature_from_forwards.md``.

``python -m theory.proofs.curvature.curvature_from_forwards`` rewrites ``curvature_from_forwards.csv``;
``draw_curvature_from_forwards`` draws it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from synthetic.estimators.predicted import squared_correlation
from theory.proofs import csv_record
from theory.updates.clipped_newton import Array

RECORD = Path(__file__).parent / "curvature_from_forwards.csv"
DIMENSION, RUNS = 128, 8
#: Losses that one estimate takes; where θ stands still, L(θ) is asked for once and the last two take two.
LOSSES = {"A-GNB": 2, "squared last": 2, "uncentred": 2, "centred": 2}


def truth(d: int) -> Array:
    """Log-uniform over three decades, mean 1, in no order."""
    w = np.geomspace(1.0, 1e-3, d)
    return np.random.default_rng(d).permutation(w / w.mean())


def predicted(name: str, d: int, spread: float, num_estimates: float) -> float:
    """The limit of the squared correlation over coordinates, ω = ``spread``."""
    k = num_estimates / d
    return {
        "A-GNB": squared_correlation(d, spread, num_estimates),
        "squared last": spread**2 / (spread**2 + 4.0 / k + 2.0 / k**2),
        "uncentred": 1.0 / (1.0 + d / (2.0 * spread**2 * k)),
        "centred": 1.0 / (1.0 + 1.0 / k),
    }[name]


def most(d: int, losses: int) -> float:
    """No method's mean squared correlation exceeds this, Theorem 4."""
    return min(1.0, (losses + 1) / (d - 1))


class Estimates:
    """Running sums of estimates for a gradient with squares ``w`` and the Hessian diag(``w``)."""

    def __init__(self, w: Array, seed: int) -> None:
        self.w, self.rng, self.count = w, np.random.default_rng([seed, 41]), 0
        self.squares, self.slopes, self.plain, self.weighted = (np.zeros_like(w) for _ in range(4))
        self.seconds = self.lengths = 0.0
        self.even = np.zeros_like(w)  # Σ ½(z² − 1)‖z‖²

    def draw(self, count: int) -> None:
        """Adds so many estimates."""
        z = self.rng.standard_normal((count, len(self.w)))
        c, square = z @ np.sqrt(self.w), z**2
        q, length = square @ self.w, square.sum(axis=1)
        self.squares += c**2 @ square
        self.slopes += c @ z
        self.plain += 0.5 * (q @ square)
        self.weighted += 0.5 * (q @ (square - 1.0))
        self.even += 0.5 * (length @ (square - 1.0))
        self.seconds += float(q.sum())
        self.lengths += float(length.sum())
        self.count += count

    def found(self) -> dict[str, Array]:
        """The averages."""
        n = self.count
        return {
            "A-GNB": self.squares / n,
            "squared last": (self.slopes / n) ** 2,
            "uncentred": self.plain / n,
            "centred": (self.weighted - self.seconds / self.lengths * self.even) / n,
        }

    def correlations(self) -> dict[str, float]:
        """Squared, with the truth."""
        return {name: float(np.corrcoef(h, self.w)[0, 1] ** 2) for name, h in self.found().items()}


def measure(d: int = DIMENSION, runs: int = RUNS) -> list[dict[str, Any]]:
    """Mean squared correlation after more and more estimates."""
    w = truth(d)
    states = [Estimates(w, seed) for seed in range(runs)]
    rows = []
    for count in [2**k for k in range(2, 17)]:
        for state in states:
            while state.count < count:
                state.draw(min(count - state.count, 4096))
        found = [state.correlations() for state in states]
        means = {name: round(float(np.mean([one[name] for one in found])), 4) for name in LOSSES}
        rows.append({"estimates": count, **means})
    return rows


def read() -> list[dict[str, str]]:
    """The committed record."""
    return csv_record.read(RECORD)


if __name__ == "__main__":
    csv_record.write(RECORD, measure())
