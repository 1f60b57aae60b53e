"""`lcm describe`: an object in words, the most important first; its document with `-o yaml`.

Also here: the summary lines of pools, definitions, sessions and reservations. Workers are in `describe_worker`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any, Final

import msgspec
import typer

from lcm.cli.booking.extend import parse_session_name
from lcm.cli.booking.observe import definition_lines, format_needs
from lcm.cli.booking.roster import RosterRow, read_roster
from lcm.cli.documents.describe_worker import LabelledText, alert_lines, label_first, worker_lines
from lcm.cli.output import connection, render
from lcm.cli.output.columns import at_risk_condition, phase_of, seat_label
from lcm.cli.output.lookup import read_object
from lcm.cli.output.nouns import NamedObjects, naming_missing, noun_of, parse_one_target, parse_targets, title
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, Output, SessionName, Target, Targets
from lcm.cli.output.printer import Printer
from lcm.cli.output.table import Column, TextTable
from lcm.control.plane.bodies import ClassCost
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.base.errors import Gone, Refused
from lcm.model.base.resource import HISTORY_LIMIT, Condition, PhaseChange, Truth, find_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate, describe_packing
from lcm.model.kinds.prebuilt import PrebuiltUse
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionCondition, describe_drift, get_claim
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import LabWorker
from lcm.system.clock import SystemClock

_PHASE_WIDTH: Final = 18
_DURATION_WIDTH: Final = 6
_STORY_INDENT: Final = 4
_NO_BREAK_SPACE: Final = "\u00a0"
_MIN_REASON_WIDTH: Final = 30
"""A reason with less width than this begins on a line of its own."""


def story(target: Target = None, *, namespace: Namespace = DEFAULT_NAMESPACE, context: ContextName = None) -> None:
    """Show the phases an object went through, how long each lasted, and why."""
    noun, name = parse_one_target(target or [])

    async def work(plane: Plane) -> None:
        ref: Ref[Any] = Ref(noun.struct, name, namespace)
        resource = await read_object(plane, ref)
        for line in history_lines(resource, SystemClock().now(), render.output_width() or render.MAX_TEXT_WIDTH):
            render.print_line(line)

    connection.with_plane(work, context)


def history_lines(resource: Resource, now: datetime, most: int) -> Iterator[str]:
    """Yield an object's history, oldest first, in lines of at most `most` cells."""
    history = resource.status.history
    machine = KINDS[resource.kind].machine
    if machine is None:
        yield f"{title(resource)} has no phases; created {render.format_age(resource.metadata.created_at, now)} ago"
        return
    if len(history) == HISTORY_LIMIT:
        yield f"(only the last {HISTORY_LIMIT} changes are kept)"
    over = bool(history) and history[-1].phase in machine.final
    for change, later in zip_longest(history, history[1:]):
        lasted = "" if over else f"{render.format_span(now - change.at)}…"
        if later is not None:
            lasted = render.format_span(later.at - change.at)
        yield from _change_lines(change, lasted, most, render.phase_colour(change.phase) if later is None else None)
    limit = None if over else machine.deadline(getattr(resource.status, "phase", None), resource.status)
    if limit is not None:
        moment, what = limit
        then = f"then {what.target}" if what.target else "then an alert is raised"
        yield from render.wrap_text(f"may last until {render.format_relative(moment, now)}, {then}: {what.why}", most)
    if resource.metadata.deletion_timestamp:
        yield f"deletion requested {render.format_age(resource.metadata.deletion_timestamp, now)} ago"


def _change_lines(change: PhaseChange, lasted: str, most: int, colour: str | None) -> Iterator[str]:
    head = f"{render.format_second(change.at)}  {change.phase:<{_PHASE_WIDTH}}{lasted:<{_DURATION_WIDTH}}"
    text = f"{change.reason} (by{_NO_BREAK_SPACE}{change.by})" if change.reason else f"by {change.by}"
    indent = len(head)
    if most - indent >= _MIN_REASON_WIDTH:
        first, *rest = render.wrap_text(text, most - indent)
        yield f"{render.paint(head, colour)}{first.replace(_NO_BREAK_SPACE, ' ')}"
    else:
        indent, rest = _STORY_INDENT, render.wrap_text(text, most - _STORY_INDENT)
        yield render.paint(head.rstrip(), colour)
    yield from (f"{' ' * indent}{line.replace(_NO_BREAK_SPACE, ' ')}" for line in rest)


def logs(words: SessionName, *, namespace: Namespace = DEFAULT_NAMESPACE, context: ContextName = None) -> None:
    """Show what happened to a session, what was decided about it and what went wrong, line by line."""
    name = parse_session_name(words, "write `lcm logs NAME`, such as `lcm logs basics-x7k2p`")
    ref: Ref[LabletSession] = Ref(LabletSession, name, namespace)

    async def work(plane: Plane) -> None:
        with naming_missing(ref):
            text = await plane.logs(ref)
        for line in text.splitlines():
            render.print_line(render.sanitize(line))

    connection.with_plane(work, context)


