"""Peak bytes of each way to tune a model, measured in fresh processes beside what `models.step_memory` predicts.

``helene llm table memory`` calls it. Each row is kept as soon as it is there, and a second call goes on with the
missing ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from llm_bench.cost.memory_row import NOT_TRIED, STEPS, Children, MemoryRow, predict_row

EXPERIMENT = "memory"
SHAPES = ("opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b")
BATCHES = ("16x64", "1x400", "16x256")
_PREDICTION_SECONDS = 0.5  # that a row of OPT's shapes takes without a GPU
_AHEAD = 6  # processes that import while another measures


def measure_all(
    store: Any,
    rows: Sequence[MemoryRow],
    shapes: Sequence[str],
    batches: Sequence[str],
    *,
    device: str = "cuda",
    minutes: float | None = None,
    say: Callable[[str], Any] = print,
) -> int:
    """Predict every row, and measure those that the card has room for and the store lacks.

    Args:
        store: Where records go.
        rows: Ways to tune.
        shapes: Models, see `llm_bench.models.shapes`.
        batches: Such as ``16x64``: rows and tokens a row.
        device: ``cuda``; on ``cpu`` rows are predicted only.
        minutes: Begin no row after this time.
        say: Told a line beforehand and one a row.

    Returns:
        How many rows are left.
    """
    from helene.lab.runs.provenance import provenance
    from helene.lab.runs.store import Record
    from helene.lab.sweeps.progress import readable_seconds

    card, origin = _card(device), provenance()
    wanted = [
        (config, row)
        for batch in batches
        for shape in shapes
        for row in rows
        if (config := _config(row, shape, batch, card))
        and not _is_done(store.get(Record.of(EXPERIMENT, config, {}, origin).key, EXPERIMENT))
    ]
    start = time.monotonic()
    end = start + 60 * minutes if minutes is not None else None
    left = len(wanted)
    if left and card:
        say(f"{left} rows to predict, then to measure where {card['name']} has room, each in a process of its own")
    elif left:
        about = readable_seconds(left * _PREDICTION_SECONDS)
        say(f"{left} rows to predict, some {about} on one core; nothing is measured, that takes --device cuda")
    with ThreadPoolExecutor(1) as ahead, Children(min(_AHEAD, len(wanted)) if card else 0) as children:
        predictions = [ahead.submit(predict_row, row, config["model"], config["batch"]) for config, row in wanted]
        for (config, row), prediction in zip(wanted, predictions, strict=True):
            if end is not None and time.monotonic() > end:
                ahead.shutdown(cancel_futures=True)
                break
            predicted = prediction.result()
            result: dict[str, Any] = {"predicted_bytes": predicted}
            if card and predicted["total"] > card["bytes"]:
                message = f"{NOT_TRIED}: {predicted['total']} bytes predicted, the card has {card['bytes']}"
                result |= {"status": "out_of_memory", "message": message, "peak_bytes": None}
            elif card:
                result |= children.run(row, config["model"], config["batch"])
            else:
                result |= {"status": "reached", "message": "predicted only", "peak_bytes": None}
            store.put(Record.of(EXPERIMENT, config, result, origin))
            left -= 1
            peak = result["peak_bytes"]
            off = f"{peak / predicted['total'] - 1:+.1%}" if peak else ""
            measured = f"{peak / 1e9:.2f}" if peak else "–"
            told = f"{measured:>8s} GB, predicted {predicted['total'] / 1e9:.2f} {off} {result['message']}"
            done = len(wanted) - left
            until = readable_seconds((time.monotonic() - start) / done * left)
            say(f"{done}/{len(wanted)} {config['model']:9s} {config['batch']:6s} {row.name:38s} {told}; {until} left")
    return left


def _is_done(record: Any) -> bool:
    return record is not None and record.result["status"] != "error"


def _config(row: MemoryRow, shape: str, batch: str, card: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**asdict(row), "model": shape, "batch": batch, "device": card["name"] if card else "none", "steps": STEPS}


def _card(device: str) -> dict[str, Any] | None:
    import torch

    if not device.startswith("cuda"):
        return None
    if not torch.cuda.is_available():
        raise ValueError(f"device {device!r} was asked for, but torch sees no CUDA device; with cpu rows are predicted")
    found = torch.cuda.get_device_properties(device)
    return {"name": found.name, "bytes": found.total_memory}
