"""What the follower looks at: a pool, the workers that are its own, the claims on its seats. Values, no I/O."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref, Seen, ref_of
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolStatus, PoolPhase, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, worker_of
from lcm.model.kinds.worker import LabWorker, Remedy, WorkerPhase
from lcm.placement.claims import Terms, boot_lead
from lcm.placement.places import held_by
from lcm.placement.request import Held

PoolRef = Ref[LabWorkerPool]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim on a seat; `worker_id` is set once its session has a worker."""

    number: int
    held: Held
    worker_id: str | None = None


class Book:
    """Claims by pool, and sessions by the uid of their worker."""

    def __init__(self, cache: Cache) -> None:
        """Follow a cache of all that a pool is made of, which is ready."""
        self._cache = cache
        self._claims: defaultdict[PoolRef, dict[str, Claimed]] = defaultdict(dict)
        self._versions: defaultdict[PoolRef, int] = defaultdict(int)
        self._booked: dict[Ref[Any], list[tuple[PoolRef, str]]] = {}
        self._on: defaultdict[str, dict[Ref[LabletSession], LabletSession]] = defaultdict(dict)
        self._where: dict[Ref[LabletSession], str] = {}
        self._told: Callable[[PoolRef], object] | None = None
        for kind in (LabletSession, Reservation):
            for booking in cache.all(kind):
                self._note(Seen(ref_of(booking), booking))
        self.stop = cache.subscribe(self._note)

    def tell(self, changed: Callable[[PoolRef], object]) -> None:
        """Say from now on of each pool that what concerns it changed."""
        self._told = changed

    def claims(self, pool: PoolRef) -> Sequence[Claimed]:
        """Give the claims on a pool's seats."""
        return list(self._claims[pool].values()) if pool in self._claims else []

    def version(self, pool: PoolRef) -> int:
        """Give a number that changes with a pool's claims."""
        return self._versions[pool]

    def sessions_on(self, worker_id: str) -> Sequence[LabletSession]:
        """Give the sessions that are on a worker or promised to it."""
        return list(self._on[worker_id].values()) if worker_id in self._on else []

    def pools(self) -> Mapping[PoolRef, LabWorkerPool]:
        """Give all pools by name."""
        return {ref_of(pool): pool for pool in self._cache.all(LabWorkerPool)}

    def _note(self, seen: Seen) -> None:
        kind = seen.ref.kind
        if kind in {LabletSession, Reservation}:
            self._book(seen.ref, seen.resource)
        if kind is LabletSession:
            self._place(seen.ref, seen.resource if isinstance(seen.resource, LabletSession) else None)
        elif kind in {LabWorker, WorkerTemplate} and self._told is not None:
            for pool in self.pools():
                if pool.namespace == seen.ref.namespace:
                    self._told(pool)

    def _book(self, ref: Ref[Any], booking: Resource | None) -> None:
        before = {(pool, name): self._claims[pool].pop(name) for pool, name in self._booked.pop(ref, ())}
        now = dict(_claimed(ref, booking)) if isinstance(booking, LabletSession | Reservation) else {}
        for (pool, name), one in now.items():
            self._claims[pool][name] = one
        if now:
            self._booked[ref] = list(now)
        changed = [place for place in dict.fromkeys([*before, *now]) if before.get(place) != now.get(place)]
        for pool in dict.fromkeys(pool for pool, _ in changed):
            self._versions[pool] += 1
            if self._told is not None:
                self._told(pool)

    def _place(self, ref: Ref[LabletSession], session: LabletSession | None) -> None:
        before = self._where.pop(ref, None)
        if before is not None:
            self._on[before].pop(ref, None)
        worker_id = worker_of(session) if session else None
        if session is not None and worker_id is not None:
            self._on[worker_id][ref] = session
            self._where[ref] = worker_id


def _claimed(ref: Ref[Any], booking: LabletSession | Reservation) -> dict[tuple[PoolRef, str], Claimed]:
    worker_id = booking.status.worker_id if isinstance(booking, LabletSession) else None
    return {
        (Ref(LabWorkerPool, pool, ref.namespace), held.holder): Claimed(number, held, worker_id)
        for pool, number, held in held_by(booking)
    }


POOL_LABEL: Final = "lcm/pool"
SEAT_LABEL: Final = "lcm/seat"
_P: Final = WorkerPhase
_GIVEN_UP: Final = frozenset({_P.FAILED, _P.UNLICENSING, _P.STOPPING, _P.STOPPED})
_STRANDED: Final = timedelta(minutes=30)
"""A worker that should have been tried again so long ago is not going to be: somebody stopped its machine."""
_ENDING: Final = frozenset({PoolPhase.DRAINING, PoolPhase.TERMINATING})


