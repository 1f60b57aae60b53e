"""What an operator should look at in a worker's life, judged from a view. Pure.

An alert lasts as long as its complaint is made: what is no longer complained of is settled.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lcm.controllers.worker.view import View
from lcm.model.alert import Complaint, Severity
from lcm.model.errors import Stuck
from lcm.model.worker import WorkerPhase
from lcm.model.worker_steps import WORKER

FAILED: Final = "WorkerFailed"
OVERDUE: Final = "WorkerOverdue"
DRAIN: Final = "DrainDeadlineNear"
STUCK: Final = "WorkerStuck"
NAMES: Final = (FAILED, OVERDUE, DRAIN, STUCK)
_MINUTE: Final = timedelta(minutes=1)
_COSTS: Final = {
    WorkerPhase.DRAINING: "it is not seen drained",
    WorkerPhase.UNLICENSING: "its licence is not seen given back",
    WorkerPhase.STOPPING: "it is not seen stopped",
    WorkerPhase.TERMINATING_EC2: "it is not seen gone",
    WorkerPhase.STARTING: "CML did not come up",
    WorkerPhase.PROVISIONING_EC2: "its machine does not run",
}


def complaints(view: View) -> Sequence[Complaint]:
    """List what is wrong with a worker now."""
    return [one for one in (_failed(view), _overdue(view), _deadline(view)) if one is not None]


def stuck(name: str, error: Stuck) -> Complaint:
    """Say that a worker cannot be looked at, let alone helped, before a person has mended something."""
    return Complaint(alert=STUCK, severity=Severity.CRITICAL, reason=error.reason, message=f"{name}: {error}"[:2000])


def _failed(view: View) -> Complaint | None:
    status = view.status
    if status.phase is not WorkerPhase.FAILED:
        return None
    tried = status.retry_at is not None
    last = f"; it is tried again at {status.retry_at:%Y-%m-%d %H:%M:%SZ}" if tried else "; it is not tried again"
    return Complaint(
        alert=FAILED,
        severity=Severity.WARNING if tried else Severity.CRITICAL,
        reason=status.failure or "Failed",
        message=f"{view.worker.metadata.name}: {status.last_error}{last}"[:2000],
    )


def _overdue(view: View) -> Complaint | None:
    phase = view.status.phase
    due = WORKER.deadline(phase, view.status)
    grace = view.rules.clean_up if phase is WorkerPhase.DRAINING else timedelta(0)
    if due is None or phase not in _COSTS or view.now < due[0] + grace:
        return None
    minutes = (view.now - view.entered_at) // _MINUTE
    error = f": {view.status.last_error}" if view.status.last_error else ""
    message = f"{view.worker.metadata.name} has been {phase} for {minutes} minutes, {_COSTS[phase]}{error}"
    return Complaint(alert=OVERDUE, severity=Severity.CRITICAL, reason=str(phase), message=message[:2000])


def _deadline(view: View) -> Complaint | None:
    deadline = view.status.drain_deadline_at
    near = deadline is not None and view.now >= deadline - view.rules.drain_warning
    if view.status.phase is not WorkerPhase.DRAINING or not view.sessions or deadline is None or not near:
        return None
    names = ", ".join(session.metadata.name for session in view.sessions[:5])
    count = len(view.sessions)
    text = f"{view.worker.metadata.name} is drained at {deadline:%H:%M:%SZ}; {count} sessions end then: {names}"
    return Complaint(alert=DRAIN, severity=Severity.WARNING, reason="SessionsPresent", message=text[:2000])
