"""A case on a sharded model."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from torch import distributed as dist
from torch import nn

import helene
from helene.engine import sharded
from tests.paths import models
from tests.paths.cases import REQUIRED, Case, Run, happen, make_model
from tests.paths.paths import collect_state
from tests.paths.steps import by_optimizer

_meshes: dict[int, Any] = {}


def sharded_run(case: Case, rank: int) -> Run:
    """This rank's run; its parameters and state are its rows."""
    from torch.distributed.fsdp import fully_shard

    run = Run()
    if 2 not in _meshes:
        _meshes[2] = dist.device_mesh.init_device_mesh("cpu", (2,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = make_model(case)
            for child in (c for c in model.children() if isinstance(c, models.Dense)):
                fully_shard(child, mesh=_meshes[2])
            fully_shard(model, mesh=_meshes[2])
            optimizer = _make(case, model)
            step = by_optimizer(case, model, optimizer)
            for t in range(1, case.steps + 1):
                for event in (e for e in case.events if e.step == t):
                    optimizer = happen(event, case, model, optimizer, partial(_make, case, model))
                    step = by_optimizer(case, model, optimizer)
                run.losses.append(float(step(t, models.share(models.batch_of(t), rank))))
            for name, p in model.named_parameters():
                run.params[name] = p.to_local().detach().reshape(-1).clone()
            group = optimizer.param_groups[0]
            for name, p in zip(group["param_names"], group["params"], strict=True):
                collect_state(run, name, optimizer.state.get(p, {}))
        except Exception as error:
            run.refused = f"{type(error).__name__}: {error}"
    return run


def _make(case: Case, model: nn.Module, bare: bool = False) -> Any:
    options = REQUIRED.get(case.method, {}) if bare else case.options
    return sharded(getattr(helene, case.method), model, **options)
