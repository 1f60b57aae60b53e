"""Why a session goes where it goes, or does not; and what would become of one that is only considered.

Nothing is decided or held here: it asks what `Promises` and the scheduler ask, and words their answers for people.
Nobody learns from it whose sessions are in the way. It explains promised seats, what each seat answers to a slot, and
the scheduler's decision about a session without a seat. Called by `control.plane.local_operations`.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.admission.admit import Admission
from lcm.control.booking.estimates import price_booking, price_claim, price_session
from lcm.control.booking.explain_places import (
    ExplainedPlace,
    PlacementQuery,
    PlaceSurvey,
    count_rejections,
    survey_places,
)
from lcm.control.booking.guards import pools_revision
from lcm.control.booking.promise import NO_POOL_REMEDY, UNKNOWN_SIZE_REMEDY, Promises, seat_kinds
from lcm.control.booking.request import Booking
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Fault, Invalid, NoRoom
from lcm.model.base.resource import Metadata, Truth, find_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import MAX_PLACES, Explanation, PlaceAnswer, PreviewRequest, Slot
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, LabletSessionSpec, Seat, SessionCondition
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.billing import to_usd
from lcm.model.money.split import PricedClaim
from lcm.placement.candidate import format_moment
from lcm.placement.claims import Terms, asap_length, booked_slot, boot_lead, need_of, request_for, usual_boot
from lcm.placement.limits import PromiseRules
from lcm.placement.place import Placement, place
from lcm.placement.places import PoolSnapshot, session_holder, usable_from, worker_place
from lcm.placement.request import BOOTING, DRAINING, PlacementRequest
from lcm.placement.rules import FILTER_REMEDIES as FILTERS
from lcm.placement.rules import static_rejection
from lcm.placement.seat_choice import SEAT_REMEDIES, candidate_seats, choose_seat, explain_refusal

_NO_POOL_REMEDY: Final = "create the pool again, or book another slot"
_NOT_STARTED_REMEDY: Final = "check with `lcm describe pool` why the pool controller has not started one"
_BOOTING_REMEDY: Final = FILTERS["booting"]
_WaitReason = tuple[str, str, str]
"""A word, a sentence, and a remedy."""


def explain_promised(
    promises: Promises, session: LabletSession, seat: Seat, claim: Claim, now: datetime
) -> Explanation:
    """Explain which seat a session has, from when on, and what it still waits for."""
    terms = promises.calendar.terms
    row = promises.calendar.pool(Ref(LabWorkerPool, seat.pool, session.metadata.namespace))
    worker = row.workers.get(seat.number) if row else None
    why, waits_for, remedy = _explain_unsuitable(promises, session, row, seat.number, claim) or _explain_wait(
        row, worker, claim, terms, now
    )
    span = f"from {format_moment(claim.start)} to {format_moment(claim.end)}"
    held = f"planned worker {seat.pool}/{seat.number} is held for it {span}"
    return Explanation(
        outcome="promise",
        why=why,
        reason=f"{held}; {waits_for}",
        remedy=remedy,
        seat=seat,
        worker=worker.metadata.name if worker else "",
        region=row.template.spec.worker.aws.region if row else "",
    )


def _explain_unsuitable(
    promises: Promises, session: LabletSession, row: PoolSnapshot | None, number: int, claim: Claim
) -> _WaitReason | None:
    """Return why the promised seat does not suit the session any more; None if it does.

    Its worker may be of another kind by now.
    """
    ref = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
    alike, definition = seat_kinds(row) if row else None, promises.calendar.get(ref)
    if alike is None or definition is None:
        return None
    away = alike.unsuitable_seats(request_for(session, definition, claim, promises.calendar.terms), [number])
    if number not in away:
        return None
    name, reason = away[number]
    return name, f"its worker does not suit the session: {reason}", FILTERS[name]


def _explain_wait(
    row: PoolSnapshot | None, worker: LabWorker | None, claim: Claim, terms: Terms, now: datetime
) -> _WaitReason:
    if row is None:
        return "no_pool", "its pool no longer exists", _NO_POOL_REMEDY
    opens = claim.start - boot_lead(row.pool, terms)
    if worker is None and now < opens:
        return "", f"its worker is started at {format_moment(opens)}", ""
    if worker is None:
        reason = f"it waits for a worker, which should have been started at {format_moment(opens)}"
        return "no_worker", reason, _NOT_STARTED_REMEDY
    boot = usual_boot(row.pool, terms)
    usable = usable_from(worker, now, boot)
    if usable is None:
        return _explain_unusable(worker, worker_place(worker, now, boot=boot).closed, now, opens)
    name = worker.metadata.name
    if usable <= now:
        return "", f"its worker {name} is up, and it goes there at {format_moment(max(claim.start, now))}", ""
    late = usable > claim.start
    return (
        BOOTING * late,
        f"waiting for boot: its worker {name} can be used from {format_moment(usable)}",
        _BOOTING_REMEDY * late,
    )


def _explain_unusable(worker: LabWorker, closed: str, now: datetime, opens: datetime) -> _WaitReason:
    name = worker.metadata.name
    if closed == DRAINING:
        return "draining", f"its worker {name} is being drained", FILTERS["draining"]
    if now < opens:
        return "", f"its worker {name} is started at {format_moment(opens)}", ""
    return "phase", f"its worker {name} takes no sessions: {closed}", FILTERS["phase"]


async def ask_seats(promises: Promises, asked: PlacementQuery) -> list[PlaceAnswer]:
    """Ask every seat of a namespace for a slot; of seats that are alike and have no claim only the first is asked."""
    rows = promises.calendar.pools(asked.session.metadata.namespace)
    ruled = [(row, await promises.read_rules(row, asked.now)) for row in rows]
    return [answer for row, rules in ruled for answer in _ask_pool_seats(promises, row, rules, asked)]


def _ask_pool_seats(
    promises: Promises, row: PoolSnapshot, rules: PromiseRules, asked: PlacementQuery
) -> Iterator[PlaceAnswer]:
    pool, seats, alike = row.pool.metadata.name, promises.calendar.seats(row), seat_kinds(row)
    if seats is None or alike is None:
        reason = "the size of the pool's workers is not known"
        yield _rejecting_answer(pool, pool, "unknown_size", reason, UNKNOWN_SIZE_REMEDY)
        return
    claim, away = asked.booked_claim, alike.unsuitable_seats(asked.request, range(1, len(seats) + 1))
    assert claim is not None, "seats are asked for slots only"
    reasons = set(away.values())
    if len(away) == len(seats) and len(reasons) == 1:
        (why, reason) = reasons.pop()
        yield _rejecting_answer(pool, pool, why, reason, FILTERS[why])
        return
    for number in candidate_seats(seats, rules):
        name = f"{pool}/{number}"
        if number in away:
            why, reason = away[number]
            yield _rejecting_answer(name, pool, why, reason, FILTERS[why])
        elif choose_seat(seats, claim, rules, [number]) is not None:
            yield PlaceAnswer(place=name, kind="seat", pool=pool, fits=True, earliest=claim.start)
        else:
            why, reason = explain_refusal(seats, claim, rules, [number])
            yield _rejecting_answer(name, pool, why, reason, SEAT_REMEDIES[why])


def _rejecting_answer(place: str, pool: str, why: str, reason: str, remedy: str) -> PlaceAnswer:
    return PlaceAnswer(place=place, kind="seat", pool=pool, filter=why, reason=reason, remedy=remedy)


_SCOPE_FILTERS: Final = frozenset({"lab_type", "track", "region", "market"})
"""A place that rejects by one of these says only that it is meant for other sessions."""
_FILTER_RANKS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("license_affinity", "node_definitions", "cml_version", "licensed"), 1),
    **dict.fromkeys(("draining", "phase", "no_worker"), 3),
    **dict.fromkeys(("hours", "licences", "price_unknown", "hourly_budget", "monthly_budget", "track_budget"), 4),
}
"""The more checks a place passed, the more its answer says about what is in the way."""
_TOO_LARGE_RANK: Final = 2
_HIGHEST_RANK: Final = 5
_NO_PLACE_REMEDY: Final = "make a LabWorkerPool for the track, or add a worker"


async def explain_waiting(promises: Promises, asked: PlacementQuery) -> Explanation:
    """Decide about a session as the scheduler would, and explain the decision."""
    found = await survey_places(promises, asked)
    request, strategy = asked.request, asked.terms.strategy
    placed, explained = place(found.fleet, request, strategy), found.ask_places(request, strategy)
    rejections = () if placed.decision.action == "assign" else count_rejections(explained)
    decision = msgspec.structs.replace(placed.decision, rejections=rejections)
    why, reason, remedy = _explain_decision(found, placed, explained, asked)
    taken = placed.place if placed.decision.action != "wait" else None
    answers = tuple(one.answer for one in explained)
    estimate = _queue_estimate(asked) if decision.action != "assign" else None
    if estimate is not None:  # decided for the whole queue, and not as if nobody stood before it
        decision = asked.session.status.last_decision or decision
    return Explanation(
        outcome=decision.action,
        why=why,
        reason=reason,
        remedy=remedy,
        slot=_expected_slot(asked, placed.at, estimate),
        seat=_parse_seat(taken.name) if taken is not None and taken.seat else None,
        worker=taken.name if taken is not None and not taken.seat else "",
        region=taken.region if taken is not None else "",
        waiting=asked.session.status.waiting,
        decision=decision,
        places=answers[:MAX_PLACES],
        places_left_off=found.left_off + max(0, len(answers) - MAX_PLACES),
    )


def _queue_estimate(asked: PlacementQuery) -> datetime | None:
    """Return when a session that waits starts, as the scheduler estimates for the whole queue; None if not known."""
    waiting = asked.session.status.waiting
    return waiting.estimated_start if waiting else None


def _explain_decision(
    found: PlaceSurvey, placed: Placement, explained: Sequence[ExplainedPlace], asked: PlacementQuery
) -> tuple[str, str, str]:
    """Return what is in the way, in a word and in a sentence, and the remedy.

    A session with an estimate is told no other time: when a place would be free if nobody stood before it is no answer.
    """
    request, waiting = asked.request, asked.session.status.waiting
    if placed.decision.action == "assign":
        return "", placed.decision.reason, ""
    if not explained and found.unsized:
        return "unknown_size", f"the size of the workers of pool {found.unsized[0]} is not known", UNKNOWN_SIZE_REMEDY
    if not explained:
        return "no_pool", "there is neither a pool nor a worker in its namespace", _NO_PLACE_REMEDY
    culprit = _decisive_place(placed, explained, request)
    why = "too_large" if culprit.hopeless else culprit.answer.filter
    rejection = f"{culprit.place.name}: {culprit.answer.reason}"
    others = sum(one.answer.filter == culprit.answer.filter for one in explained) - 1
    likewise = f" ({others} more for the same reason)" if others else ""
    lead = placed.decision.reason if placed.place is not None else "no worker or planned worker takes it"
    if waiting is not None and waiting.estimated_start is not None:
        lead = waiting.basis
    return why, f"{lead}; {rejection}{likewise}{_explain_unopened(found, culprit, explained)}", culprit.answer.remedy


def _decisive_place(
    placed: Placement, explained: Sequence[ExplainedPlace], request: PlacementRequest
) -> ExplainedPlace:
    """Return the answer of the place that the session waits for, or else the most informative one."""
    awaited = placed.place.id if placed.place is not None else None
    for one in explained:
        if one.place.id == awaited:
            return one
    return max(explained, key=lambda one: _rank(one, request))


def _rank(explained: ExplainedPlace, request: PlacementRequest) -> int:
    asked = static_rejection(explained.place, request)
    if asked is not None and asked[0] in _SCOPE_FILTERS:
        return 0
    return _TOO_LARGE_RANK if explained.hopeless else _FILTER_RANKS.get(explained.answer.filter, _HIGHEST_RANK)


def _explain_unopened(found: PlaceSurvey, culprit: ExplainedPlace, explained: Sequence[ExplainedPlace]) -> str:
    """Return why no seat is opened meanwhile for a session that waits for a worker; "" if none applies."""
    closed = [one for one in explained if one.place.id in found.barred and one.place.id != culprit.place.id]
    if not closed or culprit.place.seat:
        return ""
    return f"; no planned worker is started for it: {closed[0].place.name}: {closed[0].answer.reason}"


def _expected_slot(asked: PlacementQuery, at: datetime | None, estimate: datetime | None) -> Slot | None:
    """Return from when to when the session's lab would run, by the queue's estimate if any; None if not known."""
    spec = asked.session.spec
    if spec.timeslot_start is not None and spec.timeslot_end is not None:
        return Slot(start=spec.timeslot_start, end=spec.timeslot_end)
    if at is None and estimate is None:
        return None
    start = estimate or (at or asked.now) + asked.terms.instantiation
    return Slot(start=start, end=start + asap_length(asked.session, start))


def _parse_seat(name: str) -> Seat:
    pool, _, number = name.rpartition("/")
    return Seat(pool=pool, number=int(number))


_REMEDIES: Final[Mapping[str, str]] = {
    **FILTERS,
    **SEAT_REMEDIES,
    "no_pool": NO_POOL_REMEDY,
    "unknown_size": UNKNOWN_SIZE_REMEDY,
}
_UNKNOWN_NEED_REMEDY: Final = "set its resource_requirements and node_count"
_AT_RISK_REMEDY: Final = "nothing to do: the scheduler looks for another planned worker, and operators get an alert"
_SPEC_PREFIX: Final = "spec."


async def explain(writer: Writer, promises: Promises, ref: SessionRef) -> Explanation:
    """Explain why a session is where it is, or what it waits for; raise Gone if the caller may not see it."""
    session = await writer.read(ref)
    await promises.calendar.ready()
    await promises.calendar.wait_for_revision(session.metadata.resource_version)
    now, status = writer.clock.now(), session.status
    if status.phase in SESSION_MACHINE.final:
        last = status.history[-1].reason if status.history else ""
        details = status.outcome_reason or status.last_error or last
        reason = f"it is {status.phase}" + (f": {details}" if details else "")
        return Explanation(outcome="over", why="", reason=reason, decision=status.last_decision)
    if status.worker_id is not None:
        return _with_price(promises, session, _with_risk(session, _explain_placed(promises, session)), now)
    if session.spec.timeslot_start is not None and status.seat is not None and status.claim is not None:
        found = explain_promised(promises, session, status.seat, status.claim, now)
        found = _with_risk(session, msgspec.structs.replace(found, slot=_slot_of_session(session)))
        return _with_price(promises, session, found, now)
    definition = promises.calendar.get(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))
    found = await _explain_unplaced(promises, session, definition, now, holder=session_holder(session))
    return _with_price(promises, session, found, now)


async def preview(writer: Writer, promises: Promises, request: PreviewRequest) -> Explanation:
    """Explain what would become of a booking without making it; raise Invalid if it could never be booked."""
    session, definition = await draft_session(writer, request)
    await promises.calendar.ready()
    await promises.calendar.wait_for_revision(await pools_revision(writer.store, request.namespace))
    several = request.count > 1 or request.recurrence is not None
    booking: Booking = await _draft_reservation(writer, request) if several else session
    try:
        if promises.quota is not None:
            await promises.quota.check_new(writer.caller, [booking])
    except NoRoom as error:
        return _explain_refusal(error)
    now = writer.clock.now()
    need = need_of(session, definition)
    if session.spec.timeslot_start is None or need is None:
        found = await _explain_unplaced(promises, session, definition, now)
        refused = found.outcome == "wait" and await _is_unhostable(promises, session, definition)
        found = msgspec.structs.replace(found, outcome="refuse") if refused else found
        return _with_cost(found, price_booking(promises.calendar, session, definition, now))
    asked = PlacementQuery(session, definition, need, promises.calendar.terms, now)
    places = [] if several else await ask_seats(promises, asked)
    found = await _preview_promise(promises, booking, definition)
    left_off = max(0, len(places) - MAX_PLACES)
    slot = _slot_of_session(session)
    return msgspec.structs.replace(found, slot=slot, places=tuple(places[:MAX_PLACES]), places_left_off=left_off)


async def _explain_unplaced(
    promises: Promises, session: LabletSession, definition: LabletDefinition | None, now: datetime, *, holder: str = ""
) -> Explanation:
    need = need_of(session, definition) if definition else None
    if definition is None or need is None:
        booked = session.spec.timeslot_start is not None
        reason = f"{session.spec.definition} does not say what it needs"
        return Explanation(
            outcome="refuse" if booked else "wait", why="unknown_need", reason=reason, remedy=_UNKNOWN_NEED_REMEDY
        )
    return await explain_waiting(
        promises, PlacementQuery(session, definition, need, promises.calendar.terms, now, holder)
    )


async def _is_unhostable(promises: Promises, session: LabletSession, definition: LabletDefinition) -> bool:
    try:
        await promises.refuse_unhostable(session, definition)
    except NoRoom:
        return True
    return False


async def _preview_promise(promises: Promises, booking: Booking, definition: LabletDefinition) -> Explanation:
    try:
        found = await promises.preview_seats(booking, definition)
    except NoRoom as error:
        return _explain_refusal(error)
    seat = Seat(pool=found.row.pool.metadata.name, number=found.seats[0])
    seats = f"{len(found.seats)} claims on planned workers" if len(found.seats) > 1 else f"planned worker {seat.number}"
    held = f"from {format_moment(found.claims[0].start)} to {format_moment(found.claims[0].end)}"
    reason, region = f"pool {found.row.name} would hold {seats} {held}", found.row.template.spec.worker.aws.region
    made = Explanation(outcome="promise", why="", reason=reason, seat=seat, region=region)
    return _with_cost(made, [price_claim(promises.calendar, found.row, claim) for claim in found.claims])


def _with_price(promises: Promises, session: LabletSession, found: Explanation, now: datetime) -> Explanation:
    """Return an explanation with what a session costs that is not over."""
    return _with_cost(found, list(price_session(promises.calendar, session, now)))


def _with_cost(found: Explanation, claims: Sequence[PricedClaim]) -> Explanation:
    """Return an explanation with what claims cost together."""
    costs = [one.micros(one.start, one.end) for one in claims]
    known = [one for one in costs if one is not None]
    usd = to_usd(sum(known)) if known and len(known) == len(costs) else None
    return msgspec.structs.replace(found, usd=usd, sessions=max(1, len(claims)))


def split_refusal(error: NoRoom) -> tuple[str, str]:
    """Return why a booking is refused, and what helps."""
    remedy = error.remedy or _REMEDIES.get(error.why, "")
    return str(error).removesuffix(f"; {remedy}"), remedy


def _explain_refusal(error: NoRoom) -> Explanation:
    reason, remedy = split_refusal(error)
    near = tuple(Slot(start=start, end=end) for start, end in error.nearest)
    return Explanation(outcome="refuse", why=error.why, reason=reason, remedy=remedy, nearest=near)


async def draft_session(writer: Writer, request: PreviewRequest) -> tuple[LabletSession, LabletDefinition]:
    """Admit the wish like a session; faults are reported under the names of the wish's own fields."""
    if (request.count > 1 or request.recurrence is not None) and request.timeslot_start is None:
        remedy = "set timeslot_start and timeslot_end, or a count of 1"
        raise Invalid(Fault("count", "several sessions can be booked for a slot only", remedy))
    spec = LabletSessionSpec(
        definition=request.definition,
        timeslot_start=request.timeslot_start,
        timeslot_end=request.timeslot_end,
        duration_minutes=request.duration_minutes,
        lab_track=request.lab_track,
        region_required=request.region_required,
        region_preferred=request.region_preferred,
        allow_spot=request.allow_spot,
    )
    try:
        draft = await _drafts(writer).admit_new(LabletSession(metadata=_preview_metadata(request), spec=spec))
    except Invalid as error:
        faults = [Fault(one.path.removeprefix(_SPEC_PREFIX), one.problem, one.remedy) for one in error.faults]
        raise Invalid(*faults) from error
    assert isinstance(draft.target, LabletDefinition), "a session is admitted with its definition"
    return draft.edit.after, draft.target


