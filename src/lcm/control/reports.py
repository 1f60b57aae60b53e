"""Measurements that controllers report: one commit keeps the newest, their history, alerts, and events. For `local`."""

from datetime import datetime, timedelta
from typing import Final

from lcm.control.board import board
from lcm.control.events import hosted, measured
from lcm.control.history import recorded
from lcm.control.ledger import Ledger, persistently
from lcm.control.measuring import (
    aged,
    held_to_limits,
    merged,
    moved_labs,
    news,
    sample_of,
)
from lcm.control.plane import WorkerRef
from lcm.control.records import CODEC, alerts_key, telemetry_key, written
from lcm.model.errors import Fault, Invalid
from lcm.model.worker import LabWorker, WorkerTelemetry
from lcm.store.base import ABSENT, Check, Put

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
