"""The paper's figures remade: rows against the optimizers, losses against autograd, sentences against made-up data."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import helene
from helene.lab.runs import canonical
from helene.lab.runs.records import Record, config_key, read_jsonl
from synthetic.figures import ablation, ablation_page, digits, floor, floor_page, toy, toy_page, triggers, triggers_page
from synthetic.figures.pages import Statement, combined, write_figure
from synthetic.figures.trials import at_edge, best_trial, combinations
from synthetic.figures.updates import ManyRuns

STEPS = 12
RECORDS = Path(__file__).parents[3] / "synthetic" / "records"
OPTIMIZERS = {
    "sgd": (lambda p, lr: helene.MeZO(p, lr=lr), {}),
    "momentum": (lambda p, lr: helene.ZOMomentum(p, lr=lr), {}),
    "adam": (lambda p, lr: helene.ZOAdam(p, lr=lr), {}),
    "newton": (lambda p, lr: helene.ZONewton(p, lr=lr, batch_size=1), {"interval": 1}),
    "sophia": (lambda p, lr: helene.ZOSophia(p, lr=lr, batch_size=1, gamma=0.1), {"beta1": 0.96, "gamma": 0.1}),
    "helene": (
        lambda p, lr: helene.Helene(p, lr=lr, anneal_horizon=50, batch_size=1, floor=10.0),
        {"floor": 10.0, "horizon": 50.0},
    ),
}


@pytest.mark.parametrize("method", OPTIMIZERS)
def test_rows_are_the_zeroth_order_optimizers(method):
    """The toy from losses, 12 steps in float64 with the optimizer's own directions: equal but for rounding."""
    make, settings = OPTIMIZERS[method]
    lr = 1e-3
    theta = torch.nn.Parameter(torch.tensor([0.7, 0.1], dtype=torch.float64))
    optimizer = make([theta], lr)
    runs = ManyRuns(method, torch.tensor([[[0.7, 0.1]]], dtype=torch.float64), {"lr": lr, **settings})
    z = toy.directions(0, 1, STEPS)
    for t in range(STEPS):
        optimizer.step(lambda: toy.loss(theta))
        runs.step(toy.spsa(runs.theta, z[:, t]))
    # A probe's difference loses 1e-16 |L| / eps of the slope; Newton divides by tiny h and enlarges it most.
    np.testing.assert_allclose(runs.theta[0, 0].numpy(), theta.detach().numpy(), rtol=1e-7)


@pytest.mark.parametrize(("method", "make"), [("sgd", helene.SGD), ("adam", helene.Adam)])
def test_rows_are_the_first_order_optimizers(method, make):
    theta = torch.nn.Parameter(torch.tensor([0.7, 0.1], dtype=torch.float64))
    optimizer = make([theta], lr=1e-2)
    runs = ManyRuns(method, torch.tensor([[[0.7, 0.1]]], dtype=torch.float64), {"lr": 1e-2})
    for _ in range(STEPS):
        optimizer.step(lambda: toy.loss(theta))
        runs.step(toy.gradient(runs.theta))
    np.testing.assert_allclose(runs.theta[0, 0].numpy(), theta.detach().numpy(), rtol=1e-12)


def test_rows_of_many_settings_are_rows_of_one_each():
    """Broadcasting over trials changes nothing, bit for bit."""
    trials = combinations({"lr": [1e-3, 1e-2], "floor": [1.0, 10.0]})
    begin = toy.starts(0, 4)
    together = toy.race("losses-helene", trials, begin, 0, 40)
    for i, trial in enumerate(trials):
        alone = toy.race("losses-helene", [trial], begin, 0, 40)
        assert alone["final"][0] == together["final"][i]


def test_an_unknown_method_is_explained():
    with pytest.raises(ValueError, match="method must be one of"):
        ManyRuns("lion", torch.zeros(1, 2), {"lr": 1.0})


