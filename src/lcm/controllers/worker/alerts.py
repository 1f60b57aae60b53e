"""What an operator should look at in a worker's life, judged from a `WorkerView`. Pure; called by `lifecycle`.

An alert lasts as long as its complaint is made; then it is settled. Each message says what happens next, or what to
do. A worker that was helped is complained of until it has been healthy for as long as it takes to call it unhealthy,
so that one problem is one alert and not one per remedy.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lcm.controllers.runtime.lifecycle import stuck_alert
from lcm.controllers.worker.failing import is_halted, is_our_machine
from lcm.controllers.worker.licensing import NO_SEAT, NOT_OBTAINED, REGISTERING_PHASES
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.serving import has_no_remedy_left, healthy_for, needs_remedy
from lcm.controllers.worker.view import WorkerView
from lcm.model.base.resource import Truth, find_condition, shorten_text
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession
from lcm.model.kinds.worker import Remedy, WorkerCondition, WorkerPhase
from lcm.model.kinds.worker_machine import WORKER_MACHINE
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.providers.protocols.compute import InstanceState

UNHEALTHY: Final = "WorkerUnhealthy"
UNREACHABLE: Final = "WorkerUnreachable"
STRANDED: Final = "SessionsStranded"
_OFF_PHASES: Final = frozenset({WorkerPhase.STOPPED, WorkerPhase.TERMINATED})
_MAX_NAMES: Final = 5


def check_unhealthy(view: WorkerView) -> AlertFinding | None:
    """Complain of a worker that is unhealthy, or was and is not seen healthy yet."""
    tended = view.status.remedies > 0 and not view.is_deleted and view.status.phase not in _OFF_PHASES
    if not needs_remedy(view) and not (tended and healthy_for(view) < view.rules.unhealthy_for):
        return None
    known = find_condition(view.status.conditions, WorkerCondition.HEALTH_CHECK_PASSED)
    why = f": {known.message}" if known and known.status is Truth.FALSE else ""
    severity, reason, following = _next_remedy(view)
    text = f"{view.worker.metadata.name} is not healthy{why}. {following}"
    return AlertFinding(alert=UNHEALTHY, severity=severity, reason=reason, message=shorten_text(text))


def check_unreachable(view: WorkerView) -> AlertFinding | None:
    """Complain of a CML that has been silent for a while."""
    known = find_condition(view.status.conditions, WorkerCondition.REACHABLE)
    silent = known is not None and known.status is Truth.FALSE and view.status.phase in SERVING
    if known is None or not silent or view.now < known.last_transition_at + view.rules.unhealthy_for:
        return None
    sessions = f" Sessions are on it: {_session_names(view.sessions)}." if view.sessions else ""
    text = (
        f"CML of {view.worker.metadata.name} at {view.status.cml.api_url} has not answered since "
        f"{known.last_transition_at:%Y-%m-%d %H:%M:%SZ}: {known.message}.{sessions} It gets no new sessions and is "
        "otherwise left alone, because it may be healthy. Check its security group, its route and CML itself"
    )
    severity = Severity.CRITICAL if view.sessions else Severity.WARNING
    return AlertFinding(alert=UNREACHABLE, severity=severity, reason=known.reason, message=shorten_text(text))


def check_stranded(view: WorkerView) -> AlertFinding | None:
    """Complain of sessions whose machine was stopped or terminated under them."""
    sessions = [one for one in view.sessions if one.status.phase in ON_WORKER_PHASES]
    if view.status.phase not in _OFF_PHASES or not sessions:
        return None
    stopped = view.status.phase is WorkerPhase.STOPPED
    what = "stopped" if stopped else "gone"
    advice = "resume it to bring their labs back, or end them" if stopped else "their labs are lost; end them"
    machine = view.status.ec2.instance_id or "the machine"
    names = _session_names(sessions)
    text = f"{machine} of {view.worker.metadata.name} is {what} while sessions are on it: {names}; {advice}"
    reason = "MachineStopped" if stopped else "MachineGone"
    return AlertFinding(alert=STRANDED, severity=Severity.CRITICAL, reason=reason, message=shorten_text(text))


def _next_remedy(view: WorkerView) -> tuple[Severity, str, str]:
    """Return the severity, the reason, and the text on what happens if nobody looks."""
    remedies = view.status.remedies
    if needs_remedy(view) and has_no_remedy_left(view):
        done = (
            "Reboots and new machines"
            if is_our_machine(view)
            else "A reboot, which is all we do to a machine that we did not launch,"
        )
        following = f"{done} did not help, and nothing more is tried: repair CML on it, or drain and delete the worker"
        return Severity.CRITICAL, "NotHelped", following
    if not view.worker.spec.auto_remediate:
        following = (
            "Nothing is done because spec.auto_remediate is off: reboot its machine, or drain and delete the worker"
        )
        return Severity.CRITICAL, "RemediationOff", following
    if view.sessions:
        names = _session_names(view.sessions)
        following = f"Nothing is done while sessions are on it: {names}. Move or end them, or repair CML"
        return Severity.CRITICAL, "SessionsPresent", following
    if remedies % 2:
        then = "gets another machine" if is_our_machine(view) else "is left to you"
        return Severity.WARNING, "Rebooted", f"It was rebooted; if that does not help it {then}"
    if remedies:
        return Severity.WARNING, "Replaced", "It gets another machine"
    return Severity.WARNING, "RebootDue", "It is rebooted now"


def _session_names(sessions: Sequence[LabletSession]) -> str:
    names = ", ".join(one.metadata.name for one in sessions[:_MAX_NAMES])
    return names if len(sessions) <= _MAX_NAMES else f"{names} and {len(sessions) - _MAX_NAMES} more"


FAILED: Final = "WorkerFailed"
OVERDUE: Final = "WorkerOverdue"
DRAIN: Final = "DrainDeadlineNear"
STUCK: Final = "WorkerStuck"
LICENCE: Final = "LicenceNotObtained"
ALERT_NAMES: Final = (FAILED, OVERDUE, DRAIN, STUCK, LICENCE, UNHEALTHY, UNREACHABLE, STRANDED)

_NOT_OBTAINED: Final = frozenset({NO_SEAT, NOT_OBTAINED})
_SERVING_PHASES: Final = frozenset({WorkerPhase.READY, WorkerPhase.ACTIVE, WorkerPhase.DRAINING})
_HALTED_ADVICE: Final = "somebody stopped its machine; to retry, start the machine, or pause and resume the worker"
_MINUTE: Final = timedelta(minutes=1)
_AUTOMATIC_GRACE: Final = 5 * _MINUTE
_METAL_GRACE: Final = 15 * _MINUTE
"""Bare metal machines take long to shut down."""
_OVERDUE_TEXTS: Final = {
    WorkerPhase.DRAINING: "it is not seen drained",
    WorkerPhase.UNLICENSING: "its licence is not seen returned. Make sure that CML answers and reaches its licence "
    "server; if the worker is deleted or replaced, a silent CML is given up after 2 hours and its licence seat lost",
    WorkerPhase.STOPPING: "it is not seen stopped",
    WorkerPhase.TERMINATING_EC2: "it is not seen gone",
    WorkerPhase.STARTING: "CML did not come up",
    WorkerPhase.PROVISIONING_EC2: "its machine does not run",
}


def find_complaints(view: WorkerView) -> Sequence[AlertFinding]:
    """List what is wrong with a worker now."""
    return [complaint for judge in _CHECKS if (complaint := judge(view)) is not None]


def unchanged_alerts(view: WorkerView) -> frozenset[str]:
    """Return the alerts to leave as they are: one failure is one alert through all its retries."""
    status = view.status
    lasts = status.ready_at is not None and view.now >= status.ready_at + view.rules.unhealthy_for
    up = status.phase in _SERVING_PHASES or (
        status.phase in REGISTERING_PHASES and (lasts or not view.worker.spec.cml.license_token)
    )
    return frozenset() if view.is_deleted or up else frozenset({FAILED})


def _check_stuck(view: WorkerView) -> AlertFinding | None:
    return (
        stuck_alert(STUCK, view.worker.metadata.name, view.blocker.reason, view.blocker.why) if view.blocker else None
    )


def _check_licence(view: WorkerView) -> AlertFinding | None:
    status = view.status
    if (
        status.phase not in REGISTERING_PHASES
        or status.failure not in _NOT_OBTAINED
        or not view.worker.spec.cml.license_token
    ):
        return None
    text = f"{view.worker.metadata.name} has no licence and keeps asking for one: {status.last_error}"
    return AlertFinding(alert=LICENCE, severity=Severity.WARNING, reason=status.failure, message=shorten_text(text))


def _check_failed(view: WorkerView) -> AlertFinding | None:
    status = view.status
    if status.phase is not WorkerPhase.FAILED:
        return None
    if is_halted(view):
        reason, severity, last = "StoppedByHand", Severity.CRITICAL, _HALTED_ADVICE
    elif status.remedy is Remedy.REPLACE and status.remedied_at is None:
        reason, severity, last = status.failure, Severity.WARNING, "another machine takes its place"
    elif status.retry_at is not None:
        # The alert stays as it is through all attempts: a moment in it would soon be one of the past.
        last = f"it is tried again by itself, up to {view.rules.retries} times"
        reason, severity = status.failure, Severity.WARNING
    else:
        reason, severity, last = status.failure, Severity.CRITICAL, "it is not tried again"
    return AlertFinding(
        alert=FAILED,
        severity=severity,
        reason=reason or "Failed",
        message=shorten_text(f"{view.worker.metadata.name}: {status.last_error}; {last}"),
    )


def _check_overdue(view: WorkerView) -> AlertFinding | None:
    phase = view.status.phase
    due = WORKER_MACHINE.deadline(phase, view.status)
    if due is None or phase not in _OVERDUE_TEXTS or view.now < due[0] + _overdue_grace(view, due[1].target):
        return None
    minutes = (view.now - view.entered_at) // _MINUTE
    error = f": {view.status.last_error}" if view.status.last_error else ""
    message = f"{view.worker.metadata.name} has been {phase} for {minutes} minutes, {_OVERDUE_TEXTS[phase]}{error}"
    return AlertFinding(alert=OVERDUE, severity=Severity.CRITICAL, reason=str(phase), message=shorten_text(message))


def _overdue_grace(view: WorkerView, target: WorkerPhase | None) -> timedelta:
    """Return how long after its limit a phase is complained of. One that ends by itself then needs nobody."""
    if view.status.phase is WorkerPhase.TERMINATING_EC2:
        return _METAL_GRACE if view.status.ec2.state == InstanceState.SHUTTING_DOWN else timedelta(0)
    clean_up = view.rules.clean_up if view.status.phase is WorkerPhase.DRAINING else timedelta(0)
    return clean_up + (timedelta(0) if target is None else _AUTOMATIC_GRACE)


def _check_drain_deadline(view: WorkerView) -> AlertFinding | None:
    deadline = view.status.drain_deadline_at
    near = deadline is not None and view.now >= deadline - view.rules.drain_warning
    if view.status.phase is not WorkerPhase.DRAINING or not view.sessions or deadline is None or not near:
        return None
    names = ", ".join(session.metadata.name for session in view.sessions[:5])
    end = f"{len(view.sessions)} sessions end then: {names}"
    text = f"{view.worker.metadata.name} is drained at {deadline:%Y-%m-%d %H:%M:%SZ}; {end}"
    return AlertFinding(alert=DRAIN, severity=Severity.WARNING, reason="SessionsPresent", message=shorten_text(text))


_CHECKS: Final = (
    _check_failed,
    _check_overdue,
    _check_drain_deadline,
    _check_stuck,
    _check_licence,
    check_unhealthy,
    check_unreachable,
    check_stranded,
)
