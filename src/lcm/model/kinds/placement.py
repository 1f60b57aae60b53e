"""The values exchanged about placement: decisions, assignments, explanations and the calendar.

The scheduler and the pool controller send them, people who ask about a booking receive them; they are part of the
control plane's protocol.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from lcm.model.base.resource import Count, Fraction, Minutes, Moment, Name, Part, Positive, Region, ShortText, Text
from lcm.model.kinds.pool import LabWorkerPool, PoolPacking, PoolPause, ScalingDecision
from lcm.model.kinds.reservation import Recurrence
from lcm.model.kinds.session import PortNumber, SchedulingDecision, Seat, Waiting
from lcm.model.money.billing import Usd

MAX_ROWS = 2000
MAX_PLACES = 500
MAX_BOOKED = 20_000
MAX_SLOTS = 400
"""How many starts one request may ask about: a week of half hours, and some."""
MAX_SESSIONS_PER_COMMIT = 30
"""How many sessions of a reservation one commit creates.

They fit even if each is on another pool with a licence token of its own.
"""


class Assignment(Part):
    """Where a session runs from `start` to `end`: on a usable worker, or on a planned worker (a seat).

    A worker that fills a seat is named together with its seat. For a session that still waits, `waiting`
    holds its place in the queue for those who ask.
    """

    start: Moment
    end: Moment
    worker_id: ShortText | None = None
    seat: Seat | None = None
    decision: SchedulingDecision | None = None
    waiting: Waiting | None = None
    reason: Text = ""


class PortRequest(Part):
    """The preferred ports of a session, by name. Each is used if it is free; all others are chosen."""

    preferred: Annotated[dict[str, PortNumber], msgspec.Meta(max_length=6000)] = {}


class PoolHeadroom(Part):
    """What budgets and licences leave for load in a pool, and what was measured of its workers.

    `workers` may run besides what is promised and always runs; `why` and `reason` tell what forbids more. The measured
    shares are of all machines that serve or come up, as fractions; null if nothing was measured lately. `usd_hourly` is
    what a machine of the pool is planned with; null if that is not known.
    """

    workers: Count
    why: ShortText = ""
    reason: Text = ""
    cpu_utilization: Fraction | None = None
    memory_utilization: Fraction | None = None
    usd_hourly: Usd | None = None


PromiseChoice = Literal["keep", "refuse"]


class PoolPauseRequest(Part):
    """A pause of a pool until a moment, or until it is resumed, and what becomes of the promises within it."""

    until: Moment | None = None
    promises: PromiseChoice = "keep"
    reason: Text = ""


class PoolScaleRequest(Part):
    """Another minimum or maximum of a pool, and what becomes of the promises on planned workers beyond that."""

    min_workers: Count | None = None
    max_workers: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    promises: PromiseChoice = "keep"


class AffectedPromise(Part):
    """A promise that a change of a pool concerns. `number` is that of a claim within a reservation."""

    kind: Literal["LabletSession", "Reservation"]
    name: Name
    owner: ShortText
    seat: Positive
    start: Moment
    end: Moment
    number: Count | None = None


class PoolChange(Part):
    """A pool after a change, the promises that this concerns, and how many of them were refused."""

    pool: LabWorkerPool
    affected: Annotated[tuple[AffectedPromise, ...], msgspec.Meta(max_length=MAX_PLACES)] = ()
    affected_left_off: Count = 0
    refused: Count = 0


class PoolExplanation(Part):
    """Why a pool has the size that it has: the present answer, what was considered, and all decisions, newest first.

    `why` is the answer in a word, `remedy` what helps if that is not what somebody wants.
    """

    pool: Name
    namespace: Name
    phase: ShortText
    policy: ShortText
    action: Literal["scale_up", "scale_down", "none"]
    why: ShortText
    reason: Text
    remedy: Text = ""
    at: Moment | None = None
    considered: tuple[Text, ...] = ()
    workers: Count = 0
    min_workers: Count = 0
    max_workers: Count = 0
    pause: PoolPause | None = None
    decisions: tuple[ScalingDecision, ...] = ()


class SeatChange(Part):
    """A claim that is to move to another planned worker.

    `number` is that of the claim within a reservation, None for a session.
    """

    booking: Name
    after: Positive
    number: Count | None = None


class PreviewRequest(Part):
    """A hypothetical booking, to ask whether and where it would be placed."""

    definition: Name
    namespace: Name = "default"
    timeslot_start: Moment | None = None
    timeslot_end: Moment | None = None
    duration_minutes: Minutes | None = None
    lab_track: ShortText = ""
    region_required: Region | None = None
    region_preferred: Region | None = None
    allow_spot: bool = False
    count: Annotated[int, msgspec.Meta(ge=1, le=400)] = 1
    recurrence: Recurrence | None = None


class Slot(Part):
    """The time [start, end) of a lab, without the time reserved around it."""

    start: Moment
    end: Moment


class SlotRequest(Part):
    """Starts to ask about, for one definition and duration: every `step_minutes` in [since, until)."""

    definition: Name
    duration_minutes: Minutes
    since: Moment
    until: Moment
    step_minutes: Annotated[int, msgspec.Meta(ge=5, le=1440)] = 30
    namespace: Name = "default"
    lab_track: ShortText = ""
    region_required: Region | None = None
    region_preferred: Region | None = None


class SlotOffer(Part, omit_defaults=True):
    """Whether a booking that starts then would be accepted, and what it would cost at most; else the reason."""

    start: Moment
    pool: ShortText = ""
    usd: Usd | None = None
    """What the session's share of its machine costs; null if no price is known."""
    why: ShortText = ""
    """One word: the reason of the refusal; "" if it would be accepted."""
    reason: Text = ""
    remedy: Text = ""


