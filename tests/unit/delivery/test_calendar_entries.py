"""Calendar entries as strict readers take them (RFC 5545), and series across changes of the clocks."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from dateutil.rrule import rrulestr  # type: ignore[import-untyped]  # it has no types
from icalendar import Calendar

from harness.notices import ADA
from lcm.control.notices.entries import CANCEL, REQUEST, Entry, write_calendar
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.reservation import Recurrence, ReservationSpec, Slot, occurrences

NOW = datetime(2026, 10, 1, 8, tzinfo=UTC)
START = datetime(2026, 10, 13, 7, tzinfo=UTC)
LONG = timedelta(hours=2)


def check_strictly(raw: bytes) -> Any:
    """Check what RFC 5545 and RFC 5546 demand of an invitation; return it as icalendar reads it."""
    assert raw.endswith(b"END:VCALENDAR\r\n")
    lines = raw.split(b"\r\n")
    assert all(len(line) <= 75 and b"\n" not in line and b"\r" not in line for line in lines)
    for line in lines:
        line.decode()  # a line is not folded within a character
    calendar: Any = Calendar.from_ical(raw)
    assert {"PRODID", "VERSION", "METHOD"} <= set(calendar.keys())
    zones = {str(one["TZID"]) for one in calendar.timezones}
    for event in calendar.events:
        assert {"UID", "DTSTAMP", "DTSTART", "DTEND", "SEQUENCE", "SUMMARY", "ORGANIZER", "ATTENDEE"} <= set(
            event.keys()
        )
        assert event["DTSTAMP"].to_ical().endswith(b"Z")
        assert event["DTSTART"].dt < event["DTEND"].dt
        for name in ("DTSTART", "DTEND", "RECURRENCE-ID"):
            if name in event and "TZID" in event[name].params:
                assert event[name].params["TZID"] in zones
    assert len({str(event["UID"]) for event in calendar.events}) == 1
    return calendar


def entry(slots: Mapping[int, Slot], rule: Recurrence | None = None, first: Slot = (START, START + LONG)) -> Entry:
    return Entry(
        uid="u1", summary="Lab", slots=slots, rule=rule, first=first, organizer="lcm@example.org", attendee=ADA
    )


def plan(rule: Recurrence, first: Slot = (START, START + LONG)) -> dict[int, Slot]:
    spec = ReservationSpec(definition="x", timeslot_start=first[0], timeslot_end=first[1], recurrence=rule)
    return dict(enumerate(occurrences(spec)))


def expand(calendar: Any) -> set[datetime]:
    """Return when the occurrences of a calendar begin, as a reader computes them."""
    master = next(one for one in calendar.events if "RRULE" in one)
    start = master["DTSTART"].dt
    until = master["RRULE"]["UNTIL"][0].astimezone(start.tzinfo).replace(tzinfo=None)
    text = master["RRULE"].to_ical().decode()
    naive = ";".join(part for part in text.split(";") if not part.startswith("UNTIL"))
    local = rrulestr(naive, dtstart=start.replace(tzinfo=None)).between(start.replace(tzinfo=None), until, inc=True)
    found = {moment.replace(tzinfo=start.tzinfo).astimezone(UTC) for moment in local}
    dropped = master.get("EXDATE", [])
    for one in dropped if isinstance(dropped, list) else [dropped]:
        found -= {moment.dt.astimezone(UTC) for moment in one.dts}
    for event in calendar.events:
        if "RECURRENCE-ID" in event:
            found -= {event["RECURRENCE-ID"].dt.astimezone(UTC)}
            found |= {event["DTSTART"].dt.astimezone(UTC)}
    return found


@pytest.mark.parametrize(
    "rule",
    [
        Recurrence(every="week", until=date(2027, 6, 30), time_zone="Europe/Berlin"),
        Recurrence(every="week", until=date(2027, 6, 30), time_zone="America/New_York", interval=2),
        Recurrence(
            every="week", until=date(2026, 12, 1), time_zone="Europe/Berlin", weekdays=(Weekday.MON, Weekday.THU)
        ),
        Recurrence(every="day", until=date(2026, 11, 5), time_zone="Australia/Lord_Howe"),
        Recurrence(
            every="day", until=date(2026, 11, 30), time_zone="UTC", interval=3, weekdays=(Weekday.TUE, Weekday.FRI)
        ),
    ],
)
def test_a_rule_means_the_slots_that_are_promised(rule: Recurrence) -> None:
    slots = plan(rule)
    calendar = check_strictly(write_calendar([entry(slots, rule)], REQUEST, NOW))
    assert expand(calendar) == {start for start, _ in slots.values()}


def test_what_is_skipped_or_moved_is_an_exception_of_the_series() -> None:
    rule = Recurrence(every="week", until=date(2026, 11, 10), time_zone="Europe/Berlin")
    slots = plan(rule)
    del slots[1]
    slots[2] = (slots[2][0] + timedelta(hours=1), slots[2][1] + timedelta(hours=1))
    calendar = check_strictly(write_calendar([entry(slots, rule)], REQUEST, NOW))
    assert len(calendar.events) == 2
    assert expand(calendar) == {start for start, _ in slots.values()}


def test_a_first_slot_in_the_hour_that_occurs_twice_is_where_it_was_booked() -> None:
    first = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # 02:30 in Berlin for the second time that night
    rule = Recurrence(every="day", until=date(2026, 10, 27), time_zone="Europe/Berlin")
    slots = plan(rule, (first, first + LONG))
    calendar = check_strictly(write_calendar([entry(slots, rule, (first, first + LONG))], REQUEST, NOW))
    assert first in expand(calendar)


def test_one_occurrence_of_a_series_names_it_and_a_cancellation_needs_no_rule() -> None:
    rule = Recurrence(every="week", until=date(2026, 11, 10), time_zone="Europe/Berlin")
    one = entry({0: (START, START + LONG)}, rule)
    part = Entry(**{name: getattr(one, name) for name in one.__slots__} | {"occurrence": START})
    (event,) = check_strictly(write_calendar([part], REQUEST, NOW)).events
    assert (event["RECURRENCE-ID"].dt, "RRULE" in event) == (START, False)
    gone = Entry(**{name: getattr(one, name) for name in one.__slots__} | {"is_cancelled": True, "sequence": 3})
    calendar = check_strictly(write_calendar([gone], CANCEL, NOW))
    assert (str(calendar.events[0]["STATUS"]), calendar.events[0]["SEQUENCE"]) == ("CANCELLED", 3)


@pytest.mark.parametrize(
    "text", ["Übung " * 60, "a\r\nATTENDEE:mailto:eve@example.org", "x;y,z\\n", "😀" * 90, "\t"], ids=len
)
def test_no_text_breaks_out_of_its_line(text: str) -> None:
    plain = entry({0: (START, START + LONG)})
    hostile = Entry(
        **{name: getattr(plain, name) for name in plain.__slots__} | {"summary": text, "description": text * 3}
    )
    (event,) = check_strictly(write_calendar([hostile], REQUEST, NOW)).events
    assert str(event["ATTENDEE"]) == f"mailto:{ADA}"
