"""Calendar entries (RFC 5545) of bookings: in mails as invitations and cancellations (RFC 5546), and in feeds. Pure.

A booking has one UID for its whole life, and so has a series: its occurrences follow from a rule in the time zone of
the series, so that they survive changes to daylight-saving time. What differs from the rule is an exception of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from icalendar import Calendar, Event, Timezone, vCalAddress, vDuration, vRecur

from lcm.model.kinds.reservation import Recurrence, ReservationSpec, Slot, occurrences

REQUEST: Final = "REQUEST"
CANCEL: Final = "CANCEL"
_PRODUCT: Final = "-//Lablet Cloud Manager//notices//EN"
_ZONE_MARGIN: Final = timedelta(days=366)
_MAX_SUMMARY: Final = 200
REFRESH_INTERVAL: Final = timedelta(minutes=15)
"""How often programs are asked to read a feed."""
_NEVER_CHANGED: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a calendar shows of a booking. `slots` are its times by their number in the series.

    With an `occurrence` it is that part of the series only. `attendee` empty means that nobody is invited.
    """

    uid: str
    summary: str
    slots: Mapping[int, Slot]
    sequence: int = 0
    description: str = ""
    url: str = ""
    organizer: str = ""
    attendee: str = ""
    rule: Recurrence | None = None
    first: Slot | None = None
    occurrence: datetime | None = None
    is_cancelled: bool = False
    changed_at: datetime | None = None
    """When what it shows last changed, if that is known."""


def write_calendar(entries: Iterable[Entry], method: str, now: datetime) -> bytes:
    """Return a calendar with these entries, as mails carry it."""
    calendar = _begin_calendar()
    calendar.add("method", method)
    return _finish_calendar(calendar, entries, now)


def write_feed(entries: Sequence[Entry], title: str) -> bytes:
    """Return a calendar with these entries, as programs read it again and again: the same as long as they are.

    It has no METHOD, as nobody is invited by it.
    """
    calendar = _begin_calendar()
    calendar.add("name", title)
    calendar.add("x-wr-calname", title)
    calendar.add("refresh-interval", REFRESH_INTERVAL, parameters={"VALUE": "DURATION"})
    calendar.add("x-published-ttl", vDuration(REFRESH_INTERVAL))
    if not any(entry.slots for entry in entries):
        # A calendar must have a part.
        calendar.add_component(Timezone.from_tzid("Etc/UTC"))
    stamps = [entry.changed_at for entry in entries if entry.changed_at]
    return _finish_calendar(calendar, entries, max(stamps, default=_NEVER_CHANGED))


def _begin_calendar() -> Calendar:
    calendar = Calendar()
    calendar.add("prodid", _PRODUCT)
    calendar.add("version", "2.0")
    calendar.add("calscale", "GREGORIAN")
    return calendar


def _finish_calendar(calendar: Calendar, entries: Iterable[Entry], now: datetime) -> bytes:
    moments = [now]
    for entry in entries:
        for event in _build_events(entry, entry.changed_at or now):
            calendar.add_component(event)
        moments += [moment for slot in entry.slots.values() for moment in slot]
    first, last = min(moments) - _ZONE_MARGIN, max(moments) + _ZONE_MARGIN
    calendar.add_missing_timezones(first.date(), last.date())
    return bytes(calendar.to_ical())


def _build_events(entry: Entry, now: datetime) -> Iterator[Event]:
    if not entry.slots:
        return
    if entry.rule is None or entry.first is None or entry.occurrence is not None or entry.is_cancelled:
        yield _build_single(entry, now)
        return
    planned = _plan_occurrences(entry.rule, entry.first)
    yield _build_master(entry, planned, now)
    for number, start in planned.items():
        slot, long = entry.slots.get(number), entry.first[1] - entry.first[0]
        if slot is not None and slot != (start.astimezone(UTC), start.astimezone(UTC) + long):
            yield _build_event(entry, slot[0].astimezone(UTC), slot[1].astimezone(UTC), now, ("recurrence-id", start))


def _build_single(entry: Entry, now: datetime) -> Event:
    start, end = entry.slots[min(entry.slots)]
    own: list[tuple[str, Any]] = []
    if entry.occurrence is not None:
        zone = ZoneInfo(entry.rule.time_zone) if entry.rule else UTC
        own.append(("recurrence-id", entry.occurrence.astimezone(zone)))
    return _build_event(entry, start.astimezone(UTC), end.astimezone(UTC), now, *own)


def _build_master(entry: Entry, planned: Mapping[int, datetime], now: datetime) -> Event:
    assert entry.rule is not None, "a series has a rule"
    assert entry.first is not None, "and a beginning"
    start = planned[min(planned)]
    # The end is computed in UTC: a slot that begins before a change of the clocks is as long as the others.
    end = (start.astimezone(UTC) + (entry.first[1] - entry.first[0])).astimezone(start.tzinfo)
    event = _build_event(entry, start, end, now, ("rrule", _write_rule(entry.rule)))
    for number, moment in planned.items():
        if number not in entry.slots:
            event.add("exdate", moment)
    for number in sorted(entry.slots.keys() - planned.keys()):
        event.add("rdate", [entry.slots[number][0].astimezone(start.tzinfo)])
    return event


def _build_event(entry: Entry, start: datetime, end: datetime, now: datetime, *own: tuple[str, Any]) -> Event:
    event = Event()
    event.add("uid", f"{entry.uid}@lcm")
    event.add("dtstamp", now.astimezone(UTC))
    event.add("dtstart", start)
    event.add("dtend", end)
    event.add("sequence", entry.sequence)
    event.add("summary", entry.summary[:_MAX_SUMMARY])
    event.add("status", "CANCELLED" if entry.is_cancelled else "CONFIRMED")
    event.add("transp", "OPAQUE")
    if entry.description:
        event.add("description", entry.description)
    if entry.changed_at is not None:
        event.add("last-modified", entry.changed_at.astimezone(UTC))
    if entry.url:
        event.add("url", entry.url)
    if entry.organizer:
        event.add("organizer", vCalAddress(f"mailto:{entry.organizer}"))
    if entry.attendee:
        attendee = vCalAddress(f"mailto:{entry.attendee}")
        attendee.params["RSVP"] = "FALSE"
        event.add("attendee", attendee)
    for name, value in own:
        event.add(name, value)
    return event


def _plan_occurrences(rule: Recurrence, first: Slot) -> Mapping[int, datetime]:
    """Return when a reader of the rule takes each occurrence to begin: the wall-clock time, in the rule's zone."""
    spec = ReservationSpec(definition="any", timeslot_start=first[0], timeslot_end=first[1], recurrence=rule)
    zone = ZoneInfo(rule.time_zone)
    wall = first[0].astimezone(zone).time().replace(fold=0)
    days = [start.astimezone(zone).date() for start, _ in occurrences(spec)]
    return {number: datetime.combine(day, wall, zone) for number, day in enumerate(days)}


def _write_rule(rule: Recurrence) -> vRecur:
    zone = ZoneInfo(rule.time_zone)
    last = datetime.combine(rule.until, time(23, 59, 59), zone).astimezone(UTC)
    parts: dict[str, Any] = {"freq": "DAILY" if rule.every == "day" else "WEEKLY", "until": last, "wkst": "MO"}
    if rule.interval > 1:
        parts["interval"] = rule.interval
    if rule.weekdays:
        parts["byday"] = [day[:2].upper() for day in rule.weekdays]
    return vRecur(parts)
