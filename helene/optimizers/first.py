"""First-order methods through the same loop: the gradient comes from a backward."""

from __future__ import annotations

from torch import Tensor

from helene.curvature import by_chunks, mean_gradient
from helene.optimizers.base import Base, Chunk
from helene.probe import Closure


class FirstOrder(Base):
    """Base of the baselines that see the gradient.

    The closure returns the loss with its graph and does not call backward; ``.grad`` is neither read nor written, and
    the gradients live for the step only. A step costs one forward and one backward, counted as 3 forwards, and the
    memory of the gradient and of the activations. Not replayable: the update is not a function of a few scalars.
    """

    def forwards_at(self, step: int) -> int:
        """Forwards that a step makes, a backward counted as two."""
        return 3

    def _measure(self, closure: Closure, step: int) -> tuple[list[float], Tensor]:
        self._gradients, loss = mean_gradient(closure, [target.tensor for target in self._targets])
        return [], loss

    def _gradient(self, step: int, scalars: list[float]) -> Chunk:
        gradients, self._gradients = self._gradients, []
        return by_chunks(gradients)
