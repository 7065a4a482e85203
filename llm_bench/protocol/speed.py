"""Seconds of a run before it starts: a line through the runs that were measured, or rates of a usual device.

Two captured forwards take a + b x, x their multiply-adds: the blocks' for every token, padding included, and the
head's for the places whose logits are needed. a is the host's and the update's share.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from helene.engine.batches import MAX_SHAPES
from helene.lab.runs.store import Record
from llm_bench.protocol.work import SHOWN, Work, typical
from llm_bench.runs import methods
from llm_bench.runs.config import UNTRAINED, RunConfig, from_dict

# Multiply-adds a second of an H200, as long batches of Gemma 270M have them, and of two cores.
_RATES = {"float32": 1.55e13, "tf32": 3.1e13, "bfloat16": 1e14}
_CPU_RATE = 2e10
_LAUNCHES = 2e-4  # seconds a layer of a captured step's two forwards
_HOST = 1.3e-2  # and of a step that is not captured: the host's, whatever the forwards
_OF_GROUPS = 3.5e-4  # and a layer of a captured step whose groups have directions of their own
_CAPTURE = 5e-2  # seconds a shape and layer
_RUN, _LOAD = 0.6, 4.0  # of a run and of a model, beside its steps and looks
_SCORING = 1.3  # evaluation over its multiply-adds alone
_GENERATED = 0.037  # seconds a row of answers
_SAME = 0.02  # steps of sizes so near to each other take one time
_LEAST_LOOKS = 3  # of a curve that tells a speed


@dataclass(frozen=True)
class Model:
    """Sizes that decide a speed.

    Attributes:
        parameters: All of them.
        embedding: Of the token embedding and the head that is tied to it.
        layers: Blocks.
    """

    parameters: int
    embedding: int
    layers: int


class Speeds:
    """What measured runs tell of others.

    Args:
        records: Of runs; those that made no steps, shared their card, had several or captured steps throughout are
            passed over, and those whose config this version could not run.
        models: Sizes by the names that configs have.
    """

    def __init__(self, records: Iterable[Record], models: Mapping[str, Model]) -> None:
        self.models = models
        self.points: dict[Any, list[tuple[str, float, float]]] = defaultdict(list)
        for record in records:
            seconds = steady_seconds(record.result)
            alone = had_the_card_alone(record) and captured_once(record.result)
            if seconds is None or record.config.get("model") not in models or not alone:
                continue
            try:
                config = from_dict(record.config)
            except ValueError:  # such as of a method that is gone, which no plan has
                continue
            if config.ranks > 1:
                continue
            work = typical(config)
            padded = record.result.get("padded_tokens")
            x = self.products(config, padded / record.result["steps"] if padded else work.padded, work.sites)
            self.points[_group(config)].append((config.method, x, seconds))

    def products(self, config: RunConfig, padded: float, sites: float) -> float:
        """Multiply-adds of a forward."""
        model = self.models[config.model]
        return (model.parameters - model.embedding) * padded + model.embedding * sites

    def known(self, config: RunConfig) -> bool:
        """Whether runs of its model, device, precision and way of stepping were measured."""
        return bool(self.points.get(_group(config)))

    def step(self, config: RunConfig, work: Work) -> float:
        """Seconds of a step."""
        x = self.products(config, work.padded, work.sites)
        points = self.points.get(_group(config), [])
        same = [y for method, z, y in points if method == config.method and abs(z - x) <= _SAME * x]
        if same:
            return statistics.median(same)
        at = methods.forwards(config.method, {k: v for k, v in config.hyper.items() if k != "direction_per_layer"})
        pairs = statistics.fmean(at(step) for step in range(1, 101)) / 2
        if _captured(config):
            pairs = max(pairs, methods.captured_pairs(config.method))
        computed = self._computed(config, x, pairs)
        if _captured(config) or config.device == "cpu":
            mine = [y / self._computed(config, z, pairs) for method, z, y in points if method == config.method]
            return computed * (statistics.median(mine) if mine else 1.0)
        host = [y for method, _, y in points if method == config.method] or [y for _, _, y in points]
        return max(computed, statistics.median(host) if host else _HOST * self.models[config.model].layers)

    def run(self, config: RunConfig, work: Work) -> float:
        """Seconds of a whole run, its model's loading left out."""
        scored = _SCORING / self._rate(config)
        body = self.models[config.model].parameters - self.models[config.model].embedding
        test = body * work.test * scored if config.role == "test" else 0.0
        generates = config.role == "test" and config.task == "squad"
        seconds = _RUN + test + (_GENERATED * work.test_rows if generates else 0.0)
        if config.method in UNTRAINED:
            more = {"icl": SHOWN * work.test, "linear-probe": work.train + work.dev, "bias-only": work.train}
            return seconds + body * more.get(config.method, 0.0) * scored
        looks = 1 + -(-config.steps // config.eval_every) if config.role != "measure" else 0
        seconds += looks * body * work.dev * scored + self.step(config, work) * config.steps
        captures = _CAPTURE * self.models[config.model].layers * work.shapes
        return seconds + (captures if _captured(config) else 0.0)

    def _computed(self, config: RunConfig, x: float, pairs: float) -> float:
        """Seconds of a captured step, or of a CPU's: pairs of forwards, and what groups or plain steps add to them."""
        of_a_layer = 0.0
        if config.device != "cpu":
            of_a_layer += _OF_GROUPS * methods.takes_examples(config.method)
            of_a_layer += _HOST * methods.plain_share(config.method) * _captured(config)
        return self._line(config, x) * pairs + of_a_layer * self.models[config.model].layers

    def _line(self, config: RunConfig, x: float) -> float:
        """Seconds of two captured forwards of x multiply-adds."""
        measured = self.points.get(_group(config, captured=True), [])
        points = [(z, y) for m, z, y in measured if _is_one_pair(m)]
        slope, launches = 2.0 / self._rate(config), _LAUNCHES * self.models[config.model].layers
        if config.device == "cpu":
            launches = 0.0
        if len({round(z, -6) for z, _ in points}) > 1:
            fitted, start = np.polyfit([z for z, _ in points], [y for _, y in points], 1)
            if fitted > 0 and start > 0:
                return float(start + fitted * x)
        if points:
            launches = max(0.0, statistics.median(y - slope * z for z, y in points))
        return launches + slope * x

    def _rate(self, config: RunConfig) -> float:
        if config.device == "cpu":
            return _CPU_RATE
        return _RATES[config.products if config.dtype == "float32" else "bfloat16"]


def had_the_card_alone(record: Record) -> bool:
    """Whether no other run was on its card; else its seconds tell nothing. `tools.gpu_rows` notes ``--sharing N``."""
    shared = re.search(r"--sharing[ =]+(\d+)", str(record.provenance.get("command", "")))
    return shared is None or shared[1] == "1"


def captured_once(result: Mapping[str, Any]) -> bool:
    """Whether steps were captured once a shape; where there are more than an engine keeps, captures go on."""
    made = result.get("steps_made", ())
    return sum(how["steps"] for how in made if how["mode"] == "eager") <= MAX_SHAPES


def loading_seconds() -> float:
    """Of a model, once for all runs that follow each other on it."""
    return _LOAD


def steady_seconds(result: Mapping[str, Any]) -> float | None:
    """Seconds of a step after the first look at dev, by when shapes have been captured; None where it is not told."""
    curve = result.get("curve") or {}
    steps, seconds = curve.get("step", []), curve.get("training_seconds", [])
    if len(steps) >= _LEAST_LOOKS and steps[-1] > steps[1]:
        return float((seconds[-1] - seconds[1]) / (steps[-1] - steps[1]))
    if result.get("steps") and result.get("training_seconds"):
        return float(result["training_seconds"] / result["steps"])
    return None


def _captured(config: RunConfig) -> bool:
    return config.engine and methods.captured(config.method)


def _is_one_pair(method: str) -> bool:
    """Whether each captured step is two forwards and an update."""
    of_pairs = methods.takes_compiled(method) and not methods.plain_share(method)
    return of_pairs and methods.captured_pairs(method) == 1


def _group(config: RunConfig, captured: bool | None = None) -> tuple[Any, ...]:
    steps = _captured(config) if captured is None else captured
    stepped = "cpu" if config.device == "cpu" else steps
    return config.model, config.kind, config.tuning, config.dtype, config.products, config.device, stepped
