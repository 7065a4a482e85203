"""One way to tune a model of OPT's shapes: its peak bytes as predicted, and as measured in a process of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

STEPS = 4  # one without a graph, one captured, two replayed
NOT_TRIED = "not tried"  # how the message begins where more is predicted than the card has
_SECONDS = 120.0  # that a row may take
_HELENE = {"anneal_horizon": 10_000, "batch_size": 16, "interval": 1}


@dataclass(frozen=True)
class MemoryRow:
    """One way to tune a model.

    Attributes:
        name: As on the page.
        method: Name of a class of `helene.optimizers`, or empty for one forward.
        tuning: ``full``, ``lora`` or ``prefix``.
        dtype: Of the weights.
        state_dtype: Of the optimizer's state.
        checkpointing: Whether blocks are computed again in the backward.
        printed: Its entry in `llm_bench.report.memory_page.PRINTED`.
    """

    name: str
    method: str = ""
    tuning: str = "full"
    dtype: str = "bfloat16"
    state_dtype: str = "float32"
    checkpointing: bool = False
    printed: str = ""


ROWS = (
    MemoryRow("one forward (zero-shot)", printed="zero-shot"),
    MemoryRow("MeZO", "MeZO", printed="mezo"),
    MemoryRow("HELENE, 8-bit state", "Helene", state_dtype="8bit", printed="helene"),
    MemoryRow("HELENE, bf16 state", "Helene", state_dtype="bfloat16", printed="helene"),
    MemoryRow("HELENE, fp32 state", "Helene", printed="helene"),
    MemoryRow("ZO-Adam, bf16 state", "ZOAdam", state_dtype="bfloat16"),
    MemoryRow("LoRA, MeZO", "MeZO", "lora"),
    MemoryRow("prefix, MeZO", "MeZO", "prefix"),
    MemoryRow("prefix, FT Adam", "Adam", "prefix", printed="ft-prefix"),
    MemoryRow("FT Adam, fp32 weights", "Adam", dtype="float32", printed="ft-full"),
    MemoryRow("FT Adam, fp32 weights, checkpointing", "Adam", dtype="float32", checkpointing=True, printed="ft-full"),
    MemoryRow("FT Adam, bf16 weights", "Adam", printed="ft-full"),
    MemoryRow("FT Adam, bf16 weights, checkpointing", "Adam", checkpointing=True, printed="ft-full"),
)


def predict_row(row: MemoryRow, shape: str, batch: str) -> dict[str, int]:
    """Peak bytes of a row by what holds them, without a GPU."""
    from llm_bench.models.shapes import language_loss
    from llm_bench.models.step_memory import predict

    module, tokens, factory = _set_up(row, shape, batch, "meta")
    return predict(module, language_loss, tokens, factory, engine=row.method != "Adam").summary()


def measure_row(row: MemoryRow, shape: str, batch: str) -> dict[str, Any]:
    """Peak bytes that tensors take on the GPU in a few steps of a row, from a loaded model on; in a fresh process."""
    import torch

    from helene.engine import Engine
    from helene.steps.first import FirstOrder
    from llm_bench.models.shapes import language_loss
    from llm_bench.models.tuning import trained

    mode = ""
    try:
        module, tokens, factory = _set_up(row, shape, batch, "cuda")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        if factory is None:
            with torch.no_grad():
                language_loss(module, tokens)
        else:
            optimizer = factory(trained(module))
            if isinstance(optimizer, FirstOrder):
                for _ in range(STEPS):
                    optimizer.step(lambda: language_loss(module, tokens))
            else:
                engine = Engine(module, optimizer, language_loss)
                for _ in range(STEPS):
                    engine.step(tokens)
                engine.flush()
                mode = engine.mode
        torch.cuda.synchronize()
        status, message = "reached", ""
    except torch.OutOfMemoryError as err:
        status, message = "out_of_memory", str(err).splitlines()[0][:200]
    peak, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    fits = status == "reached"
    return {
        "status": status,
        "message": message,
        "peak_bytes": peak if fits else None,
        "reserved_bytes": held if fits else None,
        "mode": mode,
    }


def _set_up(row: MemoryRow, shape: str, batch: str, device: str) -> tuple[Any, Any, Any]:
    """The module, a batch, and what makes the optimizer of given parameters (None for one forward)."""
    from llm_bench.models.live_bytes import fused_attention
    from llm_bench.models.loading import DTYPES, LanguageModel
    from llm_bench.models.shapes import build, random_batch, rows_and_tokens
    from llm_bench.models.tuning import Tuning, prepare

    module = build(shape, DTYPES[row.dtype], device)
    if row.tuning != "full":
        model = LanguageModel(module, None, "causal", shape, "none", (), (), 2048)
        with fused_attention(device == "meta"):
            prepare(model, Tuning(row.tuning))  # type: ignore[arg-type]
    if row.checkpointing:
        _checkpoint(module)
    count, length = rows_and_tokens(batch)
    tokens = random_batch(count, length, device)
    if row.method == "Adam":
        tokens["attention_mask"].fill_(1)  # a query that sees no key has no gradient in bfloat16
    if not row.method:
        return module, tokens, None

    def factory(params: Any) -> Any:
        from helene import optimizers

        options: dict[str, Any] = {"lr": 1e-7, "state_dtype": row.state_dtype}
        if row.method == "Helene":
            options |= _HELENE
        if row.method != "Adam":
            options["model"] = module
        return getattr(optimizers, row.method)(params, **options)

    return module, tokens, factory


def _checkpoint(module: Any) -> None:
    """Compute blocks again in the backward; that asks for training mode, so dropout is set to 0."""
    for part in module.modules():
        for name in ("dropout", "attention_dropout", "layerdrop"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    module.train()
    options = {"use_reentrant": False, "preserve_rng_state": False}
    enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    enable(options)


class Children:
    """Fresh processes, some of them started ahead: importing takes longer than measuring."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.waiting: deque[tuple[Any, Any]] = deque()

    def __enter__(self) -> Children:
        for _ in range(self.ahead):
            self._start()
        return self

    def __exit__(self, *_: Any) -> None:
        for process, connection in self.waiting:
            connection.close()
            process.terminate()

    def run(self, row: MemoryRow, shape: str, batch: str) -> dict[str, Any]:
        """The result of `measure_row` in a process that does nothing else."""
        self._start()
        process, connection = self.waiting.popleft()
        error = {"status": "error", "peak_bytes": None, "reserved_bytes": None, "mode": ""}
        try:
            connection.send((row, shape, batch))
            if not connection.poll(_SECONDS):
                return {**error, "message": f"no answer within {_SECONDS:.0f} seconds"}
            found: dict[str, Any] = connection.recv()
            return found
        except (EOFError, OSError):
            process.join(5)
            return {**error, "message": f"the process ended with code {process.exitcode}"}
        finally:
            process.join(5)
            process.kill()

    def _start(self) -> None:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_child, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self.waiting.append((process, mine))


def _child(connection: Any) -> None:
    for name in (
        "llm_bench.models.step_memory",
        "llm_bench.models.shapes",
        "llm_bench.models.tuning",
        "helene.engine",
        "peft",
    ):
        __import__(name)
    __import__("transformers.models.opt.modeling_opt")
    try:
        row, shape, batch = connection.recv()
    except EOFError:
        return
    try:
        connection.send(measure_row(row, shape, batch))
    except Exception as err:
        message = f"{type(err).__name__}: {err}"[:300]
        connection.send({"status": "error", "message": message, "peak_bytes": None, "reserved_bytes": None, "mode": ""})
