"""Encoded examples to tensors: padded rows, the places whose logits are needed, and the tokens looked up there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from llm_bench.data.encode import Encoded
from llm_bench.models.positions import Side

Batch = dict[str, Tensor]
PAD_TO = 8


class OptionSizes(NamedTuple):
    """Sizes of a batch's options where these have several tokens, multiples of `PAD_TO`.

    Attributes:
        tokens: Of an option.
        sites: Places whose logits are computed.
    """

    tokens: int = 0
    sites: int = 0


AS_NEEDED = OptionSizes()


def collate(
    examples: Sequence[Encoded],
    pad_id: int,
    side: Side,
    *,
    labels: bool = False,
    length: int = 0,
    options_at_least: OptionSizes = AS_NEEDED,
    device: torch.device | str = "cpu",
) -> Batch:
    """One batch.

    Args:
        examples: At least one.
        pad_id: Fills rows; masked out.
        side: Where rows are filled up.
        labels: Whether to add ``labels``, the first right option of each example; all must then have equally many.
        length: Row length is at least this, see `llm_bench.data.row_lengths`.
        options_at_least: Sizes of options are at least these, see `llm_bench.data.row_lengths`.
        device: Where the tensors are wanted.

    Returns:
        ``input_ids`` and ``attention_mask`` (rows, time); ``site_rows`` and ``site_positions`` (sites,);
        ``option_sites``, ``option_tokens`` (options, tokens), filled with zeros where ``option_mask`` is 0; ``labels``
        (examples,) if asked for. All int64, but the mask of options, which is float32.

    Raises:
        ValueError: If labels are asked for and the examples differ in their number of options.
    """
    rows = [row for example in examples for row in example.rows]
    longest = max(map(len, rows))
    time = max(length, multiple_of(longest, PAD_TO))
    starts = [time - len(row) if side == "left" else 0 for row in rows]
    ids = np.full((len(rows), time), pad_id, np.int64)
    mask = np.zeros_like(ids)
    for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[i, start : start + len(row)] = row
        mask[i, start : start + len(row)] = 1
    site_rows: list[int] = []
    site_positions: list[int] = []
    options: list[list[tuple[int, int]]] = []
    first_row = 0
    for example in examples:
        first_site = len(site_rows)
        for place, position in example.sites:
            site_rows.append(first_row + place)
            site_positions.append(starts[first_row + place] + position)
        options += [[(first_site + site, token) for site, token in option] for option in example.options]
        first_row += len(example.rows)
    width = max(map(len, options))
    if max(width, options_at_least.tokens) > 1:
        width = max(options_at_least.tokens, multiple_of(width, PAD_TO))
        spare = max(options_at_least.sites, multiple_of(len(site_rows), PAD_TO)) - len(site_rows)
        site_rows += [0] * spare
        site_positions += [starts[0]] * spare
    sites, tokens = np.zeros((2, len(options), width), np.int64)
    filled = np.zeros((len(options), width), np.float32)
    for i, option in enumerate(options):
        sites[i, : len(option)], tokens[i, : len(option)] = zip(*option, strict=True)
        filled[i, : len(option)] = 1
    batch = {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "site_rows": torch.tensor(site_rows),
        "site_positions": torch.tensor(site_positions),
        "option_sites": torch.from_numpy(sites),
        "option_tokens": torch.from_numpy(tokens),
        "option_mask": torch.from_numpy(filled),
    }
    if labels:
        counts = {len(example.options) for example in examples}
        if len(counts) != 1:
            raise ValueError(
                f"examples of one batch have {sorted(counts)} options; a classification loss needs one number"
            )
        batch["labels"] = torch.tensor([example.gold[0] for example in examples])
    return to_device(batch, device)


def packed(batch: Batch, total: int) -> Batch:
    """The batch with its real tokens one after the other, in one row of ``total`` places; padding is left out.

    Layers that see each place alone run on these, and attention sees rows again (`llm_bench.models.packing`).

    Args:
        batch: From `collate`, on the CPU.
        total: At least the number of real tokens; places to spare hold the first token again, and nothing sees them.

    Returns:
        The same but ``input_ids`` (1, total), and sites as places of it; with ``places`` (total,), where each lies in
        the flattened rows, and ``slots`` (rows, time), where each place of a row lies in it, 0 for padding.

    Raises:
        ValueError: If the tokens do not fit.
    """
    mask = batch["attention_mask"]
    real = mask.flatten().nonzero().flatten()
    if len(real) > total:
        raise ValueError(f"the batch holds {len(real)} tokens, and total is {total}; take a larger total")
    places = real[:1].expand(total).clone()
    places[: len(real)] = real
    slots = torch.zeros(mask.numel(), dtype=torch.int64)
    slots[real] = torch.arange(len(real))
    sites = slots.view_as(mask)[batch["site_rows"], batch["site_positions"]]
    ids = batch["input_ids"].flatten()[places][None]
    moved = {"input_ids": ids, "site_rows": torch.zeros_like(sites), "site_positions": sites}
    return {**batch, **moved, "places": places, "slots": slots.view_as(mask)}


INDICES = {"site_rows": "input_ids", "option_sites": "site_rows"}  # entries that are indices, and into which others


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """The batch there; copies to a GPU are not waited for."""
    if torch.device(device).type == "cpu":
        return batch
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in batch.items()}


def multiple_of(size: int, of: int) -> int:
    """The least multiple that is no smaller."""
    return -(-size // of) * of
