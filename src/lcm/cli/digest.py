"""What matters most about an object, in a few lines, with what only a second look tells. Called by `describe`."""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Final

from lcm.cli import render
from lcm.cli.columns import phase_of
from lcm.cli.follow import everything
from lcm.control.plane import Plane, ref_of
from lcm.model.capacity import Amount
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Forbidden
from lcm.model.kinds import Resource
from lcm.model.pool import LabWorkerPool
from lcm.model.reservation import Reservation
from lcm.model.selector import Term, Where
from lcm.model.session import LabletSession
from lcm.model.worker import LabWorker, WorkerTelemetry, worker_ref

Line = tuple[str, str]
_DECISIONS: Final = 3


async def digest(plane: Plane, resource: Resource, now: datetime) -> list[Line]:
    """Say in a few lines how an object is."""
    lines = [*_phase(resource, now)]
    match resource:
        case LabWorker():
            lines += _worker(resource, now)
            lines += [line async for line in _on_worker(plane, resource, now)]
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


def _worker(worker: LabWorker, now: datetime) -> Iterator[Line]:
    spec, ec2, cml = worker.spec, worker.status.ec2, worker.status.cml
    yield "Wanted", spec.wanted_state
    machine = [ec2.instance_id or "no instance", ec2.instance_type or spec.aws.instance_type, spec.aws.region]
    yield "Machine", ", ".join(filter(None, [*machine, ec2.state, ec2.public_ip or ec2.private_ip or ""]))
    licence = {True: "licensed", False: "not licensed", None: "licence unknown"}[cml.licensed]
    yield "CML", ", ".join(filter(None, [cml.version, cml.api_url, licence]))
    if worker.status.capacity:
        yield "Capacity", amount(worker.status.capacity)
    if idle := worker.status.idle:
        pause = f"; pauses {render.relative(idle.pause_at, now)}" if idle.pause_at else ""
        yield "Idle", f"{'yes' if idle.idle else 'no'}: {idle.reason}{pause}"
    if worker.status.drain_deadline_at:
        yield "Drain until", render.relative(worker.status.drain_deadline_at, now)


async def _on_worker(plane: Plane, worker: LabWorker, now: datetime) -> AsyncIterator[Line]:
    measured = await plane.telemetry(ref_of(worker))
    if measured:
        yield "Measured", _measured(measured, now)
    where = Where(fields=(Term("status.worker_ref", (worker_ref(worker),)),))
    try:
        sessions = (await everything(plane, LabletSession, where=where)).items
    except Forbidden:
        return
    for number, one in enumerate(sessions):
        yield "" if number else "Sessions", f"{one.metadata.name} {one.status.phase} of {one.spec.owner}"


def _measured(telemetry: WorkerTelemetry, now: datetime) -> str:
    parts = (
        ("CPU", telemetry.cpu_utilization),
        ("memory", telemetry.memory_utilization),
        ("disk", telemetry.storage_utilization),
    )
    known = [f"{name} {value:.0f}%" for name, value in parts if value is not None]
    count = telemetry.active_labs_count
    labs = [] if count is None else ["1 lab" if count == 1 else f"{count} labs"]
    return f"{', '.join([*known, *labs]) or 'nothing'}, {render.age(telemetry.collected_at, now)} ago"


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


def amount(room: Amount) -> str:
    """Write an amount in few words."""
    return (
        f"{room.cpu_millis / 1000:g} CPU, {room.memory_mb / 1024:g} GB memory, {room.storage_mb / 1024:g} GB disk,"
        f" {room.nodes} nodes, {room.ports} ports, {room.labs} labs"
    )
