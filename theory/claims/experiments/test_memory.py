"""Memory: the factors that the paper states against the gigabytes that it prints."""

from __future__ import annotations

from fractions import Fraction

from theory import ledger
from theory.sources import paper_numbers as paper
from theory.sources.measured import measured

HALF = Fraction(1, 2)  # whole gigabytes are printed


def _factor(at: ledger.Instance) -> ledger.Sides:
    return Fraction(at["gigabytes"], at["mezo_gigabytes"]), at["factor"]


HELENE_GB, FT_GB, MEZO_GB = (Fraction(paper.MEMORY_GB[name]) for name in ("HELENE", "FT", "MeZO"))
LEAST, MOST = (HELENE_GB - HALF) / (MEZO_GB + HALF), (HELENE_GB + HALF) / (MEZO_GB - HALF)


def test_ends_of_the_interval():
    """What the texts below state, by exact arithmetic."""
    assert (LEAST, MOST) == (3, Fraction(29, 7))
    assert (FT_GB + HALF) / (MEZO_GB - HALF) == Fraction(55, 7)
    assert paper.rounded(FT_GB / HELENE_GB, 2) == Fraction("1.93")


def _most_favourable(at: ledger.Instance) -> ledger.Sides:
    """HELENE's memory at its least and the claimed factor times MeZO's at its most: a bound that is not reached."""
    return at["gigabytes"] - HALF, at["factor"] * (at["mezo_gigabytes"] + HALF)


THREE = ledger.Claim(
    id="MEM-3x",
    place="Appendix, Limitations",
    statement="Theoretically and practically HELENE requires only three times the memory of MeZO (OPT-1.3B: 14 GB and "
    "4 GB).",
    expected=ledger.Verdict.REFUTED,
    answer="By the printed numbers 3.5 times; whatever was rounded, more than three and up to 4.1.",
    evidence=(
        ledger.Witness(
            text=r"$\frac{14\,\mathrm{GB}}{4\,\mathrm{GB}} = \frac72 > 3$.",
            instance={"gigabytes": paper.MEMORY_GB["HELENE"], "mezo_gigabytes": paper.MEMORY_GB["MeZO"], "factor": 3},
            sides=_factor,
            recorded=(Fraction(7, 2), 3),
            harmless={"gigabytes": 12, "mezo_gigabytes": 4, "factor": 3},
        ),
        ledger.Witness(
            text=r"The most favourable rounding, halves up: HELENE's memory is at least $13.5$, three times MeZO's "
            r"below $3\cdot4.5 = 13.5$.",
            target=ledger.Target.KINDEST,
            instance={"gigabytes": 14, "mezo_gigabytes": 4, "factor": 3},
            sides=_most_favourable,
            recorded=(Fraction(27, 2), Fraction(27, 2)),
            harmless={"gigabytes": 13, "mezo_gigabytes": 4, "factor": 3},
            relation="<",
        ),
    ),
    note="“At least three times” is true, and the opposite of *only*. “Three” as the nearest whole number is neither "
    "shown nor excluded: 14 and 4 GB stand for factors from 3.0 to 4.1. In theory parameters, momentum and curvature "
    "are three times the *parameters*, if all have one dtype; MeZO's total also holds activations. With 1.32 billion "
    "parameters, two more copies in 16 bits would add 5.3 GB to MeZO's "
    "4, in 32 bits 10.5 GB: the printed 14 GB fits 32-bit state." + measured("MEM-3x"),
)


TWELVE = ledger.Claim(
    id="MEM-12x",
    place='Table 2, last row ("FT (12x memory)"); appendix, Limitations',
    statement="On OPT-1.3B full fine-tuning with Adam needs twelve times the memory (27 GB; MeZO 4 GB).",
    expected=ledger.Verdict.REFUTED,
    answer="27/4 = 6.75 times MeZO's memory and 1.9 times HELENE's; no rounding gives more than 7.9.",
    evidence=(
        ledger.Witness(
            text=r"$\frac{27\,\mathrm{GB}}{4\,\mathrm{GB}} = \frac{27}{4} < 12$.",
            instance={"gigabytes": paper.MEMORY_GB["FT"], "mezo_gigabytes": paper.MEMORY_GB["MeZO"], "factor": 12},
            sides=_factor,
            recorded=(Fraction(27, 4), 12),
            harmless={"gigabytes": 48, "mezo_gigabytes": 4, "factor": 12},
            relation=">=",
        ),
        ledger.Witness(
            text=r"The most favourable rounding and 'twelve' from 11.5 up: $\frac{27.5}{3.5} = \frac{55}{7} < 11.5$.",
            target=ledger.Target.KINDEST,
            instance={"gigabytes": FT_GB + HALF, "mezo_gigabytes": MEZO_GB - HALF, "factor": Fraction(23, 2)},
            sides=_factor,
            recorded=(Fraction(55, 7), Fraction(23, 2)),
            harmless={"gigabytes": FT_GB + HALF, "mezo_gigabytes": Fraction(2), "factor": Fraction(23, 2)},
            relation=">=",
        ),
    ),
    note="Twelve is the factor that the MeZO paper states for a larger model of the family." + measured("MEM-12x"),
)


CLAIMS = (THREE, TWELVE)
