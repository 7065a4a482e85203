"""The Monte Carlo checks themselves: their rates, and that they would notice."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

from theory.ledger import montecarlo
from theory.ledger.montecarlo import ALARM, BUDGET, assert_law, assert_mean, num_blocks


def normal_cdf(x):
    return (1 + erf(x / np.sqrt(2))) / 2


def test_rates():
    """By the exact binomial tail: half of the blocks missing, each with probability 1/8."""
    from math import comb

    for alarm in (1e-3, ALARM):
        k = num_blocks(alarm)
        tail = sum(comb(k, j) * 7 ** (k - j) for j in range((k + 1) // 2, k + 1)) / 8**k
        assert tail <= alarm
    assert ALARM * BUDGET < 1e-6


def test_mean_is_noticed():
    """A mean off by more than twice the tolerance fails, a right one passes; heavy tails do not disturb it."""
    rng = np.random.default_rng(1)
    samples = rng.standard_normal(100_000) ** 4
    sd = 96**0.5  # Var z⁴ = 105 − 9
    assert_mean(samples, 3.0, sd, "z⁴")
    tolerance = sd * (8 * num_blocks() / len(samples)) ** 0.5
    with pytest.raises(AssertionError, match="z⁴"):
        assert_mean(samples, 3.0 + 2.1 * tolerance, sd, "z⁴")


def test_law_is_noticed():
    """A shift by a tenth of a standard deviation fails with 10⁵ draws."""
    samples = np.random.default_rng(2).standard_normal(100_000)
    assert_law(samples, normal_cdf, "normal")
    with pytest.raises(AssertionError, match="shifted"):
        assert_law(samples + 0.1, normal_cdf, "shifted")


def test_the_budget_is_kept(monkeypatch):
    monkeypatch.setattr(montecarlo, "_spent", ALARM * (BUDGET - 1))
    assert_mean(np.zeros(200), 0.0, 1.0, "the last one")
    with pytest.raises(ValueError, match="drop a check"):
        assert_mean(np.zeros(200), 0.0, 1.0, "one too many")


def test_too_few_draws():
    with pytest.raises(ValueError, match="too few"):
        assert_mean(np.zeros(3), 0.0, 1.0, "few")
