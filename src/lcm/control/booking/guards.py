"""The keys that two commits have in common if together they could promise more than there is.

Whoever adds a claim puts the guard in the same commit, at the revision at which it was read before deciding. Used by
`desk` and `scheduling`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.records import ON_WORKERS, POOLS_CHANGED, opened
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.errors import Conflict, IllegalStep
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import CLEAN_UP, LabletSession, SessionPhase, needs_its_worker, worker_of
from lcm.model.kinds.worker import HOSTING, LabWorker, WorkerPhase
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


_POOLS: Final = "guards/pools/"
_TOKENS: Final = "guards/licences/"
_CLAIMED: Final = ("claim", "seat", "worker_id", "allocated_ports")


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards as they were read: key and revision, ABSENT for those never put."""

    seen: Sequence[tuple[str, int]]

    @property
    def revision(self) -> int:
        """Up to where whoever decides must know what was claimed."""
        return max((revision for _, revision in self.seen), default=ABSENT)

    def ops(self, by: str) -> Sequence[Op]:
        """Say how the commit of a claim tells the others."""
        return [Put(key, by.encode(), at=revision) for key, revision in self.seen]


def pool_guard(pool: Ref[LabWorkerPool]) -> str:
    """Say which key all touch who claim something of a pool."""
    return f"{_POOLS}{pool.namespace}/{pool.name}"


def token_guard(token: str) -> str:
    """Say which key all touch who may need another licence of a token."""
    return f"{_TOKENS}{token}"


worker_guard = guard_key


def is_guard(key: str) -> bool:
    """Tell whether a key is a guard: whoever finds it changed decides anew."""
    return key.startswith(("guards/", "occupied/"))


async def known_pools(store: Store, namespace: str) -> int:
    """Say up to which revision somebody must know what was claimed who is to know a namespace's pools as they are."""
    entry = await store.get(POOLS_CHANGED + namespace)
    return entry.revision if entry else ABSENT


async def read_guards(store: Store, *keys: str) -> Guards:
    """Read guards, before anything that is decided by them."""
    found = [(key, await store.get(key)) for key in keys]
    return Guards([(key, entry.revision if entry else ABSENT) for key, entry in found])


def refuse_new_claims(before: Resource, after: Resource) -> None:
    """Raise IllegalStep if a step would claim anything: steps let go, and only who puts guards takes."""
    if not isinstance(before, LabletSession) or not isinstance(after, LabletSession):
        return
    for name in _CLAIMED:
        new = getattr(after.status, name)
        if new is not None and new != getattr(before.status, name):
            raise IllegalStep(f"{before.metadata.name}: no step gives a session its {name}; the scheduler schedules it")


def refuse_overrun(before: Resource, after: Resource) -> None:
    """Raise IllegalStep if a step would let a session run longer than it has its worker for."""
    if not isinstance(before, LabletSession) or not isinstance(after, LabletSession):
        return
    end, claim = after.status.ends_at, after.status.claim
    begins = after.status.phase is SessionPhase.RUNNING is not before.status.phase
    if end is None or claim is None or not (begins or end != before.status.ends_at):
        return  # what runs too long already must be able to end
    latest = claim.end - CLEAN_UP
    if end > latest:
        told = f"it would end at {end:%Y-%m-%d %H:%M:%SZ}, and its worker is claimed for it"
        raise IllegalStep(f"{before.metadata.name}: {told} until {latest:%Y-%m-%d %H:%M:%SZ} at the latest")