_MOST_PORTS_SHOWN: Final = 20
_MOST_SEATS_SHOWN: Final = 12
"""A reservation with more held sessions than this shows only how many more there are."""


def session_lines(session: LabletSession, now: datetime) -> Iterator[LabelledText]:
    """Yield a few lines about the state of a session."""
    spec, status = session.spec, session.status
    if status.outcome:
        yield "Outcome", f"{status.outcome}: {status.outcome_reason}" if status.outcome_reason else status.outcome
    if risk := at_risk_condition(session):
        yield "At risk", risk.message or risk.reason
    yield from _connection_lines(session)
    if status.progress:
        yield "Progress", f"{status.progress.percent}% {status.progress.step}: {status.progress.message}"
    if waiting := status.waiting:
        start = f", starts {render.format_relative(waiting.estimated_start, now)}" if waiting.estimated_start else ""
        yield "Waiting", f"number {waiting.queue_position}{start}: {waiting.basis}"
    if decision := status.last_decision:
        yield "Decision", f"{decision.action}: {decision.reason}"
    yield from _time_lines(session, now)
    if status.cost_usd is not None:
        yield "Cost", f"{status.cost_usd} USD: its share of its worker's cost"
    yield "Definition", spec.definition + (f", on track {spec.lab_track}" if spec.lab_track else "")
    yield "Owner", spec.owner + (f", student {spec.student_email}" if spec.student_email else "")


def _time_lines(session: LabletSession, now: datetime) -> Iterator[LabelledText]:
    """Yield when a session runs: as it was booked, as it is, and what is claimed for it."""
    spec, status = session.spec, session.status
    if spec.timeslot_start and spec.timeslot_end:
        yield "Slot", f"{render.format_relative(spec.timeslot_start, now)} to {render.format_moment(spec.timeslot_end)}"
    else:
        yield "Slot", f"as soon as possible, for {spec.duration_minutes} minutes"
    if status.ends_at:
        yield "Ends", render.format_relative(status.ends_at, now)
    cut = find_condition(status.conditions, SessionCondition.TIME_SHORTENED)
    if cut and cut.status is Truth.TRUE:
        yield "Shortened", cut.message
    if claim := get_claim(session):
        yield (
            "Claim",
            f"{render.format_moment(claim.start)} to {render.format_moment(claim.end)}, with start-up and clean-up",
        )


def reservation_lines(reservation: Reservation, now: datetime) -> Iterator[LabelledText]:
    """Yield a few lines about the state of a reservation."""
    spec, status = reservation.spec, reservation.status
    yield "Sessions", f"{spec.count} of {spec.definition}: {status.sessions_made} made, {status.sessions_ended} ended"
    yield "Slot", f"{render.format_relative(spec.timeslot_start, now)} to {render.format_moment(spec.timeslot_end)}"
    if spec.recurrence:
        yield "Again", f"every {spec.recurrence.every} until {spec.recurrence.until} ({spec.recurrence.time_zone})"
    yield "Owner", spec.owner


def roster_lines(rows: Sequence[RosterRow]) -> Iterator[LabelledText]:
    """Yield the seats of a class: who has each of them, when, in which session, and its addresses."""
    yield from label_first("Seats", map(_seat_text, rows[:_MOST_SEATS_SHOWN]))
    if len(rows) > _MOST_SEATS_SHOWN:
        yield "", f"and {len(rows) - _MOST_SEATS_SHOWN} more; `lcm hand-out` shows all"


def class_cost_lines(cost: ClassCost) -> Iterator[LabelledText]:
    """Yield what the sessions of a reservation cost together."""
    ahead = f", and about {cost.booked_usd:.2f} USD for {cost.sessions_ahead} that go on or are booked"
    unknown = f"; of {cost.unpriced} no price is known" if cost.unpriced else ""
    spent = f"{cost.spent_usd:.2f} USD for {cost.sessions_ended} sessions that are over"
    if cost.sessions_ended or cost.sessions_ahead:
        yield "Cost", f"{spent}{ahead if cost.sessions_ahead else ''}{unknown}"


def _seat_text(row: RosterRow) -> str:
    session = f", session {row.session}" if row.session else ""
    worker = f" on {row.worker}" if row.worker else ""
    urls = "".join(f", {label} {url}" for label, url in sorted(row.urls.items()))
    start, end = map(render.format_moment, row.slot)
    return f"{row.place or '-'}: {row.learner or 'nobody named'}, {start} to {end}, {row.state}{worker}{session}{urls}"


