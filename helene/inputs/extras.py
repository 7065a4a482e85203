"""Which extra of this package brings a module that is not installed."""

from __future__ import annotations

import re
from importlib import metadata

_PACKAGES = {"sklearn": "scikit-learn", "flint": "python-flint", "markdown_it": "markdown-it-py"}  # not named alike
_BUNDLES = {"dev"}  # of other extras
_NOT_INSTALLED = (
    "helene is not installed here, so that its commands are not known; pip install . in its clone, or there call "
    "python -m llm_bench.cli"
)


def advice(module: str | None, preferred: str = "") -> str | None:
    """What to install, in one sentence; None where no extra brings the module.

    Args:
        module: As it is imported, such as ``ModuleNotFoundError.name``.
        preferred: The extra to name where several bring it, else "suite".
    """
    top = (module or "").partition(".")[0]
    package = _PACKAGES.get(top, top).replace("_", "-")
    try:
        lines = metadata.requires("helene") or []
    except metadata.PackageNotFoundError:  # a clone on the path
        return _NOT_INSTALLED if top == "helene" else None
    named = (re.match(r"""([\w.-]+).*\bextra == ['"]([\w-]+)['"]""", line) for line in lines)
    extras = [found[2] for found in named if found and found[1] == package and found[2] not in _BUNDLES]
    if not extras:
        return None
    extra = next((name for name in (preferred, "suite") if name in extras), extras[0])
    return f"{package} is not installed; pip install 'helene[{extra}]'"


def needed_by(what: str, err: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error of a module that cannot do without the one that is missing."""
    said = advice(err.name, "llm") or f"{err.name} is not installed"
    return ModuleNotFoundError(f"{what}: {said}", name=err.name)
