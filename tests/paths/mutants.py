"""Paths that ignore one option: what the contract must notice. ``python -m tests.paths.mutants --path NAME`` tries all.

Every path runs from the plan of a step. So a path that leaves an option out is one that gets a plan in which the option
has the value that `table.BASE` or the method's description gives it; of the kernels, the update gets such a plan, which
has no use for eps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

from helene.steps.base import Base
from helene.steps.plan import StepPlan


def without(plan: StepPlan, option: str, usual: dict[str, Any]) -> StepPlan:
    """The plan with an option as if it had not been set."""

    def plain(described: Any) -> Any:
        known = {field.name: field.default for field in fields(described)}
        return replace(described, **{option: usual.get(option, known[option])}) if option in known else described

    return plan._replace(
        probing=plain(plan.probing),
        rules=tuple(map(plain, plan.rules)),
        storage=tuple(map(plain, plan.storage)),
    )


@contextmanager
def ignoring(option: str, usual: dict[str, Any], kernels: bool = False) -> Iterator[None]:
    """Inside, plans leave an option out; or, of the kernels' launches, those that make updates."""
    with ExitStack() as stack:
        if kernels:
            from helene.steps.fused import launches, methods

            rows, launch = methods.Fused.rows, launches.launch_all
            stack.enter_context(patch.object(methods.Fused, "rows", lambda me, p: rows(me, without(p, option, usual))))
            stack.enter_context(
                patch.object(launches, "launch_all", lambda o, p, *more: launch(o, without(p, option, usual), *more))
            )
        else:
            planned = Base.plan
            mutant = lambda me, *args, **more: without(planned(me, *args, **more), option, usual)  # noqa: E731
            stack.enter_context(patch.object(Base, "plan", mutant))
        yield


def main() -> int:
    from tests.paths import contract, workers
    from tests.paths.combined import all_at_first, all_later, left_out
    from tests.paths.table import FUSED

    parser = argparse.ArgumentParser(description="Which options can be left out of a path without notice.")
    parser.add_argument("--path", action="append", choices=contract.PATHS)
    parser.add_argument("--method", action="append", choices=FUSED)
    given = parser.parse_args()
    survived = 0
    for path in given.path or contract.TO_THE_BIT:
        for method in given.method or FUSED:
            for make in (all_at_first, all_later):
                case = make(method)
                if contract.check(case, path).kind != "agreed":
                    continue
                for option, _ in left_out(case):
                    if option == "eps" and path in contract.INTERPRETED:
                        continue
                    verdict = contract.check(case, path, mutant=option)
                    if verdict.kind == "agreed":
                        survived += 1
                        print(f"{path} {method} {make.__name__}: {option} is left out, {verdict}", flush=True)
        print(f"{path}: {survived} survived so far", flush=True)
    workers.stop()
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main())
