"""Why a session goes where it goes, or does not; and what would become of one that somebody thinks about.

Nothing is decided or held here: it asks what the desk and the scheduler ask, and tells their answers to people. Nobody
learns from it whose sessions are in the way. Called by `local_placing`.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.admission.admit import Drafts
from lcm.control.booking.explain_places import Asked, Survey, Told, rejections, survey
from lcm.control.booking.guards import known_pools
from lcm.control.booking.promise import Desk, kinds
from lcm.control.booking.request import Booking
from lcm.control.objects.writer import Ledger
from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Fault, Invalid, NoRoom
from lcm.model.base.resource import Metadata, Truth, condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import MOST_PLACES, Explanation, PlaceAnswer, Slot, Wish
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import SESSION, LabletSession, LabletSessionSpec, Seat, SessionCondition
from lcm.model.kinds.worker import LabWorker
from lcm.placement.candidate import clock
from lcm.placement.claims import Terms, asap_length, booked_slot, boot_lead, need_of, request_for, usual_boot
from lcm.placement.limits import Rules
from lcm.placement.place import Placement, place
from lcm.placement.places import Row, session_holder, usable_from, worker_place
from lcm.placement.request import BOOTING, DRAINING, Request
from lcm.placement.rules import REMEDIES as FILTERS
from lcm.placement.rules import static_rejection
from lcm.placement.seat_choice import REMEDIES, candidates, seat_for, why_not
from lcm.placement.seat_choice import REMEDIES as SEATING

NO_SIZE: Final = "give the template an instance type that is known, or wait until one of its workers has reported"
_NO_POOL: Final = "make the pool anew, or book another slot"
_NOT_STARTED: Final = "see with `lcm describe pool` why the pool controller has not started one"
_WAIT: Final = FILTERS["booting"]
_Awaited = tuple[str, str, str]
"""A word, a sentence, and what helps."""


def promised(desk: Desk, session: LabletSession, seat: Seat, claim: Claim, now: datetime) -> Explanation:
    """Say which seat a session has, from when on, and what it still waits for."""
    terms = desk.calendar.terms
    row = desk.calendar.row(Ref(LabWorkerPool, seat.pool, session.metadata.namespace))
    worker = row.workers.get(seat.number) if row else None
    why, waits_for, remedy = _unsuited(desk, session, row, seat.number, claim) or _awaited(
        row, worker, claim, terms, now
    )
    held = f"seat {seat.pool}/{seat.number} is held for it from {clock(claim.start)} to {clock(claim.end)}"
    return Explanation(
        outcome="promise",
        why=why,
        reason=f"{held}; {waits_for}",
        remedy=remedy,
        seat=seat,
        worker=worker.metadata.name if worker else "",
    )


def _unsuited(desk: Desk, session: LabletSession, row: Row | None, number: int, claim: Claim) -> _Awaited | None:
    """Say why the seat that was promised is not for the session any more: its worker is of another kind."""
    ref = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
    alike, definition = kinds(row) if row else None, desk.calendar.get(ref)
    if alike is None or definition is None:
        return None
    away = alike.unsuited(request_for(session, definition, claim, desk.calendar.terms), [number])
    if number not in away:
        return None
    name, reason = away[number]
    return name, f"what fills it does not suit the session: {reason}", FILTERS[name]


def _awaited(row: Row | None, worker: LabWorker | None, claim: Claim, terms: Terms, now: datetime) -> _Awaited:
    if row is None:
        return "no_pool", "its pool is not there any more", _NO_POOL
    opens = claim.start - boot_lead(row.pool, terms)
    if worker is None:
        return _unfilled(now, opens)
    boot = usual_boot(row.pool, terms)
    usable = usable_from(worker, now, boot)
    if usable is None:
        return _unusable(worker, worker_place(worker, now, boot=boot).closed, now, opens)
    name = worker.metadata.name
    if usable <= now:
        return "", f"its worker {name} is up, and it goes there at {clock(max(claim.start, now))}", ""
    late = usable > claim.start
    return BOOTING * late, f"waiting for boot: its worker {name} can be used from {clock(usable)}", _WAIT * late


def _unusable(worker: LabWorker, closed: str, now: datetime, opens: datetime) -> _Awaited:
    name = worker.metadata.name
    if closed == DRAINING:
        return "draining", f"its worker {name} is being drained", FILTERS["draining"]
    if now < opens:
        return "", f"its worker {name} is started at {clock(opens)}", ""
    return "phase", f"its worker {name} takes no sessions: {closed}", FILTERS["phase"]


def _unfilled(now: datetime, opens: datetime) -> _Awaited:
    if now < opens:
        return "", f"its worker is started at {clock(opens)}", ""
    return "no_worker", f"it waits for a worker, which should have been started at {clock(opens)}", _NOT_STARTED


async def seat_answers(desk: Desk, asked: Asked) -> list[PlaceAnswer]:
    """Ask every seat of a namespace for a slot; of those that are alike and without any claim only the first."""
    rows = desk.calendar.rows(asked.session.metadata.namespace)
    ruled = [(row, await desk.rules(row, asked.now)) for row in rows]
    return [answer for row, rules in ruled for answer in _of_row(desk, row, rules, asked)]


def _of_row(desk: Desk, row: Row, rules: Rules, asked: Asked) -> Iterator[PlaceAnswer]:
    pool, seats, alike = row.pool.metadata.name, desk.calendar.seats(row), kinds(row)
    if seats is None or alike is None:
        reason = "it is not known what a worker of the pool holds"
        yield _no(pool, pool, "unknown_size", reason, NO_SIZE)
        return
    claim, away = asked.booked, alike.unsuited(asked.request, range(1, len(seats) + 1))
    assert claim is not None, "seats are asked for slots only"
    reasons = set(away.values())
    if len(away) == len(seats) and len(reasons) == 1:
        (why, reason) = reasons.pop()
        yield _no(pool, pool, why, reason, FILTERS[why])
        return
    for number in candidates(seats, rules):
        name = f"{pool}/{number}"
        if number in away:
            why, reason = away[number]
            yield _no(name, pool, why, reason, FILTERS[why])
        elif seat_for(seats, claim, rules, [number]) is not None:
            yield PlaceAnswer(place=name, kind="seat", pool=pool, fits=True, earliest=claim.start)
        else:
            why, reason = why_not(seats, claim, rules, [number])
            yield _no(name, pool, why, reason, REMEDIES[why])


def _no(place: str, pool: str, why: str, reason: str, remedy: str) -> PlaceAnswer:
    return PlaceAnswer(place=place, kind="seat", pool=pool, filter=why, reason=reason, remedy=remedy)


_ELSEWHERE: Final = frozenset({"lab_type", "track", "region"})
"""By these a place says only that it is for others."""
_RANKS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("license_affinity", "node_definitions", "cml_version", "licensed"), 1),
    **dict.fromkeys(("draining", "phase", "no_worker"), 3),
    **dict.fromkeys(("hours", "licences", "price_unknown", "hourly_budget", "monthly_budget"), 4),
}
"""The farther a place came, the more it says about what is in the way."""
_TOO_LARGE: Final = 2
_FARTHEST: Final = 5
_NO_PLACE: Final = "make a LabWorkerPool for the track, or add a worker"


async def waits(desk: Desk, asked: Asked) -> Explanation:
    """Decide about a session as the scheduler would, and say why."""
    found = await survey(desk, asked)
    request, strategy = asked.request, asked.terms.strategy
    placed, told = place(found.fleet, request, strategy), found.ask(request, strategy)
    decision = msgspec.structs.replace(placed.decision, rejections=() if _assigned(placed) else rejections(told))
    why, reason, remedy = _why(found, placed, told, request)
    taken = placed.place if placed.decision.action != "wait" else None
    answers = tuple(one.answer for one in told)
    return Explanation(
        outcome=decision.action,
        why=why,
        reason=reason,
        remedy=remedy,
        slot=_slot_at(asked, placed.at),
        seat=_seat(taken.name) if taken is not None and taken.seat else None,
        worker=taken.name if taken is not None and not taken.seat else "",
        waiting=asked.session.status.waiting,
        decision=decision,
        places=answers[:MOST_PLACES],
        places_left_off=found.left_off + max(0, len(answers) - MOST_PLACES),
    )


def _assigned(placed: Placement) -> bool:
    return placed.decision.action == "assign"


def _why(found: Survey, placed: Placement, told: Sequence[Told], request: Request) -> tuple[str, str, str]:
    """Say what is in the way in a word and in a sentence, and what helps."""
    if _assigned(placed):
        return "", placed.decision.reason, ""
    if not told and found.unsized:
        return "unknown_size", f"it is not known what a worker of pool {found.unsized[0]} holds", NO_SIZE
    if not told:
        return "no_pool", "there is neither a pool nor a worker in its namespace", _NO_PLACE
    culprit = _culprit(placed, told, request)
    why = "too_large" if culprit.hopeless else culprit.answer.filter
    said = f"{culprit.place.name}: {culprit.answer.reason}"
    others = sum(one.answer.filter == culprit.answer.filter for one in told) - 1
    likewise = f" ({others} more likewise)" if others else ""
    lead = placed.decision.reason if placed.place is not None else "no worker or seat takes it"
    return why, f"{lead}; {said}{likewise}{_unopened(found, culprit, told)}", culprit.answer.remedy


def _culprit(placed: Placement, told: Sequence[Told], request: Request) -> Told:
    """Pick the answer of the place it waits for, or else the one that says most."""
    awaited = placed.place.id if placed.place is not None else None
    for one in told:
        if one.place.id == awaited:
            return one
    return max(told, key=lambda one: _rank(one, request))


def _rank(told: Told, request: Request) -> int:
    asked = static_rejection(told.place, request)
    if asked is not None and asked[0] in _ELSEWHERE:
        return 0
    return _TOO_LARGE if told.hopeless else _RANKS.get(told.answer.filter, _FARTHEST)


def _unopened(found: Survey, culprit: Told, told: Sequence[Told]) -> str:
    """Say why no seat is opened meanwhile for one who waits for a worker."""
    closed = [one for one in told if one.place.id in found.barred and one.place.id != culprit.place.id]
    if not closed or culprit.place.seat:
        return ""
    return f"; no seat is opened for it: {closed[0].place.name}: {closed[0].answer.reason}"


def _slot_at(asked: Asked, at: datetime | None) -> Slot | None:
    """Say from when to when its lab would run."""
    spec = asked.session.spec
    if spec.timeslot_start is not None and spec.timeslot_end is not None:
        return Slot(start=spec.timeslot_start, end=spec.timeslot_end)
    if at is None:
        return None
    start = at + asked.terms.instantiation
    return Slot(start=start, end=start + asap_length(asked.session, start))


def _seat(name: str) -> Seat:
    pool, _, number = name.rpartition("/")
    return Seat(pool=pool, number=int(number))


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
