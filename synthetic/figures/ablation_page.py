"""The page of the ablation. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from helene.lab.report.figures import Drawing, Line, line_figure
from helene.lab.report.method_colours import places_of
from helene.lab.report.pages import interval, number, table
from helene.lab.runs.records import Record
from helene.lab.scaling.cells import median_interval, ratio_of_medians
from synthetic.figures.pages import Remade, Statement, counted, finished
from synthetic.figures.trials import EVERY

TITLE = "The ablation: what each part of HELENE adds"
NAMES = {
    "mezo": "MeZO",
    "momentum": "+ momentum",
    "biased": "+ biased gradient",
    "annealed": "+ anneal",
    "helene": "+ clipped Hessian (HELENE)",
}
PROTOCOLS = {"tuned": "each tuned alike", "shared": "all at MeZO's learning rate"}


def remake(records: Sequence[Record]) -> Remade:
    """Judge the records.

    Raises:
        ValueError: If every cell failed.
    """
    results = {(r.config["protocol"], r.config["stage"]): r for r in finished(records)}
    groups = {
        protocol: {stage: results[protocol, stage].result for stage in NAMES if (protocol, stage) in results}
        for protocol in PROTOCOLS
    }
    tuned = parts_of(groups["tuned"])
    shared = parts_of(groups["shared"])
    config = records[0].config
    return Remade(
        name="ablation",
        title=TITLE,
        quote="“Adding momentum to MeZO alone doesn't improve performance. Introducing bias in the gradient boosts "
        "convergence speed, but causes loss to increase later […]. We added an annealing term […], which stabilizes "
        "the loss. […] the clipped Hessian […] further improving convergence speed”, twice as fast (appendix, ablation "
        "study).",
        parts=tuned,
        answer=_answer(tuned, shared, groups),
        settings=_settings(config),
        drawings=[
            (p, _drawing(g, config["target"], PROTOCOLS[p]), f"Loss on all training images, {PROTOCOLS[p]}: median of "
             f"{config['test_seeds']} seeds and the middle half of them. Where lines coincide, the last of the legend "
             "hides the others.")
            for p, g in groups.items() if g
        ],
        tables=[_table(PROTOCOLS[p], g) for p, g in groups.items() if g] + [_shared_parts(shared)],
        data={"protocols": {p: {stage: _plain(r) for stage, r in g.items()} for p, g in groups.items()}},
    )  # fmt: skip


def parts_of(group: Mapping[str, Any]) -> list[Statement]:
    """What the paper says of the five curves, each against the data of one protocol."""
    if set(group) != set(NAMES):
        return []
    speed = {b: _ratio(group[a], group[b]) for a, b in (("mezo", "momentum"), ("mezo", "biased"))}
    hessian, whole = _ratio(group["annealed"], group["helene"]), _ratio(group["mezo"], group["helene"])
    rises = _more(group["biased"], group["mezo"])
    mends = _more(group["biased"], group["annealed"])
    return [
        Statement("momentum alone doesn't help", not _faster(speed["momentum"]), _times(speed["momentum"], "MeZO")),
        Statement("the biased gradient converges faster", _faster(speed["biased"]), _times(speed["biased"], "MeZO")),
        Statement("its loss rises later", _positive(rises), f"{_percent(rises)} than MeZO's"),
        Statement("annealing stabilizes the loss", _positive(mends), f"without it, {_percent(mends)} than with it"),
        Statement("the clipped Hessian is faster still", _faster(hessian), _times(hessian, "the annealed gradient")),
        Statement(
            "HELENE is twice as fast as MeZO",
            True if whole[1] >= 2 else False if whole[2] < 2 else None,
            _times(whole, "MeZO"),
        ),
    ]


def _ratio(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> tuple[float, float, float]:
    """How many times as fast the second is: steps of the first over its steps."""
    return ratio_of_medians(slow["steps"], fast["steps"], num_bootstrap=1000)


def _faster(ratio: tuple[float, float, float]) -> bool | None:
    """Whether the ratio of steps is above 1; None where its interval does not tell."""
    return True if ratio[1] > 1 else False if ratio[2] <= 1 else None


def _times(ratio: tuple[float, float, float], other: str) -> str:
    if ratio[0] != ratio[0]:
        return f"misses the target, as {other} does"
    if ratio[0] == 0:
        return f"misses the target, {other} does not"
    if ratio[0] == math.inf:
        return f"reaches the target, {other} does not"
    return f"{number(ratio[0])} times as fast as {other} {interval(*ratio[1:])}"


def _rise(result: Mapping[str, Any]) -> np.ndarray:
    """Final loss above the least one, over the loss at the start (ln 10), per seed."""
    loss = np.array(result["loss"])
    return (loss[:, -1] - loss.min(1)) / np.log(10.0)


def _more(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[float, float, float]:
    """By how much the first rises more than the second: median over common seeds, with its interval."""
    value, low, high = median_interval(1.0 + _rise(a) - _rise(b), num_bootstrap=1000)
    return value - 1.0, low - 1.0, high - 1.0


def _positive(difference: tuple[float, float, float]) -> bool | None:
    return True if difference[1] > 0 else False if difference[2] <= 0 else None


def _percent(difference: tuple[float, float, float]) -> str:
    low, high = 100 * difference[1], 100 * difference[2]
    return f"the loss ends {100 * difference[0]:.2f} % of its start {interval(low, high)} further above its least"


def _answer(tuned: Sequence[Statement], shared: Sequence[Statement], groups: Mapping[str, Mapping[str, Any]]) -> str:
    if not tuned:
        return "No answer: stages are missing."
    text = f"Tuned alike, {_counted(tuned)}"
    ratio = _ratio(groups["tuned"]["mezo"], groups["tuned"]["helene"])
    text += f" HELENE {'is ' if 0 < ratio[0] < math.inf else ''}{_times(ratio, 'MeZO')}."
    if groups["tuned"]["momentum"]["steps"] == groups["tuned"]["biased"]["steps"]:
        text += " Momentum and biased gradient are one method at two learning rates."
    above = groups["tuned"]["helene"]["above"]
    if above is not None and max(above) == 0:
        text += " HELENE does best with a floor above every h, which makes it the annealed heavy ball."
    if shared:
        text += f" At one learning rate for all, {_counted(shared)}"
        missed = [n.removeprefix("+ ") for s, n in NAMES.items() if np.isinf(np.median(groups["shared"][s]["steps"]))]
        text += f" There {', '.join(missed)} miss{'es' if len(missed) == 1 else ''} the target." if missed else ""
    return text


def _counted(parts: Sequence[Statement]) -> str:
    holds = [p for p in parts if p.holds]
    names = ": " + "; ".join(p.says for p in holds) if holds else ""
    is_open = sum(p.holds is None for p in parts)
    left = f" {is_open} stay{'s' if is_open == 1 else ''} open." if is_open else ""
    hold = "holds" if len(holds) == 1 else "hold"
    return f"{len(holds)} of the paper's {len(parts)} statements {hold}{names}.{left}"


def _table(title: str, group: Mapping[str, Any]) -> Any:
    rows = []
    for stage, r in group.items():
        steps, loss = median_interval(r["steps"], num_bootstrap=1000), np.array(r["loss"])
        best = r["best_trial"]
        rows.append(
            [
                NAMES[stage],
                counted(steps),
                float(np.median(loss.min(1))),
                float(np.median(loss[:, -1])),
                f"{100 * float(np.median(r['accuracy'])):.1f} %",
                f"{number(best['lr'])}" + (f", floor {number(best['floor'])}" if "floor" in best else ""),
                "yes" if r["edge"] else "no",
            ]
        )
    headers = ["stage", "steps to target", "least loss", "final loss", "test accuracy", "learning rate", "at edge"]
    return table(headers, rows, caption=title)


def _shared_parts(parts: Sequence[Statement]) -> Any:
    words = {True: "shown", False: "not shown", None: "open"}
    rows = [[p.says, words[p.holds], p.numbers] for p in parts]
    return table(["what the paper says", "all at MeZO's learning rate", "numbers"], rows)


def _plain(r: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "steps": list(median_interval(r["steps"], num_bootstrap=1000)),
        "rise": float(np.median(_rise(r))),
        "accuracy": float(np.median(r["accuracy"])),
        "best_trial": r["best_trial"],
        "edge": r["edge"],
    }


def _drawing(group: Mapping[str, Any], target: float, title: str) -> Drawing:
    lines, colours = [], places_of(group)
    for stage, r in group.items():
        loss = np.array(r["loss"])
        x = EVERY * np.arange(1, loss.shape[1] + 1)
        low, middle, high = np.quantile(loss, [0.25, 0.5, 0.75], axis=0)
        band = (low.tolist(), high.tolist())
        lines.append(Line(NAMES[stage], x.tolist(), middle.tolist(), band=band, colour=colours[stage]))
    return line_figure(lines, xlabel="steps", ylabel="training loss", title=title, ylog=True, marks={"target": target})


def _settings(config: Mapping[str, Any]) -> list[str]:
    return [
        "Softmax regression on scikit-learn's handwritten digits: 1200 images to train, 597 to test, 650 parameters. "
        f"It starts from zero, with minibatches of {config['batch']}, {config['budget']} steps, one direction a step. "
        f"Target: a training loss of {config['target']:g}, looked at every {EVERY} steps.",
        "Stages, β₁ = 0.9. First MeZO, then m ← β₁m + (1 − β₁)g. Third m ← β₁m + g, the gradient EMA without the "
        "anneal. Fourth m ← β₁m + α(t)g, with the budget as horizon. Last the same over max(h, λ), h by A-GNB from the "
        "SPSA gradient (β₂ = 0.99, every 10 steps). The second and the third differ by the "
        "factor 1 − β₁ in the learning rate, by nothing else.",
        f"Each stage has 16 settings, chosen by the least median steps on {config['tuning_seeds']} seeds (cut at "
        f"{config['tuning_budget']} steps), judged on {config['test_seeds']} others. They are 16 learning rates in "
        "factors of √2 about the natural one; for HELENE 8 at each of the floors 1 and h₀ = B‖g₀‖².",
        "Faster: the 95 % interval of the ratio of median steps lies above 1. Not faster: it ends at 1 or below. Does "
        "not help: is not seen to be faster. Rises: the loss ends further above its least than MeZO's from the same "
        "seed, by the 95 % interval of the median difference. Stabilizes: it does so less with the anneal. What lies "
        "between is open: no threshold is ours. Slopes along directions are exact derivatives.",
    ]
