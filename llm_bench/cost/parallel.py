"""Several GPUs of one host: data parallel, and one model spread over two cards.

``python -m torch.distributed.run --nproc-per-node 2 -m llm_bench.cli measure parallel --out DIR``

First each rank alone, then all together: the throughput at a fixed batch per card (and of `GroupedMeZO` 16 groups a
card), and the same trajectory as one rank with the whole batch, whole models and sharded ones. Then rank 0 puts the
halves of a model on two cards: the same trajectory as on one, for z does not depend on where a parameter is.
``--device cpu`` checks the same over gloo without the throughput.
"""

from __future__ import annotations

import argparse
import json
import os
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from helene import GroupedMeZO, Helene, MeZO, noise
from helene.engine import Engine, sharded
from helene.engine.groups import GroupEngine
from helene.engine.ranks import fingerprint
from helene.lab.runs.provenance import provenance
from helene.lab.runs.store import Record, Store
from llm_bench.cost.engine_table import EPS, EXPERIMENT, GROUPED, HELENE, LR, clean
from llm_bench.cost.timing import Contestant, time_in_turns
from llm_bench.models.shapes import build, language_loss, random_batch, row_losses, rows_and_tokens

STEPS = 10
ROWS, LENGTH = 4, 32  # of the trajectories, on each rank
TRAJECTORY_LR = 1e-3
# Float32 losses of about 11, summed in another order, are off by some four units of 2^-24 relative, and c by 2.6e-3. At
# lr 1e-3, a momentum that sums to at most 10, |z| up to 5 and a denominator of at least 1, each of ten steps moves
# theta by at most 1.3e-4 otherwise, too little for the losses to show. Another z in one step moves theta by 1e-2.
LOSS_LIMIT, THETA_LIMIT = 2e-5, 1.3e-3


def main(arguments: argparse.Namespace) -> int:
    """Run on every rank; rank 0 writes. Returns 1 where a trajectory is not the same."""
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if arguments.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shapes = [rows_and_tokens(text) for text in arguments.batches.split(",")]
    if device.type == "cpu":
        shapes = []
    contestants = [(name, shape) for name in ("MeZO", GROUPED) for shape in shapes]
    alone = {what: _seconds(arguments, *what, rank) for what in contestants}
    batch = whole_batch(size, device)
    expected, grouped = trajectory(batch, device), grouped_trajectory(batch, size, device)
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=120), **options)
    store = dist.distributed_c10d._get_default_store()  # to wait without a kernel that holds the card
    own = {name: value[ROWS * rank : ROWS * (rank + 1)] for name, value in batch.items()}
    mine, shares, groups = (
        trajectory(own, device),
        sharded_trajectory(own, device),
        grouped_trajectory(own, size, device),
    )
    together = {what: _seconds(arguments, *what, rank) for what in contestants}
    times = torch.tensor([[alone[w], together[w]] for w in contestants], device=device, dtype=torch.float64)
    if contestants:
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
    fine = True
    if rank == 0:
        results = [
            ({"part": "data parallel", "ranks": size}, {**compare(expected, mine), "same_bits": mine["same_bits"]})
        ]
        results.append(({"part": "sharded", "ranks": size}, compare(expected, shares)))
        of_groups = {**compare(grouped, groups), "same_bits": groups["same_bits"]}
        results.append(({"part": "groups", "ranks": size}, of_groups))
        results.append(({"part": "spread", "cards": _cards(device)}, spread_check(device)))
        for (name, (rows, length)), (one, many) in zip(contestants, times.tolist(), strict=True):
            seconds = {"alone_seconds": one, "together_seconds": many, "throughput": size * one / many}
            of = {"part": "throughput", "ranks": size, "rows": rows, "length": length}
            results.append((of if name == "MeZO" else {**of, "contestant": name}, seconds))
        fine = all(result.get("same", True) and result.get("same_bits", True) for _, result in results)
        _write(arguments, device, results)
        store.set("written", "1")
    store.wait(["written"], timedelta(seconds=120))
    dist.barrier()
    dist.destroy_process_group()
    return 0 if fine else 1


def _write(arguments: argparse.Namespace, device: torch.device, results: list[tuple[dict[str, Any], Any]]) -> None:
    origin = provenance()
    with Store(arguments.out / "parallel.sqlite") as store:
        for config, result in results:
            model = (arguments.shape, "bfloat16") if config["part"] == "throughput" else ("opt-tiny", "float32")
            whole = {
                "model": model[0],
                "dtype": model[1],
                "noise": noise.NOISE_VERSION,
                "device": device.type,
                **config,
            }
            store.put(Record.of(EXPERIMENT, whole, {"status": "reached", **result}, origin))
            print(json.dumps({**config, **result}), flush=True)
        store.export_jsonl(arguments.out / "parallel.jsonl", EXPERIMENT)


def whole_batch(size: int, device: torch.device) -> dict[str, Tensor]:
    """The batch of all ranks, nothing masked, so that equal shares have equally many terms."""
    batch = random_batch(ROWS * size, LENGTH, str(device))
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"]), "labels": batch["input_ids"].clone()}


def trajectory(batch: dict[str, Tensor], device: torch.device) -> dict[str, Any]:
    """Some steps of HELENE on a small float32 model.

    Returns:
        ``losses``; ``theta``, one flat tensor; ``same_bits``, whether all ranks ended with the same; ``mode``.
    """
    model = build("opt-tiny", torch.float32, str(device))
    return {**_steps(model, batch, device), "same_bits": _same_on_all_ranks(model)}


