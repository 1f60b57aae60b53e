"""Rows: an object in brief, as a line of a list shows it.

`control.delivery.events` puts the row of an object into every event of a change, and `api.routes.row_snapshots` makes
those of all objects for a client that begins. A field of a row is one whose change is an event: a client that has
followed the events has the row as it is.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.event import NO_ROW
from lcm.model.base.resource import Moment, Part, Truth, find_condition, shorten_text
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, SessionCondition
from lcm.model.kinds.worker import LabWorker, coarse_status

_LONGEST_TEXT: Final = 200


class ObjectRow(Part, omit_defaults=True):
    """What every row has. `resource_version` is 0 in the row of an event: it is the revision of the event."""

    uid: str
    name: str
    namespace: str
    resource_version: int = 0
    created_at: Moment | None = None
    phase: str = ""
    lab_track: str = ""


class WorkerRow(ObjectRow, omit_defaults=True, tag_field="kind", tag=LabWorker.__name__):
    """A worker in a list."""

    status: str = ""
    region: str = ""
    instance_type: str = ""
    instance_id: str = ""
    pool: str = ""
    capacity: Amount | None = None
    license_status: str = ""
    accepts_sessions: bool = True
    ready_at: Moment | None = None
    idle_reason: str = ""
    pause_at: Moment | None = None
    snoozed_until: Moment | None = None
    drain_deadline_at: Moment | None = None
    last_error: str = ""


class SessionRow(ObjectRow, omit_defaults=True, tag_field="kind", tag=LabletSession.__name__):
    """A session in a list. It starts and ends as it was promised or, while nothing was promised, as it is estimated."""

    definition: str = ""
    owner: str = ""
    student_email: str = ""
    reservation_id: str = ""
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    worker_id: str = ""
    worker_name: str = ""
    need: Amount | None = None
    queue_position: int = 0
    estimated_start: Moment | None = None
    step: str = ""
    percent: int = 0
    message: str = ""
    consoles: int = 0
    files: int = 0
    at_risk: str = ""
    outcome: str = ""
    last_error: str = ""


class PoolRow(ObjectRow, omit_defaults=True, tag_field="kind", tag=LabWorkerPool.__name__):
    """A pool in a list, with its last decision."""

    template: str = ""
    policy: str = ""
    min_workers: int = 0
    max_workers: int = 0
    workers: int = 0
    ready_workers: int = 0
    action: str = ""
    reason: str = ""
    decided_at: Moment | None = None
    is_paused: bool = False
    paused_until: Moment | None = None


class DefinitionRow(ObjectRow, omit_defaults=True, tag_field="kind", tag=LabletDefinition.__name__):
    """A definition in a list."""

    version: str = ""
    cpu_cores: float = 0
    memory_gb: float = 0
    storage_gb: float = 0
    nodes: int = 0
    max_duration_minutes: int = 0
    observed_sessions: int = 0
    needs_review: bool = False


class ReservationRow(ObjectRow, omit_defaults=True, tag_field="kind", tag=Reservation.__name__):
    """A reservation in a list, from the begin of its first slot to the end of its last."""

    definition: str = ""
    owner: str = ""
    count: int = 0
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    sessions_made: int = 0
    sessions_ended: int = 0
    last_error: str = ""


class TemplateRow(ObjectRow, omit_defaults=True, tag_field="kind", tag=WorkerTemplate.__name__):
    """A template in a list."""

    region: str = ""
    instance_type: str = ""


Row = WorkerRow | SessionRow | PoolRow | DefinitionRow | ReservationRow | TemplateRow
_encode: Final = msgspec.json.Encoder().encode


def row_of(resource: Resource) -> Row | None:
    """Return an object's row; None for kinds that no list shows."""
    make = _MAKERS.get(resource.kind)
    return make(resource) if make else None


def encode_row(resource: Resource) -> msgspec.Raw:
    """Return an object's row as JSON for an event of its change; null for kinds that no list shows."""
    row = row_of(resource)
    return NO_ROW if row is None else msgspec.Raw(_encode(msgspec.structs.replace(row, resource_version=0)))


def _common(resource: Resource) -> dict[str, Any]:
    metadata = resource.metadata
    return {
        "uid": metadata.uid,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "resource_version": metadata.resource_version,
        "created_at": metadata.created_at,
        "phase": getattr(resource.status, "phase", ""),
        "lab_track": getattr(resource.spec, "lab_track", ""),
    }


