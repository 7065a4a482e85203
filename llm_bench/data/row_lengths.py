"""Sizes of batches for captured steps: few, for each is captured for itself, yet close to what the batches need."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from llm_bench.data.batches import AS_NEEDED, PAD_TO, OptionSizes, multiple_of
from llm_bench.data.encode import Encoded
from llm_bench.data.stream import shares

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


def option_sizes(batches: Iterable[Sequence[Encoded]]) -> OptionSizes:
    """The least sizes that all batches of a run fit in, so that they have one shape; 0 where options are one token."""
    tokens = sites = 0
    for batch in batches:
        tokens = max(tokens, *(len(option) for example in batch for option in example.options))
        sites = max(sites, sum(len(example.sites) for example in batch))
    return OptionSizes(multiple_of(tokens, PAD_TO), multiple_of(sites, PAD_TO)) if tokens > 1 else AS_NEEDED


# What a place of a row costs beside one that every layer sees, where tokens are packed: attention's share.
ATTENTION_SHARE = 4


class PackedSizes:
    """The sizes of a run's packed batches: lengths of the rows that attention sees, and tokens in all for each of them.

    Args:
        needs: For each step of a run its longest row, its number of rows and of tokens.
    """

    def __init__(self, needs: Iterable[tuple[int, int, int]]) -> None:
        steps = list(needs)
        self.lengths = row_lengths(((n, count) for n, count, _ in steps), ATTENTION_SHARE * CAPTURE_TOKENS)
        tokens: dict[int, list[tuple[int, int]]] = {}
        for longest, _, total in steps:
            tokens.setdefault(self.length(longest), []).append((total, 1))
        self.totals = {length: row_lengths(same) for length, same in tokens.items()}

    def length(self, longest: int) -> int:
        """Of the rows of a batch whose longest is this."""
        return length_of(longest, self.lengths)

    def total(self, longest: int, tokens: int) -> int:
        """Places of a batch with so many tokens."""
        return length_of(tokens, self.totals.get(self.length(longest), ()))

    @property
    def count(self) -> int:
        """How many shapes there are."""
        return sum(map(len, self.totals.values()))


class RunSizes:
    """The sizes of a run's batches, so that a captured step is replayed for as many as can be.

    Args:
        batches: The examples of each step.
        least: Least length of a row.
        ranks: That share each batch: their parts have one shape, so that all capture and replay at the same steps.

    Attributes:
        needs: See `needs_of`, of each step.
        lengths: Of padded rows.
        packed: Of packed batches.
        options: Of options.
    """

    def __init__(self, batches: Iterable[Sequence[Encoded]], least: int = 0, ranks: int = 1) -> None:
        steps = [shares(batch, ranks) for batch in batches]
        self.needs = [needs_of(parts, least) for parts in steps]
        self.lengths = row_lengths((longest, count) for longest, count, _ in self.needs)
        self.packed = PackedSizes(self.needs)
        self.options = option_sizes(part for parts in steps for part in parts)


def needs_of(parts: Sequence[Sequence[Encoded]], least: int = 0) -> tuple[int, int, int]:
    """The longest row of a batch, and the most rows and tokens that one of its parts has."""
    lengths = [[len(row) for example in part for row in example.rows] for part in parts]
    return max(least, *map(max, lengths)), max(map(len, lengths)), max(map(sum, lengths))
