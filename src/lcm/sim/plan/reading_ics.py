"""Reads a timetable from a calendar file: each VEVENT is a session of the lab that its summary names.

`X-LCM-DEFINITION`, `X-LCM-COUNT` and `X-LCM-TRACK` are more exact. Of RRULE it knows days and weeks with INTERVAL,
COUNT, UNTIL and BYDAY; an event with a RECURRENCE-ID replaces that one of its series. Called by `sim.plan.reading`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.reservation import Weekday
from lcm.sim.plan.slots import Series, TimetableRow, check_length, check_year, find_zone, local_moment, parse_count

_MOST_EVENTS: Final = 20_000
_LONGEST_SERIES: Final = timedelta(days=3650)
"""How far a series that has only a count is followed: longer than any that is played."""
_BREAK: Final = re.compile(r"\r\n|\n|\r")
_PARTS: Final = re.compile(r'((?:"[^"]*"|[^":])*):(.*)', re.DOTALL)
_PARAM: Final = re.compile(r';((?:"[^"]*"|[^";])*)')
_STAMP: Final = re.compile(r"([0-9]{8})T([0-9]{6})(Z?)")
_DAY: Final = re.compile(r"[0-9]{8}")
_LENGTH: Final = re.compile(
    r"P(?:([0-9]{1,3})W)?(?:([0-9]{1,3})D)?(?:T(?:([0-9]{1,4})H)?(?:([0-9]{1,6})M)?(?:[0-9]+S)?)?"
)
_DAYS: Final = dict(zip(("MO", "TU", "WE", "TH", "FR", "SA", "SU"), Weekday, strict=True))
_RULE_PARTS: Final = frozenset({"FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST"})
_SMALL: Final = re.compile(r"[1-9][0-9]{0,3}")
_MINUTE: Final = timedelta(minutes=1)


class _IcsLine(NamedTuple):
    number: int
    name: str
    params: Mapping[str, str]
    value: str

    @property
    def where(self) -> str:
        return f"line {self.number}: {self.name}"


_IcsEvent = dict[str, list[_IcsLine]]


def read_ics(text: str, zone: str = "UTC") -> Sequence[TimetableRow]:
    """Read every event. Raises Invalid with every fault. Times without a zone are in the given one."""
    rows: list[TimetableRow] = []
    faults: list[Fault] = []
    events = list(_events(text))
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
    if not lines or (lines[0].name, lines[0].value.upper()) != ("BEGIN", "VCALENDAR"):
        raise Invalid(Fault("line 1", "no calendar", "export it anew: it begins with BEGIN:VCALENDAR"))
    event, begun, inside = None, 0, 0
    for line in lines:
        match line.name, line.value.upper():
            case "BEGIN", "VEVENT":
                event, begun = _IcsEvent(), line.number
            case "END", "VEVENT" if event is not None:
                yield begun, event
                event = None
            case "BEGIN", _ if event is not None:
                inside += 1  # an alarm of the event
            case "END", _ if event is not None:
                inside -= 1
            case _ if event is not None and not inside:
                event.setdefault(line.name, []).append(line)
    if event is not None:
        raise Invalid(Fault(f"line {begun}", "an event without an end", "export it anew: END:VEVENT is missing"))


def _unfold_lines(text: str) -> Iterator[_IcsLine]:
    """Yield whole lines: a line that continues the one before begins with a space or a tab."""
    whole, first = "", 1
    for number, line in enumerate([*_BREAK.split(text), "END:"], start=1):
        if line[:1] in {" ", "\t"}:
            whole += line[1:]
            continue
        if whole.strip():
            yield _parse_line(whole, first)
        whole, first = line, number


def _parse_line(text: str, number: int) -> _IcsLine:
    found = _PARTS.fullmatch(text)
    if not found:
        raise Invalid(Fault(f"line {number}", f"{shorten_text(text, 40)!r} has no colon", "export the calendar anew"))
    head, value = found.groups()
    return _IcsLine(number, head.partition(";")[0].upper(), dict(map(_split_pair, _PARAM.findall(head))), value.strip())


def _split_pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.upper(), value.strip('"')


def _moved_slots(events: Sequence[tuple[int, _IcsEvent]], zone: str) -> Mapping[str, frozenset[datetime]]:
    """Return, by series, the slots that have events of their own, or are cancelled there."""
    found: dict[str, set[datetime]] = defaultdict(set)
    for _, event in events:
        for line in event.get("RECURRENCE-ID", ()):
            if "RANGE" in line.params:
                raise Invalid(Fault(line.where, "it moves all that follow", "end the series, and begin another"))
            found[_text_of(event, "UID")].add(_read_moment(line, zone))
    return {uid: frozenset(moments) for uid, moments in found.items()}


def _event_row(event: _IcsEvent, number: int, zone: str, moved: Mapping[str, frozenset[datetime]]) -> TimetableRow:
    where = f"line {number}"
    if "DTSTART" not in event:
        raise Invalid(Fault(where, "an event without DTSTART", "give it a beginning"))
    begins = event["DTSTART"][0]
    own = begins.params.get("TZID", "UTC" if begins.value.endswith("Z") else zone)
    start = _read_moment(begins, zone)
    definition = _text_of(event, "X-LCM-DEFINITION") or _text_of(event, "SUMMARY")
    if not definition:
        raise Invalid(Fault(where, "an event without a summary", "let it be the name of a lab"))
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
    out = (line._replace(value=value) for line in event.get("EXDATE", ()) for value in line.value.split(","))
    return moved.get(_text_of(event, "UID"), frozenset()) | {_read_moment(one, zone) for one in out}


def _event_minutes(event: _IcsEvent, start: datetime, zone: str, where: str) -> int:
    if "DTEND" in event:
        end = event["DTEND"][0]
        return check_length((_read_moment(end, zone) - start) // _MINUTE, end.where)
    if "DURATION" in event:
        line = event["DURATION"][0]
        found = _LENGTH.fullmatch(line.value.upper())
        if not found or not any(found.groups()):
            raise Invalid(Fault(line.where, f"{line.value!r} is no length of time", "write PT2H or PT1H30M"))
        weeks, days, hours, minutes = (int(part or 0) for part in found.groups())
        return check_length((((weeks * 7 + days) * 24) + hours) * 60 + minutes, line.where)
    raise Invalid(Fault(where, "an event without an end", "add DTEND or DURATION"))


def _event_series(event: _IcsEvent, start: datetime, own: str, without: frozenset[datetime]) -> Series | None:
    if other := next((event[name][0] for name in ("RDATE", "EXRULE") if name in event), None):
        raise Invalid(Fault(other.where, "slots that the planner does not know", "give each an event of its own"))
    if "RRULE" not in event or "RECURRENCE-ID" in event:
        return None
    line = event["RRULE"][0]
    parts = dict(_split_pair(one) for one in line.value.upper().split(";"))
    if parts.get("FREQ") not in {"DAILY", "WEEKLY"} or set(parts) - _RULE_PARTS or _depends_on_week_start(parts):
        remedy = "use FREQ=DAILY or WEEKLY with INTERVAL, COUNT, UNTIL and BYDAY; write other ones out"
        raise Invalid(Fault(line.where, f"{line.value!r} is a rule that the planner does not know", remedy))
    if not {"COUNT", "UNTIL"} & set(parts):
        raise Invalid(Fault(line.where, "it goes on for ever", "add COUNT or UNTIL"))
    until, last = (
        _read_until(parts["UNTIL"], own, line) if "UNTIL" in parts else ((start + _LONGEST_SERIES).date(), None)
    )
    return Series(
        every="week" if parts["FREQ"] == "WEEKLY" else "day",
        until=until,
        last=last,
        zone=own,
        interval=_small_number(parts.get("INTERVAL", "1"), line),
        weekdays=_weekdays(parts.get("BYDAY", ""), line),
        most=_small_number(parts["COUNT"], line) if "COUNT" in parts else None,
        without=without,
    )


def _depends_on_week_start(parts: Mapping[str, str]) -> bool:
    """Return whether it matters that weeks do not begin on Monday: it decides to which week a Sunday belongs."""
    return parts.get("WKST", "MO") != "MO" and "SU" in parts.get("BYDAY", "") and parts.get("INTERVAL", "1") != "1"


def _weekdays(text: str, line: _IcsLine) -> tuple[Weekday, ...]:
    names = [one for one in text.split(",") if one]
    if any(one not in _DAYS for one in names):
        raise Invalid(Fault(line.where, f"{text!r} are no days of a week", "write BYDAY=MO,WE"))
    return tuple(_DAYS[one] for one in dict.fromkeys(names))


def _read_until(text: str, zone: str, line: _IcsLine) -> tuple[date, datetime | None]:
    """Return the last day, and the last moment of it if one is given."""
    if found := _STAMP.fullmatch(text):
        wall = _parse_time("%Y%m%d%H%M%S", found[1] + found[2], line)
        last = wall.replace(tzinfo=UTC if found[3] else ZoneInfo(zone))
        return last.astimezone(ZoneInfo(zone)).date(), last
    if _DAY.fullmatch(text):
        return _parse_time("%Y%m%d", text, line).date(), None
    raise Invalid(Fault(line.where, f"{text!r} is no end", "write UNTIL=20270305 or UNTIL=20270305T170000Z"))


def _read_moment(line: _IcsLine, zone: str) -> datetime:
    found = _STAMP.fullmatch(line.value)
    if not found:
        problem = "a whole day" if _DAY.fullmatch(line.value) else f"{line.value!r} is no moment"
        raise Invalid(Fault(line.where, problem, "write 20270301T090000 with a TZID, or 20270301T090000Z"))
    wall = _parse_time("%Y%m%d%H%M%S", found[1] + found[2], line)
    if found[3]:
        return wall.replace(tzinfo=UTC)
    own = line.params.get("TZID", zone)
    find_zone(own, line.where)
    return local_moment(wall, own, line.where)


def _parse_time(form: str, text: str, line: _IcsLine) -> datetime:
    try:
        found = datetime.strptime(text, form)  # noqa: DTZ007  a stamp names none; who asked puts Z or TZID to it
    except ValueError as error:
        raise Invalid(Fault(line.where, f"{text!r} is no moment", "write 20270301T090000")) from error
    check_year(found, line.where)
    return found


def _small_number(text: str, line: _IcsLine) -> int:
    if not _SMALL.fullmatch(text):
        raise Invalid(Fault(line.where, f"{text!r}", "use a whole number from 1 to 9999"))
    return int(text)


def _text_of(event: _IcsEvent, name: str) -> str:
    lines = event.get(name)
    return lines[0].value.replace("\\,", ",").replace("\\;", ";").strip() if lines else ""
