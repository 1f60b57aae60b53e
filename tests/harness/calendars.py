"""A strict reader of calendars: what RFC 5545 demands of a feed, on its bytes, not by the library that wrote it.

It knows the properties that we write, and refuses any other: a program that reads a feed may be as strict.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from dateutil.rrule import rruleset, rrulestr  # type: ignore[import-untyped]  # it has no types

_LINE: Final = re.compile(r'([A-Z][A-Z0-9-]*)((?:;[A-Z-]+=(?:"[^"\x00-\x1f]*"|[^";:,\x00-\x1f]*))*):(.*)')
_UTC_TIME: Final = re.compile(r"\d{8}T\d{6}Z")
_LOCAL_TIME: Final = re.compile(r"\d{8}T\d{6}")
_ESCAPES: Final = re.compile(r'\\[\\;,nN]|[^\\;,"]|"')
_TEXTS: Final = {"SUMMARY", "DESCRIPTION", "NAME", "X-WR-CALNAME"}
_TIMES: Final = {"DTSTART", "DTEND", "RECURRENCE-ID", "EXDATE", "RDATE"}
_STAMPS: Final = {"DTSTAMP", "LAST-MODIFIED"}
_CALENDAR: Final = {"PRODID", "VERSION", "CALSCALE", "NAME", "X-WR-CALNAME", "REFRESH-INTERVAL", "X-PUBLISHED-TTL"}
_EVENT_NEEDS: Final = {"UID", "DTSTAMP", "DTSTART", "DTEND", "SEQUENCE", "SUMMARY", "STATUS"}
_EVENT_MAY: Final = _EVENT_NEEDS | {
    *("RRULE", "EXDATE", "RDATE", "RECURRENCE-ID", "DESCRIPTION", "TRANSP", "LAST-MODIFIED", "URL"),
}
_PARTS: Final = {"VCALENDAR": {"VEVENT", "VTIMEZONE"}, "VTIMEZONE": {"STANDARD", "DAYLIGHT"}}
_MOST_OCTETS: Final = 75


@dataclass
class Part:
    """A component with its properties by name: parameters and values."""

    name: str
    values: dict[str, list[tuple[dict[str, str], str]]] = field(default_factory=dict)
    parts: list["Part"] = field(default_factory=list)

    def one(self, name: str) -> str:
        """Return the value of a property that is there once."""
        ((_, value),) = self.values[name]
        return value

    def moment(self, name: str) -> datetime:
        """Return the moment of a property that is there once."""
        ((parameters, value),) = self.values[name]
        return _parse_time(parameters, value)


@dataclass(frozen=True)
class StrictEvent:
    """One time in a calendar, as a reader computes it."""

    uid: str
    start: datetime
    end: datetime
    sequence: int
    status: str


def check_calendar(raw: bytes) -> Part:
    """Read a calendar; fail the test at whatever RFC 5545 does not allow."""
    assert raw.endswith(b"END:VCALENDAR\r\n"), "it ends with its last line"
    lines = raw.split(b"\r\n")[:-1]
    assert all(0 < len(line) <= _MOST_OCTETS for line in lines), "a line has 75 octets at most, and none is empty"
    assert not any(b"\n" in line or b"\r" in line for line in lines), "lines end with CRLF and nothing else"
    for line in lines:
        line.decode()  # a line is not folded within a character
    root = _read_parts("\r\n".join(one.decode() for one in lines).replace("\r\n ", "").split("\r\n"))
    _check_calendar(root)
    return root


def shown_events(raw: bytes) -> list[StrictEvent]:
    """Return all times of a calendar in their order: series expanded, exceptions in their places."""
    root = check_calendar(raw)
    found: dict[tuple[str, datetime], StrictEvent] = {}
    events = [one for one in root.parts if one.name == "VEVENT"]
    for event in sorted(events, key=lambda one: "RECURRENCE-ID" in one.values):
        long = event.moment("DTEND") - event.moment("DTSTART")
        key = event.moment("RECURRENCE-ID") if "RECURRENCE-ID" in event.values else None
        for start in _starts(event):
            uid, sequence = event.one("UID"), int(event.one("SEQUENCE"))
            found[uid, key or start] = StrictEvent(uid, start, start + long, sequence, event.one("STATUS"))
    return sorted(found.values(), key=lambda one: (one.start, one.uid))


def _read_parts(lines: list[str]) -> Part:
    open_parts: list[Part] = [Part("")]
    for line in lines:
        matched = _LINE.fullmatch(line)
        assert matched, f"not a content line: {line!r}"
        name, value = matched[1], matched[3]
        parameters = dict(one.split("=", 1) for one in matched[2].split(";")[1:])
        if name == "BEGIN":
            open_parts.append(Part(value))
        elif name == "END":
            done = open_parts.pop()
            assert done.name == value, f"{done.name} ends as {value}"
            open_parts[-1].parts.append(done)
        else:
            open_parts[-1].values.setdefault(name, []).append((parameters, value))
    ((root,),) = ([one.parts for one in open_parts],)
    (calendar,) = root
    return calendar


def _check_calendar(root: Part) -> None:
    assert root.name == "VCALENDAR"
    assert {"PRODID", "VERSION"} <= root.values.keys() <= _CALENDAR, root.values.keys()
    assert all(len(several) == 1 for several in root.values.values())
    assert root.one("VERSION") == "2.0"
    assert root.parts, "a calendar has a part"
    for part in root.parts:
        assert part.name in _PARTS["VCALENDAR"]
        _check_zone(part) if part.name == "VTIMEZONE" else _check_event(part)
    zones = Counter(part.one("TZID") for part in root.parts if part.name == "VTIMEZONE")
    assert set(zones.values()) <= {1}, "a zone is defined once"
    events = [one for one in root.parts if one.name == "VEVENT"]
    used = {parameters["TZID"] for parameters, _ in _times(events) if "TZID" in parameters}
    assert used <= zones.keys(), "every zone that is used is defined"
    same = Counter((one.one("UID"), str(one.values.get("RECURRENCE-ID"))) for one in events)
    assert set(same.values()) <= {1}, "no two events are the same"
    masters = {one.one("UID") for one in events if "RECURRENCE-ID" not in one.values}
    assert {one.one("UID") for one in events} == masters, "an exception has a series"


def _check_zone(zone: Part) -> None:
    assert zone.parts, "a zone has a rule"
    for rule in zone.parts:
        assert rule.name in _PARTS["VTIMEZONE"]
        assert {"DTSTART", "TZOFFSETFROM", "TZOFFSETTO"} <= rule.values.keys()
        assert _LOCAL_TIME.fullmatch(rule.one("DTSTART")), "a zone's rule begins by its own clock"
        assert all(re.fullmatch(r"[+-]\d{4}(\d{2})?", rule.one(name)) for name in ("TZOFFSETFROM", "TZOFFSETTO"))


def _check_event(event: Part) -> None:
    assert event.values.keys() >= _EVENT_NEEDS, _EVENT_NEEDS - event.values.keys()
    assert event.values.keys() <= _EVENT_MAY, event.values.keys() - _EVENT_MAY
    assert all(len(event.values[name]) == 1 for name in event.values.keys() - {"EXDATE", "RDATE"})
    assert not event.parts
    for name in _STAMPS & event.values.keys():
        assert _UTC_TIME.fullmatch(event.one(name)), f"{name} is in UTC"
    for name in _TEXTS & event.values.keys():
        assert "".join(_ESCAPES.findall(event.one(name))) == event.one(name), f"{name} is not escaped"
    assert event.one("STATUS") in {"CONFIRMED", "CANCELLED"}
    assert event.one("SEQUENCE").isdigit()
    assert event.moment("DTSTART") < event.moment("DTEND")
    for parameters, value in _times([event]):
        assert parameters.keys() <= {"TZID"}
        form = _LOCAL_TIME if "TZID" in parameters else _UTC_TIME
        assert all(form.fullmatch(one) for one in value.split(",")), (parameters, value)
    if "RRULE" in event.values and "UNTIL=" in event.one("RRULE"):
        assert re.search(r"UNTIL=\d{8}T\d{6}Z(;|$)", event.one("RRULE")), "with a zone, UNTIL is in UTC"


def _times(events: list[Part]) -> Iterator[tuple[dict[str, str], str]]:
    for event in events:
        for name in _TIMES & event.values.keys():
            yield from event.values[name]


def _parse_time(parameters: dict[str, str], value: str) -> datetime:
    if value.endswith("Z"):
        return datetime.strptime(value, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    naive = datetime.fromisoformat(value)
    return naive.replace(tzinfo=ZoneInfo(parameters["TZID"])).astimezone(UTC)


def _starts(event: Part) -> list[datetime]:
    """Return when an event begins: each time of a series, by the clock on the wall."""
    ((parameters, value),) = event.values["DTSTART"]
    if "RRULE" not in event.values:
        return [event.moment("DTSTART")]
    zone = ZoneInfo(parameters["TZID"]) if "TZID" in parameters else UTC
    begin, rule = datetime.fromisoformat(value.removesuffix("Z")), event.one("RRULE")
    until = re.search(r"UNTIL=(\w+)", rule)
    last = _parse_time({}, until[1]) if until else _parse_time(parameters, value) + timedelta(days=4000)
    series = rruleset()
    series.rrule(rrulestr(re.sub(r";?UNTIL=\w+", "", rule), dtstart=begin))
    walls = series.between(begin, last.astimezone(zone).replace(tzinfo=None), inc=True)
    found = {one.replace(tzinfo=zone).astimezone(UTC) for one in walls}
    return sorted((found - _listed(event, "EXDATE")) | _listed(event, "RDATE"))


def _listed(event: Part, name: str) -> set[datetime]:
    several = event.values.get(name, [])
    return {_parse_time(parameters, one) for parameters, values in several for one in values.split(",")}
