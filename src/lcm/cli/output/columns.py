"""The columns of each kind's table, with their ranks. Those marked wide are shown by `-o wide` only."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from lcm.cli.output import render
from lcm.cli.output.nouns import title
from lcm.cli.output.table import Column
from lcm.cli.output.times import format_slot
from lcm.cli.output.zone import current_zone
from lcm.model.base.resource import Condition, Truth, find_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, Seat, SessionCondition, SessionPhase
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerTelemetry, coarse_status

R = TypeVar("R", bound=Resource)
_COMPLETE_PERCENT: Final = 100


TelemetryByUid = Mapping[str, WorkerTelemetry]
"""The newest measurements of workers, by uid."""


def columns_of_kind(
    kind: type[Resource], *, wide: bool, with_namespace: bool, with_kind: bool, measured: TelemetryByUid | None = None
) -> Sequence[Column[Any]]:
    """Choose the columns of a kind's table; measurements of workers add more columns."""
    name: Column[Any] = Column("NAME", lambda one, _: title(one) if with_kind else one.metadata.name)
    first = [_NAMESPACE, name] if with_namespace else [name]
    chosen = [column for column in _TABLES[kind] if wide or not column.wide]
    if kind is LabWorker and measured:
        chosen[2:2] = _telemetry_columns(measured)
    return [*first, *chosen]


def _telemetry_columns(measured: TelemetryByUid) -> Sequence[Column[LabWorker]]:
    def figure(heading: str, value: Callable[[WorkerTelemetry, datetime], str], rank: int) -> Column[LabWorker]:
        def cell(worker: LabWorker, now: datetime) -> str:
            found = measured.get(worker.metadata.uid)
            return (value(found, now) if found else "") or "-"

        return Column(heading, cell, rank)

    return (
        figure("CPU", lambda one, _: _format(one.cpu_utilization, "{:.0f}%"), 2),
        figure("MEM", lambda one, _: _format(one.memory_utilization, "{:.0f}%"), 2),
        figure("DATA", lambda one, now: render.format_age(one.cml_at or one.collected_at, now), 3),
    )


def _format(value: object, form: str) -> str:
    return "" if value is None else form.format(value)


def _idle_cell(worker: LabWorker, now: datetime) -> str:
    """Return in a word or two whether a worker is idle, and when it will be paused for that."""
    idle = worker.status.idle
    if not worker.spec.idle.enabled:
        return "off"
    if idle is None or worker.status.phase not in HOSTING_PHASES:
        return "-"
    if idle.snoozed_until and idle.snoozed_until > now:
        return f"snoozed {render.format_wait(idle.snoozed_until - now)}"
    if not idle.idle:
        return "no"
    return f"pause in {render.format_wait(idle.pause_at - now)}" if idle.pause_at else "yes"


def phase_of(resource: Resource) -> str:
    """Return an object's phase; empty for kinds that have none."""
    return str(getattr(resource.status, "phase", ""))


def _phase(resource: Resource, _: datetime) -> str:
    return phase_of(resource) + (" (deleting)" if resource.metadata.deletion_timestamp else "")


def _column(
    heading: str,
    cell: Callable[[R], object],
    rank: int = 0,
    *,
    wide: bool = False,
    coloured: bool = False,
    least: int | None = None,
) -> Column[R]:
    def text(resource: R, _: datetime) -> str:
        value = cell(resource)
        return "-" if value is None or value == "" else str(value)

    return Column(heading, text, rank, wide, render.phase_colour if coloured else None, least=least)


def seat_label(seat: Seat | None) -> str:
    """Return the name of a seat: `ccna/3`."""
    return f"{seat.pool}/{seat.number}" if seat else ""


def ports_label(session: LabletSession) -> str:
    """Return a session's ports: `PC_vnc:2002 R1_serial:2001`."""
    return " ".join(f"{name}:{port}" for name, port in sorted((session.status.allocated_ports or {}).items()))


def at_risk_condition(session: LabletSession) -> Condition | None:
    """Return the condition that says a session's promise is in danger; None when it is not."""
    found = find_condition(session.status.conditions, SessionCondition.AT_RISK)
    return found if found is not None and found.status is Truth.TRUE else None


