"""Claims that come onto a pool's seats without being booked there: of waiting sessions, and of moved bookings.

`control.booking.schedule` uses it for the first; `reseat` is for the pool controller. Bookings are promised by
`control.booking.promise`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.booking.calendar import PoolRef
from lcm.control.booking.guards import is_guard
from lcm.control.booking.promise import Promises, seat_kinds
from lcm.control.booking.request import request_of
from lcm.control.booking.snapshot import UNKNOWN_SIZE, read_snapshot
from lcm.control.objects.records import Record
from lcm.control.objects.steps import take_step
from lcm.control.objects.writer import Edit, Writer, missing_error, retry_conflicts
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid, NoRoom, TooLarge
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.pool import Budget, LabWorkerPool
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import LabletSession, Seat, requires_worker_assignment
from lcm.placement.hours import ALWAYS_OPEN
from lcm.placement.limits import OPENING_POLICIES, PromiseRules
from lcm.placement.pack_steps import MOST_MOVES
from lcm.placement.places import PoolSnapshot, reservation_holder, session_holder
from lcm.placement.request import HeldClaim
from lcm.placement.rules import FILTER_REMEDIES as FILTERS
from lcm.placement.seat_choice import SEAT_REMEDIES, choose_seat, explain_refusal
from lcm.placement.seats import Seats

PLAN_AGE_TOLERANCE: Final = timedelta(minutes=1)
"""A plan is a moment old when it is checked, and by then machines would be up a moment later than it says."""


@dataclass(frozen=True, slots=True)
class BookingMove:
    """A claim that moves to another seat, with the record of its booking."""

    record: Record[Any]
    held: HeldClaim
    before: int
    after: int


def require_seats(promises: Promises, row: PoolSnapshot | None) -> tuple[PoolSnapshot, Seats]:
    """Return a pool and its seats; raise NoRoom if it has none."""
    if row is None or row.pool.metadata.deletion_timestamp is not None:
        raise NoRoom("the pool of the planned worker is gone or being deleted: choose another", why="no_pool")
    seats = promises.calendar.seats(row)
    if seats is None:
        raise NoRoom(
            f"the size of the workers of pool {row.name} is not known: wait until one reports", why=UNKNOWN_SIZE
        )
    return row, seats


def refuse_unless_seat_takes(row: PoolSnapshot, seats: Seats, number: int, claim: Claim, rules: PromiseRules) -> None:
    """Raise NoRoom if a seat does not take a claim."""
    if not 1 <= number <= len(seats):
        raise NoRoom(f"pool {row.name} has no planned worker {number}: choose another", why="no_pool")
    if number not in rules.usable and rules.policy not in OPENING_POLICIES:
        raise NoRoom(
            f"pool {row.name}: planned worker {number} is not running; {SEAT_REMEDIES['no_worker']}", why="no_worker"
        )
    if choose_seat(seats, claim, rules, [number]) is None:
        why, details = explain_refusal(seats, claim, rules, [number])
        raise NoRoom(f"pool {row.name}: {details}; {SEAT_REMEDIES[why]}", why=why)


def rules_for_promised(rules: PromiseRules) -> PromiseRules:
    """Return rules without hours and budgets: these are checked at booking only and never hold back a promise."""
    return replace(rules, times=ALWAYS_OPEN, budget=Budget(), track=None)


@contextmanager
def without_session(seats: Seats, row: PoolSnapshot, session: LabletSession) -> Iterator[None]:
    """Release what a session holds on a pool's seats inside the block. Nothing may be awaited in it."""
    seat, holder = session.status.seat, session_holder(session)
    there = seat is not None and seat.pool == row.pool.metadata.name and 1 <= seat.number <= len(seats)
    held = seats.release(seat.number, holder) if seat is not None and there else None
    try:
        yield
    finally:
        if seat is not None and held is not None:
            seats.hold(seat.number, held)


