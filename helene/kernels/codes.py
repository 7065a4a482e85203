"""Numbers that stand for methods, and for how a state is stored, where kernels are compiled for them."""

from __future__ import annotations

import torch
from torch import Tensor

SGD, HELENE, MOMENTUM, SIGN, ADAM, LION, SGD_PLAIN, TORCH_SGD, DECAY_LAST = range(9)
NONE, FLOAT32, BFLOAT16, SIGNED, UNSIGNED = range(5)
NUM_HYPERS = 12  # of a layer, see `helene.steps.fused.methods`


def kind_of(stored: Tensor) -> int:
    """How a state tensor is stored."""
    kinds = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.int8: SIGNED, torch.uint8: UNSIGNED}
    return kinds[stored.dtype]
