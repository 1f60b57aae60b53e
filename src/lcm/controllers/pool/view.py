"""What the pool controller decides from: a pool, its workers, and the claims on its seats.

`PoolView` holds values only, without I/O. `PoolIndex` knows which booking claims which seat and which sessions are on
which worker. It follows the cache, so it is derived and can always be rebuilt.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Self

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Ref, ref_of
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolStatus, PoolPhase, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, worker_of
from lcm.model.kinds.worker import LabWorker, Remedy, WorkerPhase
from lcm.placement.claims import Terms, boot_lead
from lcm.placement.places import claims_of_booking
from lcm.placement.request import HeldClaim

PoolRef = Ref[LabWorkerPool]


@dataclass(frozen=True, slots=True)
class SeatClaim:
    """A claim on a seat. `worker_id` is set once its session has a worker."""

    number: int
    held: HeldClaim
    worker_id: str | None = None


class PoolIndex:
    """Claims by pool, and sessions by the uid of their worker."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._claims: defaultdict[PoolRef, dict[str, SeatClaim]] = defaultdict(dict)
        self._versions: defaultdict[PoolRef, int] = defaultdict(int)
        self._keys_of: dict[Ref[Any], list[tuple[PoolRef, str]]] = {}
        self._sessions_by_worker: defaultdict[str, dict[Ref[LabletSession], LabletSession]] = defaultdict(dict)
        self._worker_by_session: dict[Ref[LabletSession], str] = {}
        self._subscriber: Callable[[PoolRef], object] | None = None
        self.stop: Callable[[], None] = lambda: None

    @classmethod
    async def follow(cls, cache: Cache) -> Self:
        """Follow a cache that is ready and holds all kinds that concern pools, until `stop` is called."""
        made = cls(cache)
        made.stop = await cache.replay(made._on_change, [LabletSession, Reservation])
        return made

    def subscribe(self, changed: Callable[[PoolRef], object]) -> None:
        """Call `changed` from now on with each pool for which something changed."""
        self._subscriber = changed

    def claims_on(self, pool: PoolRef) -> Sequence[SeatClaim]:
        """Return the claims on a pool's seats."""
        return list(self._claims[pool].values()) if pool in self._claims else []

    def version(self, pool: PoolRef) -> int:
        """Return a number that changes whenever a pool's claims change."""
        return self._versions[pool]

    def sessions_on(self, worker_id: str) -> Sequence[LabletSession]:
        """Return the sessions that are on a worker or promised to it."""
        return list(self._sessions_by_worker[worker_id].values()) if worker_id in self._sessions_by_worker else []

    def _on_change(self, seen: ObjectChange) -> None:
        kind = seen.ref.kind
        if kind in {LabletSession, Reservation}:
            self._update_claims(seen.ref, seen.resource)
        if kind is LabletSession:
            self._update_worker(seen.ref, seen.resource if isinstance(seen.resource, LabletSession) else None)
        elif kind in {LabWorker, WorkerTemplate} and self._subscriber is not None:
            for pool in self._cache.all(LabWorkerPool):
                if pool.metadata.namespace == seen.ref.namespace:
                    self._subscriber(ref_of(pool))

    def _update_claims(self, ref: Ref[Any], booking: Resource | None) -> None:
        before = {(pool, name): self._claims[pool].pop(name) for pool, name in self._keys_of.pop(ref, ())}
        now = dict(_claims_of(ref, booking)) if isinstance(booking, LabletSession | Reservation) else {}
        for (pool, name), one in now.items():
            self._claims[pool][name] = one
        if now:
            self._keys_of[ref] = list(now)
        changed = [place for place in dict.fromkeys([*before, *now]) if before.get(place) != now.get(place)]
        for pool in dict.fromkeys(pool for pool, _ in changed):
            self._versions[pool] += 1
            if self._subscriber is not None:
                self._subscriber(pool)

    def _update_worker(self, ref: Ref[LabletSession], session: LabletSession | None) -> None:
        before = self._worker_by_session.pop(ref, None)
        if before is not None:
            self._sessions_by_worker[before].pop(ref, None)
        worker_id = worker_of(session) if session else None
        if session is not None and worker_id is not None:
            self._sessions_by_worker[worker_id][ref] = session
            self._worker_by_session[ref] = worker_id


def _claims_of(ref: Ref[Any], booking: LabletSession | Reservation) -> dict[tuple[PoolRef, str], SeatClaim]:
    worker_id = booking.status.worker_id if isinstance(booking, LabletSession) else None
    return {
        (Ref(LabWorkerPool, pool, ref.namespace), held.holder): SeatClaim(number, held, worker_id)
        for pool, number, held in claims_of_booking(booking)
    }


