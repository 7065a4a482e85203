"""Where a model counts tokens from: what padding and long inputs break without an error."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, Literal, get_args

from torch import Tensor

Side = Literal["left", "right"]  # where rows are filled up
SIDES: tuple[Side, ...] = get_args(Side)

UNBOUNDED = 1 << 20  # relative positions without a table

# Their position tables start behind the padding token's id.
_BEHIND_PADDING = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "longformer",
    "data2vec-text",
    "xmod",
    "esm",
    "ibert",
)


def longest(config: Any) -> int:
    """Tokens that a model's positions allow."""
    config = config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "n_ctx")
    length = next((getattr(config, name) for name in names if hasattr(config, name)), None)
    if not isinstance(length, int) or length < 1:
        return UNBOUNDED
    return length - _offset(config)


def position_ids(module: Any, mask: Tensor) -> dict[str, Tensor]:
    """``position_ids`` where the model takes them, counting real tokens only: the same on either padding side."""
    if not accepts(module, "position_ids"):
        return {}
    return {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0) + _offset(module.config.get_text_config())}


def accepts(module: Any, argument: str) -> bool:
    """Whether a model's forward has an argument of that name."""
    return argument in _parameters(module.__class__)


def _offset(config: Any) -> int:
    return (config.pad_token_id or 0) + 1 if config.model_type.startswith(_BEHIND_PADDING) else 0


@cache
def _parameters(cls: type[Any]) -> frozenset[str]:
    forward: Any = cls.forward
    return frozenset(inspect.signature(forward).parameters)
