"""Made-up records: a design's cells filled with counts that obey a law."""

from __future__ import annotations

import numpy as np

from helene.lab.runs.records import Record
from synthetic.design import CONTROLS, Design, control_config, load, trials

WHOLE = load("standard", "noise")
STANDARD = Design(
    "standard",
    WHOLE.title,
    tuple(c for c in WHOLE.cells if c.family in ("quadratic", "digits") and c.config["start"]["kind"] == "coordinate"),
)  # what shows every kind of row, in a third of the time


def made_up(design, laws, scatter=0.02, seed=0, predicted=None):
    """Records of every cell and prediction.

    Args:
        design: A `Design`.
        laws: Per method, steps as a function of (n, w); ``"default"`` for the rest.
        scatter: Standard deviation of log steps over seeds.
        seed: Of the scatter.
        predicted: Per control, the law that theory predicts; default the control's own law.
    """
    rng = np.random.default_rng(seed)
    records = []
    for cell in design.cells:
        (n, w), *_ = cell.config["problem"]["layers"]
        method = cell.config["method"]
        law = laws.get(method, laws["default"])
        count = len(cell.config["seeds"]["test"])
        steps = np.round(law(n, w) * np.exp(scatter * rng.standard_normal(count))).tolist()
        result = {
            "status": "reached",
            "problem": {"n": n, "d": n * w, "max_d": w, "trace_over_mu": 3.75 * n * w, "mu": 1.0, "radius": 1.0},
            "predicted_steps": float(law(n, w)),
            "forwards_per_step": 2.0,
            "best": 0,
            "best_trial": {
                **trials(cell.config["space"])[0],
                **({"radius": 2.0} if "radius" in cell.config["space"] else {}),
            },
            "edge": False,
            "test": {"steps": steps, "status": "r" * count, "budget": int(20 * law(n, w))},
        }
        options = trials(cell.config["space"])
        if len(options) > 1:
            seeds = len(cell.config["seeds"]["tuning"])
            rows = [[law(n, w) * (1 + 0.1 * k)] * seeds for k in range(len(options))]
            result["tuning"] = {"steps": rows, "status": ["r" * seeds] * len(options), "stopped": 9}
        records.append(Record.of("scaling", cell.config, result))
        if method in CONTROLS:
            theory = (predicted or {}).get(method, law)
            steps = float(theory(n, w))
            band = [0.95 * steps, 1.05 * steps]
            result = {"status": "reached", "steps": steps, "theory": "exact chain", "range": band}
            records.append(Record.of("scaling", control_config(cell), result))
    return records


def follows_d(n, w):
    return 6.0 * n * w + 12.0


def follows_max_d(n, w):
    return 6.0 * w + 12.0


CONTROL_LAWS = {"mezo": follows_d, "per_layer": follows_max_d, "default": follows_d}
