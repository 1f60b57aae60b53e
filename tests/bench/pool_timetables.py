"""Claims as timetables that the planner plays: one pool of metal machines, and a lab for each need."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple

import msgspec

from bench.booked_months import CLEAN_UP, INSTANTIATION, Booking
from bench.timetables import KINDS, LEAD, Book
from harness import given
from lcm.model.base.capacity import Amount
from lcm.model.kinds.definition import compute_amount
from lcm.model.kinds.hours import AllowedHours, Weekday
from lcm.model.kinds.pool import ScalingPolicy
from lcm.model.money.prices import declared_capacity
from lcm.sim.plan.documents import LabOutline, PoolOutline, definition_of, pool_of
from lcm.sim.plan.timetable import SessionRequest, Timetable

TRACK = "labs"
LATEST = timedelta(hours=1)
"""A session is booked so long before its slot at least: a machine may have to be started for it."""
FRIDAY = given.moment("12:00", day=-3)
"""When a booked week is booked."""
WEEK_SESSIONS = 200
_WHOLE_DAY = 24


class PoolChoice(NamedTuple):
    """How an operator sets a pool up."""

    policy: ScalingPolicy
    least: int = 0
    most: int = 40
    hours: AllowedHours | None = None


def booked_week(kind: str, seed: int) -> list[Booking]:
    """Make a week of a kind that `timetables` has, booked on the Friday before."""
    book = Book(WEEK_SESSIONS, Random(f"booked week {kind} {seed}"))
    KINDS[kind](book)
    return [Booking(FRIDAY, held.claim) for held in book.made]


def book_slots(bookings: Sequence[Booking], choice: PoolChoice) -> Timetable:
    """Return a timetable in which each session is booked, at its time, for its slot."""
    labs = _name_labs(bookings)
    sessions = [
        SessionRequest(
            name=f"s{number}",
            definition=f"{labs[one.claim.need]}:1.0.0",
            track=TRACK,
            minutes=_minutes(one),
            start=slot_start(one),
            booked_at=min(one.at, slot_start(one) - LATEST),
        )
        for number, one in enumerate(bookings)
    ]
    return _make_timetable(labs, sessions, choice)


def ask_without_slots(bookings: Sequence[Booking], choice: PoolChoice, ahead: timedelta) -> Timetable:
    """Return a timetable in which each session is asked for as soon as possible, so long ahead of its slot.

    It lasts until its slot ends, even if it begins at once.
    """
    labs, early = _name_labs(bookings), ahead // timedelta(minutes=1)
    sessions = [
        SessionRequest(
            name=f"s{number}",
            definition=f"{labs[one.claim.need]}:1.0.0",
            track=TRACK,
            minutes=_minutes(one) + early,
            booked_at=slot_start(one) - ahead,
        )
        for number, one in enumerate(bookings)
    ]
    return _make_timetable(labs, sessions, choice)


def slot_start(booking: Booking) -> datetime:
    """Return when a booking's slot begins."""
    return booking.claim.start + INSTANTIATION


def hours_of(bookings: Sequence[Booking]) -> AllowedHours | None:
    """Return the hours and weekdays in which machines are needed for bookings; None if that is round the clock."""
    days = sorted({slot_start(one).weekday() for one in bookings})
    first = min(_hours_of_day(one.claim.start - LEAD, one) for one in bookings)
    last = max(_hours_of_day(one.claim.end, one) for one in bookings)
    start, end = int(first // 1), int(-(-last // 1))
    if start < 0 or end - start >= _WHOLE_DAY:
        return None
    weekdays = list(Weekday)
    return AllowedHours(
        start_hour=start, end_hour=end % _WHOLE_DAY or _WHOLE_DAY, weekdays=tuple(weekdays[day] for day in days)
    )


def _hours_of_day(moment: datetime, booking: Booking) -> float:
    """Return the hours from the midnight before a booking's slot to a moment."""
    midnight = slot_start(booking).replace(hour=0, minute=0, second=0)
    return (moment - midnight) / timedelta(hours=1)


def _minutes(booking: Booking) -> int:
    return (booking.claim.end - CLEAN_UP - slot_start(booking)) // timedelta(minutes=1)


def _name_labs(bookings: Sequence[Booking]) -> Mapping[Amount, str]:
    needs = dict.fromkeys(one.claim.need for one in bookings)
    return {need: f"lab{number}" for number, need in enumerate(needs)}


def _make_timetable(labs: Mapping[Amount, str], sessions: Sequence[SessionRequest], choice: PoolChoice) -> Timetable:
    outline = PoolOutline(track=TRACK, instance_type="m5zn.metal", least=choice.least, most=choice.most)
    template, pool = pool_of(outline)
    spec = msgspec.structs.replace(pool.spec, policy=choice.policy, allowed_hours=choice.hours)
    definitions = {need: definition_of(_outline_lab(name, need)) for need, name in labs.items()}
    assert all(compute_amount(one.spec) == need for need, one in definitions.items())
    assert declared_capacity(template.spec.worker) == given.machine(), "the bound is of the same machines"
    return Timetable(
        definitions=tuple(definitions.values()),
        templates=(template,),
        pools=(msgspec.structs.replace(pool, spec=spec),),
        sessions=tuple(sessions),
    )


def _outline_lab(name: str, need: Amount) -> LabOutline:
    return LabOutline(
        name=name,
        track=TRACK,
        cpu=need.cpu_millis / 1000,
        memory=need.memory_mb / 1024,
        storage=need.storage_mb / 1024,
        nodes=need.nodes,
        ports=need.ports,
    )
