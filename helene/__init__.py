"""Zeroth-order optimizers for PyTorch that never touch the weights to probe them."""

from helene.layers import layer_groups
from helene.optimizers import Helene, MeZO

__all__ = ["Helene", "MeZO", "layer_groups"]
__version__ = "0.1.0"
