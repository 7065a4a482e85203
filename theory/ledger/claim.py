r"""The contract of the ledger: what a claim is and what can back a verdict on it.

A module ``theory/claims/<part>/test_<family>.py`` lists its claims in ``CLAIMS``; everything in a :class:`Claim` is
data or a function that this run calls. :mod:`theory.ledger.judge` runs the evidence, :mod:`theory.ledger.verdict`
derives the verdict from what it found; ``expected`` is only compared with that. Texts are Markdown with LaTeX between
dollar signs.

What backs which verdict (see :func:`theory.ledger.verdict.verdict_from`):

==================  ==================================================================================================
holds               Proof(printed) and Search(printed), no Witness; an exhaustive Search is a Proof as well
holds_after_repair  Witness(printed), Proof(repaired) and Search(repaired)
refuted             Witness(printed) and Witness(kindest), the kindest reading that keeps the point
ill_posed           Units or Undefined, nothing else in the claim itself; a ``reading`` is judged beside it
not_decidable       Missing: two worlds that agree with all that is printed and disagree on the claim
==================  ==================================================================================================

What tells a repair from a refutation is :data:`RULE`.

Numbers that a statement asserts are its constants (:class:`Constant`). Searches and steps take them as keyword
arguments, texts as ``«name»``; the run puts a false value in the place of each and demands that search and proof fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from theory.ledger.exact import Relation, rational

if TYPE_CHECKING:
    import sympy
    from hypothesis.strategies import SearchStrategy

Instance = Mapping[str, Any]
Sides = tuple[Any, Any]

#: What tells a repair from a refutation; stated on the page.
RULE = (
    "A repair keeps what the sentence asserts: it may add a hypothesis, and mend a constant, a unit or a symbol. "
    "Where only another assertion is true, or one that the sentence denies, the claim is refuted; its note says what "
    "is true."
)


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


@dataclass(frozen=True)
class Constant:
    """A number of a statement, and a false one: past the best value that is attained.

    With the false one in its place the same search must refute the statement, and the same proof must fail.

    Args:
        claimed: As the statement has it.
        false: Between this and the claimed value lies the best one.
    """

    claimed: Any
    false: Any

    @property
    def factor(self) -> Fraction | None:
        """How far the false value is from the best one at most; None for numbers that are not positive."""
        claimed, false = rational(self.claimed), rational(self.false)
        if claimed is None or false is None or min(claimed, false) <= 0:
            return None
        return max(claimed / false, false / claimed)


@dataclass(frozen=True)
class Twin:
    """The statement with a hypothesis dropped: other instances, everything else shared. It must fall."""

    text: str
    strategy: SearchStrategy[Any] | None = None
    cases: Sequence[Any] | None = None


@dataclass(frozen=True)
class Search:
    """A search for counterexamples over instances that satisfy the hypotheses by construction.

    Its false twins are the statement with a false constant, for each constant that it takes, and ``twin``; there must
    be one, and each must fall.

    Args:
        text: Which families, which ranges, how the hypotheses are certified.
        sides: Both sides at an instance, from the constants it names: exact numbers or Arb enclosures, never floats.
        strategy: Hypothesis strategy, or what makes it from constants; or
        cases: a finite list, gone through in full. With ``exhaustive`` these are all cases there are, and the
            search is a proof as well.
        twin: The statement with a hypothesis dropped.
        relation: How the statement relates the sides.
        target: The printed or the repaired statement.
        num_examples: Instances in a normal run; the profile ``deep`` multiplies it.
        least: Where given, a strategy's instances end after so many, or later, once each false constant has fallen.
    """

    text: str
    sides: Callable[..., Sides]
    strategy: SearchStrategy[Any] | Callable[..., SearchStrategy[Any]] | None = None
    cases: Sequence[Any] | None = None
    twin: Twin | None = None
    exhaustive: bool = False
    relation: Relation = "<="
    target: Target = Target.PRINTED
    num_examples: int = 200
    least: int | None = None


@dataclass(frozen=True)
class Step:
    """One step of a proof of ours.

    Args:
        text: What it says.
        check: Returns True where a machine confirms it, from the constants it names; None where a reader must.
        false: Arguments with which the check must fail, for a step that no false constant breaks.
        cites: Claims that the step rests on, in the form that is true; where one falls, the proof falls.
    """

    text: str
    check: Callable[..., bool] | None = None
    false: Mapping[str, Any] = field(default_factory=dict)
    cites: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proof:
    """A proof, re-derived; at least one step is checked by machine, and each such check can fail.

    Each constant of the claim is needed: with the false value some step fails.
    """

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
        printed: What the paper prints about such a world, by name, and whether the world agrees with it.
        assertion: Whether the claim is true in a world.
        true_world: A world where it is true.
        false_world: A world where it is false.
        impossible: For each name in ``printed`` a third world, which contradicts this and nothing else.
    """

    text: str
    what: str
    printed: Callable[[Instance], Mapping[str, bool]]
    assertion: Callable[[Instance], bool]
    true_world: Instance
    false_world: Instance
    impossible: Mapping[str, Instance]


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
    """One claim of the paper. Its texts may hold ``«name»`` for a constant or a formula.

    Args:
        id: As in ``theory/ledger/ids.py``.
        place: Where the paper states it.
        statement: The claim in our words and its formulas.
        expected: The verdict that the evidence is expected to give. Compared with it, never used to reach it.
        answer: What was found, one sentence for the table (plain text).
        evidence: What backs the verdict.
        constants: The numbers that the statement judged asserts (the repaired one where there is a repair).
        formulas: Expressions in :func:`theory.ledger.constants.constant` symbols, given to searches and steps as
            constants are.
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
    constants: Mapping[str, Constant] = field(default_factory=dict)
    formulas: Mapping[str, sympy.Expr] = field(default_factory=dict)
    repair: str | None = None
    printed_proof: PrintedProof | None = None
    reading: Reading | None = None
    note: str = ""
    figure: Callable[[], str] | None = None
