"""Lengths of rows for captured steps: few, for each is captured for itself, yet close to what the batches need."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from llm_bench.data.batches import PAD_TO, multiple_of

# What a capture takes, in tokens of captured steps: 0.5 to 0.9 s at 14 microseconds a token (Gemma 270M in float32 on
# an H200).
CAPTURE_TOKENS = 50_000


def row_lengths(needs: Iterable[tuple[int, int]], capture_tokens: int = CAPTURE_TOKENS) -> tuple[int, ...]:
    """The lengths, multiples of `PAD_TO`, with the least sum of padded tokens and captures.

    Args:
        needs: For each step of a run its longest row and its number of rows.
        capture_tokens: Padded tokens that a length more must save.
    """
    rows: Counter[int] = Counter()
    for longest, count in needs:
        rows[multiple_of(longest, PAD_TO)] += count
    sizes = sorted(rows)
    # best[j]: cost and lengths of the steps that need at most the j smallest sizes.
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    for j, size in enumerate(sizes):
        options, count = [], 0
        for i in range(j, -1, -1):
            count += rows[sizes[i]]
            options.append((best[i][0] + count * size + capture_tokens, (*best[i][1], size)))
        best.append(min(options))
    return best[-1][1]


def length_of(longest: int, lengths: tuple[int, ...]) -> int:
    """The least of the lengths that is enough; the next multiple of `PAD_TO` where none is."""
    place = bisect_left(lengths, longest)
    return lengths[place] if place < len(lengths) else multiple_of(longest, PAD_TO)
