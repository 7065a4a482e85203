"""The update rules: hyper-parameters, state, ``init`` and ``update``; their arithmetic is in `helene.functional`."""

from helene.rules.base import NoState, Rule, Scalar
from helene.rules.curved import CurvatureRule, HeleneRule, HiZOORule, NewtonRule, SophiaRule
from helene.rules.plain import (
    AdamRule,
    AdamWRule,
    DecayLastRule,
    HeavyBallRule,
    LionRule,
    SGDRule,
    SignRule,
    TorchSGDRule,
)

__all__ = [
    "AdamRule",
    "AdamWRule",
    "CurvatureRule",
    "DecayLastRule",
    "HeavyBallRule",
    "HeleneRule",
    "HiZOORule",
    "LionRule",
    "NewtonRule",
    "NoState",
    "Rule",
    "SGDRule",
    "Scalar",
    "SignRule",
    "SophiaRule",
    "TorchSGDRule",
]
