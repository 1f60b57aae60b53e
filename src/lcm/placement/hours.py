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
    for quarter in range(span.start // _QUARTER, -(-span.end // _QUARTER)):
        if not _open(hours, quarter // _A_DAY) >> quarter % _A_DAY & 1:
            return max(span.start, quarter * _QUARTER)
    return None


@lru_cache(maxsize=64)
def open_time(hours: AllowedHours, span: Span) -> int:
    """Add up the microseconds of a span in which machines may run."""
    total = 0
    for day in range(span.start // _QUARTER // _A_DAY, -(-span.end // _QUARTER // _A_DAY)):
        mask = _open(hours, day)
        for quarter in range(day * _A_DAY, (day + 1) * _A_DAY):
            if mask >> quarter % _A_DAY & 1:
                start = quarter * _QUARTER
                total += max(0, min(span.end, start + _QUARTER) - max(span.start, start))
    return total


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
