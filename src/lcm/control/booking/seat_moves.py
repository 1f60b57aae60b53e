"""Claims that come onto a pool's seats without being booked there: those of sessions that wait, and those that move.

Used by `scheduling` for the first; `reseat` is the pool controller's. Bookings are promised by `desk`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.booking.calendar import PoolRef
from lcm.control.booking.guards import is_guard
from lcm.control.booking.promise import Desk, kinds
from lcm.control.booking.request import request_of
from lcm.control.booking.snapshot import NO_SIZE, read_ground
from lcm.control.objects.records import Record
from lcm.control.objects.steps import stepped
from lcm.control.objects.writer import Edit, Ledger, missing, persistently
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid, NoRoom, TooLarge
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import Budget, LabWorkerPool
from lcm.model.kinds.reservation import RESERVATION, Reservation
from lcm.model.kinds.session import LabletSession, Seat, requires_worker_assignment
from lcm.placement.limits import OPENING, Rules
from lcm.placement.places import Row, reservation_holder, session_holder
from lcm.placement.repack import MOST_AT_ONCE
from lcm.placement.request import Held
from lcm.placement.rules import REMEDIES as FILTERS
from lcm.placement.seat_choice import REMEDIES, seat_for, why_not
from lcm.placement.seats import Seats

LENIENCE: Final = timedelta(minutes=1)
"""A plan is a moment old when it comes to be checked, and machines would be up a moment later than it says."""


@dataclass(frozen=True, slots=True)
class Move:
    """A claim on its way to another seat."""

    record: Record[Any]
    held: Held
    before: int
    after: int


def seats_in(desk: Desk, row: Row | None) -> tuple[Row, Seats]:
    """Give a pool's seats; NoRoom if it has none."""
    if row is None or row.pool.metadata.deletion_timestamp is not None:
        raise NoRoom("the pool of the seat is not there any more, or is being deleted: choose another", why="no_pool")
    seats = desk.calendar.seats(row)
    if seats is None:
        raise NoRoom(f"it is not known what a worker of pool {row.name} holds: wait until one reports", why=NO_SIZE)
    return row, seats


def refuse_unless_seated(row: Row, seats: Seats, number: int, claim: Claim, rules: Rules) -> None:
    """Raise NoRoom if a seat does not take a claim."""
    if not 1 <= number <= len(seats):
        raise NoRoom(f"pool {row.name} has no seat {number}: choose another", why="no_pool")
    if number not in rules.usable and rules.policy not in OPENING:
        raise NoRoom(f"pool {row.name}: seat {number} has no worker; {REMEDIES['no_worker']}", why="no_worker")
    if seat_for(seats, claim, rules, [number]) is None:
        why, details = why_not(seats, claim, rules, [number])
        raise NoRoom(f"pool {row.name}: {details}; {REMEDIES[why]}", why=why)


def for_promised(rules: Rules) -> Rules:
    """Leave out what is asked at booking only: hours and budgets hold nothing back that is promised."""
    return replace(rules, hours=None, budget=Budget())


@contextmanager
def without(seats: Seats, row: Row, session: LabletSession) -> Iterator[None]:
    """See a pool's seats without what a session has there. Nothing may be awaited meanwhile."""
    seat, holder = session.status.seat, session_holder(session)
    there = seat is not None and seat.pool == row.pool.metadata.name and 1 <= seat.number <= len(seats)
    held = seats.release(seat.number, holder) if seat is not None and there else None
    try:
        yield
    finally:
        if seat is not None and held is not None:
            seats.hold(seat.number, held)


