"""Turns rows of a timetable into sessions: repeats them over days, counts them out, parses lengths and moments."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, Recurrence, ReservationSpec, occurrences
from lcm.model.kinds.rules import ALLOWED_YEARS
from lcm.sim.plan.timetable import ANYWHERE, MOST_SESSIONS, Extension, SessionRequest, SessionWish

MOST_AT_ONCE: Final = 5_000
LONGEST_MINUTES: Final = 31 * 24 * 60
WORKDAYS: Final = (Weekday.MON, Weekday.TUE, Weekday.WED, Weekday.THU, Weekday.FRI)
_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_LENGTH: Final = re.compile(r"(?:([0-9]{1,3})d)?(?:([0-9]{1,4})h)?(?:([0-9]{1,6})m)?")
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """How a slot recurs, at the same time of day in a zone."""

    every: Literal["day", "week"]
    until: date
    zone: str
    interval: int = 1
    weekdays: tuple[Weekday, ...] = ()
    last: datetime | None = None
    """No slot begins later, where the end is given to the minute."""
    most: int | None = None
    """The series ends after so many slots."""
    without: frozenset[datetime] = frozenset()
    """Slots that do not take place, by their starts."""


class TimetableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a timetable."""

    where: str
    definition: str
    minutes: int
    start: datetime | None = None
    count: int = 1
    track: str = ""
    owner: str = ""
    series: Series | None = None
    booked_at: datetime | None = None
    cancelled_at: datetime | None = None
    extended: tuple[Extension, ...] = ()
    wish: SessionWish = ANYWHERE


def sessions_of(row: TimetableRow, definition: LabletDefinition, before: int) -> Iterator[SessionRequest]:
    """Yield the sessions of a row; `before` is how many sessions there are already."""
    starts = [None] if row.start is None else _slot_starts(row, row.start)
    if before + len(starts) * row.count > MOST_SESSIONS:
        raise Invalid(Fault(row.where, f"more than {MOST_SESSIONS} sessions up to here", "plan a shorter time"))
    family = definition.metadata.name.partition(":")[0]
    for place, start in enumerate(start for start in starts for _ in range(row.count)):
        yield SessionRequest(
            name=f"{family[:50]}-{before + place + 1}",
            definition=definition.metadata.name,
            track=row.track or definition.spec.lab_track,
            minutes=row.minutes,
            start=start,
            owner=row.owner,
            booked_at=row.booked_at,
            cancelled_at=row.cancelled_at,
            extended=row.extended,
            wish=row.wish,
        )


def parse_minutes(text: str, where: str) -> int:
    """Read a length such as 90m, 2h, 1h30m or 5d."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if not found or not any(found.groups()):
        raise Invalid(Fault(where, f"{shorten_text(text, 40)!r} is no length of time", "write 90m, 2h, 1h30m or 5d"))
    days, hours, minutes = (int(part or 0) for part in found.groups())
    return check_length(((days * 24) + hours) * 60 + minutes, where)


def check_length(minutes: int, where: str) -> int:
    """Return a length in minutes. Raises Invalid for one that no session may have."""
    if not 1 <= minutes <= LONGEST_MINUTES:
        raise Invalid(Fault(where, f"{minutes} minutes", "use from one minute to 31 days"))
    return minutes


def parse_count(text: str, where: str) -> int:
    """Read how many sessions there are at once."""
    found = parse_whole_number(text)
    if found is None or not 1 <= found <= MOST_AT_ONCE:
        raise Invalid(
            Fault(where, f"{shorten_text(text, 20)!r} is no count", f"use a whole number from 1 to {MOST_AT_ONCE}")
        )
    return found


def parse_whole_number(text: str) -> int | None:
    """Read a whole number; None for anything else, or for one that is too long."""
    return int(text) if _WHOLE.fullmatch(text.strip()) else None


def parse_moment(text: str, zone: str, where: str) -> datetime:
    """Read a moment; without an offset it is local time of the zone."""
    remedy = "write 2027-03-01T09:00, or 2027-03-01T09:00Z for UTC"
    if not _MOMENT.fullmatch(text.strip()):
        raise Invalid(Fault(where, f"{text!r} is no moment", remedy))
    try:
        said = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise Invalid(Fault(where, f"{text!r} is no moment", remedy)) from error
    check_year(said, where)
    return said.astimezone(UTC) if said.tzinfo else local_moment(said, zone, where)


def check_year(moment: date, where: str) -> None:
    """Raise Invalid for a moment in a year in which nothing can be booked."""
    if not ALLOWED_YEARS[0] <= moment.year <= ALLOWED_YEARS[1]:
        remedy = f"use a moment between the years {ALLOWED_YEARS[0]} and {ALLOWED_YEARS[1]}"
        raise Invalid(Fault(where, f"{moment:%Y-%m-%d} is too far away", remedy))


def local_moment(wall: datetime, zone: str, where: str) -> datetime:
    """Return the moment of a local time in a zone. Raises Invalid for a time that clocks skip."""
    moment = wall.replace(tzinfo=find_zone(zone, where)).astimezone(UTC)
    if moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) != wall:
        problem = f"there is no {wall:%Y-%m-%d %H:%M} in {zone}: clocks are put forward over it"
        raise Invalid(Fault(where, problem, "write another time"))
    return moment


def find_zone(name: str, where: str) -> ZoneInfo:
    """Return a time zone. Raises Invalid when there is none of this name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise Invalid(Fault(where, f"{name!r} is no time zone", "use a name such as Europe/Berlin")) from error


def parse_day(text: str, where: str) -> date:
    """Read a day."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError as error:
        raise Invalid(Fault(where, f"{text!r} is no day", "write 2027-03-05")) from error


def _slot_starts(row: TimetableRow, start: datetime) -> list[datetime]:
    series = row.series
    if series is None:
        return [start]
    recurrence = Recurrence(
        every=series.every,
        until=series.until,
        time_zone=series.zone,
        interval=series.interval,
        weekdays=series.weekdays,
    )
    spec = ReservationSpec(
        definition=row.definition,
        timeslot_start=start,
        timeslot_end=start + timedelta(minutes=row.minutes),
        recurrence=recurrence,
    )
    begins = [begin for begin, _ in occurrences(spec) if series.last is None or begin <= series.last]
    found = begins[: series.most]
    if len(found) > OCCURRENCES_LIMIT:
        raise Invalid(Fault(row.where, f"more than {OCCURRENCES_LIMIT} times", "choose an earlier end"))
    if not found:
        raise Invalid(Fault(row.where, "the series has no slot", "choose a later end, or other days"))
    return [one for one in found if one not in series.without]
