"""What an operator should look at in a session's life, judged from a `SessionView`. Pure.

An alert lasts as long as it is returned here; one that is no longer returned is cleared.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lcm.controllers.runtime.lifecycle import Unknown, stuck_alert
from lcm.controllers.session.progress import LAB_RUNS, is_left_stopped, restart_count
from lcm.controllers.session.view import SessionView, is_condition_false
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.session import STOP_ALERT, SessionPhase
from lcm.model.telemetry.alert import AlertFinding, Severity

LAB_NOT_REMOVED: Final = "LabNotRemoved"
LAB_STOPPED: Final = "LabStopped"
SESSION_STUCK: Final = "SessionStuck"
ALERT_NAMES: Final = (LAB_NOT_REMOVED, LAB_STOPPED, SESSION_STUCK)
_MINUTE: Final = timedelta(minutes=1)


def find_alerts(view: SessionView) -> Sequence[AlertFinding]:
    """Return the alerts of a session now."""
    return [complaint for judge in _CHECKS if (complaint := judge(view)) is not None]


def _unseen_lab_alert(view: SessionView) -> AlertFinding | None:
    unknown = view.lab if isinstance(view.lab, Unknown) else None
    if unknown is None or not unknown.reason:
        return None
    return stuck_alert(SESSION_STUCK, view.session.metadata.name, unknown.reason, unknown.why)


def _lab_not_removed_alert(view: SessionView) -> AlertFinding | None:
    if view.status.phase is not SessionPhase.STOPPING or view.now < view.entered_at + STOP_ALERT:
        return None
    minutes = (view.now - view.entered_at) // _MINUTE
    why = view.lab.why if isinstance(view.lab, Unknown) else view.status.last_error
    text = f"the lab of {view.session.metadata.name} is not seen gone from {view.worker_label} after {minutes} minutes"
    message = f"{text}: {why}" if why else text
    return AlertFinding(
        alert=LAB_NOT_REMOVED, severity=Severity.CRITICAL, reason="NotSeenGone", message=shorten_text(message)
    )


def _lab_stopped_alert(view: SessionView) -> AlertFinding | None:
    session, count = view.session, restart_count(view)
    down = is_condition_false(session, LAB_RUNS)
    if view.status.phase is not SessionPhase.RUNNING or not (count or down):
        return None
    severity, reason, last = Severity.WARNING, "StartedAgain", "it was started again"
    if is_left_stopped(session):
        severity, reason, last = Severity.CRITICAL, "NotStartedAgain", "it is not started again for a while"
    elif view.is_lab_stopped and view.status.last_error:
        reason, last = "NotStarted", f"it could not be started again: {view.status.last_error}"
    elif down:
        reason, last = "NotUp", "it was started again, and has not come up yet"
    found = f"the lab of {session.metadata.name} was found stopped on {view.worker_label}, {count} times lately"
    return AlertFinding(alert=LAB_STOPPED, severity=severity, reason=reason, message=shorten_text(f"{found}; {last}"))


_CHECKS: Final = (_lab_not_removed_alert, _lab_stopped_alert, _unseen_lab_alert)
