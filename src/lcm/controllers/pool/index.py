"""What concerns each pool, followed from the cache one change at a time: claims, workers, sessions on them, who waits.

`PoolReconciler` makes a `PoolView` of it. It is derived and can always be rebuilt.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Ref, WorkerRef
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionPhase, has_same_hold, is_asap, worker_of
from lcm.model.kinds.worker import LabWorker
from lcm.placement.places import claims_of_booking
from lcm.placement.request import HeldClaim

PoolRef = Ref[LabWorkerPool]
Track = tuple[str, str]
"""A namespace and a lab track."""


class WaitingSessions(dict[Ref[LabletSession], LabletSession]):
    """The sessions of one track that wait for a worker and have no claim, or only one on a worker that comes up."""

    version = 0
    """Grows with each change."""


@dataclass(frozen=True, slots=True)
class SeatClaim:
    """A claim on a seat. `worker_id` is set once its session has a worker; `asap` is whether that has no slot."""

    number: int
    held: HeldClaim
    worker_id: str | None = None
    asap: bool = False


class PoolClaims:
    """The claims on one pool's seats, by holder, and by the day on which they start."""

    def __init__(self, claims: Iterable[SeatClaim] = ()) -> None:
        self._by_holder: dict[str, SeatClaim] = {}
        self._by_day: dict[int, dict[str, SeatClaim]] = {}
        self._numbers: Counter[int] = Counter()
        self._changed: dict[str, None] = {}
        self.placed: dict[str, SeatClaim] = {}
        """The claims of sessions that have a worker, by holder."""
        self.version = 0
        """Grows with each change."""
        for one in claims:
            self.put(one.held.holder, one)

    def __len__(self) -> int:
        return len(self._by_holder)

    def get(self, holder: str) -> SeatClaim | None:
        """Return a holder's claim; None if it has none here."""
        return self._by_holder.get(holder)

    def put(self, holder: str, claim: SeatClaim | None) -> bool:
        """Set a holder's claim, or remove it. Return whether that changed anything."""
        before = self._by_holder.get(holder)
        if before == claim:
            return False
        self.version += 1
        self._changed[holder] = None
        if before is not None:
            self._remove(holder, before)
        if claim is not None:
            self._by_holder[holder] = claim
            self._by_day.setdefault(_day_of(claim), {})[holder] = claim
            self._numbers[claim.number] += 1
            if claim.worker_id is not None:
                self.placed[holder] = claim
        return True

    def starting_before(self, moment: datetime) -> Iterator[SeatClaim]:
        """Yield the claims that start before a moment."""
        for day in sorted(day for day in self._by_day if day <= moment.toordinal()):
            yield from (one for one in self._by_day[day].values() if one.held.claim.start < moment)

    def by_days(self) -> Sequence[Sequence[SeatClaim]]:
        """Return all claims as they are now, those of each day on which any start together, in the days' order."""
        return [list(self._by_day[day].values()) for day in sorted(self._by_day)]

    def last_end(self) -> datetime | None:
        """Return when the last claim ends; None without any."""
        return max((one.held.claim.end for one in self._by_holder.values()), default=None)

    @property
    def highest_number(self) -> int:
        """The highest number of a seat that has claims, or 0."""
        return max(self._numbers, default=0)

    def count_on(self, number: int) -> int:
        """Return how many claims there are on a seat."""
        return self._numbers[number]

    def holders(self) -> Collection[str]:
        """Return all who have a claim."""
        return self._by_holder.keys()

    def take_changes(self) -> Collection[str]:
        """Return the holders whose claims changed since this was last asked, by the one who follows them."""
        changed, self._changed = self._changed, {}
        return changed.keys()

    def _remove(self, holder: str, claim: SeatClaim) -> None:
        del self._by_holder[holder]
        self.placed.pop(holder, None)
        day = self._by_day[_day_of(claim)]
        del day[holder]
        if not day:
            del self._by_day[_day_of(claim)]
        self._numbers[claim.number] -= 1
        if not self._numbers[claim.number]:
            del self._numbers[claim.number]


def _day_of(claim: SeatClaim) -> int:
    return claim.held.claim.start.toordinal()


