"""What an operator should look at in a worker's life, judged from a view. Pure.

An alert lasts as long as its complaint is made: what is no longer complained of is settled.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lcm.controllers.worker.failing import halted, ours
from lcm.controllers.worker.hosting import ailing, exhausted, well_for
from lcm.controllers.worker.licensing import NO_SEAT, NOT_OBTAINED
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.view import View
from lcm.model.base.resource import Condition, Truth, condition
from lcm.model.kinds.session import ON_WORKER, LabletSession
from lcm.model.kinds.worker import Remedy, WorkerCondition, WorkerPhase
from lcm.model.kinds.worker_machine import WORKER
from lcm.model.telemetry.alert import Complaint, Severity
from lcm.providers.protocols.compute import InstanceState

UNHEALTHY: Final = "WorkerUnhealthy"
UNREACHABLE: Final = "WorkerUnreachable"
STRANDED: Final = "SessionsStranded"
_OFF: Final = frozenset({WorkerPhase.STOPPED, WorkerPhase.TERMINATED})
_LONGEST_TEXT: Final = 2000
_FEW: Final = 5


def unhealthy(view: View) -> Complaint | None:
    """Complain of a worker that is ill, or was and is not seen well yet."""
    tended = view.status.remedies > 0 and not view.deleted and view.status.phase not in _OFF
    if not ailing(view) and not (tended and well_for(view) < view.rules.unhealthy_for):
        return None
    known = condition(view.status.conditions, WorkerCondition.HEALTH_CHECK_PASSED)
    why = f": {known.message}" if known and known.status is Truth.FALSE else ""
    severity, reason, following = _prospect(view)
    text = f"{view.worker.metadata.name} is not healthy{why}. {following}"
    return Complaint(alert=UNHEALTHY, severity=severity, reason=reason, message=text[:_LONGEST_TEXT])


def unreachable(view: View) -> Complaint | None:
    """Complain of a CML that has been silent for a while."""
    known = condition(view.status.conditions, WorkerCondition.REACHABLE)
    if known is None or view.status.phase not in SERVING or not _lasts(view, known):
        return None
    sessions = f" Sessions are on it: {_names(view.sessions)}." if view.sessions else ""
    text = (
        f"CML of {view.worker.metadata.name} at {view.status.cml.api_url} has not answered since "
        f"{known.last_transition_at:%Y-%m-%d %H:%M:%SZ}: {known.message}.{sessions} It gets no new sessions and is "
        "otherwise left alone, for silence is no illness. Check its security group, its route and CML itself"
    )
    severity = Severity.CRITICAL if view.sessions else Severity.WARNING
    return Complaint(alert=UNREACHABLE, severity=severity, reason=known.reason, message=text[:_LONGEST_TEXT])


def stranded(view: View) -> Complaint | None:
    """Complain of sessions whose machine was stopped or terminated under them."""
    sessions = [one for one in view.sessions if one.status.phase in ON_WORKER]
    if view.status.phase not in _OFF or not sessions:
        return None
    stopped = view.status.phase is WorkerPhase.STOPPED
    what = "stopped" if stopped else "gone"
    advice = "resume it to bring their labs back, or end them" if stopped else "their labs are lost; end them"
    machine = view.status.ec2.instance_id or "the machine"
    text = f"{machine} of {view.worker.metadata.name} is {what} under live sessions: {_names(sessions)}; {advice}"
    reason = "MachineStopped" if stopped else "MachineGone"
    return Complaint(alert=STRANDED, severity=Severity.CRITICAL, reason=reason, message=text[:_LONGEST_TEXT])


def _prospect(view: View) -> tuple[Severity, str, str]:
    """Say how soon somebody should look, and what happens if nobody does."""
    remedies = view.status.remedies
    if ailing(view) and exhausted(view):
        done = (
            "Reboots and new machines" if ours(view) else "A reboot, which is all that is done to a machine not ours,"
        )
        following = f"{done} did not help, and nothing more is tried: mend CML on it, or drain and delete the worker"
        return Severity.CRITICAL, "NotHelped", following
    if not view.worker.spec.auto_remediate:
        following = (
            "Nothing is done, for spec.auto_remediate is off: reboot its machine, or drain and delete the worker"
        )
        return Severity.CRITICAL, "RemediationOff", following
    if view.sessions:
        following = f"Nothing is done while sessions are on it: {_names(view.sessions)}. Move or end them, or mend CML"
        return Severity.CRITICAL, "SessionsPresent", following
    if remedies % 2:
        then = "gets another machine" if ours(view) else "is left to you"
        return Severity.WARNING, "Rebooted", f"It was rebooted; if that does not help it {then}"
    if remedies:
        return Severity.WARNING, "Replaced", "It gets another machine"
    return Severity.WARNING, "RebootDue", "It is rebooted now"


def _lasts(view: View, known: Condition) -> bool:
    return known.status is Truth.FALSE and view.now >= known.last_transition_at + view.rules.unhealthy_for


def _names(sessions: Sequence[LabletSession]) -> str:
    names = ", ".join(one.metadata.name for one in sessions[:_FEW])
    return names if len(sessions) <= _FEW else f"{names} and {len(sessions) - _FEW} more"


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
