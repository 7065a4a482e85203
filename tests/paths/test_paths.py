"""The contract over paths, a slice of it: ``python -m tests.paths.fuzz`` runs all of it and as much as one likes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helene.noise import numpy_generator
from tests.paths import combined, contract, fuzz, models, paths, workers
from tests.paths.agree import differences
from tests.paths.cases import Case, Event, Run
from tests.paths.table import BASE, FUSED, OTHER, Row, base, defaults_of, rows

CHEAP = (*contract.TO_THE_BIT, *contract.RANKED)
SLICE = 72  # one row in so many, by its name
ROWS = [row for row in rows() if zlib.crc32(str(row).encode()) % SLICE == 0]
MAKERS = combined.all_at_first, combined.all_later, combined.disturbed
interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    yield
    workers.stop()


def turn(key: object, number: int) -> int:
    """A number below ``number`` that a name always gives."""
    return zlib.crc32(str(key).encode()) // SLICE % number


def holds(case: Case, path: str) -> str:
    verdict = contract.check(case, path)
    assert verdict.kind != "disagreed", f"{path}: {verdict.text}"
    return verdict.kind


def test_the_table_has_every_option() -> None:
    for method in BASE:
        assert defaults_of(method).keys() <= OTHER.keys()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_option_changes_the_trajectory_or_is_refused(row: Row) -> None:
    verdict = contract.shows(row)
    assert verdict.kind != "disagreed", verdict.text


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_option_is_the_same_on_a_path(row: Row) -> None:
    holds(row.case, CHEAP[turn(row, len(CHEAP))])


@pytest.mark.parametrize("path", [*CHEAP, "simulator"])
def test_a_path_runs_what_it_is_for(path: str) -> None:
    assert holds(Case("Helene", {**BASE["Helene"]}), path) == "agreed"


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("method", BASE)
def test_everything_at_once(method: str, make: Callable[[str], Case]) -> None:
    """On one of the paths, by turns; `SLOW` has what kernels run."""
    holds(make(method), CHEAP[turn((method, make.__name__), len(CHEAP))])


@pytest.mark.parametrize("make", MAKERS[:2])
@pytest.mark.parametrize("method", FUSED)
def test_each_of_everything_shows(method: str, make: Callable[[str], Case]) -> None:
    """So a path that leaves one out, or the kernels, make another run than plain torch does; one in five here."""
    case = make(method)
    options = [o for o in combined.left_out(case) if o[0] != "state_dtype" or contract.reference(case).state]
    for option, less in options[turn(method, 5) :: 5]:
        verdict = contract.matters(case, less)
        assert verdict.kind == "agreed", f"{option}: {verdict.text}"


SLOW = [("kernels-replay", method, combined.all_at_first) for method in ("Helene", "MeZO")]
SLOW += [("kernels-replay", method, combined.all_later) for method in ("ZOSign", "ZOAdamW", "ZOLion")]
SLOW += [("kernels", "Helene", combined.disturbed)]


@interpreter
@pytest.mark.parametrize(("path", "method", "make"), SLOW)
def test_everything_at_once_by_kernels(path: str, method: str, make: Callable[[str], Case]) -> None:
    pytest.importorskip("triton")
    assert holds(make(method), path) == "agreed"


@interpreter
def test_captured_steps_and_others_in_turns() -> None:
    """Saved where captured steps have been followed by one that is not."""
    pytest.importorskip("triton")
    events = (Event(6, "reload", ("same",)),)
    assert holds(Case("MeZO", BASE["MeZO"], "odd", events=events, steps=6), "graph-mixed") == "agreed"


@interpreter
def test_floors_that_follow_the_curvature_by_kernels() -> None:
    pytest.importorskip("triton")
    holds(Case("Helene", {**BASE["Helene"], "floor": OTHER["floor"][1]}, "odd"), "kernels-replay")


@pytest.mark.parametrize("kind", ["nan", "steep"])
@pytest.mark.parametrize("path", ["torch", "engine", "engine-replay", "ranks"])
def test_a_step_that_is_not_finite_moves_nothing(path: str, kind: str) -> None:
    holds(Case("Helene", {**BASE["Helene"], "eps": 1e-3}, "odd", events=(Event(7, kind),), steps=7), path)


@pytest.mark.parametrize("path", [*CHEAP, "simulator"])
def test_random_configurations(path: str) -> None:
    _, found = fuzz.sweep(path, 2, 4, say=lambda _: None, least=False)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("eps", [0.05, 0.4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", models.LAYERS)
def test_an_element_rounded_the_other_way_moves_the_loss_by_a_flip_at_most(name: str, dtype: str, eps: float) -> None:
    """Each element in turn is moved to the next number of 16 bits."""
    model, batch = models.make(name, getattr(torch, dtype)), models.batch_of(3)
    generator, moved = torch.Generator().manual_seed(1), []
    with torch.no_grad():
        for p in model.parameters():
            p.add_(eps * torch.randn(p.shape, generator=generator))
        at_first = models.loss(model, batch)
        for p in model.parameters():
            bits = p.view(-1).view(torch.int16)
            for i in range(p.numel()):
                bits[i] += 1
                moved.append(float(abs(models.loss(model, batch) / at_first - 1.0)))
                bits[i] -= 1
    assert 0.1 < max(moved) / models.flip(name, dtype, eps) < 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_summed_in_64_bits_have_the_same_gradients(dtype: str) -> None:
    """So first-order methods are compared on devices that sum repeated ids' gradients in other ways."""
    for step in range(1, 13):
        for own in (0, 1):
            gradients = []
            for read in (None, lambda ids, w: F.embedding(ids, w.double()).to(w.dtype)):
                model = models.make("tied", getattr(torch, dtype))
                if read:
                    model.embed.forward = partial(read, w=model.embed.weight)
                models.loss(model, models.batch_of(step, own)).backward()
                gradients.append(model.embed.weight.grad)
            assert torch.equal(*gradients)


