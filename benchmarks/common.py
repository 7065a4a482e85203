"""Optimizers to measure, and a loss that costs next to nothing, so that a step is the optimizer's own work.

Nothing here imports torch when it is imported: a process that only looks up a cached count starts at once.
"""

from __future__ import annotations

REQUIRED = {
    "Helene": {"anneal_horizon": 1000, "batch_size": 16},
    "ZOSophia": {"batch_size": 16},
    "ZONewton": {"batch_size": 16},
    "SophiaG": {"curvature": "backprop", "batch_size": 16},
}
METHODS = [
    "MeZO",
    "Helene",
    "ZOMomentum",
    "ZOConservative",
    "ZOSign",
    "ZOScalarSign",
    "ZOAdam",
    "ZOAdamW",
    "ZOLion",
    "ZOSophia",
    "ZONewton",
    "HiZOO",
    "FZOO",
    "ForwardGrad",
    "SGD",
    "Adam",
    "AdamW",
    "Lion",
    "SophiaG",
]


def present(methods=METHODS):
    """Those of the methods that this commit has."""
    import helene

    return [method for method in methods if hasattr(helene, method)]


def make(method: str, params, lr: float = 1e-6, **changes):
    """An optimizer by its public name; a commit that lacks it skips the benchmark."""
    import helene

    if not hasattr(helene, method):
        raise NotImplementedError(f"this commit has no {method}")
    return getattr(helene, method)(params, lr, **{**REQUIRED.get(method, {}), **changes})


def parameter(size: int, dtype: str = "float32"):
    """A parameter with reproducible values of the scale of a trained weight."""
    import torch

    values = torch.arange(size, dtype=torch.float32).mul_(0.618034).frac_().sub_(0.5).mul_(0.04)
    return torch.nn.Parameter(values.to(getattr(torch, dtype)))


class CountedLoss:
    """The mean of some squares, which counts how often it is asked."""

    def __init__(self, p) -> None:
        self.p, self.calls = p, 0

    def __call__(self):
        self.calls += 1
        return self.p[:1024].float().square().mean()


class Lookup:
    """Base of deterministic benchmarks: all values are made in one process, `setup_cache`, and looked up by key."""

    version = "1"
    timeout = 600

    def setup(self, cache, *key) -> None:
        if key not in cache:
            raise NotImplementedError(f"this commit has no {key}")
