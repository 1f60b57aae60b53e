"""Why a session goes where it goes, or does not; and what would become of one that somebody thinks about.

Nothing is decided or held here: it asks what the desk and the scheduler ask, and tells their answers to people. Nobody
learns from it whose sessions are in the way. Called by `local_placing`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.bookings import Booking
from lcm.control.desk import Desk
from lcm.control.drafts import Drafts
from lcm.control.explaining_places import Asked
from lcm.control.explaining_seats import NO_SIZE, promised, seat_answers
from lcm.control.explaining_waiting import waits
from lcm.control.guards import known_pools
from lcm.control.ledger import Ledger
from lcm.control.plane import Ref, SessionRef
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Fault, Invalid, NoRoom
from lcm.model.placing import MOST_PLACES, Explanation, Slot, Wish
from lcm.model.reservation import Reservation, ReservationSpec
from lcm.model.resource import Metadata, Truth, condition
from lcm.model.session import SESSION, LabletSession, LabletSessionSpec, Seat, SessionCondition
from lcm.placement.ask import clock
from lcm.placement.roster import session_holder
from lcm.placement.rules import REMEDIES as FILTERS
from lcm.placement.seating import REMEDIES as SEATING
from lcm.placement.terms import booked_slot, need_of

_REMEDIES: Final[Mapping[str, str]] = {
    **FILTERS,
    **SEATING,
    "no_pool": "make a LabWorkerPool for the track, or ask for it as soon as possible instead",
    "unknown_size": NO_SIZE,
}
_NO_NEED: Final = "give it resource_requirements and node_count"
_LOOKED_AFTER: Final = "nothing need be done: the scheduler looks for another seat, and an alert tells the operators"
_SPEC: Final = "spec."


async def explain(book: Ledger, desk: Desk, ref: SessionRef) -> Explanation:
    """Tell why a session is where it is, or what it waits for; Gone for what the caller may not see."""
    session = await book.read(ref)
    await desk.calendar.ready()
    await desk.calendar.until(session.metadata.resource_version)
    now, status = book.clock.now(), session.status
    if status.phase in SESSION.final:
        return _over(session)
    if status.worker_id is not None:
        return _at_risk(session, _placed(desk, session))
    if session.spec.timeslot_start is not None and status.seat is not None and status.claim is not None:
        found = promised(desk, session, status.seat, status.claim, now)
        return _at_risk(session, msgspec.structs.replace(found, slot=_slot(session)))
    definition = desk.calendar.get(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))
    return await _waiting(desk, session, definition, now, holder=session_holder(session))


async def preview(book: Ledger, desk: Desk, wish: Wish) -> Explanation:
    """Tell what would become of a booking, without making it; Invalid for what could not be booked at any time."""
    session, definition = await _drafted(book, wish)
    await desk.calendar.ready()
    await desk.calendar.until(await known_pools(book.store, wish.namespace))
    now = book.clock.now()
    need = need_of(session, definition)
    if session.spec.timeslot_start is None or need is None:
        return await _waiting(desk, session, definition, now)
    asked = Asked(session, definition, need, desk.calendar.terms, now)
    booking: Booking = session if wish.count == 1 else await _several(book, wish)
    places = await seat_answers(desk, asked) if wish.count == 1 else []
    found = await _promise(desk, booking, definition)
    left_off = max(0, len(places) - MOST_PLACES)
    slot = _slot(session)
    return msgspec.structs.replace(found, slot=slot, places=tuple(places[:MOST_PLACES]), places_left_off=left_off)


async def _waiting(
    desk: Desk, session: LabletSession, definition: LabletDefinition | None, now: datetime, *, holder: str = ""
) -> Explanation:
    need = need_of(session, definition) if definition else None
    if definition is None or need is None:
        booked = session.spec.timeslot_start is not None
        reason = f"{session.spec.definition} does not say what it needs"
        return Explanation(outcome="refuse" if booked else "wait", why="unknown_need", reason=reason, remedy=_NO_NEED)
    return await waits(desk, Asked(session, definition, need, desk.calendar.terms, now, holder))


async def _promise(desk: Desk, booking: Booking, definition: LabletDefinition) -> Explanation:
    try:
        found = await desk.refusal_or_seat(booking, definition)
    except NoRoom as error:
        remedy = _REMEDIES.get(error.why, "")
        reason = str(error).removesuffix(f"; {remedy}")
        near = tuple(Slot(start=start, end=end) for start, end in error.nearest)
        return Explanation(outcome="refuse", why=error.why, reason=reason, remedy=remedy, nearest=near)
    seat = Seat(pool=found.row.pool.metadata.name, number=found.seats[0])
    seats = f"{len(found.seats)} claims on seats" if len(found.seats) > 1 else f"seat {seat.number}"
    held = f"from {clock(found.claims[0].start)} to {clock(found.claims[0].end)}"
    return Explanation(outcome="promise", why="", reason=f"pool {found.row.name} would hold {seats} {held}", seat=seat)


async def _drafted(book: Ledger, wish: Wish) -> tuple[LabletSession, LabletDefinition]:
    """Admit what somebody thinks about like a session; its faults are told by the wish's own fields."""
    if wish.count > 1 and wish.timeslot_start is None:
        remedy = "give timeslot_start and timeslot_end, or a count of 1"
        raise Invalid(Fault("count", "several are booked for a slot only", remedy))
    spec = LabletSessionSpec(
        definition=wish.definition,
        timeslot_start=wish.timeslot_start,
        timeslot_end=wish.timeslot_end,
        duration_minutes=wish.duration_minutes,
        lab_track=wish.lab_track,
        region_required=wish.region_required,
        region_preferred=wish.region_preferred,
    )
    try:
        draft = await _drafts(book).new(LabletSession(metadata=_metadata(wish), spec=spec))
    except Invalid as error:
        told = [Fault(one.path.removeprefix(_SPEC), one.problem, one.remedy) for one in error.faults]
        raise Invalid(*told) from error
    assert isinstance(draft.target, LabletDefinition), "a session is admitted with its definition"
    return draft.edit.after, draft.target


