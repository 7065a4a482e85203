"""Presets: the grid, the seeds and the trials are what the rules of the experiment ask for."""

from __future__ import annotations

import itertools
import json
import math
from importlib import resources

import pytest

from helene.lab.runs import canonical
from synthetic.design import CONTROLS, FIRST_ORDER, control_config, load, presets, seeds, spaces, trials
from synthetic.methods import METHODS
from synthetic.run import cost

GRID = {(n, w) for n in (1, 2, 4, 8, 16, 32) for w in (4, 8, 16, 32, 64, 128)}
TUNED = [name for name in spaces() if not name.startswith("theorem")]


def test_every_tuned_method_has_the_same_number_of_trials():
    assert {len(trials(spaces()[name])) for name in TUNED} == {24}


@pytest.mark.parametrize("name", TUNED)
def test_step_grids_are_fine_and_wide(name):
    steps = sorted({trial["q"] for trial in trials(spaces()[name])})
    assert len(steps) >= 8
    assert max(b / a for a, b in itertools.pairwise(steps)) <= math.sqrt(2) * (1 + 1e-12)
    assert max(steps) / min(steps) >= 8.0


@pytest.mark.parametrize(("preset", "most"), [("quick", 512), ("standard", 1024)])
def test_grids_vary_layers_and_widths(preset, most):
    wanted = {(n, w) for n, w in GRID if n * w <= most}
    design = load(preset, "v")
    for family in {c.family for c in design.cells} & {"quadratic", "log_cosh"}:
        for method in {c.config["method"] for c in design.cells if c.family == family}:
            found = {
                tuple(c.config["problem"]["layers"][0])
                for c in design.cells
                if (c.family, c.config["method"]) == (family, method)
            }
            assert found == wanted


@pytest.mark.parametrize("preset", presets())
def test_controls_seeds_and_targets(preset):
    design = load(preset, "v")
    assert {"helene", *CONTROLS} <= {c.config["method"] for c in design.cells}
    for cell in design.cells:
        config = cell.config
        d = sum(n * w for n, w in config["problem"]["layers"])
        assert set(config["seeds"]["tuning"]).isdisjoint(config["seeds"]["test"])
        assert len(config["seeds"]["test"]) == (10 if d >= 64 else 16)
        assert len(config["seeds"]["tuning"]) % 2 == 1, "an odd number, so that racing cannot change the choice"
        assert config["target"] == (1e-4 if config["method"] in FIRST_ORDER else 1e-2)
        assert config["cap"] == 20.0
        assert config["method"] in METHODS
        assert cost(config) > 0
    assert len({c.config["noise"] for c in design.cells}) == 1
    groups = {}
    for cell in design.cells:
        for start in cell.starts:
            groups.setdefault((cell.family, start), set()).add(cell.config["method"])
    assert all(set(CONTROLS) <= methods for methods in groups.values()), "each family and start has its controls"


@pytest.mark.parametrize("name", list(spaces()))
def test_trials_keep_their_place_when_a_record_is_read_back(name):
    """Records come back with sorted entries; results are stored per trial by position."""
    space = spaces()[name]
    back = canonical.loads(canonical.dumps(space))
    assert list(back) == sorted(space)
    assert trials(back) == trials(space)
    steps = [trial["q"] for trial in trials(space)] if "log2_q" in space else []
    assert steps == sorted(steps)


def test_every_control_cell_has_a_prediction():
    design = load("standard", "v")
    asked = [config for config in design.configs if "control" in config]
    assert len(asked) == len(design.controls)
    assert control_config(design.controls[0]) in asked


def test_presets_are_data_and_sorted_by_size():
    assert presets()[:2] == ["quick", "standard"]
    assert len(load("quick", "v").cells) < len(load("standard", "v").cells)
    assert seeds(63) != seeds(64)


@pytest.mark.parametrize("family", ["../../x", "a/b", "", "a\\b", ".hidden", 3])
def test_a_family_that_names_no_file_is_told_before_the_sweep(family, tmp_path):
    preset, quick = tmp_path / "own.toml", resources.files("synthetic") / "designs" / "quick.toml"
    text = quick.read_text(encoding="utf-8")
    assert 'family = "quadratic"' in text
    preset.write_text(text.replace('family = "quadratic"', f"family = {json.dumps(family)}"))
    with pytest.raises(ValueError, match="family must be letters, digits"):
        load(str(preset), "n")
