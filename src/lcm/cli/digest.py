"""What matters most about an object, in a few lines, with what only a second look tells. Called by `describe`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from lcm.cli import render
from lcm.cli.columns import phase_of
from lcm.cli.digest_worker import Line, worker_lines
from lcm.control.plane import Plane
from lcm.model.definition import LabletDefinition
from lcm.model.kinds import Resource
from lcm.model.pool import LabWorkerPool
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession
from lcm.model.worker import LabWorker

_DECISIONS: Final = 3


async def digest(plane: Plane, resource: Resource, now: datetime) -> list[Line]:
    """Say in a few lines how an object is."""
    lines = [*_phase(resource, now)]
    match resource:
        case LabWorker():
            lines += await worker_lines(plane, resource, now)
        case LabWorkerPool():
            lines += _pool(resource, now)
        case LabletDefinition():
            lines += _definition(resource)
        case LabletSession():
            lines += _session(resource, now)
        case Reservation():
            lines += _reservation(resource, now)
    if error := getattr(resource.status, "last_error", ""):
        lines.append(("Last error", error))
    return lines


def _phase(resource: Resource, now: datetime) -> Iterator[Line]:
    if phase := phase_of(resource):
        history = resource.status.history
        since = f" for {render.age(history[-1].at, now)}" if history else ""
        why = f": {history[-1].reason}" if history and history[-1].reason else ""
        yield "Phase", f"{phase}{since}{why}"


def _pool(pool: LabWorkerPool, now: datetime) -> Iterator[Line]:
    spec, summary = pool.spec, pool.status.summary
    yield (
        "Workers",
        f"{summary.ready_workers} ready of {summary.workers}, from {spec.min_workers} to {spec.max_workers}",
    )
    yield "Policy", f"{spec.policy}, template {spec.template}, track {spec.lab_track}"
    for number, decision in enumerate(reversed(pool.status.decisions[-_DECISIONS:])):
        when = render.age(decision.at, now)
        yield "" if number else "Decisions", f"{decision.action} {when} ago: {decision.reason}"


def _definition(definition: LabletDefinition) -> Iterator[Line]:
    spec, needs = definition.spec, definition.spec.resource_requirements
    yield "State", f"{spec.state}, version {spec.version}"
    if needs:
        yield "Needs", f"{needs.cpu_cores:g} CPU, {needs.memory_gb:g} GB memory, {needs.storage_gb:g} GB disk"
    yield "Topology", spec.topology.uri
    if definition.status.needs_review:
        yield "Review", definition.status.review_reason


def _session(session: LabletSession, now: datetime) -> Iterator[Line]:
    spec, status = session.spec, session.status
    if status.outcome:
        yield "Outcome", f"{status.outcome}: {status.outcome_reason}" if status.outcome_reason else status.outcome
    yield from _where_to_connect(session)
    if status.progress:
        yield "Progress", f"{status.progress.percent}% {status.progress.step}: {status.progress.message}"
    if waiting := status.waiting:
        start = f", starts {render.relative(waiting.estimated_start, now)}" if waiting.estimated_start else ""
        yield "Waiting", f"number {waiting.queue_position}{start}: {waiting.basis}"
    if decision := status.last_decision:
        yield "Decision", f"{decision.action}: {decision.reason}"
    if spec.timeslot_start and spec.timeslot_end:
        yield "Slot", f"{render.relative(spec.timeslot_start, now)} to {render.when(spec.timeslot_end)}"
    else:
        yield "Slot", f"as soon as possible, for {spec.duration_minutes} minutes"
    if status.ends_at:
        yield "Ends", render.relative(status.ends_at, now)
    yield "Definition", spec.definition
    yield "Owner", spec.owner + (f", student {spec.student_email}" if spec.student_email else "")


def _where_to_connect(session: LabletSession) -> Iterator[Line]:
    status = session.status
    if status.access_url:
        yield "Connect", status.access_url
    for number, (name, port) in enumerate(sorted((status.allocated_ports or {}).items())):
        yield "" if number else "Ports", f"{port} {name}"
    if status.worker_name:
        yield "Worker", status.worker_ref or status.worker_name


def _reservation(reservation: Reservation, now: datetime) -> Iterator[Line]:
    spec, status = reservation.spec, reservation.status
    yield "Sessions", f"{spec.count} of {spec.definition}: {status.sessions_made} made, {status.sessions_ended} ended"
    yield "Slot", f"{render.relative(spec.timeslot_start, now)} to {render.when(spec.timeslot_end)}"
    if spec.recurrence:
        yield "Again", f"every {spec.recurrence.every} until {spec.recurrence.until} ({spec.recurrence.time_zone})"
    yield "Owner", spec.owner
