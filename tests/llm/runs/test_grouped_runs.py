"""`mezo-grouped` in the harness: losses of examples, the places that a head sees, whole runs."""

from __future__ import annotations

import warnings

import pytest
import torch
from llm_families import make
from small_runs import comparable, opt, result_of

from helene import GroupedMeZO
from llm_bench.data.batches import collate
from llm_bench.data.encode import encode
from llm_bench.data.folder import read_split
from llm_bench.evaluation.scoring import EXAMPLE_LOSSES, LOSSES
from llm_bench.runs import methods
from llm_bench.tasks import get_task
from tests.optimizers.groups.grouped_models import reference_gradient, written_out

CASES = [("opt", "sst2"), ("opt", "squad"), ("gpt2", "copa"), ("roberta", "sst2"), ("bert", "trec")]


def batch_of(model, name, folder):
    task = get_task(name, model.kind)
    found = [encode(model, task, task.make(row)) for row in read_split(folder, task, "train")[:6]]
    if task.loss == "language_model":
        found = [example.only_gold() for example in found]
    return task, collate(found, model.pad_id, model.side, labels=task.loss == "classification")


@pytest.mark.parametrize(("family", "task"), CASES)
def test_losses_of_examples_and_the_step_that_follows(family, task, toy_data):
    """Their mean is the loss; a step is that of perturbed copies, with groups where the head sees places alone.

    The loss's sum over the mask is of float32: slopes are off by 1e-7 of the loss over eps.
    """
    model = make(family)
    module = model.module.double().eval()
    chosen, batch = batch_of(model, task, toy_data)

    def losses():
        return EXAMPLE_LOSSES[chosen.loss](module, batch)

    with torch.no_grad():
        assert losses().mean().item() == pytest.approx(LOSSES[chosen.loss](module, batch).item(), rel=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the head leaves out
        optimizer = GroupedMeZO(module.named_parameters(), 1e-3, groups=3, eps=1e-2, model=module)
        start = [t.tensor.detach().clone() for t in optimizer.targets]
        expected = reference_gradient(
            lambda g: losses()[2 * g : 2 * g + 2].mean(), optimizer, written_out(optimizer, 1, 3, 1), 1e-2
        )
        optimizer.step(losses)
    for target, old, g in zip(optimizer.targets, start, expected, strict=True):
        moved = old - target.tensor
        assert (moved - 1e-3 * g).abs().max() <= 1e-4 * (1e-3 * g).abs().max() + 1e-12, target.name


def test_a_run_is_made_replayed_and_told(env):
    config = opt(method="mezo-grouped", tuning="full", task="copa", batch_size=8, hyper={"groups": 4})
    result = result_of(config, env)
    assert result["forwards"] == 2 * config.steps
    assert result["optimizer"]["noise"]["batch_size"] == 8
    assert result["optimizer"]["noise"]["steps"] == config.steps
    assert result["replayed"] in (True, None)
    assert comparable(result) == comparable(result_of(config, env))


def test_groups_that_do_not_divide_a_batch_are_an_error(env):
    with pytest.raises(ValueError, match="groups=3"):
        result_of(opt(method="mezo-grouped", tuning="full", batch_size=8, hyper={"groups": 3}), env)
    with pytest.raises(ValueError, match=r"prefix\.key has shape .* directions of low rank"):
        result_of(opt(method="mezo-grouped", tuning="prefix", batch_size=8, hyper={"groups": 2}), env)


def test_methods_that_are_told_examples():
    assert [name for name in methods.METHODS if methods.takes_examples(name)] == [
        *("mezo-grouped", "mezo-grouped-4", "mezo-grouped-16", "mezo-grouped-32"),
    ]
    assert methods.captured("mezo-grouped")
