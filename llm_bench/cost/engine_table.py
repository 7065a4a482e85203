"""The engine's step beside its floor and its rivals, on one GPU.

Everything that is compared runs in one process, in turns; each time is a median with quartiles. Records go to
``DIR/engine.sqlite`` and, one line each, to ``DIR/engine.jsonl``.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helene import GroupedMeZO, Helene, MeZO, noise
from helene.engine import Engine
from helene.engine.groups import GroupEngine
from helene.lab.runs.provenance import provenance
from helene.lab.runs.store import Record, Store
from llm_bench.cost import kernel_timing, timeline
from llm_bench.cost.captured_forwards import CapturedForwards
from llm_bench.cost.host_time import host_seconds
from llm_bench.cost.rivals.in_place import InPlaceMeZO
from llm_bench.cost.rivals.published import PublishedMeZO
from llm_bench.cost.timing import Contestant, seconds_of, time_in_turns
from llm_bench.models.loading import LanguageModel
from llm_bench.models.shapes import build, language_loss, num_parameters, random_batch, row_losses, rows_and_tokens
from llm_bench.models.tuning import Tuning, prepare, trained

EXPERIMENT = "engine"
LR, EPS = 1e-7, 1e-3
HELENE: dict[str, Any] = {"anneal_horizon": 10_000, "batch_size": 16, "interval": 10}


def main(arguments: argparse.Namespace) -> int:
    """Run the parts asked for."""
    parts = arguments.parts.split(",")
    with Store(arguments.out / "engine.sqlite") as store:
        recorder = Recorder(store, arguments.shape)
        if "micro" in parts:
            recorder.put(
                {"part": "micro"},
                {"kernels": kernel_timing.measure(), "cosine_error": kernel_timing.fast_cosine_error()},
            )
        if "overlap" in parts:
            recorder.put({"part": "overlap"}, {"seconds": kernel_timing.overlap()})
        for text in arguments.batches.split(","):
            rows, length = rows_and_tokens(text)
            for name, part in PARTS.items():
                if name in parts:
                    part(recorder, rows, length, arguments)
                    clean()
        store.export_jsonl(arguments.out / "engine.jsonl", EXPERIMENT)
    return 0


class Recorder:
    """Puts results into the store, and shows them."""

    def __init__(self, store: Store, model: str) -> None:
        self.store, self.model, self.origin = store, model, provenance()

    def put(self, config: dict[str, Any], result: dict[str, Any]) -> None:
        """Keep one result under what was asked."""
        whole = {"model": self.model, "dtype": "bfloat16", "noise": noise.NOISE_VERSION, **config}
        self.store.put(Record.of(EXPERIMENT, whole, {"status": "reached", **result}, self.origin))
        print(json.dumps({**config, **result}), flush=True)


def _mezo(model: nn.Module) -> MeZO:
    return MeZO(model.named_parameters(), lr=LR, eps=EPS, model=model)


def _adapter_mezo(model: Any) -> MeZO:
    return MeZO(trained(model), lr=1e-4, eps=1e-2, model=model)


def _helene(state_dtype: str) -> Callable[[nn.Module], Helene]:
    return lambda m: Helene(m.named_parameters(), LR, eps=EPS, state_dtype=state_dtype, model=m, **HELENE)


def _grouped(model: nn.Module) -> GroupedMeZO:
    return GroupedMeZO(model.named_parameters(), LR, groups=16, eps=EPS, rounding="stochastic")


GROUPED = "GroupedMeZO, 16 groups"
FULL = {"MeZO": _mezo, "HELENE, bf16 state": _helene("bfloat16"), "HELENE, 8-bit state": _helene("8bit")}


def table(recorder: Recorder, rows: int, length: int, arguments: argparse.Namespace) -> None:
    """Seconds of a step of each contestant at one batch shape, and the ratios of the engine's table."""
    batch = random_batch(rows, length)
    base = build(arguments.shape)
    quick = length > 64
    contestants: dict[str, Contestant] = {
        "two forwards": Contestant(CapturedForwards(lambda: language_loss(base, batch)))
    }
    engines: dict[str, Engine] = {}

    def engine(name: str, optimizer: Callable[[nn.Module], Any], **options: Any) -> None:
        model = copy.deepcopy(base)
        engines[name] = Engine(model, optimizer(model), language_loss, **options)
        contestants[name] = Contestant(partial(engines[name].step, batch))

    for name, optimizer in FULL.items():
        engine(name, optimizer)
    engine("MeZO, forwards in turns", FULL["MeZO"], concurrent=False)
    eager, by_step = _without_engine(copy.deepcopy(base), FULL["MeZO"], batch)
    contestants["two eager forwards"], contestants["MeZO, optimizer.step"] = eager, by_step
    rival = copy.deepcopy(base)
    targets = MeZO(rival.named_parameters(), model=rival).targets
    fused = InPlaceMeZO(targets, lambda: language_loss(rival, batch), LR, EPS)
    contestants["rival: fused in place, captured"] = Contestant(fused.step)
    published_model, captured_model = copy.deepcopy(base), copy.deepcopy(base)
    published = PublishedMeZO(list(published_model.parameters()), LR, EPS)
    contestants["rival: published MeZO"] = Contestant(
        lambda: published.step(lambda: language_loss(published_model, batch)), 1 if quick else 2
    )
    replayed = CapturedForwards(lambda: language_loss(captured_model, batch), count=1)
    again = PublishedMeZO(list(captured_model.parameters()), LR, EPS, in_place=True)
    contestants["rival: published MeZO, captured forwards"] = Contestant(
        lambda: again.step(replayed), 1 if quick else 2
    )
    for tuning in ("lora", "prefix"):
        found = _adapted(copy.deepcopy(base), tuning, batch)
        contestants |= {f"{tuning}: {name}": contestant for name, contestant in found.items()}
    results = time_in_turns(contestants, arguments.rounds)
    for name, result in results.items():
        modes = {"mode": engines[name].mode, "reason": engines[name].reason} if name in engines else {}
        recorder.put({"part": "table", "rows": rows, "length": length, "contestant": name}, {**result, **modes})
    for name, made in engines.items():
        made.flush()
        print(f"{name}: scratch {made.scratch_bytes / 1e6:.0f} MB", flush=True)
    floor, ours = results["two forwards"]["median_seconds"], results["MeZO"]["median_seconds"]
    ratios = {
        name: r["median_seconds"] / floor for name, r in results.items() if "lora" not in name and "prefix" not in name
    }
    ratios |= {f"{name} / MeZO": r["median_seconds"] / ours for name, r in results.items() if name.startswith("rival")}
    for tuning in ("lora", "prefix"):
        ratios[tuning] = (
            results[f"{tuning}: MeZO"]["median_seconds"] / results[f"{tuning}: two forwards"]["median_seconds"]
        )
    for of in ("", "lora: ", "prefix: "):
        step, eager = (results[of + name]["median_seconds"] for name in ("MeZO, optimizer.step", "two eager forwards"))
        ratios[f"{of}MeZO, optimizer.step / two eager forwards"] = step / eager
    recorder.put({"part": "ratios", "rows": rows, "length": length}, {"ratios": ratios})


