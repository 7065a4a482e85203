"""The page of Sophia's clip triggers. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from helene.lab.report.figures import Line, line_figure
from helene.lab.report.pages import number, table
from helene.lab.runs.records import Record
from synthetic.figures.pages import Remade, Statement, finished

TITLE = "How often Sophia's clip acts"
PAPER = (1.18, 1.22)
SEEDS = 5  # fewer that all point one way do so by chance more often than 1 in 16; the kinds of one run move together
EARLY, LATE = (400, 800), (1400, 1800)  # the paper's windows


def remake(records: Sequence[Record]) -> Remade:
    """Judge the records.

    Raises:
        ValueError: If every cell failed.
    """
    every = finished(records)
    gamma = max({r.config["gamma"] for r in every}, key=lambda g: _share([r for r in every if r.config["gamma"] == g]))
    acting = [r for r in every if r.config["gamma"] == gamma]
    rest = [r for r in every if r.config["gamma"] != gamma]
    ratios = {kind: [by_loss(r, kind) for r in acting] for kind in acting[0].result["rate"]}
    parts = parts_of(ratios, confounded(acting))
    config = acting[0].config
    return Remade(
        name="triggers",
        title=TITLE,
        quote="“The frequency of clipping in the interval where the mean loss was 0.65 was 1.18 to 1.22 times higher "
        "than in the interval where the mean loss was 0.57”, over Q, K, V, fully connected and bias layers (appendix, "
        "convergence instability of Sophia).",
        parts=parts,
        answer=_answer(parts, ratios, acting, rest),
        settings=_settings(config, acting, rest),
        drawings=[
            ("rates", line_figure(_rates(acting), xlabel="step", ylabel="share of coordinates clipped",
             title="Sophia's clip by kind of layer", ylog=_positive(acting)),
             "Share of coordinates that the clip acts on, mean over windows of 100 steps and over seeds."),
            ("loss", line_figure([Line(f"seed {r.config['seed']}", _steps(r), r.result["loss"]) for r in acting],
             xlabel="step", ylabel="mean loss of the window", title="The loss of the same runs"), "Mean of the "
             "steps' losses in the same windows."),
        ],
        tables=[_table(ratios, acting)],
        data={"ratios": ratios, "learning_rate": acting[0].result["lr"], "edge": acting[0].result["edge"]},
    )  # fmt: skip


def _share(records: Sequence[Record]) -> float:
    """Share of coordinates clipped, mean over seeds, kinds and windows."""
    return float(np.mean([np.mean(list(r.result["rate"].values())) for r in records]))


def by_loss(record: Record, kind: str) -> float:
    """Mean rate in the windows of higher loss over that in the windows of lower loss, from step 400 on; nan if 0/0."""
    keep = np.array(_steps(record)) > EARLY[0]
    loss, rate = np.array(record.result["loss"])[keep], np.array(record.result["rate"][kind])[keep]
    order = loss.argsort()
    half = len(order) // 2
    return _over(rate[order[-half:]].mean(), rate[order[:half]].mean())


def by_window(record: Record, kind: str) -> float:
    """Mean rate in the later of the paper's two windows over that in the earlier one."""
    steps, rate = np.array(_steps(record)), np.array(record.result["rate"][kind])
    early, late = (rate[(steps > a) & (steps <= b)].mean() for a, b in (EARLY, LATE))
    return _over(late, early)


def _over(a: float, b: float) -> float:
    return float(a / b) if b > 0 else float("inf") if a > 0 else float("nan")


def confounded(acting: Sequence[Record]) -> bool:
    """Whether loss falls in some run: h grows from 0 over the first 1/(1 − β2) estimates, so early steps clip more."""
    return any(r.result["loss"][0] > r.result["loss"][-1] for r in acting)


def parts_of(ratios: Mapping[str, Sequence[float]], is_confounded: bool) -> list[Statement]:
    """For each kind: more often where the loss is higher, in every seed; less often in every seed; or open.

    Open as well with fewer than `SEEDS` seeds, and where more clips at higher loss may be h's slow start.
    """
    parts = []
    for kind, values in ratios.items():
        enough = len(values) >= SEEDS
        above, below = (
            enough and not is_confounded and all(v > 1 for v in values),
            enough and all(v < 1 for v in values),
        )
        numbers = "ratios " + ", ".join(number(v) for v in values)
        holds = True if above else False if below else None
        parts.append(Statement(f"the clip acts more often where the loss is higher: {kind}", holds, numbers))
    return parts


