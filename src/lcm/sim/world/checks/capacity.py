"""No worker holds more than it has, no seat more than its template, and no port is two sessions'."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lcm.model.capacity import NOTHING, Amount, Claim, Profile, exceeded
from lcm.model.instance_types import declared_capacity
from lcm.model.kinds import Resource
from lcm.model.reservation import RESERVATION, Reservation
from lcm.model.session import LabletSession, Seat
from lcm.sim.world.checks.violation import Violation, violation
from lcm.sim.world.seen import Seen, Turn, is_live

OVERCOMMIT: Final = "over-committed worker"
SHARED_PORT: Final = "port shared by two live sessions"
NO_CAPACITY: Final = "promised booking without capacity"
PORTS: Final = range(2000, 8000)
"""What CML serves to the outside."""


def worker_is_not_overcommitted(seen: Seen, turn: Turn[LabletSession]) -> Sequence[Violation]:
    """See that a claim that comes onto a worker fits beside the others at every moment of it.

    What a worker has is what was committed of it before: its capacity without what strangers' labs take. Excused is who
    was there already when it turned out smaller, or when strangers came: no commit of ours has put too much on it.
    """
    after, worker = turn.after, seen.workers.get(turn.now.status.worker_id or "")
    if after is None or worker is None or worker.status.capacity is None or not _comes(turn):
        return ()
    others = seen.on_worker[worker.metadata.uid].values()
    over = _over(after.status.claim, _claims(others), worker.status.capacity, worker.status.foreign)
    return [violation(OVERCOMMIT, f"{worker.metadata.name}: {over}", worker, *others)] if over else ()


def ports_are_not_shared(seen: Seen, turn: Turn[LabletSession]) -> Sequence[Violation]:
    """See that the ports a session is given are no other live session's on its worker, nor a stranger's lab's.

    What was known when the ports were given counts: a stranger who takes one afterwards is nobody's fault.
    """
    after, before = turn.after, turn.before
    if after is None or not after.status.allocated_ports or not is_live(after):
        return ()
    mine, worker_id = frozenset(after.status.allocated_ports.values()), after.status.worker_id or ""
    found = [_of_another(after, other, mine) for uid, other in seen.on_worker[worker_id].items() if uid != _uid(after)]
    if before is None or before.status.allocated_ports != after.status.allocated_ports:
        found += [_odd(after, mine), _of_strangers(seen, after, mine)]
    return [one for one in found if one is not None]


def seat_holds_what_is_promised(seen: Seen, turn: Turn[LabletSession | Reservation]) -> Sequence[Violation]:
    """See that a claim that comes onto a seat fits there beside the others, and that the pool has such a seat.

    A seat holds what its pool's template promises, whichever worker fills it.
    """
    return [found for seat, claim in _new_seats(turn) for found in _seat(seen, turn.now, seat, claim)]


def _comes(turn: Turn[LabletSession]) -> bool:
    """Tell whether a session's claim is new on its worker."""
    before, after = turn.before, turn.after
    if after is None or after.status.claim is None or not is_live(after):
        return False
    same = before is not None and before.status.worker_id == after.status.worker_id and is_live(before)
    return not (same and before is not None and _covers(before.status.claim, after.status.claim))


def _covers(old: Claim | None, new: Claim) -> bool:
    return old is not None and old.start <= new.start and new.end <= old.end and new.need.within(old.need)


def _over(claim: Claim | None, claims: Iterable[Claim], room: Amount, foreign: Amount = NOTHING) -> str:
    """Name what there is too little of at some moment of a claim, and when."""
    if claim is None:
        return ""
    profile = Profile.of(claims)
    ends = (*profile.moments[1:], claim.end)
    for moment, end, level in zip(profile.moments, ends, profile.levels, strict=False):
        if moment < claim.end and claim.start < end and (short := exceeded(level + foreign, room)):
            return f"{', '.join(short)} at {moment:%d %H:%M:%S}"
    return ""


def _claims(sessions: Iterable[LabletSession]) -> Iterator[Claim]:
    return (one.status.claim for one in sessions if one.status.claim)


def _of_another(session: LabletSession, other: LabletSession, mine: frozenset[int]) -> Violation | None:
    theirs = {*(other.status.allocated_ports or {}).values()}
    both = sorted(mine & theirs)
    return violation(SHARED_PORT, f"{both}", session, other) if both else None


def _of_strangers(seen: Seen, session: LabletSession, mine: frozenset[int]) -> Violation | None:
    worker = seen.workers.get(session.status.worker_id or "")
    both = sorted(mine & set(worker.status.foreign_ports)) if worker else []
    return violation(SHARED_PORT, f"{both} with a stranger's lab", session) if both else None


def _odd(session: LabletSession, mine: frozenset[int]) -> Violation | None:
    ports = (session.status.allocated_ports or {}).values()
    if len(mine) < len(ports):
        return violation(SHARED_PORT, f"two of its own have the same: {sorted(ports)}", session)
    outside = sorted(port for port in mine if port not in PORTS)
    return violation(SHARED_PORT, f"{outside} are none that CML serves", session) if outside else None


def _new_seats(turn: Turn[LabletSession | Reservation]) -> Iterator[tuple[Seat, Claim]]:
    before = dict(_seats(turn.before))
    for key, (seat, claim) in _seats(turn.after):
        old = before.get(key)
        if old is None or old[0] != seat or not _covers(old[1], claim):
            yield seat, claim


def _seats(one: LabletSession | Reservation | None) -> Iterator[tuple[int, tuple[Seat, Claim]]]:
    """Give what a booking holds on seats; a reservation's that a session has taken over is the session's."""
    if isinstance(one, LabletSession):
        if is_live(one) and one.status.seat and one.status.claim:
            yield 0, (one.status.seat, one.status.claim)
    elif one is not None and one.status.phase not in RESERVATION.final:
        held = (each for each in one.status.held if each.session is None)
        yield from ((each.number, (each.seat, each.claim)) for each in held if each.seat)


def _seat(seen: Seen, about: Resource, seat: Seat, claim: Claim) -> Sequence[Violation]:
    found = seen.pool(seat.pool, about.metadata.namespace)
    if found is None:
        return [violation(NO_CAPACITY, f"there is no pool {seat.pool}", about)]
    pool, template = found
    if not 1 <= seat.number <= pool.spec.max_workers:
        return [violation(NO_CAPACITY, f"{seat.pool} has no seat {seat.number}", about, pool)]
    room = declared_capacity(template.spec.worker)
    bookings: list[LabletSession | Reservation] = [*seen.in_pool[seat.pool].values(), *seen.reservations.values()]
    mine = [one for one in bookings if one.metadata.namespace == about.metadata.namespace]
    held = [each for one in mine for _, (where, each) in _seats(one) if where == seat]
    over = _over(claim, held, room) if room is not None else ""
    beside = [one for one in mine if any(where == seat for _, (where, _) in _seats(one))]
    return [violation(NO_CAPACITY, f"{seat.pool}/{seat.number}: {over}", about, *beside)] if over else ()


def _uid(session: LabletSession) -> str:
    return session.metadata.uid