def _without_engine(
    module: Any, optimizer: Callable[[nn.Module], Any], batch: dict[str, Tensor]
) -> tuple[Contestant, Contestant]:
    """Two forwards as a user would call them, and `optimizer.step`."""
    made = optimizer(module)

    def forwards() -> None:
        with torch.no_grad():
            for _ in range(2):
                language_loss(module, batch)

    return Contestant(forwards), Contestant(lambda: made.step(lambda: language_loss(module, batch)))


def _prepare(module: Any, tuning: str) -> None:
    prepare(LanguageModel(module, None, "causal", "random", "none", (), (), 2048), Tuning(tuning))  # type: ignore[arg-type]


def _adapted(module: Any, tuning: str, batch: dict[str, Tensor]) -> dict[str, Contestant]:
    _prepare(module, tuning)
    forwards = CapturedForwards(lambda: language_loss(module, batch))
    engine = Engine(module, _adapter_mezo(module), language_loss)
    eager, by_step = _without_engine(copy.deepcopy(module), _adapter_mezo, batch)
    return {
        "two forwards": Contestant(forwards),
        "MeZO": Contestant(lambda: engine.step(batch)),
        "two eager forwards": eager,
        "MeZO, optimizer.step": by_step,
    }


def alone(recorder: Recorder, rows: int, length: int, arguments: argparse.Namespace) -> None:
    """The engine's steps of `table`, each with one model alone on the card, in turns with two forwards of that model.

    For shapes of which a card does not hold the copies that all contestants of `table` need.
    """
    batch = random_batch(rows, length)
    tuned = {"lora: MeZO": _adapter_mezo, "prefix: MeZO": _adapter_mezo}
    for name, optimizer in (FULL | tuned | {GROUPED: _grouped}).items():
        model = build(arguments.shape)
        if name in tuned:
            _prepare(model, name.partition(":")[0])
        made: Any = optimizer(model)
        engine: Any = (
            GroupEngine(model, made, row_losses, doubled={}) if name == GROUPED else Engine(model, made, language_loss)
        )
        floor = CapturedForwards(partial(language_loss, model, batch))
        pair = {"two forwards": Contestant(floor), name: Contestant(partial(engine.step, batch))}
        results = time_in_turns(pair, arguments.rounds)
        ratio = results[name]["median_seconds"] / results["two forwards"]["median_seconds"]
        told = {"mode": engine.mode, "reason": engine.reason, "over two forwards": ratio}
        config = {"part": "alone", "rows": rows, "length": length, "contestant": name}
        recorder.put(config, {**results[name], **told})
        del model, made, engine, floor, pair
        clean()


