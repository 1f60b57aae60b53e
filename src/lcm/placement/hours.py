"""The hours in which a pool may run machines, by the wall clock of its time zone: no daylight-saving change moves them.

Zones differ from UTC by whole quarters of an hour and change by them, so that a quarter is open or closed as a whole.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from lcm.model.pool import AllowedHours
from lcm.placement.seats import Span

_QUARTER: Final = 15 * 60 * 1_000_000
_A_DAY: Final = 96
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def closed_at(hours: AllowedHours, span: Span) -> int | None:
    """Find the first moment of a span at which no machine may run."""
    if _always(hours):
        return None
    first, last = span.start // _QUARTER, -(-span.end // _QUARTER)
    for day in range(first // _A_DAY, -(-last // _A_DAY)):
        closed = ~_open(hours, day) & _cut(day, first, last)
        if closed:
            return max(span.start, (day * _A_DAY + _lowest(closed)) * _QUARTER)
    return None


@lru_cache(maxsize=64)
def open_time(hours: AllowedHours, span: Span) -> int:
    """Add up the microseconds of a span in which machines may run."""
    if _always(hours):
        return max(0, span.end - span.start)
    first, last = span.start // _QUARTER, -(-span.end // _QUARTER)
    days = range(first // _A_DAY, -(-last // _A_DAY))
    whole = sum((_open(hours, day) & _cut(day, first, last)).bit_count() for day in days) * _QUARTER
    # The first and the last quarter may be in the span only in part.
    begun = (span.start - first * _QUARTER) * _is_open(hours, first)
    return whole - begun - (last * _QUARTER - span.end) * _is_open(hours, last - 1)


def _cut(day: int, first: int, last: int) -> int:
    """Give the quarters of a day, as a mask, that are among those from a first one to before a last one."""
    begin = min(max(first - day * _A_DAY, 0), _A_DAY)
    end = min(max(last - day * _A_DAY, begin), _A_DAY)
    return (1 << end) - (1 << begin)


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _is_open(hours: AllowedHours, quarter: int) -> int:
    return _open(hours, quarter // _A_DAY) >> quarter % _A_DAY & 1


@lru_cache(maxsize=64)
def _always(hours: AllowedHours) -> bool:
    return all(_allowed(hours, hour) for hour in range(24))


@lru_cache(maxsize=4096)
def _open(hours: AllowedHours, day: int) -> int:
    """Give the open quarters of a day of UTC, counted from 1970, as a mask."""
    zone = ZoneInfo(hours.time_zone)
    begin = _EPOCH + timedelta(days=day)
    local = ((begin + timedelta(minutes=15 * number)).astimezone(zone).hour for number in range(_A_DAY))
    return sum(1 << number for number, hour in enumerate(local) if _allowed(hours, hour))


def _allowed(hours: AllowedHours, hour: int) -> bool:
    start, end = hours.start_hour, hours.end_hour
    if start < end:
        return start <= hour < end
    return hour >= start or hour < end
