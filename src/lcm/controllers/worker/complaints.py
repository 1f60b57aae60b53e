"""What an operator should look at in a worker's life, judged from a view. Pure.

An alert lasts as long as its complaint is made: what is no longer complained of is settled.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lcm.controllers.worker.ailments import STRANDED, UNHEALTHY, UNREACHABLE, stranded, unhealthy, unreachable
from lcm.controllers.worker.failing import halted
from lcm.controllers.worker.licensing import NO_SEAT, NOT_OBTAINED
from lcm.controllers.worker.view import View
from lcm.model.alert import Complaint, Severity
from lcm.model.worker import Remedy, WorkerPhase
from lcm.model.worker_steps import WORKER
from lcm.providers.compute import InstanceState

FAILED: Final = "WorkerFailed"
OVERDUE: Final = "WorkerOverdue"
DRAIN: Final = "DrainDeadlineNear"
STUCK: Final = "WorkerStuck"
LICENCE: Final = "LicenceNotObtained"
NAMES: Final = (FAILED, OVERDUE, DRAIN, STUCK, LICENCE, UNHEALTHY, UNREACHABLE, STRANDED)
_TRYING: Final = frozenset({WorkerPhase.READY_UNLICENSED, WorkerPhase.LICENSING})
_NOT_OBTAINED: Final = frozenset({NO_SEAT, NOT_OBTAINED})
_SERVES: Final = frozenset({WorkerPhase.READY, WorkerPhase.ACTIVE, WorkerPhase.DRAINING})
_HALTED: Final = "somebody stopped its machine; start that, or pause and resume the worker, to have it tried again"
_MINUTE: Final = timedelta(minutes=1)
_BY_ITSELF: Final = 5 * _MINUTE
_METAL: Final = 15 * _MINUTE
"""A machine of bare metal that is seen shutting down takes its time."""
_COSTS: Final = {
    WorkerPhase.DRAINING: "it is not seen drained",
    WorkerPhase.UNLICENSING: "its licence is not seen given back. See to it that CML answers and reaches its licence "
    "server; a silent one whose worker is deleted or replaced is given up after 2 hours, and its seat left behind",
    WorkerPhase.STOPPING: "it is not seen stopped",
    WorkerPhase.TERMINATING_EC2: "it is not seen gone",
    WorkerPhase.STARTING: "CML did not come up",
    WorkerPhase.PROVISIONING_EC2: "its machine does not run",
}


def complaints(view: View) -> Sequence[Complaint]:
    """List what is wrong with a worker now."""
    return [complaint for judge in _JUDGES if (complaint := judge(view)) is not None]


def standing(view: View) -> frozenset[str]:
    """Name the alerts that are neither raised nor settled now: one failure is one alert, through all its retries."""
    status = view.status
    lasts = status.ready_at is not None and view.now >= status.ready_at + view.rules.unhealthy_for
    up = status.phase in _SERVES or (status.phase in _TRYING and (lasts or not view.worker.spec.cml.license_token))
    return frozenset() if view.deleted or up else frozenset({FAILED})


def stuck(name: str, reason: str, why: str) -> Complaint:
    """Say that a worker cannot be looked at, or helped, before a person has mended something."""
    return Complaint(alert=STUCK, severity=Severity.CRITICAL, reason=reason, message=f"{name}: {why}"[:2000])


def _stuck(view: View) -> Complaint | None:
    return stuck(view.worker.metadata.name, view.stuck.reason, view.stuck.why) if view.stuck else None


def _unlicensed(view: View) -> Complaint | None:
    status = view.status
    if status.phase not in _TRYING or status.failure not in _NOT_OBTAINED or not view.worker.spec.cml.license_token:
        return None
    text = f"{view.worker.metadata.name} has no licence, which is asked for again and again: {status.last_error}"
    return Complaint(alert=LICENCE, severity=Severity.WARNING, reason=status.failure, message=text[:2000])


def _failed(view: View) -> Complaint | None:
    status = view.status
    if status.phase is not WorkerPhase.FAILED:
        return None
    if halted(view):
        reason, severity, last = "StoppedByHand", Severity.CRITICAL, _HALTED
    elif status.remedy is Remedy.REPLACE and status.remedied_at is None:
        reason, severity, last = status.failure, Severity.WARNING, "another machine takes its place"
    elif status.retry_at is not None:
        last = f"it is tried again at {status.retry_at:%Y-%m-%d %H:%M:%SZ}"
        reason, severity = status.failure, Severity.WARNING
    else:
        reason, severity, last = status.failure, Severity.CRITICAL, "it is not tried again"
    return Complaint(
        alert=FAILED,
        severity=severity,
        reason=reason or "Failed",
        message=f"{view.worker.metadata.name}: {status.last_error}; {last}"[:2000],
    )


def _overdue(view: View) -> Complaint | None:
    phase = view.status.phase
    due = WORKER.deadline(phase, view.status)
    if due is None or phase not in _COSTS or view.now < due[0] + _grace(view, due[1].target):
        return None
    minutes = (view.now - view.entered_at) // _MINUTE
    error = f": {view.status.last_error}" if view.status.last_error else ""
    message = f"{view.worker.metadata.name} has been {phase} for {minutes} minutes, {_COSTS[phase]}{error}"
    return Complaint(alert=OVERDUE, severity=Severity.CRITICAL, reason=str(phase), message=message[:2000])


def _grace(view: View, target: WorkerPhase | None) -> timedelta:
    """Say how long after its limit a phase is complained of: one that ends by itself then needs nobody."""
    if view.status.phase is WorkerPhase.TERMINATING_EC2:
        return _METAL if view.status.ec2.state == InstanceState.SHUTTING_DOWN else timedelta(0)
    clean_up = view.rules.clean_up if view.status.phase is WorkerPhase.DRAINING else timedelta(0)
    return clean_up + (timedelta(0) if target is None else _BY_ITSELF)


def _deadline(view: View) -> Complaint | None:
    deadline = view.status.drain_deadline_at
    near = deadline is not None and view.now >= deadline - view.rules.drain_warning
    if view.status.phase is not WorkerPhase.DRAINING or not view.sessions or deadline is None or not near:
        return None
    names = ", ".join(session.metadata.name for session in view.sessions[:5])
    count = len(view.sessions)
    text = f"{view.worker.metadata.name} is drained at {deadline:%H:%M:%SZ}; {count} sessions end then: {names}"
    return Complaint(alert=DRAIN, severity=Severity.WARNING, reason="SessionsPresent", message=text[:2000])


_JUDGES: Final = (_failed, _overdue, _deadline, _stuck, _unlicensed, unhealthy, unreachable, stranded)
