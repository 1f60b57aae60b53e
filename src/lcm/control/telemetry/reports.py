"""Measurements that controllers report: one commit keeps the newest, their history, alerts, and events. For `local`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from lcm.control.delivery.events import hosted, measured
from lcm.control.objects.records import CODEC, alerts_key, history_prefix, telemetry_key, written
from lcm.control.objects.writer import Ledger, persistently
from lcm.control.plane.protocol import Sample, WorkerRef
from lcm.control.telemetry.alert_records import Alerts, Standing, board, complaint_of
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Part
from lcm.model.kinds.worker import LabWorker, WorkerPhase, WorkerTelemetry
from lcm.model.telemetry.alert import Complaint, Severity
from lcm.store.base import ABSENT, Check, Delete, Op, Put, Store, everything

THRESHOLD_PERCENT: Final = 90.0
CALM_PERCENT: Final = 80.0
"""Below this it is over: between the two, what is raised stays raised and what is not is not raised."""
CALM_AFTER: Final = timedelta(minutes=5)

_BY_SOURCE: Final[Mapping[str, tuple[str, ...]]] = {
    "ec2_at": (),
    "cloudwatch_at": ("network_in_bytes", "network_out_bytes"),
    "cml_at": (
        "memory_utilization",
        "storage_utilization",
        "uptime_seconds",
        "running_nodes",
        "active_labs_count",
        "hosted_lab_ids",
    ),
    "activity_at": (),
}
_CPU: Final = "cpu_utilization"
_CPU_SOURCES: Final = ("cloudwatch_at", "cml_at")
_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(WorkerTelemetry) if not field.required
}


class Limit(NamedTuple):
    """A measurement that may be too high, and the alert that says so."""

    alert: str
    field: str
    what: str


LIMITS: Final = (
    Limit("HighCpu", _CPU, "CPU"),
    Limit("HighMemory", "memory_utilization", "memory"),
    Limit("HighDisk", "storage_utilization", "disk"),
)


def aged(report: WorkerTelemetry) -> WorkerTelemetry:
    """Say of what came without an age that it is as old as the report.

    Not of what people did: that nothing is known to have happened must not pass for knowing that nothing happened.
    """
    missing = {
        source: report.collected_at
        for source, fields in _BY_SOURCE.items()
        if getattr(report, source) is None and any(getattr(report, name) != _DEFAULTS[name] for name in fields)
    }
    known = missing.keys() | {source for source in _CPU_SOURCES if getattr(report, source) is not None}
    if report.cpu_utilization is not None and not known.intersection(_CPU_SOURCES):
        missing["cloudwatch_at"] = report.collected_at
    return msgspec.structs.replace(report, **missing)


def news(report: WorkerTelemetry, kept: WorkerTelemetry | None) -> WorkerTelemetry:
    """Leave out the sources that did not answer, or from which something newer is known."""
    silent = {source for source in _BY_SOURCE if not _newer(report, kept, source)}
    blank = {name for source in silent for name in (source, *_BY_SOURCE[source])}
    blank |= {_CPU} if silent.issuperset(_CPU_SOURCES) else set()
    return msgspec.structs.replace(report, **{name: _DEFAULTS[name] for name in blank})


def merged(fresh: WorkerTelemetry, kept: WorkerTelemetry | None) -> WorkerTelemetry:
    """Put what is new over what is known."""
    if kept is None:
        return fresh
    silent = {source for source in _BY_SOURCE if getattr(fresh, source) is None}
    old = {name for source in silent for name in (source, *_BY_SOURCE[source])}
    old |= {_CPU} if silent.issuperset(_CPU_SOURCES) else set()
    both = [moment for moment in (fresh.last_activity_at, kept.last_activity_at) if moment is not None]
    changes: dict[str, Any] = {name: getattr(kept, name) for name in old}
    # A record of what people did may reach less far back than the one before.
    return msgspec.structs.replace(fresh, **changes | {"last_activity_at": max(both, default=None)})


def moved_labs(fresh: WorkerTelemetry, kept: WorkerTelemetry | None) -> bool:
    """Tell whether other labs run than were known to."""
    return fresh.cml_at is not None and (kept is None or kept.cml_at is None or _labs(fresh) != _labs(kept))


def sample_of(fresh: WorkerTelemetry) -> Sample:
    """Take from measurements what is plotted."""
    return Sample(
        at=fresh.collected_at,
        cpu_utilization=fresh.cpu_utilization,
        memory_utilization=fresh.memory_utilization,
        storage_utilization=fresh.storage_utilization,
        active_labs_count=fresh.active_labs_count,
        running_nodes=fresh.running_nodes,
    )


def held_to_limits(worker: LabWorker, fresh: WorkerTelemetry, alerts: Alerts) -> Alerts:
    """Raise what is too high, and clear what has been low for long enough: what oscillates stays raised.

    A machine that is stopped has no load at all.
    """
    for limit in LIMITS:
        if worker.status.phase is WorkerPhase.STOPPED:
            alerts = alerts.without(limit.alert)
            continue
        value: float | None = getattr(fresh, limit.field)
        if value is not None:
            alerts = _held(worker, fresh, alerts, limit, value)
    return alerts


def _held(worker: LabWorker, fresh: WorkerTelemetry, alerts: Alerts, limit: Limit, value: float) -> Alerts:
    standing, at = alerts.find(limit.alert), fresh.collected_at
    if standing is None:
        if value < THRESHOLD_PERCENT:
            return alerts
        complaint = Complaint(
            alert=limit.alert,
            severity=Severity.WARNING,
            reason="AboveThreshold",
            message=f"{limit.what} at {value:.1f} %; the limit is {THRESHOLD_PERCENT:.0f} %",
        )
        return alerts.having(Standing(alert=complaint_of(worker, complaint, at)))
    if value >= CALM_PERCENT:
        return alerts.having(Standing(alert=standing.alert))
    calm_since = standing.calm_since or at
    if at - calm_since >= CALM_AFTER:
        return alerts.without(limit.alert)
    return alerts.having(Standing(alert=standing.alert, calm_since=calm_since))


def _newer(report: WorkerTelemetry, kept: WorkerTelemetry | None, source: str) -> bool:
    new, old = getattr(report, source), getattr(kept, source) if kept else None
    return new is not None and (old is None or new >= old)


def _labs(telemetry: WorkerTelemetry) -> tuple[int | None, list[str]]:
    return telemetry.active_labs_count, sorted(telemetry.hosted_lab_ids)


KEPT: Final = timedelta(hours=24)
_HOUR: Final = "%Y%m%d%H"


class Hour(Part):
    """The samples of one hour, oldest first."""

    samples: tuple[Sample, ...] = ()

    def having(self, new: Sample) -> "Hour":
        """Add a sample; of one minute the last counts."""
        return Hour(samples=(*(one for one in self.samples if _minute(one.at) != _minute(new.at)), new))


async def recorded(store: Store, worker: LabWorker, sample: Sample) -> Sequence[Op]:
    """Say how the store keeps one more sample; those that are too old go when an hour begins."""
    prefix = history_prefix(worker)
    key = f"{prefix}{_hour(sample.at)}"
    entry = await store.get(key)
    hour = CODEC.decode(entry.value, Hour) if entry else Hour()
    put = Put(key, written(hour.having(sample)), at=entry.revision if entry else ABSENT)
    if entry is not None:
        return (put,)
    page = await everything(store, prefix)
    oldest = f"{prefix}{_hour(sample.at - KEPT)}"
    return (put, *(Delete(one.key) for one in page.entries if one.key < oldest))


async def history(ledger: Ledger, ref: WorkerRef, since: datetime) -> Sequence[Sample]:
    """Read a worker's samples from a moment on, oldest first."""
    record = await ledger.need(ref)
    since = max(since, ledger.clock.now() - KEPT)
    prefix = history_prefix(record.resource)
    page = await everything(ledger.store, prefix)
    hours = [entry for entry in page.entries if entry.key >= f"{prefix}{_hour(since)}"]
    samples = [one for entry in hours for one in CODEC.decode(entry.value, Hour).samples]
    return [one for one in samples if one.at >= since]


