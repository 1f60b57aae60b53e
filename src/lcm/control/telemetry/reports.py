"""Measurements of workers: the newest by source, the history of a day, and alerts about high usage.

Called by `control.plane.local`. One commit stores the newest values, their history, alerts and events. A source that
did not answer keeps its previous values, with their age; only new values are plotted and checked against limits.
History is stored by minute, an hour to a key, outside the objects: nobody watches it, and no object grows by it.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from lcm.control.delivery.events import labs_event, metrics_event, metrics_of
from lcm.control.objects.records import (
    CODEC,
    SETTINGS_KEY,
    TELEMETRY,
    Record,
    alerts_key,
    decode_settings,
    encode_checked,
    history_prefix,
    is_nameable,
    read_entry,
    telemetry_key,
)
from lcm.control.objects.writer import Writer, retry_conflicts
from lcm.control.plane.bodies import Sample
from lcm.control.plane.protocol import WorkerRef, ref_of
from lcm.control.telemetry.alert_records import ActiveAlert, Alerts, decode_alerts, make_alert
from lcm.control.telemetry.report_commits import ReportCommits
from lcm.model.base.errors import Conflict, Fault, Invalid
from lcm.model.base.event import WorkerMetrics, encode_event
from lcm.model.base.resource import Part
from lcm.model.kinds.worker import LabWorker, WorkerPhase, WorkerTelemetry
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.model.telemetry.measurement import (
    CPU,
    DEFAULTS,
    DISK,
    FIELDS_BY_SOURCE,
    FIGURES,
    MEMORY,
    UsageThresholds,
    calm_percent,
    with_figures,
    with_sources,
)
from lcm.store.base import ABSENT, CheckRevision, Delete, Entry, Op, Put, Store, scan_all
from lcm.store.codec import decode_known
from lcm.system.tasks import TimeSlice

CLEAR_AFTER: Final = timedelta(minutes=5)
DEFAULT_THRESHOLDS: Final = UsageThresholds()


class UsageLimit(NamedTuple):
    """A measurement that may be too high, and the alert that reports it."""

    alert: str
    field: str
    what: str


USAGE_LIMITS: Final = (
    UsageLimit("HighCpu", CPU, "CPU"),
    UsageLimit("HighMemory", MEMORY, "memory"),
    UsageLimit("HighDisk", DISK, "disk"),
)


def only_newer(report: WorkerTelemetry, kept: WorkerTelemetry | None) -> WorkerTelemetry:
    """Blank the sources that did not answer, or of which newer values are known."""
    silent = {source for source in FIELDS_BY_SOURCE if not _is_newer(report, kept, source)}
    blank = {name: DEFAULTS[name] for source in silent for name in (source, *FIELDS_BY_SOURCE[source])}
    return with_figures(msgspec.structs.replace(report, **blank))


def merge_telemetry(fresh: WorkerTelemetry, kept: WorkerTelemetry | None) -> WorkerTelemetry:
    """Return what is known, with the new values put over it."""
    if kept is None:
        return fresh
    silent = {source for source in FIELDS_BY_SOURCE if getattr(fresh, source) is None}
    old = {name for source in silent for name in (source, *FIELDS_BY_SOURCE[source])}
    old |= {name for name in FIGURES if fresh.cml_at is None and getattr(fresh, name) is None}
    both = [moment for moment in (fresh.last_activity_at, kept.last_activity_at) if moment is not None]
    changes: dict[str, Any] = {name: getattr(kept, name) for name in old}
    # A new report on activity may not reach as far back as the previous one.
    return msgspec.structs.replace(fresh, **changes | {"last_activity_at": max(both, default=None)})


def has_other_labs(fresh: WorkerTelemetry, kept: WorkerTelemetry | None) -> bool:
    """Return whether other labs run than were known to run."""
    return fresh.cml_at is not None and (
        kept is None or kept.cml_at is None or _running_labs(fresh) != _running_labs(kept)
    )


def sample_of(fresh: WorkerTelemetry) -> Sample:
    """Return the part of the measurements that is plotted."""
    return Sample(
        at=fresh.collected_at,
        cpu_utilization=fresh.cpu_utilization,
        memory_utilization=fresh.memory_utilization,
        storage_utilization=fresh.storage_utilization,
        active_labs_count=fresh.active_labs_count,
        running_nodes=fresh.running_nodes,
    )


def check_limits(
    worker: LabWorker, fresh: WorkerTelemetry, alerts: Alerts, thresholds: UsageThresholds = DEFAULT_THRESHOLDS
) -> Alerts:
    """Raise alerts for what is too high, and clear those that have been low for long enough.

    An oscillating value stays raised. A machine that is stopped has no load at all.
    """
    for limit in USAGE_LIMITS:
        if worker.status.phase is WorkerPhase.STOPPED:
            alerts = alerts.without(limit.alert)
            continue
        if getattr(fresh, limit.field) is not None:
            alerts = _check_limit(worker, fresh, alerts, limit, thresholds.of(limit.field))
    return alerts


def _check_limit(
    worker: LabWorker, fresh: WorkerTelemetry, alerts: Alerts, limit: UsageLimit, threshold: float
) -> Alerts:
    standing, at = alerts.find(limit.alert), fresh.collected_at
    value: float = getattr(fresh, limit.field)
    if standing is None:
        if value < threshold:
            return alerts
        complaint = AlertFinding(
            alert=limit.alert,
            severity=Severity.WARNING,
            reason="AboveThreshold",
            message=f"{limit.what} at {value:.1f} %; the limit is {threshold:g} %",
        )
        return alerts.with_alert(ActiveAlert(alert=make_alert(worker, complaint, at)))
    if value >= calm_percent(threshold):
        return alerts.with_alert(ActiveAlert(alert=standing.alert))
    calm_since = standing.calm_since or at
    if at - calm_since >= CLEAR_AFTER:
        return alerts.without(limit.alert)
    return alerts.with_alert(ActiveAlert(alert=standing.alert, calm_since=calm_since))


def _is_newer(report: WorkerTelemetry, kept: WorkerTelemetry | None, source: str) -> bool:
    new, old = getattr(report, source), getattr(kept, source) if kept else None
    return new is not None and (old is None or new >= old)


def _running_labs(telemetry: WorkerTelemetry) -> tuple[int | None, list[str]]:
    return telemetry.active_labs_count, sorted(telemetry.hosted_lab_ids)


HISTORY_KEPT: Final = timedelta(hours=24)


class HourOfSamples(Part):
    """The samples of one hour, oldest first."""

    samples: tuple[Sample, ...] = ()


class RawHour(Part):
    """The same as it is written: what is already there is copied as it is."""

    samples: tuple[msgspec.Raw, ...] = ()


def history_key(ref: WorkerRef, at: datetime) -> str:
    """Return the key of the samples of an hour."""
    return f"{history_prefix(ref)}{_hour_key(at)}"


async def sample_ops(store: Store, ref: WorkerRef, sample: Sample, entry: Entry | None) -> Sequence[Op]:
    """Return the operations that store one more sample; samples that are too old go when a new hour begins.

    `entry` has the samples of its hour.
    """
    key = history_key(ref, sample.at)
    others = _earlier_samples(entry, sample) if entry else ()
    fresh = msgspec.Raw(encode_checked(sample).partition(b"\n")[2])
    put = Put(key, CODEC.encode(RawHour(samples=(*others, fresh))), at=entry.revision if entry else ABSENT)
    if entry is not None:
        return (put,)
    page = await scan_all(store, history_prefix(ref))
    oldest = history_key(ref, sample.at - HISTORY_KEPT)
    return (put, *(Delete(one.key) for one in page.entries if one.key < oldest))


def _earlier_samples(entry: Entry, sample: Sample) -> Sequence[msgspec.Raw]:
    """Return the samples of an hour that stay when another comes: of each minute only the last one is kept."""
    known = CODEC.decode(entry.value, RawHour).samples
    last = decode_known(known[-1], Sample) if known else None
    return known[:-1] if last is not None and _minute_of(last.at) == _minute_of(sample.at) else known


async def read_history(writer: Writer, ref: WorkerRef, since: datetime) -> Sequence[Sample]:
    """Read a worker's samples from a moment on, oldest first."""
    record = await writer.require(ref)
    since = max(since, writer.clock.now() - HISTORY_KEPT)
    prefix = history_prefix(ref_of(record.resource))
    page = await scan_all(writer.store, prefix)
    hours = [entry for entry in page.entries if entry.key >= f"{prefix}{_hour_key(since)}"]
    samples = [one for entry in hours for one in CODEC.decode(entry.value, HourOfSamples).samples]
    return [one for one in samples if one.at >= since]


