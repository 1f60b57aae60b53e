"""Derives events from an object before and after a change. Pure.

Called by `control.objects.writer`, which commits the events together with the change, so that neither exists without
the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from lcm.model.access.identity import Caller
from lcm.model.access.learner import learner_of, owner_of
from lcm.model.base.event import (
    AlertCleared,
    AlertRaised,
    Data,
    DriftedPort,
    Event,
    ObjectEvent,
    PoolScaled,
    SessionConsoleJoined,
    SessionPortDrift,
    SessionResourcesObserved,
    SessionStatusChanged,
    WorkerIdleWarning,
    WorkerLabs,
    WorkerMetrics,
    WorkerStatusUpdated,
    WorkerSummary,
    encode_data,
)
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.rows import encode_row
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerPhase, WorkerTelemetry, coarse_status
from lcm.model.telemetry.alert import Alert
from lcm.model.telemetry.observation import ResourceObservation

D = TypeVar("D", bound=msgspec.Struct)
CREATED: Final = "created"
IMPORTED: Final = "imported"
ARCHIVED: Final = "archived"
CONSOLE_OPENED: Final = "console.opened"
CONSOLE_CLOSED: Final = "console.closed"

_NOUNS: Final[Mapping[str, str]] = {
    "LabWorker": "worker",
    "LabWorkerPool": "pool",
    "WorkerTemplate": "template",
    "LabletDefinition": "definition",
    "LabletSession": "lablet.session",
    "Reservation": "reservation",
    "SystemSettings": "settings",
}
_VISIBLE_STATUS: Final[Mapping[str, Callable[[Any], object]]] = {
    "LabWorker": attrgetter("conditions", "idle"),
    "LabWorkerPool": attrgetter("conditions", "workers_by_phase", "decisions"),
    "LabletSession": attrgetter(
        *("conditions", "ends_at", "allocated_ports", "access_urls", "nodes", "progress", "waiting", "artifacts"),
    ),
}
"""The fields of a status that users can see besides the object's row; others change without an event."""

_visible_by_default: Final[Callable[[Any], object]] = attrgetter("conditions")


def derive_events(
    before: Resource | None, after: Resource, *, now: datetime, removed: bool = False, origin: str = CREATED
) -> Sequence[Event]:
    """Return the events of a change.

    `before` None: the object was created. `removed`: `after` is the last state of a deleted object. Why a phase changed
    is recorded in the object's own history. All but those of a removal have the object's row.
    """
    told = _events_of_change(before, after, now, removed=removed, origin=origin)
    if removed or not told:
        return told
    row = encode_row(after)
    return [msgspec.structs.replace(event, row=row) for event in told]


def _events_of_change(
    before: Resource | None, after: Resource, now: datetime, *, removed: bool, origin: str
) -> list[Event]:
    told: list[Event] = []
    if isinstance(after, Sink):
        return told  # events are news for the sinks, not of them
    if before is None:
        told.append(
            _event(_worker_summary(after) if isinstance(after, LabWorker) else _summary(after), origin, after, now)
        )
    elif phase_of(before) != phase_of(after):
        told += _phase_events(before, after, now)
    elif not removed and _is_visible(before, after):
        told.append(_event(_summary(after), "updated", after, now))
    if isinstance(before, LabWorkerPool) and isinstance(after, LabWorkerPool):
        told += _scaling_events(before, after, now)
    if removed:
        told.append(_event(_summary(after), "deleted", after, now))
    return told


def archived_event(session: LabletSession, *, now: datetime) -> Event:
    """Return the event that a session moved to the archive: it is in no list of live sessions any more."""
    return _event(_summary(session), ARCHIVED, session, now)


def metrics_event(worker: LabWorker, telemetry: WorkerTelemetry, *, now: datetime) -> Event:
    """Return the event that a worker was measured."""
    return _event(metrics_of(worker, telemetry), "metrics.updated", worker, now)


def metrics_of(worker: LabWorker, telemetry: WorkerTelemetry) -> WorkerMetrics:
    """Return what the event of a measurement tells."""
    return _copy_fields(WorkerMetrics, telemetry, worker_id=worker.metadata.uid, worker_name=worker.metadata.name)


