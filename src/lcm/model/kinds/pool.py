"""LabWorkerPool and WorkerTemplate: the workers of one lab track, and the template of new ones.

Holds both kinds, the pool's state machine, and the pure functions that decide whether a pool grows or shrinks.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.machine import CONTROL_PLANE, POOL_CONTROLLER, PhaseLimit, PhaseStep, StateMachine
from lcm.model.base.resource import (
    API_VERSION,
    Count,
    Fraction,
    Labels,
    Metadata,
    Moment,
    Name,
    Part,
    Positive,
    ShortText,
    Status,
    Text,
)
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.worker import LabWorker, LabWorkerSpec, WorkerPhase
from lcm.model.money.billing import Usd

DECISIONS_KEPT: Final = 50
BOOTS_KEPT: Final = 100


class ScalingPolicy(StrEnum):
    """What makes a pool grow and shrink."""

    NONE = "NONE"
    CAPACITY_BASED = "CAPACITY_BASED"
    LAB_COUNT_BASED = "LAB_COUNT_BASED"
    SCHEDULED = "SCHEDULED"
    HYBRID = "HYBRID"


class PoolPhase(StrEnum):
    """The phase of a pool's life."""

    PENDING = "PENDING"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    SCALING_UP = "SCALING_UP"
    SCALING_DOWN = "SCALING_DOWN"
    DRAINING = "DRAINING"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    FAILED = "FAILED"


class WorkerTemplateSpec(Part):
    """The spec, labels and price of a new worker of this template.

    `smaller_types` are types of instance that a pool launches instead while all that is claimed of a planned worker
    fits one of them and it is cheaper.
    """

    worker: LabWorkerSpec = LabWorkerSpec()
    name_prefix: Name = "worker"
    labels: Labels = {}
    annotations: Labels = {}
    price_per_hour_usd: Usd | None = None
    smaller_types: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=16)] = ()


class TemplateCondition(StrEnum):
    """The conditions of a template."""

    LAUNCHABLE = "Launchable"


class WorkerTemplate(Part):
    """A template for workers. It has no life cycle, so no phases."""

    metadata: Metadata
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["WorkerTemplate"] = "WorkerTemplate"
    spec: WorkerTemplateSpec = WorkerTemplateSpec()
    status: Status = Status()


Cooldown = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
"""Minutes; a moment that is so far ahead can still be counted."""


class CapacityThresholds(Part):
    """Fractions and counts at which a pool grows or shrinks."""

    cpu_scale_up: Fraction = 0.75
    cpu_scale_down: Fraction = 0.30
    memory_scale_up: Fraction = 0.80
    memory_scale_down: Fraction = 0.40
    max_labs_per_worker: Positive = 15
    min_labs_per_worker: Count = 3
    scale_up_cooldown_minutes: Cooldown = 10
    scale_down_cooldown_minutes: Cooldown = 20


class Budget(Part):
    """What a pool may cost. None means no limit."""

    hourly_usd: Usd | None = None
    monthly_usd: Usd | None = None


class LabWorkerPoolSpec(Part):
    """The desired state of a pool."""

    lab_track: ShortText
    template: Name
    min_workers: Count = 1
    max_workers: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    policy: ScalingPolicy = ScalingPolicy.SCHEDULED
    thresholds: CapacityThresholds = CapacityThresholds()
    allowed_hours: AllowedHours | None = None
    budget: Budget = Budget()
    warm_workers: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """How many machines that are not needed are kept stopped, and started again before new ones are launched."""


class PoolCondition(StrEnum):
    """The conditions of a pool."""

    TEMPLATE_FOUND = "TemplateFound"
    CAPACITY_KNOWN = "CapacityKnown"
    READY = "Ready"


class ScalingDecision(Part):
    """Why a pool changed, or why it did not: `why` in a word, `reason` in a sentence, and what was considered.

    `workers` are those that were started or stopped; a decision for load names them once that is done.
    """

    at: Moment
    action: Literal["scale_up", "scale_down", "none"]
    reason: Text
    workers_before: Count
    workers_after: Count
    why: ShortText = ""
    considered: tuple[Text, ...] = ()
    workers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=2000)] = ()


class PoolPause(Part):
    """A pause of a pool: nothing is started but what was promised before. Without `until` somebody must resume it."""

    since: Moment
    until: Moment | None = None
    by: ShortText = ""
    reason: Text = ""


class FilledSeat(Part):
    """A planned worker of a pool, by number, and the worker that fills its place."""

    number: Positive
    worker_id: str
    worker_name: Name


class SmallRun(Part):
    """A planned worker whose machine is of a smaller type: all that is claimed there fits it and ends by `until`."""

    number: Positive
    instance_type: ShortText
    until: Moment


