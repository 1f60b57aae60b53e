"""Who is on a worker: no step takes a machine away from under a session that was put there at the same moment.

All sides touch the worker's guard: a session's step that comes onto a worker or leaves it, a worker's step after which
sessions cannot go on, and a pool's step by which the worker fills a seat. Used by `companions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lcm.control.plane import ref_of
from lcm.control.records import ON_WORKERS, opened
from lcm.model.errors import Conflict, IllegalStep
from lcm.model.pool import LabWorkerPool
from lcm.model.session import LabletSession, needs_its_worker, worker_of
from lcm.model.worker import HOSTING, LabWorker, WorkerPhase
from lcm.store.base import ABSENT, Check, Entry, Op, Put, Store, everything

_P: Final = WorkerPhase
_AWAY: Final = frozenset({_P.LICENSING, _P.STOPPING, _P.STARTING, _P.FAILED})
_GIVEN_UP: Final = frozenset({_P.UNLICENSING, _P.FAILED})
_DRAINED: Final = frozenset({_P.UNLICENSING, _P.STOPPING})
_NAMED: Final = 3
_HELD: Final = 100
"""A commit has no room for more; a pool takes fewer workers of others into its seats at once."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The guard of a worker as it was before its sessions were read."""

    guard: Entry | None
    sessions: Sequence[LabletSession]


def guard_key(worker_id: str) -> str:
    """Say which key all touch who come onto a worker, leave it or take it away."""
    return f"occupied/{worker_id}"


def touched(before: LabletSession, after: LabletSession) -> Sequence[Op]:
    """Tell those who take a worker away that a session came onto it, or left it."""
    old, new = worker_of(before), worker_of(after)
    if old == new:
        return ()
    return [Put(guard_key(one), after.metadata.uid.encode()) for one in (old, new) if one is not None]


def spoils(before: LabWorker, after: LabWorker, now: datetime) -> bool:
    """Tell whether a step would end what is on the worker before anybody promised that it may.

    What somebody did to the machine by hand is a fact, and no step that reports it is held back.
    """
    source, target = before.status.phase, after.status.phase
    if source in HOSTING:
        return target in _AWAY
    if source is _P.LICENSING:
        return target in _GIVEN_UP
    deadline = before.status.drain_deadline_at
    return source is _P.DRAINING and target in _DRAINED and (deadline is None or now < deadline)


async def look(store: Store, worker: LabWorker, now: datetime, horizon: timedelta) -> Occupancy:
    """Read who is on a worker; the guard first, so that whoever comes later is noticed."""
    uid = worker.metadata.uid
    guard = await store.get(guard_key(uid))
    sessions = await sessions_on(store, uid)
    return Occupancy(guard, [one for one in sessions if needs_its_worker(one, now, horizon)])


async def sessions_on(store: Store, worker_id: str) -> Sequence[LabletSession]:
    """Read the sessions that are on a worker or promised to it; `records` keeps the list of them."""
    page = await everything(store, f"{ON_WORKERS}{worker_id}/")
    found = [await store.get(entry.value.decode()) for entry in page.entries]
    sessions = (opened(entry, LabletSession) for entry in found if entry)
    return [one for one in sessions if worker_of(one) == worker_id]


async def taken_in(store: Store, before: LabWorkerPool, after: LabWorkerPool) -> Sequence[Op]:
    """Let workers fill a pool's seats on which nobody is whom the seats do not know of; Conflict if somebody is."""
    had = {seat.worker_id for seat in before.status.seats}
    new = [seat.worker_id for seat in after.status.seats if seat.worker_id not in had]
    guards = [(guard_key(one), await store.get(guard_key(one))) for one in new]
    for one in (uid for uid, (_, guard) in zip(new, guards, strict=True) if guard is not None):
        for session in await sessions_on(store, one):
            seat = session.status.seat
            if seat is None or seat.pool != after.metadata.name:
                told = f"{ref_of(session)} came onto worker {one}, which is to fill a seat that knows nothing of it"
                raise Conflict(ref_of(after).key, wanted=0, found=0, message=f"{told}: look again")
    return [Check(key, guard.revision if guard else ABSENT) for key, guard in guards[:_HELD]]


def vacated(before: LabWorker, after: LabWorker, seen: Occupancy) -> Sequence[Op]:
    """Let a worker be taken away that nobody is on; IllegalStep while there is somebody."""
    if seen.sessions:
        named = ", ".join(f"{ref_of(one)} ({one.status.phase})" for one in seen.sessions[:_NAMED])
        more = f" and {len(seen.sessions) - _NAMED} more" if len(seen.sessions) > _NAMED else ""
        step = f"LabWorker {before.status.phase} -> {after.status.phase}"
        raise IllegalStep(f"{step}: {named}{more} must end first, or be drained")
    return (Put(guard_key(after.metadata.uid), b"", at=seen.guard.revision if seen.guard else ABSENT),)
