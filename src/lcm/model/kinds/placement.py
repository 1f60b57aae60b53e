"""What is said between those who place sessions and those who ask about it. Part of the plane's values."""

from typing import Annotated, Literal

import msgspec

from lcm.model.base.resource import Count, Minutes, Moment, Name, Part, Positive, Region, ShortText, Text
from lcm.model.kinds.session import PortNumber, SchedulingDecision, Seat, Waiting

LONGEST_LIST = 2000
MOST_PLACES = 500
MOST_BOOKED = 20_000
FULFILLED_AT_ONCE = 30
"""How many sessions of a reservation one commit makes: they fit, even were each on a pool with a token of its own."""


class Assignment(Part):
    """Where a session goes from `start` to `end`: onto a worker that can be used now, or onto a seat without one yet.

    A worker that fills a seat is named with its seat. What is only waiting keeps `waiting` for who asks.
    """

    start: Moment
    end: Moment
    worker_id: ShortText | None = None
    seat: Seat | None = None
    decision: SchedulingDecision | None = None
    waiting: Waiting | None = None
    reason: Text = ""


class PortWish(Part):
    """Which ports a session would like, by name, if they are free; the others are chosen."""

    preferred: Annotated[dict[str, PortNumber], msgspec.Meta(max_length=6000)] = {}


class SeatChange(Part):
    """A claim that is to change its seat; `number` is the claim's within a reservation, None for a session."""

    booking: Name
    after: Positive
    number: Count | None = None


class Wish(Part):
    """A booking that somebody only thinks about."""

    definition: Name
    namespace: Name = "default"
    timeslot_start: Moment | None = None
    timeslot_end: Moment | None = None
    duration_minutes: Minutes | None = None
    lab_track: ShortText = ""
    region_required: Region | None = None
    region_preferred: Region | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=400)] = 1


class Slot(Part):
    """[start, end) of a lab, without what is around it."""

    start: Moment
    end: Moment


class PlaceAnswer(Part):
    """What one worker or seat says to a session. `earliest`: from when on it would take it, None for never."""

    place: ShortText
    kind: Literal["worker", "seat"]
    pool: ShortText = ""
    fits: bool = False
    filter: ShortText = ""
    reason: Text = ""
    remedy: Text = ""
    score: float | None = None
    earliest: Moment | None = None


class Explanation(Part):
    """Where a session is or would go, why, and what helps if it does not."""

    outcome: Literal["assign", "scale_up", "wait", "promise", "refuse", "placed", "over"]
    why: ShortText
    """In one word: the filter or the reason of the refusal; "" if nothing is in the way."""
    reason: Text
    remedy: Text = ""
    slot: Slot | None = None
    seat: Seat | None = None
    worker: ShortText = ""
    nearest: tuple[Slot, ...] = ()
    waiting: Waiting | None = None
    decision: SchedulingDecision | None = None
    places: Annotated[tuple[PlaceAnswer, ...], msgspec.Meta(max_length=MOST_PLACES)] = ()
    places_left_off: Count = 0


class Booked(Part):
    """A claim in the calendar. Who does not see the booking is not told whose it is."""

    start: Moment
    end: Moment
    slot: Slot
    kind: Literal["LabletSession", "Reservation", ""] = ""
    name: ShortText = ""
    owner: ShortText = ""
    phase: ShortText = ""


class CalendarRow(Part):
    """A seat, or a worker outside of pools, against time."""

    namespace: Name
    pool: ShortText
    """"" for a worker outside of pools."""
    seat: Count
    worker: ShortText
    """"" for a seat without one."""
    phase: ShortText
    booked: tuple[Booked, ...] = ()


class CalendarView(Part):
    """Seats and workers in a span: all of them, or as many as have MOST_BOOKED claims together."""

    since: Moment
    until: Moment
    rows: Annotated[tuple[CalendarRow, ...], msgspec.Meta(max_length=LONGEST_LIST)]
    rows_left_off: Count = 0
