"""The contract over paths, a slice of it: ``python -m tests.paths.fuzz --deep N`` runs as much as one likes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
import torch

from tests.paths import contract, fuzz, workers
from tests.paths.agree import differences, refusal
from tests.paths.cases import Case
from tests.paths.table import BASE, FUSED, INERT, OTHER, Row, base, defaults_of, rows

SLICE = 8  # one row in so many, by the row's name


def chosen(row: Row) -> bool:
    return zlib.crc32(str(row).encode()) % SLICE == 0


ROWS = [row for row in rows() if chosen(row)]


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    yield
    workers.stop()


def test_the_table_has_every_option() -> None:
    for method in BASE:
        assert defaults_of(method).keys() <= OTHER.keys()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_option_changes_the_trajectory_or_is_refused(row: Row) -> None:
    first, second = contract.reference(row.case), contract.reference(row.without)
    assert not second.refused
    inert = (row.case.method, row.option) in INERT
    if first.refused:
        assert not inert
        verdict = refusal(row.case, first.refused)
        assert verdict.kind == "refused", verdict.text
    else:
        assert bool(differences(first, second)) != inert, "set, and nothing is different"


CHEAP = (*contract.TO_THE_BIT, *contract.RANKED)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_option_is_the_same_on_a_path(row: Row) -> None:
    path = CHEAP[zlib.crc32(str(row).encode()) // SLICE % len(CHEAP)]
    verdict = contract.check(row.case, path)
    assert verdict.kind != "disagreed", f"{path}: {verdict.text}"


@pytest.mark.parametrize("method", BASE)
@pytest.mark.parametrize("path", CHEAP)
def test_methods_agree(method: str, path: str) -> None:
    case = Case(method, BASE[method], "odd") if path == "sharded" else base(method)
    verdict = contract.check(case, path)
    assert verdict.kind != "disagreed", verdict.text


@pytest.mark.parametrize("path", CHEAP)
def test_random_configurations(path: str) -> None:
    counts, found = fuzz.sweep(path, 4, 0, say=lambda _: None, least=False)
    assert not found, "\n".join(found)
    assert counts["agreed"]


@pytest.mark.parametrize("turn", range(len(contract.INTERPRETED)))
def test_random_configurations_by_kernels(turn: int) -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("for machines without a GPU")
    _, found = fuzz.sweep(contract.INTERPRETED[turn], 1, 0, say=lambda _: None, least=False)
    assert not found, "\n".join(found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("path", contract.ON_GPU)
@pytest.mark.parametrize("method", FUSED)
def test_methods_agree_on_a_gpu(method: str, path: str) -> None:
    verdict = contract.check(base(method), path)
    assert verdict.kind != "disagreed", verdict.text
