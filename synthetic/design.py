"""Presets: tables of cells, read from data that was committed before the runs. Never imports torch."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from helene.inputs.files import read_text
from helene.methods import ENTRIES

SIMULATOR_VERSION = 2  # raise it when the same config gives another result
THEORY_VERSION = 5  # raise it when a prediction changes
CONTROLS = {"mezo": "negative", "per_layer": "positive"}
FIRST_TUNING_SEED = 1000
TARGETS = {"zeroth": 1e-2, "first": 1e-4}
CAP, RACE = 20.0, 1.5
# One letter per run keeps records small.
STATUS_OF = {"r": "reached", "o": "out_of_budget", "s": "stalled", "d": "diverged", "n": "non_finite"}
Config = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What design and pages know of a method.

    Attributes:
        title: For people.
        space: Its search space, see `trials`.
        drawn: Whether figures show it; those that only explain a difference are in tables alone.
        gradients: Whether it sees more than losses.
    """

    title: str
    space: Mapping[str, Any]
    drawn: bool = True
    gradients: bool = False


@dataclass(frozen=True)
class PlannedCell:
    """One run of a design: a config, and what its result is used for.

    Attributes:
        config: All that decides the result; see `synthetic.run`.
        family: Under which results are fitted together.
        starts: Kinds of start that it speaks for: its own, then those that are the same run.
        reason: Why they are the same.
    """

    config: Config
    family: str
    starts: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class Design:
    """A preset.

    Attributes:
        name: Of the preset.
        title: One line for people.
        cells: In the order of the file.
        why: What each family is there for.
        not_crossed: Which combinations are left out, and why they are not needed.
    """

    name: str
    title: str
    cells: tuple[PlannedCell, ...]
    why: Mapping[str, str] = field(default_factory=dict)
    not_crossed: tuple[str, ...] = ()

    @property
    def configs(self) -> list[Config]:
        """Of all cells, then those that predict the controls on the same cells."""
        return [cell.config for cell in self.cells] + [control_config(cell) for cell in self.controls]

    @property
    def controls(self) -> list[PlannedCell]:
        """The cells of the two controls."""
        return [cell for cell in self.cells if cell.config["method"] in CONTROLS]


def control_config(cell: PlannedCell) -> Config:
    """The config that predicts a control's count in a cell."""
    shared = {name: cell.config[name] for name in ("problem", "start", "target")}
    return {"control": cell.config["method"], **shared, "theory": THEORY_VERSION}