@dataclass(frozen=True, slots=True)
class Bearing:
    """What a policy makes a pool do besides launching a worker for every seat that is claimed, which all do.

    `keeps`: the minimum always has workers. `adopts`: workers that others made fill free seats. `releases`: the pool's
    own workers go when their seats are not needed.
    """

    keeps: bool = True
    adopts: bool = False
    releases: bool = False


POLICIES: Final[Mapping[ScalingPolicy, Bearing]] = {
    ScalingPolicy.NONE: Bearing(keeps=False, adopts=True),
    ScalingPolicy.CAPACITY_BASED: Bearing(adopts=True),
    ScalingPolicy.LAB_COUNT_BASED: Bearing(adopts=True),
    ScalingPolicy.SCHEDULED: Bearing(releases=True),
    ScalingPolicy.HYBRID: Bearing(releases=True),
}


@dataclass(frozen=True, slots=True)
class View:
    """A pool and all that concerns it at one moment.

    `workers` are those it made and those that fill its seats, `strangers` those that could be taken into free seats.
    `sessions` counts what is on each worker, by uid; on `mixed` ones are some that hold no seat of the pool.
    """

    pool: LabWorkerPool
    template: WorkerTemplate
    now: datetime
    terms: Terms
    claims: Sequence[Claimed] = ()
    workers: Sequence[LabWorker] = ()
    strangers: Sequence[LabWorker] = ()
    sessions: Mapping[str, int] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()

    @property
    def status(self) -> LabWorkerPoolStatus:
        """What was known before."""
        return self.pool.status

    @property
    def ending(self) -> bool:
        """Whether it is to go."""
        return self.status.phase in _ENDING

    @property
    def bearing(self) -> Bearing:
        """What it does; one that is to go only keeps what it has promised."""
        return Bearing(keeps=False, releases=True) if self.ending else POLICIES[self.pool.spec.policy]

    @property
    def minimum(self) -> int:
        """How many of its first seats always have a worker."""
        spec = self.pool.spec
        return min(spec.min_workers, spec.max_workers) if self.bearing.keeps else 0

    @property
    def lead(self) -> timedelta:
        """How long before it is needed a machine must be started."""
        return boot_lead(self.pool, self.terms)

    def owns(self, worker: LabWorker) -> bool:
        """Tell whether the pool made a worker, and so may end it."""
        return is_owner(self.pool, worker)

    def busy(self, worker: LabWorker) -> bool:
        """Tell whether sessions are on a worker, however long ago their time was over."""
        return bool(self.sessions.get(worker.metadata.uid))


def is_owner(pool: LabWorkerPool, worker: LabWorker) -> bool:
    """Tell whether a pool made a worker."""
    owner = worker.metadata.owner
    return owner is not None and owner.uid == pool.metadata.uid


def seat_number(worker: LabWorker) -> int | None:
    """Say for which seat a worker was made; None if nobody says so."""
    said = worker.metadata.labels.get(SEAT_LABEL, "")
    return int(said) if said.isdecimal() and int(said) > 0 else None


def is_over(worker: LabWorker) -> bool:
    """Tell whether a worker's life has ended."""
    return worker.status.phase is _P.TERMINATED


def is_lost(worker: LabWorker, now: datetime) -> bool:
    """Tell whether a worker failed and nobody tries it any more."""
    status = worker.status
    if is_over(worker):
        return True
    if status.remedy is Remedy.REPLACE and status.remedied_at is None:
        return False
    if status.phase is _P.TERMINATING_EC2:
        return True
    known = worker.metadata.generation == status.observed_generation or status.phase is not _P.FAILED
    untried = status.retry_at is None or status.retry_at + _STRANDED < now
    return status.phase in _GIVEN_UP and bool(status.failure) and known and untried


def is_leaving(worker: LabWorker, now: datetime) -> bool:
    """Tell whether a worker takes no session any more, and will not again unless somebody wants it to."""
    deleted = worker.metadata.deletion_timestamp is not None
    return deleted or worker.status.phase is _P.DRAINING or is_lost(worker, now)


def is_wanted(worker: LabWorker) -> bool:
    """Tell whether a worker is one that runs or will."""
    gone = worker.metadata.deletion_timestamp is not None or is_over(worker)
    return not gone and worker.spec.wanted_state == "running"