def sharded_trajectory(batch: dict[str, Tensor], device: torch.device) -> dict[str, Any]:
    """The same steps of the same model, every block and the whole sharded over the ranks."""
    from torch.distributed.fsdp import fully_shard

    model: Any = build("opt-tiny", torch.float32, str(device))
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.model.decoder.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = sharded(Helene, model, lr=TRAJECTORY_LR, eps=EPS, **HELENE)
    losses = [float(optimizer.step(lambda: language_loss(model, batch))) for _ in range(STEPS)]
    theta = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    return {"losses": losses, "theta": theta, "mode": "plain", "reason": "parameters are sharded"}


def grouped_trajectory(batch: dict[str, Tensor], size: int, device: torch.device) -> dict[str, Any]:
    """Some steps of `GroupedMeZO`, two groups a rank; as `trajectory`."""
    model = build("opt-tiny", torch.float32, str(device))
    optimizer = GroupedMeZO(model.named_parameters(), TRAJECTORY_LR, groups=2 * size, eps=EPS)
    engine = GroupEngine(model, optimizer, row_losses, check_every=3)
    return {**_made(engine, batch, device), "same_bits": _same_on_all_ranks(model)}


def _steps(model: nn.Module, batch: dict[str, Tensor], device: torch.device) -> dict[str, Any]:
    optimizer = Helene(model.named_parameters(), TRAJECTORY_LR, eps=EPS, model=model, **HELENE)
    return _made(Engine(model, optimizer, language_loss, check_every=3), batch, device)


def _made(engine: Engine | GroupEngine, batch: dict[str, Tensor], device: torch.device) -> dict[str, Any]:
    losses = [float(engine.step(batch)) for _ in range(STEPS)]
    engine.flush()
    theta = torch.cat([p.detach().flatten().to(device) for p in engine.model.parameters()])
    return {"losses": losses, "theta": theta, "mode": engine.mode, "reason": engine.reason}


def _same_on_all_ranks(model: nn.Module) -> bool:
    if not dist.is_initialized():
        return True
    low = torch.cat([fingerprint(p) for p in model.parameters()])
    high = low.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    return bool(torch.equal(low, high))


def compare(expected: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
    """How far two trajectories are apart, and whether that is rounding (see `LOSS_LIMIT`)."""
    pairs = list(zip(expected["losses"], mine["losses"], strict=True))
    loss = max(abs(a - b) / abs(a) for a, b in pairs)
    theta = float((expected["theta"] - mine["theta"]).abs().max())
    moved = abs(expected["losses"][0] - expected["losses"][-1])
    return {
        "same": loss <= LOSS_LIMIT and theta <= THETA_LIMIT,
        "largest_loss_difference": loss,
        "largest_theta_difference": theta,
        "loss_moved": moved,
        "losses": [list(pair) for pair in pairs],
        "modes": [expected["mode"], mine["mode"]],
        "reasons": [expected["reason"], mine["reason"]],
    }


def _cards(device: torch.device) -> int:
    return min(2, torch.cuda.device_count()) if device.type == "cuda" else 1


def spread_check(device: torch.device) -> dict[str, Any]:
    """The trajectory of a model on two cards (on one where there is no second) beside that on one.

    No process group must be asked for its ranks here: rank 0 is alone with it.
    """
    batch = whole_batch(1, device)
    expected = _alone(build("opt-tiny", torch.float32, str(device)), batch, device)
    model = build("opt-tiny", torch.float32, str(device))
    other = torch.device("cuda", 1) if _cards(device) > 1 else device
    spread(model, other)
    mine = _alone(model, batch, device)
    devices = sorted({str(p.device) for p in model.parameters()})
    return {**compare(expected, mine), "devices": devices}


def _alone(model: nn.Module, batch: dict[str, Tensor], device: torch.device) -> dict[str, Any]:
    """Steps by the optimizer itself, which knows of no other rank."""
    optimizer = Helene(model.named_parameters(), TRAJECTORY_LR, eps=EPS, model=model, **HELENE)
    losses = [float(optimizer.step(lambda: language_loss(model, batch))) for _ in range(STEPS)]
    theta = torch.cat([p.detach().flatten().to(device) for p in model.parameters()])
    return {"losses": losses, "theta": theta, "mode": "plain", "reason": ""}


def spread(model: Any, other: torch.device) -> None:
    """Put the second half of an OPT model's blocks on another device; hooks move what comes in, as accelerate's do."""
    first = next(model.parameters()).device
    blocks = list(model.model.decoder.layers)
    for block in blocks[len(blocks) // 2 :]:
        block.to(other)
        block.register_forward_pre_hook(partial(_move, other), with_kwargs=True)
    after = model.model.decoder.final_layer_norm
    after.register_forward_pre_hook(partial(_move, first), with_kwargs=True)


def _move(device: torch.device, module: nn.Module, args: Any, kwargs: Any) -> Any:
    return torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))


def _seconds(arguments: argparse.Namespace, name: str, shape: tuple[int, ...], rank: int) -> float:
    model = build(arguments.shape)
    batch = random_batch(shape[0], shape[1], seed=rank)
    size = dist.get_world_size() if dist.is_initialized() else 1
    engine: Engine | GroupEngine
    if name == GROUPED:
        optimizer = GroupedMeZO(model.named_parameters(), LR, groups=16 * size, eps=EPS, rounding="stochastic")
        engine = GroupEngine(model, optimizer, row_losses, doubled={})
    else:
        engine = Engine(model, MeZO(model.named_parameters(), lr=LR, eps=EPS, model=model), language_loss)
    if dist.is_initialized():
        dist.barrier()
    step = Contestant(partial(engine.step, batch))
    seconds: float = time_in_turns({name: step}, arguments.rounds)[name]["median_seconds"]
    if engine.mode != "graph":
        raise RuntimeError(f"the step was not captured: {engine.reason}")
    engine.flush()
    del model, engine, step
    clean()
    return seconds
