"""Reads a timetable from a calendar file: each VEVENT is a session of the lab that its summary names.

`X-LCM-DEFINITION`, `X-LCM-COUNT` and `X-LCM-TRACK` are more exact. Of RRULE it knows days and weeks with INTERVAL,
COUNT, UNTIL and BYDAY; an event with a RECURRENCE-ID replaces that one of its series. Called by `sim.plan.reading`.

icalendar reads lines, moments, lengths and rules. Its components are not used: they keep no line numbers, and make
time zones of what a file says for the whole process.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from icalendar import vDDDTypes, vDuration, vRecur
from icalendar.parser import Contentline

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.hours import Weekday
from lcm.sim.plan.slots import Series, TimetableRow, check_length, check_year, find_zone, local_moment, parse_count

_MOST_CHARACTERS: Final = 8_000_000
_MOST_EVENTS: Final = 20_000
_MOST_EXCEPTIONS: Final = 20_000
_MOST_EXCEPTIONS_OF_EVENT: Final = 2_000
"""Far more than a series has slots. Each exception takes time to parse, so they are counted before that."""
_LONGEST_SERIES: Final = timedelta(days=3650)
"""How far a series that has only a count is followed: longer than any that is played."""
_BREAK: Final = re.compile(r"\r\n|\n|\r")
_DAYS: Final = dict(zip(("MO", "TU", "WE", "TH", "FR", "SA", "SU"), Weekday, strict=True))
_RULE_PARTS: Final = frozenset({"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST"})
_MOST_REPEATS: Final = 9999
_LONGEST_RULE: Final = 200
_MINUTE: Final = timedelta(minutes=1)


class _IcsProperty(NamedTuple):
    where: str
    params: Mapping[str, str]
    value: str


_IcsEvent = dict[str, list[tuple[int, str]]]
"""The lines of an event and their numbers, by their names. They are parsed when something asks for them."""


def read_ics(text: str, zone: str = "UTC") -> Sequence[TimetableRow]:
    """Read every event. Raises Invalid with every fault. Times without a zone are in the given one."""
    if len(text) > _MOST_CHARACTERS:
        raise Invalid(Fault("file", f"more than {_MOST_CHARACTERS} characters", "plan a shorter time"))
    rows: list[TimetableRow] = []
    faults: list[Fault] = []
    events = list(_events(text))
    _check_exceptions(events)
    moved = _moved_slots(events, zone)
    for number, event in events:
        if len(rows) >= _MOST_EVENTS:
            raise Invalid(Fault(f"line {number}", f"more than {_MOST_EVENTS} events", "plan a shorter time"))
        if _text_of(event, "STATUS").upper() != "CANCELLED":
            try:
                rows.append(_event_row(event, number, zone, moved))
            except Invalid as error:
                faults += error.faults
    if faults:
        raise Invalid(*faults)
    return rows


def _events(text: str) -> Iterator[tuple[int, _IcsEvent]]:
    lines = list(_unfold_lines(text))
    if not lines or lines[0][1].upper().replace(" ", "") != "BEGIN:VCALENDAR":
        raise Invalid(Fault("line 1", "no calendar", "export it again: it begins with BEGIN:VCALENDAR"))
    event, begun, inside = None, 0, 0
    for number, line in lines:
        head, colon, value = line.upper().partition(":")
        if not colon:
            raise Invalid(Fault(f"line {number}", f"{line[:40]!r} has no colon", "export the calendar again"))
        match head, value.strip():
            case "BEGIN", "VEVENT":
                event, begun = _IcsEvent(), number
            case "END", "VEVENT" if event is not None:
                yield begun, event
                event = None
            case (("BEGIN" | "END"), _) if event is not None:
                inside += 1 if head == "BEGIN" else -1  # an alarm of the event
            case _ if event is not None and not inside:
                event.setdefault(head.partition(";")[0], []).append((number, line))
    if event is not None:
        raise Invalid(Fault(f"line {begun}", "an event without an end", "export it again: END:VEVENT is missing"))


def _check_exceptions(events: Sequence[tuple[int, _IcsEvent]]) -> None:
    """Raise Invalid if one event, or all together, have too many EXDATEs and RECURRENCE-IDs."""
    total = 0
    for number, event in events:
        dates = sum(line.count(",") + 1 for _, line in event.get("EXDATE", ()))
        own = dates + len(event.get("RECURRENCE-ID", ()))
        total += own
        if own > _MOST_EXCEPTIONS_OF_EVENT:
            problem = f"an event with {own} exceptions (EXDATE, RECURRENCE-ID)"
            remedy = f"keep those of slots that the series has, {_MOST_EXCEPTIONS_OF_EVENT} at most"
            raise Invalid(Fault(f"line {number}", problem, remedy))
        if total > _MOST_EXCEPTIONS:
            problem = f"more than {_MOST_EXCEPTIONS} exceptions (EXDATE, RECURRENCE-ID) up to here"
            raise Invalid(Fault(f"line {number}", problem, "plan a shorter time"))


def _unfold_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield whole lines: a line that continues the one before begins with a space or a tab."""
    pieces, first = [""], 1
    for number, line in enumerate([*_BREAK.split(text), "END:"], start=1):
        if line[:1] in {" ", "\t"}:
            pieces.append(line[1:])
            continue
        if whole := "".join(pieces).strip():
            yield first, whole
        pieces, first = [line], number


