"""Plain values and their one JSON form: what a record may hold, written so that equal values give equal bytes.

JSON has no infinity and no nan, and a miss is an infinity here, so they are written as ``{"$float": "inf"}``,
``"-inf"`` or ``"nan"`` and read back as floats. Nothing is ever written as the non-standard ``Infinity``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

FLOAT_TAG = "$float"
_BITS = 13_287  # of 4,000 digits; Python refuses to read or write more than 4,300
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def plain(value: Any, where: str = "value") -> Any:
    """Return ``value`` as str, bool, int, float, None, list and dict alone, copied.

    Tuples and numpy arrays become lists, numpy scalars Python numbers, dataclasses dicts.

    Args:
        value: What to convert.
        where: Its name, for the error message.

    Raises:
        ValueError: If something in it has no JSON form (a tensor, a set, a key that is not a string): the message
            names the place.
    """
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        if value.bit_length() > _BITS:
            raise ValueError(f"{where} is an integer of over 4,000 digits, which no reader takes; make it a float")
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, np.generic | np.ndarray) and not isinstance(value, np.complexfloating):
        return plain(value.tolist(), where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_checked_key(key, where): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise ValueError(
        f"{where} is a {type(value).__name__}, which has no JSON form; "
        "convert it to numbers, strings, lists and dicts first (a tensor by .tolist(), a path by str())"
    )


def _checked_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise ValueError(f"{where} has the key {key!r} of type {type(key).__name__}; keys must be strings")
    if key == FLOAT_TAG:
        raise ValueError(f"{where} has the key {FLOAT_TAG!r}, which is reserved for infinities; rename it")
    return key


def dumps(value: Any, indent: int | None = None) -> str:
    """The canonical JSON of a value: sorted keys, ASCII, shortest floats that round-trip; no spaces unless indented."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(_tag(plain(value)), sort_keys=True, indent=indent, separators=separators, allow_nan=False)


def loads(text: str) -> Any:
    """The value whose canonical JSON is ``text``."""
    return json.loads(text, object_hook=_untag)


def _tag(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT_TAG: "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if isinstance(value, dict):
        return {key: _tag(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_tag(item) for item in value]
    return value


def _untag(value: dict[str, Any]) -> Any:
    return _FLOATS[value[FLOAT_TAG]] if len(value) == 1 and value.get(FLOAT_TAG) in _FLOATS else value


def without_seconds(value: Any) -> Any:
    """``value`` without every entry, at any depth, whose name ends in ``_seconds``: what two runs can agree on."""
    if isinstance(value, Mapping):
        return {key: without_seconds(item) for key, item in value.items() if not key.endswith("_seconds")}
    if isinstance(value, list):
        return [without_seconds(item) for item in value]
    return value
