"""Rounding that keeps small updates: unbiased, exact where it can be, adding up; narrow state; the warning."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import helene
from helene import noise
from helene.rules import precision

DRAWS = 1 << 16
BOUND = 6.5  # standard deviations; a two-sided false alarm of 8e-11


def words(count, step=1):
    return noise.words(7, step, noise.ROUNDING_DRAW, 3, 0, count)


def neighbours(value, dtype):
    """The representable numbers on either side, by search over bit patterns."""
    near = torch.tensor(value, dtype=torch.float64).to(dtype)
    other = torch.nextafter(near, torch.tensor(math.inf if near.double() <= value else -math.inf, dtype=dtype))
    return sorted([near.double().item(), other.double().item()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "value", [0.02, -0.0123456, 1.0 + 2.0**-20, 1.9999, 3.1e-6, -5.3e-8, 6.0e-5, 6.2e-5, 1000.3, -65000.1]
)
def test_stochastic_rounding_is_unbiased(dtype, value):
    """Binomial between the two neighbours: the share that goes up is the distance from the lower one.

    2^16 draws; words have 16, 13 or 24 bits, and the share is known to 2^-13 of a unit at worst for float32 inputs that
    have bits below that, which adds to the bound.
    """
    x = torch.full((DRAWS,), value, dtype=torch.float32)
    exact = x[0].double().item()
    rounded = precision.round_stochastically(x, words(DRAWS), dtype).double()
    low, high = neighbours(exact, dtype)
    assert set(rounded.unique().tolist()) <= {low, high}
    share, expected = (rounded == high).double().mean().item(), (exact - low) / (high - low)
    spread = math.sqrt(expected * (1 - expected) / DRAWS)
    assert abs(share - expected) <= BOUND * spread + 2.0**-24


@settings(deadline=None, max_examples=200)
@given(st.integers(0, (1 << 16) - 1), st.sampled_from([torch.bfloat16, torch.float16]))
def test_numbers_of_the_format_stay(pattern, dtype):
    """Every 16-bit pattern, NaN payloads apart, comes back as it is, whatever the words."""
    value = torch.tensor([pattern], dtype=torch.int32).to(torch.int16).view(dtype)
    many = value.float().repeat(64)
    back = precision.round_stochastically(many, words(64), dtype)
    assert torch.equal(back.isnan(), many.isnan())
    assert value.isnan() or (back.view(torch.int16) == value.view(torch.int16)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_far_below_an_ulp_add_up(dtype):
    """200 steps of ulp / 1000 on weights of 1: the mean moves by 0.2 ulp, to nearest it stays.

    Each weight's sum is a count of rare jumps, variance at most 200 · 0.001 ulp²; 2^14 weights; bound in deviations.
    """
    size, ulp = 1 << 14, {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    ends = {}
    for rounding in ("stochastic", "nearest"):
        p = nn.Parameter(torch.ones(size, dtype=dtype))
        optimizer = helene.SGD([p], ulp / 1000, rounding=rounding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(200):
                optimizer.step(lambda p=p: p.float().sum())
        ends[rounding] = p.double().mean().item()
    assert ends["nearest"] == 1.0
    deviation = ulp * math.sqrt(200 * 0.001 / size)
    assert abs(ends["stochastic"] - (1.0 - 0.2 * ulp)) <= BOUND * deviation


def test_lost_updates_warn_once_with_figure_and_way_out():
    p = nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
    q = nn.Parameter(torch.zeros(20, dtype=torch.bfloat16))  # near 0 nothing is lost
    optimizer = helene.MeZO([p, q], 1e-6)
    with pytest.warns(UserWarning, match=r"step 1 lost 83% .*rounding='stochastic' keeps") as caught:
        optimizer.step(lambda: p.float().sum() + q.float().sum())
    assert caught[0].filename == __file__
    for _ in range(8):
        optimizer.step(lambda: p.float().sum() + q.float().sum())  # warnings are errors here
    for quiet in ({"lr": 0.0}, {"lr": 10.0}, {"lr": 1e-6, "rounding": "stochastic"}):
        optimizer = helene.MeZO([nn.Parameter(torch.ones(100, dtype=torch.bfloat16))], **quiet)
        optimizer.step(lambda optimizer=optimizer: optimizer.param_groups[0]["params"][0].float().sum())


@pytest.mark.parametrize("nonnegative", [True, False])
def test_eight_bits_are_unbiased(nonnegative):
    """Over 512 evenly spaced words the mean of decode(encode(x)) is x, to a 512th of the distance of two codes.

    Codes decode to themselves, up to a root that float32 rounds; nothing above zero becomes zero; two codes are at most
    4 / (255 · 0.1^(1/4)) or 2 / (127 · 0.1^(1/2)) of a value above a tenth of its block's largest apart.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, generator=generator) * torch.logspace(-6, 1, 1000)
    x = x.square() if nonnegative else x
    levels, power = (255, 4) if nonnegative else (127, 2)
    grid = torch.tensor([(2 * k + 1) << 22 for k in range(512)], dtype=torch.int64).to(torch.int32)
    draws = []
    for word in grid:
        codes, scales = precision.encode(x, word.expand(1000), nonnegative)
        draws.append(precision.decode(codes, scales).double())
    assert codes.dtype == (torch.uint8 if nonnegative else torch.int8)
    draws, scale = torch.stack(draws), scales.repeat_interleave(precision.BLOCK)[:1000].double()
    share = x.abs().double() / scale
    low = (share ** (1 / power) * levels).floor()
    gap = scale * (((low + 1) / levels) ** power - (low / levels) ** power)
    kept = share > levels**-power if nonnegative else share >= 0  # below the least code, up is forced
    assert ((draws.mean(0) - x.double()).abs() <= gap / 512 + 1e-6 * x.abs())[kept].all()
    top = share > 0.1
    assert ((draws - x.double()).abs() / x.abs())[:, top].max() <= (0.028 if nonnegative else 0.051)
    values = precision.decode(codes, scales)
    again, _ = precision.encode(values, words(1000), nonnegative)
    assert (again != codes).sum() <= 1
    assert not nonnegative or (values[x > 0] > 0).all()


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("exponent", [-126, -100, -91, -90, -89, 0, 100, 127])
def test_eight_bits_of_any_size(nonnegative, exponent):
    """A block's largest never leaves the codes, whatever the word and its own bits; its mean over 4,096 evenly spaced
    words is right to a 4,096th of the distance of two codes, also where the scale is 2^-90 in its place.
    """
    levels, power = (255, 4) if nonnegative else (127, 2)
    grid = (torch.arange(4096, dtype=torch.int64) << 20).to(torch.int32)
    for largest in torch.linspace(1.0, 2.0 - 2.0**-23, 99) * 2.0**exponent:
        codes, scales = precision.encode(largest.expand(4096), grid, nonnegative)
        assert codes.min() >= 0  # int8 would have wrapped
        unit = max(largest.double().item(), 2.0**-90) / levels**power
        low = min(levels - 1.0, math.floor((largest.item() / unit) ** (1 / power)))
        gap = ((low + 1) ** power - low**power) * unit
        mean = precision.decode(codes, scales).double().mean().item()
        assert abs(mean - largest.item()) <= gap / 4096 + 1e-6 * largest.item() or (nonnegative and largest < unit)


