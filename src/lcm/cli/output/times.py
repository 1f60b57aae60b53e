"""Times as people write and read them: `09:00`, `tomorrow 9:00`, `2026-12-01 09:00`, `+2h`, and durations (1h30m).

Wall-clock times are in the terminal's zone. A time that a daylight-saving change skips or repeats is refused with
advice on what to write instead, so that nobody is booked an hour off. Called by book, extend, explain and get.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import typer

from lcm.cli.output import render

_LENGTH: Final = re.compile(r"(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,7})m)?")
_CLOCK: Final = re.compile(r"(?:(today|tomorrow) )?([0-9]{1,2}):([0-9]{2})")
_DATED: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))? ?([Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_FORMS: Final = "write 2026-12-01 09:00, 09:00, tomorrow 9:00, +2h or 2026-12-01T09:00Z"
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_LOCALTIME: Final = Path("/etc/localtime")
_TIMEZONE_FILE: Final = Path("/etc/timezone")


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone. Without `rules` it is the system's own zone, whose name is unknown."""

    name: str
    rules: tzinfo | None

    def local(self, moment: datetime) -> datetime:
        """Return the wall-clock time at a moment; a moment at the very end of time stays as it was written."""
        try:
            return moment.astimezone(self.rules)
        except OverflowError:
            return moment

    def moments(self, wall: datetime) -> tuple[datetime, ...]:
        """Return the moments at which clocks show a time: usually one; none or two around a daylight-saving change."""
        both = (wall.replace(tzinfo=self.rules, fold=fold).astimezone(UTC) for fold in (0, 1))
        return tuple(dict.fromkeys(one for one in both if self.local(one).replace(tzinfo=None, fold=0) == wall))

    def midnight(self, day: date) -> datetime:
        """Return the moment at which a day begins."""
        return datetime.combine(day, time(), self.rules).astimezone(UTC)


def find_zone(name: str) -> Zone:
    """Find a zone by its name; an unknown name is wrong usage."""
    try:
        return Zone(name, ZoneInfo(name))
    except (KeyError, ValueError, OSError) as error:
        raise typer.BadParameter(
            f"{name!r} is not a time zone; use a name such as Europe/Berlin", param_hint="--time-zone"
        ) from error


def terminal_zone(environment: Mapping[str, str] = os.environ, localtime: Path = _LOCALTIME) -> Zone:
    """Find the zone of the terminal's clock: from TZ if it is set, else from the system."""
    zone = environment.get("TZ")
    name = _system_zone_name(localtime) if zone is None else zone.removeprefix(":")
    try:
        return Zone(name or "UTC", ZoneInfo(name or "UTC")) if name is not None else Zone("", None)
    except (KeyError, ValueError, OSError):
        return Zone("", None)  # for example CET-1CEST, which only the system can interpret


def _system_zone_name(localtime: Path) -> str | None:
    """Return the name of the system's zone, "" for UTC; None when it has rules without a name."""
    if not localtime.exists():
        return ""
    _, found, name = str(localtime.resolve()).rpartition("zoneinfo/")
    if found:
        return name
    return _TIMEZONE_FILE.read_text().strip() or None if _TIMEZONE_FILE.exists() else None


def parse_moment(text: str, now: datetime, zone: Zone, hint: str = "--at", *, whole_days: bool = False) -> datetime:
    """Parse a moment; with `whole_days` a date alone means its beginning."""
    words = " ".join(text.split())
    if words.startswith("+"):
        return _round_up_to_minute(now + timedelta(minutes=parse_minutes(words[1:], hint)))
    if words.lower() == "now":
        return now
    if found := _CLOCK.fullmatch(words.lower()):
        return _resolve_clock_time(found[1], _parse_time(text, hint, found[2], found[3]), now, zone, hint)
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
    return f"in {render.format_span(moment - now)}" if moment > now else f"{render.format_span(now - moment)} ago"


def format_for_paste(moment: datetime, zone: Zone) -> str:
    """Format a moment so that `--at` can read it back; the short form only if clocks show that time exactly once."""
    wall = zone.local(moment).replace(tzinfo=None, fold=0)
    if zone.moments(wall) == (moment.astimezone(UTC),) and not wall.second and not wall.microsecond:
        return f"'{wall:%Y-%m-%d %H:%M}'"
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _resolve_clock_time(day: str | None, clock: time, now: datetime, zone: Zone, hint: str) -> datetime:
    today = zone.local(now).date()
    if day == "tomorrow":
        return _single_moment(datetime.combine(today + _DAY, clock), zone, hint)
    wall = datetime.combine(today, clock)
    if day == "today" or wall > zone.local(now).replace(tzinfo=None):
        return _single_moment(wall, zone, hint)
    return _single_moment(wall + _DAY, zone, hint)


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
