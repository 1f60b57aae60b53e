"""LabWorkerPool and WorkerTemplate: the workers of one lab track, and what a new one looks like."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.machine import CONTROL_PLANE, POOL_CONTROLLER, Limit, Machine, Step
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
    ZoneName,
)
from lcm.model.kinds.worker import LabWorkerSpec
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
    """Where a pool is in its life."""

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
    """What a new worker of this template looks like."""

    worker: LabWorkerSpec = LabWorkerSpec()
    name_prefix: Name = "worker"
    labels: Labels = {}
    annotations: Labels = {}
    price_per_hour_usd: Usd | None = None


class WorkerTemplate(Part):
    """A pattern for workers. It has no life of its own, so no phases."""

    metadata: Metadata
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["WorkerTemplate"] = "WorkerTemplate"
    spec: WorkerTemplateSpec = WorkerTemplateSpec()
    status: Status = Status()


class CapacityThresholds(Part):
    """Fractions and counts at which a pool grows or shrinks."""

    cpu_scale_up: Fraction = 0.75
    cpu_scale_down: Fraction = 0.30
    memory_scale_up: Fraction = 0.80
    memory_scale_down: Fraction = 0.40
    max_labs_per_worker: Positive = 15
    min_labs_per_worker: Count = 3
    scale_up_cooldown_minutes: Count = 10
    scale_down_cooldown_minutes: Count = 20


Hour = Annotated[int, msgspec.Meta(ge=0, le=24)]


class AllowedHours(Part):
    """The hours of the day, in a time zone, during which a pool may run machines. A span may pass midnight."""

    start_hour: Hour = 0
    end_hour: Hour = 24
    time_zone: ZoneName = "UTC"


class Budget(Part):
    """What a pool may cost. None: no limit."""

    hourly_usd: Usd | None = None
    monthly_usd: Usd | None = None


class LabWorkerPoolSpec(Part):
    """What is wanted of a pool."""

    lab_track: ShortText
    template: Name
    min_workers: Count = 1
    max_workers: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    policy: ScalingPolicy = ScalingPolicy.SCHEDULED
    thresholds: CapacityThresholds = CapacityThresholds()
    allowed_hours: AllowedHours | None = None
    budget: Budget = Budget()


class PoolCondition(StrEnum):
    """The aspects of a pool that others look at."""

    TEMPLATE_FOUND = "TemplateFound"
    CAPACITY_KNOWN = "CapacityKnown"
    READY = "Ready"


class ScalingDecision(Part):
    """Why a pool changed, or why it did not."""

    at: Moment
    action: Literal["scale_up", "scale_down", "none"]
    reason: Text
    workers_before: Count
    workers_after: Count


class FilledSeat(Part):
    """Which worker fills a seat."""

    number: Positive
    worker_id: str
    worker_name: Name


class PoolCapacitySummary(Part):
    """A pool's workers added up. Utilizations are fractions; None means that nothing was measured."""

    workers: Count = 0
    ready_workers: Count = 0
    booting_workers: Count = 0
    labs: Count = 0
    declared: Amount = Amount()
    claimed: Amount = Amount()
    cpu_utilization: Fraction | None = None
    memory_utilization: Fraction | None = None


class LabWorkerPoolStatus(Status):
    """What was seen of a pool.

    `boot_seconds` are its latest boots, from the launch to serving, by which it leads; all that were ready until
    `boots_counted_until` are counted.
    """

    phase: PoolPhase = PoolPhase.PENDING
    summary: PoolCapacitySummary = PoolCapacitySummary()
    workers_by_phase: Mapping[str, Count] = {}
    seats: Annotated[tuple[FilledSeat, ...], msgspec.Meta(max_length=2000)] = ()
    boot_seconds: Annotated[tuple[Count, ...], msgspec.Meta(max_length=BOOTS_KEPT)] = ()
    boots_counted_until: Moment | None = None
    decisions: tuple[ScalingDecision, ...] = ()
    scaled_up_at: Moment | None = None
    scaled_down_at: Moment | None = None
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