def _hour(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_HOUR)


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


_AHEAD: Final = timedelta(minutes=5)
"""So far another machine's clock may be ahead."""
_MOMENTS: Final = ("collected_at", "ec2_at", "cloudwatch_at", "cml_at", "activity_at")


async def report(ledger: Ledger, ref: WorkerRef, telemetry: WorkerTelemetry) -> WorkerTelemetry:
    """Keep a worker's newest measurements, and return those kept."""
    now = ledger.clock.now()
    _refuse_the_future(telemetry, now)

    async def attempt() -> WorkerTelemetry:
        record = await ledger.need(ref)
        worker, store = record.resource, ledger.store
        entry = await store.get(key := telemetry_key(worker))
        kept = CODEC.decode(entry.value, WorkerTelemetry) if entry else None
        if kept and kept.collected_at >= telemetry.collected_at:
            return kept
        fresh = news(aged(telemetry), kept)
        newest = merged(fresh, kept)
        alerts = await board(store, alerts_key(worker))
        after = held_to_limits(worker, fresh, alerts.alerts)
        ops = [
            Put(key, written(newest), at=entry.revision if entry else ABSENT),
            *await recorded(store, worker, sample_of(fresh)),
            *alerts.becoming(after),
            Check(record.key, record.revision),
        ]
        labs = [hosted(worker, newest, now=now)] if moved_labs(fresh, kept) else []
        told = [measured(worker, newest, now=now), *labs, *alerts.told(after, now)]
        await ledger.commit(ops=ops, told=told)
        return newest

    return await persistently(attempt, unless=lambda _: False)


async def telemetry(ledger: Ledger, ref: WorkerRef) -> WorkerTelemetry | None:
    """Read a worker's newest measurements; None means never measured."""
    record = await ledger.find(ref)
    return await newest_of(ledger, record.resource) if record else None


async def newest_of(ledger: Ledger, worker: LabWorker) -> WorkerTelemetry | None:
    """Read the newest measurements of a worker that was read; None means never measured."""
    entry = await ledger.store.get(telemetry_key(worker))
    return CODEC.decode(entry.value, WorkerTelemetry) if entry else None


def _refuse_the_future(telemetry: WorkerTelemetry, now: datetime) -> None:
    """Raise Invalid for what would keep out all that follows."""
    problem = f"later than it is here, {now:%Y-%m-%dT%H:%M:%SZ}"
    remedy = "set the clock of the machine that measures"
    moments = {name: getattr(telemetry, name) for name in _MOMENTS}
    faults = [Fault(name, problem, remedy) for name, at in moments.items() if at is not None and at > now + _AHEAD]
    if faults:
        raise Invalid(*faults)
