"""Markdown with LaTeX between dollar signs, as HTML with MathML: no script, no network."""

from __future__ import annotations

import re
from functools import cache

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markupsafe import Markup

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_TOKEN = re.compile("\ue000(\\d+)\ue001")
# What latex2mathml does not know, or sets badly in running text.
_REPLACED = (
    (re.compile(r"\\d?tfrac"), r"\\frac"),
    (re.compile(r"\\operatorname\*?"), r"\\mathrm"),
    (re.compile(r"\\(?:bigl|bigr|Bigl|Bigr|big|Big)(?![a-zA-Z])"), ""),
    (re.compile(r"\\lVert|\\rVert"), r"\\|"),
    (re.compile(r"\\lvert|\\rvert"), "|"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\(mathbf|mathcal|mathbb)\s+(\w)"), r"\\\1{\2}"),
)
# A formula in running text may break before a relation that stands outside all brackets, as on paper.
_STRUCTURE = re.compile(r"\\\\|\\(left|begin|right|end)(?![a-zA-Z])|\\.|[{}]")
_RELATION = re.compile(r"(?:=|<|>|\\(?:le|ge|to|preceq|succeq|Rightarrow|propto|approx)(?![a-zA-Z]))")
_LONG = 40  # characters of LaTeX; shorter ones stay whole
_BAR = re.compile(r"<mo[^>]*>&#x0007C;</mo>")


@cache
def formula(latex: str, display: bool = False) -> Markup:
    """A formula as MathML.

    Raises:
        ValueError: If it cannot be converted.
    """
    bare = latex.replace(r"\{", "").replace(r"\}", "")
    if bare.count("{") != bare.count("}"):
        raise ValueError(f"the formula {latex!r} cannot be typeset: its braces do not match")
    text = latex
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    try:
        mathml = convert(text, display="block" if display else "inline")
    except Exception as error:
        raise ValueError(f"the formula {latex!r} cannot be typeset: {type(error).__name__} {error}") from error
    return Markup(_BAR.sub('<mo stretchy="false" lspace="0" rspace="0">|</mo>', mathml))


def breakable(latex: str) -> list[str]:
    """The pieces of a long formula, each after the first opening with a relation; a short one is one piece."""
    if len(latex) < _LONG:
        return [latex]
    pieces, depth, start, at = [], 0, 0, 0
    while at < len(latex):
        relation = _RELATION.match(latex, at)
        if relation and depth == 0 and latex[start:at].strip():
            pieces.append(latex[start:at])
            start = at
        token = relation or _STRUCTURE.match(latex, at)
        if token and not relation:
            depth += {"{": 1, "}": -1, "\\{": 1, "\\}": -1, "left": 1, "begin": 1, "right": -1, "end": -1}.get(
                token[1] or token[0], 0
            )
        at = token.end() if token else at + 1
    return [*pieces, latex[start:]]


def typeset(text: str, inline: bool = False) -> Markup:
    """The text as HTML.

    Args:
        text: Markdown (raw HTML is escaped) with ``$...$`` and ``$$...$$``.
        inline: Without the paragraph around it.
    """
    formulas: list[Markup] = []

    def keep(match: re.Match[str]) -> str:
        if match.group(1) is not None:
            whole = formula(match.group(1).strip(), True)
            formulas.append(Markup('<span class="scroll" style="display: block">{}</span>').format(whole))
        else:
            formulas.append(Markup(" ").join(formula(piece.strip()) for piece in breakable(match.group(2).strip())))
        return f"\ue000{len(formulas) - 1}\ue001"

    pieces, end = [], 0
    for code in _CODE.finditer(text):
        pieces += [_FORMULA.sub(keep, text[end : code.start()]), code.group()]
        end = code.end()
    marked = "".join([*pieces, _FORMULA.sub(keep, text[end:])])
    html = _MARKDOWN.renderInline(marked) if inline else _MARKDOWN.render(marked)
    html = html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    return Markup(_TOKEN.sub(lambda match: str(formulas[int(match.group(1))]), html))
