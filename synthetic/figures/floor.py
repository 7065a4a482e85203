"""The floor's lower bound: HELENE with floors of 0.9, 1, 2, 3 and floors scaled to h_0."""

from __future__ import annotations

from typing import Any

from synthetic.figures import ablation
from synthetic.figures.digits import initial_curvature

VERSION = 1
FLOORS: tuple[tuple[str, float], ...] = (
    ("value", 0.9),
    ("value", 1.0),
    ("value", 2.0),
    ("value", 3.0),
    ("of h_0", 0.01),
    ("of h_0", 0.1),
    ("of h_0", 1.0),
    ("of h_0", 10.0),
)


def configs() -> list[dict[str, Any]]:
    """Every floor, at the learning rate tuned for floor 1 and at its own."""
    return [
        {
            "unit": unit,
            "floor": floor,
            "protocol": protocol,
            **ablation.COMMON,
            "version": VERSION,
        }
        for protocol in ("shared", "tuned")
        for unit, floor in FLOORS
    ]


def cost(config: dict[str, Any]) -> float:
    """Expected core-seconds."""
    return 3.0 if config["protocol"] == "tuned" else 1.0


def run(config: dict[str, Any]) -> dict[str, Any]:
    """Tune at this floor, or at floor 1, then judge this floor on other seeds."""
    h0 = initial_curvature(range(1000, 1000 + config["tuning_seeds"]), config["batch"])
    floor = config["floor"] * (h0 if config["unit"] == "of h_0" else 1.0)
    trials = ablation.stage_trials("helene", [1.0 if config["protocol"] == "shared" else floor])
    tuned = ablation.tuning("helene", trials, config)
    chosen = {**trials[tuned["best"]], "floor": floor}
    return {
        "status": "reached",
        "h0": h0,
        "floor": floor,
        "best_trial": chosen,
        "edge": tuned["edge"],
        "tuning": {"q": [t["q"] for t in trials], "steps": tuned["steps"]},
        **ablation.judge("helene", chosen, config),
    }
