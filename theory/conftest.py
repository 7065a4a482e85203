"""Makes pytest run the claims: collects them, judges each, prints the table, writes the ledger and its page.

A claim is one test item, ``theory/claims/lemmas/test_lemma7.py::L7``. The ledger and the page are written only by a run
that judges everything: ``--claim``, a single module, ``-k`` and the like print their table and leave both as they are.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from helene.inputs import extras

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: threads of small products wait for each other

try:
    from hypothesis import settings

    from theory.ledger import book, library
    from theory.ledger.claim import Claim
    from theory.ledger.ids import IDS
    from theory.ledger.judge import judge
except ModuleNotFoundError as err:
    pytest.exit(f"theory/: {extras.advice(err.name) or err}", returncode=4)

settings.register_profile("deep")

RECORDS: pytest.StashKey[Any] = pytest.StashKey()  # id -> record
FIGURES: pytest.StashKey[Any] = pytest.StashKey()  # id -> what draws its figure
PROOFS: pytest.StashKey[Any] = pytest.StashKey()  # page of theory/proofs -> its checks
MODULES = pytest.StashKey[set[Path]]()
PARTIAL = pytest.StashKey[bool]()


class ClaimFailed(Exception):
    """The run does not back what the module expects."""


class ClaimModule(pytest.Module):
    """A test module whose ``CLAIMS`` become items, before its ordinary test functions."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yields an item for each claim, then what pytest finds itself."""
        self.config.stash[MODULES].add(self.path)
        for claim in getattr(self.obj, "CLAIMS", ()):
            yield ClaimItem.from_parent(self, name=claim.id, claim=claim)
        yield from super().collect()


class ClaimItem(pytest.Item):
    """Judges one claim."""

    def __init__(self, *, claim: Claim, **kwargs) -> None:
        super().__init__(**kwargs)
        self.claim = claim

    def runtest(self) -> None:
        """Runs the claim's evidence, keeps the record, fails where it differs from what is expected."""
        judgement = judge(self.claim)
        module = self.path.relative_to(library.HERE.parent).as_posix()
        self.config.stash[RECORDS][self.claim.id] = book.record(judgement, module)
        if self.claim.figure is not None:
            self.config.stash[FIGURES][self.claim.id] = self.claim.figure
        if judgement.failures:
            raise ClaimFailed(judgement.failures)

    def repr_failure(self, excinfo, style=None):  # noqa: D102 - pytest's
        if isinstance(excinfo.value, ClaimFailed):
            return "\n".join(f"{self.claim.id}: {failure}" for failure in excinfo.value.args[0])
        return super().repr_failure(excinfo, style)

    def reportinfo(self):  # noqa: D102 - pytest's
        return self.path, None, f"claim {self.claim.id}"


