"""What the pool controller decides from: a pool, its workers, and the claims on its seats.

`PoolReconciler` makes it of `PoolIndex`. Without I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from msgspec.structs import replace

from lcm.controllers.pool.index import PoolClaims, WaitingSessions
from lcm.model.base.capacity import Amount
from lcm.model.kinds.placement import PoolHeadroom
from lcm.model.kinds.pool import (
    LabWorkerPool,
    LabWorkerPoolStatus,
    PoolPhase,
    ScalingPolicy,
    SmallRun,
    WorkerTemplate,
)
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import AwsSpec, LabWorker, LabWorkerSpec, Remedy, WorkerPhase
from lcm.placement.claims import Terms, boot_lead
from lcm.placement.hours import OpenTimes, open_times_of
from lcm.placement.places import least_workers
from lcm.placement.small_runs import SmallerType, launched_aws

POOL_LABEL: Final = "lcm/pool"
SEAT_LABEL: Final = "lcm/seat"
SMALL_LABEL: Final = "lcm/smaller-type"
_P: Final = WorkerPhase
_GIVEN_UP: Final = frozenset({_P.FAILED, _P.UNLICENSING, _P.STOPPING, _P.STOPPED})
_STRANDED_AFTER: Final = timedelta(minutes=30)
"""A worker whose retry is overdue by this much will not be retried: somebody stopped its machine."""
_ENDING: Final = frozenset({PoolPhase.DRAINING, PoolPhase.TERMINATING})


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What a scaling policy makes a pool do, besides having a worker for every claimed seat, which all policies do.

    `keeps`: the minimum has workers while the pool is open. `adopts`: workers made by others fill free seats.
    `drains`: a worker that is given up may have sessions; it takes no more of them, and stops after those.
    """

    keeps: bool = True
    adopts: bool = False
    drains: bool = False


POLICIES: Final[Mapping[ScalingPolicy, PolicyTraits]] = {
    ScalingPolicy.NONE: PolicyTraits(adopts=True, drains=True),
    ScalingPolicy.CAPACITY_BASED: PolicyTraits(adopts=True, drains=True),
    ScalingPolicy.LAB_COUNT_BASED: PolicyTraits(adopts=True, drains=True),
    ScalingPolicy.SCHEDULED: PolicyTraits(),
    ScalingPolicy.HYBRID: PolicyTraits(),
}


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool and everything that concerns it at one moment.

    `workers` are those that it made and those that fill its seats. `strangers` are workers that it could adopt into
    free seats. `sessions` counts the sessions on each worker, by uid. `mixed` are the workers that have sessions
    without a seat in this pool. `waiting` are the sessions of its track that wait; `needs` tells what one of them takes
    of this pool's workers, None if it does not suit them or another pool is to start a worker for it. `headroom` is
    what the control plane said last; None before that. A machine of the template costs `usd_hourly`; `smaller` are the
    types that may be launched instead, the cheapest first.
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
    waiting: WaitingSessions = field(default_factory=WaitingSessions)
    needs: Callable[[LabletSession], Amount | None] = lambda _: None
    headroom: PoolHeadroom | None = None
    usd_hourly: Decimal | None = None
    smaller: Sequence[SmallerType] = ()

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
        return PolicyTraits(keeps=False) if self.is_ending else POLICIES[self.pool.spec.policy]

    @property
    def least(self) -> int:
        """How many of the first seats have a worker while the pool is open."""
        return least_workers(self.pool) if self.traits.keeps else 0

    @property
    def times(self) -> OpenTimes:
        """When the pool is open."""
        return open_times_of(self.pool)

    @property
    def minimum(self) -> int:
        """How many of the first seats have a worker now, whatever is claimed."""
        return 0 if self.times.closed_reason(self.now) else self.least

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


def seat_spec(view: PoolView, run: SmallRun | None = None) -> LabWorkerSpec:
    """Return the spec of a worker that is made for a seat now, of a smaller type if that was chosen."""
    spec = replace(view.template.spec.worker, lab_track=view.pool.spec.lab_track, wanted_state="running")
    return spec if run is None else replace(spec, aws=launched_aws(spec.aws, run, view.smaller))


def is_small(worker: LabWorker) -> bool:
    """Return whether a worker was made with a smaller machine than its template says."""
    return SMALL_LABEL in worker.metadata.labels


def is_owner(pool: LabWorkerPool, worker: LabWorker) -> bool:
    """Return whether a pool made a worker."""
    owner = worker.metadata.owner
    return owner is not None and owner.uid == pool.metadata.uid


def suits_template(worker: LabWorker, wanted: AwsSpec) -> bool:
    """Return whether a worker that others made is in the region, of a type, and of the market that a template names."""
    kind = worker.status.ec2.instance_type or worker.spec.aws.instance_type
    types = (wanted.instance_type, *wanted.instance_type_alternatives)
    own = worker.spec.aws
    return (own.region, own.market) == (wanted.region, wanted.market) and kind in types


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
