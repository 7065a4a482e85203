"""Data parallel on the GPUs of one host.

``python -m torch.distributed.run --nproc-per-node 2 -m llm_bench.rivals.parallel --out DIR``

First each rank alone, then all together: the same trajectory as one rank with the whole batch, and the throughput at a
fixed batch per card.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from helene import Helene, MeZO, noise
from helene.engine import Engine
from helene.engine.parallel import fingerprint
from helene.lab.provenance import provenance
from helene.lab.store import Record, Store
from llm_bench.rivals.measure import EPS, EXPERIMENT, HELENE, LR, clean
from llm_bench.rivals.shapes import build, language_loss, random_batch
from llm_bench.rivals.timing import Contestant, time_in_turns


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; rank 0 writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="opt-1.3b")
    parser.add_argument("--batches", default="16x64,16x256")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args(argv)
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    shapes = [tuple(int(number) for number in text.split("x")) for text in arguments.batches.split(",")]
    alone = {shape: _seconds(arguments, shape, rank) for shape in shapes}
    batch = random_batch(4 * size, 32)
    batch |= {"attention_mask": torch.ones_like(batch["attention_mask"]), "labels": batch["input_ids"]}
    whole = _trajectory(batch)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    parts = _trajectory({name: value[4 * rank : 4 * (rank + 1)] for name, value in batch.items()})
    together = {shape: _seconds(arguments, shape, rank) for shape in shapes}
    times = torch.tensor([[alone[s], together[s]] for s in shapes], device="cuda", dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    if rank == 0:
        with Store(arguments.out / "parallel.sqlite") as store:
            for (rows, length), (one, many) in zip(shapes, times.tolist(), strict=True):
                config = {
                    "model": arguments.model, "dtype": "bfloat16", "noise": noise.NOISE_VERSION, "part": "parallel",
                    "rows": rows, "length": length, "ranks": size,
                }  # fmt: skip
                result = {
                    "status": "reached", "alone_seconds": one, "together_seconds": many,
                    "throughput": size * one / many,
                    "losses_alone": whole[0], "losses_together": parts[0], "same_parameters": parts[1],
                }  # fmt: skip
                store.put(Record.of(EXPERIMENT, config, result, provenance()))
                print(rows, length, result, flush=True)
            store.export_jsonl(arguments.out / "parallel.jsonl", EXPERIMENT)
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _seconds(arguments: argparse.Namespace, shape: tuple[int, ...], rank: int) -> float:
    model = build(arguments.model)
    batch = random_batch(shape[0], shape[1], seed=rank)
    engine = Engine(model, MeZO(model.named_parameters(), lr=LR, eps=EPS, model=model), language_loss)
    if dist.is_initialized():
        dist.barrier()
    step = Contestant(partial(engine.step, batch))
    seconds: float = time_in_turns({"MeZO": step}, arguments.rounds)["MeZO"]["median_seconds"]
    del model, engine, step
    clean()
    return seconds


def _trajectory(batch: dict[str, Any]) -> tuple[list[float], bool]:
    """Losses of ten steps of HELENE on a small float32 model, and whether all ranks end with the same bits."""
    model = build("opt-tiny", torch.float32)
    optimizer = Helene(model.named_parameters(), 1e-3, eps=EPS, model=model, **HELENE)
    engine = Engine(model, optimizer, language_loss, check_every=3)
    losses = [float(engine.step(batch)) for _ in range(10)]
    engine.flush()
    if not dist.is_initialized():
        return losses, True
    prints = torch.cat([fingerprint(p) for p in model.parameters()])
    low, high = prints.clone(), prints.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return losses, bool(torch.equal(low, high))


if __name__ == "__main__":
    sys.exit(main())
