"""The page of the floors. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from helene.lab.report.figures import Drawing, Line, bar_figure, line_figure
from helene.lab.report.pages import interval, number, table
from helene.lab.runs.records import Record
from helene.lab.scaling.cells import median_interval
from synthetic.figures.pages import MISSING, Remade, Statement, counted, finished
from synthetic.figures.trials import EVERY

TITLE = "The floor's lower bound"
PROTOCOLS = {"shared": "learning rate tuned at floor 1", "tuned": "learning rate tuned at each floor"}
HALF = 5.0  # points of accuracy: half of the ten that the paper reports
T_9 = 2.262  # Student's 97.5 % quantile of 9 degrees of freedom, for 10 seeds


def remake(records: Sequence[Record]) -> Remade:
    """Judge the records.

    Raises:
        ValueError: If every cell failed.
    """
    groups: dict[str, dict[str, Any]] = {p: {} for p in PROTOCOLS}
    for r in finished(records):
        groups[r.config["protocol"]][name_of(r.config)] = r.result
    parts = parts_of(groups["shared"])
    config = records[0].config
    return Remade(
        name="floor",
        title=TITLE,
        quote="“Lower bounds ranging from 1 to 3, all of which demonstrated stability. […] when the lower bound was "
        "set to 0.9, the model performance dropped by 10 points” (appendix, magnitude clipping; OPT-1.3B on SST-2).",
        parts=parts,
        answer=_answer(parts, groups),
        settings=_settings(config),
        drawings=[
            ("accuracy", _bars(groups), "Accuracy on the test images after the budget: medians of the seeds with their "
             "95 % intervals."),
            ("loss", _curves(groups["shared"], config["target"]), "Training loss with the learning rate tuned at floor "
             "1: medians of the seeds."),
        ],
        tables=[_table(PROTOCOLS[p], g) for p, g in groups.items() if g],
        data={"protocols": {p: {name: _plain(r) for name, r in g.items()} for p, g in groups.items()}},
    )  # fmt: skip


def name_of(config: Mapping[str, Any]) -> str:
    """For people."""
    return f"{config['floor']:g}" + (" h₀" if config["unit"] == "of h_0" else "")


def loss_of_points(group: Mapping[str, Any], floor: str) -> tuple[float, float, float]:
    """Points of accuracy that a floor loses against floor 1: mean of the paired seeds with its 95 % interval."""
    gap = 100 * (np.array(group["1"]["accuracy"]) - np.array(group[floor]["accuracy"]))
    error = float(gap.std(ddof=1)) / math.sqrt(len(gap)) * T_9
    return float(gap.mean()), float(gap.mean()) - error, float(gap.mean()) + error


def parts_of(group: Mapping[str, Any]) -> list[Statement]:
    """The paper's two statements; half of its ten points is the line."""
    if "1" not in group:
        return []
    as_well = [_judged(group, floor, "does as floor 1", _as_well) for floor in ("2", "3")]
    return [*as_well, _judged(group, "0.9", "loses ten points", _loses_ten)]


def _judged(group: Mapping[str, Any], floor: str, says: str, holds: Callable[[float, float], bool | None]) -> Statement:
    said = f"floor {floor} {says}"
    if floor not in group:
        return Statement(said, None, MISSING)
    points = loss_of_points(group, floor)
    return Statement(said, holds(*points[1:]), _in_points(points))


def _as_well(low: float, high: float) -> bool | None:
    if -HALF < low and high < HALF:
        return True
    return False if low > HALF or high < -HALF else None


def _loses_ten(low: float, high: float) -> bool | None:
    return True if low > HALF else False if high < HALF else None


def _in_points(points: tuple[float, float, float]) -> str:
    """Points lost, or gained where fewer than none are lost."""
    lost = points[0] >= 0
    value, low, high = points if lost else (-points[0], -points[2], -points[1])
    text = f"{value:.1f} points {'lost against' if lost else 'more than'} floor 1 {interval(low, high)}"
    return text.replace("-", "−")


