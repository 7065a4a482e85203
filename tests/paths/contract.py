"""The contract: a case on a path agrees with plain torch, or the path refuses it by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tests.paths import models, paths, simulated, workers
from tests.paths.agree import Verdict, differences, judge, refusal
from tests.paths.cases import Case, Run
from tests.paths.table import INERT, Row

TO_THE_BIT = tuple(paths.IN_PROCESS)
INTERPRETED = tuple(paths.IN_INTERPRETER)
RANKED = "ranks", "sharded"
ON_GPU = "gpu-torch", "gpu-kernels", "gpu-graph", "gpu-mixed", "gpu-replay"
PATHS = (*TO_THE_BIT, *INTERPRETED, *RANKED, "simulator")
SHARE_OF_KERNELS, SHARE_OF_RANKS = 2.0**-20, 2.0**-50
TURNS = (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0, -1.0, -1.0), (-1.0, -1.0, 1.0, 1.0)  # one sets any two losses apart

_kept: OrderedDict[str, Run] = OrderedDict()


def kept(key: str, make: Callable[[], Run]) -> Run:
    """A run that is made once."""
    if key not in _kept:
        _kept[key] = make()
        if len(_kept) > 3000:
            _kept.popitem(last=False)
    return _kept[key]


def reference(case: Case) -> Run:
    return kept(repr(case), lambda: paths.torch_path(case))


def twins(case: Case, path: str) -> list[Run] | None:
    """What bounds a path's rounding; None where it must agree to the bit."""
    if path in TO_THE_BIT:
        return None
    size = SHARE_OF_RANKS if path in RANKED else SHARE_OF_KERNELS
    return [kept(f"{size * sign} {case!r}", lambda s=sign: paths.twin(case, s * size)) for sign in (1.0, -1.0)]


def bounded(case: Case, path: str, got: Run) -> tuple[Run, list[Run] | None]:
    """What a path's run is compared with, and what bounds the difference: see `agree`."""
    if path in TO_THE_BIT or path in RANKED or not case.narrow or case.first_order:
        return reference(case), twins(case, path)
    flip = models.flip(case.model, case.dtype, case.eps)
    others = [paths.told_path(case, got.slopes, SHARE_OF_KERNELS, tuple(flip * s for s in signs)) for signs in TURNS]
    return paths.told_path(case, got.slopes), others


def run(case: Case, path: str, mutant: str = "") -> Run:
    """A path's run; that of one that ignores the option ``mutant``."""
    if path == "torch":
        return reference(case)
    if path in INTERPRETED:
        return workers.interpreted(path, case, mutant)
    if path in RANKED:
        return workers.ranked(path, case, mutant)
    with workers.perhaps_ignoring(mutant, case):
        return paths.IN_PROCESS[path](case) if path in TO_THE_BIT else ON_A_GPU[path](case)


ON_A_GPU: dict[str, Callable[[Case], Run]] = {
    "gpu-torch": lambda case: paths.quietly_torch(case, "cuda"),
    "gpu-kernels": lambda case: paths.drive(case, device="cuda"),
    "gpu-graph": lambda case: paths.engine_path(case, "cuda", **paths.RING),
    "gpu-mixed": lambda case: paths.engine_path(case, "cuda", mixed=True, with_model=False),
    "gpu-replay": lambda case: paths.engine_replay(case, "cuda"),
}


def check(case: Case, path: str, mutant: str = "") -> Verdict:
    """The verdict on one configuration on one path, or on such a path that ignores the option ``mutant``."""
    if path == "sharded":
        case = case.as_one_layer()
    if path == "simulator":
        return simulated.check(case)
    expected = reference(case)
    if path == "torch":
        return refusal(case, expected.refused) if expected.refused else Verdict("agreed")
    if path in INTERPRETED and case.dtype == "bfloat16":
        return Verdict("elsewhere", "Triton's interpreter cuts bfloat16 off where a GPU rounds")
    if path in ON_A_GPU and case.narrow and case.method == "ForwardGrad":
        return Verdict("elsewhere", "tangents of 16-bit weights are rounded as the device's kernels sum them")
    got = run(case, path, mutant)
    bounds = None
    if not (expected.refused or got.refused):
        expected, bounds = bounded(case, path, got)
    if bounds and any(t.refused for t in (expected, *bounds)):
        return Verdict("elsewhere", "whether it diverges is a matter of rounding")
    return judge(case, expected, got, bounds)


def shows(row: Row) -> Verdict:
    """Whether an option changes the trajectory of plain torch, or is refused."""
    first, second = reference(row.case), reference(row.without)
    if second.refused:
        return Verdict("disagreed", f"the case without it is refused: {second.refused}")
    inert = (row.case.method, row.option) in INERT
    if first.refused:
        return refusal(row.case, first.refused)
    if bool(differences(first, second)) == inert:
        return Verdict("disagreed", "it is said to be inert" if inert else "it is set, and nothing is different")
    return Verdict("agreed")


def matters(case: Case, without: Case, path: str = "kernels") -> Verdict:
    """Whether an option shows: two cases that differ in it differ by more than twice what the path's rounding may hide.

    A path that left the option out would then make the other case's run, and be found.
    """
    first, second = reference(case), reference(without)
    if first.refused:
        return refusal(case, first.refused)
    if second.refused:
        return Verdict("agreed", "it cannot be left out")
    first, bounds = bounded(case, path, second)
    found = differences(first, second, bounds, 2.0)
    return Verdict("agreed", found[0]) if found else Verdict("disagreed", "it changes nothing")
