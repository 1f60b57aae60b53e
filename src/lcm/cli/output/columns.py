"""The columns of each kind's table, the most telling first. Those marked wide are shown by `-o wide` only."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from lcm.cli.output import render
from lcm.cli.output.nouns import title
from lcm.cli.output.table import Column
from lcm.model.base.resource import Condition, Truth, condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION, LabletSession, Seat, SessionCondition, SessionPhase
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import HOSTING, LabWorker, LabWorkerSpec, WorkerTelemetry, coarse

R = TypeVar("R", bound=Resource)
_DELETING: Final = " (deleting)"
_DONE: Final = 100


Measured = Mapping[str, WorkerTelemetry]
"""The newest measurements of workers, by uid."""


def columns(
    kind: type[Resource], *, wide: bool, with_namespace: bool, with_kind: bool, measured: Measured | None = None
) -> Sequence[Column[Any]]:
    """Choose the columns of a kind's table; with measurements of workers, those as well."""
    name: Column[Any] = Column("NAME", lambda one, _: title(one) if with_kind else one.metadata.name)
    first = [_NAMESPACE, name] if with_namespace else [name]
    chosen = [column for column in _TABLES[kind] if wide or not column.wide]
    if kind is LabWorker and measured:
        chosen[2:2] = _figures(measured)
    return [*first, *chosen]


def _figures(measured: Measured) -> Sequence[Column[LabWorker]]:
    def figure(heading: str, value: Callable[[WorkerTelemetry, datetime], str], rank: int) -> Column[LabWorker]:
        def cell(worker: LabWorker, now: datetime) -> str:
            found = measured.get(worker.metadata.uid)
            return (value(found, now) if found else "") or "-"

        return Column(heading, cell, rank)

    return (
        figure("CPU", lambda one, _: _whole(one.cpu_utilization), 2),
        figure("MEM", lambda one, _: _whole(one.memory_utilization), 2),
        figure("DATA", lambda one, now: render.age(one.cml_at or one.collected_at, now), 3),
    )


def _whole(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.0f}%"


def _idle(worker: LabWorker, now: datetime) -> str:
    """Say in a word or two whether it is idle, and when it is paused for that."""
    idle = worker.status.idle
    if not worker.spec.idle.enabled:
        return "off"
    if idle is None or worker.status.phase not in HOSTING:
        return "-"
    if idle.snoozed_until and idle.snoozed_until > now:
        return f"snoozed {render.span(idle.snoozed_until - now)}"
    if not idle.idle:
        return "no"
    return f"pause in {render.span(idle.pause_at - now)}" if idle.pause_at else "yes"


def phase_of(resource: Resource) -> str:
    """Give an object's phase; empty for kinds that have none."""
    return str(getattr(resource.status, "phase", ""))


def _phase(resource: Resource, _: datetime) -> str:
    return phase_of(resource) + (_DELETING if resource.metadata.deletion_timestamp else "")


def _age(resource: Resource, now: datetime) -> str:
    return render.age(resource.metadata.created_at, now)


def _col(
    heading: str, cell: Callable[[R], object], rank: int = 0, *, wide: bool = False, coloured: bool = False
) -> Column[R]:
    def text(resource: R, _: datetime) -> str:
        value = cell(resource)
        return "-" if value is None or value == "" else str(value)

    return Column(heading, text, rank, wide, render.phase_colour if coloured else None)


def _licence(worker: LabWorker) -> str:
    known = {True: "yes", False: "no", None: ""}
    return known[worker.status.cml.licensed]


def _image(spec: LabWorkerSpec) -> str | None:
    return spec.aws.ami_id or spec.aws.ami_name_pattern


def _start(session: LabletSession) -> str:
    return render.when(session.spec.timeslot_start) or "ASAP"


def seat_of(seat: Seat | None) -> str:
    """Name a seat: `ccna/3`."""
    return f"{seat.pool}/{seat.number}" if seat else ""


def ports_of(session: LabletSession) -> str:
    """Name a session's ports: `PC_vnc:2002 R1_serial:2001`."""
    return " ".join(f"{name}:{port}" for name, port in sorted((session.status.allocated_ports or {}).items()))


def at_risk(session: LabletSession) -> Condition | None:
    """Give the condition that says that a session's promise is in danger, if it is."""
    found = condition(session.status.conditions, SessionCondition.AT_RISK)
    return found if found is not None and found.status is Truth.TRUE else None