class SlotOffers(Part):
    """The starts in [since, until) that are still to come. A look that takes long ends early: ask on from `until`."""

    definition: Name
    since: Moment
    until: Moment
    usd: Usd | None = None
    """The lowest price of any pool that could take it, whenever it starts; null if none is known."""
    regions: tuple[Region, ...] = ()
    """Where the pools of its track have their machines: what a wish for a region may name."""
    slots: Annotated[tuple[SlotOffer, ...], msgspec.Meta(max_length=MAX_SLOTS)] = ()


class PlaceAnswer(Part):
    """Whether one worker or planned worker can take a session, and why not.

    `earliest` is the time from which it would accept the session, None for never.
    """

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
    """Where a session is or would be placed, why, and what helps if it is not."""

    outcome: Literal["assign", "scale_up", "wait", "promise", "refuse", "placed", "over"]
    why: ShortText
    """One word: the filter, or the reason of the refusal; "" if there is no obstacle."""
    reason: Text
    remedy: Text = ""
    slot: Slot | None = None
    seat: Seat | None = None
    worker: ShortText = ""
    region: ShortText = ""
    """Where its machine is or would be; "" if that is not known."""
    nearest: tuple[Slot, ...] = ()
    waiting: Waiting | None = None
    decision: SchedulingDecision | None = None
    places: Annotated[tuple[PlaceAnswer, ...], msgspec.Meta(max_length=MAX_PLACES)] = ()
    places_left_off: Count = 0
    usd: Usd | None = None
    """What it will cost: its share of a worker for as long as its claims; null if no price is known."""
    sessions: Positive = 1
    """How many sessions it is about."""


class Booked(Part):
    """A claim in the calendar. Callers who may not see the booking are not told whose it is."""

    start: Moment
    end: Moment
    slot: Slot
    share: Fraction | None = None
    """The part of the worker that it takes; null if its size is not known."""
    kind: Literal["LabletSession", "Reservation", ""] = ""
    name: ShortText = ""
    owner: ShortText = ""
    phase: ShortText = ""


class CalendarRow(Part):
    """The claims on one planned worker of a pool, or on one worker outside of pools."""

    namespace: Name
    pool: ShortText
    """"" for a worker outside of pools."""
    seat: Count
    worker: ShortText
    """"" for a planned worker that does not exist yet."""
    phase: ShortText
    booked: tuple[Booked, ...] = ()
    runs: tuple[Slot, ...] = ()
    """When a worker must run for these claims or always does, for staff only."""
    usd_hourly: Usd | None = None
    """What it then costs an hour, for staff only; null if that is not known."""


class CalendarView(Part):
    """The planned and existing workers in a span: all, or as many as have MAX_BOOKED claims together."""

    since: Moment
    until: Moment
    rows: Annotated[tuple[CalendarRow, ...], msgspec.Meta(max_length=MAX_ROWS)]
    rows_left_off: Count = 0
    packing: Mapping[str, PoolPacking] = {}
    """How well the bookings of each pool are packed, by namespace and name ("default/ccna"), for staff."""
