"""The most important about a worker: machine, CML, figures with their ages, idleness, sessions, licence and cost.

Called by `describe`. What the caller may not see is left out.
"""

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, TypeVar

from lcm.cli.fleet.workers import sessions_on_worker
from lcm.cli.output import render
from lcm.control.plane.protocol import Plane, ref_of
from lcm.model.base.capacity import Amount
from lcm.model.base.errors import Forbidden
from lcm.model.base.resource import Truth
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession, describe_drift
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerPhase, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.topology.node_definitions import shipped_nodes

T = TypeVar("T")
LabelledText = tuple[str, str]
STALE_AFTER: Final = timedelta(minutes=5)
"""Older figures are marked: new ones should come every minute."""

_SIGNAL_WORDS: Final = {Truth.TRUE: "active", Truth.FALSE: "quiet", Truth.UNKNOWN: "unknown, so active"}
_MB: Final = 1_000_000
_UNITS: Final = (
    ("cpu_millis", 1000, "CPU"),
    ("memory_mb", 1024, "GB memory"),
    ("storage_mb", 1024, "GB disk"),
    ("nodes", 1, "nodes"),
    ("ports", 1, "ports"),
    ("labs", 1, "labs"),
)
"""Each dimension of a capacity, what it is divided by, and its unit."""
_SHOWN_NODES: Final = 12


async def worker_lines(plane: Plane, worker: LabWorker, now: datetime) -> list[LabelledText]:
    """Return a few lines about the state of a worker."""
    uid = worker.metadata.uid
    lines = [*_machine_lines(worker), *_state_lines(worker, now)]
    lines += _idle_lines(worker.status.idle, now, enabled=worker.spec.idle.enabled)
    lines += label_first("Measured", _telemetry_lines(await plane.telemetry(ref_of(worker)), now))
    sessions = await sessions_on_worker(plane, worker)
    lines += label_first("Sessions", _sessions(sessions, now))
    drifted = (one for one in sessions if one.status.port_drift_detected)
    lines += label_first("Port drift", (f"{one.metadata.name}: {describe_drift(one.status)}" for one in drifted))
    ledger = await _unless_forbidden(plane.licences())
    lines += label_first(
        "Licence seat",
        (
            f"{one.state} for {render.format_age(one.since, now)}, {one.flavour}, token {one.token}"
            for one in (ledger.seats if ledger else ())
            if one.worker_id == uid
        ),
    )
    created = worker.metadata.created_at
    if created and created < now:  # by a clock that is behind the API's, it may not have been created yet
        spent = await _unless_forbidden(plane.costs(since=created, until=now))
        lines += label_first("Cost", _cost([one for one in spent or () if one.worker_id == uid], now))
    return lines


async def alert_lines(plane: Plane, resource: Resource, now: datetime) -> list[LabelledText]:
    """Return the alerts about an object; none for a caller who may not see them."""
    raised = await _unless_forbidden(plane.alerts()) or ()
    texts = (
        f"{one.severity} {one.alert} for {render.format_age(one.since, now)}: {one.message}"
        for one in raised
        if one.uid == resource.metadata.uid
    )
    return list(label_first("Alerts", texts))


async def _unless_forbidden(answer: Awaitable[T]) -> T | None:
    """Wait for an answer; None when the caller may not have it."""
    try:
        return await answer
    except Forbidden:
        return None


def _machine_lines(worker: LabWorker) -> Iterator[LabelledText]:
    spec, ec2, cml = worker.spec, worker.status.ec2, worker.status.cml
    yield "Wanted", spec.wanted_state + (f", for track {spec.lab_track}" if spec.lab_track else "")
    machine = [ec2.instance_id or "no instance", ec2.instance_type or spec.aws.instance_type]
    place = ec2.availability_zone or spec.aws.region
    yield "Machine", ", ".join(filter(None, [*machine, place, ec2.state, ec2.public_ip or ec2.private_ip or ""]))
    if ec2.system_status or ec2.instance_status:
        yield "Checks", f"system {ec2.system_status or 'unknown'}, instance {ec2.instance_status or 'unknown'}"
    licence = {True: "licensed", False: "not licensed", None: "licence unknown"}[cml.licensed]
    health = {True: "healthy", False: "not healthy", None: ""}[cml.healthy]
    up = f"up {render.format_span(timedelta(seconds=cml.uptime_seconds))}" if cml.uptime_seconds else ""
    yield "CML", ", ".join(filter(None, [cml.version, cml.api_url, licence, health, up]))
    if cml.node_definitions is not None:
        own = [name for name in cml.node_definitions if name not in shipped_nodes()]
        beyond = f", its own among them: {render.join_some(own, _SHOWN_NODES)}" if own else ""
        yield "Nodes", f"{len(cml.node_definitions)} node definitions{beyond}"
    if room := worker.status.capacity:
        yield "Capacity", _usage_text(room)
    if used := worker.status.usage:
        yield "Claimed", _usage_text(used.claimed, used.percent)
        yield "Available", _usage_text(used.available)