def labs_event(worker: LabWorker, telemetry: WorkerTelemetry, *, now: datetime) -> Event:
    """Return the event that other labs run on a worker than before."""
    data = _copy_fields(WorkerLabs, telemetry, worker_id=worker.metadata.uid, worker_name=worker.metadata.name)
    return _event(data, "labs.updated", worker, now)


def idle_warning_event(worker: LabWorker, verdict: IdleVerdict, *, now: datetime) -> Event:
    """Return the event that a worker will be paused because it is idle."""
    assert verdict.idle_since is not None, "a countdown has a beginning"
    assert verdict.pause_at is not None, "a countdown has an end"
    data = WorkerIdleWarning(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        idle_since=verdict.idle_since,
        pause_at=verdict.pause_at,
        reason=verdict.reason,
        snooze_minutes=worker.spec.idle.snooze_minutes,
        timestamp=now,
    )
    return _event(data, "idle.warning", worker, now)


def observation_event(session: LabletSession, seen: ResourceObservation, *, now: datetime) -> Event:
    """Return the event with the resources that a running lab really uses."""
    data = _copy_fields(
        SessionResourcesObserved,
        seen,
        session_id=session.metadata.uid,
        instance_id=session.metadata.uid,
        session_name=session.metadata.name,
        definition=session.spec.definition,
        worker_id=session.status.worker_id,
        observation_count=session.status.observation_count,
        port_drift_detected=session.status.port_drift_detected,
        timestamp=now,
    )
    return _event(data, "resources.observed", session, now)


def port_drift_event(
    session: LabletSession, drift: Mapping[str, tuple[int | None, int | None]], *, now: datetime
) -> Event:
    """Return the event that a running lab uses other ports than were allocated to it."""
    data = SessionPortDrift(
        session_id=session.metadata.uid,
        instance_id=session.metadata.uid,
        session_name=session.metadata.name,
        worker_id=session.status.worker_id,
        drift={name: DriftedPort(allocated=given, observed=seen) for name, (given, seen) in drift.items()},
        timestamp=now,
    )
    return _event(data, "port_drift.detected", session, now)


def alert_raised_event(alert: Alert, *, now: datetime) -> Event:
    """Return the event that an alert was raised."""
    return _alert_event(AlertRaised, "alert.raised", alert, now)


def alert_cleared_event(alert: Alert, *, now: datetime) -> Event:
    """Return the event that the reason for an alert is over."""
    return _alert_event(AlertCleared, "alert.cleared", alert, now, cleared_at=now)


def phase_of(resource: Resource) -> str | None:
    """Return an object's phase; None for kinds that have none."""
    phase: str | None = getattr(resource.status, "phase", None)
    return phase


def _phase_events(before: Resource, after: Resource, now: datetime) -> list[Event]:
    if isinstance(before, LabWorker) and isinstance(after, LabWorker):
        step = WorkerStatusUpdated(
            worker_id=after.metadata.uid,
            worker_name=after.metadata.name,
            old_phase=before.status.phase,
            new_phase=after.status.phase,
            old_status=coarse_status(before.status),
            new_status=coarse_status(after.status),
            reason=_reason(after),
            timestamp=now,
        )
        told = [_event(step, "status.updated", after, now)]
        if after.status.phase is WorkerPhase.TERMINATED:
            told.append(_event(_worker_summary(after), "terminated", after, now))
        return told
    if isinstance(before, LabletSession) and isinstance(after, LabletSession):
        change = SessionStatusChanged(
            session_id=after.metadata.uid,
            instance_id=after.metadata.uid,
            session_name=after.metadata.name,
            previous_state=before.status.phase,
            new_state=after.status.phase,
            worker_id=after.status.worker_id,
            allocated_ports=after.status.allocated_ports or {},
            reason=_reason(after),
            timestamp=now,
        )
        return [_event(change, "status.changed", after, now)]
    return [_event(_summary(after), "status.changed", after, now)]


