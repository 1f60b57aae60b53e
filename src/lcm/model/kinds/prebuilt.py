"""Prebuilt labs: how many of a lab are kept started for those who want one at once, and how that turned out."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from lcm.model.base.resource import Count, Part, Text
from lcm.model.kinds.hours import AllowedHours
from lcm.model.money.billing import Usd

MOST_PREBUILT: Final = 50
LEARNED_DAYS: Final = 14
"""Of so many days it is known how many labs were wanted at once in each hour."""
_HOUR_SECONDS: Final = 3600
_HOURS_KEPT: Final = 24 * LEARNED_DAYS


class PrebuiltPolicy(Part):
    """How many labs are kept started within `hours`: `count`.

    With `learned`, `count` is the most: as many are kept as were lately wanted at this time of the day. Each is renewed
    when it is as old as `max_age_minutes`.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=MOST_PREBUILT)]
    hours: AllowedHours | None = None
    learned: bool = False
    max_age_minutes: Annotated[int, msgspec.Meta(ge=10, le=10_080, description="10 to 10080 minutes")] = 480


class AskedHour(Part):
    """How many labs were wanted at once within an hour, counted from 1970."""

    hour: Count
    count: Count


class PrebuiltRecord(Part):
    """What became of those who wanted a lab at once: who took a prebuilt one, and who found none."""

    taken: Count = 0
    missed: Count = 0
    asked: Annotated[tuple[AskedHour, ...], msgspec.Meta(max_length=_HOURS_KEPT)] = ()


class PrebuiltUse(Part):
    """The prebuilt labs of a definition: how many are wanted and why, how many are ready or starting, and their use.

    `taken` and `missed` count those who wanted a lab at once since labs are prebuilt. `cost_usd` is what those cost,
    until they ended or were taken, this month and the month before; it is no part of what the takers pay.
    """

    wanted: Count
    reason: Text
    ready: Count = 0
    starting: Count = 0
    taken: Count = 0
    missed: Count = 0
    cost_usd: Usd | None = None
    asked: Annotated[tuple[AskedHour, ...], msgspec.Meta(max_length=_HOURS_KEPT)] = ()


def count_asked(asked: Sequence[AskedHour], now: datetime) -> tuple[AskedHour, ...]:
    """Return how many labs were wanted by hour, with one more now and without what is too long ago."""
    this = hour_of(now)
    kept = {one.hour: one.count for one in asked if this - _HOURS_KEPT < one.hour <= this}
    kept[this] = kept.get(this, 0) + 1
    return tuple(AskedHour(hour=hour, count=count) for hour, count in sorted(kept.items()))


def hour_of(moment: datetime) -> int:
    """Return the hour of a moment, counted from 1970."""
    return int(moment.timestamp()) // _HOUR_SECONDS


def hours_before(moment: datetime, days: int) -> int:
    """Return the hour that was so many days before a moment."""
    return hour_of(moment - timedelta(days=days))
