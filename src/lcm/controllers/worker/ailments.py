"""What to tell of a worker that is ill, silent, or gone from under its sessions. Pure; used by `complaints`.

Each message says what happens next, or what to do. A worker that was helped is complained of until it has been healthy
for as long as it takes to call it ill, so that an illness is one alert and not one per remedy.
"""

from collections.abc import Sequence
from typing import Final

from lcm.controllers.worker.failing import ours
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.remedies import ailing, exhausted, well_for
from lcm.controllers.worker.view import View
from lcm.model.alert import Complaint, Severity
from lcm.model.resource import Condition, Truth, condition
from lcm.model.session import ON_WORKER, LabletSession
from lcm.model.worker import WorkerCondition, WorkerPhase

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
