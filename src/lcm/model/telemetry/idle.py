"""Whether a worker is idle: the signals, the countdown to its pause, and the warning before it. Pure.

Called by `control.telemetry.idleness` with everything that the control plane knows. What is unknown counts as activity.
The countdown is remembered in the previous verdict, which is stored in the worker's status.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession, SessionPhase
from lcm.model.kinds.worker import HOSTING_PHASES, IdleSignal, IdleVerdict, LabWorker, WorkerPhase, WorkerTelemetry

SWITCHED_OFF: Final = "switched_off"
SESSIONS: Final = "sessions"
BOOKED_SOON: Final = "booked_soon"
CML_ACTIVITY: Final = "cml_activity"
FOREIGN_LABS: Final = "foreign_labs"
SNOOZED: Final = "snoozed"
POOL: Final = "pool"
_LICENSING_FAILED: Final = (WorkerPhase.LICENSING, WorkerPhase.READY_UNLICENSED)
_TEMPORARY_SIGNALS: Final = frozenset({CML_ACTIVITY, SNOOZED})
"""Signals that end by themselves at a known moment; the warning comes before it."""
_MAX_MEASUREMENT_AGE: Final = timedelta(minutes=5)
"""How old the measurement may be on which a worker is paused."""
_MAX_CLOCK_SKEW: Final = timedelta(minutes=2)
"""How far another machine's clock may be ahead. A later measurement says nothing about now."""


@dataclass(frozen=True, slots=True)
class SeatUse:
    """The seat of a pool that a worker fills, and its claims.

    `standing` means that the seat always has a worker. Claims that begin within `soon` count as activity. A
    worker that fills no seat has no SeatUse.
    """

    pool: str
    number: int
    standing: bool
    claims: Sequence[Claim]
    soon: timedelta


def judge_worker(
    worker: LabWorker,
    telemetry: WorkerTelemetry | None,
    sessions: Sequence[LabletSession],
    now: datetime,
    *,
    horizon: timedelta,
    stale_after: timedelta,
    threshold: timedelta,
    seat: SeatUse | None = None,
) -> IdleVerdict:
    """Return the verdict on a worker from its latest measurements, its sessions and the use of its seat.

    A session that begins within the `horizon` counts as present. A measurement older than `stale_after`
    counts as unknown. The worker is idle when there was no activity for the `threshold`. Once its countdown
    is over it is idle only if it was measured after that, so that somebody who answered the warning by
    working on it is noticed.
    """
    until = worker.status.idle.snoozed_until if worker.status.idle else None
    until = until if until is not None and until > now else None
    if worker.status.phase not in HOSTING_PHASES:
        reason = f"a worker is judged while it serves, not while it is {worker.status.phase}"
        return IdleVerdict(idle=False, reason=reason, judged_at=now, snoozed_until=until)
    since = find_last_activity(worker, telemetry)
    signals = (
        _switched_off_signal(worker),
        _sessions_signal(sessions),
        _booked_soon_signal(sessions, now + horizon),
        _cml_activity_signal(telemetry, since, now, stale_after, threshold),
        _foreign_labs_signal(telemetry, sessions, now, stale_after),
        _snooze_signal(until),
        *([_pool_signal(seat, now)] if seat else []),
    )
    busy = [one for one in signals if one.active is not Truth.FALSE]
    verdict = IdleVerdict(
        idle=not busy,
        reason="; ".join(one.detail for one in busy),
        judged_at=now,
        signals=signals,
        snoozed_until=until,
    )
    if since is None or any(one.name not in _TEMPORARY_SIGNALS or one.active is Truth.UNKNOWN for one in busy):
        return verdict
    counted = _with_countdown(verdict, worker, since, threshold)
    return _await_measurement(counted, telemetry)


def find_last_activity(worker: LabWorker, telemetry: WorkerTelemetry | None) -> datetime | None:
    """Return the time of the last activity, in CML or of the worker itself; None when unknown."""
    changed_at, before = None, ""
    for change in worker.status.history:
        # Failed attempts to get a licence do not count as activity.
        if not (change.phase == WorkerPhase.LICENSING or (before, change.phase) == _LICENSING_FAILED):
            changed_at = change.at
        before = change.phase
    moments = (telemetry.last_activity_at if telemetry else None, worker.status.ready_at, changed_at)
    return max((one for one in moments if one is not None), default=None)


def is_first_warning(verdict: IdleVerdict, kept: IdleVerdict | None) -> bool:
    """Return True if a verdict is the first of its countdown."""
    return verdict.warned_at is not None and (kept is None or verdict.warned_at != kept.warned_at)


def is_significant(verdict: IdleVerdict, kept: IdleVerdict | None) -> bool:
    """Return True if a verdict differs from the stored one in more than its wording.

    Always True for one on which a worker is about to be paused: whoever pauses it must know that it is fresh.
    """
    if verdict.idle and verdict.pause_at is not None and verdict.pause_at <= verdict.judged_at:
        return True
    return _significant_parts(verdict) != (_significant_parts(kept) if kept else _NO_PARTS)


def _with_countdown(verdict: IdleVerdict, worker: LabWorker, since: datetime, threshold: timedelta) -> IdleVerdict:
    """Add the warning when it is due, and the time of the pause: never sooner than the warning time allows."""
    warning = min(timedelta(minutes=worker.spec.idle.warn_minutes), threshold)
    kept = worker.status.idle
    snoozed = kept.snoozed_until if kept else None
    due = max(since + threshold, snoozed or since)
    if verdict.judged_at < due - warning:
        return verdict
    # A warning from before the last activity or a snooze belongs to an earlier countdown.
    standing = kept.warned_at if kept and kept.warned_at and kept.warned_at >= due - warning else None
    warned = standing or verdict.judged_at
    return msgspec.structs.replace(
        verdict,
        reason=f"nothing happened since {_format_moment(since)}",
        idle_since=since,
        warned_at=warned,
        pause_at=max(due, warned + warning),
    )


