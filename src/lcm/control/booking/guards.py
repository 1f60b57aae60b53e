"""Guards: keys that two commits have in common if together they could promise more than there is.

A commit that adds a claim writes the guard at the revision that was read before deciding. The guard of a worker keeps
any step from taking a machine away from under a session placed at the same moment: it is written or checked by session
steps that come onto a worker or leave it, by worker steps that end sessions, and by pool steps that fill a seat with
the worker. Used by `control.booking`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from lcm.control.accounts.costs import find_worker
from lcm.control.objects.records import POOLS_CHANGED, read_entry, sessions_on
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.errors import Conflict, IllegalStep
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, SessionPhase, needs_its_worker, worker_of
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerPhase
from lcm.store.base import ABSENT, CheckRevision, Entry, Op, Put, Store, scan_all

_P: Final = WorkerPhase
_OFFLINE_PHASES: Final = frozenset({_P.LICENSING, _P.STOPPING, _P.STARTING, _P.FAILED})
_GIVEN_UP_PHASES: Final = frozenset({_P.UNLICENSING, _P.FAILED})
_DRAINED_PHASES: Final = frozenset({_P.UNLICENSING, _P.STOPPING})
_MOST_NAMED: Final = 3
_MOST_CHECKS: Final = 100
"""The most checks a commit has room for. A pool takes in fewer workers of others at once."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The sessions on a worker, and its guard as it was before they were read."""

    guard: Entry | None
    sessions: Sequence[LabletSession]


def worker_guard_key(worker_id: str) -> str:
    """Return the key that is written when a session comes onto a worker or leaves it, or the worker is taken away."""
    return f"occupied/{worker_id}"


def touch_worker_guards(before: LabletSession, after: LabletSession) -> Sequence[Op]:
    """Return writes of the guards of the workers that a session came onto or left; taking one away then conflicts."""
    old, new = worker_of(before), worker_of(after)
    if old == new:
        return ()
    return [Put(worker_guard_key(one), after.metadata.uid.encode()) for one in (old, new) if one is not None]


def disrupts_sessions(before: LabWorker, after: LabWorker, now: datetime) -> bool:
    """Return whether a step would end the sessions on a worker before anyone agreed that it may.

    A step that reports what somebody did to the machine by hand states a fact and is never held back.
    """
    source, target = before.status.phase, after.status.phase
    if source in HOSTING_PHASES:
        return target in _OFFLINE_PHASES
    if source is _P.LICENSING:
        return target in _GIVEN_UP_PHASES
    deadline = before.status.drain_deadline_at
    return source is _P.DRAINING and target in _DRAINED_PHASES and (deadline is None or now < deadline)


async def read_occupancy(store: Store, worker: LabWorker, now: datetime, horizon: timedelta) -> Occupancy:
    """Read who is on a worker. The guard is read first, so that a session that comes later is noticed."""
    uid = worker.metadata.uid
    guard = await store.get(worker_guard_key(uid))
    sessions = await sessions_on(store, uid)
    return Occupancy(guard, [one for one in sessions if needs_its_worker(one, now, horizon)])


async def admit_workers_to_seats(store: Store, before: LabWorkerPool, after: LabWorkerPool) -> Sequence[Op]:
    """Return checks that let workers fill a pool's seats.

    Raises Conflict if a session is on one of them that the pool's seats do not know, or if another pool has one.
    """
    had = {seat.worker_id for seat in before.status.seats}
    new = [seat.worker_id for seat in after.status.seats if seat.worker_id not in had]
    others = await _check_other_pools(store, after, new)
    guards = [(worker_guard_key(one), await store.get(worker_guard_key(one))) for one in new]
    for one in (uid for uid, (_, guard) in zip(new, guards, strict=True) if guard is not None):
        for session in await sessions_on(store, one):
            seat = session.status.seat
            if not session.spec.prebuilt and (seat is None or seat.pool != after.metadata.name):
                problem = f"{ref_of(session)} is on worker {one}, which the pool did not know when it chose this worker"
                raise Conflict(ref_of(after).key, wanted=0, found=0, message=f"{problem}: read it again")
    checks = [CheckRevision(key, guard.revision if guard else ABSENT) for key, guard in guards[:_MOST_CHECKS]]
    return [*checks, *others]


async def _check_other_pools(store: Store, pool: LabWorkerPool, new: Collection[str]) -> Sequence[Op]:
    """Return checks that no other pool of the track takes workers of others into seats meanwhile.

    Raises Conflict if one has. Nobody else takes the workers that the pool made.
    """
    made = [(one, await find_worker(store, one)) for one in new]
    strangers = {uid for uid, one in made if one is None or one.metadata.owner is None}
    found, own = list[Op](), ref_of(pool)
    if not strangers:
        return found
    for entry in (await scan_all(store, own.kind_info.prefix_in(own.namespace))).entries:
        other = read_entry(entry, LabWorkerPool)
        if entry.key == own.key or other.spec.lab_track != pool.spec.lab_track:
            continue
        taken = [seat.worker_name for seat in other.status.seats if seat.worker_id in strangers]
        if taken:
            problem = f"worker {taken[0]} fills a planned worker of pool {other.metadata.name}: read it again"
            raise Conflict(own.key, wanted=0, found=0, message=problem)
        found.append(CheckRevision(entry.key, entry.revision))
    return found


