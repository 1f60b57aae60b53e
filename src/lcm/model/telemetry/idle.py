"""Whether a worker is idle: signals, the countdown to its pause, and the warning before it. Pure.

Called by `control.idleness` with all that the plane knows. What is not known counts as activity. The countdown's memory
is the verdict before, which is kept in the worker's status.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import ON_WORKER, LabletSession, SessionPhase
from lcm.model.kinds.worker import (
    HOSTING,
    IdleSignal,
    IdleVerdict,
    LabWorker,
    LabWorkerStatus,
    WorkerPhase,
    WorkerTelemetry,
)

SWITCHED_OFF: Final = "switched_off"
SESSIONS: Final = "sessions"
BOOKED_SOON: Final = "booked_soon"
CML_ACTIVITY: Final = "cml_activity"
FOREIGN_LABS: Final = "foreign_labs"
SNOOZED: Final = "snoozed"
POOL: Final = "pool"
_IN_VAIN: Final = (WorkerPhase.LICENSING, WorkerPhase.READY_UNLICENSED)
_COUNTED_DOWN: Final = frozenset({CML_ACTIVITY, SNOOZED})
"""What ends by itself, at a moment that is known: the warning comes before it."""
_FRESH: Final = timedelta(minutes=5)
"""How old the measurement may be on which a worker is paused."""
_AHEAD: Final = timedelta(minutes=2)
"""So far another machine's clock may be ahead; what was measured later than that says nothing about now."""


@dataclass(frozen=True, slots=True)
class SeatUse:
    """The seat of a pool that a worker fills: whether it always has one, and its claims; those that begin `soon` count.

    A worker that fills none has none.
    """

    pool: str
    number: int
    standing: bool
    claims: Sequence[Claim]
    soon: timedelta


