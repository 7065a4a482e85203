"""Steps of `ForwardGrad` on a CPU: recorded tangents, their calls made anew, against ``optimizer.step``."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import batch_of, loss, made, pair_of

from helene import ForwardGrad
from helene.engine.tangents import TangentEngine


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher", "sphere"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_recorded_tangents_give_the_optimizers_steps(dtype, distribution):
    model, twin, engine, second = pair_of(ForwardGrad, TangentEngine, dtype, distribution=distribution)
    modes = []
    for step in range(1, 9):
        batch = batch_of(step, 6 if step % 3 else 4, dtype)
        ours, theirs = engine.step(batch), second.step(lambda batch=batch: loss(twin, batch))
        modes.append(engine.mode)
        assert torch.equal(ours, theirs), step
        assert all(map(torch.equal, model.parameters(), twin.parameters())), step
    # Steps 1, 2, 4 and 8 look whether the loss draws; of four rows step 3 is the first.
    assert modes == ["plain", "plain", "plain", "plain", "plain", "graph", "graph", "plain"]


def test_each_layers_tangent_is_recorded_where_layers_have_directions_of_their_own():
    model = made()
    twin = copy.deepcopy(model)
    parts = [[{"params": list(part.parameters())} for part in (m.first, m.second)] for m in (model, twin)]
    first, second = (ForwardGrad(groups, lr=0.05, direction_per_layer=True) for groups in parts)
    engine = TangentEngine(model, first, loss, capture="repeat", max_shapes=1)
    for step in range(1, 8):
        engine.step(batch_of(step))
        second.step(lambda step=step: loss(twin, batch_of(step)))
    assert engine.mode == "graph", engine.reason
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