def vacate_worker(before: LabWorker, after: LabWorker, seen: Occupancy) -> Sequence[Op]:
    """Return the guard write that takes a worker away; raise IllegalStep while sessions are on it."""
    if seen.sessions:
        named = ", ".join(f"{ref_of(one)} ({one.status.phase})" for one in seen.sessions[:_MOST_NAMED])
        more = f" and {len(seen.sessions) - _MOST_NAMED} more" if len(seen.sessions) > _MOST_NAMED else ""
        step = f"LabWorker {before.status.phase} -> {after.status.phase}"
        raise IllegalStep(f"{step}: {named}{more} must end first, or be drained")
    return (Put(worker_guard_key(after.metadata.uid), b"", at=seen.guard.revision if seen.guard else ABSENT),)


_POOL_PREFIX: Final = "guards/pools/"
_LICENCES_PREFIX: Final = "guards/licences/"
_TRACKS_PREFIX: Final = "guards/tracks/"
_OWNERS_PREFIX: Final = "guards/owners/"
_QUOTAS_PREFIX: Final = "guards/quotas/"
_CLAIM_FIELDS: Final = ("claim", "seat", "worker_id", "allocated_ports")


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards as they were read: key and revision, ABSENT for those never written."""

    seen: Sequence[tuple[str, int]]

    @property
    def revision(self) -> int:
        """The revision up to which a decision must know all claims."""
        return max((revision for _, revision in self.seen), default=ABSENT)

    def ops(self, by: str) -> Sequence[Op]:
        """Return the guard writes of a claim's commit.

        The commit fails if another claim came first, and makes commits fail that read the guards before it.
        """
        return [Put(key, by.encode(), at=revision) for key, revision in self.seen]


def pool_guard_key(pool: Ref[LabWorkerPool]) -> str:
    """Return the key that every claim on a pool writes."""
    return f"{_POOL_PREFIX}{pool.namespace}/{pool.name}"


def token_guard_key(token: str) -> str:
    """Return the key that every claim writes that may need another licence of a token."""
    return f"{_LICENCES_PREFIX}{token}"


def track_guard_key(namespace: str, track: str) -> str:
    """Return the key that every claim writes on a pool whose track has a budget; a name may hold what a key may not."""
    return f"{_TRACKS_PREFIX}{namespace}/{sha256(track.encode()).hexdigest()}"


def owner_guard_key(owner: str) -> str:
    """Return the key that every booking writes which counts towards its owner's limits."""
    return f"{_OWNERS_PREFIX}{owner}"


def quota_guard_key(namespace: str | None, track: str | None) -> str:
    """Return the key that every booking writes which counts towards what a namespace or a track may have in all."""
    named = ("*" if one is None else quote(one, safe="") for one in (namespace, track))
    return _QUOTAS_PREFIX + "/".join(named)


def is_guard(key: str) -> bool:
    """Return whether a key is a guard; a commit that finds it changed must be decided again."""
    return key.startswith(("guards/", "occupied/"))


async def pools_revision(store: Store, namespace: str) -> int:
    """Return the revision that a reader must know to know the current pools of a namespace."""
    entry = await store.get(POOLS_CHANGED + namespace)
    return entry.revision if entry else ABSENT


async def read_guards(store: Store, *keys: str) -> Guards:
    """Read guards. Call it before reading anything that the decision depends on."""
    found = [(key, await store.get(key)) for key in keys]
    return Guards([(key, entry.revision if entry else ABSENT) for key, entry in found])


def refuse_new_claims(before: Resource, after: Resource) -> None:
    """Raise IllegalStep if a step would claim anything.

    Steps only release; claims are made by commits that write guards.
    """
    if not isinstance(before, LabletSession) or not isinstance(after, LabletSession):
        return
    for name in _CLAIM_FIELDS:
        new = getattr(after.status, name)
        if new is not None and new != getattr(before.status, name):
            raise IllegalStep(f"{before.metadata.name}: a step cannot set its {name}; only the scheduler does")


def refuse_overrun(before: Resource, after: Resource) -> None:
    """Raise IllegalStep if a step would let a session run longer than its claim on the worker."""
    if not isinstance(before, LabletSession) or not isinstance(after, LabletSession):
        return
    end, claim = after.status.ends_at, after.status.claim
    begins = after.status.phase is SessionPhase.RUNNING is not before.status.phase
    if end is None or claim is None or not (begins or end != before.status.ends_at):
        return  # a session that already overruns must be able to end
    latest = claim.end - CLEAN_UP_TIME
    if end > latest:
        problem = f"it would end at {end:%Y-%m-%d %H:%M:%SZ}, and its worker is claimed for it"
        raise IllegalStep(f"{before.metadata.name}: {problem} until {latest:%Y-%m-%d %H:%M:%SZ} at the latest")
