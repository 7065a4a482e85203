"""Populations against torch.func and closed forms; draws against exact means; the answer against made-up records."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest

from helene.lab.runs.records import Record
from synthetic.estimators import draws, forward_only
from synthetic.estimators.analysis import ASYMPTOTIC_FROM, findings_of
from synthetic.estimators.design import BATCHES, batch_config, configs, forward_config
from synthetic.estimators.populations import population, tabulate
from synthetic.estimators.run import run

# torch.func's forward mode compiles its decompositions with torch.jit the first time.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


@pytest.fixture(scope="module", params=["logistic", "softmax", "mlp", "transformer"])
def at_optimum(request):
    return population(batch_config(request.param))


def test_at_the_optimum_squares_hessian_and_gauss_newton_agree(at_optimum):
    """Bartlett's identities, by enumeration and by torch.func: E g = 0 and E g² = the Hessian's diagonal."""
    pop, scale = at_optimum, at_optimum.hessian.max()
    np.testing.assert_allclose(pop.squares, pop.hessian, atol=1e-10 * scale)
    np.testing.assert_allclose(pop.gauss_newton, pop.hessian, atol=1e-10 * scale)
    np.testing.assert_allclose(pop.mean, 0, atol=1e-10 * scale**0.5)


def test_hessian_against_the_whole_matrix():
    """The diagonal against torch.func.hessian of the same loss, with labels that are not the model's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    law = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    law = law / law.sum(-1, keepdim=True)
    theta = torch.randn(15, generator=generator, dtype=torch.float64)

    def logits(w):
        return torch.tanh(x @ w.reshape(3, 5).T)

    pop = tabulate(logits, theta, law)
    whole = torch.func.hessian(lambda w: -(law * logits(w).log_softmax(-1)).sum(-1).mean())(theta)
    np.testing.assert_allclose(pop.hessian, whole.diagonal().numpy(), atol=1e-13)
    gradient = torch.func.grad(lambda w: -(law * logits(w).log_softmax(-1)).sum(-1).mean())(theta)
    np.testing.assert_allclose(pop.mean, gradient.numpy(), atol=1e-14)


def test_logistic_curvature_in_closed_form():
    """p(1 − p) x², summed over inputs, at any distance from the optimum and for certain labels alike."""
    near = population(batch_config("logistic", size=8, distance=1.0))
    p, g = near.model[:, 1] * len(near.model), near.gradients
    x = g[:, 0] / p[:, None]  # at label 0 the gradient is p x
    np.testing.assert_allclose(near.hessian, ((p * (1 - p))[:, None] * x**2).mean(0), rtol=1e-9)


@pytest.mark.parametrize("model", ["logistic", "softmax"])
def test_rare_classes_are_as_rare_as_asked(model):
    pop = population(batch_config(model, rare=0.02))
    assert abs(pop.law[:, 1:].sum() - 0.02) < 1e-9
    assert np.abs(pop.mean).max() < 1e-9, "the teacher moves along: still the optimum"


def test_distance_is_the_change_of_the_logits():
    """Exactly, since logits are linear here and centring drops the normaliser, which all classes share."""
    pop = population(batch_config("softmax", distance=1.0))
    change = np.log(pop.model) - np.log(pop.law)
    centred = change - change.mean(1, keepdims=True)
    assert np.sqrt((centred**2).mean()) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("batch", [1, 8])
def test_draws_are_those_of_samples_taken_one_by_one(batch):
    """Means against the exact ones, over 20 000 minibatches, 4 estimators x 2 batches x 2 points, 6 standard errors:
    false alarm 1e-8 by normal tails."""
    rng = np.random.default_rng(5)
    for distance in (0.0, 1.0):
        pop = population(batch_config("logistic", size=4, distance=distance))
        found, exact = draws.estimates(pop, batch, 20_000, rng), draws.expected(pop, batch)
        for name, values in found.items():
            totals = values.sum(1)
            assert abs(totals.mean() - exact[name].sum()) < 6 * totals.std() / 20_000**0.5, name


def test_the_mean_of_what_is_returned_is_variance_plus_b_squares():
    pop = population(batch_config("softmax", distance=0.5))
    v = pop.squares - pop.mean**2
    for batch in (1, 100):
        np.testing.assert_allclose(draws.expected(pop, batch)["returned"], v + batch * pop.mean**2)
    assert draws.expected(pop, 100)["sampled"] == pytest.approx(pop.gauss_newton, rel=1e-9)


def test_distance_from_the_limit_law_against_scipy():
    """One coordinate at the optimum: the same as scipy's Kolmogorov-Smirnov statistic against v χ²₁."""
    whole = population(batch_config("logistic", size=4))
    pop = replace(whole, gradients=whole.gradients[..., :1], hessian=whole.hessian[:1])
    found = draws.estimates(pop, 64, 5000, np.random.default_rng(0))["returned"]
    told = kstest(found[:, 0] / pop.squares[0], chi2(1).cdf).statistic
    assert draws.distance_from_law(pop, found, 64) == pytest.approx(told, abs=1e-5)


def test_the_limit_law_is_not_met_by_the_mean_of_squares():
    """The distance tells a law that is not v χ²₁ from one that is."""
    pop = population(batch_config("logistic", size=4))
    found = draws.estimates(pop, 1024, 2000, np.random.default_rng(0))
    assert draws.distance_from_law(pop, found["returned"], 1024) < 0.05
    assert draws.distance_from_law(pop, found["squares"], 1024) > 0.3