POOL_LABEL: Final = "lcm/pool"
SEAT_LABEL: Final = "lcm/seat"
_P: Final = WorkerPhase
_GIVEN_UP: Final = frozenset({_P.FAILED, _P.UNLICENSING, _P.STOPPING, _P.STOPPED})
_STRANDED_AFTER: Final = timedelta(minutes=30)
"""A worker whose retry is overdue by this much will not be retried: somebody stopped its machine."""
_ENDING: Final = frozenset({PoolPhase.DRAINING, PoolPhase.TERMINATING})


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What a scaling policy makes a pool do, besides launching a worker for every claimed seat, which all policies do.

    `keeps`: the minimum always has workers. `adopts`: workers made by others fill free seats. `releases`: the
    pool's own workers are released when their seats are not needed.
    """

    keeps: bool = True
    adopts: bool = False
    releases: bool = False


POLICIES: Final[Mapping[ScalingPolicy, PolicyTraits]] = {
    ScalingPolicy.NONE: PolicyTraits(keeps=False, adopts=True),
    ScalingPolicy.CAPACITY_BASED: PolicyTraits(adopts=True),
    ScalingPolicy.LAB_COUNT_BASED: PolicyTraits(adopts=True),
    ScalingPolicy.SCHEDULED: PolicyTraits(releases=True),
    ScalingPolicy.HYBRID: PolicyTraits(releases=True),
}


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool and everything that concerns it at one moment.

    `workers` are those that it made and those that fill its seats. `strangers` are workers that it could adopt into
    free seats. `sessions` counts the sessions on each worker, by uid. `mixed` are the workers that have sessions
    without a seat in this pool.
    """

    pool: LabWorkerPool
    template: WorkerTemplate
    now: datetime
    terms: Terms
    claims: Sequence[SeatClaim] = ()
    workers: Sequence[LabWorker] = ()
    strangers: Sequence[LabWorker] = ()
    sessions: Mapping[str, int] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()

    @property
    def status(self) -> LabWorkerPoolStatus:
        """The status as last recorded."""
        return self.pool.status

    @property
    def is_ending(self) -> bool:
        """Whether the pool is being deleted."""
        return self.status.phase in _ENDING

    @property
    def traits(self) -> PolicyTraits:
        """What the policy makes it do. A pool that is being deleted only keeps what it has promised."""
        return PolicyTraits(keeps=False, releases=True) if self.is_ending else POLICIES[self.pool.spec.policy]

    @property
    def minimum(self) -> int:
        """How many of the first seats always have a worker."""
        spec = self.pool.spec
        return min(spec.min_workers, spec.max_workers) if self.traits.keeps else 0

    @property
    def lead(self) -> timedelta:
        """How long before it is needed a machine must be started."""
        return boot_lead(self.pool, self.terms)

    def owns(self, worker: LabWorker) -> bool:
        """Return whether the pool made a worker, and so may delete it."""
        return is_owner(self.pool, worker)

    def is_busy(self, worker: LabWorker) -> bool:
        """Return whether sessions are on a worker, even if their time is over."""
        return bool(self.sessions.get(worker.metadata.uid))


def is_owner(pool: LabWorkerPool, worker: LabWorker) -> bool:
    """Return whether a pool made a worker."""
    owner = worker.metadata.owner
    return owner is not None and owner.uid == pool.metadata.uid


def seat_number(worker: LabWorker) -> int | None:
    """Return the seat that a worker was made for; None if its labels do not tell."""
    said = worker.metadata.labels.get(SEAT_LABEL, "")
    return int(said) if said.isdecimal() and int(said) > 0 else None


def is_over(worker: LabWorker) -> bool:
    """Return whether a worker is terminated."""
    return worker.status.phase is _P.TERMINATED


def is_lost(worker: LabWorker, now: datetime) -> bool:
    """Return whether a worker has failed and will not be retried."""
    status = worker.status
    if is_over(worker):
        return True
    if status.remedy is Remedy.REPLACE and status.remedied_at is None:
        return False
    if status.phase is _P.TERMINATING_EC2:
        return True
    known = worker.metadata.generation == status.observed_generation or status.phase is not _P.FAILED
    untried = status.retry_at is None or status.retry_at + _STRANDED_AFTER < now
    return status.phase in _GIVEN_UP and bool(status.failure) and known and untried


def is_leaving(worker: LabWorker, now: datetime) -> bool:
    """Return whether a worker takes no more sessions, and will not unless somebody changes that."""
    deleted = worker.metadata.deletion_timestamp is not None
    return deleted or worker.status.phase is _P.DRAINING or is_lost(worker, now)
