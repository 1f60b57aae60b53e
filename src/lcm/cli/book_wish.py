"""What somebody wants booked, and the object that asks for it: a session, or a reservation. Used by `book`."""

from calendar import day_name
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final, Literal, cast

import typer

from lcm.cli.book_times import Zone
from lcm.model.reservation import Recurrence, Reservation, ReservationSpec, Weekday
from lcm.model.resource import DEFAULT_NAMESPACE, Metadata
from lcm.model.session import LabletSession, LabletSessionSpec

Booking = LabletSession | Reservation
_LETTERS: Final = "bcdfghjkmnpqrstvwxz23456789"
"""None that is taken for another, and no vowels, which could make words."""
_SUFFIX: Final = 5
_LONGEST_FAMILY: Final = 53
_WORKDAYS: Final = (Weekday.MON, Weekday.TUE, Weekday.WED, Weekday.THU, Weekday.FRI)
_DAYS: Final = {word: day for day, name in zip(Weekday, day_name, strict=True) for word in (str(day), name.lower())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """A booking as somebody asked for it. Without `start` as soon as possible, without `minutes` as long as may be."""

    definition: str
    namespace: str = DEFAULT_NAMESPACE
    start: datetime | None = None
    minutes: int | None = None
    name: str | None = None
    owner: str = ""
    track: str = ""
    region: str | None = None
    emails: tuple[str, ...] = ()
    priority: int = 0
    count: int = 1
    series: Recurrence | None = None
    give_up_at: datetime | None = None

    @property
    def several(self) -> bool:
        """Whether it is for more than one session."""
        return self.count > 1 or self.series is not None

    def booking(self, minutes: int, name: str) -> Booking:
        """Make the object that asks for it."""
        end = self.start + timedelta(minutes=minutes) if self.start else None
        metadata = Metadata(name=name, namespace=self.namespace)
        if not self.several:
            return LabletSession(metadata=metadata, spec=self._session(minutes, end))
        assert self.start is not None, "several are booked for a time"
        assert end is not None, "likewise"
        spec = ReservationSpec(
            definition=self.definition,
            timeslot_start=self.start,
            timeslot_end=end,
            count=self.count,
            recurrence=self.series,
            owner=self.owner,
            student_emails=self.emails,
            lab_track=self.track,
            region_required=self.region,
            priority=self.priority,
        )
        return Reservation(metadata=metadata, spec=spec)

    def _session(self, minutes: int, end: datetime | None) -> LabletSessionSpec:
        return LabletSessionSpec(
            definition=self.definition,
            owner=self.owner,
            student_email=next(iter(self.emails), None),
            lab_track=self.track,
            timeslot_start=self.start,
            timeslot_end=end,
            duration_minutes=None if self.start else minutes,
            give_up_at=self.give_up_at,
            region_required=self.region,
            priority=self.priority,
        )


def name_for(definition: str, chance: Callable[[], float]) -> str:
    """Make up a name: `basics-x7k2p`."""
    family = definition.partition(":")[0][:_LONGEST_FAMILY].rstrip("-.")
    return f"{family}-{''.join(_LETTERS[int(chance() * len(_LETTERS))] for _ in range(_SUFFIX))}"


def series_of(every: str, on: str, until: date, zone: Zone) -> Recurrence:
    """Understand how often: day, week, weekday, or days such as mon,wed."""
    if not zone.name:
        raise typer.BadParameter("name the zone of the clocks that it goes by: Europe/Berlin", param_hint="--time-zone")
    word = every.strip().lower()
    days = _days(on, "--on")
    if word not in {"day", "week"}:
        if days:
            raise typer.BadParameter("goes with --every week", param_hint="--on")
        days = _WORKDAYS if word == "weekday" else _days(word, "--every")
        word = "week"
    if word == "day" and days:
        raise typer.BadParameter("every day is on all days; use --every week", param_hint="--on")
    often = cast("Literal['day', 'week']", word)
    return Recurrence(every=often, until=until, time_zone=zone.name, weekdays=days)


def _days(text: str, hint: str) -> tuple[Weekday, ...]:
    words: Sequence[str] = [word.strip() for word in text.lower().split(",") if word.strip()]
    if unknown := [word for word in words if word not in _DAYS]:
        raise typer.BadParameter(f"{unknown[0]!r} is no day; write mon,wed", param_hint=hint)
    return tuple(dict.fromkeys(_DAYS[word] for word in words))