class AbsentItem(pytest.Item):
    """A claim that no module judges: it has no verdict, and the run fails."""

    def runtest(self) -> None:
        """Records the absence and fails."""
        self.config.stash[RECORDS][self.name] = book.absent(self.name)
        raise ClaimFailed(["no module judges this claim, so it has no verdict"])

    def repr_failure(self, excinfo, style=None):  # noqa: D102 - pytest's
        return f"{self.name}: {excinfo.value.args[0][0]}"

    def reportinfo(self):  # noqa: D102 - pytest's
        return self.path, None, f"claim {self.name}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--claim`` and ``--reports``."""
    group = parser.getgroup("theory")
    group.addoption("--claim", action="append", metavar="ID", help="judge this claim only (exact id; may be repeated)")
    group.addoption("--reports", default="reports", metavar="DIR", help="where ledger and page go (default: reports)")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, prepares the stash, refuses an unknown id."""
    config.addinivalue_line("markers", "claim(id, ...): an ordinary test that belongs to these claims")
    config.stash[RECORDS], config.stash[FIGURES], config.stash[PROOFS] = {}, {}, {}
    config.stash[MODULES], config.stash[PARTIAL] = set(), False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--claim``, leaves out modules that do not name the claim: some import torch, which takes seconds."""
    wanted = config.getoption("--claim", None)
    if not wanted or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if any(f'"{id}"' in text for id in wanted) else True


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Collects the modules of this folder as modules with claims."""
    return ClaimModule.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, Any, Any]:
    """Keeps the outcome of each check of a proof page, the time of its search included."""
    report = yield
    if isinstance(item, pytest.Function) and book.PROOFS in item.path.parents:
        checks = item.config.stash[PROOFS].setdefault(item.path.stem.removeprefix("test_"), {})
        check = checks.setdefault(item.name, {"text": spoken(item), "passed": True, "seconds": 0.0})
        check["passed"] &= report.passed
        check["seconds"] += call.duration
    return report


def spoken(item: pytest.Function) -> str:
    """A check's name as words, with its parameter and the first line of its docstring."""
    words = item.originalname.removeprefix("test_").replace("_", " ")
    # pytest escapes an id as Python does a string
    id = item.callspec.id.encode("ascii").decode("unicode_escape") if hasattr(item, "callspec") else ""
    parameter = f" [{id}]" if id else ""
    told = (item.function.__doc__ or "").strip().partition("\n")[0]
    return f"{words}{parameter}" + (f": {told}" if told else "")


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remembers that claims were left out by ``-k``, ``-m`` or ``--claim``."""
    for item in items:
        if isinstance(item, ClaimItem):
            item.config.stash[PARTIAL] = True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the claims asked for, or adds the ids that have no module."""
    wanted = config.getoption("--claim", None)
    claims = {item.claim.id: item for item in items if isinstance(item, ClaimItem)}
    if wanted:
        unknown = [id for id in wanted if id not in claims]
        if unknown:
            known = "no module judges it" if unknown[0] in IDS else f"the paper's are {', '.join(IDS)}"
            raise pytest.UsageError(f"--claim {unknown[0]}: no such id was collected; {known}")
        keep: list[pytest.Item] = []
        drop: list[pytest.Item] = []
        for item in items:
            marks = {id for mark in item.iter_markers("claim") for id in mark.args}
            own = {item.claim.id} if isinstance(item, ClaimItem) else marks
            (keep if own & set(wanted) else drop).append(item)
        if drop:
            config.hook.pytest_deselected(items=drop)
        config.stash[PARTIAL] = True
        items[:] = keep
    elif not config.stash[PARTIAL] and set(library.module_paths()) <= config.stash[MODULES]:
        missing = [id for id in IDS if id not in claims]
        items += [AbsentItem.from_parent(session, name=id, nodeid=f"theory/ledger/ids.py::{id}") for id in missing]


def _records(config: pytest.Config) -> list[dict]:
    found: dict[str, dict] = config.stash[RECORDS]
    return [found[id] for id in IDS if id in found] + [found[id] for id in found if id not in IDS]


def _is_whole(config: pytest.Config) -> bool:
    return not config.stash[PARTIAL] and set(IDS) <= set(config.stash[RECORDS])


def pytest_sessionfinish() -> None:
    """What the claims have imported is not searched again at the end, which takes a second where torch is."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Prints the table of verdicts; after a run of everything, writes the ledger and its page."""
    records = _records(config)
    if not records:
        return
    terminalreporter.section("verdicts")
    width = terminalreporter._tw.fullwidth if terminalreporter._tw.hasmarkup else 120
    for line in book.table(records, width):
        terminalreporter.write_line(line)
    for entry in records if config.getoption("--claim", None) else ():
        for line in book.details(entry, width):
            terminalreporter.write_line(line)
    if not _is_whole(config):
        return
    from theory.ledger import page  # drawing: not needed, and not imported, by a run of some claims

    proofs = {name: list(checks.values()) for name, checks in config.stash[PROOFS].items()}
    terminalreporter.write_line(book.answer(records))
    for line in book.proof_lines(proofs):
        terminalreporter.write_line(line)
    reports = config.rootpath / config.getoption("--reports", "reports")
    written = [book.write(records, reports, proofs), *page.write(records, config.stash[FIGURES], reports, proofs)]
    terminalreporter.write_line("written: " + ", ".join(os.path.relpath(path, config.rootpath) for path in written))
