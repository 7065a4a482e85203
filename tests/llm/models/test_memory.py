"""Predicted bytes against closed forms, the CPU allocator's own events, and peaks measured on a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helene import FZOO, Helene, MeZO, SophiaG
from helene import cli as helene_cli
from helene.evaluation.directions import Target
from helene.optimizers.adam import Adam
from helene.rules import precision
from llm_bench.cost import memory_row, memory_sweep
from llm_bench.models import live_bytes, step_memory
from llm_bench.models.shapes import build, language_loss, random_batch
from llm_bench.report import memory_page
from llm_bench.runs.methods import METHODS, is_first_order
from llm_bench.runs.methods import build as build_optimizer

RECORDS = Path(step_memory.__file__).parents[1] / "records"


def _mean(module: Any, batch: torch.Tensor) -> torch.Tensor:
    return module(batch).float().pow(2).mean()


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.LayerNorm(512))


def _cpu_peak(call: Any) -> int:
    """Most bytes between allocations and frees of a call, from the profiler's events."""
    with torch.profiler.profile(profile_memory=True) as recorded:
        call()
    live = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("backward", [False, True])
def test_counted_bytes_are_those_of_the_cpu_allocator(backward: bool) -> None:
    """The same operations on real tensors; blocks of 512 bytes against 64, for some 30 tensors of 0.1 to 1 MB."""
    module, batch = _net(), torch.randn(128, 256)

    def run() -> None:
        if backward:
            torch.autograd.grad(_mean(module, batch), list(module.parameters()))
        else:
            with torch.no_grad():
                _mean(module, batch)

    run()
    measured = _cpu_peak(run)
    twin, there = _net().to("meta"), batch.to("meta")
    targets = [Target(p, i, "") for i, p in enumerate(twin.parameters())]
    known = [*twin.parameters(), there]
    if backward:
        counted, gradients = step_memory._backward_peak(lambda: _mean(twin, there), known, targets)
        assert gradients == sum(live_bytes.blocks(p.nbytes) for p in twin.parameters())
    else:
        counted = step_memory._forward_peak(lambda: _mean(twin, there), known)
    assert counted == pytest.approx(measured, rel=0.01)


def test_terms_in_closed_form() -> None:
    """One layer: x W of shape (rows, out), its float32 square, and a mean; state of two tensors in each dtype."""
    module = nn.Linear(512, 1024, bias=False, dtype=torch.bfloat16, device="meta")
    batch = torch.empty(64, 512, dtype=torch.bfloat16, device="meta")
    forward = step_memory.predict(module, _mean, batch, None, workspace_bytes=7)
    assert forward.weights == 2 * 512 * 1024 + 2 * 64 * 512
    # float32 beside its square; the bfloat16 product is gone by then, and so is what was squared before the mean
    assert forward.activations == (4 + 4) * 64 * 1024
    assert forward.workspace == 7
    for dtype, width in (("float32", 8), ("bfloat16", 4), ("8bit", 2)):
        made = step_memory.predict(
            module,
            _mean,
            batch,
            lambda p, d=dtype: Helene(p, anneal_horizon=9, batch_size=1, state_dtype=d),
        )
        scales = 2 * 4 * 512 * 1024 // precision.BLOCK if dtype == "8bit" else 0
        assert made.state == width * 512 * 1024 + scales
        assert made.scratch >= 2 * 2 * 512 * 1024  # both signs
        assert made.total == sum(made.summary().values()) - made.total


def test_a_captured_forward_of_fzoo_reads_copies_of_all_parameters() -> None:
    """Beside what plain steps hold, which go on: the copies, the graph's activations and the batch that it reads."""
    module = nn.Linear(512, 1024, bias=False, dtype=torch.bfloat16, device="meta")
    batch = torch.empty(64, 512, dtype=torch.bfloat16, device="meta")
    forward, plain, captured = (
        step_memory.predict(module, _mean, batch, factory, engine=engine)
        for factory, engine in ((None, False), (FZOO, False), (FZOO, True))
    )
    assert captured.scratch == plain.scratch + 2 * 512 * 1024
    assert captured.activations == plain.activations + forward.activations
    assert captured.weights == plain.weights + 2 * 64 * 512


def test_every_method_can_be_predicted() -> None:
    module, batch = build("opt-tiny", torch.float32, "meta"), random_batch(2, 8, "meta")
    for name in METHODS:

        def factory(params: Any, name: str = name) -> Any:
            holder = nn.Module()
            holder.weight = params[0]
            return build_optimizer(name, holder, {"lr": 1e-3}, seed=0, batch_size=2, steps=9)

        found = step_memory.predict(module, language_loss, batch, factory)
        assert (found.gradients > 0) == (is_first_order(name) or name == "helene-backprop")


def test_checkpointing_is_seen_where_activations_weigh() -> None:
    rows = [row for row in memory_row.ROWS if row.name.startswith("FT Adam, bf16")]
    plain, again = (memory_row.predict_row(row, "opt-125m", "8x256") for row in rows)
    assert [row.checkpointing for row in rows] == [False, True]
    assert again["activations"] < 0.8 * plain["activations"]
    assert again["weights"] == plain["weights"]