def compiled(recorder: Recorder, rows: int, length: int, arguments: argparse.Namespace) -> None:
    """MeZO's captured step with the model's layers compiled, in turns with the step of the same model as it is."""
    batch = random_batch(rows, length)
    base = build(arguments.shape)
    engines: dict[str, Engine] = {}
    seconds: dict[str, float] = {}
    for name in ("MeZO", "MeZO, compiled"):
        model = copy.deepcopy(base)
        engine = engines[name] = Engine(model, _mezo(model), language_loss, compile=name != "MeZO")
        engine.step(batch)
        seconds[name] = seconds_of(partial(engine.step, batch), torch.device("cuda"))  # compiles and captures
    contestants = {name: Contestant(partial(engine.step, batch)) for name, engine in engines.items()}
    floor = CapturedForwards(lambda: language_loss(base, batch))
    results = time_in_turns({"two forwards": Contestant(floor), **contestants}, arguments.rounds)
    for name, result in results.items():
        config = {"part": "compiled", "rows": rows, "length": length, "contestant": name}
        if name in engines:
            engine = engines[name]
            result |= {"mode": engine.mode, "reason": engine.reason, "compiled": engine.compiled}
            result |= {"capture_seconds": seconds[name], "scratch_bytes": engine.scratch_bytes}
        recorder.put(config, result)


def memory(recorder: Recorder, rows: int, length: int, arguments: argparse.Namespace) -> None:
    """Peak bytes that tensors take: one captured forward, and captured steps of MeZO and HELENE."""
    peaks = {"inference": _peak(arguments.shape, rows, length, None)}
    for name, state_dtype in (("MeZO", ""), ("HELENE, bf16 state", "bfloat16"), ("HELENE, 8-bit state", "8bit")):
        peaks[name] = _peak(arguments.shape, rows, length, state_dtype)
    size = num_parameters(arguments.shape)
    result = {
        "peak_bytes": peaks,
        "MeZO / inference": peaks["MeZO"] / peaks["inference"],
        "bytes a parameter, bf16 state": (peaks["HELENE, bf16 state"] - peaks["MeZO"]) / size,
        "bytes a parameter, 8-bit state": (peaks["HELENE, 8-bit state"] - peaks["MeZO"]) / size,
        "num_parameters": size,
    }
    recorder.put({"part": "memory", "rows": rows, "length": length}, result)


