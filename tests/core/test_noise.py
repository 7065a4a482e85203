"""Directions are a function of their key alone, equal in all layouts, and statistically sound.

Statistical tests fix their seeds; each states its false-alarm rate, that is, how often it would fail for a perfect
generator with another seed.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helene import noise
from helene.noise import numpy_generator, torch_generator

ZERO, ONES, PI = (0, 0, 0, 0), (2**32 - 1,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)


def philox(counter, key, rounds):
    a, b = numpy_generator._philox(*(np.array([word], np.uint64) for word in counter), key[0] | key[1] << 32, rounds)
    return [int(word) for packed in (a[0], b[0]) for word in (packed >> np.uint64(32), packed & np.uint64(2**32 - 1))]


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "words"),
    [
        (7, ZERO, (0, 0), (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (7, ONES, (2**32 - 1,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
        (7, PI, (0xA4093822, 0x299F31D0), (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
        (10, ZERO, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (10, ONES, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (10, PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_words_are_philox_4x32(rounds, counter, key, words):
    """Oracle: the known-answer vectors published with Random123."""
    assert tuple(philox(counter, key, rounds)) == words


def test_golden_words():
    """A change here breaks every recorded trajectory: give the noise a new version."""
    words = noise.integers(
        seed=2**40 + 3, step=5, draw=1, parameter=noise.parameter_id("h.0.weight"), start=6, count=1000
    )
    digest = hashlib.sha256(words.astype("<u4").tobytes()).hexdigest()[:16]
    assert (noise.NOISE_VERSION, digest) == ("philox4x32-7/box-muller/1", "e9a42a40df2e1cdf")


@settings(deadline=None, derandomize=True)
@given(
    start=st.integers(0, 2**20),
    count=st.integers(0, 300),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**32 - 1),
)
def test_any_chunking_gives_the_same_bits(start, count, seed, step):
    """Metamorphic: a piece is a slice of the whole."""
    first = max(0, start - 7)
    whole = noise.normal(seed, step, 3, 11, first, count + 20)
    assert torch.equal(noise.normal(seed, step, 3, 11, start, count), whole[start - first :][:count])
    words = noise.integers(seed, step, 3, 11, first, count + 20)
    assert np.array_equal(noise.integers(seed, step, 3, 11, start, count), words[start - first :][:count])


def test_chunks_of_the_workspace_join():
    n = 4 * numpy_generator._CHUNK + 5
    z = noise.normal(1, 2, 0, 3, 0, n)
    assert torch.equal(z[-9:], noise.normal(1, 2, 0, 3, n - 9, 9))


def test_normals_are_box_muller_within_the_bound():
    """Oracle: log, square root, cosine and sine in float64 of the same float32 uniform and angle.

    The bound, 8 · 2^-24 · max(1, |z|), is what any two devices may differ by; those inputs are IEEE-exact on all.
    """
    key = {"seed": 3, "step": 1, "draw": 0, "parameter": 77, "start": 0, "count": 1 << 20}
    words = noise.integers(**key).astype(np.float64).reshape(-1, 2, 2)
    uniform = words[..., 0].astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    radius = np.sqrt(-2.0 * np.log(uniform.astype(np.float64)))
    angle = ((words[..., 1] // 256).astype(np.float32) * np.float32(2.0 * np.pi / 2**24)).astype(np.float64)
    exact = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(-1)
    error = np.abs(noise.normal(**key).double().numpy() - exact) / np.maximum(1.0, np.abs(exact))
    assert error.max() <= 8 * 2.0**-24


def test_the_generator_in_torch_has_the_same_integers_and_normals():
    key = (2**63 + 12345, 2**31 + 7, 5, 2**47 + 99, 5, 4096)
    words = torch_generator.words(*key, torch.device("cpu"), noise.ROUNDS)
    assert np.array_equal(words.numpy().view(np.uint32), noise.integers(*key))
    expected = noise.normal(*key)
    error = (torch_generator.normal(*key, torch.device("cpu"), noise.ROUNDS) - expected).abs()
    assert (error / expected.abs().clamp_min(1.0)).max() <= 8 * 2.0**-24


def test_extreme_words_give_finite_normals():
    zeros, ones = np.zeros(1, np.uint64), np.full(1, 2**64 - 1, np.uint64)
    for a in (zeros, ones):
        out = np.empty((1, 4), np.float32)
        numpy_generator._box_muller(a, a, out, numpy_generator._Workspace(1))
        assert np.isfinite(out).all()
        assert abs(out).max() <= 6.77  # sqrt(2 · 33 · ln 2)


def test_moments_and_distribution():
    """Four moments and Kolmogorov-Smirnov on 2^20 normals; false alarms: below 5e-9 in all (five tests at 1e-9)."""
    n = 1 << 20
    z = noise.normal(5, 1, 0, 1, 0, n).double().numpy()
    bound = stats.norm.isf(0.5e-9)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - mean) <= bound * np.sqrt(variance / n), power
    assert stats.kstest(z, "norm").pvalue > 1e-9


@pytest.mark.parametrize("axis", ["seed", "step", "draw", "parameter", "start"])
def test_streams_of_neighbouring_keys_are_independent(axis):
    """Correlations of z and of z² between 40 neighbouring keys; false alarms: 1e-9 an axis, by a union bound."""
    n, keys = 1 << 14, 40
    base = {"seed": 7, "step": 7, "draw": 7, "parameter": 7, "start": 0, "count": n}
    move = 4 * n if axis == "start" else 1
    z = np.stack([noise.normal(**{**base, axis: base[axis] + k * move}).double().numpy() for k in range(keys)])
    square = (z**2 - 1) / np.sqrt(2)
    bound = stats.norm.isf(1e-9 / (2 * 2 * keys**2)) / np.sqrt(n)
    for x in (z, square):
        correlation = x @ x.T / n
        np.fill_diagonal(correlation, 0)
        assert abs(correlation).max() <= bound * 1.3  # products of normals have heavier tails than the normal bound


def test_successive_elements_are_independent():
    """Lags 1 to 8 within a stream, Box-Muller partners included; false alarms: 1e-9."""
    n = 1 << 20
    z = noise.normal(11, 3, 0, 5, 0, n).double().numpy()
    bound = stats.norm.isf(1e-9 / 64) / np.sqrt(n)
    for lag in range(1, 9):
        for x, y in ((z[lag:], z[:-lag]), (z[lag:] ** 2 - 1, z[:-lag] ** 2 - 1)):
            assert abs((x * y).mean()) / (x.std() * y.std()) <= bound * 1.05, lag


def avalanche(rounds: int) -> float:
    """Largest |z-score| over input bits x output bits of the rate at which flipping one flips the other."""
    rng = np.random.default_rng(0)
    samples = 4096
    state = [rng.integers(0, 2**32, samples, dtype=np.uint64) for _ in range(4)]
    # counters as they occur: small indices, a few ids, steps and draws; that is where weak generators show
    state[0] %= np.uint64(1 << 10)
    state[2] %= np.uint64(1 << 10)
    state[3] %= np.uint64(4)
    worst = 0.0
    before = numpy_generator._philox(*state, 12345, rounds)
    before = [x.copy() for x in before]
    for word in range(4):
        for bit in range(32):
            flipped = [x.copy() for x in state]
            flipped[word] ^= np.uint64(1 << bit)
            after = numpy_generator._philox(*flipped, 12345, rounds)
            for x, y in zip(before, after, strict=True):
                bits = np.unpackbits((x ^ y).view(np.uint8)).reshape(samples, 64)
                worst = max(worst, float(abs(bits.sum(0) - samples / 2).max() / np.sqrt(samples / 4)))
    return worst


def test_avalanche_passes_with_7_rounds_as_with_10_and_fails_with_5():
    """Each of 128 counter bits flips each of 128 output bits half the time; false alarms: below 1e-9 a generator.

    5 rounds are this test's false twin: it can tell a weak generator.
    """
    bound = stats.norm.isf(1e-9 / (2 * 128 * 128))
    assert avalanche(noise.ROUNDS) <= bound
    assert avalanche(10) <= bound
    assert avalanche(5) > bound


def test_global_generators_are_untouched():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    noise.normal(0, 0, 0, 0, 0, 100)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_ids_of_names_and_positions_differ():
    assert noise.parameter_id("0") != noise.parameter_id(0)
    assert 0 <= noise.parameter_id("transformer.h.0.attn.weight") < 2**48


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**64), ("step", 2**32), ("draw", 2**16), ("parameter", 2**48), ("count", 2**34 + 1)],
)
def test_keys_that_do_not_fit_are_refused(field, value):
    key = {"seed": 0, "step": 0, "draw": 0, "parameter": 0, "start": 0, "count": 1, field: value}
    with pytest.raises(ValueError, match=f"got {value}"):
        noise.normal(**key)
