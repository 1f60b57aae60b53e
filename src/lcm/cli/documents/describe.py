"""`lcm describe`: everything about one object, what matters most first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.cli.booking.observe import definition_lines, needs_said
from lcm.cli.documents import texts
from lcm.cli.documents.describe_worker import Line, worker_lines
from lcm.cli.documents.story import find, told
from lcm.cli.output import connection, render
from lcm.cli.output.columns import at_risk, phase_of, seat_of
from lcm.cli.output.nouns import one, wanted
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, Targets
from lcm.cli.output.table import Column, Table
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.resource import Condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Held, Reservation
from lcm.model.kinds.session import LabletSession, holds
from lcm.model.kinds.worker import LabWorker
from lcm.system.clock import SystemClock

_SHOWN: Final = 12
"""Of more held sessions than this a reservation tells the number only."""


def session_lines(session: LabletSession, now: datetime) -> Iterator[Line]:
    """Say how a session is, in a few lines."""
    spec, status = session.spec, session.status
    if status.outcome:
        yield "Outcome", f"{status.outcome}: {status.outcome_reason}" if status.outcome_reason else status.outcome
    if risk := at_risk(session):
        yield "At risk", risk.message or risk.reason
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
    if claim := holds(session):
        yield "Claim", f"{render.when(claim.start)} to {render.when(claim.end)}, with start-up and clean-up"
    if status.cost_usd is not None:
        yield "Cost", f"{status.cost_usd} USD: its share of its worker while it was there"
    yield "Definition", spec.definition
    yield "Owner", spec.owner + (f", student {spec.student_email}" if spec.student_email else "")


def reservation_lines(reservation: Reservation, now: datetime) -> Iterator[Line]:
    """Say how a reservation is, in a few lines."""
    spec, status = reservation.spec, reservation.status
    yield "Sessions", f"{spec.count} of {spec.definition}: {status.sessions_made} made, {status.sessions_ended} ended"
    yield "Slot", f"{render.relative(spec.timeslot_start, now)} to {render.when(spec.timeslot_end)}"
    if spec.recurrence:
        yield "Again", f"every {spec.recurrence.every} until {spec.recurrence.until} ({spec.recurrence.time_zone})"
    for number, held in enumerate(status.held[:_SHOWN]):
        yield "" if number else "Held", _held(held)
    if len(status.held) > _SHOWN:
        yield "", f"and {len(status.held) - _SHOWN} more, until {render.when(status.ends_at)}"
    yield "Owner", spec.owner


def _held(held: Held) -> str:
    seat = f", seat {seat_of(held.seat)}" if held.seat else ""
    made = f", session {held.session}" if held.session else ""
    return f"{held.number}: {render.when(held.claim.start)} to {render.when(held.claim.end)}{seat}{made}"


def _where_to_connect(session: LabletSession) -> Iterator[Line]:
    status = session.status
    if status.access_url:
        yield "Connect", status.access_url
    for number, (name, port) in enumerate(sorted((status.allocated_ports or {}).items())):
        address = f", {status.access_urls[name]}" if name in status.access_urls else ""
        yield "" if number else "Ports", f"{port} {name}{address}"
    if status.worker_name:
        yield "Worker", status.worker_ref or status.worker_name
    if status.seat:
        yield "Seat", f"{seat_of(status.seat)}, whichever worker fills it"


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


_LABEL: Final = 14
_INDENT: Final = 2
_BOOKKEEPING: Final = ("name", "namespace", "labels", "annotations", "created_at")


def describe(targets: Targets = None, *, namespace: Namespace = DEFAULT_NAMESPACE, context: ContextName = None) -> None:
    """Show everything about an object."""
    parts = wanted(targets or [])
    refs: list[Ref[Any]] = [Ref(part.noun.struct, name, namespace) for part in parts for name in part.names]
    if not refs:
        one(targets or [])

    async def work(plane: Plane) -> None:
        for number, ref in enumerate(refs):
            resource = await find(plane, ref)
            around = await digest(plane, resource, SystemClock().now())
            if number:
                render.out()
            for line in described(resource, around, SystemClock().now()):
                render.out(line)

    connection.with_plane(work, context)


def described(resource: Resource, matters: Iterable[Line], now: datetime) -> Iterator[str]:
    """Write an object in words, then all of it."""
    meta = resource.metadata
    yield from _lines([("Name", meta.name), ("Namespace", meta.namespace), ("Kind", resource.kind)])
    yield from _lines(matters)
    yield from _lines(_about(resource, now))
    if resource.status.conditions:
        yield "Conditions:"
        yield from _indented(_conditions(resource.status.conditions, now))
    if resource.status.history:
        yield "Story:"
        yield from _indented(told(resource, now, _room() - _INDENT))
    yield from _section("Spec", msgspec.to_builtins(resource.spec))
    status = msgspec.to_builtins(resource.status)
    yield from _section(
        "Status", {name: part for name, part in status.items() if name not in {"conditions", "history"}}
    )


def _about(resource: Resource, now: datetime) -> Iterator[Line]:
    meta = resource.metadata
    yield from _pairs("Labels", meta.labels)
    yield from _pairs("Annotations", meta.annotations)
    if meta.created_at:
        yield "Created", render.relative(meta.created_at, now)
    if meta.deletion_timestamp:
        yield "Deleted", render.relative(meta.deletion_timestamp, now) + ", not gone yet"
    if meta.owner:
        yield "Made by", f"{meta.owner.kind} {meta.owner.name}"
    yield "Revision", f"{meta.resource_version}, generation {meta.generation}"
    yield "Uid", meta.uid


def _pairs(label: str, pairs: Mapping[str, str]) -> Iterator[Line]:
    for number, (name, value) in enumerate(pairs.items()):
        yield "" if number else label, f"{name}={value}"


def _lines(pairs: Iterable[Line]) -> Iterator[str]:
    for label, text in pairs:
        head = f"{label}:" if label else ""
        first, *rest = render.wrapped(text, _room() - _LABEL)
        yield f"{head:<{_LABEL}}{first}".rstrip()
        yield from (" " * _LABEL + line for line in rest)


def _conditions(conditions: Sequence[Condition], now: datetime) -> Iterator[str]:
    """Write each condition in a line; its message follows where it does not fit."""
    columns: Sequence[Column[Condition]] = (
        Column("TYPE", lambda one, _: one.type),
        Column("STATUS", lambda one, _: one.status, colour=render.phase_colour),
        Column("AGE", lambda one, now: render.age(one.last_transition_at, now)),
        Column("REASON", lambda one, _: one.reason),
    )
    heading, *rows = Table(columns, _room() - _INDENT).lines(conditions, now)
    yield heading
    for condition, row in zip(conditions, rows, strict=True):
        yield row
        if condition.message:
            yield from _indented(render.wrapped(condition.message, _room() - 2 * _INDENT))


def _section(heading: str, part: Any) -> Iterator[str]:  # noqa: ANN401 - a JSON object
    filled = _filled(part)
    if filled:
        yield f"{heading}:"
        yield from _indented(texts.write(filled).splitlines())


def _filled(value: Any) -> Any:  # noqa: ANN401 - likewise
    """Leave out what says nothing."""
    if isinstance(value, dict):
        return {name: kept for name, item in value.items() if (kept := _filled(item)) not in (None, "", [], {})}
    return [_filled(item) for item in value] if isinstance(value, list | tuple) else value


def _room() -> int:
    return min(render.room() or render.WIDEST, render.WIDEST)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (" " * _INDENT + line for line in lines)