POOL: Final = Machine(
    name="LabWorkerPool",
    initial=_P.PENDING,
    final=frozenset({_P.TERMINATED}),
    steps=(
        Step(_P.PENDING, _P.INITIALIZING, _BY, "its template exists"),
        Step(_P.INITIALIZING, _P.READY, _BY, "the wanted minimum is ready"),
        Step(_P.INITIALIZING, _P.FAILED, _BY, "the wanted minimum did not come up", ("last_error",)),
        Step(_P.FAILED, _P.INITIALIZING, _BY, "tried again"),
        Step(_P.READY, _P.SCALING_UP, _BY, "a seat must be opened"),
        Step(_P.SCALING_UP, _P.READY, _BY, "the workers asked for are there, or given up", ("scaled_up_at",)),
        Step(_P.READY, _P.SCALING_DOWN, _BY, "a seat is not needed"),
        Step(_P.SCALING_DOWN, _P.READY, _BY, "the workers given up are gone", ("scaled_down_at",)),
        *(
            Step(phase, _P.DRAINING, CONTROL_PLANE, "deleted")
            for phase in (_P.PENDING, _P.INITIALIZING, _P.READY, _P.SCALING_UP, _P.SCALING_DOWN, _P.FAILED)
        ),
        Step(_P.DRAINING, _P.TERMINATING, _BY, "no session is on any of its workers"),
        Step(_P.TERMINATING, _P.TERMINATED, _BY, "all its workers are gone"),
    ),
    limits=(
        Limit(_P.INITIALIZING, timedelta(hours=1), _P.FAILED, "booting and licensing take less"),
        Limit(_P.SCALING_UP, timedelta(hours=1), _P.READY, "what did not come up is tried anew by the next decision"),
        Limit(_P.SCALING_DOWN, timedelta(hours=5), None, "drains end at their deadline"),
        Limit(_P.DRAINING, timedelta(hours=5), None, "drains end at their deadline"),
        Limit(_P.TERMINATING, timedelta(hours=1), None, "machines cost money until they are seen gone"),
    ),
)


def with_decision(decisions: tuple[ScalingDecision, ...], new: ScalingDecision) -> tuple[ScalingDecision, ...]:
    """Keep the newest decisions only."""
    return (*decisions, new)[-DECISIONS_KEPT:]


def get_overall_utilization(summary: PoolCapacitySummary) -> float | None:
    """Give the greater of CPU and memory utilization; None when neither was measured."""
    measured = [one for one in (summary.cpu_utilization, summary.memory_utilization) if one is not None]
    return max(measured, default=None)


def needs_scale_up(summary: PoolCapacitySummary, thresholds: CapacityThresholds) -> bool:
    """Tell whether any threshold for growing is passed, and no worker that is still booting may answer it."""
    busy = _above(summary.cpu_utilization, thresholds.cpu_scale_up) or _above(
        summary.memory_utilization, thresholds.memory_scale_up
    )
    coming = summary.ready_workers + summary.booting_workers
    return (busy and not summary.booting_workers) or summary.labs > coming * thresholds.max_labs_per_worker


def needs_scale_down(summary: PoolCapacitySummary, thresholds: CapacityThresholds) -> bool:
    """Tell whether every threshold for shrinking is passed. What was not measured forbids it."""
    return (
        _below(summary.cpu_utilization, thresholds.cpu_scale_down)
        and _below(summary.memory_utilization, thresholds.memory_scale_down)
        and summary.labs < summary.ready_workers * thresholds.min_labs_per_worker
    )


def _above(measured: float | None, threshold: float) -> bool:
    return measured is not None and measured > threshold


def _below(measured: float | None, threshold: float) -> bool:
    return measured is not None and measured < threshold
