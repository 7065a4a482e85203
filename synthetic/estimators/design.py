"""Which populations are measured. Never imports torch."""

from __future__ import annotations

from typing import Any

VERSION = 1  # raise it when the same config gives another result
BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
DISTANCES = (0.0, 0.1, 0.3, 1.0, 3.0)
MODELS = ("logistic", "softmax", "mlp", "transformer")
DIMENSIONS = (4, 16, 64, 256, 1024, 4096)
GROUPS = 10
Config = dict[str, Any]


def batch_config(
    model: str,
    *,
    distance: float = 0.0,
    size: int = 16,
    rare: float | None = None,
    labels: str = "model",
    replicates: int = 1000,
) -> Config:
    """Estimates of one population against B.

    Args:
        model: One of `MODELS`.
        distance: From the optimum of the well-specified model, as the root mean square change of the logits.
        size: Number of features of the linear models, d of the logistic one.
        rare: Probability of the rare classes together; None leaves the classes as they come.
        labels: ``model``, drawn from the teacher, the model at its optimum; ``certain``, the teacher's likeliest.
        replicates: Minibatches drawn for each B.
    """
    return {
        "kind": "batch",
        "model": model,
        "distance": distance,
        "size": size,
        "rare": rare,
        "labels": labels,
        "batches": list(BATCHES),
        "replicates": replicates,
        "groups": GROUPS,
        "seed": 4,
        "version": VERSION,
    }


def forward_config(d: int) -> Config:
    """Estimates of h from SPSA gradients of minibatches in d dimensions."""
    estimates = 4000 if d <= 1024 else 1000
    return {
        "kind": "forward_only",
        "d": d,
        "decades": 3.0,
        "batch": 64,
        "estimates": estimates,
        "averaged": 1000,
        "beta2": 0.99,
        "groups": GROUPS,
        "seed": 5,
        "version": VERSION,
    }


def configs() -> list[Config]:
    """All cells: each axis is varied with the others held, no cross product."""
    size = {"logistic": 64, "softmax": 16, "mlp": 16, "transformer": 16}
    cells = [batch_config(m, size=size[m], distance=d) for m in MODELS for d in DISTANCES]
    cells += [batch_config("logistic", size=d, distance=r) for d in (8, 512) for r in (0.0, 1.0)]
    for model in ("logistic", "softmax"):
        cells += [batch_config(model, size=size[model], distance=r, rare=p) for p in (0.1, 0.02) for r in (0.0, 1.0)]
    cells += [batch_config(m, size=size[m], labels="certain") for m in MODELS]
    return cells + [forward_config(d) for d in DIMENSIONS]


def cost(config: Config) -> float:
    """Expected core-seconds."""
    if config["kind"] == "forward_only":
        return 0.1 + 3e-8 * config["d"] * config["estimates"] * config["groups"]
    return {"transformer": 1.5, "softmax": 0.8}.get(config["model"], 0.5)