async def _several(book: Ledger, wish: Wish) -> Reservation:
    start, end = wish.timeslot_start, wish.timeslot_end
    assert start is not None, "it was admitted as a session before"
    assert end is not None, "likewise"
    spec = ReservationSpec(
        definition=wish.definition,
        timeslot_start=start,
        timeslot_end=end,
        count=wish.count,
        lab_track=wish.lab_track,
        region_required=wish.region_required,
    )
    return (await _drafts(book).new(Reservation(metadata=_metadata(wish), spec=spec))).edit.after


def _drafts(book: Ledger) -> Drafts:
    return Drafts(book, lambda: "")


def _metadata(wish: Wish) -> Metadata:
    return Metadata(name="preview", namespace=wish.namespace)


def _over(session: LabletSession) -> Explanation:
    status = session.status
    last = status.history[-1].reason if status.history else ""
    details = status.outcome_reason or status.last_error or last
    reason = f"it is {status.phase}" + (f": {details}" if details else "")
    return Explanation(outcome="over", why="", reason=reason, decision=status.last_decision)


def _placed(desk: Desk, session: LabletSession) -> Explanation:
    status = session.status
    worker = desk.calendar.worker(status.worker_id or "")
    name = status.worker_name or (worker.metadata.name if worker else status.worker_id or "")
    on_seat = f", which fills seat {status.seat.pool}/{status.seat.number}" if status.seat else ""
    return Explanation(
        outcome="placed",
        why="",
        reason=f"it is {status.phase} on {name}{on_seat}",
        slot=_slot(session),
        seat=status.seat,
        worker=name,
        decision=status.last_decision,
    )


def _at_risk(session: LabletSession, found: Explanation) -> Explanation:
    """Say first what endangers a promise."""
    risk = condition(session.status.conditions, SessionCondition.AT_RISK)
    if risk is None or risk.status is not Truth.TRUE:
        return found
    reason = f"{risk.message or risk.reason}; {found.reason}"
    return msgspec.structs.replace(found, why="at_risk", reason=reason, remedy=_LOOKED_AFTER)


def _slot(session: LabletSession) -> Slot | None:
    spec, claim = session.spec, session.status.claim
    if claim is not None:
        start, end = booked_slot(session, claim)
        return Slot(start=start, end=end) if start < end else None
    if spec.timeslot_start is None or spec.timeslot_end is None:
        return None
    return Slot(start=spec.timeslot_start, end=spec.timeslot_end)