def judge(
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
    """Judge a worker by its newest measurements, the sessions that are on it or meant for it, and what its seat is for.

    A session that begins within the `horizon` counts as there; what was measured longer ago than `stale_after` is not
    known. It is idle when nothing happened for the `threshold`. When its countdown is over it is idle only once it was
    measured after that: whoever answered the warning by working on it was seen.
    """
    until = _snoozed_until(worker, now)
    if worker.status.phase not in HOSTING:
        reason = f"a worker is judged while it serves, not while it is {worker.status.phase}"
        return IdleVerdict(idle=False, reason=reason, judged_at=now, snoozed_until=until)
    since = last_activity(worker, telemetry)
    signals = (
        _switched_off(worker),
        _sessions(sessions),
        _booked_soon(sessions, now + horizon),
        _cml_activity(telemetry, since, now, stale_after, threshold),
        _foreign_labs(telemetry, sessions, now, stale_after),
        _snoozed(until),
        *([_pool(seat, now)] if seat else []),
    )
    busy = [one for one in signals if one.active is not Truth.FALSE]
    verdict = IdleVerdict(
        idle=not busy,
        reason="; ".join(one.detail for one in busy),
        judged_at=now,
        signals=signals,
        snoozed_until=until,
    )
    if since is None or any(one.name not in _COUNTED_DOWN or one.active is Truth.UNKNOWN for one in busy):
        return verdict
    counted = _counted_down(verdict, worker, since, threshold)
    return counted if _measured_since(counted.pause_at, telemetry, now) else _awaiting(counted)


def last_activity(worker: LabWorker, telemetry: WorkerTelemetry | None) -> datetime | None:
    """Say when anything happened on a worker last: in CML, or to the worker itself; None when that is not known."""
    status = worker.status
    moments = (
        telemetry.last_activity_at if telemetry else None,
        status.ready_at,
        _stepped_at(status),
    )
    return max((one for one in moments if one is not None), default=None)


def _stepped_at(status: LabWorkerStatus) -> datetime | None:
    """Say when its phase last changed: that we try in vain to get a licence is nothing that happened."""
    moment, before = None, ""
    for change in status.history:
        if not (change.phase == WorkerPhase.LICENSING or (before, change.phase) == _IN_VAIN):
            moment = change.at
        before = change.phase
    return moment


def is_warning(verdict: IdleVerdict, kept: IdleVerdict | None) -> bool:
    """Tell whether a verdict is the first of its countdown."""
    return verdict.warned_at is not None and (kept is None or verdict.warned_at != kept.warned_at)


def says_more(verdict: IdleVerdict, kept: IdleVerdict | None) -> bool:
    """Tell whether a verdict says more than the one kept before: what differs in its wording alone does not.

    One on which a worker is about to be paused does: whoever pauses it wants to know that it is fresh.
    """
    if verdict.idle and verdict.pause_at is not None and verdict.pause_at <= verdict.judged_at:
        return True
    return _gist(verdict) != (_gist(kept) if kept else _NOTHING)


def _counted_down(verdict: IdleVerdict, worker: LabWorker, since: datetime, threshold: timedelta) -> IdleVerdict:
    """Warn when the time has come, and say when the worker is to be paused: never without the time of a warning."""
    warning = min(timedelta(minutes=worker.spec.idle.warn_minutes), threshold)
    kept = worker.status.idle
    snoozed = kept.snoozed_until if kept else None
    due = max(since + threshold, snoozed or since)
    if verdict.judged_at < due - warning:
        return verdict
    # A warning from before the last activity, or before a snooze, was of another countdown.
    standing = kept.warned_at if kept and kept.warned_at and kept.warned_at >= due - warning else None
    warned = standing or verdict.judged_at
    return msgspec.structs.replace(
        verdict,
        reason=f"nothing happened since {_told(since)}",
        idle_since=since,
        warned_at=warned,
        pause_at=max(due, warned + warning),
    )


def _measured_since(pause_at: datetime | None, telemetry: WorkerTelemetry | None, now: datetime) -> bool:
    if pause_at is None or now < pause_at:
        return True
    moments = (telemetry.activity_at, telemetry.cml_at) if telemetry else (None,)
    return all(one is not None and one >= max(pause_at, now - _FRESH) for one in moments)


def _awaiting(verdict: IdleVerdict) -> IdleVerdict:
    reason = "it is not known yet whether somebody worked on it before its countdown was over"
    return msgspec.structs.replace(verdict, idle=False, reason=reason)


def _gist(verdict: IdleVerdict) -> tuple[object, ...]:
    seen = tuple((one.name, one.active) for one in verdict.signals)
    return verdict.idle, verdict.idle_since, verdict.warned_at, verdict.pause_at, verdict.snoozed_until, seen


_NOTHING: Final = (False, None, None, None, None, ())


def _snoozed_until(worker: LabWorker, now: datetime) -> datetime | None:
    until = worker.status.idle.snoozed_until if worker.status.idle else None
    return until if until is not None and until > now else None


def _switched_off(worker: LabWorker) -> IdleSignal:
    if worker.spec.idle.enabled:
        return _quiet(SWITCHED_OFF, "it may be paused")
    return _busy(SWITCHED_OFF, "its spec says that it is not to be paused")


def _sessions(sessions: Sequence[LabletSession]) -> IdleSignal:
    count = sum(one.status.phase in ON_WORKER or _at_once(one) for one in sessions)
    if not count:
        return _quiet(SESSIONS, "no session is on it")
    return _busy(SESSIONS, f"{count} {'session is' if count == 1 else 'sessions are'} on it")


def _booked_soon(sessions: Sequence[LabletSession], horizon: datetime) -> IdleSignal:
    first = min(_starts(sessions), default=None)
    if first is None or first > horizon:
        return _quiet(BOOKED_SOON, "nothing is booked on it soon" if first is None else f"booked for {_told(first)}")
    return _busy(BOOKED_SOON, f"a session on it begins at {_told(first)}, which is sooner than it would be back")


def _cml_activity(
    telemetry: WorkerTelemetry | None,
    since: datetime | None,
    now: datetime,
    stale_after: timedelta,
    threshold: timedelta,
) -> IdleSignal:
    if telemetry is None or since is None or _stale(telemetry.activity_at, now, stale_after):
        return _unknown(CML_ACTIVITY, "it is not known whether somebody works on it")
    if now < since + threshold:
        return _busy(CML_ACTIVITY, f"something happened on it at {_told(since)}")
    return _quiet(CML_ACTIVITY, f"nothing happened on it since {_told(since)}")


def _foreign_labs(
    telemetry: WorkerTelemetry | None, sessions: Sequence[LabletSession], now: datetime, stale_after: timedelta
) -> IdleSignal:
    if telemetry is None or telemetry.active_labs_count is None or _stale(telemetry.cml_at, now, stale_after):
        return _unknown(FOREIGN_LABS, "it is not known whether labs run on it")
    ours = sum(one.status.phase in ON_WORKER and one.status.cml_lab_id is not None for one in sessions)
    foreign = telemetry.active_labs_count - ours
    if foreign <= 0:
        return _quiet(FOREIGN_LABS, "no lab but ours runs on it")
    return _busy(FOREIGN_LABS, f"{foreign} {'lab runs' if foreign == 1 else 'labs run'} on it that no session made")


def _snoozed(until: datetime | None) -> IdleSignal:
    return (
        _busy(SNOOZED, f"somebody put it off until {_told(until)}") if until else _quiet(SNOOZED, "nobody put it off")
    )


def _pool(seat: SeatUse, now: datetime) -> IdleSignal:
    told = f"seat {seat.number} of {seat.pool}"
    if seat.standing:
        return _busy(POOL, f"{told} always has a worker")
    first = min((one for one in seat.claims if one.end > now), key=lambda one: one.start, default=None)
    if first is None:
        return _quiet(POOL, f"nothing is booked on {told}")
    signal = _busy if first.start <= now + seat.soon else _quiet
    return signal(POOL, f"{told} is booked from {_told(first.start)} on")


def _at_once(session: LabletSession) -> bool:
    """Tell whether it is about to come, at no moment in particular."""
    return session.status.phase is SessionPhase.SCHEDULED and _start(session) is None


def _starts(sessions: Sequence[LabletSession]) -> Iterator[datetime]:
    for session in sessions:
        if session.status.phase is SessionPhase.SCHEDULED and (start := _start(session)) is not None:
            yield start


def _start(session: LabletSession) -> datetime | None:
    claim = session.status.claim
    return session.spec.timeslot_start or (claim.start if claim else None)


def _stale(moment: datetime | None, now: datetime, after: timedelta) -> bool:
    """Tell whether a measurement says nothing about now; one of the future is from before a clock was set back."""
    return moment is None or not now - after <= moment <= now + _AHEAD


def _told(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _busy(name: str, detail: str) -> IdleSignal:
    return IdleSignal(name=name, active=Truth.TRUE, detail=detail)


def _quiet(name: str, detail: str) -> IdleSignal:
    return IdleSignal(name=name, active=Truth.FALSE, detail=detail)


def _unknown(name: str, detail: str) -> IdleSignal:
    return IdleSignal(name=name, active=Truth.UNKNOWN, detail=detail)
