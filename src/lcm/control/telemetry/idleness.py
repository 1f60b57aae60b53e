"""Decides whether a worker is idle from everything the plane knows, and warns before it is paused.

Called by `control.plane.local`. `IdleCriteria` holds the thresholds, `detect_idle` judges one worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import msgspec

from lcm.control.booking.guards import pool_guard_key, read_guards
from lcm.control.booking.promise import Promises
from lcm.control.delivery.events import idle_warning_event
from lcm.control.objects.records import POOLS_CHANGED, SETTINGS_KEY, decode_settings, sessions_on, telemetry_key
from lcm.control.objects.writer import Edit, Writer, retry_conflicts
from lcm.control.plane.protocol import WorkerRef, ref_of
from lcm.control.telemetry.reports import decode_telemetry
from lcm.model.kinds.pool import is_kept_seat
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import IdleVerdict, LabWorker
from lcm.model.telemetry.idle import SeatUse, is_first_warning, is_significant, judge_worker
from lcm.placement.claims import boot_lead
from lcm.placement.seats import KEEP_THROUGH_GAP
from lcm.store.base import ABSENT, CheckRevision, Op, Store

_STALE_POLLS: Final = 3
_MIN_STALE_POLLS: Final = 2
_MIN_STALE_AFTER: Final = timedelta(minutes=3)
_MAX_STALE_AFTER: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class IdleCriteria:
    """The criteria for idle workers: the settings of the process, unless the SystemSettings object overrides them."""

    boot_minutes: int = 20
    instantiation_minutes: int = 15
    buffer_minutes: int = 5
    poll_seconds: int = 60
    threshold_minutes: int = 30
    """The default that workers got whose spec said nothing."""
    system_threshold_minutes: int | None = None
    """The threshold that replaces that default, because the SystemSettings object changed it since."""

    @property
    def horizon(self) -> timedelta:
        """How long before a session its worker must not be paused any more: it would not be back in time."""
        return timedelta(minutes=self.boot_minutes + self.instantiation_minutes + self.buffer_minutes)

    @property
    def stale_after(self) -> timedelta:
        """How old a measurement may be and still count: some minutes, or longer if polls are rarer than that."""
        poll = timedelta(seconds=self.poll_seconds)
        return max(min(_STALE_POLLS * poll, _MAX_STALE_AFTER), _MIN_STALE_POLLS * poll, _MIN_STALE_AFTER)

    def threshold(self, worker: LabWorker) -> timedelta:
        """Return how long nothing must happen on a worker before it is idle.

        The worker's own spec counts, unless it equals the default of the process: then the SystemSettings object wins.
        """
        own = worker.spec.idle.threshold_minutes
        if self.system_threshold_minutes is not None and own == self.threshold_minutes:
            own = self.system_threshold_minutes
        return timedelta(minutes=own)

    def with_system_settings(self, system: SystemSettings | None) -> "IdleCriteria":
        """Return the criteria with the SystemSettings object's values over them."""
        if system is None:
            return self
        scheduler, monitoring = system.spec.scheduler, system.spec.monitoring
        return replace(
            self,
            boot_minutes=scheduler.worker_bootup_delay_minutes or self.boot_minutes,
            instantiation_minutes=scheduler.lablet_instantiation_delay_minutes or self.instantiation_minutes,
            poll_seconds=monitoring.metrics_poll_interval_seconds or self.poll_seconds,
            system_threshold_minutes=system.spec.idle.threshold_minutes,
        )


DEFAULT_CRITERIA: Final = IdleCriteria()


async def detect_idle(
    writer: Writer, ref: WorkerRef, usual: IdleCriteria, promises: Promises | None = None
) -> IdleVerdict:
    """Judge a worker, store the verdict if it says anything new, and warn once before a pause.

    `promises` knows which seat of a pool the worker fills, and what is booked on that seat.
    """

    async def attempt() -> IdleVerdict:
        record = await writer.require(ref)
        worker, now = record.resource, writer.clock.now()
        pools, measured = POOLS_CHANGED + worker.metadata.namespace, telemetry_key(ref_of(worker))
        settings, changed, telemetry = await writer.store.get_all(SETTINGS_KEY, pools, measured)
        by = usual.with_system_settings(decode_settings(settings))
        pools_at = changed.revision if changed else ABSENT
        seat, unchanged = await _read_seat_use(writer.store, promises, worker, by.horizon, pools_at)
        verdict = judge_worker(
            worker,
            decode_telemetry(telemetry),
            await sessions_on(writer.store, worker.metadata.uid),
            now,
            horizon=by.horizon,
            stale_after=by.stale_after,
            threshold=by.threshold(worker),
            seat=seat,
        )
        if not is_significant(verdict, worker.status.idle):
            return verdict
        after = msgspec.structs.replace(worker, status=msgspec.structs.replace(worker.status, idle=verdict))
        events = [idle_warning_event(worker, verdict, now=now)] if is_first_warning(verdict, worker.status.idle) else []
        # At the revision that was judged: a change of the worker since then may mean that it is not idle.
        await writer.commit_edits(Edit(record, after), ops=unchanged, told=events, reported=True)
        return verdict

    return await retry_conflicts(attempt, unless=lambda _: False)


async def _read_seat_use(
    store: Store, promises: Promises | None, worker: LabWorker, horizon: timedelta, pools_at: int
) -> tuple[SeatUse | None, Sequence[Op]]:
    """Return what the worker's seat is needed for, and checks that fail if it was claimed since.

    `pools_at` is the revision that a reader must know to know the pools.
    """
    if promises is None:
        return None, ()
    calendar = promises.calendar
    await calendar.ready()
    await calendar.wait_for_revision(pools_at)
    found = calendar.pool_seat_of(worker.metadata.uid)
    if found is None:
        return None, ()
    pool, number = found
    ref = ref_of(pool)
    guards = await read_guards(store, pool_guard_key(ref))
    await calendar.wait_for_revision(guards.revision)
    claims = [held.claim for held in calendar.claims_on_seat(ref, number)]
    # The pool keeps a worker running through a gap of this length between two claims.
    soon = max(horizon, boot_lead(pool, calendar.terms) + KEEP_THROUGH_GAP)
    use = SeatUse(pool.metadata.name, number, is_kept_seat(pool, number), claims, soon)
    return use, [CheckRevision(key, revision) for key, revision in guards.seen]