def _connection_lines(session: LabletSession) -> Iterator[LabelledText]:
    status = session.status
    if status.access_url:
        yield "Connect", status.access_url
    ports = sorted((status.allocated_ports or {}).items())
    addresses = {name: f", {address}" for name, address in status.access_urls.items()}
    yield from label_first("Ports", (f"{port} {name}{addresses.get(name, '')}" for name, port in ports))
    if status.port_drift_detected:
        yield "Port drift", describe_drift(status)
    if status.worker_name:
        yield "Worker", status.worker_ref or status.worker_name
    if status.seat:
        yield "Planned on", f"planned worker {seat_label(status.seat)}, whichever worker fills it"


_DECISIONS: Final = 3


async def summary_lines(plane: Plane, resource: Resource, now: datetime) -> list[LabelledText]:
    """Return a few lines about the state of an object."""
    lines: list[LabelledText] = []
    if phase := phase_of(resource):
        history = resource.status.history
        since = f" for {render.format_age(history[-1].at, now)}" if history else ""
        why = f": {history[-1].reason}" if history and history[-1].reason else ""
        lines.append(("Phase", f"{phase}{since}{why}"))
    match resource:
        case LabWorker():
            lines += await worker_lines(plane, resource, now)
        case LabWorkerPool():
            lines += _pool_lines(resource, now)
        case LabletDefinition():
            lines += _definition_summary(resource)
            with suppress(Gone, Refused):  # who may not see them is shown what the definition wants
                lines += _prebuilt_lines(await plane.prebuilt(ref_of(resource))) if resource.spec.prebuilt else ()
        case LabletSession():
            lines += session_lines(resource, now)
        case Reservation():
            lines += reservation_lines(resource, now)
            lines += roster_lines(await read_roster(plane, resource))
            with suppress(Gone):
                lines += class_cost_lines(await plane.class_cost(ref_of(resource)))
    lines += await alert_lines(plane, resource, now)
    if error := getattr(resource.status, "last_error", ""):
        lines.append(("Last error", error))
    return lines


def _pool_lines(pool: LabWorkerPool, now: datetime) -> Iterator[LabelledText]:
    spec, summary, small = pool.spec, pool.status.summary, pool.status.small_runs
    yield (
        "Workers",
        f"{summary.ready_workers} ready of {summary.workers}, from {spec.min_workers} to {spec.max_workers}",
    )
    yield "Policy", f"{spec.policy}, template {spec.template}, track {spec.lab_track}"
    if pause := pool.status.pause:
        until = f"until {render.format_relative(pause.until, now)}" if pause.until else "until it is resumed"
        yield "Paused", f"{until}, by {pause.by}" + (f": {pause.reason}" if pause.reason else "")
    if packing := pool.status.packing:
        yield "Packing", describe_packing(packing)
    yield from label_first(
        "Smaller",
        (f"planned worker {one.number} is {one.instance_type} until {one.until:%d %b %H:%M} UTC" for one in small),
    )
    decisions = reversed(pool.status.decisions[-_DECISIONS:])
    yield from label_first(
        "Decisions", (f"{one.action} {render.format_age(one.at, now)} ago: {one.reason}" for one in decisions)
    )


def _definition_summary(definition: LabletDefinition) -> Iterator[LabelledText]:
    spec, needs = definition.spec, definition.spec.resource_requirements
    yield "State", f"{spec.state}, version {spec.version}"
    if spec.description:
        yield "Description", spec.description
    nodes = f"{spec.node_count} nodes" if spec.node_count is not None else ""
    track = f"track {spec.lab_track}" if spec.lab_track else ""
    longest = f"at most {spec.max_duration_minutes} minutes" if spec.max_duration_minutes else ""
    yield "Lab", ", ".join(filter(None, [spec.lab_type, nodes, track, longest]))
    if spec.port_template:
        yield "Ports", render.join_some(sorted(spec.port_template), _MOST_PORTS_SHOWN)
    if needs:
        yield "Needs", format_needs(needs)
    yield "Topology", spec.topology.uri
    yield from definition_lines(definition)


def _prebuilt_lines(use: PrebuiltUse) -> Iterator[LabelledText]:
    """Yield how many labs are kept started, and how often somebody found one."""
    yield "Prebuilt", f"{use.ready} ready and {use.starting} starting of {use.wanted} wanted: {use.reason}"
    asked, cost = use.taken + use.missed, f", {use.cost_usd:.2f} USD" if use.cost_usd is not None else ""
    share = f" ({use.taken / asked:.0%})" if asked else ""
    yield "", f"{use.taken} taken{share} and {use.missed} missed{cost}"


_LABEL: Final = 14
_INDENT: Final = 2


