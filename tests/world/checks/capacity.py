"""Checks that no worker holds more than it has, and no seat more than its template."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.model.base.capacity import ZERO_AMOUNT, Amount, Claim, Profile, find_exceeded
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import LabletSession, Seat
from lcm.model.kinds.worker import WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.placement.small_runs import smaller_room
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState, is_live

OVERCOMMIT: Final = "over-committed worker"
NO_CAPACITY: Final = "promised booking without capacity"


def worker_is_not_overcommitted(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a claim, or the time by which one is extended, fits on its worker beside the others.

    The capacity is the one that was committed before, without what foreign labs take. A session is excused if it was
    there before the worker turned out smaller or foreign labs came: no commit of ours has put too much on it.
    """
    after, worker = turn.after, seen.workers.get(turn.latest.status.worker_id or "")
    if after is None or worker is None or worker.status.capacity is None:
        return ()
    new = _new_claims(turn)
    others = seen.on_worker[worker.metadata.uid].values() if new else ()
    held = list(_claims(others, turn.at))
    over = [_shortage_of(one, held, worker.status.capacity, worker.status.foreign) for one in new]
    return [violation(OVERCOMMIT, f"{worker.metadata.name}: {one}", worker, *others) for one in over if one]


def seat_holds_what_is_promised(
    seen: ObservedState, turn: ObservedChange[LabletSession | Reservation]
) -> Sequence[Violation]:
    """Check that a new claim fits on its seat beside the others, and that the pool has such a seat.

    A seat holds what its pool's template promises, whichever worker fills it; until the end of a small run, what the
    smaller machine holds that was chosen for it, besides sessions that are still on a worker that leaves the seat.
    """
    return [found for seat, claim in _new_seats(turn) for found in _check_seat(seen, turn.latest, seat, claim)]


def _new_claims(turn: ObservedChange[LabletSession]) -> Sequence[Claim]:
    """Return what a session claims of its worker that it did not claim there before."""
    before, after = turn.before, turn.after
    if after is None or after.status.claim is None or not is_live(after):
        return ()
    if after.spec.prebuilt:
        return tuple(_claims([after], turn.at)) if turn.before is None or not turn.before.status.worker_id else ()
    new, there = after.status.claim, before is not None and before.status.worker_id == after.status.worker_id
    old = before.status.claim if before is not None and there and is_live(before) else None
    if old is None or _covers(old, new):
        return () if old else (new,)
    if not new.need.within(old.need):
        return (new,)
    spans = ((new.start, min(old.start, new.end)), (max(old.end, new.start), new.end))
    return [Claim(start=start, end=end, need=new.need) for start, end in spans if start < end]


def _covers(old: Claim | None, new: Claim) -> bool:
    return old is not None and old.start <= new.start and new.end <= old.end and new.need.within(old.need)


def _shortage_of(claim: Claim | None, claims: Iterable[Claim], room: Amount, foreign: Amount = ZERO_AMOUNT) -> str:
    """Return what there is too little of at some moment of a claim, and when; empty if nothing."""
    if claim is None:
        return ""
    profile = Profile.of(claims)
    ends = (*profile.moments[1:], claim.end)
    for moment, end, level in zip(profile.moments, ends, profile.levels, strict=False):
        if moment < claim.end and claim.start < end and (short := find_exceeded(level + foreign, room)):
            return f"{', '.join(short)} at {moment:%d %H:%M:%S}"
    return ""


def _claims(sessions: Iterable[LabletSession], now: datetime) -> Iterator[Claim]:
    """Yield what sessions claim; prebuilt labs, which give way, only have what they have now."""
    soon = now + timedelta(minutes=1)
    for one in sessions:
        if one.status.claim is not None:
            claim, beside = one.status.claim, one.spec.prebuilt
            yield msgspec.structs.replace(claim, end=min(claim.end, max(claim.start, soon))) if beside else claim


def _new_seats(turn: ObservedChange[LabletSession | Reservation]) -> Iterator[tuple[Seat, Claim]]:
    before = dict(_held_seats(turn.before))
    for key, (seat, claim) in _held_seats(turn.after):
        old = before.get(key)
        if old is None or old[0] != seat or not _covers(old[1], claim):
            yield seat, claim


def _held_seats(one: LabletSession | Reservation | None) -> Iterator[tuple[int, tuple[Seat, Claim]]]:
    """Yield what a booking holds on seats; a reservation's claim that a session took over counts as the session's."""
    if isinstance(one, LabletSession):
        if is_live(one) and one.status.seat and one.status.claim:
            yield 0, (one.status.seat, one.status.claim)
    elif one is not None and one.status.phase not in RESERVATION_MACHINE.final:
        held = (each for each in one.status.held if each.session is None)
        yield from ((each.number, (each.seat, each.claim)) for each in held if each.seat)


def _check_seat(seen: ObservedState, about: Resource, seat: Seat, claim: Claim) -> Sequence[Violation]:
    found = seen.pool(seat.pool, about.metadata.namespace)
    if found is None:
        return [violation(NO_CAPACITY, f"there is no pool {seat.pool}", about)]
    pool, template = found
    if not 1 <= seat.number <= pool.spec.max_workers:
        return [violation(NO_CAPACITY, f"{seat.pool} has no seat {seat.number}", about, pool)]
    room = declared_capacity(template.spec.worker)
    bookings: list[LabletSession | Reservation] = [*seen.in_pool[seat.pool].values(), *seen.reservations.values()]
    mine = [one for one in bookings if one.metadata.namespace == about.metadata.namespace]
    held = [each for one in mine for _, (where, each) in _held_seats(one) if where == seat]
    over = _shortage_of(claim, held, room) if room is not None else ""
    for run in (one for one in pool.status.small_runs if one.number == seat.number and claim.start < one.until):
        small, stay = (
            smaller_room(template.spec.worker, run.instance_type),
            [one for one in mine if not _leaves(seen, one)],
        )
        here = [each for one in stay for _, (where, each) in _held_seats(one) if where == seat]
        less = "" if small is None else _shortage_of(claim, here, small)
        over = over or less or (f"{run.instance_type} is there until {run.until:%d %H:%M}" * (claim.end > run.until))
    beside = [one for one in mine if any(where == seat for _, (where, _) in _held_seats(one))]
    return [violation(NO_CAPACITY, f"{seat.pool}/{seat.number}: {over}", about, *beside)] if over else ()


def _leaves(seen: ObservedState, booking: LabletSession | Reservation) -> bool:
    """Return whether a booking is a session on a worker that is drained or deleted: another takes its seat."""
    worker = seen.workers.get(booking.status.worker_id or "") if isinstance(booking, LabletSession) else None
    return worker is not None and (
        worker.metadata.deletion_timestamp is not None or worker.status.phase is WorkerPhase.DRAINING
    )
