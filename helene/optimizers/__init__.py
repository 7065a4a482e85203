"""The optimizers, one file each; their arithmetic is in `helene.functional`."""

from helene.optimizers.helene import Helene
from helene.optimizers.mezo import MeZO

__all__ = ["Helene", "MeZO"]
