"""Monte Carlo checks with false-alarm rates that are proved for the sample size at hand, not asymptotic.

Every check of the ledger spends :data:`ALARM`; :data:`BUDGET` of them keep a run under 1e-6, and one more is refused.
Seeds are fixed, so a check that passes once passes always with the same numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

ALARM = 1e-9
BUDGET = 500

_BLOCK_MISS = 0.125  # a block's mean is off by sd/sqrt(0.125 m) with at most this probability (Chebyshev)


_spent = 0.0


def _spend(alarm: float) -> None:
    """Books a check's false-alarm rate on this process."""
    global _spent
    _spent += alarm
    if _spent > ALARM * BUDGET * (1 + 1e-9):  # rounding of the sum
        raise ValueError(
            f"false-alarm rate of this run must stay within {ALARM * BUDGET:g}, got {_spent:g}; drop a check"
        )


def num_blocks(alarm: float = ALARM) -> int:
    """Least odd number of blocks of which half miss with probability at most ``alarm`` (exact binomial tail)."""
    blocks = 1
    while _tail(blocks) > alarm:
        blocks += 2
    return blocks


def _tail(blocks: int) -> float:
    p, least = _BLOCK_MISS, (blocks + 1) // 2
    return math.fsum(math.comb(blocks, k) * p**k * (1 - p) ** (blocks - k) for k in range(least, blocks + 1))


def assert_mean(samples: NDArray[np.float64], mean: float, sd: float, what: str) -> str:
    """Median of means against a mean, given the true standard deviation (or a bound on it).

    Independent draws of finite variance are all that is assumed: each of k blocks of m draws misses the mean by more
    than sd·sqrt(8/m) with probability at most 1/8, and the median of the blocks only if half of them do.

    Returns:
        What was found, for the record.

    Raises:
        AssertionError: If the median of means is further off.
    """
    _spend(ALARM)
    blocks = num_blocks()
    size = len(samples) // blocks
    if size < 1:
        raise ValueError(f"{len(samples)} draws are too few for {blocks} blocks")
    found = float(np.median(samples[: size * blocks].reshape(blocks, size).mean(axis=1)))
    tolerance = sd * math.sqrt(1 / (_BLOCK_MISS * size))
    assert abs(found - mean) <= tolerance, f"{what}: found {found:.6g}, theory {mean:.6g} ± {tolerance:.2g}"
    return f"{what} {found:.4g} (theory {mean:.4g} ± {tolerance:.2g})"


def assert_law(
    samples: NDArray[np.float64],
    cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    what: str,
    alarm: float = ALARM,
) -> str:
    """Empirical against a continuous distribution function, by the Dvoretzky-Kiefer-Wolfowitz inequality.

    Args:
        samples: Independent draws.
        cdf: The law.
        what: Its name.
        alarm: False-alarm rate.

    Raises:
        AssertionError: If the largest distance exceeds sqrt(ln(2/alarm)/(2n)).
    """
    _spend(alarm)
    x = np.sort(samples)
    n = len(x)
    values = cdf(x)
    distance = float(max(np.max(np.arange(1, n + 1) / n - values), np.max(values - np.arange(n) / n)))
    tolerance = math.sqrt(math.log(2 / alarm) / (2 * n))
    assert distance <= tolerance, f"{what}: distance {distance:.4g} from its law, allowed {tolerance:.4g}"
    return f"{what}: {n} draws, distance {distance:.2g} from the law (allowed {tolerance:.2g})"