def test_toy_derivatives_against_autograd():
    points = torch.linspace(-2, 2, 14, dtype=torch.float64).reshape(7, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(toy.loss(points).sum(), points, create_graph=True)
    torch.testing.assert_close(toy.gradient(points), gradient)
    (second,) = torch.autograd.grad(gradient.sum(), points)
    torch.testing.assert_close(toy.curvature(points), second)


def test_newton_goes_to_the_maximum_where_the_curvature_is_negative():
    found = toy.race("exact-newton", [{"lr": 1.0}], torch.tensor([[0.3, 0.0], [0.8, 0.0]]).double(), 0, 50)
    assert found["letters"] == ["sr"]


def test_slopes_are_those_of_probes():
    """The derivative along z against (L⁺ − L⁻)/(2 eps) in float64, off by the third derivative's eps²/6."""
    data = digits.digits()
    index = torch.stack([digits.minibatches(s, 1, 8)[0] for s in (3, 4)])
    x, y = data.train[index].double(), data.train_labels[index]
    theta = 0.1 * torch.randn(2, 2, digits.DIMENSION, generator=torch.Generator().manual_seed(0)).double()
    z = digits.directions((3, 4), [1])[:, 0].double()
    told, eps = digits.slope(theta, z, x, y), 1e-4

    def loss(at):
        logits = x @ at.reshape(2, 65, 10)
        return -logits.log_softmax(-1).gather(-1, y[..., None]).mean((1, 2))

    for trial in range(2):
        two_point = (loss(theta[trial] + eps * z) - loss(theta[trial] - eps * z)) / (2 * eps)
        torch.testing.assert_close(told[trial], two_point, rtol=1e-5, atol=1e-5)


def test_digits_follow_mezo():
    """20 steps of MeZO on the same minibatches: the same training loss, up to float32's rounding of its probes."""
    data, lr = digits.digits(), 0.08
    weights = torch.nn.Parameter(torch.zeros(65, 10))
    optimizer = helene.MeZO([weights], lr=lr, seed=5)
    for index in digits.minibatches(5, 20, 16):
        optimizer.step(
            lambda index=index: torch.nn.functional.cross_entropy(data.train[index] @ weights, data.train_labels[index])
        )
    found = digits.race("sgd", [{"lr": lr}], [5], budget=20, batch=16, horizon=20)["loss"][0, 0, 0].item()
    whole = torch.nn.functional.cross_entropy(data.train @ weights, data.train_labels).item()
    assert found == pytest.approx(whole, rel=1e-3)
    assert abs(found - math.log(10)) > 0.01, "it must have moved for this to tell anything"


def test_natural_step_and_h0_against_autograd():
    data = digits.digits()
    p = torch.full((10,), 0.1).double()
    second = (data.train.double().T @ data.train.double()) / len(data.train)
    whole = torch.kron(second, torch.diag(p) - torch.outer(p, p))
    expected = 1 / (whole.trace() + 2 * torch.linalg.eigvalsh(whole)[-1])
    assert data.natural_step == pytest.approx(expected.item(), rel=1e-6)
    weights, index = torch.zeros(65, 10, requires_grad=True), digits.minibatches(7, 1, 32)[0]
    torch.nn.functional.cross_entropy(data.train[index] @ weights, data.train_labels[index]).backward()
    assert digits.initial_curvature([7], 32) == pytest.approx(32 * weights.grad.square().sum().item(), rel=1e-4)


def test_choosing():
    inf = math.inf
    assert best_trial([[5, 9, inf], [7, 7, 7]], [[0, 0, 9], [0, 0, 0]]) == 1
    assert best_trial([[5, 5, inf], [7, 7, 7]], [[0, 0, 9], [0, 0, 0]]) == 0
    assert best_trial([[5, 5, inf], [7, 7, 7]], [[0, 0, 9], [0, 0, 0]], reliable=True) == 1
    assert best_trial([[inf, inf], [inf, inf]], [[3, math.nan], [2, 2]]) == 1
    assert at_edge({"lr": [1, 2, 3]}, {"lr": 3})
    assert not at_edge({"lr": [1, 2, 3]}, {"lr": 2})


def test_every_method_has_as_many_settings():
    assert {len(combinations(space)) for space in toy.SPACES.values()} == {24}
    assert {len(ablation.stage_trials(stage)) for stage in ablation.STAGES} == {16}


def test_statements_combine():
    yes, no, open_ = (Statement("", holds, "") for holds in (True, False, None))
    assert combined([yes, yes]) == "consistent"
    assert combined([yes, no, open_]) == "not_consistent"
    assert combined([yes, open_]) == combined([]) == "not_resolved"


# --- sentences from made-up records -------------------------------------------------------------------------------


def toy_records(reached, steps):
    out = []
    for config in toy.configs():
        name = config["cell"].split("-")[1]
        hits = reached.get(name, 40)
        result = {
            "status": "reached", "edge": False, "best_trial": {"lr": 0.1}, "path": [[0.3, 0.0], [1.0, 4.0]],
            "test": {"steps": [steps.get(name, 10.0)] * hits + [math.inf] * (40 - hits),
                     "status": "r" * hits + "o" * (40 - hits)},
            "concave": [i % 2 == 0 for i in range(40)],
        }  # fmt: skip
        out.append(Record.of("figure-toy", config, result))
    return out


def test_toy_gives_other_answers_for_other_records():
    as_printed = toy_page.remake(toy_records({"newton": 10, "sophia": 5}, {"sgd": 50.0, "adam": 30.0}))
    assert as_printed.verdict == "consistent"
    assert "Sophia is unstable and HELENE succeeds" in as_printed.answer
    other = toy_page.remake(toy_records({"helene": 10}, {}))
    assert other.verdict == "not_consistent"
    assert "does not show that" in other.answer
    assert "HELENE succeeds" in other.answer.split("does not show that")[1]


def ablation_records(steps, rise):
    out = []
    for config in ablation.configs():
        stage, count = config["stage"], config["test_seeds"]
        curve = [*np.linspace(2.3, 0.5, 20).tolist(), 0.5 + rise.get(stage, 0.0)]
        result = {
            "status": "reached", "edge": False, "best_trial": {"lr": 0.1}, "above": None, "accuracy": [0.8] * count,
            "steps": [steps.get(stage, 400.0) + i for i in range(count)], "loss": [curve] * count,
        }  # fmt: skip
        out.append(Record.of("figure-ablation", config, result))
    return out


def test_ablation_gives_other_answers_for_other_records():
    as_printed = ablation_page.remake(
        ablation_records({"biased": 300.0, "annealed": 300.0, "helene": 150.0}, {"biased": 0.5})
    )
    assert as_printed.verdict == "consistent"
    assert "6 of the paper's 6" in as_printed.answer
    other = ablation_page.remake(ablation_records({"momentum": 200.0, "helene": 800.0}, {}))
    assert other.verdict == "not_consistent"
    assert "0 of the paper's 6" in other.answer


def floor_records(accuracy):
    out = []
    for config in floor.configs():
        name, count = floor_page.name_of(config), config["test_seeds"]
        base = accuracy.get(name, 0.85)
        result = {
            "status": "reached", "edge": False, "best_trial": {"lr": 0.1}, "above": [0.5] * count, "floor": 1.0,
            "accuracy": [base + 0.001 * (i % 3) for i in range(count)], "steps": [400.0] * count,
            "loss": [[2.0, 1.0]] * count,
        }  # fmt: skip
        out.append(Record.of("figure-floor", config, result))
    return out


def test_floor_gives_other_answers_for_other_records():
    as_printed = floor_page.remake(floor_records({"0.9": 0.75}))
    assert as_printed.verdict == "consistent"
    assert as_printed.answer.startswith("A floor of 0.9 loses ten points or nearly")
    other = floor_page.remake(floor_records({"3": 0.6}))
    assert other.verdict == "not_consistent"
    assert other.answer.startswith("A floor of 0.9 does not lose ten points")


def trigger_records(slope, seeds=5, rise=0.05):
    out = []
    for config in [c | {"seed": s} for c in triggers.configs() if c["seed"] == 0 for s in range(seeds)]:
        count = config["steps"] // config["every"]
        loss = [1.5 + rise * i for i in range(count)]
        scale = 0.3 if config["gamma"] < 0.01 else 0.0
        rate = {kind: [scale * (1 + slope * (x - 1.5)) for x in loss] for kind in triggers.KINDS}
        result = {
            "status": "reached", "lr": 0.001, "edge": False, "loss": loss, "rate": rate,
            "coordinates": dict.fromkeys(triggers.KINDS, 10),
        }  # fmt: skip
        out.append(Record.of("figure-triggers", config, result))
    return out


def test_triggers_give_other_answers_for_other_records():
    as_printed = triggers_page.remake(trigger_records(0.5))
    assert as_printed.verdict == "consistent"
    assert "acts more often in 6 of 6" in as_printed.answer
    other = triggers_page.remake(trigger_records(-0.5))
    assert other.verdict == "not_consistent"
    assert "acts less often in 6 of 6" in other.answer
    assert "At γ = 0.05 it acts on 0 %" in other.answer
    falling = triggers_page.remake(trigger_records(0.5, rise=-0.02))
    assert falling.verdict == "not_resolved"
    assert "that explains it as well" in falling.answer
    few = triggers_page.remake(trigger_records(0.5, seeds=2))
    assert few.verdict == "not_resolved"
    assert "2 seeds cannot settle" in few.answer


def without(records, **config):
    """The records, with the cells of these settings failed."""
    failed = {"status": "error", "message": "ValueError: no luck"}
    return [
        Record.of(r.experiment, r.config, failed if config.items() <= r.config.items() else r.result) for r in records
    ]


def test_a_statement_whose_run_failed_stays_open():
    as_printed = toy_records({"newton": 10, "sophia": 5}, {"sgd": 50.0, "adam": 30.0})
    for name in ("sgd", "adam", "newton", "sophia"):
        made = toy_page.remake(without(as_printed, cell=f"exact-{name}"))
        assert made.verdict == "not_resolved", f"nothing is known of {name}"
        assert len(made.parts) == 5
        assert f"whether {toy_page.NAMES[name]} " in made.answer
    made = toy_page.remake(without(as_printed, cell="exact-helene"))
    assert made.answer == "No answer: HELENE's run with exact gradients failed."
    floors = floor_records({"0.9": 0.75})
    for value in (0.9, 2.0, 3.0):
        made = floor_page.remake(without(floors, protocol="shared", floor=value, unit="value"))
        assert made.verdict == "not_resolved", f"nothing is known of floor {value}"
        assert [part.numbers for part in made.parts].count("its run failed") == 1
    assert floor_page.remake(without(floors, floor=0.9)).answer.startswith("No answer on a floor of 0.9")


@pytest.mark.parametrize("page", [toy_page, ablation_page, floor_page, triggers_page])
def test_without_a_finished_run_no_figure_is_drawn(page):
    made = {toy_page: toy_records({}, {}), ablation_page: ablation_records({}, {}), floor_page: floor_records({})}
    with pytest.raises(ValueError, match=r"no luck.*nothing to draw"):
        page.remake(without(made.get(page) or trigger_records(0.1)))


def test_a_miss_of_the_ablation_has_no_ratio():
    missed = ablation_page.remake(ablation_records({"helene": math.inf}, {}))
    assert "HELENE misses the target, MeZO does not." in missed.answer
    both = ablation_page.remake(ablation_records({"mezo": math.inf, "helene": math.inf}, {}))
    assert "HELENE misses the target, as MeZO does." in both.answer


def test_every_parameter_has_one_kind():
    from helene.lab.transformer import TinyTransformer, TransformerConfig

    names = [n for n, _ in TinyTransformer(TransformerConfig(**triggers.SIZES)).named_parameters()]
    kinds = {n: triggers.kind_of(n) for n in names}
    assert set(kinds.values()) == set(triggers.KINDS)
    assert all((kind == "biases") == name.endswith("bias") for name, kind in kinds.items())
    with pytest.raises(ValueError, match="no kind of layer"):
        triggers.kind_of("conv.weight")


def test_clip_counts_are_shares():
    config = triggers.configs()[-1] | {"every": 2}
    found = triggers.train(0, 1e-3, 4, config)
    assert len(found["loss"]) == 2
    assert all(0 <= x <= 1 for row in found["rate"].values() for x in row)
    again = triggers.train(0, 1e-3, 4, config)
    assert found == again


@pytest.mark.parametrize(
    ("page", "records"),
    [
        (toy_page, toy_records({}, {})),
        (ablation_page, ablation_records({}, {})),
        (floor_page, floor_records({})),
        (triggers_page, trigger_records(0.1)),
    ],
    ids=["toy", "ablation", "floor", "triggers"],
)
def test_pages_need_no_network_and_flag_failed_cells(page, records, tmp_path):
    name = records[0].experiment.removeprefix("figure-")
    failed = copy.deepcopy(records)
    failed[-1].result.clear()
    failed[-1].result.update(status="error", message="ValueError: no luck")
    said, sound = write_figure(tmp_path, page.remake(failed), failed, f"helene scaling figure {name}", {})
    assert not sound
    text = (tmp_path / "scaling" / "figures" / f"{name}.html").read_text()
    assert "no luck" in text
    assert "http" not in text.split("</style>")[1]
    summary = canonical.loads((tmp_path / "scaling" / "figures" / f"{name}.json").read_text())
    assert summary["answer"] == said


@pytest.mark.parametrize(
    ("words", "code"), [(["figure", "spiral"], 2), (["figure"], 2), (["agnb", "--jobs", "0"], 2), (["figure", "-h"], 0)]
)
def test_command_line(words, code, tmp_path, capsys):
    from helene.cli import main

    try:
        found = main(["scaling", *words])
    except SystemExit as err:
        found = err.code
    assert found == code
    assert "Traceback" not in capsys.readouterr().err


def test_the_report_keeps_its_command_line(capsys):
    """``helene scaling --preset`` still means the report."""
    from helene.cli import main

    assert main(["scaling", "--preset", "huge"]) == 2
    assert "preset must be one of" in capsys.readouterr().err


COMMITTED = {
    "toy": (toy, toy_page),
    "ablation": (ablation, ablation_page),
    "floor": (floor, floor_page),
    "triggers": (triggers, triggers_page),
}


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_records_are_those_of_the_current_settings(name):
    """What a reader quotes from them is what the command would find."""
    measured, page = COMMITTED[name]
    records = read_jsonl(RECORDS / "figures" / f"{name}.jsonl")
    assert {r.key for r in records} == {config_key(c) for c in measured.configs()}
    assert not any(r.failed for r in records)
    assert page.remake(records).verdict in ("consistent", "not_consistent", "not_resolved")


def test_committed_records_of_a_gnb():
    from synthetic.estimators.analysis import findings_of
    from synthetic.estimators.design import configs

    records = read_jsonl(RECORDS / "agnb.jsonl")
    assert {r.key for r in records} == {config_key(c) for c in configs()}
    assert findings_of(records).verdict == "not_consistent"


def test_a_committed_cell_comes_out_again():
    """One of the cheapest of each kind that needs no tuning of minutes, equal but for seconds."""
    from synthetic.estimators.run import run

    by_size = sorted(read_jsonl(RECORDS / "agnb.jsonl"), key=lambda r: (r.config["kind"], r.config.get("d", 0)))
    record = next(r for r in by_size if r.config["kind"] == "forward_only")
    again = Record.of("agnb", record.config, run(record.config))
    np.testing.assert_allclose(again.result["snr"], record.result["snr"], rtol=1e-3)
    cell = next(r for r in read_jsonl(RECORDS / "figures" / "toy.jsonl") if r.config["cell"] == "exact-newton")
    again = Record.of("figure-toy", cell.config, toy.run(cell.config))
    assert again.result["best_trial"] == cell.result["best_trial"]
    assert again.result["test"] == cell.result["test"]