def _scaling_events(before: LabWorkerPool, after: LabWorkerPool, now: datetime) -> Iterator[Event]:
    """Yield an event for each new decision that started workers or let some go; "nothing to do" is no event."""
    for decision in after.status.decisions:
        done = bool(decision.workers) or not decision.why  # a decision for load is told once workers follow from it
        if decision.action != "none" and done and decision not in before.status.decisions:
            data = _copy_fields(
                PoolScaled,
                decision,
                pool=after.metadata.name,
                namespace=after.metadata.namespace,
                lab_track=after.spec.lab_track,
                timestamp=decision.at,
            )
            yield _event(data, "scaled", after, now)


def announce_console(
    session: LabletSession, who: Caller, console: str, *, looking: bool, is_open: bool, now: datetime
) -> Event:
    """Return the event that tells a session's owner who else opened or closed one of its consoles."""
    data = SessionConsoleJoined(
        session_id=session.metadata.uid,
        instance_id=session.metadata.uid,
        session_name=session.metadata.name,
        console=console,
        who=who.name,
        role=who.role,
        looking=looking,
        is_open=is_open,
        timestamp=now,
    )
    return _event(data, CONSOLE_OPENED if is_open else CONSOLE_CLOSED, session, now)


def _is_visible(before: Resource, after: Resource) -> bool:
    """Return whether a change is one that users can see: a client that follows the events has every row as it is."""
    return _visible_state(before) != _visible_state(after) or encode_row(before) != encode_row(after)


def _visible_state(resource: Resource) -> tuple[object, ...]:
    metadata = resource.metadata
    seen = _VISIBLE_STATUS.get(resource.kind, _visible_by_default)(resource.status)
    return metadata.generation, metadata.labels, metadata.annotations, metadata.deletion_timestamp, seen


def _summary(resource: Resource) -> ObjectEvent:
    metadata, phase = resource.metadata, phase_of(resource)
    return _copy_fields(ObjectEvent, metadata, kind=resource.kind, resource_generation=metadata.generation, phase=phase)


def _copy_fields(kind: type[D], source: object, /, **own: object) -> D:
    """Make an event's data from these fields and, for the others, the fields of the same name of a source."""
    return kind(**{name: getattr(source, name) for name in kind.__struct_fields__ if name not in own}, **own)


def _worker_summary(worker: LabWorker) -> WorkerSummary:
    return WorkerSummary(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        phase=worker.status.phase,
        status=coarse_status(worker.status),
        region=worker.spec.aws.region,
        instance_type=worker.status.ec2.instance_type or worker.spec.aws.instance_type,
        instance_id=worker.status.ec2.instance_id,
        lab_track=worker.spec.lab_track,
    )


def _reason(resource: LabWorker | LabletSession) -> str:
    history = resource.status.history
    return history[-1].reason if history else ""


def _alert_event(kind: type[AlertRaised], what: str, alert: Alert, now: datetime, **more: datetime) -> Event:
    worker_id = alert.uid if alert.kind == LabWorker.__name__ else None
    fields = {**msgspec.structs.asdict(alert), "severity": alert.severity.value, "worker_id": worker_id, **more}
    return Event(
        type=what,
        time=now,
        kind=alert.kind,
        name=alert.name,
        namespace=alert.namespace,
        data=encode_data(kind(**fields)),
        worker_id=worker_id,
    )


def _event(data: Data, what: str, resource: Resource, now: datetime) -> Event:
    event = Event(
        type=f"{_NOUNS[resource.kind]}.{what}",
        time=now,
        kind=resource.kind,
        name=resource.metadata.name,
        namespace=resource.metadata.namespace,
        data=encode_data(data),
        owner=owner_of(resource),
        learner=learner_of(resource),
        public=resource.kind == "LabletDefinition",
    )
    return msgspec.structs.replace(event, **_filters(resource))


def _filters(resource: Resource) -> dict[str, Any]:
    uid = resource.metadata.uid
    match resource:
        case LabWorker():
            return {"worker_id": uid}
        case LabletSession():
            return {
                "session_id": uid,
                "worker_id": resource.status.worker_id,
                "definition_id": resource.spec.definition,
            }
        case Reservation():
            return {"definition_id": resource.spec.definition}
    return {"definition_id": resource.metadata.name} if resource.kind == "LabletDefinition" else {}