def _await_measurement(verdict: IdleVerdict, telemetry: WorkerTelemetry | None) -> IdleVerdict:
    """Return a verdict that does not let a worker be paused before it was measured after its countdown."""
    pause_at, now = verdict.pause_at, verdict.judged_at
    if pause_at is None or now < pause_at:
        return verdict
    moments = (telemetry.activity_at, telemetry.cml_at) if telemetry else (None,)
    if all(one is not None and one >= max(pause_at, now - _MAX_MEASUREMENT_AGE) for one in moments):
        return verdict
    reason = "it is not known yet whether somebody worked on it before its countdown was over"
    return msgspec.structs.replace(verdict, idle=False, reason=reason)


def _significant_parts(verdict: IdleVerdict) -> tuple[object, ...]:
    seen = tuple((one.name, one.active) for one in verdict.signals)
    return verdict.idle, verdict.idle_since, verdict.warned_at, verdict.pause_at, verdict.snoozed_until, seen


_NO_PARTS: Final = (False, None, None, None, None, ())


def _switched_off_signal(worker: LabWorker) -> IdleSignal:
    if worker.spec.idle.enabled:
        return _quiet_signal(SWITCHED_OFF, "it may be paused")
    return _active_signal(SWITCHED_OFF, "its spec says that it is not to be paused")


def _sessions_signal(sessions: Sequence[LabletSession]) -> IdleSignal:
    sessions = [one for one in sessions if not one.spec.prebuilt]  # nobody is on them, and they end before a pause
    waiting = [one for one in sessions if one.status.phase is SessionPhase.SCHEDULED and _start_of(one) is None]
    if not waiting and not any(one.status.phase in ON_WORKER_PHASES for one in sessions):
        return _quiet_signal(SESSIONS, "no session is on it")
    # No number: a verdict is not written again because one more session came, and would soon be wrong.
    return _active_signal(SESSIONS, "sessions are on it")


def _booked_soon_signal(sessions: Sequence[LabletSession], horizon: datetime) -> IdleSignal:
    starts = [_start_of(one) for one in sessions if one.status.phase is SessionPhase.SCHEDULED]
    first = min((start for start in starts if start is not None), default=None)
    if first is None or first > horizon:
        return _quiet_signal(
            BOOKED_SOON, "nothing is booked on it soon" if first is None else f"booked for {_format_moment(first)}"
        )
    return _active_signal(
        BOOKED_SOON, f"a session on it begins at {_format_moment(first)}, which is sooner than it would be back"
    )


def _cml_activity_signal(
    telemetry: WorkerTelemetry | None,
    since: datetime | None,
    now: datetime,
    stale_after: timedelta,
    threshold: timedelta,
) -> IdleSignal:
    if telemetry is None or since is None or _is_stale(telemetry.activity_at, now, stale_after):
        return IdleSignal(
            name=CML_ACTIVITY, active=Truth.UNKNOWN, detail="it is not known whether somebody works on it"
        )
    if now < since + threshold:
        return _active_signal(CML_ACTIVITY, f"something happened on it at {_format_moment(since)}")
    return _quiet_signal(CML_ACTIVITY, f"nothing happened on it since {_format_moment(since)}")


def _foreign_labs_signal(
    telemetry: WorkerTelemetry | None, sessions: Sequence[LabletSession], now: datetime, stale_after: timedelta
) -> IdleSignal:
    if telemetry is None or telemetry.active_labs_count is None or _is_stale(telemetry.cml_at, now, stale_after):
        return IdleSignal(name=FOREIGN_LABS, active=Truth.UNKNOWN, detail="it is not known whether labs run on it")
    ours = sum(one.status.phase in ON_WORKER_PHASES and one.status.cml_lab_id is not None for one in sessions)
    foreign = telemetry.active_labs_count - ours
    if foreign <= 0:
        return _quiet_signal(FOREIGN_LABS, "no lab but ours runs on it")
    return _active_signal(FOREIGN_LABS, "labs run on it that no session made")


def _snooze_signal(until: datetime | None) -> IdleSignal:
    return (
        _active_signal(SNOOZED, f"somebody snoozed it until {_format_moment(until)}")
        if until
        else _quiet_signal(SNOOZED, "nobody snoozed it")
    )


def _pool_signal(seat: SeatUse, now: datetime) -> IdleSignal:
    told = f"planned worker {seat.number} of {seat.pool}"
    if seat.standing:
        return _active_signal(POOL, f"{told} always runs")
    first = min((one for one in seat.claims if one.end > now), key=lambda one: one.start, default=None)
    if first is None:
        return _quiet_signal(POOL, f"nothing is booked on {told}")
    signal = _active_signal if first.start <= now + seat.soon else _quiet_signal
    return signal(POOL, f"{told} is booked from {_format_moment(first.start)} on")


def _start_of(session: LabletSession) -> datetime | None:
    claim = session.status.claim
    return session.spec.timeslot_start or (claim.start if claim else None)


def _is_stale(moment: datetime | None, now: datetime, after: timedelta) -> bool:
    """Return True if a measurement says nothing about now.

    One from the future was made before a clock was set back.
    """
    return moment is None or not now - after <= moment <= now + _MAX_CLOCK_SKEW


def _format_moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _active_signal(name: str, detail: str) -> IdleSignal:
    return IdleSignal(name=name, active=Truth.TRUE, detail=detail)


def _quiet_signal(name: str, detail: str) -> IdleSignal:
    return IdleSignal(name=name, active=Truth.FALSE, detail=detail)
