"""The noise that `GroupedMeZO` tells, where it is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from helene import GroupedMeZO
from helene.steps.gradient_noise import (
    QUANTILE,
    GradientNoise,
    GroupSlopes,
    NoiseEstimate,
    choose_groups,
    gain,
    noise_ratio,
    slope_moments,
)


def of_groups(slopes):
    return GroupSlopes(slopes.mean(dim=1), slopes.square().mean(dim=1), slopes.shape[1])


def moments_of(slopes):
    return slope_moments(of_groups(slopes))


def test_moments_are_unbiased():
    """Exact: all signs of z in three dimensions, all ordered triples of a population of four gradients."""
    population = torch.tensor([[1.0, 0.0, 2.0], [-1.0, 3.0, 0.0], [0.5, 0.5, -1.0], [2.0, -2.0, 1.0]]).double()
    mean = population.mean(dim=0)
    signal, spread = mean @ mean, (population - mean).square().sum(dim=1).mean()
    found = []
    for signs in itertools.product((-1.0, 1.0), repeat=3):
        slopes = population @ torch.tensor(signs).double()
        found += [moments_of(slopes[list(chosen)][None]) for chosen in itertools.product(range(4), repeat=3)]
    assert np.mean(found, axis=0).tolist() == pytest.approx([signal.item(), spread.item()], rel=1e-12)


def test_moments_are_means_over_groups():
    slopes = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    alone = np.mean([moments_of(group[None]) for group in slopes], axis=0)
    assert moments_of(slopes) == pytest.approx(tuple(alone), rel=1e-12)


class Linear(nn.Module):
    """Losses whose gradients are known: example i's is g_i, a matrix; their noise ratio is ``noise``."""

    def __init__(self, noise, seed):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 5).double())
        self.noise, self.generator = noise, torch.Generator().manual_seed(seed)

    def closure(self, examples):
        """The losses of a new batch: slopes along x_i and out of the rows' mean, so that they are linear layers."""
        mean = torch.full((30,), 1.0 / math.sqrt(30)).double()
        spread = math.sqrt(self.noise / 30) * torch.randn(examples, 30, generator=self.generator).double()
        gradients = (mean + spread).view(examples, 6, 5)
        return lambda: (
            nn.functional.linear(torch.eye(5).double().expand(examples, 5, 5), self.weight).mT * gradients
        ).sum(dim=(1, 2))


@pytest.mark.parametrize(("noise", "groups", "law"), [(4.0, 4, "gaussian"), (20.0, 2, "rademacher")])
def test_the_interval_covers_a_known_ratio(noise, groups, law):
    """Of 30 runs the number whose 95 % interval has it is above 22 with probability 0.9999 (binomial)."""
    covered, ratios = 0, []
    for seed in range(30):
        problem = Linear(noise, seed)
        optimizer = GroupedMeZO(problem.parameters(), 0.0, groups=groups, distribution=law, seed=seed)
        for _ in range(60):
            optimizer.step(problem.closure(16))
        found = optimizer.noise.estimate()
        covered += found.low <= noise <= found.high
        ratios.append(found.ratio)
    assert covered > 22
    assert abs(np.median(ratios) - noise) <= 0.25 * noise


def test_the_interval_is_the_set_that_the_mean_does_not_exclude():
    """Brute force over a grid of ratios, where |ḡ|² is told from 0 and where it is not."""
    generator = np.random.default_rng(2)
    grid = np.linspace(0.0, 60.0, 240001)
    for signal in (2.0, 0.3, 0.05):
        moments = list(zip(signal + generator.normal(size=50), 3.0 + generator.normal(size=50), strict=True))
        found = noise_ratio(moments)
        off = np.array([b for _, b in moments])[None] - grid[::40, None] * np.array([a for a, _ in moments])[None]
        inside = grid[::40][np.abs(off.mean(axis=1)) <= QUANTILE * off.std(axis=1, ddof=1) / math.sqrt(50)]
        assert inside.min() == pytest.approx(found.low, abs=0.02)
        assert (inside.max() == 60.0) == (found.high > 60.0)
        if found.high < 60.0:
            assert inside.max() == pytest.approx(found.high, abs=0.02)
        assert found.low <= found.ratio <= found.high


def test_gain_is_what_the_second_moment_says():
    assert gain(1, 16, 5.0) == 1.0
    assert gain(16, 16, 0.0) == 16.0
    assert gain(16, 16, math.inf) == 1.0
    assert gain(16, 16, 36.0) == pytest.approx((1 + 36 / 16) / (1 / 16 + 36 / 16))


@pytest.mark.parametrize(("low", "chosen"), [(0.0, 8), (1.0, 8), (36.0, 8), (60.0, 4), (400.0, 1), (math.inf, 1)])
def test_groups_are_as_few_as_cost_no_more_than_5_percent(low, chosen):
    assert choose_groups(16, NoiseEstimate(low, low, math.inf, 9)) == chosen


def test_groups_where_nothing_is_known():
    assert [choose_groups(batch, None) for batch in (1, 2, 9, 16, 7)] == [1, 1, 3, 8, 1]


def test_the_summary_is_plain_numbers():
    noise = GradientNoise()
    assert noise.summary(2) == {"batch_size": 0, "groups": 2, "steps": 0, "noise": None}
    noise.add(of_groups(torch.ones(2, 1)))
    assert noise.estimate() is None
    for scale in (1.0, -1.0, 1.1):
        noise.add(of_groups(scale * torch.tensor([[1.0, -1.0], [0.5, -0.4]])))
    told = noise.summary(2)
    assert told["noise"] is None
    assert told["high"] is None
    assert set(told) >= {"low", "gain_of_1", "gain_of_2", "gain_of_4", "suggested_groups"}
