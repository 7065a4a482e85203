"""A bench made of what a store has: to draw its runs where their models and data are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helene.lab.runs.store import Record
from llm_bench.protocol.execute import Bench
from llm_bench.protocol.presets import Preset
from llm_bench.runs.config import UNTRAINED, RunConfig
from llm_bench.runs.environment import Environment
from llm_bench.tasks.task import Kind

_SPLIT = ("kind", "task", "data_seed", "k", "num_train", "num_dev", "num_test")
_MADE = ("model", "fingerprint", "rows", "method", "role", "tuning", "steps", "products", "device", "best", "engine")
_READ = (*_SPLIT, *_MADE)


@dataclass(frozen=True)
class RecordedBench(Bench):
    """A bench that knows fingerprints from records, in place of models and data. It makes no run.

    Attributes:
        fingerprints: Of each model, by its name and kind.
        rows: Fingerprint of each split, by what it was drawn with.
        engines: Of each method, whether its runs had the engine.
    """

    fingerprints: Mapping[Any, str] = field(default_factory=dict)
    rows: Mapping[Any, str] = field(default_factory=dict)
    engines: Mapping[str, bool] = field(default_factory=dict)

    def with_settings(self, config: RunConfig) -> RunConfig:
        """As of any bench, with the engine where the method's runs had it."""
        found = super().with_settings(config)
        return found if self.engines.get(config.method, True) else dataclasses.replace(found, engine=False)

    def _with_fingerprints(self, config: RunConfig) -> RunConfig:
        model, split = self.fingerprints.get((config.model, config.kind), ""), _split(dataclasses.asdict(config))
        return dataclasses.replace(config, fingerprint=model, rows=self.rows.get(split, ""))


def recorded(preset: Preset, records: Sequence[Record]) -> RecordedBench:
    """The bench on which a preset's records were made.

    Args:
        preset: The preset.
        records: All of one store.

    Raises:
        ValueError: If there are none, one is no run of this program, or they are of several models of one kind, data
            sets or settings, so that the reader must say which are meant.
    """
    configs = [record.config for record in records]
    if not configs:
        raise ValueError(
            f"the store has no run of preset {preset.name}; name another by --preset, merge some, or give --model and "
            "--data to name runs"
        )
    check_whole(records)
    models: dict[Kind, str] = {}
    fingerprints: dict[Any, str] = {}
    for kind in dict.fromkeys(config["kind"] for config in configs):
        of_kind = {(c["model"], c["fingerprint"]) for c in configs if c["kind"] == kind}
        name, fingerprint = _only(of_kind, f"{kind} models")
        models[kind], fingerprints[name, kind] = name, fingerprint
    sets: dict[Any, set[Any]] = {}
    for config in configs:
        sets.setdefault(_split(config), set()).add(config["rows"])
    rows = {split: _only(found, "data sets") for split, found in sets.items()}
    trained = [c for c in configs if c["method"] not in UNTRAINED and c["role"] != "measure"] or configs
    device, best = _only({(c["device"], c["best"]) for c in trained}, "settings")
    engines: dict[str, bool] = {}
    for config in trained:
        engines[config["method"]] = engines.get(config["method"], False) or bool(config["engine"])
    more = {"engine": any(engines.values()), "best": best}
    return RecordedBench(preset, models, Environment(""), device, more, fingerprints, rows, engines)


def check_whole(records: Iterable[Record]) -> None:
    """Raise ValueError for a record that lacks what pages and plans read."""
    for record in records:
        missing = [name for name in _READ if name not in record.config]
        if missing or "status" not in record.result:
            lack = f"setting {missing[0]!r}" if missing else "status"
            raise ValueError(
                f"record {record.key} of {record.experiment} has no {lack}: another program or version made it; merge "
                "the others into a store of their own"
            )


def _split(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(config[name] for name in _SPLIT)


def _only(found: Iterable[Any], what: str) -> Any:
    one, *others = sorted(found)
    if others:
        raise ValueError(
            f"the store has runs of several {what}: {one} and {others[0]}; give --model, --data and --device to choose"
        )
    return one
