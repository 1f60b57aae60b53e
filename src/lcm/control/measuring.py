"""What a report of measurements says that was not known: by source, each with its age. Pure; used by `reports`.

A source that did not answer leaves what it said before, with the age it had then. Only what a source said now is
plotted and held against limits.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from lcm.control.board import Alerts, Standing, complaint_of
from lcm.control.plane import Sample
from lcm.model.alert import Complaint, Severity
from lcm.model.worker import LabWorker, WorkerPhase, WorkerTelemetry

THRESHOLD_PERCENT: Final = 90.0
CALM_PERCENT: Final = 80.0
"""Below this it is over: between the two, what is raised stays raised and what is not is not raised."""
CALM_AFTER: Final = timedelta(minutes=5)

_BY_SOURCE: Final[Mapping[str, tuple[str, ...]]] = {
    "ec2_at": (),
    "cloudwatch_at": ("network_in_bytes", "network_out_bytes"),
    "cml_at": (
        "memory_utilization",
        "storage_utilization",
        "uptime_seconds",
        "running_nodes",
        "active_labs_count",
        "hosted_lab_ids",
    ),
    "activity_at": (),
}
_CPU: Final = "cpu_utilization"
_CPU_SOURCES: Final = ("cloudwatch_at", "cml_at")
_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(WorkerTelemetry) if not field.required
}


class Limit(NamedTuple):
    """A measurement that may be too high, and the alert that says so."""

    alert: str
    field: str
    what: str


LIMITS: Final = (
    Limit("HighCpu", _CPU, "CPU"),
    Limit("HighMemory", "memory_utilization", "memory"),
    Limit("HighDisk", "storage_utilization", "disk"),
)


def aged(report: WorkerTelemetry) -> WorkerTelemetry:
    """Say of what came without an age that it is as old as the report.

    Not of what people did: that nothing is known to have happened must not pass for knowing that nothing happened.
    """
    missing = {
        source: report.collected_at
        for source, fields in _BY_SOURCE.items()
        if getattr(report, source) is None and any(getattr(report, name) != _DEFAULTS[name] for name in fields)
    }
    known = missing.keys() | {source for source in _CPU_SOURCES if getattr(report, source) is not None}
    if report.cpu_utilization is not None and not known.intersection(_CPU_SOURCES):
        missing["cloudwatch_at"] = report.collected_at
    return msgspec.structs.replace(report, **missing)


def news(report: WorkerTelemetry, kept: WorkerTelemetry | None) -> WorkerTelemetry:
    """Leave out the sources that did not answer, or from which something newer is known."""
    silent = {source for source in _BY_SOURCE if not _newer(report, kept, source)}
    blank = {name for source in silent for name in (source, *_BY_SOURCE[source])}
    blank |= {_CPU} if silent.issuperset(_CPU_SOURCES) else set()
    return msgspec.structs.replace(report, **{name: _DEFAULTS[name] for name in blank})


def merged(fresh: WorkerTelemetry, kept: WorkerTelemetry | None) -> WorkerTelemetry:
    """Put what is new over what is known."""
    if kept is None:
        return fresh
    silent = {source for source in _BY_SOURCE if getattr(fresh, source) is None}
    old = {name for source in silent for name in (source, *_BY_SOURCE[source])}
    old |= {_CPU} if silent.issuperset(_CPU_SOURCES) else set()
    both = [moment for moment in (fresh.last_activity_at, kept.last_activity_at) if moment is not None]
    changes: dict[str, Any] = {name: getattr(kept, name) for name in old}
    # A record of what people did may reach less far back than the one before.
    return msgspec.structs.replace(fresh, **changes | {"last_activity_at": max(both, default=None)})


def moved_labs(fresh: WorkerTelemetry, kept: WorkerTelemetry | None) -> bool:
    """Tell whether other labs run than were known to."""
    return fresh.cml_at is not None and (kept is None or kept.cml_at is None or _labs(fresh) != _labs(kept))


def sample_of(fresh: WorkerTelemetry) -> Sample:
    """Take from measurements what is plotted."""
    return Sample(
        at=fresh.collected_at,
        cpu_utilization=fresh.cpu_utilization,
        memory_utilization=fresh.memory_utilization,
        storage_utilization=fresh.storage_utilization,
        active_labs_count=fresh.active_labs_count,
        running_nodes=fresh.running_nodes,
    )


def held_to_limits(worker: LabWorker, fresh: WorkerTelemetry, alerts: Alerts) -> Alerts:
    """Raise what is too high, and clear what has been low for long enough: what oscillates stays raised.

    A machine that is stopped has no load at all.
    """
    for limit in LIMITS:
        if worker.status.phase is WorkerPhase.STOPPED:
            alerts = alerts.without(limit.alert)
            continue
        value: float | None = getattr(fresh, limit.field)
        if value is not None:
            alerts = _held(worker, fresh, alerts, limit, value)
    return alerts


def _held(worker: LabWorker, fresh: WorkerTelemetry, alerts: Alerts, limit: Limit, value: float) -> Alerts:
    standing, at = alerts.find(limit.alert), fresh.collected_at
    if standing is None:
        if value < THRESHOLD_PERCENT:
            return alerts
        complaint = Complaint(
            alert=limit.alert,
            severity=Severity.WARNING,
            reason="AboveThreshold",
            message=f"{limit.what} at {value:.1f} %; the limit is {THRESHOLD_PERCENT:.0f} %",
        )
        return alerts.having(Standing(alert=complaint_of(worker, complaint, at)))
    if value >= CALM_PERCENT:
        return alerts.having(Standing(alert=standing.alert))
    calm_since = standing.calm_since or at
    if at - calm_since >= CALM_AFTER:
        return alerts.without(limit.alert)
    return alerts.having(Standing(alert=standing.alert, calm_since=calm_since))


def _newer(report: WorkerTelemetry, kept: WorkerTelemetry | None, source: str) -> bool:
    new, old = getattr(report, source), getattr(kept, source) if kept else None
    return new is not None and (old is None or new >= old)


def _labs(telemetry: WorkerTelemetry) -> tuple[int | None, list[str]]:
    return telemetry.active_labs_count, sorted(telemetry.hosted_lab_ids)