def _answer(
    kinds: Sequence[Statement], ratios: Mapping[str, Sequence[float]], acting: Sequence[Record], rest: Sequence[Record]
) -> str:
    more, less = (sum(all(sign * v > sign for v in values) for values in ratios.values()) for sign in (1, -1))
    rates = [float(np.mean([r.result["rate"][k] for r in acting])) for k in acting[0].result["rate"]]
    verb = "more" if more > less else "less" if less > more else "neither more nor less"
    count = max(more, less)
    text = f"Where the loss is higher Sophia's clip acts {verb} often in {count} of {len(kinds)} kinds of layers"
    if more == less:
        text = f"Sophia's clip does not follow the loss the same way in all kinds of layers ({more} more, {less} less)"
    drift = [by_window(r, k) for r in acting for k in r.result["rate"]]
    finite = [d for d in drift if np.isfinite(d)]
    known = [v for values in ratios.values() for v in values if np.isfinite(v)]
    middle = number(float(np.median(known))) if known else "no finite"
    text += f". The median ratio is {middle}, the paper's {PAPER[0]:g} to {PAPER[1]:g}. {_order(acting)}"
    text += f" That {len(acting)} seeds cannot settle." if len(acting) < SEEDS else ""
    shares = dict.fromkeys(f"{100 * share:.2g}" for share in (min(rates), max(rates)))
    text += f" At γ = {acting[0].config['gamma']:g} it acts on {' to '.join(shares)} % of the coordinates of each kind"
    if finite:
        text += f", {number(float(np.median(finite)))} times as often in steps 1400 to 1800 as in steps 400 to 800"
    if rest:
        text += f". At γ = {rest[0].config['gamma']:g} it acts on {100 * _share(rest):.2g} %"
    return text + "."


def _order(acting: Sequence[Record]) -> str:
    """Whether higher loss is earlier or later in these runs: the two cannot be told apart within one run."""
    earlier = [r.result["loss"][0] > r.result["loss"][-1] for r in acting]
    if all(earlier):
        return "Here these are the earlier steps, where h still grows from 0: that explains it as well."
    if not any(earlier):
        return "As in the paper these are the later steps."
    return "In some seeds these are the earlier steps, in others the later ones."


def _steps(record: Record) -> list[int]:
    every = record.config["every"]
    return [every * (i + 1) for i in range(len(record.result["loss"]))]


def _positive(acting: Sequence[Record]) -> bool:
    return all(np.mean([r.result["rate"][k] for r in acting], axis=0).min() > 0 for k in acting[0].result["rate"])


def _rates(acting: Sequence[Record]) -> list[Line]:
    return [
        Line(kind, _steps(acting[0]), np.mean([r.result["rate"][kind] for r in acting], axis=0).tolist())
        for kind in acting[0].result["rate"]
    ]


def _table(ratios: Mapping[str, Sequence[float]], acting: Sequence[Record]) -> Any:
    rows = []
    for kind, values in ratios.items():
        windows = [by_window(r, kind) for r in acting]
        rows.append(
            [
                kind,
                acting[0].result["coordinates"][kind],
                100 * float(np.mean([r.result["rate"][kind] for r in acting])),
                ", ".join(number(v) for v in values),
                ", ".join(number(v) for v in windows),
            ]
        )
    headers = ["kind", "coordinates", "clipped, %", "rate at higher / lower loss", "steps 1400–1800 / 400–800"]
    return table(headers, rows, caption="Ratios for each seed.")


def _settings(config: Mapping[str, Any], acting: Sequence[Record], rest: Sequence[Record]) -> list[str]:
    result, model = acting[0].result, config["model"]
    chance = f"1 in {2 ** len(acting)}"
    return [
        f"ZO-Sophia trains a transformer of {sum(result['coordinates'].values())} parameters ({model['n_layer']} "
        f"block, width {model['d_model']}) on sequences of a Markov chain over {model['vocab']} tokens, "
        f"{config['batch']} a step. It has β₁ = 0.96, clip 1 and h by A-GNB from the SPSA "
        "gradient, β₂ = 0.99, every 10 steps.",
        "B, the number of predicted tokens, multiplies h. So at the γ = 0.05 of Sophia-G the clip hardly acts; a "
        "smaller γ makes it act. " + " ".join(_tuned(r) for r in [acting[0], *rest[:1]]),
        "Higher and lower loss: the windows of 100 steps after step 400, halved by their mean loss. The paper compares "
        "steps 400 to 800 (loss 0.57) with steps 1400 to 1800 (loss 0.65), a run whose loss rises.",
        "Where the loss falls, higher loss means earlier steps. There h, an average that starts from 0, is small for "
        "some 1000 steps. More clips are then no evidence for the paper, and the verdict stays open.",
        "It is shown where the ratio is above 1 in every seed, not shown where it is below 1 in every seed. With fewer "
        f"than {SEEDS} seeds it is open. Were both as likely, each would come by chance in {chance} of such figures.",
    ]


def _tuned(record: Record) -> str:
    rates, result = record.config["learning_rates"], record.result
    return (
        f"With γ = {record.config['gamma']:g} the learning rate is {number(result['lr'])}, of {len(rates)} from "
        f"{number(rates[0])} to {number(rates[-1])}{', at the edge of the grid' if result['edge'] else ''}. It has the "
        f"least loss after {record.config['tuning_steps']} steps on seeds of their own; runs make "
        f"{record.config['steps']} steps."
    )