def _answer(parts: Sequence[Statement], groups: Mapping[str, Mapping[str, Any]]) -> str:
    group = groups["shared"]
    if not parts:
        return "No answer: the run at floor 1 failed."
    text = "No answer on a floor of 0.9: its run failed."
    if "0.9" in group:
        lost = loss_of_points(group, "0.9")
        words = {True: "loses ten points or nearly", False: "does not lose ten points", None: "may lose ten points"}
        text = (
            f"A floor of 0.9 {words[parts[-1].holds]} against a floor of 1: {lost[0]:.1f} points {interval(*lost[1:])}."
        )
    scaled = {n: r for n, r in group.items() if n.endswith("h₀")}
    if scaled:
        middles = {n: 100 * float(np.median(r["accuracy"])) for n, r in scaled.items()}
        best, worst = max(middles, key=lambda n: middles[n]), min(middles, key=lambda n: middles[n])
        text += f" At one learning rate the scale of h decides: {middles[best]:.0f} % at {best}, "
        text += f"{middles[worst]:.0f} % at {worst}."
    own = groups["tuned"]
    if own:
        counts = {n: float(np.median(r["steps"])) for n, r in own.items()}
        fastest = min(counts, key=lambda n: counts[n])
        text += f" Tuned for itself, the fastest is the floor {fastest} ({number(counts[fastest])} steps)"
        inert = [n for n, r in own.items() if r["above"] is not None and max(r["above"]) == 0]
        text += ", where no h is above the floor." if fastest in inert else "."
    return text.replace("-", "−")


def _table(title: str, group: Mapping[str, Any]) -> Any:
    rows = []
    for name, r in group.items():
        steps = median_interval(r["steps"], num_bootstrap=1000)
        rows.append(
            [
                name,
                f"{number(r['floor'])}",
                f"{100 * float(np.median(r['accuracy'])):.1f} %",
                counted(steps),
                float(np.median(np.array(r["loss"])[:, -1])),
                f"{100 * float(np.median(r['above'])):.1f} %",
                number(r["best_trial"]["lr"]) + (" (edge)" if r["edge"] else ""),
            ]
        )
    headers = ["floor", "value", "test accuracy", "steps to target", "final loss", "h above floor", "learning rate"]
    return table(headers, rows, caption=title)


def _plain(r: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "floor": r["floor"],
        "accuracy": list(median_interval(r["accuracy"], num_bootstrap=1000)),
        "steps": list(median_interval(r["steps"], num_bootstrap=1000)),
        "above": float(np.median(r["above"])),
        "best_trial": r["best_trial"],
        "edge": r["edge"],
    }


def _bars(groups: Mapping[str, Mapping[str, Any]]) -> Drawing:
    names = [n for n in groups["shared"] if all(n in g for g in groups.values())]
    values, ends = {}, {}
    for p, g in groups.items():
        medians = [[100 * v for v in median_interval(g[n]["accuracy"], num_bootstrap=1000)] for n in names]
        values[PROTOCOLS[p]] = [v[0] for v in medians]
        ends[PROTOCOLS[p]] = [(v[1], v[2]) for v in medians]
    labels = [f"floor {n}" for n in names]
    return bar_figure(labels, values, xlabel="test accuracy in per cent", title="Accuracy by floor", intervals=ends)


def _curves(group: Mapping[str, Any], target: float) -> Drawing:
    lines = []
    for name, r in group.items():
        middle = np.median(np.array(r["loss"]), axis=0)
        lines.append(Line(f"floor {name}", (EVERY * np.arange(1, len(middle) + 1)).tolist(), middle.tolist()))
    title = "Loss by floor, one learning rate"
    return line_figure(lines, xlabel="steps", ylabel="training loss", title=title, ylog=True, marks={"target": target})


def _settings(config: Mapping[str, Any]) -> list[str]:
    return [
        "The model and data are those of the ablation figure: softmax regression on handwritten digits, 650 "
        f"parameters, minibatches of {config['batch']}, {config['budget']} steps. h by A-GNB from the SPSA gradient, "
        "β₂ = 0.99, every 10 steps, γ = 1. The scale h₀ = B‖g₀‖² is the mean of the first estimate.",
        "There are 16 learning rates in factors of √2 about the natural one. Chosen is the least median steps to a "
        f"training loss of {config['target']:g} on {config['tuning_seeds']} seeds, cut at {config['tuning_budget']} "
        f"steps, and judged on {config['test_seeds']} others. It is chosen once at floor 1 for all floors, as the "
        "paper's words read, and once at each floor.",
        f"Half of the paper's ten points, {HALF:g}, is the line. A floor loses ten points where the 95 % interval of "
        "the mean loss over paired seeds lies above it. It does as well where that lies within ± the line. Between 0.9 "
        "and 1 the step changes by a ninth where no h is above the floor, and by less where some are.",
    ]