async def _draft_reservation(writer: Writer, request: PreviewRequest) -> Reservation:
    start, end = request.timeslot_start, request.timeslot_end
    assert start is not None, "it was admitted as a session before"
    assert end is not None, "likewise"
    spec = ReservationSpec(
        definition=request.definition,
        timeslot_start=start,
        timeslot_end=end,
        count=request.count,
        recurrence=request.recurrence,
        lab_track=request.lab_track,
        region_required=request.region_required,
        region_preferred=request.region_preferred,
    )
    return (await _drafts(writer).admit_new(Reservation(metadata=_preview_metadata(request), spec=spec))).edit.after


def _drafts(writer: Writer) -> Admission:
    return Admission(writer, lambda: "")


def _preview_metadata(request: PreviewRequest) -> Metadata:
    return Metadata(name="preview", namespace=request.namespace)


def _explain_placed(promises: Promises, session: LabletSession) -> Explanation:
    status = session.status
    worker = promises.calendar.worker(status.worker_id or "")
    name = status.worker_name or (worker.metadata.name if worker else status.worker_id or "")
    on_seat = f", which is planned worker {status.seat.pool}/{status.seat.number}" if status.seat else ""
    return Explanation(
        outcome="placed",
        why="",
        reason=f"it is {status.phase} on {name}{on_seat}",
        slot=_slot_of_session(session),
        seat=status.seat,
        worker=name,
        region=worker.spec.aws.region if worker else "",
        decision=status.last_decision,
    )


def _with_risk(session: LabletSession, found: Explanation) -> Explanation:
    """Put what endangers the promise first, if anything does."""
    risk = find_condition(session.status.conditions, SessionCondition.AT_RISK)
    if risk is None or risk.status is not Truth.TRUE:
        return found
    reason = f"{risk.message or risk.reason}; {found.reason}"
    return msgspec.structs.replace(found, why="at_risk", reason=reason, remedy=_AT_RISK_REMEDY)


def _slot_of_session(session: LabletSession) -> Slot | None:
    spec, claim = session.spec, session.status.claim
    if claim is not None:
        start, end = booked_slot(session, claim)
        return Slot(start=start, end=end) if start < end else None
    if spec.timeslot_start is None or spec.timeslot_end is None:
        return None
    return Slot(start=spec.timeslot_start, end=spec.timeslot_end)
