"""Times as people write and read them: `tue 9:00`, `tomorrow 14:30`, `2026-12-01 09:00`, `in 2h`, durations (1h30m).

Wall-clock times are in the zone of `zone`. A time that a daylight-saving change skips or repeats is refused with
advice on what to write instead, so that nobody is booked an hour off. Called by book, extend, explain and get.
"""

import re
from calendar import day_name
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import typer

from lcm.cli.output import render
from lcm.cli.output.zone import Zone

_LENGTH: Final = re.compile(r"(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,7})m)?")
_WORDY_LENGTH: Final = re.compile(r"([0-9]{1,5}) ?(minutes?|mins?|hours?|days?|weeks?)")
_UNIT_MINUTES: Final = {"m": 1, "h": 60, "d": 1440, "w": 10_080}
_TIME_OF_DAY: Final = r"([0-9]{1,2})(?::([0-9]{2}))? ?(am|pm)?"
_CLOCK: Final = re.compile(rf"(?:(?:on )?(today|tomorrow|(?:next )?[a-z]{{3,9}}) )?(?:at )?{_TIME_OF_DAY}")
_DATED: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? ?([Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_FORMS: Final = "write 2026-12-01 09:00, 09:00, tomorrow 9am, tue 14:30, next tuesday 9:00, in 2h or 2026-12-01T09:00Z"
WEEKDAYS: Final = {word: number for number, name in enumerate(map(str.lower, day_name)) for word in (name, name[:3])}
"""The number of each weekday by its name, long and short; Monday is 0."""
_HALF_DAY: Final = 12
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)


def parse_moment(text: str, now: datetime, zone: Zone, hint: str = "--at", *, whole_days: bool = False) -> datetime:
    """Parse a moment; with `whole_days` a date alone means its beginning."""
    words = " ".join(text.split())
    said = words.lower()
    if said.startswith(("+", "in ")):
        length = said.removeprefix("+").removeprefix("in ").strip()
        return _round_up_to_minute(now + timedelta(minutes=_parse_wordy_minutes(length, hint)))
    if said == "now":
        return now
    if (found := _CLOCK.fullmatch(said)) and (found[3] or found[4]) and _is_day(found[1]):
        clock = _parse_time(text, hint, _hour_of_day(text, hint, found[2], found[4]), found[3])
        local = zone.local(now)
        day = local.date() + _days_ahead(found[1], clock, local) * _DAY
        return _single_moment(datetime.combine(day, clock), zone, hint)
    if (found := _DATED.fullmatch(words)) and (found[2] or whole_days):
        return _resolve_dated_time(text, found, zone, hint)
    raise typer.BadParameter(f"{text!r} is not a time; {_FORMS}", param_hint=hint)


def parse_day(text: str, hint: str) -> date:
    """Parse a date."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a date; write 2026-12-01", param_hint=hint) from error


def parse_minutes(text: str, hint: str) -> int:
    """Parse a duration such as 90m, 2h or 1h30m. A number without a unit is refused as ambiguous."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if not found or not any(found.groups()):
        raise typer.BadParameter(f"{text!r} is not a duration; write 90m, 2h or 1h30m", param_hint=hint)
    days, hours, minutes = (int(part or 0) for part in found.groups())
    if not (total := (days * 24 + hours) * 60 + minutes):
        raise typer.BadParameter("must be at least one minute", param_hint=hint)
    return total


def _parse_wordy_minutes(text: str, hint: str) -> int:
    """Parse a duration that may be said in words: `2 hours`."""
    found = _WORDY_LENGTH.fullmatch(text)
    return int(found[1]) * _UNIT_MINUTES[found[2][0]] if found and int(found[1]) else parse_minutes(text, hint)


def format_minutes(minutes: int) -> str:
    """Format a duration as `parse_minutes` reads it."""
    hours, rest = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{rest}m" if rest or not hours else "")


def format_local(moment: datetime, zone: Zone) -> str:
    """Format a moment in a zone's time: `Tue 2026-12-01 09:00 CET`."""
    return f"{zone.local(moment):%a %Y-%m-%d %H:%M %Z}"


def format_slot(start: datetime, end: datetime, zone: Zone) -> str:
    """Format a slot in a zone's time: `Tue 2026-12-01 09:00-11:00 CET`."""
    first, last = zone.local(start), zone.local(end)
    if first.date() == last.date() and first.utcoffset() == last.utcoffset():
        return f"{first:%a %Y-%m-%d %H:%M}-{last:%H:%M %Z}"
    return f"{format_local(start, zone)} to {format_local(end, zone)}"


def format_distance(moment: datetime, now: datetime) -> str:
    """Format how far away a moment is: `in 3h`, `5m ago`, `now`."""
    if abs(moment - now) < _MINUTE:
        return "now"
    return f"in {render.format_wait(moment - now)}" if moment > now else f"{render.format_span(now - moment)} ago"


def format_for_paste(moment: datetime, zone: Zone) -> str:
    """Format a moment so that `--at` can read it back; the short form only if clocks show that time exactly once."""
    wall = zone.local(moment).replace(tzinfo=None, fold=0)
    if zone.moments(wall) == (moment.astimezone(UTC),) and not wall.second and not wall.microsecond:
        return f"'{wall:%Y-%m-%d %H:%M}'"
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _is_day(said: str | None) -> bool:
    return said in {"today", "tomorrow", None} or (said or "").removeprefix("next ") in WEEKDAYS


def _days_ahead(said: str | None, clock: time, now: datetime) -> int:
    """Return in how many days a time of day is meant: on the day that was said, else when clocks show it next.

    A weekday is the next of its name on which the time is not over; after `next` it is a day after today.
    """
    passed = datetime.combine(now.date(), clock) <= now.replace(tzinfo=None)
    if said in {"today", "tomorrow", None}:
        return int(said == "tomorrow" or (said is None and passed))
    assert said is not None, "the rest are weekdays"
    word = said.removeprefix("next ")
    days = (WEEKDAYS[word] - now.weekday()) % 7
    return days or (7 if passed or word != said else 0)


def _hour_of_day(text: str, hint: str, hour: str, half: str | None) -> str:
    """Return an hour of 24; with am or pm, an hour that clocks with hands do not show is wrong usage."""
    if half is None:
        return hour
    if not 1 <= int(hour) <= _HALF_DAY:
        raise typer.BadParameter(f"{text!r} is not a time of day; {_FORMS}", param_hint=hint)
    return str(int(hour) % _HALF_DAY + (_HALF_DAY if half == "pm" else 0))


def _resolve_dated_time(text: str, found: re.Match[str], zone: Zone, hint: str) -> datetime:
    day, hour, minute, second, offset = found.groups()
    wall = datetime.combine(parse_day(day, hint), _parse_time(text, hint, hour, minute, second))
    try:
        if offset is not None:
            return datetime.fromisoformat(f"{wall.isoformat()}{offset.upper()}").astimezone(UTC)
        return zone.midnight(wall.date()) if hour is None else _single_moment(wall, zone, hint)
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{text!r} is not a time; {_FORMS}", param_hint=hint) from error


def _parse_time(text: str, hint: str, hour: str | None, minute: str | None, second: str | None = None) -> time:
    try:
        return time(int(hour or 0), int(minute or 0), int(second or 0))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time of day; {_FORMS}", param_hint=hint) from error


def _single_moment(wall: datetime, zone: Zone, hint: str) -> datetime:
    """Return the one moment at which clocks show a time; none or two of them is wrong usage."""
    found = zone.moments(wall)
    if len(found) == 1:
        return found[0]
    where, written = zone.name or "this time zone", f"{wall:%Y-%m-%d %H:%M}"
    if found:
        choice = " or ".join(zone.local(one).isoformat(timespec="minutes") for one in found)
        raise typer.BadParameter(f"{written} occurs twice in {where}; write {choice}", param_hint=hint)
    raise typer.BadParameter(
        f"there is no {written} in {where}: the clocks skip it; write another time", param_hint=hint
    )


def _round_up_to_minute(moment: datetime) -> datetime:
    whole = moment.replace(second=0, microsecond=0)
    return whole if whole == moment else whole + _MINUTE
