"""Where things are on this machine: models, data, device, a folder for work in progress. Never part of a record."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_bench.data import splits
from llm_bench.models import loading
from llm_bench.models.fingerprint import identities
from llm_bench.runs.config import RunConfig
from llm_bench.runs.ranks import check_ranks
from llm_bench.tasks import get_task
from llm_bench.tasks.task import Kind


@dataclass(frozen=True)
class Environment:
    """What a run finds here.

    Attributes:
        data: The data folder.
        models: Folder, or name on the Hub, of each model by the name that configs use; a name that is missing stands
            for itself.
        device: Such as ``cpu``, ``cuda``, ``cuda:1``.
        work: Folder for what lets an interrupted run go on; None keeps nothing.
        pretrained: Whether models must know plain English (False for random weights and generated languages).
        save_seconds: How often a run under way is saved, at least.
        show: Whether a run shows its progress.
    """

    data: str
    models: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    work: str | None = None
    pretrained: bool = True
    save_seconds: float = 60.0
    show: bool = False

    def source(self, name: str) -> str:
        """Where the model of that name is."""
        return self.models.get(name, name)


def environment(data: str | os.PathLike[str], **more: Any) -> Environment:
    """An environment from paths of any kind."""
    if more.get("work") is not None:
        more["work"] = str(more["work"])
    return Environment(str(data), **more)


def split_of(config: RunConfig, env: Environment) -> splits.Split:
    """The rows of a run; a published few-shot split where the folder has it."""
    sizes = (config.data_seed, config.k, config.num_train, config.num_dev, config.num_test)
    return _split(env.data, config.kind, config.task, *sizes)


def _split(
    data: str, kind: Kind, task: str, seed: int, k: int | None, num_train: int, num_dev: int | None, num_test: int
) -> splits.Split:
    if k is not None:
        return splits.few_shot(Path(data), get_task(task, kind), seed, k, num_test)
    return splits.many_shot(Path(data), get_task(task, kind), seed, num_train, num_dev, num_test)


@lru_cache(maxsize=256)
def _rows_fingerprint(*where: Any) -> str:
    return _split(*where).fingerprint


@lru_cache(maxsize=16)
def _model_fingerprint(source: str, files: tuple[Any, ...]) -> str:
    """Asked for every run of a plan; ``files`` are other ones once one of them changes."""
    return loading.fingerprint(source)


def resolved(config: RunConfig, env: Environment) -> RunConfig:
    """The config with the fingerprints of the model and the rows that are here.

    Raises:
        ValueError: If it has fingerprints already, of another model or other rows, or is for another device or another
            number of processes.
    """
    check_ranks(config)
    device = "cuda" if env.device.startswith("cuda") else "cpu"
    if config.device != device:
        raise ValueError(f"the run is for device {config.device!r}, this machine's is {env.device!r}; set device")
    split = (config.kind, config.task, config.data_seed, config.k, config.num_train, config.num_dev, config.num_test)
    source = env.source(config.model)
    here: dict[str, Any] = {
        "fingerprint": _model_fingerprint(source, identities(source)),
        "rows": _rows_fingerprint(env.data, *split),
    }
    for name, value in here.items():
        asked = getattr(config, name)
        if asked and asked != value:
            noun = "model" if name == "fingerprint" else f"rows of {config.task}"
            raise ValueError(
                f"the run was made with {noun} {asked}, those here are {value}; drop {name} to run it anew"
            )
    return dataclasses.replace(config, **here)