def _note(session: LabletSession, now: datetime) -> str:
    """Say in a few words what somebody should know: a risk, a place in line, how far it is, when it begins or ends."""
    status = session.status
    if status.phase in SESSION.final:
        return "-"
    if at_risk(session):
        return "at risk"
    if waiting := status.waiting:
        start = waiting.estimated_start
        return f"#{waiting.queue_position}" + (f" in {render.span(start - now)}" if start else "")
    progress = status.progress
    return f"{progress.percent}% {progress.step}" if progress and progress.percent < _DONE else _turn(session, now)


def _turn(session: LabletSession, now: datetime) -> str:
    running = session.status.phase is SessionPhase.RUNNING
    moment = session.status.ends_at if running else session.spec.timeslot_start
    if moment is None or moment <= now:
        return "-"
    return f"{render.span(moment - now)} left" if running else f"in {render.span(moment - now)}"


def _risk_colour(note: str) -> str | None:
    return "red" if note == "at risk" else None


def _claim(session: LabletSession) -> str:
    claim = session.status.claim
    return f"{render.when(claim.start)} {render.when(claim.end)}" if claim else ""


def _seats_held(reservation: Reservation) -> str:
    numbers = Counter(seat_of(held.seat) for held in reservation.status.held if held.seat)
    return " ".join(f"{seat}x{count}" if count > 1 else seat for seat, count in sorted(numbers.items()))


def _minutes(minutes: int | None) -> str:
    return f"{minutes}m" if minutes else ""


def _switch(on: bool | None) -> str:  # noqa: FBT001 - what it is about
    return "" if on is None else "on" if on else "off"


def _room(worker: LabWorker) -> str:
    room = worker.status.capacity
    return f"{room.cpu_millis / 1000:g} CPU {room.memory_mb // 1024} GB" if room else ""


def _cores(definition: LabletDefinition) -> str:
    needs = definition.spec.resource_requirements
    return f"{needs.cpu_cores:g}" if needs else ""


def _memory(definition: LabletDefinition) -> str:
    needs = definition.spec.resource_requirements
    return f"{needs.memory_gb:g}GB" if needs else ""


def _percent(fraction: float | None) -> str:
    return f"{fraction:.0%}" if fraction is not None else ""


def _decision(pool: LabWorkerPool) -> str:
    return pool.status.decisions[-1].reason if pool.status.decisions else ""


def _price(template: WorkerTemplate) -> str:
    price = template.spec.price_per_hour_usd
    return f"{price}/h" if price is not None else ""


_NAMESPACE: Final[Column[Any]] = Column("NAMESPACE", lambda one, _: one.metadata.namespace)
_PHASE: Final[Column[Any]] = Column("PHASE", _phase, colour=render.phase_colour)
_AGE: Final[Column[Any]] = Column("AGE", _age, 1)