def _hour_key(moment: datetime) -> str:
    there = moment.astimezone(UTC)
    return f"{there.year:04}{there.month:02}{there.day:02}{there.hour:02}"


def _minute_of(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


_MAX_REPORT_SKEW: Final = timedelta(minutes=5)
"""How far the clock of another machine may be ahead."""
_TIME_FIELDS: Final = ("collected_at", "ec2_at", "cloudwatch_at", "cml_at", "activity_at")


class _WorkerState(NamedTuple):
    """A worker, with what is stored about its measurements."""

    record: Record[LabWorker]
    telemetry: Entry | None
    alerts: Entry | None
    settings: Entry | None
    samples: Entry | None
    """Those of the hour of the report."""


async def _read_state(writer: Writer, ref: WorkerRef, at: datetime) -> _WorkerState:
    """Read a worker, and what is stored about it, at once. Raise Gone when there is no such worker."""
    keys = (telemetry_key(ref), alerts_key(ref), SETTINGS_KEY, history_key(ref, at))
    entry, *others = await writer.store.get_all(ref.key, *keys) if is_nameable(ref) else [None]
    if entry is not None:
        return _WorkerState(Record(read_entry(entry, LabWorker), entry), *others)
    found = ref_of((await writer.require(ref)).resource)
    if found == ref:
        raise Conflict(ref.key, wanted=ABSENT, found=ABSENT, message=f"{ref} was made just now: read it again")
    return await _read_state(writer, found, at)  # it was named by its uid


async def record_telemetry(
    writer: Writer,
    commits: ReportCommits,
    ref: WorkerRef,
    telemetry: WorkerTelemetry,
    usual: UsageThresholds = DEFAULT_THRESHOLDS,
) -> WorkerTelemetry:
    """Store a worker's newest measurements and return the ones that are stored.

    `usual` says what is too high where the SystemSettings object says nothing.
    """
    now = writer.clock.now()
    _reject_future_report(telemetry, now)

    async def attempt() -> WorkerTelemetry:
        state = await _read_state(writer, ref, telemetry.collected_at)
        worker, entry, kept = state.record.resource, state.telemetry, decode_telemetry(state.telemetry)
        if kept and kept.collected_at >= telemetry.collected_at:
            return kept
        named = ref_of(worker)
        fresh = only_newer(with_sources(telemetry), kept)
        newest = merge_telemetry(fresh, kept)
        alerts = decode_alerts(alerts_key(named), state.alerts)
        after = check_limits(worker, fresh, alerts.alerts, usual.with_settings(decode_settings(state.settings)))
        ops = [
            Put(telemetry_key(named), encode_checked(newest), at=entry.revision if entry else ABSENT),
            *await sample_ops(writer.store, named, sample_of(fresh), state.samples),
            *alerts.replace_ops(after),
            CheckRevision(state.record.key, state.record.revision),
        ]
        labs = [labs_event(worker, newest, now=now)] if has_other_labs(fresh, kept) else []
        events = [metrics_event(worker, newest, now=now), *labs, *alerts.change_events(after, now)]
        await commits.submit(writer, ops, [encode_event(event) for event in events])
        return newest

    return await retry_conflicts(attempt, unless=lambda _: False)


async def read_telemetry(writer: Writer, ref: WorkerRef) -> WorkerTelemetry | None:
    """Read a worker's newest measurements; None means that it was never measured."""
    record = await writer.find(ref)
    return await newest_telemetry(writer, record.resource) if record else None


async def newest_telemetry(writer: Writer, worker: LabWorker) -> WorkerTelemetry | None:
    """Read the newest measurements of a worker that was already read; None means never measured."""
    return decode_telemetry(await writer.store.get(telemetry_key(ref_of(worker))))


def decode_telemetry(entry: Entry | None) -> WorkerTelemetry | None:
    """Decode the newest measurements of a worker; None means never measured."""
    return CODEC.decode(entry.value, WorkerTelemetry) if entry else None


async def list_newest_metrics(store: Store, workers: Iterable[LabWorker]) -> Sequence[WorkerMetrics]:
    """Read the newest measurements of workers, as the events of measurements tell them; some were never measured."""
    page = await scan_all(store, TELEMETRY)
    known, time_slice = dict[str, WorkerTelemetry](), TimeSlice()
    for entry in page.entries:
        await time_slice.yield_if_over()
        known[entry.key] = CODEC.decode(entry.value, WorkerTelemetry)
    found = ((worker, known.get(telemetry_key(ref_of(worker)))) for worker in workers)
    return [metrics_of(worker, telemetry) for worker, telemetry in found if telemetry is not None]


def _reject_future_report(telemetry: WorkerTelemetry, now: datetime) -> None:
    """Raise Invalid for a time in the future: such a report would make every later one look old."""
    latest = now + _MAX_REPORT_SKEW
    wrong = [name for name in _TIME_FIELDS if (at := getattr(telemetry, name)) is not None and at > latest]
    if wrong:
        problem = f"in the future: it is {now:%Y-%m-%dT%H:%M:%SZ}"
        raise Invalid(*(Fault(name, problem, "set the clock of the machine that measures") for name in wrong))
