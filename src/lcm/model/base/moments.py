"""Moments that callers write: those so far away that nothing can be computed with them are refused.

`9999-12-31T23:59:59-23:59` is a date of ISO 8601, but in UTC it is none. Used by `model.kinds.validate` for documents,
and by `api.http.request` for queries and bodies.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from lcm.model.base.errors import Fault, Invalid

T = TypeVar("T")

_YEARS: Final = range(1970, 9000)
_REMEDY: Final = f"use a year from {_YEARS[0]} to {_YEARS[-1]}"


def check_moments(value: T) -> T:
    """Return a value that a caller sent. Raise Invalid for every moment in it that is too far away."""
    if faults := list(find_odd_moments(value)):
        raise Invalid(*faults)
    return value


def find_odd_moments(value: object, *path: str) -> Iterator[Fault]:
    """Yield a fault for each moment in a struct that is too far away; what has no type of ours has no moments."""
    if isinstance(value, datetime):
        if value.year not in _YEARS:
            yield Fault(".".join(path), f"{value.isoformat()} is too far away", _REMEDY)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from find_odd_moments(getattr(value, name), *path, name)
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            if isinstance(item, msgspec.Struct | datetime):
                yield from find_odd_moments(item, *path, str(place))