def _usage_text(amount: Amount, percent: Mapping[str, int] | None = None) -> str:
    """Return an amount of each dimension, with the part of the whole that it is."""
    return ", ".join(
        f"{round(getattr(amount, name) / divisor, 1):g} {unit}" + (f" ({percent.get(name, 0)}%)" if percent else "")
        for name, divisor, unit in _UNITS
    )


def _state_lines(worker: LabWorker, now: datetime) -> Iterator[LabelledText]:
    status = worker.status
    if status.drain_deadline_at and status.phase is WorkerPhase.DRAINING:
        yield "Drain until", render.format_relative(status.drain_deadline_at, now)
    if status.failure:
        again = f"; next try {render.format_relative(status.retry_at, now)}" if status.retry_at else ""
        yield "Failure", f"{status.failure}, {status.retry_count} retries so far{again}"
    if status.unhealthy_since:
        yield "Unhealthy", f"for {render.format_age(status.unhealthy_since, now)}"
    if status.pause_count or status.resume_count:
        yield "Paused", f"{status.pause_count} times, resumed {status.resume_count} times"


def _idle_lines(idle: IdleVerdict | None, now: datetime, *, enabled: bool) -> Iterator[LabelledText]:
    if not enabled:
        yield "Idle", "never paused for being idle: idle.enabled is false"
    if idle is None:
        return
    pause = f"; pauses {render.format_relative(idle.pause_at, now)}" if idle.pause_at else ""
    until = idle.snoozed_until
    snooze = f"; snoozed until {render.format_relative(until, now)}" if until and until > now else ""
    yield "Idle", f"{'yes' if idle.idle else 'no'}: {idle.reason}{pause}{snooze}"
    for signal in idle.signals:
        yield "", f"{signal.name}: {_SIGNAL_WORDS[signal.active]}; {signal.detail}"


def _telemetry_lines(found: WorkerTelemetry | None, now: datetime) -> Iterator[str]:
    """Yield figures by their source, each with the age of its newest answer."""
    if found is None:
        return
    by_cml = (found.cml_cpu_utilization, found.cml_memory_utilization, found.cml_storage_utilization)
    labs = [_count("lab", found.active_labs_count), _count("running node", found.running_nodes)]
    yield from _source_line("CML", [*_percents(by_cml), *labs], found.cml_at or found.collected_at, now)
    by_cloud = (
        found.cloudwatch_cpu_utilization,
        found.cloudwatch_memory_utilization,
        found.cloudwatch_storage_utilization,
    )
    net = [_bytes("in", found.network_in_bytes), _bytes("out", found.network_out_bytes)]
    yield from _source_line("CloudWatch", [*_percents(by_cloud), *net], found.cloudwatch_at, now)
    if found.last_activity_at:
        yield from _source_line(
            "CML", [f"last activity {render.format_age(found.last_activity_at, now)} ago"], found.activity_at, now
        )
    if found.ec2_at:
        yield f"state and checks, by EC2 {_age_text(found.ec2_at, now)}"


def _source_line(source: str, figures: Iterable[str], at: datetime | None, now: datetime) -> Iterator[str]:
    known = ", ".join(filter(None, figures))
    if known:
        yield f"{known}, by {source}" + (f" {_age_text(at, now)}" if at else "")


def _age_text(at: datetime, now: datetime) -> str:
    return f"{render.format_age(at, now)} ago" + (", out of date" if now - at > STALE_AFTER else "")


def _percents(values: Iterable[float | None]) -> list[str]:
    named = zip(("CPU", "memory", "disk"), values, strict=True)
    return [f"{name} {value:.0f}%" for name, value in named if value is not None]


def _bytes(way: str, count: int | None) -> str:
    return "" if count is None else f"{count / _MB:.1f} MB {way}"


def _count(noun: str, count: int | None) -> str:
    return "" if count is None else f"{count} {noun}{'' if count == 1 else 's'}"


def _sessions(sessions: Sequence[LabletSession], now: datetime) -> Iterator[str]:
    if sessions:
        there = sum(one.status.phase in ON_WORKER_PHASES for one in sessions)
        yield f"{there} on it, {len(sessions) - there} to come"
    for one in sessions:
        ends = f", ends {render.format_relative(one.status.ends_at, now)}" if one.status.ends_at else ""
        yield f"{one.metadata.name} {one.status.phase} of {one.spec.owner}{ends}"


def _cost(intervals: Sequence[BillingInterval], now: datetime) -> Iterator[str]:
    if not intervals:
        return
    known = [usd for one in intervals if (usd := one.usd(now)) is not None]
    unknown = "" if len(known) == len(intervals) else " plus machines without a known price"
    last = intervals[-1]
    rate = "price not known" if last.usd_hourly is None else f"{last.usd_hourly:.2f} USD an hour now ({last.state})"
    if last.until is not None and last.until < now:
        rate = "no cost at present"
    yield f"{sum(known, Decimal(0)):.2f} USD so far{unknown}, {rate}"


def label_first(label: str, texts: Iterable[str]) -> Iterator[LabelledText]:
    """Give a label to the first of several texts; the others stand below it."""
    return ((label if not number else "", text) for number, text in enumerate(texts))
