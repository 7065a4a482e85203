"""The paper's tables stand twice, exact in ``theory`` and as floats in ``llm_bench``: cell by cell the same numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from llm_bench.protocol import paper_tables as printed
from theory.sources import paper_numbers as exact

METHODS = {
    "zero-shot": "zero-shot",
    "icl": "ICL",
    "linear-probe": "LP",
    "ft-adam": "Adam",
    "mezo": "MeZO",
    "helene": "HELENE",
}
TUNINGS = dict(zip(("full", "lora", "prefix"), exact.TUNINGS, strict=True))
UNTUNED = ("zero-shot", "icl", "linear-probe")
SST2_METHODS = {
    "fo-sgd": "FO-SGD",
    "forward-grad": "Forward-Grad",
    "mezo": "ZO-SGD",
    "zo-sgd-mmt": "ZO-SGD-MMT",
    "zo-sgd-cons": "ZO-SGD-Cons",
    "zo-sgd-sign": "ZO-SGD-Sign",
    "zo-adam": "ZO-Adam",
    "helene": "HELENE",
}
MODELS = {"masked": "RoBERTa", "causal": "OPT"}


def cell(table: str, row: tuple[str, str], column: tuple[str, str]) -> exact.Cell:
    """The exact cell of a row and a column as ``llm_bench`` names them."""
    (method, tuning), (kind, task) = row, column
    if table == "3":
        return exact.SST2[SST2_METHODS[method]][f"{MODELS[kind]} {TUNINGS[tuning]}"]
    rows, tasks = exact.TABLES[MODELS[kind]]
    name = METHODS[method] if method in UNTUNED else f"{METHODS[method]} {TUNINGS[tuning]}"
    (found,) = [own for own in tasks if own.lower().replace("-", "") == task]
    return rows[name][found]


@pytest.mark.parametrize(("table", "cells"), [("1", 66), ("2", 90), ("3", 48)])
def test_every_cell_is_the_same(table: str, cells: int) -> None:
    found = printed.TABLES[table].printed
    assert len(found) == cells
    for (row, column), (mean, deviation) in found.items():
        own = cell(table, row, column)
        assert own.value == Fraction(str(mean)), (row, column)
        assert own.deviation == (None if deviation is None else Fraction(str(deviation))), (row, column)


def test_the_gigabytes_are_the_same() -> None:
    names = {"mezo": "MeZO", "icl": "ICL", "ft-prefix": "prefix FT", "ft-full": "FT", "helene": "HELENE"}
    assert {names[name]: gb for name, gb in printed.MEMORY.items() if name in names} == exact.MEMORY_GB