def _properties(event: _IcsEvent, name: str) -> Iterator[_IcsProperty]:
    for number, line in event.get(name, ()):
        where = f"line {number}: {name}"
        try:
            _, params, value = Contentline(line).parts()
        except ValueError as error:
            raise Invalid(
                Fault(where, f"{shorten_text(line, 40)!r} cannot be read", "export the calendar again")
            ) from error
        yield _IcsProperty(where, {key: str(one) for key, one in params.items()}, value.strip())


def _first(event: _IcsEvent, name: str) -> _IcsProperty | None:
    return next(_properties(event, name), None)


def _text_of(event: _IcsEvent, name: str) -> str:
    found = _first(event, name)
    return found.value if found else ""


def _moved_slots(events: Sequence[tuple[int, _IcsEvent]], zone: str) -> Mapping[str, frozenset[datetime]]:
    """Return, by series, the slots that have events of their own, or are cancelled there."""
    found: dict[str, set[datetime]] = defaultdict(set)
    for _, event in events:
        for slot in _properties(event, "RECURRENCE-ID"):
            if "RANGE" in slot.params:
                raise Invalid(
                    Fault(
                        slot.where,
                        "it moves all later slots, which is not supported",
                        "end the series, and begin another",
                    )
                )
            found[_text_of(event, "UID")].add(_read_moment(slot, zone))
    return {uid: frozenset(moments) for uid, moments in found.items()}


def _event_row(event: _IcsEvent, number: int, zone: str, moved: Mapping[str, frozenset[datetime]]) -> TimetableRow:
    where = f"line {number}"
    if not (begins := _first(event, "DTSTART")):
        raise Invalid(Fault(where, "an event without DTSTART", "add DTSTART"))
    own = begins.params.get("TZID", "UTC" if begins.value.endswith("Z") else zone)
    start = _read_moment(begins, zone)
    definition = _text_of(event, "X-LCM-DEFINITION") or _text_of(event, "SUMMARY")
    if not definition:
        raise Invalid(Fault(where, "an event without a summary", "write the name of a lab as its summary"))
    return TimetableRow(
        where=where,
        definition=definition,
        minutes=_event_minutes(event, start, zone, where),
        start=start,
        count=parse_count(_text_of(event, "X-LCM-COUNT") or "1", f"{where}: X-LCM-COUNT"),
        track=_text_of(event, "X-LCM-TRACK"),
        series=_event_series(event, start, own, _excluded_slots(event, zone, moved)),
    )


def _excluded_slots(event: _IcsEvent, zone: str, moved: Mapping[str, frozenset[datetime]]) -> frozenset[datetime]:
    """Return the slots of a series that do not take place, or not at that time."""
    out = (line._replace(value=one) for line in _properties(event, "EXDATE") for one in line.value.split(","))
    return moved.get(_text_of(event, "UID"), frozenset()) | {_read_moment(one, zone) for one in out}