class PoolCapacitySummary(Part):
    """The sum of a pool's workers that serve or come up.

    Utilizations are fractions of them, the greater of what is claimed and what is measured; None means that there is
    nothing to use.
    """

    workers: Count = 0
    ready_workers: Count = 0
    booting_workers: Count = 0
    labs: Count = 0
    declared: Amount = Amount()
    claimed: Amount = Amount()
    cpu_utilization: Fraction | None = None
    memory_utilization: Fraction | None = None


class PoolPacking(Part):
    """How well what is booked on a pool from `at` to `until` is packed.

    Machines run for `machine_hours` for that, besides those that always run; no plan needs less than
    `least_machine_hours`. `moved` claims changed their planned workers. Since `saved_since`, packing has saved
    `saved_machine_hours`, which would have cost `saved_usd`; the control plane keeps that.
    """

    at: Moment
    until: Moment
    claims: Count
    moved: Count
    machine_hours: float
    least_machine_hours: float
    saved_machine_hours: float = 0.0
    saved_usd: Usd = Decimal(0)
    saved_since: Moment | None = None


class LabWorkerPoolStatus(Status):
    """The observed state of a pool.

    `boot_seconds` are its latest boot times, from launch to serving, from which its lead time is derived. All
    boots that were ready until `boots_counted_until` are counted. `open_seats` are the planned workers that
    have a machine for the load, None before the first decision; `load_up_at` and `load_down_at` are when the load last
    made the pool grow and shrink. `small_runs` are written before such a machine is launched, so that nothing is booked
    onto it that it does not hold.
    """

    phase: PoolPhase = PoolPhase.PENDING
    summary: PoolCapacitySummary = PoolCapacitySummary()
    workers_by_phase: Mapping[str, Count] = {}
    seats: Annotated[tuple[FilledSeat, ...], msgspec.Meta(max_length=2000)] = ()
    small_runs: Annotated[tuple[SmallRun, ...], msgspec.Meta(max_length=2000)] = ()
    boot_seconds: Annotated[tuple[Count, ...], msgspec.Meta(max_length=BOOTS_KEPT)] = ()
    boots_counted_until: Moment | None = None
    decisions: tuple[ScalingDecision, ...] = ()
    packing: PoolPacking | None = None
    scaled_up_at: Moment | None = None
    scaled_down_at: Moment | None = None
    open_seats: Annotated[tuple[Positive, ...], msgspec.Meta(max_length=2000)] | None = None
    load_up_at: Moment | None = None
    load_down_at: Moment | None = None
    pause: PoolPause | None = None
    last_error: Text = ""


class LabWorkerPool(Part):
    """The workers of one lab track."""

    metadata: Metadata
    spec: LabWorkerPoolSpec
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["LabWorkerPool"] = "LabWorkerPool"
    status: LabWorkerPoolStatus = LabWorkerPoolStatus()


_P = PoolPhase
_BY = POOL_CONTROLLER

POOL_MACHINE: Final = StateMachine(
    name="LabWorkerPool",
    initial=_P.PENDING,
    final=frozenset({_P.TERMINATED}),
    steps=(
        PhaseStep(_P.PENDING, _P.INITIALIZING, _BY, "its template exists"),
        PhaseStep(_P.INITIALIZING, _P.READY, _BY, "the wanted minimum is ready"),
        PhaseStep(_P.INITIALIZING, _P.FAILED, _BY, "the wanted minimum did not come up", ("last_error",)),
        PhaseStep(_P.FAILED, _P.INITIALIZING, _BY, "tried again"),
        PhaseStep(_P.READY, _P.SCALING_UP, _BY, "a planned worker must be started"),
        PhaseStep(_P.SCALING_UP, _P.READY, _BY, "the workers asked for are there, or given up", ("scaled_up_at",)),
        PhaseStep(_P.READY, _P.SCALING_DOWN, _BY, "a planned worker is not needed"),
        PhaseStep(_P.SCALING_DOWN, _P.READY, _BY, "the workers given up are gone", ("scaled_down_at",)),
        *(
            PhaseStep(phase, _P.DRAINING, CONTROL_PLANE, "deleted")
            for phase in (_P.PENDING, _P.INITIALIZING, _P.READY, _P.SCALING_UP, _P.SCALING_DOWN, _P.FAILED)
        ),
        PhaseStep(_P.DRAINING, _P.TERMINATING, _BY, "no session is on any of its workers"),
        PhaseStep(_P.TERMINATING, _P.TERMINATED, _BY, "all its workers are gone"),
    ),
    limits=(
        PhaseLimit(_P.INITIALIZING, timedelta(hours=1), _P.FAILED, "booting and licensing take less"),
        PhaseLimit(
            _P.SCALING_UP, timedelta(hours=1), _P.READY, "what did not come up is tried anew by the next decision"
        ),
        PhaseLimit(_P.SCALING_DOWN, timedelta(hours=5), None, "drains end at their deadline"),
        PhaseLimit(_P.DRAINING, timedelta(hours=5), None, "drains end at their deadline"),
        PhaseLimit(_P.TERMINATING, timedelta(hours=1), None, "machines cost money until they are seen gone"),
    ),
)


