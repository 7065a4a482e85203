"""The ledger's records, their schema, the table, the page, and the options of the command line."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.theory.conftest import CLAIMS, examined
from tests.theory.ledger_schema import schema_errors
from theory.ledger import book, page
from theory.ledger.ids import IDS
from theory.ledger.typeset import breakable, typeset
from theory.ledger.verdict import conclude

ROOT = Path(__file__).parents[2]
PROOFS = {
    "gap_lemma": [
        {"text": "the algebra: sympy", "passed": True, "seconds": 1.0},
        {"text": "no counterexample [descent]", "passed": False, "seconds": 0.5},
    ],
    "max_dimension": [{"text": "one coordinate", "passed": True, "seconds": 2.0}],
}


@pytest.fixture(scope="module")
def records() -> list[dict]:
    return [book.record(conclude(claim, examined(claim)), "theory/claims/test_x.py") for claim in CLAIMS.values()]


def test_the_records_fit_the_schema(records: list[dict], tmp_path: Path) -> None:
    path = book.write(records, tmp_path, PROOFS)
    again = json.loads(path.read_text(encoding="utf-8"))
    assert schema_errors(again) == []
    assert [entry["id"] for entry in again][: len(IDS)] == list(IDS)
    summary = json.loads((tmp_path / "theory" / "summary.json").read_text(encoding="utf-8"))
    assert {"title", "answer", "command", "counts"} <= set(summary)
    assert summary["proofs"]["gap_lemma"] == {"checks": 2, "passed": 1, "seconds": 1.5}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("verdict", "true"),
        ("verdict", 1),
        ("proof", "fine"),
        ("checks", None),
        ("duration_seconds", "fast"),
        ("repair", 3),
        ("witness", "text"),
    ],
)
def test_the_schema_notices_a_wrong_value(records: list[dict], key: str, value: object) -> None:
    wrong = copy.deepcopy(records)
    wrong[0][key] = value
    assert schema_errors(wrong)


def test_the_schema_notices_missing_keys_and_ids(records: list[dict]) -> None:
    assert schema_errors([{k: v for k, v in records[0].items() if k != "id"}, *records[1:]])
    assert schema_errors(records[1:])
    assert schema_errors({"claims": records})
    assert schema_errors([*records[:-1], "text"])


def test_a_claim_without_a_module_has_no_verdict_and_shows(records: list[dict]) -> None:
    gone = [book.absent("L7") if entry["id"] == "L7" else entry for entry in records]
    assert schema_errors(json.loads(json.dumps(gone))) == []
    assert book.counts(gone)["none"] == 1
    assert any("L7" in line and "FAILS: no module" in line for line in book.table(gone))
    assert "1 has no verdict" in book.answer(gone)
    assert "no module judges this claim" in page.render(gone)


def test_a_failing_claim_shows_in_table_and_page(records: list[dict]) -> None:
    claim = CLAIMS["L7"]
    failing = conclude(replace(claim, evidence=(), printed_proof=None), replace(examined(claim), findings=(), lines=()))
    entry = book.record(failing)
    assert entry["verdict"] is None
    assert "expected holds_after_repair" in book.table([entry])[-1]
    assert "This run fails here" in page.render([entry])


def test_the_page_has_a_section_for_every_claim_and_needs_no_network(records: list[dict]) -> None:
    html = page.render(records)
    for id in CLAIMS:
        assert f'<h3 id="{id}">' in html
        assert f'href="#{id}"' in html
        assert f"pytest theory/ --claim {id}" in html
    assert "<script" not in html
    assert 'src="' not in html
    assert "$" not in html.split("<body>")[1].replace("$x", ""), "a formula was left as LaTeX"
    assert html.index("<table>") < html.index('<h3 id="A1">'), "the table comes first"


def test_the_page_shows_the_proofs_with_what_their_checks_came_to(records: list[dict]) -> None:
    html = page.render(records[:1], proofs=PROOFS)
    for name, path in book.proof_pages().items():
        assert f'href="#{name}.md"' in html
        assert f'<div id="{name}.md">' in html
        assert f"pytest theory/proofs/{path.parent.name}/test_{name}.py" in html
        assert path.with_name(f"test_{name}.py").is_file()
    assert "1 of 2 fail" in html
    assert "1 passed" in html
    assert html.count("none ran") == 2 * (len(book.proof_counts({})) - len(PROOFS))
    assert "no counterexample [descent]" in html
    assert html.count("<svg") >= 2, "the figures of bound over count"
    assert any("gap_lemma" in line and "1 of   2" in line for line in book.proof_lines(PROOFS))


def test_typeset_escapes_html_and_sets_formulas_once() -> None:
    html = typeset(r"A <b>bold</b> claim: $x_1^2 < 3$, `$not$`, **strong**.")
    assert "&lt;b&gt;" in html
    assert html.count("<math") == 1
    assert "<code>$not$</code>" in html
    assert "<strong>strong</strong>" in html
    for broken in (r"$\frac{1$", "$x_1_2$"):
        with pytest.raises(ValueError, match="cannot be typeset"):
            typeset(broken)


def test_a_long_formula_may_break_before_relations_outside_brackets() -> None:
    assert breakable("a = b") == ["a = b"]
    long = r"\sum_{i=1}^n x_i = \left(y \le z\right) + \frac{a = b}{c} \le \max(u, v) + w"
    pieces = breakable(long)
    assert "".join(pieces) == long
    assert [piece[:3] for piece in pieces[1:]] == ["= \\", "\\le"]
    matrix = r"D = \begin{pmatrix}1 & 2\\ 3 & 4\end{pmatrix} \succeq \{0 = 0\}, \qquad e = f"
    assert breakable(matrix)[-1] == "= f"
    assert "".join(breakable(matrix)) == matrix
    assert typeset(f"${long}$").count("<math") == 3


def pytest_theory(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "theory/", "-q", "-p", "no:cacheprovider", "--reports", str(tmp_path)]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_one_claim_prints_its_table_and_leaves_the_ledger_alone(tmp_path: Path) -> None:
    done = pytest_theory(tmp_path, "--claim", "T-scale")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "T-scale" in done.stdout
    assert "refuted" in done.stdout
    assert "1 passed" in done.stdout
    assert "L7" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_claim_is_refused(tmp_path: Path) -> None:
    done = pytest_theory(tmp_path, "--claim", "L")
    assert done.returncode != 0
    assert "no such id was collected" in done.stdout + done.stderr


def test_the_headline_falls_with_its_proof() -> None:
    """What no method can do is said where every step of its proof was checked and passed, and not else."""
    fine, broken = {"passed": True, "seconds": 0.1}, {"passed": False, "seconds": 0.1}
    assert book.headline([], {"two_evaluations": [fine, fine]}).endswith(book.NO_METHOD)
    for proofs in ({}, {"two_evaluations": []}, {"two_evaluations": [fine, broken]}):
        assert book.NO_METHOD not in book.headline([], proofs)
