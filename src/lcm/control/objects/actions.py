"""What each action makes of a worker or a session. Called by `control.plane.local` and `control.objects.deletion`.

Pure: an action, an object and the present moment give another object; every new phase is a step of the table. An action
whose work is done already changes nothing, so that it may be repeated.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.admission.amend import pool_fault, without_retry
from lcm.control.objects.records import kind_of
from lcm.control.objects.steps import take_plane_step
from lcm.control.plane.protocol import (
    Action,
    Drain,
    Extend,
    License,
    ObserveResources,
    Pause,
    R,
    RemoveLab,
    Resume,
    Save,
    Snooze,
    Telemetry,
    Terminate,
    Undrain,
    WorkerAction,
)
from lcm.model.base.errors import Fault, IllegalStep, Invalid, Refused
from lcm.model.base.resource import Minutes, format_history
from lcm.model.kinds.rules import ALLOWED_YEARS
from lcm.model.kinds.saved_lab import (
    ObservationRequest,
    SaveRequest,
    check_save_name,
    file_of_save,
    has_timed_out,
    save_of_file,
)
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase, is_cml_type
from lcm.model.kinds.worker import HOSTING_PHASES, IdleVerdict, LabWorker, WorkerPhase
from lcm.model.kinds.worker_machine import WORKER_MACHINE
from lcm.system.clock import new_id

_EXTENDABLE: Final = frozenset(
    {SessionPhase.PENDING, SessionPhase.SCHEDULED, SessionPhase.INSTANTIATING, SessionPhase.RUNNING}
)
_END_PHASES: Final = {
    SessionPhase.PENDING: SessionPhase.TERMINATED,
    SessionPhase.SCHEDULED: SessionPhase.TERMINATED,
    SessionPhase.INSTANTIATING: SessionPhase.STOPPING,
    SessionPhase.RUNNING: SessionPhase.COLLECTING,
}
"""The phase that follows each phase when a session is to end now; from the others it is ending already."""
_P: Final = WorkerPhase
_NOT_SERVING_YET: Final = "it does not serve yet: wait until it does, or pause it or delete it now"
_NO_LONGER_SERVING: Final = "nothing is on it any more: resume it to use it again, or delete it"
_UNDRAINABLE: Final = {
    **dict.fromkeys((_P.PENDING, _P.PROVISIONING_EC2, _P.EC2_READY, _P.STARTING, _P.LICENSING), _NOT_SERVING_YET),
    **dict.fromkeys((_P.UNLICENSING, _P.STOPPING, _P.STOPPED), _NO_LONGER_SERVING),
    _P.TERMINATING_EC2: "its machine is being terminated: nothing is on it any more",
    _P.FAILED: "nothing is on it: delete it, or pause it so that it stays off",
}
"""Why a worker cannot be drained in a phase, and what to do instead."""
_NOT_DRAINED: Final = "it is not being drained: resume it to run it"
_DRAINED: Final = "it is being drained: undrain it to keep it running"
_ENDED: Final = "it has ended: make another"
_LICENCE_STEM: Final = "licen"
"""Occurs in every reason for which a registration fails."""


def perform_action(
    resource: R,
    action: Action,
    *,
    now: datetime,
    author: str,
    longest: timedelta | None = None,
    ids: Callable[[], str] = new_id,
) -> R:
    """Perform an action. `longest` limits the whole duration of a session, None is no limit; `ids` names requests."""
    made: LabWorker | LabletSession
    match resource, action:
        case LabWorker(), Drain() | Undrain() | Pause() | Resume() | Snooze() | License() | Telemetry() | RemoveLab():
            made = _perform_worker_action(resource, action, now, author)
        case LabletSession(), Extend(minutes=minutes, occurrence=None, onward=False):
            made = _extend(resource, _to_span("minutes", minutes), now, longest)
        case LabletSession(), Terminate(reason=reason):
            made = terminate_session(resource, now=now, author=author, reason=reason or "ended by request")
        case LabletSession(), ObserveResources():
            made = _request_observation(resource, now, author, ids)
        case LabletSession(), Extend():
            raise Invalid(Fault("occurrence", "a session has none", "leave it out, or extend its reservation"))
        case LabletSession(), Save(name=name):
            made = _request_save(resource, name, now, author, ids)
        case _:
            raise Invalid(
                Fault("action", f"a {resource.kind} has no action {_action_name(action)}", "use one of its actions")
            )
    assert isinstance(made, type(resource))
    return made


def begin_drain(worker: LabWorker, span: timedelta | None, *, now: datetime, author: str, reason: str) -> LabWorker:
    """Begin a drain. One that is under way only gets a new deadline, if `span` is given."""
    if worker.status.phase is WorkerPhase.DRAINING:
        if span is None:
            return worker
        return _with_status(worker, drain_deadline_at=now + span)
    deadline = now + (span or timedelta(minutes=worker.spec.drain_deadline_minutes))
    return take_plane_step(
        worker, WorkerPhase.DRAINING, author=author, now=now, reason=reason, drain_deadline_at=deadline
    )


def terminate_session(session: LabletSession, *, now: datetime, author: str, reason: str) -> LabletSession:
    """End a session now, by way of collecting and removing what is on a worker."""
    phase, outcome = session.status.phase, SessionPhase.TERMINATED
    if phase in _END_PHASES:
        target = _END_PHASES[phase]
        return take_plane_step(
            session, target, author=author, now=now, reason=reason, outcome=outcome, outcome_reason=reason
        )
    if phase not in SESSION_MACHINE.final and session.status.outcome is SessionPhase.FAILED:
        # A session whose start failed would be tried elsewhere; nobody wants that any more.
        return _with_status(session, outcome=outcome, outcome_reason=reason)
    return session


def _perform_worker_action(worker: LabWorker, action: WorkerAction, now: datetime, author: str) -> LabWorker:
    _refuse_impossible(worker, action)
    made = worker
    match action:
        case Drain(deadline_minutes=minutes):
            span = _to_span("deadline_minutes", minutes) if minutes is not None else None
            made = with_wanted_state(
                begin_drain(worker, span, now=now, author=author, reason="drain requested"), "stopped"
            )
        case Undrain():
            made = with_wanted_state(_cancel_drain(worker, now, author), "running")
        case Pause():
            made = with_wanted_state(worker, "stopped")
        case Resume():
            made = with_wanted_state(worker, "running")
        case Snooze(minutes=minutes):
            usual = worker.spec.idle.snooze_minutes
            made = _snooze(worker, _to_span("minutes", usual if minutes is None else minutes), now)
        case License():
            made = _renew_licence(worker, action, now)
        case Telemetry(enabled=enabled):
            made = _with_cml(worker, telemetry=enabled)
        case RemoveLab(lab_id=lab_id):
            made = _request_lab_removal(worker, lab_id)
    return made


def _refuse_impossible(worker: LabWorker, action: WorkerAction) -> None:
    """Raise IllegalStep or Refused, with the remedy, for an action that cannot be performed."""
    if worker.status.phase in WORKER_MACHINE.final:
        raise _illegal_step(worker, action, _ENDED)
    if worker.metadata.deletion_timestamp is not None and not isinstance(action, Drain | Pause | RemoveLab):
        raise Refused(f"{worker.metadata.name} is being deleted")
    if isinstance(action, Pause) and (fault := pool_fault(worker)):
        raise Refused(f"{fault.problem}; {fault.remedy}")
    if (instead := _why_not(worker.status.phase, action)) is not None:
        raise _illegal_step(worker, action, instead)


def _why_not(phase: WorkerPhase, action: WorkerAction) -> str | None:
    """Return why an action cannot be performed in a phase, and what can; None if it can."""
    if isinstance(action, Drain):
        return _UNDRAINABLE.get(phase)
    if isinstance(action, Undrain):
        return _NOT_DRAINED if phase not in HOSTING_PHASES and phase is not _P.DRAINING else None
    return _DRAINED if isinstance(action, Resume) and phase is _P.DRAINING else None


def _cancel_drain(worker: LabWorker, now: datetime, author: str) -> LabWorker:
    if worker.status.phase in HOSTING_PHASES:
        return worker
    reason = "the drain was cancelled"
    return take_plane_step(
        worker, _phase_before_drain(worker), author=author, now=now, reason=reason, drain_deadline_at=None
    )


def _phase_before_drain(worker: LabWorker) -> WorkerPhase:
    """Return the phase in which the drain began. The history that is kept may not reach back so far."""
    for line in reversed(worker.status.history):
        if line.phase != WorkerPhase.DRAINING:
            phase = WorkerPhase(line.phase)
            return phase if phase in HOSTING_PHASES else WorkerPhase.READY
    return WorkerPhase.READY if worker.status.cml.licensed else WorkerPhase.READY_UNLICENSED


def with_wanted_state(worker: LabWorker, state: str) -> LabWorker:
    """Return a worker that is wanted running or stopped; the same object if it is wanted so already."""
    return _with_spec(worker, {"wanted_state": state})


def _renew_licence(worker: LabWorker, action: License, now: datetime) -> LabWorker:
    """Set what to register with from now on, and clear an earlier failure to register."""
    if action.license_token is None and worker.spec.cml.license_token is None:
        remedy = "write where one is, such as env:CML_LICENSE_TOKEN"
        raise Invalid(Fault("license_token", f"{worker.metadata.name} has no licence token", remedy))
    given = {"license_token": action.license_token, "license_flavour": action.license_flavour}
    made = _with_cml(worker, **{name: value for name, value in given.items() if value is not None})
    status = worker.status
    waits = status.phase is WorkerPhase.READY_UNLICENSED and status.retry_at is not None
    if not waits and _LICENCE_STEM not in status.failure.lower():
        return made
    at = now if status.phase is WorkerPhase.FAILED else None
    return _with_status(made, failure="", last_error="", retry_count=0, retry_at=at)


def _with_cml(worker: LabWorker, **fields: object) -> LabWorker:
    changes: dict[str, Any] = dict(fields)
    return _with_spec(worker, {"cml": msgspec.structs.replace(worker.spec.cml, **changes)})


def _with_spec(worker: LabWorker, changes: dict[str, Any]) -> LabWorker:
    spec = msgspec.structs.replace(worker.spec, **changes)
    if spec == worker.spec:
        return worker
    metadata = msgspec.structs.replace(worker.metadata, generation=worker.metadata.generation + 1)
    return without_retry(worker, msgspec.structs.replace(worker, metadata=metadata, spec=spec))


HELD_LAB: Final = "lcm/held-lab."
"""Begins the annotation of a worker for each lab of an unknown session that is held there. The lab's id follows.

