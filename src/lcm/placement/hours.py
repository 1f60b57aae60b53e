"""When a pool is open: its weekdays and hours, and a pause. Pure.

Promises, the forecast of costs and the pool controller ask the same `OpenTimes`. Hours follow the wall clock of the
pool's time zone, so no daylight-saving change moves them. Zones differ from UTC, and change, by whole quarters of an
hour, so that a quarter is open or closed as a whole. Hours that span midnight belong to the day on which they begin.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from lcm.model.kinds.hours import AllowedHours, Weekday
from lcm.model.kinds.pool import LabWorkerPool
from lcm.placement.seats import Span
from lcm.placement.timeline import BEGINNING, END, micros, moment_of

_QUARTER_MICROS: Final = 15 * 60 * 1_000_000
_QUARTERS_PER_DAY: Final = 96
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS_SEARCHED: Final = 9
"""Whatever the hours are, within a week and a day they have begun and ended."""
_WEEK: Final = tuple(Weekday)


class OpenTimes(NamedTuple):
    """When machines of a pool may run for what is not promised yet: in its hours, and not before a pause has ended."""

    hours: AllowedHours | None = None
    paused_until: int = BEGINNING

    def first_closed_moment(self, span: Span) -> int | None:
        """Return the first moment of a span at which the pool is closed; None if there is none."""
        if span.start < self.paused_until:
            return span.start
        return None if self.hours is None else first_closed_moment(self.hours, span)

    def open_time(self, span: Span) -> int:
        """Return for how many microseconds of a span the pool is open."""
        rest = Span(max(span.start, self.paused_until), span.end)
        if rest.start >= rest.end:
            return 0
        return rest.end - rest.start if self.hours is None else open_time(self.hours, rest)

    def closed_reason(self, now: datetime) -> str:
        """Return why the pool is closed at a moment, "paused" or "hours"; "" if it is open."""
        moment = micros(now)
        if moment < self.paused_until:
            return "paused"
        return "hours" if self.first_closed_moment(Span(moment, moment + 1)) is not None else ""

    def next_change(self, now: datetime) -> datetime | None:
        """Return when the pool opens or closes next; None if it stays as it is."""
        moment = micros(now)
        if moment < self.paused_until < END:
            moment = self.paused_until
            if not self.closed_reason(moment_of(moment)):
                return moment_of(moment)
        if self.paused_until == END or self.hours is None or _is_always_open(self.hours):
            return None
        return _next_quarter_change(self.hours, moment)

    def open_spans(self, span: Span) -> Iterator[Span]:
        """Yield when the pool is open within a span, in order."""
        start = span.start
        while start < span.end:
            change = self.next_change(moment_of(start))
            end = span.end if change is None else min(micros(change), span.end)
            if not self.closed_reason(moment_of(start)):
                yield Span(start, end)
            start = end


ALWAYS_OPEN: Final = OpenTimes()


def open_times_of(pool: LabWorkerPool) -> OpenTimes:
    """Return when a pool is open, as it was said last."""
    pause = pool.status.pause
    until = BEGINNING if pause is None else END if pause.until is None else micros(pause.until)
    return OpenTimes(pool.spec.allowed_hours, until)


def describe_hours(hours: AllowedHours | None) -> str:
    """Return a pool's hours in words."""
    if hours is None:
        return "all day"
    days = f" on {', '.join(hours.weekdays)}" if hours.weekdays else ""
    return f"{hours.start_hour}:00 to {hours.end_hour}:00 {hours.time_zone}{days}"


def first_closed_moment(hours: AllowedHours, span: Span) -> int | None:
    """Return the first moment of a span outside of the hours; None if there is none."""
    if _is_always_open(hours):
        return None
    first, last = span.start // _QUARTER_MICROS, -(-span.end // _QUARTER_MICROS)
    for day in range(first // _QUARTERS_PER_DAY, -(-last // _QUARTERS_PER_DAY)):
        closed = ~_open_quarters(hours, day) & _quarters_between(day, first, last)
        if closed:
            lowest = (closed & -closed).bit_length() - 1
            return max(span.start, (day * _QUARTERS_PER_DAY + lowest) * _QUARTER_MICROS)
    return None


@lru_cache(maxsize=64)
def open_time(hours: AllowedHours, span: Span) -> int:
    """Return the microseconds of a span within the hours."""
    if _is_always_open(hours):
        return max(0, span.end - span.start)
    first, last = span.start // _QUARTER_MICROS, -(-span.end // _QUARTER_MICROS)
    days = range(first // _QUARTERS_PER_DAY, -(-last // _QUARTERS_PER_DAY))
    whole = (
        sum((_open_quarters(hours, day) & _quarters_between(day, first, last)).bit_count() for day in days)
        * _QUARTER_MICROS
    )
    # The span may cover the first and the last quarter only in part.
    begun = (span.start - first * _QUARTER_MICROS) * _is_quarter_open(hours, first)
    return whole - begun - (last * _QUARTER_MICROS - span.end) * _is_quarter_open(hours, last - 1)


def _next_quarter_change(hours: AllowedHours, moment: int) -> datetime | None:
    first = moment // _QUARTER_MICROS
    before = _is_quarter_open(hours, first)
    quarters = range(first + 1, first + _DAYS_SEARCHED * _QUARTERS_PER_DAY)
    found = next((one for one in quarters if _is_quarter_open(hours, one) != before), None)
    return moment_of(found * _QUARTER_MICROS) if found is not None else None


def _quarters_between(day: int, first: int, last: int) -> int:
    """Return, as a mask, the quarters of a day between a first one and a last one, which is excluded."""
    begin = min(max(first - day * _QUARTERS_PER_DAY, 0), _QUARTERS_PER_DAY)
    end = min(max(last - day * _QUARTERS_PER_DAY, begin), _QUARTERS_PER_DAY)
    return (1 << end) - (1 << begin)


def _is_quarter_open(hours: AllowedHours, quarter: int) -> int:
    return _open_quarters(hours, quarter // _QUARTERS_PER_DAY) >> quarter % _QUARTERS_PER_DAY & 1


@lru_cache(maxsize=64)
def _is_always_open(hours: AllowedHours) -> bool:
    return all(_is_allowed(hours, day, hour) for day in range(len(_WEEK)) for hour in range(24))


@lru_cache(maxsize=4096)
def _open_quarters(hours: AllowedHours, day: int) -> int:
    """Return the open quarters of a UTC day, counted from 1970, as a mask."""
    local = _local_quarters(hours, day)
    return sum(1 << number for number, one in enumerate(local) if _is_allowed(hours, one.weekday(), one.hour))


def _local_quarters(hours: AllowedHours, day: int) -> Iterator[datetime]:
    zone, begin = ZoneInfo(hours.time_zone), _EPOCH + timedelta(days=day)
    return ((begin + timedelta(minutes=15 * number)).astimezone(zone) for number in range(_QUARTERS_PER_DAY))


def _is_allowed(hours: AllowedHours, weekday: int, hour: int) -> bool:
    start, end = hours.start_hour, hours.end_hour
    if start < end:
        return start <= hour < end and _has_weekday(hours, weekday)
    return (hour >= start and _has_weekday(hours, weekday)) or (hour < end and _has_weekday(hours, weekday - 1))


def _has_weekday(hours: AllowedHours, weekday: int) -> bool:
    return not hours.weekdays or _WEEK[weekday] in hours.weekdays
