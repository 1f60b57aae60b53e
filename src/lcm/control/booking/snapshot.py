"""What a placing stands on, and whether a worker can bear it. Used by `scheduling`, `scheduling_seats` and `desk`.

Guards are read first, then the worker, then the calendar catches up with both; the commit holds all of it as it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.booking.calendar import Calendar, PoolRef
from lcm.control.booking.guards import Guards, known_pools, pool_guard, read_guards, token_guard, worker_guard
from lcm.control.objects.records import POOLS_CHANGED, UIDS, key_of, opened
from lcm.control.plane.protocol import ref_of
from lcm.model.base.capacity import Claim, Profile, exceeded
from lcm.model.base.errors import Conflict, NoRoom
from lcm.model.kinds.session import LabletSession, holds
from lcm.model.kinds.worker import LabWorker
from lcm.placement.candidate import clock
from lcm.placement.places import Row, room_of
from lcm.placement.ports import allocate, free_ports, taken_on
from lcm.placement.rules import REMEDIES, ROOM
from lcm.store.base import Check, Op, Store

_WORKERS: Final = "workers/"
_A_MOMENT: Final = timedelta(minutes=1)
NO_SIZE: Final = "unknown_size"


@dataclass(frozen=True, slots=True)
class Ground:
    """What was read before deciding."""

    guards: Guards
    row: Row | None = None
    worker: LabWorker | None = None
    pools: Check | None = None

    def ops(self, by: str) -> Sequence[Op]:
        """Say how a commit holds it as it was, and tells the others."""
        read = (self.row.pool if self.row else None, self.worker)
        checks = [Check(key_of(one), one.metadata.resource_version) for one in read if one is not None]
        return [*self.guards.ops(by), *checks, *([self.pools] if self.pools else [])]


async def read_ground(
    store: Store,
    calendar: Calendar,
    *,
    pool: PoolRef | None = None,
    worker_id: str | None = None,
    adds: bool = False,
    known: int = 0,
) -> Ground:
    """Read what a decision about a seat, a worker or both stands on; `adds`: the pool's seats get another claim.

    Whoever finds the guards to be others than those read decides anew, which is a Conflict. `known` is a revision that
    the calendar must know as well.
    """
    if pool is not None:
        await calendar.until(await known_pools(store, pool.namespace))
    keys = _pool_keys(calendar, pool) if pool and adds else []
    guards = await read_guards(store, *keys, *([worker_guard(worker_id)] if worker_id else []))
    worker = await read_worker(store, worker_id) if worker_id else None
    pools: Check | None = None
    if worker is not None:
        pools = Check(POOLS_CHANGED + worker.metadata.namespace, await known_pools(store, worker.metadata.namespace))
        known = max(known, pools.at, worker.metadata.resource_version)
    await calendar.until(max(known, guards.revision))
    if pool and adds and _pool_keys(calendar, pool) != keys:
        raise Conflict(pool_guard(pool), wanted=guards.revision, found=guards.revision)
    # Who gets a seat holds its pool; who gets none must not find the worker in a seat of any.
    return Ground(guards, calendar.row(pool) if pool else None, worker, None if pool else pools)


def _pool_keys(calendar: Calendar, pool: PoolRef) -> list[str]:
    row = calendar.row(pool)
    token = calendar.shared(row) if row else None
    return [pool_guard(pool), *([token_guard(token)] if token else [])]


async def read_worker(store: Store, uid: str) -> LabWorker:
    """Read a worker by its uid; NoRoom if there is none."""
    named = await store.get(UIDS + uid)
    key = named.value.decode() if named else ""
    entry = await store.get(key) if key.startswith(_WORKERS) else None
    worker = opened(entry, LabWorker) if entry else None
    # Another worker may have got the name since the uid was looked up.
    if worker is None or worker.metadata.uid != uid:
        raise NoRoom(f"there is no worker {uid} any more; {REMEDIES['phase']}", why="phase")
    return worker


def others_on(calendar: Calendar, worker: LabWorker, session: LabletSession) -> Sequence[LabletSession]:
    """Give the sessions that are on a worker or assigned to it, besides one."""
    return [one for one in calendar.sessions_on(worker.metadata.uid) if ref_of(one) != ref_of(session)]


def refuse_unless_borne(worker: LabWorker, others: Iterable[LabletSession], claim: Claim, now: datetime) -> None:
    """Raise NoRoom if a worker cannot bear a claim besides those that are on it or assigned to it.

    What is still there after its claim has ended takes its room now.
    """
    room = room_of(worker)
    if room is None:
        raise NoRoom(f"it is not known what worker {worker.metadata.name} holds: wait until it reports", why=NO_SIZE)
    claims = (found for one in others if (found := holds(one)) is not None)
    start = max(claim.start, now)
    used = Profile.of(_present(one, now) for one in claims).peak(start, claim.end)
    short = exceeded(used + claim.need, room)
    if short:
        first = short[0]
        needed, left = getattr(claim.need, first), getattr(room, first) - getattr(used, first)
        told = f"it needs {needed} {first}, and of {getattr(room, first)} at most {max(0, left)} are free"
        span = f"between {clock(start)} and {clock(claim.end)}"
        raise NoRoom(f"worker {worker.metadata.name}: {told} {span}; {REMEDIES[ROOM[first]]}", why=ROOM[first])


def _present(claim: Claim, now: datetime) -> Claim:
    return claim if claim.end > now else msgspec.structs.replace(claim, start=now, end=now + _A_MOMENT)


def ports_on(
    worker: LabWorker,
    others: Iterable[LabletSession],
    session: LabletSession,
    names: Iterable[str],
    preferred: Mapping[str, int],
) -> Mapping[str, int]:
    """Choose a session's ports on a worker; NoRoom if there are too few. The same ones as before, if they are free."""
    wanted, taken = list(names), taken_on(worker, others)
    found = allocate(wanted, taken=taken, seed=session.metadata.uid, preferred=preferred)
    if found is None:
        told = f"it needs {len(wanted)} ports, and {free_ports(taken)} are free"
        raise NoRoom(f"worker {worker.metadata.name}: {told}; {REMEDIES['ports']}", why="ports")
    return found


async def prolonged(
    store: Store, calendar: Calendar, session: LabletSession, claim: Claim, now: datetime
) -> Sequence[Op]:
    """Let a session that has no seat stay on its worker for longer; NoRoom with the reason."""
    worker_id, before = session.status.worker_id, session.status.claim
    if worker_id is None or before is None:
        return ()
    ground = await read_ground(store, calendar, worker_id=worker_id)
    assert ground.worker is not None, "it was read"
    more = msgspec.structs.replace(claim, start=before.end)
    refuse_unless_borne(ground.worker, others_on(calendar, ground.worker, session), more, now)
    return ground.ops(session.metadata.uid)