Its value is the moment since when the lab is held, or that a person wants it removed.
"""
REMOVE_HELD_LAB: Final = "remove"


def _request_lab_removal(worker: LabWorker, lab_id: str) -> LabWorker:
    """Record a person's word that a held lab may go."""
    known = worker.metadata.annotations
    if HELD_LAB + lab_id not in known:
        held = [name.removeprefix(HELD_LAB) for name in known if name.startswith(HELD_LAB)]
        remedy = f"held are {', '.join(sorted(held))}" if held else "it holds none"
        raise Refused(f"{worker.metadata.name} holds no lab {lab_id!r} of an unknown session: {remedy}")
    annotations = {**known, HELD_LAB + lab_id: REMOVE_HELD_LAB}
    return msgspec.structs.replace(worker, metadata=msgspec.structs.replace(worker.metadata, annotations=annotations))


def _snooze(worker: LabWorker, span: timedelta, now: datetime) -> LabWorker:
    until = now + span
    verdict = worker.status.idle or IdleVerdict(idle=False, reason="snoozed", judged_at=now)
    pause_at = None if verdict.pause_at is None else max(verdict.pause_at, until)
    return _with_status(worker, idle=msgspec.structs.replace(verdict, snoozed_until=until, pause_at=pause_at))


def _extend(session: LabletSession, span: timedelta, now: datetime, longest: timedelta | None) -> LabletSession:
    status = session.status
    if status.phase not in _EXTENDABLE:
        raise _illegal_step(session, Extend(minutes=1), "it ends or has ended: book another")
    if session.metadata.deletion_timestamp is not None:
        raise Refused(f"{session.metadata.name} is being deleted")
    if status.ends_at is None:
        raise Refused(f"{session.metadata.name} has no end yet: its time begins when it runs")
    end = _add_span(status.ends_at, span)
    _check_end(session, end, now, longest)
    return _with_status(
        session,
        ends_at=end,
        expires_at=end if session.spec.timeslot_end is not None else status.expires_at,
        claim=msgspec.structs.replace(status.claim, end=_add_span(status.claim.end, span)) if status.claim else None,
    )


