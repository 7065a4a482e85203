"""docs/findings/scaling.md against the committed records."""

from __future__ import annotations

from tests.findings.committed import FAMILIES, ROOT, records, table, words


def test_the_page_on_scaling():
    """Every family's exponents and ratios, with their intervals."""

    def shown(interval: list[float] | None) -> str:
        if interval is None:
            return "d is fixed"
        middle, low, high = (f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−") for value in interval)
        return f"{middle} [{low}, {high}]"

    series = {r["series"]: r for r in records(ROOT / "synthetic" / "records" / "full.jsonl") if "series" in r}
    _, *rows = table("docs/findings/scaling.md", "| family | β")
    assert [row[0] for row in rows] == list(FAMILIES)
    for label, *cells in rows:
        helene, ball = (series[f"{FAMILIES[label]}-{method}"] for method in ("helene", "heavy_ball"))
        against = (helene["steps_against_mezo"], ball["steps_against_mezo"])
        assert cells == [shown(value) for value in (helene["beta"], helene["alpha"], *against)], label
    ratios = {label: series[f"{name}-helene"]["steps_against_mezo"][0] for label, name in FAMILIES.items()}
    unlike = [f"{ratios.pop(label):.2f}" for label in FAMILIES if label.endswith("unlike layers")]
    least, most = (f"{choose(ratios.values()):.2f}" for choose in (min, max))
    told = "On the two families of unlike layers tuned HELENE needs {} and {} times tuned MeZO's steps."
    told = f"{told.format(*unlike)} On all others it needs {least} to {most} times as many."
    assert told in words("docs/findings/scaling.md")
    told = "{} and {} times tuned MeZO's on the two of unlike layers,".format(*unlike)
    assert f"{told} {least} to {most} times on all others" in words("docs/choosing.md")
