"""The time zone in which a command reads and shows times: chosen once, the same in every line of its output.

It is that of `--utc` or of another option of the command, else of LCM_TZ, else of the terminal's clock. What the API
says in words has moments in UTC; `localize` rewrites them. Called by `render` and `times`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import typer
from typer._click.globals import get_current_context

_META: Final = "lcm.zone"
_LOCALTIME: Final = Path("/etc/localtime")
_TIMEZONE_FILE: Final = Path("/etc/timezone")
_UTC_MOMENT: Final = re.compile(
    r"\b([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2})(:[0-9]{2})?(?:\.[0-9]{1,9})?(?:Z| UTC|\+00:00)\b"
)


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

    def format(self, moment: datetime, form: str = "%Y-%m-%d %H:%M") -> str:
        """Format a moment with the zone's name: `2026-12-01 09:00 CET`; `2026-12-01 08:00Z` in UTC."""
        local = self.local(moment)
        return f"{local:{form}}Z" if local.tzname() == "UTC" else f"{local:{form} %Z}"


def find_zone(name: str, hint: str = "--time-zone") -> Zone:
    """Find a zone by its name; an unknown name is wrong usage."""
    try:
        return Zone(name, ZoneInfo(name))
    except (KeyError, ValueError, OSError) as error:
        raise typer.BadParameter(
            f"{name!r} is not a time zone; use a name such as Europe/Berlin", param_hint=hint
        ) from error


def terminal_zone(environment: Mapping[str, str] = os.environ, localtime: Path = _LOCALTIME) -> Zone:
    """Find the zone from LCM_TZ, else that of the terminal's clock: from TZ if it is set, else from the system."""
    if chosen := environment.get("LCM_TZ"):
        return find_zone(chosen, "LCM_TZ")
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


def choose_zone(name: str) -> Zone:
    """Use a zone for the rest of this command; without a name, the one in use. An unknown name is wrong usage."""
    zone = find_zone(name) if name else current_zone()
    if context := get_current_context(silent=True):
        context.meta[_META] = zone
    return zone


def current_zone() -> Zone:
    """Return the zone in which this command reads and shows times."""
    context = get_current_context(silent=True)
    if context is None:
        return terminal_zone()
    if _META not in context.meta:
        context.meta[_META] = terminal_zone()
    zone: Zone = context.meta[_META]
    return zone


def localize(text: str) -> str:
    """Rewrite the moments in UTC that a text names in the zone in which times are shown."""
    return _UTC_MOMENT.sub(_localize_match, text)


def _localize_match(found: re.Match[str]) -> str:
    day, minute, second = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{minute}{second or ':00'}+00:00")
        return current_zone().format(moment, "%Y-%m-%d %H:%M:%S" if second else "%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return found[0]  # no such moment, or one at the end of time
