"""The site of these pages and of the docstrings: `make docs`."""

from importlib import metadata
from typing import Any

project = "HELENE, measured"
author = "The HELENE suite authors"
version = release = metadata.version("helene")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]

default_role = "py:obj"  # `name` in a docstring links where there is such a name
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_mock_imports = ["lightning", "transformers"]  # seconds to import, and only a base class of each is named
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Options", "params_style")]  # beside those of the base

myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to folders and pages outside docs/, which lead somewhere in a clone


def as_written(lines: list[str]) -> list[str]:
    """Docstrings keep the lines of an indented formula; elsewhere |x| is a length, no substitution."""
    made: list[str] = []
    formula = fields = False
    for line in lines:
        fields = fields or line.startswith((":", ".."))
        if line and not line.startswith(" "):
            formula = False
        elif line and not formula and not fields and made and not made[-1]:
            made += ["::", ""]
            formula = True
        made.append(line if formula else line.replace("|", r"\|"))
    return made


def setup(app: Any) -> None:
    """Called by Sphinx."""

    def skip(app: Any, what: str, name: str, found: Any, skipped: bool, options: Any) -> bool | None:
        """Fields of a named tuple stand under its docstring's ``Attributes``."""
        return True if type(found).__name__ == "_tuplegetter" else None

    def process(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
        lines[:] = as_written(lines)

    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