class PoolIndex:
    """Claims and workers by pool, and sessions by the uid of their worker."""

    def __init__(self) -> None:
        self._claims: defaultdict[PoolRef, PoolClaims] = defaultdict(PoolClaims)
        self._places_of: dict[Ref[Any], list[tuple[PoolRef, str]]] = {}
        self._sessions_by_worker: defaultdict[str, dict[Ref[LabletSession], LabletSession]] = defaultdict(dict)
        self._worker_by_session: dict[Ref[LabletSession], str] = {}
        self._workers: dict[WorkerRef, LabWorker] = {}
        self._refs: dict[str, WorkerRef] = {}
        self._owned: defaultdict[str, dict[WorkerRef, None]] = defaultdict(dict)
        """The workers that a pool made, by its uid."""
        self._unowned: defaultdict[tuple[str, str], dict[WorkerRef, None]] = defaultdict(dict)
        """The workers that no pool made, by namespace and lab track."""
        self._pools: dict[PoolRef, LabWorkerPool] = {}
        self._pools_by_track: defaultdict[Track, dict[PoolRef, LabWorkerPool]] = defaultdict(dict)
        self._waiting: defaultdict[Track, WaitingSessions] = defaultdict(WaitingSessions)
        self._track_by_waiting: dict[Ref[LabletSession], Track] = {}
        self._pool_of_seated: dict[str, PoolRef] = {}
        """The pool whose seat a worker fills, by the worker's uid."""
        self._subscriber: Callable[[PoolRef], object] = lambda _: None
        self.stop: Callable[[], None] = lambda: None

    @classmethod
    async def follow(cls, cache: Cache) -> Self:
        """Follow a cache that is ready and holds all kinds that concern pools, until `stop` is called."""
        made = cls()
        kinds = (LabWorkerPool, LabWorker, LabletSession, Reservation)
        made.stop = await cache.replay(made._on_change, kinds)
        return made

    def subscribe(self, changed: Callable[[PoolRef], object]) -> None:
        """Call `changed` from now on with each pool for which something changed."""
        self._subscriber = changed

    def claims_on(self, pool: PoolRef) -> PoolClaims:
        """Return the claims on a pool's seats."""
        return self._claims[pool]

    def forget(self, pool: PoolRef) -> None:
        """Forget the claims on a pool that is gone."""
        self._claims.pop(pool, None)

    def sessions_on(self, worker_id: str) -> Sequence[LabletSession]:
        """Return the sessions that are on a worker or promised to it."""
        return list(self._sessions_by_worker[worker_id].values()) if worker_id in self._sessions_by_worker else []

    def waiting_for(self, pool: LabWorkerPool) -> WaitingSessions:
        """Return the sessions of a pool's track that wait as soon as possible."""
        return self._waiting[_track_of(pool)]

    def neighbours_of(self, pool: LabWorkerPool) -> Sequence[LabWorkerPool]:
        """Return the other pools of a pool's track, by name."""
        others = self._pools_by_track[_track_of(pool)].values()
        return sorted(
            (one for one in others if one.metadata.uid != pool.metadata.uid), key=lambda one: one.metadata.name
        )

    def workers_of(self, pool: LabWorkerPool) -> Sequence[LabWorker]:
        """Return the workers that a pool made and those that fill its seats, by name."""
        seated = (self._refs.get(seat.worker_id) for seat in pool.status.seats)
        refs = {*self._owned.get(pool.metadata.uid, ()), *(ref for ref in seated if ref is not None)}
        return sorted((self._workers[ref] for ref in refs), key=lambda one: one.metadata.name)

    def unowned_workers(self, pool: LabWorkerPool) -> Sequence[LabWorker]:
        """Return the workers of a pool's lab track that nobody made for a seat, and that fill none."""
        refs = self._unowned.get((pool.metadata.namespace, pool.spec.lab_track), {})
        found = (self._workers[ref] for ref in refs)
        return [one for one in found if one.metadata.uid not in self._pool_of_seated]

    def _on_change(self, seen: ObjectChange) -> None:
        ref, resource = seen.ref, seen.resource
        if ref.kind is LabWorker:
            self._update_worker(ref, resource if isinstance(resource, LabWorker) else None)
        elif ref.kind is LabWorkerPool:
            self._update_pool(ref, resource if isinstance(resource, LabWorkerPool) else None)
        elif ref.kind is LabletSession:
            if not has_same_hold(seen.before, resource):
                self._update_claims(ref, resource)
            self._update_session(ref, resource if isinstance(resource, LabletSession) else None)
            self._update_waiting(ref, resource if isinstance(resource, LabletSession) else None)
        elif ref.kind is Reservation:
            self._update_claims(ref, resource)
        elif ref.kind is WorkerTemplate:
            for pool_ref, pool in self._pools.items():
                if (pool.metadata.namespace, pool.spec.template) == (ref.namespace, ref.name):
                    self._subscriber(pool_ref)

    def _update_claims(self, ref: Ref[Any], booking: Resource | None) -> None:
        now = dict(_claims_of(ref, booking)) if isinstance(booking, LabletSession | Reservation) else {}
        places = dict.fromkeys([*self._places_of.pop(ref, ()), *now])
        changed = [pool for pool, holder in places if self._claims[pool].put(holder, now.get((pool, holder)))]
        if now:
            self._places_of[ref] = list(now)
        for pool in dict.fromkeys(changed):
            self._subscriber(pool)

    def _update_session(self, ref: Ref[LabletSession], session: LabletSession | None) -> None:
        keeps = session is not None and not session.spec.prebuilt  # a prebuilt lab keeps no machine running
        before, worker_id = self._worker_by_session.get(ref), worker_of(session) if session and keeps else None
        if before is not None and before != worker_id:
            del self._sessions_by_worker[before][ref], self._worker_by_session[ref]
        if session is not None and worker_id is not None:
            self._sessions_by_worker[worker_id][ref] = session
            self._worker_by_session[ref] = worker_id

    def _update_waiting(self, ref: Ref[LabletSession], session: LabletSession | None) -> None:
        before = self._track_by_waiting.pop(ref, None)
        known = self._waiting[before].pop(ref, None) if before is not None else None
        track = (ref.namespace, session.spec.lab_track) if session is not None and _waits(session) else None
        if session is not None and track is not None:
            self._waiting[track][ref] = session
            self._track_by_waiting[ref] = track
        if known is not None and session is not None and before == track and _is_same_wait(known, session):
            return
        for one in {one for one in (before, track) if one is not None}:
            self._waiting[one].version += 1
            for pool in self._pools_by_track[one]:
                self._subscriber(pool)

    def _update_pool(self, ref: PoolRef, pool: LabWorkerPool | None) -> None:
        before = self._pools.pop(ref, None)
        if before is not None:
            self._pools_by_track[_track_of(before)].pop(ref, None)
        for seat in before.status.seats if before else ():
            if self._pool_of_seated.get(seat.worker_id) == ref:
                del self._pool_of_seated[seat.worker_id]
        if pool is not None:
            self._pools[ref] = pool
            self._pools_by_track[_track_of(pool)][ref] = pool
            self._pool_of_seated.update((seat.worker_id, ref) for seat in pool.status.seats)

    def _update_worker(self, ref: WorkerRef, worker: LabWorker | None) -> None:
        before = self._workers.pop(ref, None)
        if before is not None:
            self._group_of(before).pop(ref, None)
            if self._refs.get(before.metadata.uid) == ref:
                del self._refs[before.metadata.uid]
        if worker is not None:
            self._workers[ref] = worker
            self._refs[worker.metadata.uid] = ref
            self._group_of(worker)[ref] = None
        for pool in {pool for one in (before, worker) if one for pool in self._pools_concerned(one)}:
            self._subscriber(pool)

    def _group_of(self, worker: LabWorker) -> dict[WorkerRef, None]:
        owner = worker.metadata.owner
        if owner is not None:
            return self._owned[owner.uid]
        return self._unowned[worker.metadata.namespace, worker.spec.lab_track]

    def _pools_concerned(self, worker: LabWorker) -> Iterator[PoolRef]:
        """Yield the pool that made a worker, the one whose seat it fills, and those that could adopt it."""
        owner, namespace = worker.metadata.owner, worker.metadata.namespace
        if owner is not None:
            yield Ref(LabWorkerPool, owner.name, namespace)
        if (seated := self._pool_of_seated.get(worker.metadata.uid)) is not None:
            yield seated
        if owner is None:
            yield from self._pools_by_track[namespace, worker.spec.lab_track]


def _track_of(pool: LabWorkerPool) -> Track:
    return pool.metadata.namespace, pool.spec.lab_track


def _waits(session: LabletSession) -> bool:
    """Return whether a session waits as soon as possible, and the scheduler has looked at it."""
    status = session.status
    return status.phase is SessionPhase.PENDING and is_asap(session) and status.waiting is not None


def _is_same_wait(before: LabletSession, after: LabletSession) -> bool:
    """Return whether a session waits for the same, as far as it concerns a pool's size."""
    old, new = before.status, after.status
    return (before.spec, old.seat, old.waiting and old.waiting.estimated_start) == (
        after.spec,
        new.seat,
        new.waiting and new.waiting.estimated_start,
    )


def _claims_of(ref: Ref[Any], booking: LabletSession | Reservation) -> Mapping[tuple[PoolRef, str], SeatClaim]:
    session = booking if isinstance(booking, LabletSession) else None
    worker_id, asap = (session.status.worker_id, is_asap(session)) if session else (None, False)
    return {
        (Ref(LabWorkerPool, pool, ref.namespace), held.holder): SeatClaim(number, held, worker_id, asap)
        for pool, number, held in claims_of_booking(booking)
    }
