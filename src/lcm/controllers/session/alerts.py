"""What an operator should look at in a session's life, judged from a view. Pure.

An alert lasts as long as its complaint is made: what is no longer complained of is settled.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lcm.controllers.session.progress import LAB_RUNS, left_stopped, restarts
from lcm.controllers.session.view import View, denied
from lcm.controllers.worker.view import Unknown
from lcm.model.kinds.session import STOP_ALERT, SessionPhase
from lcm.model.telemetry.alert import Complaint, Severity

LEFT_BEHIND: Final = "LabNotRemoved"
STOPPED: Final = "LabStopped"
STUCK: Final = "SessionStuck"
NAMES: Final = (LEFT_BEHIND, STOPPED, STUCK)
_MINUTE: Final = timedelta(minutes=1)


def complaints(view: View) -> Sequence[Complaint]:
    """List what is wrong with a session now."""
    return [complaint for judge in _JUDGES if (complaint := judge(view)) is not None]


def stuck(name: str, reason: str, why: str) -> Complaint:
    """Say that a session cannot be looked at, or helped, before a person has mended something."""
    return Complaint(alert=STUCK, severity=Severity.CRITICAL, reason=reason, message=f"{name}: {why}"[:2000])


def _stuck(view: View) -> Complaint | None:
    unknown = view.lab if isinstance(view.lab, Unknown) else None
    if unknown is None or not unknown.reason:
        return None
    return stuck(view.session.metadata.name, unknown.reason, unknown.why)


def _left_behind(view: View) -> Complaint | None:
    if view.status.phase is not SessionPhase.STOPPING or view.now < view.entered_at + STOP_ALERT:
        return None
    minutes = (view.now - view.entered_at) // _MINUTE
    why = view.lab.why if isinstance(view.lab, Unknown) else view.status.last_error
    text = f"the lab of {view.session.metadata.name} is not seen gone from {view.on_worker} after {minutes} minutes"
    message = f"{text}: {why}" if why else text
    return Complaint(alert=LEFT_BEHIND, severity=Severity.CRITICAL, reason="NotSeenGone", message=message[:2000])


def _stopped(view: View) -> Complaint | None:
    session, count = view.session, restarts(view)
    down = denied(session, LAB_RUNS)
    if view.status.phase is not SessionPhase.RUNNING or not (count or down):
        return None
    severity, reason, last = Severity.WARNING, "StartedAgain", "it was started again"
    if left_stopped(session):
        severity, reason, last = Severity.CRITICAL, "NotStartedAgain", "it is not started again for a while"
    elif view.stopped and view.status.last_error:
        reason, last = "NotStarted", f"it could not be started again: {view.status.last_error}"
    elif down:
        reason, last = "NotUp", "it was started again, and has not come up yet"
    found = f"the lab of {session.metadata.name} was found stopped on {view.on_worker}, {count} times lately"
    return Complaint(alert=STOPPED, severity=severity, reason=reason, message=f"{found}; {last}"[:2000])


_JUDGES: Final = (_left_behind, _stopped, _stuck)