def _request_observation(session: LabletSession, now: datetime, author: str, ids: Callable[[], str]) -> LabletSession:
    """Request an observation, unless an earlier request may still be answered."""
    if session.status.phase is not SessionPhase.RUNNING:
        raise _illegal_step(session, ObserveResources(), "only a running session can be observed")
    asked = session.status.observation_request
    if asked is not None and not has_timed_out(asked, now):
        return session
    request = ObservationRequest(id=ids(), requested_at=now, requested_by=author)
    return _with_status(session, observation_request=request, observation_error="")


def _request_save(
    session: LabletSession, name: str | None, now: datetime, author: str, ids: Callable[[], str]
) -> LabletSession:
    """Request that the lab is saved, unless that is under way. Raise Refused for a name that is taken."""
    status, known = session.status, {one.name for one in session.status.artifacts}
    if status.phase is not SessionPhase.RUNNING:
        raise _illegal_step(session, Save(), "only a running session can be saved; at its end its lab is collected")
    if not is_cml_type(session):
        raise Refused(f"{session.metadata.name} is a {session.spec.lab_instance_type} lab: only CML labs can be saved")
    pending = status.save_request if not has_timed_out(status.save_request, now) else None
    if pending is not None and name in (None, pending.name):
        return session
    if pending is not None:
        raise Refused(f"{session.metadata.name} is being saved as {pending.name}: ask again when that is done")
    if name is not None and file_of_save(name) in known:
        raise Refused(f"there is a save {name} of {session.metadata.name} already: choose another name")
    name = _next_save_name(known) if name is None else check_save_name(name)
    request = SaveRequest(id=ids(), requested_at=now, requested_by=author, name=name)
    return _with_status(session, save_request=request, save_error="")


