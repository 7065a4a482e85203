"""A captured step on a GPU against two captured forwards of the same model, for each method and tuning.

Times are medians of synchronised samples, all contestants of one tuning in turns in one process; peak bytes are those
of a fresh process. Weights are random, the shape is OPT-1.3B's in bfloat16 unless $HELENE_GPU_SHAPE names another.
"""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .common import Cached, subject, values

METHODS = {"MeZO": None, "HELENE float32": "float32", "HELENE bfloat16": "bfloat16", "HELENE 8bit": "8bit"}
TUNINGS = ["full", "lora", "prefix"]
FLOOR = "two forwards"
SHAPE, ROWS, LENGTH, DEVICE = os.environ.get("HELENE_GPU_SHAPE", "opt-1.3b"), 16, 64, "cuda"
ROUNDS = 5
BYTES_OF_A_PROCESS = 10 << 30  # so many fit side by side
LR_AND_EPS = {"full": (1e-7, 1e-3), "lora": (1e-4, 1e-2), "prefix": (1e-4, 1e-1)}


class Step(Cached):
    """Ten steps a sample, one refresh of HELENE's curvature among them."""

    params = (list(METHODS), TUNINGS)
    param_names = ("method", "tuning")

    def setup_cache(self) -> dict:
        found = values(in_turns, ((tuning,) for tuning in TUNINGS))
        clean()
        for method, tuning in itertools.product(*self.params):
            whole = found[(tuning,)]
            found[method, tuning] = whole if isinstance(whole, Exception) else (whole[method], whole[FLOOR])
        return found

    def track_step_over_two_forwards(self, cache: dict, method: str, tuning: str) -> float:
        step, floor = cache[method, tuning]
        return step / floor

    def track_median_seconds_of_a_step(self, cache: dict, method: str, tuning: str) -> float:
        return cache[method, tuning][0]

    track_step_over_two_forwards.unit = "ratio"
    track_median_seconds_of_a_step.unit = "seconds"


class Peak(Cached):
    """Most bytes that tensors take in a fresh process, the model's own included."""

    params = ([FLOOR, *METHODS], TUNINGS)
    param_names = ("method", "tuning")
    unit = "bytes"

    def setup_cache(self) -> dict:
        keys = list(itertools.product(*self.params))
        try:
            with ThreadPoolExecutor(num_processes()) as pool:
                running = {key: pool.submit(peak_in_a_fresh_process, *key) for key in keys}
                return values(lambda *key: running[key].result(), keys)
        except NotImplementedError as reason:
            return dict.fromkeys(keys, reason)

    def track_peak_bytes(self, cache: dict, method: str, tuning: str) -> int:
        return cache[method, tuning]


def need_gpu() -> None:
    """Skip where there is none."""
    import torch

    if DEVICE == "cuda" and not torch.cuda.is_available():
        raise NotImplementedError("no CUDA device")


def clean() -> None:
    """Give back what was measured before: engines and models hold each other."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def num_processes() -> int:
    """How many fresh processes may share the device's memory."""
    need_gpu()
    import torch

    return max(1, min(8, torch.cuda.get_device_properties(0).total_memory // BYTES_OF_A_PROCESS))


def in_turns(tuning: str) -> dict[str, float]:
    """Median seconds of two captured forwards and of a captured step of each method."""
    need_gpu()
    clean()
    with subject():
        from llm_bench.cost.timing import Contestant, time_in_turns
    base = adapted(tuning)
    runs = {name: runner(name, tuning, copy.deepcopy(base)) for name in (FLOOR, *METHODS)}
    contestants = {name: Contestant(run, 10) for name, (run, _) in runs.items()}
    found = time_in_turns(contestants, ROUNDS)
    for _, engine in runs.values():
        check_captured(engine)
    return {name: result["median_seconds"] for name, result in found.items()}


def adapted(tuning: str):
    """The model on the device, with what is to be trained."""
    with subject():
        from llm_bench.models.loading import LanguageModel
        from llm_bench.models.shapes import build
        from llm_bench.models.tuning import Tuning, prepare
    module = build(SHAPE, device=DEVICE)
    if tuning != "full":  # which would keep a copy of all weights to begin again from
        prepare(LanguageModel(module, None, "causal", "random", "none", (), (), 2048), Tuning(tuning))
    return module


def runner(method: str, tuning: str, module):
    """(a function that makes one step, its engine): the floor's has none and makes two forwards."""
    with subject():
        from helene import Helene, MeZO
        from helene.engine import Engine
        from llm_bench.cost.captured_forwards import CapturedForwards
        from llm_bench.models.shapes import language_loss, random_batch
        from llm_bench.models.tuning import trained
    batch = random_batch(ROWS, LENGTH, DEVICE)
    if method == FLOOR:
        return CapturedForwards(lambda: language_loss(module, batch)), None
    (lr, eps), named = LR_AND_EPS[tuning], trained(module)
    if METHODS[method] is None:
        optimizer = MeZO(named, lr, eps=eps, model=module)
    else:
        options = {"anneal_horizon": 10_000, "batch_size": ROWS, "interval": 10, "state_dtype": METHODS[method]}
        optimizer = Helene(named, lr, eps=eps, model=module, **options)
    engine = Engine(module, optimizer, language_loss)
    return lambda: engine.step(batch), engine


def check_captured(engine) -> None:
    """A step that was not captured is not what is measured here."""
    if engine is not None and engine.mode != "graph":
        raise RuntimeError(f"the step was not captured: {engine.reason}")


def peak(method: str, tuning: str) -> int:
    """Most bytes that tensors take from the model on, over eleven steps; in a process that did nothing else."""
    import torch

    module = adapted(tuning)
    torch.cuda.reset_peak_memory_stats()
    step, engine = runner(method, tuning, module)
    for _ in range(11):
        step()
    check_captured(engine)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def peak_in_a_fresh_process(method: str, tuning: str) -> int:
    """`peak` elsewhere. The folder of the benchmarks comes last, so that what is installed is what is measured."""
    with subject():
        for name in ("helene.engine", "llm_bench.cost.captured_forwards", "llm_bench.models.tuning"):
            importlib.import_module(name)
    code = "import sys; sys.path.append(sys.argv[1]); from benchmarks.gpu import peak; print(peak(*sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1]), method, tuning]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return int(done.stdout.split()[-1])
