"""What the pool controller decides from: a pool, its workers, and the claims on its seats.

`PoolReconciler` makes it of `PoolIndex`. Without I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.pool.index import PoolClaims
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolStatus, PoolPhase, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.worker import LabWorker, Remedy, WorkerPhase
from lcm.placement.claims import Terms, boot_lead

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
    claims: PoolClaims = field(default_factory=PoolClaims)
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