def _note_cell(session: LabletSession, now: datetime) -> str:
    """Return the most useful short note: a risk, a queue position, progress, or when the session begins or ends."""
    status = session.status
    if status.phase in SESSION_MACHINE.final:
        return "-"
    if at_risk_condition(session):
        return "at risk"
    if waiting := status.waiting:
        start = waiting.estimated_start
        return f"#{waiting.queue_position}" + (f" in {render.format_wait(start - now)}" if start else "")
    if status.progress and status.progress.percent < _COMPLETE_PERCENT:
        return f"{status.progress.percent}% {status.progress.step}"
    running = status.phase is SessionPhase.RUNNING
    moment = status.ends_at if running else session.spec.timeslot_start
    if moment is None or moment <= now:
        return "-"
    return f"{render.format_wait(moment - now)} left" if running else f"in {render.format_wait(moment - now)}"


def _claim(session: LabletSession) -> str:
    claim = session.status.claim
    return format_slot(claim.start, claim.end, current_zone()) if claim else ""


def _seats_held(reservation: Reservation) -> str:
    numbers = Counter(seat_label(held.seat) for held in reservation.status.held if held.seat)
    return " ".join(f"{seat}x{count}" if count > 1 else seat for seat, count in sorted(numbers.items()))


def _on_off(on: bool | None) -> str:  # noqa: FBT001 - what it is about
    return "" if on is None else "on" if on else "off"


def _capacity_cell(worker: LabWorker) -> str:
    room = worker.status.capacity
    return f"{room.cpu_millis / 1000:g} CPU {room.memory_mb // 1024} GB" if room else ""


_NAMESPACE: Final[Column[Any]] = Column("NAMESPACE", lambda one, _: one.metadata.namespace)
_PHASE: Final[Column[Any]] = Column("PHASE", _phase, colour=render.phase_colour)
_AGE: Final[Column[Any]] = Column("AGE", lambda one, now: render.format_age(one.metadata.created_at, now), 8)
_LEAST_TEXT: Final = 24
_LAST_ERROR: Final[Column[Any]] = _column(
    "LAST-ERROR", lambda one: one.status.last_error, 9, wide=True, least=_LEAST_TEXT
)