_TABLES: Final[Mapping[type[Resource], Sequence[Column[Any]]]] = {
    LabWorker: (
        _PHASE,
        Column("IDLE", _idle, 1),
        _col("TRACK", lambda one: one.spec.lab_track, 5),
        _col("LICENSED", _licence, 4),
        _col("TYPE", lambda one: one.status.ec2.instance_type or one.spec.aws.instance_type, 6),
        _col("REGION", lambda one: one.spec.aws.region, 7),
        _AGE,
        _col("STATUS", lambda one: coarse(one.status), wide=True),
        _col("WANTED", lambda one: one.spec.wanted_state, wide=True),
        _col("INSTANCE", lambda one: one.status.ec2.instance_id, wide=True),
        _col("PUBLIC-IP", lambda one: one.status.ec2.public_ip, wide=True),
        _col("CML", lambda one: one.status.cml.version, wide=True),
        _col("CAPACITY", _room, wide=True),
        _col("LAST-ERROR", lambda one: one.status.last_error, wide=True),
    ),
    LabWorkerPool: (
        _PHASE,
        _col("TRACK", lambda one: one.spec.lab_track, 5),
        _col("READY", lambda one: f"{one.status.summary.ready_workers}/{one.status.summary.workers}", 1),
        _col("MIN", lambda one: one.spec.min_workers, 3),
        _col("MAX", lambda one: one.spec.max_workers, 2),
        _col("POLICY", lambda one: one.spec.policy, 4),
        _col("TEMPLATE", lambda one: one.spec.template, 6),
        _AGE,
        _col("LABS", lambda one: one.status.summary.labs, wide=True),
        _col("CPU", lambda one: _percent(one.status.summary.cpu_utilization), wide=True),
        _col("MEMORY", lambda one: _percent(one.status.summary.memory_utilization), wide=True),
        _col("LAST-DECISION", _decision, wide=True),
    ),
    WorkerTemplate: (
        _col("TYPE", lambda one: one.spec.worker.aws.instance_type),
        _col("REGION", lambda one: one.spec.worker.aws.region, 2),
        _col("IMAGE", lambda one: _image(one.spec.worker), 3),
        _col("USD", _price, 4),
        _AGE,
        _col("PREFIX", lambda one: one.spec.name_prefix, wide=True),
        _col("TRACK", lambda one: one.spec.worker.lab_track, wide=True),
        _col("LICENCE", lambda one: one.spec.worker.cml.license_flavour, wide=True),
    ),
    LabletDefinition: (
        _col("STATE", lambda one: one.spec.state, coloured=True),
        _col("TYPE", lambda one: one.spec.lab_type, 5),
        _col("TRACK", lambda one: one.spec.lab_track, 4),
        _col("NODES", lambda one: one.spec.node_count, 3),
        _col("CPU", _cores, 2),
        _col("MEMORY", _memory, 2),
        _AGE,
        _col("LONGEST", lambda one: _minutes(one.spec.max_duration_minutes), wide=True),
        _col("LICENCE", lambda one: one.spec.license_affinity, wide=True),
        _col("OBSERVED", lambda one: one.status.observed_sessions, wide=True),
        _col("TOPOLOGY", lambda one: one.spec.topology.uri, wide=True),
    ),
    LabletSession: (
        _PHASE,
        _col("OWNER", lambda one: one.spec.owner, 3),
        _col("DEFINITION", lambda one: one.spec.definition, 2),
        _col("START", _start, 4),
        _col("PLACE", lambda one: one.status.worker_name or seat_of(one.status.seat), 4),
        Column("NOTE", _note, 3, colour=_risk_colour),
        _AGE,
        _col("ENDS", lambda one: render.when(one.status.ends_at or one.spec.timeslot_end), wide=True),
        _col("STUDENT", lambda one: one.spec.student_email, wide=True),
        _col("TRACK", lambda one: one.spec.lab_track, wide=True),
        _col("SEAT", lambda one: seat_of(one.status.seat), wide=True),
        _col("WORKER", lambda one: one.status.worker_name, wide=True),
        _col("CLAIM", _claim, wide=True),
        _col("PORTS", ports_of, wide=True),
        _col("URL", lambda one: one.status.access_url, wide=True),
        _col("RETRIES", lambda one: one.status.retry_count, wide=True),
        _col("LAST-ERROR", lambda one: one.status.last_error, wide=True),
    ),
    Reservation: (
        _PHASE,
        _col("OWNER", lambda one: one.spec.owner, 3),
        _col("DEFINITION", lambda one: one.spec.definition, 2),
        _col("COUNT", lambda one: one.spec.count, 1),
        _col("START", lambda one: render.when(one.spec.timeslot_start), 4),
        _AGE,
        _col("END", lambda one: render.when(one.spec.timeslot_end), wide=True),
        _col("SEATS", _seats_held, wide=True),
        _col("MADE", lambda one: one.status.sessions_made, wide=True),
        _col("ENDED", lambda one: one.status.sessions_ended, wide=True),
        _col("LAST-ERROR", lambda one: one.status.last_error, wide=True),
    ),
    SystemSettings: (
        _col("STRATEGY", lambda one: one.spec.scheduler.strategy),
        _col("DISCOVERY", lambda one: _switch(one.spec.discovery.enabled), 2),
        _col("REGIONS", lambda one: ",".join(one.spec.discovery.regions or ()), 3),
        _col("MONITORING", lambda one: _switch(one.spec.monitoring.enabled), 4),
        _AGE,
        _col("IMAGES", lambda one: one.spec.discovery.ami_name_pattern, wide=True),
        _col("IDLE-AFTER", lambda one: _minutes(one.spec.idle.threshold_minutes), wide=True),
    ),
}
