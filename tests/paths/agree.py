r"""Whether a run agrees with plain torch's.

To the bit where that is promised: with and without ``model=`` (`helene.evaluation.probe`: a copy is exact), the engine
on a CPU and replay (their docstrings). Elsewhere within a bound that is derived case by case:

* Kernels draw normals that are off by 8 · 2^-24 max(1, |z|) (4e-6 with a fast cosine), and round products before they
  are added. Each moves c by as much as an error of 2^-20 of the loss would, since L is of the order of |∇L| here. So
  the reference is run again with losses that are off by up to 2^-20, and what comes of it bounds what may come of that.
* Copies of 16-bit weights are rounded. Where theta + eps z is within eps · 4e-6 |z| of a rounding boundary, such a z
  has that element rounded the other way, and its loss is off by a unit in the last place times the derivative:
  at most `models.flip` of it, 2e-5 to 3e-3 and far above 2^-20. At the largest eps a float16 copy has one or two such
  elements between 1/2 and 1 (413 · 0.4 · 4e-6 over a unit of 5e-4), of either sign, and most move L by a tenth of the
  most. So the most bounds what they do together. With that freedom in every step, state would hide faults of a percent.
  So the reference steps by the path's own slopes (`told`), and the run agrees as closely as one of float32. Slopes
  alone may differ by the most from those that the reference measures there, losses by that of a copy and of theta. In
  the update, z is off by 4e-6 and z² by 2^-17, so the reference is run again with told slopes that are off by as much.
  All that holds for every path that draws normals of its own, kernels in the interpreter included.
* Two ranks add two halves of a float64 loss: 2^-50.
* An update is off by another 1e-5 of its own length; 16-bit storage may round a value the other way, and the sign of
  something that is nearly 0 may flip: a share of the elements may be off by as far as they went.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.paths.cases import Case, Run

REFUSALS = ("ValueError", "TypeError", "RuntimeError", "FloatingPointError", "NotImplementedError")
RELATIVE = 1e-5
FLIPPED = {"torch.float32": 0.01, "torch.float64": 0.01}  # share of elements that may be off; 16 and 8 bit round more


@dataclass(frozen=True)
class Verdict:
    """ "agreed", "refused", "disagreed" or "elsewhere" (not a question for this path), and in what."""

    kind: str
    text: str = ""


def judge(case: Case, reference: Run, got: Run, twins: list[Run] | None) -> Verdict:
    """Compare a path's run with the reference; to the bit unless twins of the reference bound the difference."""
    if got.refused.startswith("Elsewhere"):
        return Verdict("elsewhere", got.refused)
    if got.refused:
        said = refusal(case, got.refused)
        return said if said.kind == "disagreed" or not reference.refused else Verdict("refused", got.refused)
    if reference.refused:
        return Verdict("disagreed", f"plain torch refuses this ({reference.refused[:160]}), the path runs it")
    found = differences(reference, got, twins)
    return Verdict("disagreed", "; ".join(found[:6])) if found else Verdict("agreed")


def refusal(case: Case, error: str) -> Verdict:
    """Whether an error is a refusal that names what is refused."""
    kind = error.split(":")[0]
    if kind not in REFUSALS:
        return Verdict("disagreed", f"it breaks: {error[:300]}")
    if not any(re.search(rf"(\b|Sharded){re.escape(word)}\b", error) for word in case.asked):
        return Verdict("disagreed", f"it refuses without naming what: {error[:300]}")
    return Verdict("refused", error)


def differences(reference: Run, got: Run, twins: list[Run] | None = None, scale: float = 1.0) -> list[str]:
    """A line for each tensor that differs by more than it may (``scale`` times that)."""
    found = []
    pairs = [("", reference.params, got.params, reference.path), ("state ", reference.state, got.state, {})]
    for what, mine, theirs, paths in pairs:
        if mine.keys() != theirs.keys():
            found.append(f"{what}of {sorted(map(str, mine.keys() ^ theirs.keys()))[:4]} is there in one of them only")
        for key in mine.keys() & theirs.keys():
            kind = str(mine[key].dtype) if not what else reference.kinds[key]
            if what and kind != got.kinds[key]:
                found.append(f"state {key} is stored as {got.kinds[key]}, not {kind}")
            others = None if twins is None else [t.params[key] if not what else t.state[key] for t in twins]
            text = _difference(mine[key], theirs[key], others, paths.get(key, 0.0), kind, scale)
            if text:
                found.append(f"{what}{key} {text}")
    if twins and twins[0].flip:
        found += _slopes(reference, got, twins, scale)
    if got.losses and reference.losses:
        off = [abs(a - b) / abs(a) for a, b in zip(reference.losses, got.losses, strict=True)]
        allowed = 0.0 if not twins else scale * (1e-4 + 4 * _spread_of_losses(reference, twins) + 2 * twins[0].flip)
        if not all(o <= allowed for o in off):
            first = next(i for i, o in enumerate(off) if not o <= allowed)
            found.append(f"the loss differs from step {first + 1} on, by {max(off):.1e} of it")
    return sorted(found)


def _difference(a: Tensor, b: Tensor, others: list[Tensor] | None, path: float, kind: str, scale: float) -> str:
    if a.shape != b.shape:
        return f"has {b.numel()} elements, not {a.numel()}"
    off = (a.double() - b.double()).abs()
    if not off.isfinite().all():
        return "is not finite"
    if others is None:
        return "" if torch.equal(a, b) else f"differs by {_percent(off, a, path)}"
    largest = a.double().abs().max().item() if a.numel() else 0.0
    spreads = [(a.double() - o.double()).abs() for o in others]
    spread = max((s.max().item() for s in spreads if s.numel()), default=0.0)
    tight = 4 * spread + RELATIVE * max(path, largest if not path else 0.0) + 2.0**-22 * largest
    wide = kind in FLIPPED
    share = FLIPPED.get(kind, 0.05)
    if not wide:  # which elements a twin rounds the other way is chance, how many is not
        tight = RELATIVE * max(path, largest)
        share += 3 * max((float((s > tight).double().mean()) for s in spreads), default=0.0)
    over = int((off > scale * tight).sum())
    if over <= scale * (share * a.numel() + 1):
        return ""
    return f"differs by {_percent(off, a, path)}, {over} of {a.numel()} elements by more than {tight:.1e}"


def _percent(off: Tensor, a: Tensor, path: float) -> str:
    size = path or (a.double().abs().max().item() if a.numel() else 0.0)
    share = 100 * off.max().item() / size if size else float("inf")
    return f"{off.max().item():.2e} ({share:.2g} % of its {'path' if path else 'size'})"


def _slopes(reference: Run, got: Run, twins: list[Run], scale: float) -> list[str]:
    """The first step whose slopes differ by more than an element of each copy that is rounded otherwise makes them."""
    for step, mine in reference.slopes.items():
        theirs = got.slopes.get(step, [])
        if len(mine) != len(theirs):
            return [f"step {step} measures {len(theirs)} numbers, not {len(mine)}"]
        for a, b, *others in zip(mine, theirs, *(t.slopes[step] for t in twins), strict=True):
            allowed = scale * (max(abs(a - o) for o in others) + RELATIVE * abs(a))
            if not abs(a - b) <= allowed:
                return [f"a slope of step {step} is {b:.6g}, not {a:.6g} within {allowed:.1e}"]
    return []


def _spread_of_losses(reference: Run, twins: list[Run]) -> float:
    pairs = [(a, b) for t in twins for a, b in zip(reference.losses, t.losses, strict=True)]
    return max((abs(a - b) / abs(a) for a, b in pairs), default=0.0)