def _worker_row(worker: LabWorker) -> WorkerRow:
    spec, status, idle = worker.spec, worker.status, worker.status.idle
    owner = worker.metadata.owner
    return WorkerRow(
        **_common(worker),
        status=coarse_status(status),
        region=spec.aws.region,
        instance_type=status.ec2.instance_type or spec.aws.instance_type,
        instance_id=status.ec2.instance_id,
        pool=owner.name if owner and owner.kind == LabWorkerPool.__name__ else "",
        capacity=status.capacity,
        license_status=status.cml.license_status,
        accepts_sessions=spec.accepts_sessions,
        ready_at=status.ready_at,
        idle_reason=shorten_text(idle.reason, _LONGEST_TEXT) if idle else "",
        pause_at=idle.pause_at if idle else None,
        snoozed_until=idle.snoozed_until if idle else None,
        drain_deadline_at=status.drain_deadline_at,
        last_error=shorten_text(status.last_error, _LONGEST_TEXT),
    )


def _session_row(session: LabletSession) -> SessionRow:
    spec, status, waiting = session.spec, session.status, session.status.waiting
    progress = status.progress
    starts_at, ends_at = _span_of(session)
    return SessionRow(
        **_common(session),
        definition=spec.definition,
        owner=spec.owner,
        student_email=spec.student_email or "",
        reservation_id=spec.reservation_id or "",
        starts_at=starts_at,
        ends_at=ends_at,
        worker_id=status.worker_id or "",
        worker_name=status.worker_name or "",
        need=status.claim.need if status.claim else None,
        queue_position=waiting.queue_position if waiting else 0,
        estimated_start=waiting.estimated_start if waiting else None,
        step=progress.step if progress else "",
        percent=progress.percent if progress else 0,
        message=shorten_text(progress.message, _LONGEST_TEXT) if progress else "",
        consoles=len(status.access_urls),
        files=len(status.artifacts),
        at_risk=_risk_of(session),
        outcome=status.outcome or "",
        last_error=shorten_text(status.last_error, _LONGEST_TEXT),
    )


def _span_of(session: LabletSession) -> tuple[datetime | None, datetime | None]:
    spec, status, claim = session.spec, session.status, session.status.claim
    start = spec.timeslot_start or (claim.start if claim else None)
    return start, status.ends_at or spec.timeslot_end or (claim.end - CLEAN_UP_TIME if claim else None)


def _risk_of(session: LabletSession) -> str:
    found = find_condition(session.status.conditions, SessionCondition.AT_RISK)
    return shorten_text(found.message or found.reason, _LONGEST_TEXT) if found and found.status is Truth.TRUE else ""


def _pool_row(pool: LabWorkerPool) -> PoolRow:
    spec, status = pool.spec, pool.status
    last = status.decisions[-1] if status.decisions else None
    return PoolRow(
        **_common(pool),
        template=spec.template,
        policy=spec.policy,
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        workers=sum(status.workers_by_phase.values()),
        ready_workers=status.summary.ready_workers,
        action=last.action if last else "",
        reason=shorten_text(last.reason, _LONGEST_TEXT) if last else "",
        decided_at=last.at if last else None,
        is_paused=status.pause is not None,
        paused_until=status.pause.until if status.pause else None,
    )


def _definition_row(definition: LabletDefinition) -> DefinitionRow:
    spec, status = definition.spec, definition.status
    needs = spec.resource_requirements
    return DefinitionRow(
        **_common(definition) | {"phase": spec.state},
        version=spec.version,
        cpu_cores=needs.cpu_cores if needs else 0,
        memory_gb=needs.memory_gb if needs else 0,
        storage_gb=needs.storage_gb if needs else 0,
        nodes=spec.node_count or 0,
        max_duration_minutes=spec.max_duration_minutes,
        observed_sessions=status.observed_sessions,
        needs_review=status.needs_review,
    )


def _reservation_row(reservation: Reservation) -> ReservationRow:
    spec, status = reservation.spec, reservation.status
    return ReservationRow(
        **_common(reservation),
        definition=spec.definition,
        owner=spec.owner,
        count=spec.count,
        starts_at=spec.timeslot_start,
        ends_at=status.ends_at - CLEAN_UP_TIME if status.ends_at else spec.timeslot_end,
        sessions_made=status.sessions_made,
        sessions_ended=status.sessions_ended,
        last_error=shorten_text(status.last_error, _LONGEST_TEXT),
    )


def _template_row(template: WorkerTemplate) -> TemplateRow:
    worker = template.spec.worker
    common = _common(template) | {"lab_track": worker.lab_track}
    return TemplateRow(**common, region=worker.aws.region, instance_type=worker.aws.instance_type)


_MAKERS: Final[Mapping[str, Callable[[Any], Row]]] = {
    LabWorker.__name__: _worker_row,
    LabletSession.__name__: _session_row,
    LabWorkerPool.__name__: _pool_row,
    LabletDefinition.__name__: _definition_row,
    Reservation.__name__: _reservation_row,
    WorkerTemplate.__name__: _template_row,
}
