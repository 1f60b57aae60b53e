"""What becomes of a slot: the seat that was promised and what it waits for, or what each seat says to a slot.

Used by `explaining`.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from lcm.control.desk import Desk, kinds
from lcm.control.explaining_places import Asked
from lcm.control.plane import Ref
from lcm.model.capacity import Claim
from lcm.model.definition import LabletDefinition
from lcm.model.placing import Explanation, PlaceAnswer
from lcm.model.pool import LabWorkerPool
from lcm.model.session import LabletSession, Seat
from lcm.model.worker import LabWorker
from lcm.placement.ask import clock
from lcm.placement.limits import Rules
from lcm.placement.request import BOOTING, DRAINING
from lcm.placement.roster import Row, usable_from, worker_place
from lcm.placement.rules import REMEDIES as FILTERS
from lcm.placement.seating import REMEDIES, candidates, seat_for, why_not
from lcm.placement.terms import Terms, boot_lead, request_for, usual_boot

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
