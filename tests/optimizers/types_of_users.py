"""What a user's type checker sees of the package.

`make test` checks this file with mypy and never runs it. An ``ignore`` that is not needed is an error, so each line
with one is a mistake that mypy must see.
"""

from __future__ import annotations

from torch import Tensor, nn

from helene import Helene, MeZO, Trajectory, ZOAdam, layer_groups, microbatches
from helene.engine import Engine


def right(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    optimizer = MeZO(model.named_parameters(), lr=1e-6, eps=1e-3, model=model)
    MeZO(layer_groups(model), lr=lambda t: 1e-6 / t)
    Helene(layer_groups(model), anneal_horizon=100, batch_size=16, floor=0.5)
    Trajectory.record(optimizer).save("run.npz")
    loss: Tensor = optimizer.step(lambda: model(**batch).loss)
    optimizer.step(microbatches(lambda part: model(**part).loss, [batch, batch]))
    return loss + Engine(model, optimizer, lambda model, batch: model(**batch).loss).step(batch)


def wrong(model: nn.Module) -> None:
    MeZO(model.parameters(), lr="x")  # type: ignore[arg-type]
    MeZO(model.parameters(), learning_rate=1e-6)  # type: ignore[call-arg]
    MeZO(model.parameters(), eps="small")  # type: ignore[arg-type]
    MeZO(model)  # type: ignore[arg-type]
    ZOAdam(model.parameters(), betas=(0.9, 0.99))  # type: ignore[call-arg]
    Helene(model.parameters())  # type: ignore[call-arg]
