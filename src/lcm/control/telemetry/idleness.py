"""Judging whether a worker is idle by all that the plane knows, and warning before it is paused. Called by `local`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec

from lcm.control.booking.guards import known_pools, pool_guard, read_guards, sessions_on
from lcm.control.booking.promise import Desk
from lcm.control.delivery.events import warned
from lcm.control.objects.records import find
from lcm.control.objects.writer import Edit, Ledger, persistently
from lcm.control.plane.protocol import Ref, WorkerRef, ref_of
from lcm.control.telemetry.reports import newest_of
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import IdleVerdict, LabWorker
from lcm.model.telemetry.idle import SeatUse, is_warning, judge, says_more
from lcm.placement.claims import boot_lead
from lcm.placement.seats import KEEP
from lcm.store.base import Check, Op, Store

_POLLS: Final = 3
_FEWEST_POLLS: Final = 2
_SHORTEST: Final = timedelta(minutes=3)
_LONGEST: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Judgement:
    """By what workers are judged: what the process was told, unless the SystemSettings object says otherwise."""

    boot_minutes: int = 20
    instantiation_minutes: int = 15
    buffer_minutes: int = 5
    poll_seconds: int = 60
    threshold_minutes: int = 30
    """What workers whose authors said nothing were given."""
    wished_minutes: int | None = None
    """What those have instead, because the settings changed since."""

    @property
    def horizon(self) -> timedelta:
        """How long before a session its worker must not be paused any more: it would not be back in time."""
        return timedelta(minutes=self.boot_minutes + self.instantiation_minutes + self.buffer_minutes)

    @property
    def stale_after(self) -> timedelta:
        """How old a measurement may be that still says something: minutes, unless they are taken more seldom."""
        poll = timedelta(seconds=self.poll_seconds)
        return max(min(_POLLS * poll, _LONGEST), _FEWEST_POLLS * poll, _SHORTEST)

    def threshold(self, worker: LabWorker) -> timedelta:
        """Say how long nothing must happen on a worker before it is idle.

        What its spec says counts, unless that is what the process gives to all: then the SystemSettings object wins.
        """
        own = worker.spec.idle.threshold_minutes
        if self.wished_minutes is not None and own == self.threshold_minutes:
            own = self.wished_minutes
        return timedelta(minutes=own)

    def under(self, system: SystemSettings | None) -> "Judgement":
        """Put over it what the SystemSettings object says."""
        if system is None:
            return self
        scheduler, monitoring = system.spec.scheduler, system.spec.monitoring
        return Judgement(
            boot_minutes=scheduler.worker_bootup_delay_minutes or self.boot_minutes,
            instantiation_minutes=scheduler.lablet_instantiation_delay_minutes or self.instantiation_minutes,
            buffer_minutes=self.buffer_minutes,
            poll_seconds=monitoring.metrics_poll_interval_seconds or self.poll_seconds,
            threshold_minutes=self.threshold_minutes,
            wished_minutes=system.spec.idle.threshold_minutes,
        )


USUAL: Final = Judgement()


async def detect_idle(ledger: Ledger, ref: WorkerRef, usual: Judgement, desk: Desk | None = None) -> IdleVerdict:
    """Judge a worker, keep the verdict if it says anything new, and warn once before a pause.

    The desk knows which seat of a pool it fills, and what is booked on that.
    """

    async def attempt() -> IdleVerdict:
        record = await ledger.need(ref)
        worker, now = record.resource, ledger.clock.now()
        by = usual.under(await _settings(ledger.store))
        seat, unchanged = await _seat(ledger.store, desk, worker, by.horizon)
        verdict = judge(
            worker,
            await newest_of(ledger, worker),
            await sessions_on(ledger.store, worker.metadata.uid),
            now,
            horizon=by.horizon,
            stale_after=by.stale_after,
            threshold=by.threshold(worker),
            seat=seat,
        )
        if not says_more(verdict, worker.status.idle):
            return verdict
        after = msgspec.structs.replace(worker, status=msgspec.structs.replace(worker.status, idle=verdict))
        told = [warned(worker, verdict, now=now)] if is_warning(verdict, worker.status.idle) else []
        # At the revision that was judged: what happened to the worker meanwhile may be what it is not idle by.
        await ledger.commit(Edit(record, after), ops=unchanged, told=told, reported=True)
        return verdict

    return await persistently(attempt, unless=lambda _: False)


async def _seat(
    store: Store, desk: Desk | None, worker: LabWorker, horizon: timedelta
) -> tuple[SeatUse | None, Sequence[Op]]:
    """Say what the seat that a worker fills is needed for; the guard makes sure that nobody has claimed it since."""
    if desk is None:
        return None, ()
    calendar = desk.calendar
    await calendar.ready()
    await calendar.until(await known_pools(store, worker.metadata.namespace))
    found = calendar.row_at(worker.metadata.uid)
    if found is None:
        return None, ()
    row, number = found
    ref = ref_of(row.pool)
    guards = await read_guards(store, pool_guard(ref))
    await calendar.until(guards.revision)
    claims = [held.claim for place, held in calendar.claims(ref) if place == number]
    # As long as its pool would keep it running through a gap between two claims.
    soon = max(horizon, boot_lead(row.pool, calendar.terms) + KEEP)
    use = SeatUse(row.pool.metadata.name, number, row.pool.spec.min_workers >= number, claims, soon)
    return use, [Check(key, revision) for key, revision in guards.seen]


async def _settings(store: Store) -> SystemSettings | None:
    record = await find(store, Ref(SystemSettings, SETTINGS_NAME))
    return record.resource if record else None