def _next_save_name(files: Collection[str]) -> str:
    """Return the number that follows those of the saves that have no other name."""
    numbers = [int(name) for file in files if (name := save_of_file(file) or "").isdecimal()]
    return str(max(numbers, default=0) + 1)


def _to_span(field: str, minutes: int) -> timedelta:
    try:
        return timedelta(minutes=msgspec.convert(minutes, Minutes))
    except msgspec.ValidationError as error:
        raise Invalid(Fault(field, f"{minutes} is not valid", "use whole minutes, at most a year")) from error


def _add_span(moment: datetime, span: timedelta) -> datetime:
    """Add to a moment, within the years that slots are limited to."""
    if moment.year > ALLOWED_YEARS[1] or (moment + span).year > ALLOWED_YEARS[1]:
        raise Invalid(
            Fault("minutes", "too far away", f"use fewer, so that it ends before the year {ALLOWED_YEARS[1] + 1}")
        )
    return moment + span


def _check_end(session: LabletSession, end: datetime, now: datetime, longest: timedelta | None) -> None:
    if end <= now:
        raise Refused(f"{session.metadata.name} would still be over by now; ask for more minutes")
    runs = [line.at for line in session.status.history if line.phase == SessionPhase.RUNNING]
    start = session.spec.timeslot_start or (runs[-1] if runs else None)
    if longest is not None and start is not None and end - start > longest:
        most = longest // timedelta(minutes=1)
        raise Refused(f"{session.metadata.name} would last longer than the {most} minutes its definition allows")


def _with_status(resource: R, **fields: object) -> R:
    changes: dict[str, Any] = dict(fields)
    return msgspec.structs.replace(resource, status=msgspec.structs.replace(resource.status, **changes))


def _illegal_step(resource: LabWorker | LabletSession, action: Action, instead: str) -> IllegalStep:
    history, name = format_history(resource.status.history), resource.metadata.name
    message = f"{kind_of(resource).name} {name} is {resource.status.phase}: no {_action_name(action)}; {instead}"
    return IllegalStep(f"{message}\nits story:\n{history}" if history else message)


def _action_name(action: Action) -> str:
    return str(type(action).__struct_config__.tag)
