"""The captured step: a zeroth-order step at the price of two forwards."""

from helene.engine.engine import Engine

__all__ = ["Engine"]
