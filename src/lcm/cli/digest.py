"""What matters most about an object, in a few lines, with what only a second look tells. Called by `describe`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from lcm.cli import render
from lcm.cli.columns import phase_of
from lcm.cli.digest_session import reservation_lines, session_lines
from lcm.cli.digest_worker import Line, worker_lines
from lcm.cli.learned import definition_lines, needs_said
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
            lines += session_lines(resource, now)
        case Reservation():
            lines += reservation_lines(resource, now)
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
        yield "Needs", needs_said(needs)
    yield "Topology", spec.topology.uri
    yield from definition_lines(definition)
