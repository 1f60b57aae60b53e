"""What a placement is decided from, and whether a worker has room for it.

Guards are read first, then the worker, then the calendar catches up with both; the commit fails unless all of it is
unchanged. Used by `control.booking.schedule`, `control.booking.seat_moves` and `control.booking.promise`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.accounts.costs import find_worker
from lcm.control.booking.calendar import Calendar, PoolRef
from lcm.control.booking.guards import (
    Guards,
    pool_guard_key,
    pools_revision,
    read_guards,
    token_guard_key,
    track_guard_key,
    worker_guard_key,
)
from lcm.control.objects.records import POOLS_CHANGED, key_of
from lcm.control.plane.protocol import ref_of
from lcm.model.base.capacity import Claim, Profile, find_exceeded
from lcm.model.base.errors import Conflict, NoRoom
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.saved_lab import as_continued
from lcm.model.kinds.session import LabletSession, get_claim
from lcm.model.kinds.worker import LabWorker
from lcm.placement.candidate import format_moment
from lcm.placement.places import PoolSnapshot, room_of
from lcm.placement.ports import allocate, count_free_ports, ports_in_use
from lcm.placement.rules import FILTER_REMEDIES, ROOM_FILTERS
from lcm.store.base import CheckRevision, Op, Store

_A_MOMENT: Final = timedelta(minutes=1)
UNKNOWN_SIZE: Final = "unknown_size"


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """What was read before deciding: guards, pool and worker."""

    guards: Guards
    row: PoolSnapshot | None = None
    worker: LabWorker | None = None
    pools: CheckRevision | None = None

    def ops(self, by: str) -> Sequence[Op]:
        """Return checks and guard writes: the commit fails if any of it has changed, and others notice it."""
        read = (self.row.pool if self.row else None, self.worker)
        checks = [CheckRevision(key_of(one), one.metadata.resource_version) for one in read if one is not None]
        return [*self.guards.ops(by), *checks, *([self.pools] if self.pools else [])]


async def read_snapshot(
    store: Store,
    calendar: Calendar,
    *,
    pool: PoolRef | None = None,
    worker_id: str | None = None,
    adds: bool = False,
    known: int = 0,
) -> PlacementSnapshot:
    """Read what a decision about a seat, a worker or both depends on.

    `adds` says that the pool's seats get another claim. `known` is a revision that the calendar must know as well.
    Raises Conflict if the guards of the pool are not those that were read; the caller then decides again.
    """
    if pool is not None:
        await calendar.wait_for_revision(await pools_revision(store, pool.namespace))
    keys = pool_guard_keys(calendar, pool) if pool and adds else []
    guards = await read_guards(store, *keys, *([worker_guard_key(worker_id)] if worker_id else []))
    worker = await find_worker(store, worker_id) if worker_id else None
    if worker_id and worker is None:
        raise NoRoom(f"worker {worker_id} no longer exists; {FILTER_REMEDIES['phase']}", why="phase")
    pools: CheckRevision | None = None
    if worker is not None:
        pools = CheckRevision(
            POOLS_CHANGED + worker.metadata.namespace, await pools_revision(store, worker.metadata.namespace)
        )
        known = max(known, pools.at, worker.metadata.resource_version)
    await calendar.wait_for_revision(max(known, guards.revision))
    if pool and adds and pool_guard_keys(calendar, pool) != keys:
        raise Conflict(pool_guard_key(pool), wanted=guards.revision, found=guards.revision)
    # With a seat, its pool is checked. Without one, no pool may have taken the worker into a seat meanwhile.
    return PlacementSnapshot(guards, calendar.pool(pool) if pool else None, worker, None if pool else pools)


def pool_guard_keys(calendar: Calendar, pool: PoolRef) -> list[str]:
    """Return the guards that every claim on a pool writes."""
    row = calendar.pool(pool)
    token, track = (calendar.counted_token(row), calendar.track_budget(row)) if row else (None, None)
    shared = [token_guard_key(token)] if token else []
    return [pool_guard_key(pool), *shared, *([track_guard_key(pool.namespace, track.lab_track)] if track else [])]


def others_on(calendar: Calendar, worker: LabWorker, session: LabletSession) -> Sequence[LabletSession]:
    """Return the other sessions that are on a worker or assigned to it."""
    return [one for one in calendar.sessions_on(worker.metadata.uid) if ref_of(one) != ref_of(session)]


def refuse_unless_fits(worker: LabWorker, others: Iterable[LabletSession], claim: Claim, now: datetime) -> None:
    """Raise NoRoom if a claim does not fit on a worker beside those that are on it or assigned to it.

    A session that is still there after the end of its claim takes up room now. So does a prebuilt lab, which gives way.
    """
    room = room_of(worker)
    if room is None:
        raise NoRoom(f"the size of worker {worker.metadata.name} is not known: wait until it reports", why=UNKNOWN_SIZE)
    claims, overdue = [(found, one) for one in others if (found := get_claim(one)) is not None], now + _A_MOMENT
    start = max(claim.start, now)
    held = (
        found if found.end > now and not one.spec.prebuilt else msgspec.structs.replace(found, start=now, end=overdue)
        for found, one in claims
    )
    used = Profile.of(held).peak(start, claim.end)
    short = find_exceeded(used + claim.need, room)
    if short:
        first = short[0]
        needed, left = getattr(claim.need, first), getattr(room, first) - getattr(used, first)
        problem = f"it needs {needed} {first}, and of {getattr(room, first)} at most {max(0, left)} are free"
        span = f"between {format_moment(start)} and {format_moment(claim.end)}"
        raise NoRoom(
            f"worker {worker.metadata.name}: {problem} {span}; {FILTER_REMEDIES[ROOM_FILTERS[first]]}",
            why=ROOM_FILTERS[first],
        )


def choose_ports(
    calendar: Calendar,
    worker: LabWorker,
    session: LabletSession,
    definition: LabletDefinition,
    preferred: Mapping[str, int],
) -> Mapping[str, int]:
    """Choose a session's ports on a worker, the same as before where they are free; raise NoRoom if too few are."""
    wanted = list(as_continued(definition, session.status.continues).spec.port_template or {})
    taken = ports_in_use(worker, others_on(calendar, worker, session))
    found = allocate(wanted, taken=taken, seed=session.metadata.uid, preferred=preferred)
    if found is None:
        problem = f"it needs {len(wanted)} ports, and {count_free_ports(taken)} are free"
        raise NoRoom(f"worker {worker.metadata.name}: {problem}; {FILTER_REMEDIES['ports']}", why="ports")
    return found


async def extend_on_worker(
    store: Store, calendar: Calendar, session: LabletSession, claim: Claim, now: datetime
) -> Sequence[Op]:
    """Return operations that keep a session without a seat on its worker for longer.

    Raises NoRoom with the reason if the worker has no room.
    """
    worker_id, before = session.status.worker_id, session.status.claim
    if worker_id is None or before is None:
        return ()
    snapshot = await read_snapshot(store, calendar, worker_id=worker_id)
    assert snapshot.worker is not None, "it was read"
    more = msgspec.structs.replace(claim, start=before.end)
    refuse_unless_fits(snapshot.worker, others_on(calendar, snapshot.worker, session), more, now)
    return snapshot.ops(session.metadata.uid)