async def reseat(book: Ledger, desk: Desk, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
    """Let claims change their seats, all or none."""
    if book.caller.actor != POOL_CONTROLLER:
        raise Forbidden(f"only {POOL_CONTROLLER} may change seats")
    if len(changes) > MOST_AT_ONCE:
        raise TooLarge(f"{len(changes)} changes of seats at once; the limit is {MOST_AT_ONCE}")
    if len({(one.booking, one.number) for one in changes}) < len(changes):
        raise Invalid(Fault("changes", "the same claim twice", "keep one of them"))
    await desk.calendar.ready()
    ref = ref_of((await book.need(pool)).resource)
    # Of a booking that changed meanwhile the pool controller is told: it planned with what it was before.
    await persistently(
        lambda: _reseat(book, desk, ref, changes),
        unless=lambda error: not is_guard(error.key) and error.key != ref.key,
        pause=desk.breathe,
    )


async def _reseat(book: Ledger, desk: Desk, pool: PoolRef, changes: Sequence[SeatChange]) -> None:
    now = book.clock.now()
    ground = await read_ground(book.store, desk.calendar, pool=pool, adds=True)
    records = {ref: await _found(book, ref) for ref in {_booking(pool, one): None for one in changes}}
    await desk.calendar.until(max((one.revision for one in records.values()), default=0))
    moves = [_move(records[_booking(pool, one)], one, pool.name, now) for one in changes]
    moves = [one for one in moves if one.before != one.after]
    row, seats = seats_in(desk, ground.row)
    rules = for_promised(await desk.rules(row, now - LENIENCE))
    _refuse_unsuited(desk, row, moves)
    _try(row, seats, moves, rules)
    if moves:
        edits = _edits(moves, pool.name, book, now)
        await book.commit(*edits, ops=ground.ops(row.pool.metadata.uid), reported=True)


def _booking(pool: PoolRef, change: SeatChange) -> Ref[Any]:
    kind: type[Any] = LabletSession if change.number is None else Reservation
    return Ref(kind, change.booking, pool.namespace)


async def _found(book: Ledger, ref: Ref[Any]) -> Record[Any]:
    record = await book.find(ref)
    if record is None:
        raise Conflict(ref.key, wanted=0, found=0, message=str(missing(ref)))
    return record


def _move(record: Record[Any], change: SeatChange, pool: str, now: datetime) -> Move:
    """Find the claim that is to move; Conflict if it is not there any more, or must stay where it is."""
    claim, seat, holder = _claim(record.resource, change)
    if claim is None or seat is None or seat.pool != pool or claim.start <= now:
        told = f"a claim of {change.booking} is not one that may change its seat in pool {pool} any more: look again"
        raise Conflict(record.key, wanted=record.revision, found=record.revision, message=told)
    return Move(record, Held(holder, claim), seat.number, change.after)


def _claim(booking: LabletSession | Reservation, change: SeatChange) -> tuple[Claim | None, Seat | None, str]:
    if isinstance(booking, LabletSession):
        movable = requires_worker_assignment(booking)
        return booking.status.claim if movable else None, booking.status.seat, session_holder(booking)
    live = booking.status.phase not in RESERVATION.final
    own = [one for one in booking.status.held if live and one.number == change.number and one.session is None]
    holder = reservation_holder(booking, change.number or 0)
    return (own[0].claim, own[0].seat, holder) if own else (None, None, holder)


def _refuse_unsuited(desk: Desk, row: Row, moves: Sequence[Move]) -> None:
    """Raise NoRoom if a claim would come onto a seat whose worker is of another kind than it asks for."""
    alike = kinds(row)
    assert alike is not None, "its seats are known"
    for move in moves:
        booking = move.record.resource
        definition = desk.calendar.get(Ref(LabletDefinition, booking.spec.definition, booking.metadata.namespace))
        if definition is None:
            continue
        asked = request_of(booking, definition, move.held.claim, desk.calendar.terms)
        away = alike.unsuited(asked, [move.after])
        if move.after in away:
            why, reason = away[move.after]
            raise NoRoom(f"pool {row.name}: seat {move.after}: {reason}; {FILTERS[why]}", why=why)


def _try(row: Row, seats: Seats, moves: Sequence[Move], rules: Rules) -> None:
    """Raise NoRoom if claims would not all fit on their new seats; the seats are left as they were."""
    left, come = list[Move](), list[Move]()
    try:
        for move in moves:
            if move.before > len(seats) or seats.release(move.before, move.held.holder) is None:
                raise Conflict(move.record.key, wanted=move.record.revision, found=move.record.revision)
            left.append(move)
        for move in moves:
            refuse_unless_seated(row, seats, move.after, move.held.claim, rules)
            seats.hold(move.after, move.held)
            come.append(move)
    finally:
        for move in come:
            seats.release(move.after, move.held.holder)
        for move in left:
            seats.hold(move.before, move.held)


def _edits(moves: Sequence[Move], pool: str, book: Ledger, now: datetime) -> Sequence[Edit[Any]]:
    """Put every booking's new seats into one change of it."""
    by_key: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        by_key[move.record.key].append(move)
    return [
        _edit(own, {one.held.holder: Seat(pool=pool, number=one.after) for one in own}, book, now)
        for own in by_key.values()
    ]


def _edit(moves: Sequence[Move], seats: Mapping[str, Seat], book: Ledger, now: datetime) -> Edit[Any]:
    record = moves[0].record
    booking, status = record.resource, record.resource.status
    if isinstance(booking, LabletSession):
        status = msgspec.structs.replace(status, seat=seats[session_holder(booking)])
    else:
        held = (
            msgspec.structs.replace(one, seat=seats.get(reservation_holder(booking, one.number), one.seat))
            for one in booking.status.held
        )
        status = msgspec.structs.replace(status, held=tuple(held))
    after = stepped(booking, status, by=book.caller.actor, author=book.author, now=now)
    return Edit(record, after)
