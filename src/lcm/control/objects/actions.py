"""What each action makes of an object.

Pure: an action, an object and the present moment give another object, every phase by a step of the table. An action
that finds its work done already changes nothing, so that it may be repeated.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.admission.amend import unhurried
from lcm.control.objects.records import kind_of
from lcm.control.objects.steps import moved
from lcm.control.plane.protocol import (
    Action,
    Drain,
    Extend,
    License,
    ObserveResources,
    Pause,
    R,
    Resume,
    SessionAction,
    Snooze,
    Telemetry,
    Terminate,
    Undrain,
    WorkerAction,
)
from lcm.model.base.errors import Fault, IllegalStep, Invalid, Refused
from lcm.model.base.resource import Minutes, story
from lcm.model.kinds.rules import YEARS
from lcm.model.kinds.session import SESSION, LabletSession, ObservationRequest, SessionPhase, unanswered
from lcm.model.kinds.worker import HOSTING, IdleVerdict, LabWorker, WorkerPhase
from lcm.model.kinds.worker_machine import WORKER
from lcm.system.clock import new_id

_EXTENDABLE: Final = frozenset(
    {SessionPhase.PENDING, SessionPhase.SCHEDULED, SessionPhase.INSTANTIATING, SessionPhase.RUNNING}
)
_ENDS: Final = {
    SessionPhase.PENDING: SessionPhase.TERMINATED,
    SessionPhase.SCHEDULED: SessionPhase.TERMINATED,
    SessionPhase.INSTANTIATING: SessionPhase.STOPPING,
    SessionPhase.RUNNING: SessionPhase.COLLECTING,
}
"""Where a session goes from each phase when it is to end now; from the others it is on its way already."""
_P: Final = WorkerPhase
_COMES: Final = "it does not serve yet: wait until it does, or pause it or delete it now"
_GOES: Final = "nothing is on it any more: resume it if it is to serve again, or delete it"
_UNDRAINABLE: Final = {
    **dict.fromkeys((_P.PENDING, _P.PROVISIONING_EC2, _P.EC2_READY, _P.STARTING, _P.LICENSING), _COMES),
    **dict.fromkeys((_P.UNLICENSING, _P.STOPPING, _P.STOPPED), _GOES),
    _P.TERMINATING_EC2: "its machine is being terminated: nothing is on it any more",
    _P.FAILED: "nothing is on it: delete it, or pause it so that it stays off",
}
"""Why a worker is not drained in a phase, and what to do instead."""
_NOT_DRAINED: Final = "it is not being drained: resume it if it is to run"
_DRAINED: Final = "it is being drained: undrain it if it is to run on"
_OVER: Final = "it has ended: make another"
_LICENCE: Final = "licen"
"""Stands in every reason for which a registration fails."""


def acted(
    resource: R,
    action: Action,
    *,
    now: datetime,
    author: str,
    longest: timedelta | None = None,
    ids: Callable[[], str] = new_id,
) -> R:
    """Do an action; `longest` is how long a session may last in all, None without limit. `ids` names requests."""
    made: LabWorker | LabletSession
    match resource, action:
        case LabWorker(), Drain() | Undrain() | Pause() | Resume() | Snooze() | License() | Telemetry():
            made = _worker(resource, action, now, author)
        case LabletSession(), Extend(minutes=minutes):
            made = _extended(resource, _span("minutes", minutes), now, longest)
        case LabletSession(), Terminate(reason=reason):
            made = terminated(resource, now=now, author=author, reason=reason or "ended by request")
        case LabletSession(), ObserveResources():
            made = _observable(resource, now, author, ids)
        case _:
            raise Invalid(Fault("action", f"a {resource.kind} has no action {_name(action)}", "see its kind's actions"))
    assert isinstance(made, type(resource))
    return made


def drained(worker: LabWorker, span: timedelta | None, *, now: datetime, author: str, reason: str) -> LabWorker:
    """Begin a drain; one that is under way only gets another deadline, if that is asked for."""
    if worker.status.phase is WorkerPhase.DRAINING:
        if span is None:
            return worker
        return _status(worker, drain_deadline_at=now + span)
    deadline = now + (span or timedelta(minutes=worker.spec.drain_deadline_minutes))
    return moved(worker, WorkerPhase.DRAINING, author=author, now=now, reason=reason, drain_deadline_at=deadline)


def terminated(session: LabletSession, *, now: datetime, author: str, reason: str) -> LabletSession:
    """End a session now, by way of collecting and removing what is on a worker."""
    phase, outcome = session.status.phase, SessionPhase.TERMINATED
    if phase in _ENDS:
        target = _ENDS[phase]
        return moved(session, target, author=author, now=now, reason=reason, outcome=outcome, outcome_reason=reason)
    if phase not in SESSION.final and session.status.outcome is SessionPhase.FAILED:
        # A session whose start failed is tried elsewhere, which nobody wants any more.
        return _status(session, outcome=outcome, outcome_reason=reason)
    return session


def _worker(worker: LabWorker, action: WorkerAction, now: datetime, author: str) -> LabWorker:
    _refuse(worker, action)
    made = worker
    match action:
        case Drain(deadline_minutes=minutes):
            span = _span("deadline_minutes", minutes) if minutes is not None else None
            made = wanting(drained(worker, span, now=now, author=author, reason="drain asked for"), "stopped")
        case Undrain():
            made = wanting(_undrained(worker, now, author), "running")
        case Pause():
            made = wanting(worker, "stopped")
        case Resume():
            made = wanting(worker, "running")
        case Snooze(minutes=minutes):
            usual = worker.spec.idle.snooze_minutes
            made = _snoozed(worker, _span("minutes", usual if minutes is None else minutes), now)
        case License():
            made = _relicensed(worker, action, now)
        case Telemetry(enabled=enabled):
            made = _with_cml(worker, telemetry=enabled)
    return made


def _refuse(worker: LabWorker, action: WorkerAction) -> None:
    """Raise what is to be done instead of an action that cannot be done."""
    if worker.status.phase in WORKER.final:
        raise _illegal(worker, action, _OVER)
    if worker.metadata.deletion_timestamp is not None and not isinstance(action, Drain | Pause):
        raise Refused(f"{worker.metadata.name} is being deleted")
    if (instead := _instead(worker.status.phase, action)) is not None:
        raise _illegal(worker, action, instead)


def _instead(phase: WorkerPhase, action: WorkerAction) -> str | None:
    """Say why an action cannot be done in a phase, and what can; None if it can."""
    if isinstance(action, Drain):
        return _UNDRAINABLE.get(phase)
    if isinstance(action, Undrain):
        return _NOT_DRAINED if phase not in HOSTING and phase is not _P.DRAINING else None
    return _DRAINED if isinstance(action, Resume) and phase is _P.DRAINING else None


def _undrained(worker: LabWorker, now: datetime, author: str) -> LabWorker:
    if worker.status.phase in HOSTING:
        return worker
    reason = "the drain was cancelled"
    return moved(worker, _before_drain(worker), author=author, now=now, reason=reason, drain_deadline_at=None)


def _before_drain(worker: LabWorker) -> WorkerPhase:
    """Find the phase from which a drain began; the story may be longer than what is kept of it."""
    for line in reversed(worker.status.history):
        if line.phase != WorkerPhase.DRAINING:
            phase = WorkerPhase(line.phase)
            return phase if phase in HOSTING else WorkerPhase.READY
    return WorkerPhase.READY if worker.status.cml.licensed else WorkerPhase.READY_UNLICENSED


def wanting(worker: LabWorker, state: str) -> LabWorker:
    """Want a worker running or stopped; the very same if it is wanted so already."""
    return _respecified(worker, {"wanted_state": state})


def _relicensed(worker: LabWorker, action: License, now: datetime) -> LabWorker:
    """Say what to register with from now on, and forget that a registration failed before."""
    if action.license_token is None and worker.spec.cml.license_token is None:
        remedy = "say where one is, such as env:CML_LICENSE_TOKEN"
        raise Invalid(Fault("license_token", f"{worker.metadata.name} has no licence token", remedy))
    given = {"license_token": action.license_token, "license_flavour": action.license_flavour}
    made = _with_cml(worker, **{name: value for name, value in given.items() if value is not None})
    status = worker.status
    waits = status.phase is WorkerPhase.READY_UNLICENSED and status.retry_at is not None
    if not waits and _LICENCE not in status.failure.lower():
        return made
    at = now if status.phase is WorkerPhase.FAILED else None
    return _status(made, failure="", last_error="", retry_count=0, retry_at=at)


def _with_cml(worker: LabWorker, **fields: object) -> LabWorker:
    changes: dict[str, Any] = dict(fields)
    return _respecified(worker, {"cml": msgspec.structs.replace(worker.spec.cml, **changes)})


def _respecified(worker: LabWorker, changes: dict[str, Any]) -> LabWorker:
    spec = msgspec.structs.replace(worker.spec, **changes)
    if spec == worker.spec:
        return worker
    metadata = msgspec.structs.replace(worker.metadata, generation=worker.metadata.generation + 1)
    return unhurried(worker, msgspec.structs.replace(worker, metadata=metadata, spec=spec))


def _snoozed(worker: LabWorker, span: timedelta, now: datetime) -> LabWorker:
    until = now + span
    verdict = worker.status.idle or IdleVerdict(idle=False, reason="snoozed", judged_at=now)
    pause_at = None if verdict.pause_at is None else max(verdict.pause_at, until)
    return _status(worker, idle=msgspec.structs.replace(verdict, snoozed_until=until, pause_at=pause_at))


def _extended(session: LabletSession, span: timedelta, now: datetime, longest: timedelta | None) -> LabletSession:
    status = session.status
    if status.phase not in _EXTENDABLE:
        raise _illegal(session, Extend(minutes=1), "it ends or has ended: book another")
    if session.metadata.deletion_timestamp is not None:
        raise Refused(f"{session.metadata.name} is being deleted")
    if status.ends_at is None:
        raise Refused(f"{session.metadata.name} has no end yet: its time begins when it runs")
    end = _later(status.ends_at, span)
    _hold_to(session, end, now, longest)
    return _status(
        session,
        ends_at=end,
        expires_at=end if session.spec.timeslot_end is not None else status.expires_at,
        claim=msgspec.structs.replace(status.claim, end=_later(status.claim.end, span)) if status.claim else None,
    )


def _observable(session: LabletSession, now: datetime, author: str, ids: Callable[[], str]) -> LabletSession:
    """Ask for an observation; one that was asked for, and may still be answered, is enough."""
    if session.status.phase is not SessionPhase.RUNNING:
        raise _illegal(session, ObserveResources(), "only what runs can be observed")
    asked = session.status.observation_request
    if asked is not None and not unanswered(asked, now):
        return session
    request = ObservationRequest(id=ids(), requested_at=now, requested_by=author)
    return _status(session, observation_request=request, observation_error="")


def _span(field: str, minutes: int) -> timedelta:
    try:
        return timedelta(minutes=msgspec.convert(minutes, Minutes))
    except msgspec.ValidationError as error:
        raise Invalid(Fault(field, f"{minutes} is no such number", "use whole minutes, at most a year")) from error


def _later(moment: datetime, span: timedelta) -> datetime:
    """Add to a moment, within the years that slots are held to."""
    if moment.year > YEARS[1] or (moment + span).year > YEARS[1]:
        raise Invalid(Fault("minutes", "too far away", f"use so many that it ends before the year {YEARS[1] + 1}"))
    return moment + span


def _hold_to(session: LabletSession, end: datetime, now: datetime, longest: timedelta | None) -> None:
    if end <= now:
        raise Refused(f"{session.metadata.name} would be over by then all the same; ask for more minutes")
    start = session.spec.timeslot_start or _ran_from(session)
    if longest is not None and start is not None and end - start > longest:
        most = longest // timedelta(minutes=1)
        raise Refused(f"{session.metadata.name} would last longer than the {most} minutes its definition allows")


def _ran_from(session: LabletSession) -> datetime | None:
    lines = [line.at for line in session.status.history if line.phase == SessionPhase.RUNNING]
    return lines[-1] if lines else None


def _status(resource: R, **fields: object) -> R:
    changes: dict[str, Any] = dict(fields)
    return msgspec.structs.replace(resource, status=msgspec.structs.replace(resource.status, **changes))


def _illegal(resource: LabWorker | LabletSession, action: WorkerAction | SessionAction, instead: str) -> IllegalStep:
    told, name = story(resource.status.history), resource.metadata.name
    message = f"{kind_of(resource).name} {name} is {resource.status.phase}: no {_name(action)}; {instead}"
    return IllegalStep(f"{message}\nits story:\n{told}" if told else message)


def _name(action: Action) -> str:
    return str(type(action).__struct_config__.tag)
