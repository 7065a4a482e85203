"""Packed batches give what padded ones give: losses, gradients, with adapters and prefixes, by the engine."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from llm_families import CAUSAL, MASKED, make

from helene import MeZO
from helene.engine import Engine
from llm_bench.data.batches import collate, packed
from llm_bench.evaluation.plain_forward import runs_packed
from llm_bench.evaluation.scoring import LOSSES
from llm_bench.models.tuning import Tuning, prepare
from tests.llm.evaluation.test_scoring import examples

FAMILIES = (*CAUSAL, *MASKED)


def batches(family, toy_data, name, count=5, spare=3):
    """A model of the family, a task's loss, a padded batch of rows of unlike lengths and the same packed."""
    model = make(family)
    task, encoded = examples(model, name, toy_data)
    chosen = sorted(encoded, key=lambda example: len(example.rows[0]))
    chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, count).astype(int)]
    if task.loss == "language_model":
        chosen = [example.only_gold() for example in chosen]
    padded = collate(chosen, model.pad_id, model.side, labels=task.loss == "classification")
    tokens = int(padded["attention_mask"].sum())
    assert tokens < 0.9 * padded["input_ids"].numel()
    return model, LOSSES[task.loss], padded, packed(padded, tokens + spare)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_are_those_of_padded_rows(family, toy_data):
    """In float64: what is summed is the same, in another order; Gemma's norms are float32."""
    off = 1e-6 if family.startswith("gemma") else 1e-11
    for name in ("sst2", "copa") if family in CAUSAL else ("sst2",):
        model, loss, padded, together = batches(family, toy_data, name)
        found = []
        for batch in (padded, together):
            model.module.zero_grad()
            value = loss(model.module, batch)
            value.backward()
            gradients = {n: p.grad.clone() for n, p in model.module.named_parameters() if p.grad is not None}
            found.append((value.item(), gradients))
        (one, first), (two, second) = found
        assert two == pytest.approx(one, rel=off)
        assert first.keys() == second.keys()
        for key, gradient in first.items():
            torch.testing.assert_close(second[key], gradient, rtol=0, atol=off * max(1.0, gradient.abs().max().item()))


@pytest.mark.parametrize("tuning", ["lora", "prefix"])
def test_tuned_models_run_on_packed_rows(tuning, toy_data):
    model, loss, padded, together = batches("gemma3_text", toy_data, "sst2")
    prepare(model, Tuning(tuning))
    with torch.no_grad():
        for p in model.module.parameters():
            p.add_(0.1 * torch.randn_like(p)) if p.requires_grad else None
        assert loss(model.module, together).item() == pytest.approx(loss(model.module, padded).item(), rel=1e-6)


def test_a_batch_that_does_not_fit_is_refused(toy_data):
    _, _, padded, _ = batches("opt", toy_data, "sst2")
    with pytest.raises(ValueError, match="total is 7; take a larger total"):
        packed(padded, 7)


def test_a_model_that_sees_where_its_rows_begin_is_not_given_packed_tokens(toy_data, monkeypatch):
    """One whose layers see neighbours beside attention gives other logits."""
    model, _, padded, _ = batches("llama", toy_data, "sst2")
    assert runs_packed(model, padded)
    layer = model.module.model.layers[0].mlp
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x: forward(x) + forward(x.roll(1, dims=1)))
    assert not runs_packed(model, padded)


@pytest.mark.parametrize(("family", "tuning"), [("gemma3_text", "full"), ("gemma3_text", "prefix"), ("opt", "lora")])
def test_engines_compile_the_layers_of_packed_forwards(family, tuning, toy_data, monkeypatch):
    """Recorded steps of a tracer's code are those of the layers themselves, in float64."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    losses = []
    for compile in (False, True):
        model, loss, _, together = batches(family, toy_data, "sst2")
        prepare(model, Tuning(tuning))
        trained = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        optimizer = MeZO(trained, lr=1e-3, eps=1e-2, seed=3, model=model.module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = Engine(model.module, optimizer, loss, capture="repeat", compile=compile, scratch_bytes=1 << 20)
            losses.append([float(engine.step(together)) for _ in range(4)])
        assert engine.compiled is compile
    assert losses[1] == pytest.approx(losses[0], rel=1e-6 if family.startswith("gemma") else 1e-11)