@pytest.mark.parametrize("fault", [1.0, 1.01])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_normals_that_are_off_are_agreed_to_and_a_percent_of_lr_is_not(
    dtype: str, fault: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a path whose normals are off by 4e-6, so that copies are rounded otherwise than plain torch rounds them."""
    normal = numpy_generator.normal

    def off(*key: int) -> np.ndarray:
        z = normal(*key)
        return z + np.float32(4e-6) * (1 - 2 * (z.view(np.int32) & 1)) * np.maximum(1, abs(z)).astype(np.float32)

    def path(case: Case) -> Run:
        with monkeypatch.context() as inside:
            inside.setattr(numpy_generator, "normal", off)
            return paths.drive(replace(case, options={**case.options, "lr": fault * case.options["lr"]}))

    case = Case("ZOAdam", {**BASE["ZOAdam"], "num_directions": 2, "eps": 0.4}, dtype=dtype)
    before = differences(contract.reference(case), path(case), contract.twins(case, "gpu-torch"))
    assert any("momentum" in line for line in before)  # with slopes of its own
    monkeypatch.setitem(contract.ON_A_GPU, "gpu-torch", path)
    assert contract.check(case, "gpu-torch").kind == ("agreed" if fault == 1.0 else "disagreed")


@pytest.mark.parametrize("path", CHEAP)
def test_a_path_that_ignores_an_option_is_found(path: str) -> None:
    method = ("Helene", "ZOAdam", "ZOLion", "ZOMomentum")[turn(path, 4)]
    case = combined.all_at_first(method)
    if path == "sharded":  # which has no blocks of 8-bit state
        case = replace(case, options={**case.options, "state_dtype": "bfloat16"})
    assert holds(case, path) == "agreed"
    for option in sorted(set(case.asked) & {*OTHER} - {"lr"})[turn(path, 4) :: 4]:
        assert contract.check(case, path, mutant=option).kind != "agreed", f"{option} can be left out"


@interpreter
def test_kernels_that_ignore_an_option_are_found() -> None:
    pytest.importorskip("triton")
    assert contract.check(combined.all_at_first("Helene"), "kernels-replay", mutant="beta2").kind == "disagreed"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("path", contract.ON_GPU)
@pytest.mark.parametrize("method", FUSED)
@pytest.mark.parametrize("make", [base, *MAKERS])
def test_a_gpu(method: str, path: str, make: Callable[[str], Case]) -> None:
    holds(make(method), path)
