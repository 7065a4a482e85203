"""First-order methods through the same loop: the gradient comes from a backward."""

from __future__ import annotations

from helene.steps.base import Base
from helene.steps.measurement import Backward


class FirstOrder(Base):
    """Base of the baselines that see the gradient.

    The closure returns the loss with its graph and does not call backward; ``.grad`` is neither read nor written, and
    the gradients live for the step only. A step costs one forward and one backward, counted as 3 forwards, and the
    memory of the gradient and of the activations. Not replayable: the update is not a function of a few scalars.
    """

    MEASUREMENT = Backward()