def _event_minutes(event: _IcsEvent, start: datetime, zone: str, where: str) -> int:
    if end := _first(event, "DTEND"):
        return check_length((_read_moment(end, zone) - start) // _MINUTE, end.where)
    if not (length := _first(event, "DURATION")):
        raise Invalid(Fault(where, "an event without an end", "add DTEND or DURATION"))
    try:
        found = vDuration.from_ical(length.value.upper())
    except ValueError as error:
        problem = f"{length.value[:40]!r} is no length of time"
        raise Invalid(Fault(length.where, problem, "write PT2H or PT1H30M")) from error
    return check_length(found // _MINUTE, length.where)


def _event_series(event: _IcsEvent, start: datetime, own: str, without: frozenset[datetime]) -> Series | None:
    if other := _first(event, "RDATE") or _first(event, "EXRULE"):
        raise Invalid(Fault(other.where, "RDATE and EXRULE are not supported", "write an event for each slot"))
    line = _first(event, "RRULE")
    if line is None or "RECURRENCE-ID" in event:
        return None
    rule = _read_rule(line)
    if not {"COUNT", "UNTIL"} & set(rule):
        raise Invalid(Fault(line.where, "it never ends", "add COUNT or UNTIL"))
    zone = find_zone(own, line.where)
    until, last = _read_until(rule.get("UNTIL", [(start + _LONGEST_SERIES).date()]), zone, line)
    return Series(
        every="week" if rule["FREQ"] == ["WEEKLY"] else "day",
        until=until,
        last=last,
        zone=own,
        interval=_small_number(rule.get("INTERVAL", [1]), line),
        weekdays=tuple(_DAYS[one] for one in dict.fromkeys(rule.get("BYDAY", ()))),
        most=_small_number(rule["COUNT"], line) if "COUNT" in rule else None,
        without=without,
    )


def _read_rule(line: _IcsProperty) -> Mapping[str, Any]:
    """Read a rule that the model's own series can express."""
    parts = line.value.upper().removesuffix(";").split(";")
    try:
        rule: vRecur = vRecur.from_ical(";".join(parts)) if len(line.value) <= _LONGEST_RULE else vRecur()
    except ValueError:
        rule = vRecur()
    known = rule.get("FREQ") in (["DAILY"], ["WEEKLY"]) and _RULE_PARTS.issuperset(rule) and len(rule) == len(parts)
    if not known or not _DAYS.keys() >= set(rule.get("BYDAY", ())) or _depends_on_week_start(rule):
        problem = f"{line.value[:_LONGEST_RULE]!r} is a rule that the planner does not support"
        remedy = "use FREQ=DAILY or WEEKLY with INTERVAL, COUNT, UNTIL and BYDAY; write other ones out"
        raise Invalid(Fault(line.where, problem, remedy))
    return rule


def _depends_on_week_start(rule: Mapping[str, Any]) -> bool:
    """Return whether it matters that weeks do not begin on Monday: it decides to which week a Sunday belongs."""
    return rule.get("WKST", ["MO"]) != ["MO"] and "SU" in rule.get("BYDAY", ()) and rule.get("INTERVAL", [1]) != [1]


def _read_until(said: Sequence[object], zone: ZoneInfo, line: _IcsProperty) -> tuple[date, datetime | None]:
    """Return the last day, and the last moment of it if one is given."""
    found = said[0]
    if not isinstance(found, date):
        remedy = "write UNTIL=20270305 or UNTIL=20270305T170000Z"
        raise Invalid(Fault(line.where, f"{line.value!r} has no end", remedy))
    check_year(found, line.where)
    if not isinstance(found, datetime):
        return found, None
    last = found if found.tzinfo else found.replace(tzinfo=zone)
    return last.astimezone(zone).date(), last


def _read_moment(line: _IcsProperty, zone: str) -> datetime:
    try:
        found = vDDDTypes.from_ical(line.value)
    except ValueError:
        found = None
    if not isinstance(found, datetime):
        problem = "a whole day" if isinstance(found, date) else f"{line.value[:40]!r} is no moment"
        raise Invalid(Fault(line.where, problem, "write 20270301T090000 with a TZID, or 20270301T090000Z"))
    check_year(found, line.where)
    return found.astimezone(UTC) if found.tzinfo else local_moment(found, line.params.get("TZID", zone), line.where)


def _small_number(said: Sequence[int], line: _IcsProperty) -> int:
    if len(said) != 1 or not 1 <= said[0] <= _MOST_REPEATS:
        raise Invalid(Fault(line.where, f"{line.value!r}", f"use whole numbers from 1 to {_MOST_REPEATS}"))
    return int(said[0])