@pytest.mark.parametrize("state_dtype", [torch.bfloat16, "8bit"])
def test_narrow_state_follows_the_wide_one(state_dtype):
    """An EMA with beta2 0.999 in bfloat16 would stand still if rounded to nearest: 1 - beta2 is below half an ulp.

    200 steps of a constant gradient: v = 1 − 0.999^200 in the mean over 4,096 elements, to 2 %.
    """
    p = nn.Parameter(torch.zeros(4096))
    c = torch.linspace(0.5, 2.0, 4096)
    optimizer = helene.Adam([p], 0.0, state_dtype=state_dtype)
    for _ in range(200):
        optimizer.step(lambda: p @ c)
    v = optimizer.read_state(0, optimizer.plan().rules[0], slice(0, 4096)).second_moment.double()
    ratio = v / (c.double() ** 2 * (1 - 0.999**200))
    assert abs(ratio.mean().item() - 1) <= 0.02
    assert optimizer.state[p]["second_moment"].dtype == (torch.uint8 if state_dtype == "8bit" else torch.bfloat16)


def test_rounding_is_a_function_of_the_key():
    """Another chunking of the same elements gives the same bits; another step or tensor gives others."""
    whole = noise.words(1, 2, noise.ROUNDING_DRAW, 9, 0, 1000)
    parts = [noise.words(1, 2, noise.ROUNDING_DRAW, 9, a, b - a) for a, b in ((0, 1), (1, 130), (130, 1000))]
    assert torch.equal(whole, torch.cat(parts))
    assert np.array_equal(whole.numpy().view(np.uint32), noise.integers(1, 2, noise.ROUNDING_DRAW, 9, 0, 1000))
    for other in ((2, 2, noise.ROUNDING_DRAW, 9), (1, 3, noise.ROUNDING_DRAW, 9), (1, 2, noise.STATE_DRAW, 9)):
        assert (whole == noise.words(*other, 0, 1000)).sum() <= 1


def test_every_rounding_has_draws_of_its_own(monkeypatch):
    """Weights, m and v are rounded with words that share nothing, else their errors would be correlated."""
    seen, original = [], noise.words

    def recording(seed, step, draw, *rest):
        seen.append((step, draw))
        return original(seed, step, draw, *rest)

    monkeypatch.setattr(noise, "words", recording)
    p = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = helene.Adam([p], 1e-3, rounding="stochastic", state_dtype="8bit", seed=3)
    for _ in range(2):
        optimizer.step(lambda: p.float().sum())
    draws = (noise.STATE_DRAW, noise.STATE_DRAW + 1, noise.ROUNDING_DRAW)
    assert sorted(seen) == sorted((step, draw) for step in (1, 2) for draw in draws)
    assert len({*draws, noise.LABEL_DRAW, noise.CURVATURE_DRAW}) == 5


@pytest.mark.parametrize("name", ["ZOAdam", "HiZOO", "SGD"])
@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_state_does_not_follow_the_default_dtype(name, default):
    """As set by those who load a model in 16 bits; scales of 8-bit state are float32 whatever it is."""
    options = {"momentum": 0.9} if name == "SGD" else {}
    moved = []
    for dtype in (torch.float32, default):
        p = torch.nn.Parameter(torch.linspace(-1, 1, 300))
        optimizer = getattr(helene, name)([p], lr=1e-3, state_dtype="8bit", **options)
        torch.set_default_dtype(dtype)
        try:
            for _ in range(3):
                optimizer.step(lambda p=p: (p - 0.3).square().sum())
        finally:
            torch.set_default_dtype(torch.float32)
        moved.append(p.detach())
    assert torch.equal(*moved)