def _peak(shape: str, rows: int, length: int, state_dtype: str | None) -> int:
    """Most bytes that tensors take in captured steps from a fresh model on; of one captured forward for None."""
    clean()
    before = torch.cuda.memory_allocated()
    model, batch = build(shape), random_batch(rows, length)
    torch.cuda.reset_peak_memory_stats()
    if state_dtype is None:
        CapturedForwards(lambda: language_loss(model, batch), count=1)()
    else:
        named = model.named_parameters()
        optimizer: Any = (
            Helene(named, LR, state_dtype=state_dtype, model=model, **HELENE)
            if state_dtype
            else MeZO(named, LR, model=model)
        )
        engine = Engine(model, optimizer, language_loss)
        for _ in range(4):
            engine.step(batch)
        if engine.mode != "graph":
            raise RuntimeError(f"the step was not captured: {engine.reason}")
    torch.cuda.synchronize()
    taken, held = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_reserved()
    print(f"{state_dtype}: before {before}, peak {taken}, reserved {held}", flush=True)
    return taken


def zero(recorder: Recorder, rows: int, length: int, arguments: argparse.Namespace) -> None:
    """How many bits of theta change in 1,000 steps at learning rate 0, in bf16 and fp16."""
    changed, losses = {}, {}
    for dtype in (torch.bfloat16, torch.float16):
        model = build(arguments.shape, dtype)
        batch = random_batch(rows, length)
        kept = [p.detach().clone() for p in model.parameters()]
        engine = Engine(model, MeZO(model.named_parameters(), lr=0.0, eps=EPS, model=model), language_loss)
        with torch.no_grad():
            before = language_loss(model, batch).item()
        for _ in range(1000):
            engine.step(batch)
        engine.flush()
        with torch.no_grad():
            losses[str(dtype)] = [before, language_loss(model, batch).item()]
        bits = [
            (a.view(torch.int16) != b.view(torch.int16)).sum() for a, b in zip(kept, model.parameters(), strict=True)
        ]
        changed[str(dtype)] = int(torch.stack(bits).sum())
        del model, kept, engine
        clean()
    recorder.put({"part": "zero", "rows": rows, "length": length}, {"changed_elements": changed, "losses": losses})


def profiles(recorder: Recorder, rows: int, length: int, arguments: argparse.Namespace) -> None:
    """Where the time of a step goes."""
    batch = random_batch(rows, length)
    base = build(arguments.shape)
    size = sum(p.numel() for p in base.parameters())
    steppers: dict[str, Callable[[], Any]] = {"two forwards": CapturedForwards(lambda: language_loss(base, batch))}
    for name in ("MeZO", "HELENE, bf16 state"):
        model = copy.deepcopy(base)
        steppers[name] = partial(Engine(model, FULL[name](model), language_loss).step, batch)
    model = copy.deepcopy(base)
    steppers[GROUPED] = partial(GroupEngine(model, _grouped(model), row_losses, doubled={}).step, batch)
    for name, step in steppers.items():
        for _ in range(4):
            step()
        intervals = timeline.profile(step, 10)
        accounted = timeline.account(intervals, 10)
        print(timeline.table(accounted, {}), flush=True)
        result = {"account": accounted, "kernels": timeline.kernels(intervals, 10), "num_parameters": size}
        recorder.put({"part": "profile", "rows": rows, "length": length, "contestant": name}, result)


def host(recorder: Recorder, rows: int, length: int, arguments: argparse.Namespace) -> None:
    """Where the host's time of MeZO's `optimizer.step` goes, in turns with two eager forwards; how the device waits."""
    batch = random_batch(rows, length)

    def make() -> Any:
        model = build(arguments.shape)
        return _mezo(model).step, partial(language_loss, model, batch)

    seconds = host_seconds(make, arguments.rounds)
    clean()
    step, loss = make()
    for _ in range(17):  # the next ten look at nothing, see `ZerothOrder.measure`
        step(loss)
    intervals = timeline.profile(partial(step, loss), 10)
    accounted, waited = timeline.account(intervals, 10), timeline.until_update(intervals, 10)
    print(f"{waited * 1e3:.3f} ms from the forwards to the update\n{timeline.table(accounted, {})}", flush=True)
    result = {"host_seconds": seconds, "until_update_seconds": waited, "account": accounted}
    recorder.put({"part": "host", "rows": rows, "length": length}, result)


def clean() -> None:
    """Give all memory back."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch._C._cuda_clearCublasWorkspaces()


PARTS = {
    "table": table,
    "alone": alone,
    "compiled": compiled,
    "memory": memory,
    "zero": zero,
    "profile": profiles,
    "host": host,
}