@pytest.fixture(scope="module")
def records():
    """Small populations, really measured."""
    cells = [
        batch_config("logistic", size=4, distance=r, labels=labels, replicates=200)
        for r, labels in ((0.0, "model"), (1.0, "model"), (0.0, "certain"))
    ]
    forward = [forward_config(d) | {"estimates": 400, "averaged": 200} for d in (4, 64, 128, 256)]
    return [Record.of("agnb", c, run(c)) for c in cells + forward]


def test_the_measured_answer_is_no(records):
    """At the optimum the error stays, away from it it grows with B, squares converge as B^−½.

    Exponents are held to their own intervals; that of the mean to the exact means, whose variance's share bends them.
    """
    found = findings_of(records)
    assert found.verdict == "not_consistent"
    assert "does not tend" in found.answer
    optimum, away, certain = found.populations
    assert optimum.error["returned"].tendency == "stays"
    assert away.error["returned"].tendency == certain.error["returned"].tendency == "grows"
    assert optimum.error["squares"].low <= -0.5 <= optimum.error["squares"].high
    pop, batches = population(away.record.config), [b for b in BATCHES if b >= ASYMPTOTIC_FROM]
    exact = np.polyfit(np.log(batches), [np.log(draws.expected(pop, b)["returned"].sum()) for b in batches], 1)[0]
    assert away.mean.low <= exact <= away.mean.high


def test_other_records_give_other_answers(records):
    """With the per-sample squares' numbers in the place of the returned ones, all at the optimum: it converges."""
    converging = copy.deepcopy(records[0])
    converging.result["estimators"]["returned"] = converging.result["estimators"]["squares"]
    found = findings_of([converging, *records[3:]])
    assert found.verdict == "consistent"
    assert "B ĝ⊙ĝ, tends to the Hessian's diagonal" in found.answer
    mixed = findings_of([converging, records[1]])
    assert mixed.verdict == "not_resolved"
    assert "not settled" in mixed.answer


def test_wrong_draws_break_the_instrument(records):
    broken = copy.deepcopy(records[0])
    broken.result["estimators"]["exact"][2]["z"] = 7.0
    found = findings_of([broken, *records[1:]])
    assert found.verdict == "broken_instrument"
    assert found.answer.startswith("No answer")


def test_failed_cells_are_left_out_and_all_failed_is_an_error(records):
    failed = Record.of("agnb", batch_config("mlp"), {"status": "error", "message": "no luck"})
    assert len(findings_of([*records, failed]).populations) == 3
    with pytest.raises(ValueError, match="no population was measured"):
        findings_of([failed])


def test_page_and_summary(records, tmp_path):
    from helene.lab.runs import canonical
    from synthetic.estimators.page import write_page

    said, sound = write_page(tmp_path, records, "helene scaling agnb", {})
    page = (tmp_path / "scaling" / "agnb.html").read_text()
    assert sound
    assert "http" not in page.split("</style>")[1]
    summary = canonical.loads((tmp_path / "scaling" / "agnb.json").read_text())
    assert summary["answer"] == said
    assert summary["verdict"] == "not_consistent"
    assert {p["key"] for p in summary["populations"]} == {r.key for r in records[:3]}


def test_ranks_are_kept_by_exact_gradients_and_lost_by_spsa():
    found = forward_only.measure(forward_config(256) | {"groups": 3})
    assert min(found["rank_exact"]) > 0.95
    assert max(map(abs, found["rank"])) < 0.3  # 256 coordinates: a correlation of 0.3 by chance is 4.8 sigma away


def test_spearman_against_scipy():
    from scipy.stats import spearmanr

    a, b = np.random.default_rng(0).standard_normal((2, 50))
    assert forward_only.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "forest"}, "model must be one of"),
        ({"labels": "noisy"}, "labels must be"),
        ({"model": "mlp", "rare": 0.1}, "cannot be made rare"),
        ({"kind": "neither"}, "kind must be"),
    ],
)
def test_bad_configs_are_explained(change, said):
    with pytest.raises(ValueError, match=said):
        run(batch_config("logistic") | change)


def test_the_design_varies_each_axis_and_repeats_nothing():
    cells = configs()
    assert len({repr(sorted(c.items(), key=str)) for c in cells}) == len(cells)
    batch = [c for c in cells if c["kind"] == "batch"]
    assert {c["model"] for c in batch} == {"logistic", "softmax", "mlp", "transformer"}
    assert {c["rare"] for c in batch} == {None, 0.1, 0.02}
    assert {max(c["batches"]) for c in batch} == {4096}


def test_drawing_and_command_line_do_without_torch():
    code = (
        "import sys, synthetic.estimators.page, synthetic.figures.cli, synthetic.figures.toy_page,"
        " synthetic.figures.ablation_page, synthetic.figures.floor_page, synthetic.figures.triggers_page;"
        " assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_measuring_does_without_matplotlib():
    code = (
        "import sys, synthetic.estimators.run, synthetic.estimators.populations, synthetic.figures.toy,"
        " synthetic.figures.floor, synthetic.figures.triggers; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