def with_decision(decisions: tuple[ScalingDecision, ...], new: ScalingDecision) -> tuple[ScalingDecision, ...]:
    """Return the decisions with one added, without the oldest beyond the limit."""
    return (*decisions, new)[-DECISIONS_KEPT:]


def describe_packing(packing: PoolPacking) -> str:
    """Return in words how well what is booked is packed."""
    days = round((packing.until - packing.at) / timedelta(days=1))
    return (
        f"what is booked in the {days} days from {packing.at:%d %b %H:%M} UTC takes {packing.machine_hours:,.1f} "
        "machine-hours, besides the workers that always run; no plan needs less than "
        f"{packing.least_machine_hours:,.1f}{_describe_saving(packing)}"
    )


def _describe_saving(packing: PoolPacking) -> str:
    if packing.saved_since is None or not packing.saved_machine_hours:
        return ""
    usd = f", {packing.saved_usd:,.2f} USD" if packing.saved_usd else ""
    saved = f"{packing.saved_machine_hours:,.1f} machine-hours{usd}"
    return f"; packing has saved {saved} since {packing.saved_since:%d %b %Y}"


def is_kept_seat(pool: LabWorkerPool, number: int) -> bool:
    """Return whether a pool keeps a planned worker's machine running though nobody uses it."""
    return number <= pool.spec.min_workers or number in (pool.status.open_seats or ())


_WITHOUT_MACHINE: Final = frozenset(
    {WorkerPhase.PENDING, WorkerPhase.STOPPED, WorkerPhase.TERMINATED, WorkerPhase.FAILED}
)


def workers_of(pool: LabWorkerPool, workers: Iterable[LabWorker]) -> Sequence[LabWorker]:
    """Return the workers that a pool made, and those that fill its places."""
    filled = {seat.worker_id for seat in pool.status.seats}
    owners = ((one, one.metadata.owner) for one in workers)
    return [one for one, owner in owners if one.metadata.uid in filled or (owner and owner.uid == pool.metadata.uid)]


def count_machines(workers: Iterable[LabWorker]) -> int:
    """Count the workers whose machine runs, starts or stops; each of them costs money."""
    return sum(one.status.phase not in _WITHOUT_MACHINE for one in workers)


def get_overall_utilization(summary: PoolCapacitySummary) -> float | None:
    """Return the greater of CPU and memory utilization; None when neither was measured."""
    measured = [one for one in (summary.cpu_utilization, summary.memory_utilization) if one is not None]
    return max(measured, default=None)


def needs_scale_up(summary: PoolCapacitySummary, thresholds: CapacityThresholds) -> bool:
    """Return True if any threshold for growing is exceeded, by what serves and comes up together."""
    return bool(exceeded_thresholds(summary, thresholds))


def needs_scale_down(summary: PoolCapacitySummary, thresholds: CapacityThresholds) -> bool:
    """Return True if all values are below the thresholds for shrinking. A missing measurement forbids it."""
    return undercut_thresholds(summary, thresholds) == frozenset(Threshold)


class Threshold(StrEnum):
    """What a pool's thresholds are about."""

    CPU = "CPU"
    MEMORY = "memory"
    LABS = "labs"


def exceeded_thresholds(summary: PoolCapacitySummary, thresholds: CapacityThresholds) -> frozenset[Threshold]:
    """Return the upper thresholds that are exceeded."""
    coming = summary.ready_workers + summary.booting_workers
    above = {
        Threshold.CPU: _is_above(summary.cpu_utilization, thresholds.cpu_scale_up),
        Threshold.MEMORY: _is_above(summary.memory_utilization, thresholds.memory_scale_up),
        Threshold.LABS: summary.labs > coming * thresholds.max_labs_per_worker,
    }
    return frozenset(name for name, exceeded in above.items() if exceeded)


def undercut_thresholds(summary: PoolCapacitySummary, thresholds: CapacityThresholds) -> frozenset[Threshold]:
    """Return the lower thresholds that the pool is below."""
    below = {
        Threshold.CPU: _is_below(summary.cpu_utilization, thresholds.cpu_scale_down),
        Threshold.MEMORY: _is_below(summary.memory_utilization, thresholds.memory_scale_down),
        Threshold.LABS: summary.labs < summary.ready_workers * thresholds.min_labs_per_worker,
    }
    return frozenset(name for name, undercut in below.items() if undercut)


def _is_above(measured: float | None, threshold: float) -> bool:
    return measured is not None and measured > threshold


def _is_below(measured: float | None, threshold: float) -> bool:
    return measured is not None and measured < threshold
