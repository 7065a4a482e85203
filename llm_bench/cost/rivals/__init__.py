"""What the engine is compared with: other ways to make the same step. Each ratio names its rival."""

from llm_bench.cost.rivals.in_place import InPlaceMeZO
from llm_bench.cost.rivals.published import PublishedMeZO

__all__ = ["InPlaceMeZO", "PublishedMeZO"]
