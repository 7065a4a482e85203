"""The captured step: a zeroth-order step at the price of two forwards. Steps of sharded models."""

from helene.engine.engine import Engine
from helene.engine.sharded import sharded

__all__ = ["Engine", "sharded"]
