"""Reservation: N sessions or a recurring series, booked all or none.

Holds the kind, its state machine, and the slots of a series.
"""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import count, islice, takewhile
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

import msgspec

from lcm.model.base.capacity import Claim
from lcm.model.base.machine import CONTROL_PLANE, SCHEDULER, PhaseLimit, PhaseStep, StateMachine
from lcm.model.base.resource import (
    API_VERSION,
    Count,
    Metadata,
    Moment,
    Name,
    Part,
    Region,
    ShortText,
    Status,
    Text,
    ZoneName,
)
from lcm.model.kinds.definition import Requirements
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.session import CLEAN_UP_TIME, Email, LearnerRights, Seat

Slot = tuple[datetime, datetime]
OCCURRENCES_LIMIT: Final = 400
"""The most sessions that one reservation may hold: all its claims are stored in one object."""


class ReservationPhase(StrEnum):
    """The phase of a reservation's life."""

    PENDING = "PENDING"
    PROMISED = "PROMISED"
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


class Recurrence(Part):
    """The same wall-clock time on the same days, in a time zone, so that it survives daylight-saving changes."""

    every: Literal["day", "week"]
    until: date
    time_zone: ZoneName
    interval: Annotated[int, msgspec.Meta(ge=1, le=52)] = 1
    weekdays: Annotated[tuple[Weekday, ...], msgspec.Meta(max_length=7)] = ()


class ReservationSpec(Part):
    """A booking for a group."""

    definition: Name
    timeslot_start: Moment
    timeslot_end: Moment
    count: Annotated[int, msgspec.Meta(ge=1, le=OCCURRENCES_LIMIT)] = 1
    recurrence: Recurrence | None = None
    owner: ShortText = ""
    student_emails: Annotated[tuple[Email, ...], msgspec.Meta(max_length=OCCURRENCES_LIMIT)] = ()
    learner_may: LearnerRights = ()
    lab_track: ShortText = ""
    region_required: Region | None = None
    region_preferred: Region | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0


class ReservationClaim(Part):
    """The claim of one promised session, held until the session exists and takes it over.

    `occurrence` is its slot's number in the series, `place` whose it is among the learners; both count from 1. They and
    the start of its slot are written once the class was changed; before, they follow from its number and the spec.
    """

    number: Count
    claim: Claim
    seat: Seat | None = None
    session: Name | None = None
    occurrence: Count | None = None
    place: Count | None = None
    starts_at: Moment | None = None


class ReservationStatus(Status):
    """The observed state of a reservation.

    Its first session is created by `starts_at`; its last one is over at `ends_at`.
    """

    phase: ReservationPhase = ReservationPhase.PENDING
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    held: Annotated[tuple[ReservationClaim, ...], msgspec.Meta(max_length=OCCURRENCES_LIMIT)] = ()
    requirements: Requirements | None = None
    sessions_made: Count = 0
    sessions_ended: Count = 0
    last_error: Text = ""


class Reservation(Part):
    """Several sessions booked as one."""

    metadata: Metadata
    spec: ReservationSpec
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["Reservation"] = "Reservation"
    status: ReservationStatus = ReservationStatus()


def occurrence_of(spec: ReservationSpec, held: ReservationClaim) -> int:
    """Return which slot of the series a claim is for, counted from 1."""
    return held.occurrence if held.occurrence is not None else (held.number - 1) // spec.count + 1


def place_of(spec: ReservationSpec, held: ReservationClaim) -> int:
    """Return which of the places of its slot a claim is, counted from 1; 0 for one that the class no longer has."""
    return held.place if held.place is not None else (held.number - 1) % spec.count + 1


def learner_of(spec: ReservationSpec, held: ReservationClaim) -> str | None:
    """Return whom a claim is for; None if the learners are not named."""
    place = place_of(spec, held)
    return spec.student_emails[place - 1] if 1 <= place <= len(spec.student_emails) else None


def held_slot(spec: ReservationSpec, held: ReservationClaim) -> Slot:
    """Return the slot that a claim is for, whatever the settings were when it was promised."""
    end = held.claim.end - CLEAN_UP_TIME
    return held.starts_at or end - (spec.timeslot_end - spec.timeslot_start), end


def find_claim(reservation: Reservation, number: int) -> ReservationClaim | None:
    """Find a claim by its number; they are in the order of their numbers."""
    held = reservation.status.held
    place = bisect_left(held, number, key=lambda one: one.number)
    return held[place] if place < len(held) and held[place].number == number else None


def occurrences(spec: ReservationSpec) -> Sequence[Slot]:
    """Return the slots of a reservation in order, each at the same wall-clock time in the recurrence's zone.

    A slot whose wall-clock time is skipped by a daylight-saving change begins later by the length of the
    change. Each slot is as long as the first.
    """
    series = spec.recurrence
    if series is None:
        return [(spec.timeslot_start, spec.timeslot_end)]
    zone, long = ZoneInfo(series.time_zone), spec.timeslot_end - spec.timeslot_start
    first = spec.timeslot_start.astimezone(zone)
    days = takewhile(lambda day: day <= series.until, (first.date() + timedelta(days=n) for n in count()))
    # Where an hour occurs twice, the first slot is the booked one; all others use the earlier of the two hours.
    wall = first.time().replace(fold=0)
    starts = (
        first if day == first.date() else datetime.combine(day, wall, zone)
        for day in days
        if _recurs_on(series, first.date(), day)
    )
    utc = [start.astimezone(UTC) for start in islice(starts, OCCURRENCES_LIMIT + 1)]
    return [(start, start + long) for start in utc]


def _recurs_on(series: Recurrence, first: date, day: date) -> bool:
    if series.every == "day":
        steps, on_day = (day - first).days, True
    else:
        steps = (day - timedelta(days=day.weekday()) - (first - timedelta(days=first.weekday()))).days // 7
        on_day = day.weekday() == first.weekday()
    if series.weekdays:
        on_day = tuple(Weekday)[day.weekday()] in series.weekdays
    return steps % series.interval == 0 and on_day


_P = ReservationPhase

RESERVATION_MACHINE: Final = StateMachine(
    name="Reservation",
    initial=_P.PENDING,
    final=frozenset({_P.COMPLETED, _P.CANCELLED, _P.FAILED}),
    steps=(
        PhaseStep(_P.PENDING, _P.PROMISED, CONTROL_PLANE, "all its claims are held", ("held",)),
        PhaseStep(_P.PENDING, _P.FAILED, CONTROL_PLANE, "not all of it fits", ("last_error",)),
        PhaseStep(_P.PROMISED, _P.ACTIVE, SCHEDULER, "its first session exists"),
        PhaseStep(_P.ACTIVE, _P.COMPLETED, SCHEDULER, "all its sessions have ended"),
        PhaseStep(_P.PROMISED, _P.CANCELLING, CONTROL_PLANE, "cancelled by request"),
        PhaseStep(_P.ACTIVE, _P.CANCELLING, CONTROL_PLANE, "cancelled by request"),
        PhaseStep(_P.CANCELLING, _P.CANCELLED, SCHEDULER, "its sessions have ended and its claims are let go"),
    ),
    limits=(
        PhaseLimit(_P.PENDING, timedelta(minutes=5), _P.FAILED, "a booking is promised or refused at once"),
        PhaseLimit(_P.PROMISED, "starts_at", _P.ACTIVE, "a promise is kept by making the session"),
        PhaseLimit(_P.ACTIVE, "ends_at", _P.COMPLETED, "nothing is left to hold"),
        PhaseLimit(_P.CANCELLING, timedelta(hours=1), None, "its claims keep others out until they are let go"),
    ),
)