async def reseat(writer: Writer, promises: Promises, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
    """Move claims to other seats, all or none."""
    if writer.caller.actor != POOL_CONTROLLER:
        raise Forbidden(f"only {POOL_CONTROLLER} may move claims to other planned workers")
    if len(changes) > MOST_MOVES:
        raise TooLarge(f"{len(changes)} moves at once; the limit is {MOST_MOVES}")
    if len({(one.booking, one.number) for one in changes}) < len(changes):
        raise Invalid(Fault("changes", "the same claim twice", "keep one of them"))
    await promises.calendar.ready()
    ref = ref_of((await writer.require(pool)).resource)
    # If a booking changed meanwhile, do not retry: the pool controller planned with the old one and must know.
    await retry_conflicts(
        lambda: _reseat_once(writer, promises, ref, changes),
        unless=lambda error: not is_guard(error.key) and error.key != ref.key,
        pause=promises.back_off,
    )


async def _reseat_once(writer: Writer, promises: Promises, pool: PoolRef, changes: Sequence[SeatChange]) -> None:
    now = writer.clock.now()
    snapshot = await read_snapshot(writer.store, promises.calendar, pool=pool, adds=True)
    records = {ref: await _find_booking(writer, ref) for ref in {_booking_ref(pool, one): None for one in changes}}
    await promises.calendar.wait_for_revision(max((one.revision for one in records.values()), default=0))
    moves = [_plan_move(records[_booking_ref(pool, one)], one, pool.name, now) for one in changes]
    moves = [one for one in moves if one.before != one.after]
    row = require_seats(promises, snapshot.row)[0]
    rules = rules_for_promised(await promises.read_rules(row, now - PLAN_AGE_TOLERANCE))
    row, seats = require_seats(promises, row)
    _refuse_unsuitable(promises, row, moves)
    _try_moves(row, seats, moves, rules)
    if moves:
        by_booking: dict[str, list[BookingMove]] = defaultdict(list)
        for move in moves:
            by_booking[move.record.key].append(move)
        edits = [_edit_booking(own, pool.name, writer, now) for own in by_booking.values()]
        await writer.commit_edits(*edits, ops=snapshot.ops(row.pool.metadata.uid), reported=True)


def _booking_ref(pool: PoolRef, change: SeatChange) -> Ref[Any]:
    kind: type[Any] = LabletSession if change.number is None else Reservation
    return Ref(kind, change.booking, pool.namespace)


async def _find_booking(writer: Writer, ref: Ref[Any]) -> Record[Any]:
    record = await writer.find(ref)
    if record is None:
        raise Conflict(ref.key, wanted=0, found=0, message=str(missing_error(ref)))
    return record


def _plan_move(record: Record[Any], change: SeatChange, pool: str, now: datetime) -> BookingMove:
    """Return the move of a claim; raise Conflict if the claim is gone, or must stay where it is."""
    claim, seat, holder = _movable_claim(record.resource, change)
    if claim is None or seat is None or seat.pool != pool or claim.start <= now:
        message = f"a claim of {change.booking} can no longer be moved within pool {pool}: read it again"
        raise Conflict(record.key, wanted=record.revision, found=record.revision, message=message)
    return BookingMove(record, HeldClaim(holder, claim), seat.number, change.after)


def _movable_claim(booking: LabletSession | Reservation, change: SeatChange) -> tuple[Claim | None, Seat | None, str]:
    if isinstance(booking, LabletSession):
        movable = requires_worker_assignment(booking)
        return booking.status.claim if movable else None, booking.status.seat, session_holder(booking)
    live = booking.status.phase not in RESERVATION_MACHINE.final
    own = [one for one in booking.status.held if live and one.number == change.number and one.session is None]
    holder = reservation_holder(booking, change.number or 0)
    return (own[0].claim, own[0].seat, holder) if own else (None, None, holder)


def _refuse_unsuitable(promises: Promises, row: PoolSnapshot, moves: Sequence[BookingMove]) -> None:
    """Raise NoRoom if a claim would come onto a seat whose worker is of another kind than its session asks for."""
    alike = seat_kinds(row)
    assert alike is not None, "its seats are known"
    for move in moves:
        booking = move.record.resource
        definition = promises.calendar.get(Ref(LabletDefinition, booking.spec.definition, booking.metadata.namespace))
        if definition is None:
            continue
        asked = request_of(booking, definition, move.held.claim, promises.calendar.terms)
        away = alike.unsuitable_seats(asked, [move.after])
        if move.after in away:
            why, reason = away[move.after]
            raise NoRoom(f"pool {row.name}: planned worker {move.after}: {reason}; {FILTERS[why]}", why=why)


def _try_moves(row: PoolSnapshot, seats: Seats, moves: Sequence[BookingMove], rules: PromiseRules) -> None:
    """Raise NoRoom if claims would not all fit on their new seats, Conflict if one of them has changed meanwhile.

    The seats are left unchanged: the calendar may know more than the records, and what it knows is put back.
    """
    left, come = list[tuple[int, HeldClaim]](), list[BookingMove]()
    try:
        for move in moves:
            held = seats.release(move.before, move.held.holder) if move.before <= len(seats) else None
            if held is not None:
                left.append((move.before, held))
            if held != move.held:
                known, message = move.record.revision, f"{move.held.holder} was changed meanwhile: read it again"
                raise Conflict(move.record.key, wanted=known, found=known, message=message)
        for move in moves:
            refuse_unless_seat_takes(row, seats, move.after, move.held.claim, rules)
            seats.hold(move.after, move.held)
            come.append(move)
    finally:
        for move in come:
            seats.release(move.after, move.held.holder)
        for number, held in left:
            seats.hold(number, held)


def _edit_booking(moves: Sequence[BookingMove], pool: str, writer: Writer, now: datetime) -> Edit[Any]:
    """Combine the moves of one booking into one edit of it."""
    record, seats = moves[0].record, {one.held.holder: Seat(pool=pool, number=one.after) for one in moves}
    booking, status = record.resource, record.resource.status
    if isinstance(booking, LabletSession):
        status = msgspec.structs.replace(status, seat=seats[session_holder(booking)])
    else:
        held = (
            msgspec.structs.replace(one, seat=seats.get(reservation_holder(booking, one.number), one.seat))
            for one in booking.status.held
        )
        status = msgspec.structs.replace(status, held=tuple(held))
    after = take_step(booking, status, by=writer.caller.actor, author=writer.author, now=now)
    return Edit(record, after)