class DescribeFormat(StrEnum):
    """The format in which an object is described."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def describe(
    targets: Targets = None,
    *,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Annotated[
        DescribeFormat, typer.Option("-o", "--output", help="Output format; yaml and json show the whole document.")
    ] = DescribeFormat.TEXT,
    context: ContextName = None,
) -> None:
    """Show what there is to know about an object, in words."""
    parts = parse_targets(targets or [])
    refs: list[Ref[Any]] = [Ref(part.noun.struct, name, namespace) for part in parts for name in part.names]
    if not refs:
        parse_one_target(targets or [])

    async def work(plane: Plane) -> None:
        found = [await read_object(plane, ref) for ref in refs]
        if output is not DescribeFormat.TEXT:
            named = [NamedObjects(noun_of(ref.kind), (ref.name,)) for ref in refs]
            Printer(Output(output), named, clock=SystemClock(), with_namespace=False).print_all(found)
            return
        for number, resource in enumerate(found):
            around = await summary_lines(plane, resource, SystemClock().now())
            if number:
                render.print_line()
            for line in describe_lines(resource, around, SystemClock().now()):
                render.print_line(line)

    connection.with_plane(work, context)


def describe_lines(resource: Resource, matters: Iterable[LabelledText], now: datetime) -> Iterator[str]:
    """Yield what there is to know about an object, in words."""
    meta = resource.metadata
    yield from _labelled_lines([("Name", meta.name), ("Namespace", meta.namespace), ("Kind", resource.kind)])
    yield from _labelled_lines(matters)
    yield from _labelled_lines(_metadata_lines(resource, now))
    if resource.status.conditions:
        yield "Conditions:"
        yield from _indent(_condition_lines(resource.status.conditions, now))
    if resource.status.history:
        yield "Story:"
        yield from _indent(history_lines(resource, now, _text_room() - _INDENT))
    if isinstance(resource, WorkerTemplate | SystemSettings | Sink):  # their fields are all there is to know
        yield "Fields:"
        for path, value in _filled_fields(msgspec.to_builtins(resource.spec)):
            yield from _indent(render.wrap_text(f"{path}: {value}", _text_room() - _INDENT))


def _metadata_lines(resource: Resource, now: datetime) -> Iterator[LabelledText]:
    meta = resource.metadata
    for label, pairs in (("Labels", meta.labels), ("Annotations", meta.annotations)):
        yield from label_first(label, (f"{name}={value}" for name, value in pairs.items()))
    if meta.created_at:
        yield "Created", render.format_relative(meta.created_at, now)
    if meta.deletion_timestamp:
        yield "Deleted", render.format_relative(meta.deletion_timestamp, now) + ", not complete yet"
    if meta.owner:
        yield "Created by", f"{meta.owner.kind} {meta.owner.name}"
    yield "Revision", f"{meta.resource_version}, generation {meta.generation}"
    yield "Uid", meta.uid


def _labelled_lines(pairs: Iterable[LabelledText]) -> Iterator[str]:
    for label, text in pairs:
        head = f"{label}:" if label else ""
        first, *rest = render.wrap_text(text, _text_room() - _LABEL)
        yield f"{head:<{_LABEL}}{first}".rstrip()
        yield from (" " * _LABEL + line for line in rest)


def _condition_lines(conditions: Sequence[Condition], now: datetime) -> Iterator[str]:
    """Yield each condition in a line; its message follows on lines of its own."""
    columns: Sequence[Column[Condition]] = (
        Column("TYPE", lambda one, _: one.type),
        Column("STATUS", lambda one, _: one.status, colour=render.phase_colour),
        Column("AGE", lambda one, now: render.format_age(one.last_transition_at, now)),
        Column("REASON", lambda one, _: one.reason),
    )
    heading, *rows = TextTable(columns, _text_room() - _INDENT).lines(conditions, now)
    yield heading
    for condition, row in zip(conditions, rows, strict=True):
        yield row
        if condition.message:
            yield from _indent(render.wrap_text(condition.message, _text_room() - 2 * _INDENT))


def _filled_fields(value: Any, path: str = "") -> Iterator[tuple[str, object]]:  # noqa: ANN401 - a JSON value
    """Yield the fields of a value that are not empty, with their paths."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _filled_fields(member, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list | tuple) and any(isinstance(one, dict) for one in value):
        for number, member in enumerate(value):
            yield from _filled_fields(member, f"{path}[{number}]")
    elif isinstance(value, list | tuple):
        yield from _filled_fields(", ".join(map(str, value)), path)
    elif value not in (None, ""):
        yield path, value


def _text_room() -> int:
    return min(render.output_width() or render.MAX_TEXT_WIDTH, render.MAX_TEXT_WIDTH)


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (" " * _INDENT + line for line in lines)