def presets() -> list[str]:
    """Names of the presets."""
    files = resources.files("synthetic").joinpath("designs").iterdir()
    names = {f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")} - {"methods"}
    return sorted(names, key=lambda name: (["quick", "standard", "full"].index(name) if name in _SIZES else 9, name))


LARGEST_D = 10**7  # coordinates of a problem: some gigabytes for all seeds and step sizes
_SIZES = ("quick", "standard", "full")


def load(preset: str, noise_version: str) -> Design:
    """The design of a preset.

    Args:
        preset: Its name, or the path of a .toml file of the same form.
        noise_version: `helene.noise.NOISE_VERSION`, part of every config.

    Raises:
        ValueError: If there is no such preset, or something in it is unknown.
    """
    if preset.endswith(".toml"):
        table = _own(Path(preset))
    elif preset in presets():
        table = _read(preset)
    else:
        raise ValueError(f"preset must be one of {', '.join(presets())} or a .toml file, got {preset!r}")
    joining = [e.grid_name for e in ENTRIES if e.scaling is not None and preset in e.scaling.presets]
    try:
        table["block"][0]["methods"] += joining
        cells = [cell for block in table["block"] for cell in _expand(block, noise_version)]
        name, not_crossed = Path(preset).name.removesuffix(".toml"), tuple(table.get("not_crossed", []))
        return Design(name, table["title"], tuple(cells), why=dict(table.get("why", {})), not_crossed=not_crossed)
    except (KeyError, TypeError) as err:
        raise ValueError(
            f"preset {preset!r} lacks an entry or has one of the wrong kind: {err}; see docs/scaling.md"
        ) from err


@cache
def known() -> dict[str, Known]:
    """The methods by name, in the order of the pages."""
    table = _read("methods")
    order = table.pop("order")
    public = {
        entry.grid_name: Known(entry.scaling.title or entry.label, entry.scaling.space, entry.scaling.drawn)
        for entry in ENTRIES
        if entry.scaling is not None
    }
    own = {}
    for name, each in table.items():
        shared = public[each["space_of"]].space if "space_of" in each else {}
        space = {**shared, **each.get("space", {})}
        own[name] = Known(each["title"], space, each.get("drawn", False), each.get("gradients", False))
    found = {**public, **own}
    return {name: found[name] for name in (*order, *(name for name in found if name not in order))}


def spaces() -> dict[str, Mapping[str, Any]]:
    """The search space of each method, its ranges as they stand in the tables."""
    return {name: method.space for name, method in known().items()}


def trials(space: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All combinations of a space; ``log2_q`` becomes ``q``.

    Step sizes vary slowest, then the other axes by name: records are read back with their entries sorted, and what is
    stored per trial must keep its place.
    """
    axes = {name: _values(name, space[name]) for name in sorted(space, key=lambda name: (name != "log2_q", name))}
    names = ["q" if name == "log2_q" else name for name in axes]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*axes.values())]


def _values(name: str, values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        values = [k / values["per_octave"] for k in range(values["from"], values["to"] + 1)]
    return [2.0**v for v in values] if name == "log2_q" else list(values)


def seeds(d: int) -> dict[str, list[int]]:
    """Seeds to tune on and others to judge by: log T scatters like d^-1/2, so small problems get more."""
    tuning, test = (5, 10) if d >= 64 else (9, 16)
    return {"tuning": list(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + tuning)), "test": list(range(test))}


def _own(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (OSError, ValueError) as err:  # ValueError also of an integer of thousands of digits
        raise ValueError(f"cannot read the preset {path}: {err}") from err


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("synthetic").joinpath("designs", f"{name}.toml").read_text("utf-8"))


def _expand(block: Mapping[str, Any], noise_version: str) -> Iterator[PlannedCell]:
    if "layers" in block:
        layers = block["layers"]
    elif "cells" in block:
        layers = [[pair] for pair in block["cells"]]
    else:
        most = block.get("max_d", math.inf)
        layers = [[[n, w]] for n in block["n"] for w in block["w"] if n * w <= most]
        if not layers:
            raise ValueError(f"family {block['family']!r} has no cell: every n x w is above max_d = {most}; raise it")
    family, target = block["family"], block.get("target", 0.5)
    if not isinstance(family, str) or not re.fullmatch(r"\w[\w .+-]*", family):
        raise ValueError(f"family must be letters, digits and _ . + - (figures are named by it), got {family!r}")
    if not 0.0 < target < 1.0:
        raise ValueError(f"target must be in (0, 1), got {target!r}; it is a fraction of the gap at the start")
    for groups, start, method in itertools.product(layers, block["starts"], block["methods"]):
        entry = {"name": method} if isinstance(method, str) else dict(method)
        name, variant = entry.pop("name"), entry.pop("variant", "")
        if name not in spaces():
            raise ValueError(f"method must be one of {', '.join(spaces())}, got {name!r}")
        d = sum(count * width for count, width in groups)
        if not 1 <= d <= LARGEST_D:
            raise ValueError(f"a cell of family {family!r} has d = {d}; the simulator takes 1 to {LARGEST_D}")
        first = name in FIRST_ORDER
        config = {
            "problem": {"seed": 0, **block["problem"], "layers": groups},
            "start": dict(start),
            "method": name,
            "variant": variant,
            "space": {**spaces()[name], **{k: v if isinstance(v, Mapping | list) else [v] for k, v in entry.items()}},
            "target": float(block.get("target", TARGETS["first" if first else "zeroth"])),
            "seeds": seeds(d),
            "cap": CAP,
            "race": RACE,
            "dtype": "float64" if first else "float32",
            "simulator": SIMULATOR_VERSION,
            "noise": noise_version,
        }
        kinds = (start["kind"], *(other["kind"] for other in block.get("stands_for", [])))
        yield PlannedCell(config, family, kinds, block.get("reason", ""))


FIRST_ORDER = tuple(name for name, method in known().items() if method.gradients)
