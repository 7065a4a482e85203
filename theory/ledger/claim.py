r"""The contract of the ledger: what a claim is and what can back a verdict on it.

A module ``theory/claims/test_<family>.py`` lists its claims in ``CLAIMS``; everything in a :class:`Claim` is data or a
function that this run calls. :mod:`theory.ledger.judge` runs the evidence and derives the verdict from what it found;
``expected`` is only compared with that. Texts are Markdown with LaTeX between dollar signs.

What backs which verdict (see :func:`theory.ledger.judge.verdict_from`):

==================  ==================================================================================================
holds               Proof(printed) and Search(printed), no Witness; an exhaustive Search is a Proof as well
holds_after_repair  Witness(printed), Proof(repaired) and Search(repaired)
refuted             Witness(printed) and Witness(kindest), the kindest reading that keeps the point; see :func:`both`
ill_posed           Units or Undefined, nothing else in the claim itself; a ``reading`` is judged beside it
not_decidable       Missing: two worlds that agree with all that is printed and disagree on the claim
==================  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from theory.ledger.exact import Relation

if TYPE_CHECKING:
    import sympy
    from hypothesis.strategies import SearchStrategy

Instance = Mapping[str, Any]
Sides = tuple[Any, Any]


class Verdict(StrEnum):
    """The five verdicts on a claim."""

    HOLDS = "holds"
    HOLDS_AFTER_REPAIR = "holds_after_repair"
    REFUTED = "refuted"
    ILL_POSED = "ill_posed"
    NOT_DECIDABLE = "not_decidable"


class ProofVerdict(StrEnum):
    """The three verdicts on a printed proof."""

    SOUND = "sound"
    GAP = "gap"
    WRONG = "wrong"


class Target(StrEnum):
    """What a piece of evidence speaks about."""

    PRINTED = "printed"
    KINDEST = "kindest"  # the kindest reading that keeps the claim's point
    REPAIRED = "repaired"


def no_hypotheses(instance: Instance) -> Mapping[str, bool]:
    """For claims without hypotheses."""
    return {}


@dataclass(frozen=True)
class Witness:
    """An exact instance at which a statement is false: its hypotheses hold and ``lhs relation rhs`` does not.

    Args:
        text: The instance and the arithmetic, for a human with a pencil.
        instance: Exact numbers (int, Fraction, sympy), the smallest found.
        sides: Both sides of the statement, recomputed from the instance in every run.
        recorded: The exact values that the text states; compared exactly with the recomputed ones.
        harmless: Another instance, where the hypotheses and the statement both hold; a mutant puts it in.
        relation: How the *statement* relates the sides; the witness is confirmed when this is false.
        hypotheses: Each hypothesis of the statement, by name, checked exactly at the instance.
        target: The printed form or the kindest reading.
    """

    text: str
    instance: Instance
    sides: Callable[[Instance], Sides]
    recorded: Sides
    harmless: Instance
    relation: Relation = "<="
    hypotheses: Callable[[Instance], Mapping[str, bool]] = no_hypotheses
    target: Target = Target.PRINTED


def both(witness: Witness) -> tuple[Witness, Witness]:
    """One witness against the printed form and, as the kindest reading asserts the same here, against that too."""
    return replace(witness, target=Target.PRINTED), replace(witness, target=Target.KINDEST)


@dataclass(frozen=True)
class Twin:
    """A statement close to the claim and false: a hypothesis dropped, or a constant past the best one attained.

    Fields left None are those of the search. The same search must refute it.
    """

    text: str
    sides: Callable[[Any], Sides] | None = None
    strategy: SearchStrategy[Any] | None = None
    cases: Sequence[Any] | None = None
    relation: Relation | None = None


@dataclass(frozen=True)
class Search:
    """A search for counterexamples over instances that satisfy the hypotheses by construction.

    Args:
        text: Which families, which ranges, how the hypotheses are certified.
        sides: Both sides at an instance: exact numbers or Arb enclosures, never floats.
        twin: What the same search must refute.
        strategy: Hypothesis strategy; or
        cases: a finite list, gone through in full. With ``exhaustive`` these are all cases there are, and the
            search is a proof as well.
        relation: How the statement relates the sides.
        target: The printed or the repaired statement.
        num_examples: Instances in a normal run; the profile ``deep`` multiplies it.
    """

    text: str
    sides: Callable[[Any], Sides]
    twin: Twin
    strategy: SearchStrategy[Any] | None = None
    cases: Sequence[Any] | None = None
    exhaustive: bool = False
    relation: Relation = "<="
    target: Target = Target.PRINTED
    num_examples: int = 400


@dataclass(frozen=True)
class Step:
    """One step of a proof of ours; ``check`` returns True where a machine confirms it, None where a reader must."""

    text: str
    check: Callable[[], bool] | None = None


@dataclass(frozen=True)
class Proof:
    """A proof, re-derived; at least one step is checked by machine and none of the checks may fail."""

    text: str
    steps: tuple[Step, ...]
    target: Target = Target.PRINTED


@dataclass(frozen=True)
class Units:
    """Two sides of different units; the exponents are computed by :mod:`theory.ledger.units` from the expressions.

    Args:
        text: What the comparison shows.
        lhs: Expression of the left side, in symbols.
        rhs: Expression of the right side.
        units: Each symbol's unit exponents, for example ``{L: {"loss": 1}, R: {"theta": 1}}``.
        recorded: The exponents of both sides that the text states.
        mended: A right side with the units of the left; a mutant puts it in.
    """

    text: str
    lhs: sympy.Expr
    rhs: sympy.Expr
    units: Mapping[sympy.Symbol, Mapping[str, Any]]
    recorded: tuple[Mapping[str, Any], Mapping[str, Any]]
    mended: sympy.Expr


@dataclass(frozen=True)
class Undefined:
    """A symbol that the source leaves undefined, so that the statement has no truth value.

    Args:
        text: The symbol, where it stands, why nothing around it fixes it.
        symbol: The offending symbol.
        readings: What the statement comes to under each reading, computed; confirmed when two of them differ.
        recorded: The values that the text states.
    """

    text: str
    symbol: str
    readings: Mapping[str, Callable[[], Any]]
    recorded: Mapping[str, Any]


@dataclass(frozen=True)
class Missing:
    """What the source lacks: two worlds agree with everything printed and disagree on the claim.

    Args:
        text: What is missing and what would settle the claim.
        what: The missing thing, in a few words.
        consistent: Whether a world agrees with all that the paper prints.
        assertion: Whether the claim is true in a world.
        true_world: A world where it is true.
        false_world: A world where it is false.
    """

    text: str
    what: str
    consistent: Callable[[Instance], bool]
    assertion: Callable[[Instance], bool]
    true_world: Instance
    false_world: Instance


@dataclass(frozen=True)
class Check:
    """A supporting check (Monte Carlo, an oracle): it decides no verdict, but where it fails the run fails.

    ``run`` returns a sentence with the numbers found and raises AssertionError where they are wrong.
    """

    text: str
    run: Callable[[], str]


Evidence = Witness | Search | Proof | Units | Undefined | Missing | Check


@dataclass(frozen=True)
class Line:
    """One line of a printed proof.

    Its status is computed: ``false`` if ``kindest`` (a witness against the kindest reading) is confirmed,
    ``unjustified`` if ``gap`` is (a witness that the line does not follow from what it cites), ``slip`` if only the
    ``literal`` form is refuted (a misprint), ``sound`` if ``check`` confirms it.
    """

    text: str
    literal: Witness | None = None
    kindest: Witness | None = None
    gap: Witness | None = None
    check: Step | None = None


@dataclass(frozen=True)
class PrintedProof:
    """The proof as printed, line by line: wrong with a false line, else gap with an unjustified one, else sound."""

    lines: tuple[Line, ...]
    expected: ProofVerdict


@dataclass(frozen=True)
class Reading:
    """An interpretation fixed for an ill-posed claim, judged by the same rules."""

    statement: str
    expected: Verdict
    evidence: tuple[Evidence, ...]
    repair: str | None = None


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Args:
        id: As in ``theory/ledger/ids.py``.
        place: Where the paper states it.
        statement: The claim in our words and its formulas.
        expected: The verdict that the evidence is expected to give. Compared with it, never used to reach it.
        answer: What was found, one sentence for the table (plain text).
        evidence: What backs the verdict.
        repair: The repaired statement, for ``holds_after_repair``.
        printed_proof: The printed proof's lines, where the paper prints one.
        reading: For ``ill_posed``: an interpretation, judged beside it.
        note: Anything else a reader needs.
        figure: Draws an SVG string for the page; called only when the page is written.
    """

    id: str
    place: str
    statement: str
    expected: Verdict
    evidence: tuple[Evidence, ...]
    answer: str
    repair: str | None = None
    printed_proof: PrintedProof | None = None
    reading: Reading | None = None
    note: str = ""
    figure: Callable[[], str] | None = None
