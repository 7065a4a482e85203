"""The page of the toy figure. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from helene.lab.report.drawing import DASHES, INK, MARKERS, PALETTE, Drawing, finish, legend_below, new_figure, style
from helene.lab.report.method_colours import places_of
from helene.lab.report.pages import interval, number, table
from helene.lab.runs.records import Record
from helene.lab.scaling.cells import median_interval, ratio_of_medians
from synthetic.figures.pages import MISSING, Remade, Statement, counted, finished

TITLE = "The toy figure: two dimensions, two curvatures"
NAMES = {
    "sgd": "gradient descent",
    "adam": "Adam",
    "newton": "Newton",
    "sophia": "Sophia",
    "helene": "HELENE",
    "helene_agnb": "HELENE, h by A-GNB",
}
ZO_NAMES = {"sgd": "MeZO", "adam": "ZO-Adam", "newton": "ZO-Newton", "sophia": "ZO-Sophia", "helene": "HELENE"}


def remake(records: Sequence[Record]) -> Remade:
    """Judge the records.

    Raises:
        ValueError: If every cell failed.
    """
    by_cell = {r.config["cell"]: r for r in finished(records)}
    exact = {name: by_cell[f"exact-{name}"].result for name in NAMES if f"exact-{name}" in by_cell}
    losses = {name: by_cell[f"losses-{name}"].result for name in ZO_NAMES if f"losses-{name}" in by_cell}
    parts = _parts(exact)
    return Remade(
        name="toy",
        title=TITLE,
        quote="“While Adam and Gradient Descent struggle to converge effectively, Newton's method and Sophia find it "
        "hard to maintain stability when facing heterogeneous curvature, whereas HELENE succeeds” (section 3.1).",
        parts=parts,
        answer=_answer(parts, exact, losses),
        settings=_SETTINGS,
        drawings=[
            ("paths", _paths(exact), "Paths with exact gradients and Hessians, each at its chosen setting, from x = "
             "0.3, y = 0, where the curvature in x is negative. Star: the minimum; in x there is a maximum at 0."),
        ],
        tables=[_table("Exact gradients", exact, NAMES), _table("Losses alone", losses, ZO_NAMES)],
        data={"methods": {name: _plain(r.result) for name, r in by_cell.items()}},
    )  # fmt: skip


def _parts(exact: Mapping[str, Any]) -> list[Statement]:
    """Read comparatively, without thresholds of our own: each method against HELENE from the same starts."""
    if "helene" not in exact:
        return []
    parts, helene = [], exact["helene"]
    for name in ("sgd", "adam"):
        says = f"{NAMES[name]} struggles to converge"
        if name not in exact:
            parts.append(Statement(says, None, MISSING))
        else:
            ratio = _ratio(exact[name], helene)
            numbers = (
                f"{_reached_in_words(exact[name])}; {number(ratio[0])} times HELENE's steps {interval(*ratio[1:])}"
            )
            parts.append(Statement(says, _struggles(exact[name], helene, ratio), numbers))
    for name in ("newton", "sophia"):
        says = f"{NAMES[name]} is unstable"
        if name not in exact:
            parts.append(Statement(says, None, MISSING))
        else:
            numbers = f"{_reached_in_words(exact[name])}, HELENE from {_reached(helene)[0]}"
            parts.append(Statement(says, _fewer(exact[name], helene), numbers))
    others = [name for name in NAMES if not name.startswith("helene")]
    beaten = [_fewer(helene, exact[name]) if name in exact else None for name in others]
    succeeds = False if True in beaten else None if None in beaten else True
    return [*parts, Statement("HELENE succeeds", succeeds, _reached_in_words(helene))]


def _struggles(result: Mapping[str, Any], helene: Mapping[str, Any], ratio: tuple[float, float, float]) -> bool | None:
    """It reaches the target from fewer starts than HELENE or needs more steps: any advantage counts for the paper."""
    fewer = _fewer(result, helene)
    if fewer or ratio[1] > 1:
        return True
    return False if fewer is False and ratio[2] <= 1 else None


def _fewer(result: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Whether it reaches the target from fewer starts than the other: the sign test on starts that tell them apart.

    None where it does so from fewer, but by no more than happens by chance once in twenty times.
    """
    pairs = list(zip(result["test"]["status"], other["test"]["status"], strict=True))
    lost, won = sum(a != "r" and b == "r" for a, b in pairs), sum(a == "r" and b != "r" for a, b in pairs)
    if lost <= won:
        return False
    by_chance = sum(math.comb(lost + won, k) for k in range(lost, lost + won + 1)) / 2 ** (lost + won)
    return True if by_chance <= 0.05 else None


def _reached(result: Mapping[str, Any]) -> tuple[int, int]:
    letters = result["test"]["status"]
    return letters.count("r"), len(letters)


def _reached_in_words(result: Mapping[str, Any]) -> str:
    hits, count = _reached(result)
    return f"reaches the target from {hits} of {count} starts"


