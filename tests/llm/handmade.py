"""Records made by hand, and what a page shows of them."""

import dataclasses

from helene.lab.runs.store import Record
from llm_bench.protocol import plan
from llm_bench.protocol.execute import CellRecords
from llm_bench.protocol.plan import Cell
from llm_bench.protocol.presets import get_preset
from llm_bench.report.cell_numbers import numbers

SMALL = get_preset("small")
MEZO = Cell("causal", "sst2", "mezo", "full")


def tuned(lr, metric, loss, status="out_of_budget"):
    config = plan.tuning_runs(SMALL, MEZO, "m", "cpu")[0]
    dev = None if metric is None else {"metric": metric, "loss": loss, "option_loss": loss, "auc": None}
    return Record.of("x", dataclasses.replace(config, lr=lr).to_dict(), {"status": status, "dev": dev})


def judged(seed, metric, steps=100, target=0.8, method="mezo", kind="causal", task="sst2", auc=0.9, tuning="full"):
    cell = Cell(kind, task, method, tuning)
    config = dataclasses.replace(plan.test_runs(SMALL, cell, "m", "cpu", 1e-6)[0], seed=seed)
    curve = {"step": [0, 100, 200], "dev_metric": [0.5, metric, metric], "dev_loss": [0.7, 0.5, 0.4]}
    curve |= {"forwards": [0, 200, 400], "training_seconds": [0.0, 1.0, 2.0], "train_loss": [None, 0.6, 0.5]}
    result = {
        "status": "reached",
        "test": {"metric": metric, "loss": 0.4, "option_loss": 0.4, "auc": auc, "num_examples": 100},
        "target": {"value": target, "steps": steps, "forwards": 2 * steps, "training_seconds": steps / 100},
        "curve": curve,
        "training_seconds": 2.0,
        "tokens": 6000,
        "best_step": 100,
        "peak_bytes": {"step": 10**9},
        "data": {"source": "drawn", "overlap_with_test": 0, "train": 10, "dev": 10, "test": 10},
    }
    return Record.of("x", config.to_dict(), result)


def table_of(*records, choice=None):
    grouped = {}
    for record in records:
        c = record.config
        grouped.setdefault(Cell(c["kind"], c["task"], c["method"], c["tuning"]), []).append(record)
    return {cell: (CellRecords(choice, tuple(rs), len(rs), 0), numbers(rs)) for cell, rs in grouped.items()}


def shown(section):
    return "".join(str(piece) for piece in section.body)