def _measured() -> list[Any]:
    found = []
    for line in (RECORDS / "engine/h100.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("config", {}).get("part") == "memory":
            config = record["config"]
            for name, peak in record["result"]["peak_bytes"].items():
                found.append((config["model"], config["rows"], config["length"], name, peak))
    return found


@pytest.mark.parametrize(("model", "rows", "length", "name", "peak"), _measured())
def test_predictions_are_within_five_percent_of_peaks_measured_on_an_h100(
    model: str, rows: int, length: int, name: str, peak: int
) -> None:
    """The engine's committed records: one captured forward (two streams, so two workspaces), MeZO, HELENE."""
    module, batch = build(model, torch.bfloat16, "meta"), random_batch(rows, length, "meta")
    state = {"HELENE, bf16 state": "bfloat16", "HELENE, 8-bit state": "8bit"}.get(name)
    factory: Any = None
    if state is not None:
        factory = lambda p: Helene(p, anneal_horizon=9, batch_size=16, state_dtype=state)  # noqa: E731
    elif name == "MeZO":
        factory = MeZO
    found = step_memory.predict(module, language_loss, batch, factory).total
    found += step_memory.WORKSPACE_BYTES if factory is None else 0
    assert found == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("path", sorted(RECORDS.glob("memory-*.jsonl")), ids=lambda path: path.stem)
def test_recorded_rows_are_predicted_within_five_percent(path: Path) -> None:
    """The table's committed records: as predicted when they were measured, and as the code predicts now."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [line for line in lines if line.get("result", {}).get("peak_bytes")]
    assert rows
    for row in rows:
        peak, config = row["result"]["peak_bytes"], row["config"]
        assert row["result"]["predicted_bytes"]["total"] == pytest.approx(peak, rel=0.05), config
    quick = [row for row in rows if row["config"]["model"] == "opt-1.3b"][:: 1 if "HELENE_DEEP" in os.environ else 8]
    for row in quick:
        names = ("name", "method", "tuning", "dtype", "state_dtype", "checkpointing")
        made = memory_row.MemoryRow(**{name: row["config"][name] for name in names})
        now = memory_row.predict_row(made, row["config"]["model"], row["config"]["batch"])
        assert now["total"] == pytest.approx(row["result"]["peak_bytes"], rel=0.05), row["config"]


def test_the_table_without_a_gpu_is_predicted_and_goes_on(tmp_path: Path) -> None:
    from helene.lab.runs.store import Store

    said: list[str] = []
    with Store(tmp_path / "m.sqlite") as store:
        options: dict[str, Any] = {"device": "cpu", "say": said.append}
        rows = memory_row.ROWS[:2]
        assert memory_sweep.measure_all(store, rows, ["opt-tiny"], ["2x8"], minutes=0.0, **options) == 2
        assert memory_sweep.measure_all(store, rows, ["opt-tiny"], ["2x8"], **options) == 0
        assert memory_sweep.measure_all(store, rows, ["opt-tiny"], ["2x8"], **options) == 0
        records = store.records(memory_sweep.EXPERIMENT)
    assert len(records) == 2
    before, *lines = said[1:]  # the first call had no time for more than that
    assert before == said[0] == "2 rows to predict, some 1 s on one core; nothing is measured, that takes --device cuda"
    assert [line.split()[0] for line in lines] == ["1/2", "2/2"]
    page = memory_page.write(tmp_path, records, [], "command").read_text()
    assert "No peak has been measured" in page
    assert "opt-tiny" in page


def test_the_command_predicts_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_row, "ROWS", memory_row.ROWS[:1])
    words = [
        "llm",
        "table",
        "memory",
        "--shapes",
        "opt-tiny",
        "--batches",
        "2x8",
        "--store",
        str(tmp_path / "m.sqlite"),
    ]
    assert helene_cli.main([*words, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "1 rows to predict" in printed.err
    assert Path(printed.out.strip()).name == "table-memory.html"


def test_peaks_of_two_devices_are_not_mixed() -> None:
    """HELENE's bytes stand against MeZO's of the same device, and the sentence names each."""
    from helene.lab.runs.store import Record

    def peak(name: str, device: str, size: int) -> Record:
        config = {"name": name, "model": "opt-tiny", "batch": "2x8", "device": device}
        return Record.of("m", config, {"status": "reached", "peak_bytes": size, "predicted_bytes": {"total": size}})

    records = [peak("MeZO", "A", 10**9), peak("MeZO", "B", 2 * 10**9), peak("HELENE, fp32 state", "A", 3 * 10**9)]
    said = memory_page._answer(records)
    assert "MeZO tunes opt-tiny in 1.0 GB" in said
    assert "HELENE takes 3.0 GB with fp32 state" in said
    assert "Of 3 peaks measured on one A and one B, 3 are within" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "nope"], "there is no preset 'nope'"),
        ([], "m.sqlite has no peak, and no run of preset small; leave --draw-only out"),
    ],
)
def test_a_memory_page_of_nothing_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from helene.lab.runs.store import Store

    Store(tmp_path / "m.sqlite").close()
    command = ["llm", "table", "memory", "--draw-only", "--store", str(tmp_path / "m.sqlite"), "--out", str(tmp_path)]
    assert helene_cli.main([*command, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_row_that_cannot_fit_is_not_tried_and_an_error_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from helene.lab.runs.store import Store

    monkeypatch.setattr(memory_sweep, "_card", lambda device: {"name": "small card", "bytes": 100_000_000})
    monkeypatch.setattr(memory_sweep, "_AHEAD", 0)
    answers = [{"status": "error", "message": "broken", "peak_bytes": None, "reserved_bytes": None, "mode": ""}]
    answers.append({"status": "reached", "message": "", "peak_bytes": 10**7, "reserved_bytes": 10**7, "mode": "graph"})
    monkeypatch.setattr(memory_sweep.Children, "run", lambda *_: answers.pop(0))
    small, large = memory_row.ROWS[0], memory_row.ROWS[4]
    with Store(tmp_path / "m.sqlite") as store:
        for _ in range(3):
            memory_sweep.measure_all(store, [small], ["opt-tiny"], ["2x8"], say=lambda text: None)
        memory_sweep.measure_all(store, [large], ["opt-125m"], ["2x8"], say=lambda text: None)
        records = store.records(memory_sweep.EXPERIMENT)
    assert not answers
    statuses = {record.config["name"]: record.result["status"] for record in records}
    assert statuses == {small.name: "reached", large.name: "out_of_memory"}
    page = memory_page.write(tmp_path, records, [], "command").read_text()
    assert "Every row tried fits the card. 1 is predicted not to fit, and not tried." in page


def test_the_update_of_a_gradient_method_is_counted() -> None:
    """Adam on one float32 matrix below a chunk: at most one turn's values beside the next one's, all its size."""
    module = nn.Linear(1000, 1000, bias=False, device="meta")
    targets = [Target(module.weight, 0, "weight")]
    found = step_memory._update_peak(Adam([nn.Parameter(torch.zeros(1))]), targets)
    assert 7 * 4_000_000 < found < 14 * 4_000_000


@pytest.mark.parametrize("tuning", ["full", "lora", "prefix"])
@pytest.mark.parametrize("method", ["mezo", "helene", "ft-adam"])
def test_runs_are_predicted_from_the_configuration_alone(tmp_path: Path, method: str, tuning: str) -> None:
    from llm_bench.runs.config import RunConfig
    from llm_bench.runs.predicted_memory import predict_run

    module = build("opt-tiny", torch.float32, "cpu")
    module.config.save_pretrained(tmp_path)  # no weights
    eps = None if method == "ft-adam" else 1e-3
    options: dict[str, Any] = {"lr": 1e-4, "eps": eps, "steps": 10, "eval_every": 5, "tuning": tuning}
    config = RunConfig("m", "causal", "sst2", method, engine=eps is not None, device="cuda", **options)
    found = predict_run(config, tmp_path)
    trained = sum(p.numel() for p in module.parameters()) if tuning == "full" else 0
    assert found.weights >= sum(p.nbytes for p in module.parameters())
    assert found.state >= (0 if method == "mezo" else 8 * trained)
    assert (found.gradients > 0) == (method == "ft-adam")


def _sophia(params: Any) -> SophiaG:
    return SophiaG(params, 1e-4, curvature="backprop", batch_size=4, interval=1)


@pytest.mark.parametrize("shares", [1, 64])
@pytest.mark.parametrize(("method", "num_gradients"), [(Adam, 1), (_sophia, 2)])
def test_a_whole_gradient_step_is_that_of_the_cpu_allocator(
    method: Any, num_gradients: int, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second step on real tensors, by the CPU's chunks; the peak is in the update, with more rows in the loss.

    Sophia's own gradient is held while it goes back for h. The allocator's own blocks are 64 bytes, those counted 512:
    under 1 % here.
    """
    from helene.evaluation import directions

    monkeypatch.setattr(step_memory, "DEVICE_CHUNK", directions.CHUNK)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 64))
    batch = torch.randn(32 * shares, 512)
    optimizer = method(module.parameters())
    optimizer.step(lambda: _mean(module, batch))
    measured = _cpu_peak(lambda: optimizer.step(lambda: _mean(module, batch)))
    twin = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 64)).to(
        "meta"
    )
    found = step_memory.predict(twin, _mean, batch.to("meta"), method, engine=False)
    assert found.gradients + found.activations == pytest.approx(measured, rel=0.02)
    gradient = sum(live_bytes.blocks(p.nbytes) for p in module.parameters())
    assert (found.state, found.gradients) == (2 * gradient, num_gradients * gradient)
