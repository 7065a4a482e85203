"""TAB-noise: are the printed differences to MeZO larger than the noise that the printed deviations imply?"""

from __future__ import annotations

from fractions import Fraction

from theory import ledger
from theory.sources import paper_numbers as paper


def _squared_t(method: str, tuning: str, task: str) -> Fraction:
    """(difference of means)² over its squared standard error, s²/5 for each mean of five runs."""
    one, other = paper.ROBERTA[f"MeZO {tuning}"][task], paper.ROBERTA[f"{method} {tuning}"][task]
    if one.deviation is None or other.deviation is None:
        raise ValueError(f"{tuning} {task} has no printed deviation")
    return (other.value - one.value) ** 2 * paper.ROBERTA_RUNS / (one.deviation**2 + other.deviation**2)


def _largest_t(at: ledger.Instance) -> ledger.Sides:
    gains = [
        _squared_t(at["method"], tuning, task)
        for tuning in paper.TUNINGS
        for task in paper.ROBERTA_TASKS
        if paper.ROBERTA[f"{at['method']} {tuning}"][task].value > paper.ROBERTA[f"MeZO {tuning}"][task].value
    ]
    return max(gains), 4


NOISE = ledger.Claim(
    id="TAB-noise",
    place="Table 1",
    statement="On RoBERTa-large HELENE's differences to MeZO exceed the noise that the printed standard deviations "
    "(five runs) imply: two standard errors of a difference of means.",
    expected=ledger.Verdict.REFUTED,
    answer="The largest of ten gains is 1.1 standard errors; only a loss exceeds two (MNLI with LoRA, 4.1).",
    evidence=(
        ledger.Witness(
            text=r"SST-2, full tuning, squared: $\frac{5\,(91.6-90.5)^2}{1.2^2+2.3^2} = \frac{605}{673} < 4$.",
            instance={"tuning": "FT", "task": "SST-2"},
            sides=lambda at: (_squared_t("HELENE", at["tuning"], at["task"]), 4),
            recorded=(Fraction(605, 673), 4),
            harmless={"tuning": "LoRA", "task": "MNLI"},
            relation=">=",
        ),
        ledger.Witness(
            text=r"At least one gain: the largest, SST-2 with prefix, is $\frac{5\,(91.7-90.8)^2}{1.7^2+0.6^2} = "
            r"\frac{81}{65} < 4$, that is 1.1 standard errors.",
            target=ledger.Target.KINDEST,
            instance={"method": "HELENE"},
            sides=_largest_t,
            recorded=(Fraction(81, 65), 4),
            harmless={"method": "Adam"},
            relation=">=",
        ),
    ),
    note="The runs' own values are not printed, so that a test with the five seeds paired can't be made.",
)


CLAIMS = (NOISE,)
