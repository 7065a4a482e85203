"""Where the claims are: every module's, in the ledger's order."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from theory.ledger.claim import Claim
from theory.ledger.ids import IDS

HERE = Path(__file__).parent.parent


def module_paths() -> list[Path]:
    """Every module that may list claims, in order."""
    return sorted(path for path in HERE.rglob("test_*.py") if "__pycache__" not in path.parts)


@cache
def _claims() -> dict[str, tuple[Claim, str]]:
    """Each claim with the path of its module, relative to the repository."""
    found: dict[str, tuple[Claim, str]] = {}
    for path in module_paths():
        for claim in getattr(_module(path), "CLAIMS", ()):
            if claim.id in found:
                raise ValueError(f"{claim.id} is judged twice, the second time in {path.name}; an id has one module")
            found[claim.id] = (claim, path.relative_to(HERE.parent).as_posix())
    return found


def load_claims() -> list[Claim]:
    """All claims of all modules: those of ``ids.py`` in its order, then statements of our own in the modules' order.

    Raises:
        ValueError: If an id is judged twice.
    """
    claims = {id: claim for id, (claim, _) in _claims().items()}
    return [claims[id] for id in IDS if id in claims] + [claims[id] for id in claims if id not in IDS]


def module_of(id: str) -> str:
    """The path of the module that judges an id, relative to the repository."""
    return _claims()[id][1]


def claim(id: str) -> Claim:
    """A claim by its id; loads only modules that name it.

    Raises:
        ValueError: If no module judges it.
    """
    for path in module_paths():
        if f'id="{id}"' in path.read_text(encoding="utf-8"):
            for found in _module(path).CLAIMS:
                if found.id == id:
                    return found
    raise ValueError(f"no module judges {id}; a proof can rest only on a claim that is judged")


def _module(path: Path) -> ModuleType:
    return importlib.import_module(".".join((HERE.name, *path.relative_to(HERE).with_suffix("").parts)))
