"""What TF32 and bfloat16 products change: c along the same directions, and loss curves from the same seeds.

``helene llm measure products`` writes a record a precision and task, each as soon as it is measured: how c
differs from float32's, and runs of MeZO.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helene.lab.runs import provenance as origin
from helene.lab.runs.store import Record, Store, config_key
from helene.steps.trajectory import Trajectory
from llm_bench.data.stream import BatchStream
from llm_bench.models.loading import check_device
from llm_bench.runs import methods
from llm_bench.runs.config import RunConfig
from llm_bench.runs.environment import Environment, environment, resolved
from llm_bench.runs.products import matmuls
from llm_bench.runs.run import run
from llm_bench.runs.session import session
from llm_bench.runs.training.stepper import engine_available, make_stepper

EXPERIMENT = "llm/products"
_UNMOVED = 1e-30  # a learning rate too small to change a weight
_LR = {"causal": 1e-6, "masked": 1e-5}


@dataclasses.dataclass(frozen=True)
class Asked:
    """A task, and how long its curves are.

    Attributes:
        kind: Of model.
        task: Its name.
        steps: Of a curve.
        seeds: Number of curves.
    """

    kind: str
    task: str
    steps: int
    seeds: int


def asked(word: str) -> Asked:
    """Of ``KIND/TASK:STEPS:SEEDS``.

    Raises:
        ValueError: If the word reads otherwise.
    """
    try:
        where, steps, seeds = word.split(":")
        kind, task = where.split("/")
        return Asked(kind, task, int(steps), int(seeds))
    except ValueError as err:
        raise ValueError(f"a task must read KIND/TASK:STEPS:SEEDS, such as causal/sst2:500:2, got {word!r}") from err


def slopes(config: RunConfig, env: Environment) -> list[float]:
    """c of ``config.steps`` directions, each on a minibatch of its own, at the initial point."""
    opened = session(config, env)
    opened.reset(config.seed)
    stream = BatchStream(len(opened.tokens(config).train), config.batch_size, config.data_seed)
    hyper = {"lr": _UNMOVED, "eps": config.eps}
    module = opened.model.module
    optimizer = methods.build("mezo", module, hyper, seed=config.seed, batch_size=stream.batch_size, steps=config.steps)
    recorded = Trajectory.record(optimizer)
    stepper = make_stepper(module, optimizer, opened.loss(config), "mezo", engine=config.engine)
    with matmuls(config.products):
        for step in range(1, config.steps + 1):
            stepper.step(opened.batch(config, stream.rows(step)), lambda: {})
        stepper.settle()
    return [scalars[0] for scalars in recorded.scalars]


def difference(found: Sequence[float], exact: Sequence[float]) -> dict[str, float]:
    """How one list of c differs from another along the same directions."""
    mine, true = np.asarray(found), np.asarray(exact)
    off = mine - true
    return {
        "rms": float(np.sqrt(np.mean(mine**2))),
        "mean_difference": float(off.mean()),
        "rms_difference": float(np.sqrt(np.mean(off**2))),
        "correlation": float(np.corrcoef(mine, true)[0, 1]),
    }


def main(arguments: argparse.Namespace) -> int:
    """Measure; returns 0."""
    check_device(arguments.device)
    folders, names = (dict(word.split("=", 1) for word in words) for words in (arguments.model, arguments.names))
    sources = {names.get(kind, kind): folder for kind, folder in folders.items()}
    env = environment(arguments.data, models=sources, device=arguments.device, pretrained=not arguments.random_models)
    with Store(arguments.out / "products.sqlite") as store:
        for want in map(asked, arguments.tasks):
            base = _base(want, names.get(want.kind, want.kind), arguments)
            exact: list[float] = []
            for name in arguments.products:
                config = resolved(dataclasses.replace(base, products=name), env)
                found = slopes(dataclasses.replace(config, steps=arguments.directions), env)
                exact = exact or found
                told = {**difference(found, exact), "c": found}
                _put(store, arguments.out, {**config.to_dict(), "steps": arguments.directions, "part": "slopes"}, told)
            for seed in range(want.seeds):
                for name in arguments.products:
                    config = resolved(dataclasses.replace(base, products=name, seed=seed), env)
                    _put(store, arguments.out, config.to_dict(), run(config.to_dict(), env))
    return 0


def _base(want: Asked, model: str, arguments: argparse.Namespace) -> RunConfig:
    cuda = arguments.device.startswith("cuda")
    return RunConfig(
        model,
        want.kind,  # type: ignore[arg-type]
        want.task,
        "mezo",
        lr=_LR[want.kind],
        eps=1e-3,
        steps=want.steps,
        eval_every=max(1, want.steps // 5),
        batch_size=16 if want.kind == "causal" else 64,
        k=16 if want.kind == "masked" else None,
        role="tune",
        device="cuda" if cuda else "cpu",
        engine=cuda and engine_available(),
        best="copy",
    )


def _put(store: Store, out: Path, config: dict[str, Any], result: dict[str, Any]) -> None:
    record = Record(config_key(config), EXPERIMENT, config, {"status": "out_of_budget", **result}, origin.provenance())
    store.put(record)
    store.export_jsonl(out / "products.jsonl", EXPERIMENT)
    shown = {k: v for k, v in result.items() if k in ("rms", "mean_difference", "rms_difference", "correlation")}
    shown = shown or {"dev_loss": result.get("curve", {}).get("dev_loss"), "seconds": result.get("training_seconds")}
    print(config["task"], config["products"], config["seed"], shown, flush=True)
