"""Each committed row of the language models is what its method implies; rows that are not lie in records/withdrawn.

The oracle is the definition of the method: which floor, how many forwards, which step size a test run may have.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict

import pytest

from helene.lab.runs.store import config_key, read_jsonl
from llm_bench.cli import committed_pages as committed
from llm_bench.protocol import plan
from llm_bench.protocol.plan import choose
from llm_bench.protocol.presets import get_preset
from llm_bench.runs import methods
from llm_bench.runs.config import UNTRAINED, from_dict

ROWS = sorted((committed.RECORDS / "rows").glob("*/*.jsonl"))
WITHDRAWN = sorted((committed.RECORDS / "withdrawn").glob("*.jsonl"))
OTHER_HEADS = sorted((committed.RECORDS / "heads").rglob("*.jsonl"))
FROZEN = "helene-scalar-h"


def floor_of(config):
    return {"floor": 1.0, **methods.get_method(config["method"]).fixed, **config["hyper"]}["floor"]


def trained(record):
    return record.config["method"] not in UNTRAINED and record.config["role"] != "measure"


def faults_of_one(record):
    """What is wrong with a row alone."""
    config, result = record.config, record.result
    if record.key != config_key(config) or record.key != config_key(from_dict(config).to_dict()):
        yield "its key is not its config's"
    if config["engine"] and not methods.captured(config["method"]):
        yield "engine is set, but its steps are not captured"
    if not trained(record):
        return
    if result["steps"] > config["steps"] or config["hyper"].get("anneal_horizon", config["steps"]) != config["steps"]:
        yield "its anneal ends at another step than its budget"
    told = result.get("hyper", {})
    horizon = methods.get_method(config["method"]).fixed.get("anneal_horizon", config["steps"])
    wanted = {"lr": config["lr"], "eps": config["eps"], "anneal_horizon": horizon, "seed": config["seed"]}
    for name, value in wanted.items():
        if name in told and told[name] != value:
            yield f"the optimizer was told {name} {told[name]}, the config says {value}"
    at = methods.forwards(config["method"], config["hyper"])
    if result["forwards"] != sum(at(step) for step in range(1, result["steps"] + 1)):
        yield "its forwards are not its method's"
    reached = [value >= config["target"] for value in result["curve"]["dev_metric"]] if config["target"] else []
    if (result["status"] == "reached") != any(reached):
        yield "its status is not what its curve says"
    if (result.get("test") is not None) != (config["role"] == "test"):
        yield "it was tested, or not, against its role"
    yield from floor_faults(config, result["optimizer"].get("layers", []))


def floor_faults(config, layers):
    if methods.get_method(config["method"]).cls != "Helene":
        return
    floor = floor_of(config)
    if isinstance(floor, float) and any(layer["floor"] != floor for layer in layers):
        yield f"a floor is not {floor}"
    if floor == "quantile:1" and any(layer["share_above_floor"] > 0 for layer in layers):
        yield "h lies above a floor that is its largest"


def faults_together(records):
    """What is wrong with rows beside each other."""
    cells = defaultdict(list)
    for record in filter(trained, records):
        names = ("fingerprint", "kind", "task", "method", "tuning", "steps", "products")
        cells[(record.experiment, *(record.config[name] for name in names))].append(record)
    for cell, found in cells.items():
        tests = [r for r in found if r.config["role"] == "test"]
        tuning = [r for r in found if r.config["role"] == "tune"]
        if tests and {r.config["lr"] for r in tests} != {choose(tuning).lr}:
            yield f"{cell}: a test run has another step size than the chosen one"
        if {r.config["seed"] for r in tests} & {r.config["seed"] for r in tuning}:
            yield f"{cell}: a seed that chose the step size is judged"
        split = get_preset(cell[0].removeprefix("llm/")).tuning_split
        if cell[2] == "masked" and {r.config["data_seed"] for r in tuning} - {split}:
            yield f"{cell}: the step size was chosen on another split than {split}"
        if cell[2] == "masked" and {r.config["rows"] for r in tests if r.config["data_seed"] != split} & {
            r.config["rows"] for r in tuning
        }:
            yield f"{cell}: rows that chose the step size are judged"
        yield from seeds_against_the_plan(cell, tests)
        if isinstance(floor_of(found[0].config) if "helene" in cell[4] else 1.0, str):
            yield from same_floors(cell, tuning)


def seeds_against_the_plan(cell, tests):
    """Where one seed is planned, others make the same run; where several are, they make others."""
    planned = len(plan.test_seeds(get_preset(cell[0].removeprefix("llm/")), plan.Cell(*cell[2:6])))
    made = len({tuple(run.result["curve"]["dev_loss"]) for run in tests})
    if planned == 1 and made > 1:
        yield f"{cell}: one seed is planned, but another changes the run"
    if planned > 1 and made == 1 and len(tests) > 1:
        yield f"{cell}: several seeds are planned, but they change nothing"


def same_floors(cell, tuning):
    for one, two in itertools.combinations(tuning, 2):
        floors = [[layer["floor"] for layer in r.result["optimizer"]["layers"]] for r in (one, two)]
        if floors[0] == floors[1]:
            yield f"{cell}: lr {one.config['lr']} and {two.config['lr']} have the same floors, though they are of h"


@pytest.mark.parametrize("path", [*ROWS, *OTHER_HEADS], ids=lambda path: path.stem)
def test_rows_are_what_their_methods_imply(path):
    records = read_jsonl(path)
    assert records
    assert [f"{record.key}: {fault}" for record in records for fault in faults_of_one(record)] == []
    assert list(faults_together(records)) == []
    assert not [r for r in records if "withdrawn" in r.result], "a withdrawn row lies among those that stand"


def test_withdrawn_rows_say_why_and_are_those_that_fail():
    (path,) = WITHDRAWN
    records = read_jsonl(path)
    assert len(records) == 6
    assert {r.config["method"] for r in records} == {FROZEN}
    assert all(r.result["withdrawn"] for r in records)
    assert all(any("above a floor" in fault for fault in faults_of_one(r)) for r in records)
    assert sum("have the same floors" in fault for fault in faults_together(records)) == 6, "four step sizes, one floor"


def changed(record, config=(), result=()):
    other = copy.deepcopy(record)
    other.config.update(config)
    other.result.update(result)
    return type(other)(config_key(other.config), other.experiment, other.config, other.result, other.provenance)


def row(method, role="test", name="parts/causal-sst2"):
    records = read_jsonl(committed.RECORDS / "rows" / f"{name}.jsonl")
    return next(r for r in records if (r.config["method"], r.config["role"]) == (method, role))


@pytest.mark.parametrize(
    ("method", "config", "result", "fault"),
    [
        ("mezo", {"method": "hizoo"}, {}, "not captured"),
        ("helene", {"hyper": {"anneal_horizon": 20_000}}, {}, "another step than its budget"),
        ("helene", {"steps": 400}, {}, "another step than its budget"),
        ("helene", {}, {"hyper": {"anneal_horizon": 20_000}}, "told anneal_horizon 20000"),
        ("helene-no-anneal", {}, {"hyper": {"anneal_horizon": 500}}, "told anneal_horizon 500"),
        ("mezo", {}, {"hyper": {"lr": 3e-6}}, "told lr 3e-06"),
        ("helene-own-batch", {}, {"forwards": 1000}, "forwards are not its method's"),
        ("helene-floor-3", {"method": "helene"}, {}, "a floor is not 1.0"),
        ("mezo", {}, {"status": "out_of_budget"}, "not what its curve says"),
        ("mezo", {"role": "tune"}, {}, "against its role"),
    ],
)
def test_a_wrong_row_is_found(method, config, result, fault):
    good = row(method)
    assert list(faults_of_one(good)) == []
    assert any(fault in said for said in faults_of_one(changed(good, config, result)))


@pytest.mark.parametrize(
    ("config", "fault"), [({"lr": 3e-7}, "another step size"), ({"seed": 1000}, "chose the step size is judged")]
)
def test_a_wrong_pair_of_rows_is_found(config, fault):
    records = [r for r in read_jsonl(committed.RECORDS / "rows" / "parts/causal-sst2.jsonl")]
    good = row("mezo")
    assert list(faults_together(records)) == []
    wrong = [changed(r, config) if r.key == good.key else r for r in records]
    assert any(fault in said for said in faults_together(wrong))


@pytest.mark.parametrize(
    ("method", "changes", "fault"), [("fo-sgd", 1.5, "another changes the run"), ("mezo", 0.0, "they change nothing")]
)
def test_seeds_that_the_plan_is_wrong_about_are_found(method, changes, fault):
    """The curve of one of several equal runs is changed; those of different runs are made the same."""
    name = "table-3/causal-sst2"
    tests = [r for r in read_jsonl(committed.RECORDS / "rows" / f"{name}.jsonl") if r.config["role"] == "test"]
    found = [r for r in tests if r.config["method"] == method]
    curve = {"curve": {**found[0].result["curve"], "dev_loss": [changes]}}
    wrong = [changed(r, (), curve) for r in found[: 1 if changes else len(found)]] + (found[1:] if changes else [])
    assert not [said for said in faults_together(found) if "seeds are planned" in said or "seed is planned" in said]
    assert any(fault in said for said in faults_together(wrong))