def _ratio(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[float, float, float]:
    return ratio_of_medians(a["test"]["steps"], b["test"]["steps"], num_bootstrap=1000)


def _answer(parts: Sequence[Statement], exact: Mapping[str, Any], losses: Mapping[str, Any]) -> str:
    if not parts:
        return "No answer: HELENE's run with exact gradients failed."
    shown = [p.says for p in parts if p.holds]
    against = [p.says for p in parts if p.holds is False]
    is_open = [p.says for p in parts if p.holds is None]
    said = [f"Tuned alike, the toy shows that {_listed(shown)}" if shown else "Tuned alike, the toy shows none of it"]
    if against:
        said.append(f"It does not show that {_listed(against)}")
    if is_open:
        said.append(f"It leaves open whether {_listed(is_open)}")
    said += [
        f"The fastest {where} is {_fastest(group, names)}"
        for group, names, where in ((exact, NAMES, "with exact gradients"), (losses, ZO_NAMES, "from losses alone"))
        if group
    ]
    return ". ".join(said) + "."


def _fastest(group: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """By median steps, of the methods that do not reach the target from fewer starts than any other; and HELENE."""
    reliable = [name for name, a in group.items() if not any(_fewer(a, b) for b in group.values())]
    median = {name: float(np.median(result["test"]["steps"])) for name, result in group.items()}
    best = min(reliable, key=lambda name: median[name])
    text = f"{names[best]} ({number(median[best])} steps"
    if best != "helene" and "helene" in group:
        text += f", HELENE {number(median['helene'])}"
    return text + ")"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _table(title: str, group: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    rows = []
    for name, result in group.items():
        letters, concave = result["test"]["status"], result["concave"]
        inside = [letter for letter, c in zip(letters, concave, strict=True) if c]
        outside = [letter for letter, c in zip(letters, concave, strict=True) if not c]
        middle = median_interval(result["test"]["steps"], num_bootstrap=1000)
        chosen = ", ".join(f"{k} {number(v)}" for k, v in result["best_trial"].items())
        rows.append(
            [
                names[name],
                counted(middle),
                f"{inside.count('r')} of {len(inside)}",
                f"{outside.count('r')} of {len(outside)}",
                chosen + (" (edge)" if result["edge"] else ""),
            ]
        )
    return table(
        ["method", "steps to target", "reached, concave starts", "reached, convex starts", "chosen"],
        rows,
        caption=title,
    )


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    hits, count = _reached(result)
    middle = median_interval(result["test"]["steps"], num_bootstrap=1000)
    return {
        "reached": hits,
        "starts": count,
        "steps": list(middle),
        "best_trial": result["best_trial"],
        "edge": result["edge"],
    }


def _paths(exact: Mapping[str, Any]) -> Drawing:
    paths = {name: np.array(result["path"][:60]) for name, result in exact.items()}
    highest = max([5.2, *(path[:, 1].max() for path in paths.values())]) + 0.2
    x, y = np.meshgrid(np.linspace(-1.1, 1.45, 220), np.linspace(-0.6, highest, 220))
    value = 8 * (x - 1) ** 2 * (1.3 * x**2 + 2 * x + 1) + (y - 4) ** 2 / 2
    with style():
        figure = new_figure(5.0)
        axes = figure.subplots()
        axes.contour(x, y, value, levels=np.geomspace(0.05, 60, 14), colors=INK, linewidths=0.6, alpha=0.4)
        places = places_of("gradient_descent" if name == "sgd" else name for name in paths)
        for i, (place, (name, path)) in enumerate(zip(places.values(), paths.items(), strict=True)):
            axes.plot(
                *path.T,
                color=PALETTE[place],
                marker=MARKERS[place],
                markersize=3,
                linewidth=1.1,
                linestyle=DASHES[i % len(DASHES)],
                label=NAMES[name],
            )
        axes.plot(1, 4, marker="*", markersize=13, color="#d55e00", linestyle="none", markeredgecolor="white")
        axes.set(
            xlim=(-1.1, 1.45), ylim=(-0.6, highest), xlabel="x, curvature 68.8 at the minimum", ylabel="y, curvature 1"
        )
        axes.set_title("First 60 steps from a start of negative curvature")
        axes.grid(visible=False)
        legend_below(figure, axes)
        return finish(figure, "Paths of " + ", ".join(NAMES[n] for n in exact) + " over the contours of the toy loss.")


_SETTINGS = (
    "The loss is that of the toy in Liu et al. (2023): 8(x − 1)²(1.3x² + 2x + 1) + (y − 4)²/2. Half of the starts have "
    "x between 0.05 and 0.55, where the curvature in x is negative. The other half have it between 0.65 and 0.95; y is "
    "between −1 and 1. The target is a hundredth of the loss at the start. Budgets are 400 steps with exact gradients, "
    "4000 from losses.",
    "Every method has 24 settings, tried from 20 starts and judged from 40 others. Chosen is what reaches the target "
    "from most starts, then the least median steps. Learning rates go in factors of √2 or 2 about a natural scale. "
    "Adam also has β₁ 0.9 or 0.5, Sophia γ 0.01, 0.1 or 1, HELENE the floor 1, 10 or 100. Other settings are the "
    "optimizers' defaults; HELENE's anneal has the budget as its horizon.",
    "With exact gradients, Newton, Sophia and HELENE have the exact diagonal Hessian at every step. That is all of it "
    "here. “h by A-GNB” is the moving average of ĝ⊙ĝ instead. From losses alone gradients are two-point estimates "
    "(radius 1e-3), h their squares; one direction a step. The arithmetic is that of the package's optimizers.",
    "“Struggles”: it reaches the target from fewer starts than HELENE, or takes more steps. “Unstable”: it reaches it "
    "from fewer starts. “Succeeds”: no other method reaches it from more. Fewer is by a sign test at one in twenty, on "
    "the starts that tell two apart. More steps is by the 95 % interval of the ratio of medians. No threshold is ours.",
)