_TABLES: Final[Mapping[type[Resource], Sequence[Column[Any]]]] = {
    LabWorker: (
        _PHASE,
        Column("IDLE", _idle_cell, 1),
        _column("TRACK", lambda one: one.spec.lab_track, 5),
        _column("LICENSED", lambda one: {True: "yes", False: "no", None: ""}[one.status.cml.licensed], 4),
        _column("TYPE", lambda one: one.status.ec2.instance_type or one.spec.aws.instance_type, 6),
        _column("REGION", lambda one: one.spec.aws.region, 7),
        _AGE,
        _column("STATUS", lambda one: coarse_status(one.status), 13, wide=True),
        _column("WANTED", lambda one: one.spec.wanted_state, 12, wide=True),
        _column("INSTANCE", lambda one: one.status.ec2.instance_id, 10, wide=True),
        _column("PUBLIC-IP", lambda one: one.status.ec2.public_ip, 11, wide=True),
        _column("CML", lambda one: one.status.cml.version, 14, wide=True),
        _column("CAPACITY", _capacity_cell, 9, wide=True),
        _LAST_ERROR,
    ),
    LabWorkerPool: (
        _PHASE,
        _column("TRACK", lambda one: one.spec.lab_track, 5),
        _column("READY", lambda one: f"{one.status.summary.ready_workers}/{one.status.summary.workers}", 1),
        _column("MIN", lambda one: one.spec.min_workers, 3),
        _column("MAX", lambda one: one.spec.max_workers, 2),
        _column("POLICY", lambda one: one.spec.policy, 4),
        _column("TEMPLATE", lambda one: one.spec.template, 6),
        _AGE,
        _column("LABS", lambda one: one.status.summary.labs, 9, wide=True),
        _column("CPU", lambda one: _format(one.status.summary.cpu_utilization, "{:.0%}"), 9, wide=True),
        _column("MEMORY", lambda one: _format(one.status.summary.memory_utilization, "{:.0%}"), 9, wide=True),
        _column(
            "LAST-DECISION",
            lambda one: one.status.decisions[-1].reason if one.status.decisions else "",
            9,
            wide=True,
            least=_LEAST_TEXT,
        ),
    ),
    WorkerTemplate: (
        _column("TYPE", lambda one: one.spec.worker.aws.instance_type),
        _column("REGION", lambda one: one.spec.worker.aws.region, 2),
        _column("IMAGE", lambda one: one.spec.worker.aws.ami_id or one.spec.worker.aws.ami_name_pattern, 3),
        _column("USD", lambda one: _format(one.spec.price_per_hour_usd, "{}/h"), 4),
        _AGE,
        _column("PREFIX", lambda one: one.spec.name_prefix, 9, wide=True),
        _column("TRACK", lambda one: one.spec.worker.lab_track, 9, wide=True),
        _column("LICENCE", lambda one: one.spec.worker.cml.license_flavour, 9, wide=True),
    ),
    LabletDefinition: (
        _column("STATE", lambda one: one.spec.state, coloured=True),
        _column("TYPE", lambda one: one.spec.lab_type, 5),
        _column("TRACK", lambda one: one.spec.lab_track, 4),
        _column("NODES", lambda one: one.spec.node_count, 3),
        _column("CPU", lambda one: _format(one.spec.resource_requirements, "{0.cpu_cores:g}"), 2),
        _column("MEMORY", lambda one: _format(one.spec.resource_requirements, "{0.memory_gb:g}GB"), 2),
        _AGE,
        _column("LONGEST", lambda one: _format(one.spec.max_duration_minutes or None, "{}m"), 9, wide=True),
        _column("LICENCE", lambda one: one.spec.license_affinity, 11, wide=True),
        _column("OBSERVED", lambda one: one.status.observed_sessions, 10, wide=True),
        _column("TOPOLOGY", lambda one: one.spec.topology.uri, 12, wide=True, least=_LEAST_TEXT),
    ),
    LabletSession: (
        _PHASE,
        _column("OWNER", lambda one: one.spec.owner, 3),
        _column("DEFINITION", lambda one: one.spec.definition, 2),
        _column("START", lambda one: render.format_moment(one.spec.timeslot_start) or "ASAP", 4),
        _column("PLACE", lambda one: one.status.worker_name or seat_label(one.status.seat), 5),
        Column("NOTE", _note_cell, 1, colour=lambda note: "red" if note == "at risk" else None),
        _AGE,
        _column("ENDS", lambda one: render.format_moment(one.status.ends_at or one.spec.timeslot_end), 9, wide=True),
        _column("STUDENT", lambda one: one.spec.student_email, 11, wide=True),
        _column("TRACK", lambda one: one.spec.lab_track, 12, wide=True),
        _column("PLANNED-WORKER", lambda one: seat_label(one.status.seat), 13, wide=True),
        _column("CLAIM", _claim, 15, wide=True),
        _column("PORTS", ports_label, 14, wide=True, least=_LEAST_TEXT),
        _column("URL", lambda one: one.status.access_url, 10, wide=True),
        _column("RETRIES", lambda one: one.status.retry_count, 16, wide=True),
        _LAST_ERROR,
    ),
    Reservation: (
        _PHASE,
        _column("OWNER", lambda one: one.spec.owner, 3),
        _column("DEFINITION", lambda one: one.spec.definition, 2),
        _column("COUNT", lambda one: one.spec.count, 1),
        _column("START", lambda one: render.format_moment(one.spec.timeslot_start), 4),
        _AGE,
        _column("END", lambda one: render.format_moment(one.spec.timeslot_end), 9, wide=True),
        _column("PLANNED-WORKERS", _seats_held, 11, wide=True, least=_LEAST_TEXT),
        _column("MADE", lambda one: one.status.sessions_made, 10, wide=True),
        _column("ENDED", lambda one: one.status.sessions_ended, 10, wide=True),
        _LAST_ERROR,
    ),
    SystemSettings: (
        _column("STRATEGY", lambda one: one.spec.scheduler.strategy),
        _column("DISCOVERY", lambda one: _on_off(one.spec.discovery.enabled), 2),
        _column("REGIONS", lambda one: ",".join(one.spec.discovery.regions or ()), 3),
        _column("MONITORING", lambda one: _on_off(one.spec.monitoring.enabled), 4),
        _AGE,
        _column("IMAGES", lambda one: one.spec.discovery.ami_name_pattern, 10, wide=True),
        _column("IDLE-AFTER", lambda one: _format(one.spec.idle.threshold_minutes or None, "{}m"), 9, wide=True),
    ),
    Sink: (
        _column("FORMAT", lambda one: one.spec.format),
        _column("URL", lambda one: one.spec.url, 2, least=_LEAST_TEXT),
        _column("TYPES", lambda one: ",".join(one.spec.event_types) or "all", 3, least=12),
        _column("SENDING", lambda one: _on_off(one.spec.enabled), 4),
        _AGE,
        _column("OWNER", lambda one: one.spec.owner_id, 9, wide=True),
        _column("DEFINITION", lambda one: one.spec.definition_id, 10, wide=True),
    ),
}
