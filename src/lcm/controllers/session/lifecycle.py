"""The lives of sessions: look, decide, take one action, and requeue. Run by the controller through the reconcile loop.

`DECIDERS` names the function that decides for each phase, and `REACTIONS` the one that handles each effect's outcome. A
lab that nobody can see is reported in a condition after a while, and looked for less and less often.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.runtime.lifecycle import (
    Life,
    Lifecycle,
    RaisedAlerts,
    Report,
    Unknown,
    Wait,
    stuck_alert,
    update_status,
)
from lcm.controllers.runtime.reconcile import DONE, Requeue, requeue_at
from lcm.controllers.session import ending, running, saving, starting
from lcm.controllers.session.effects import SessionEffects
from lcm.controllers.session.look import SessionLook
from lcm.controllers.session.progress import LAB_RUNS, is_left_stopped, restart_count
from lcm.controllers.session.view import (
    Collect,
    Decide,
    Decision,
    Discard,
    Effect,
    EffectOutcome,
    Import,
    Observe,
    Prepare,
    React,
    Remove,
    Restart,
    Save,
    SessionRules,
    SessionView,
    Start,
    retry_if_refused,
    set_condition,
)
from lcm.model.base.clock import Clock
from lcm.model.base.resource import Truth, has_condition, shorten_text
from lcm.model.kinds.session import STOP_ALERT, LabletSession, LabletSessionStatus, SessionCondition, SessionPhase
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
    down = has_condition(view.status.conditions, LAB_RUNS, Truth.FALSE)
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


LAB_SEEN: Final = SessionCondition.LAB_SEEN.value
"""False: for a while the worker has not shown what the lab does."""


def with_visibility(view: SessionView, decision: Decision) -> Decision:
    """Report that a lab cannot be seen, or is seen again; any other decision does not wait for that."""
    told_unseen = has_condition(view.status.conditions, LAB_SEEN, Truth.FALSE)
    if not isinstance(view.lab, Unknown):
        if not told_unseen:
            return decision
        return update_status(view, conditions=set_condition(view, LAB_SEEN, Truth.TRUE, "Seen")) or decision
    since = view.unseen_since
    if since is None or not isinstance(decision, Wait):
        return decision
    if view.now >= since + view.rules.unseen_for and not told_unseen:
        told = f"{view.worker_label} has not shown it since {since.astimezone(UTC):%H:%M:%S}Z: {view.lab.why}"
        conditions = set_condition(view, LAB_SEEN, Truth.FALSE, view.lab.reason or "Silent", told)
        return update_status(view, conditions=conditions) or decision
    then = view.now + min(view.now - since, view.rules.seldom)
    return Wait(view.cap_at_deadline(max(decision.until or then, then)))


DECIDERS: Final[Mapping[SessionPhase, Decide]] = {
    SessionPhase.SCHEDULED: starting.decide_scheduled,
    SessionPhase.INSTANTIATING: starting.decide_instantiating,
    SessionPhase.RUNNING: running.decide_running,
    SessionPhase.COLLECTING: ending.decide_collecting,
    SessionPhase.STOPPING: ending.decide_stopping,
}
"""Phases that are missing here are not the lablet controller's."""
REACTIONS: Final[Mapping[type[Effect], React]] = {
    Prepare: starting.after_prepare,
    Import: starting.after_import,
    Restart: running.after_restart,
    Observe: retry_if_refused,
    Collect: ending.after_collect,
    Remove: retry_if_refused,
    Discard: ending.after_discard,
}
_log: Final = structlog.get_logger()


def decide(view: SessionView) -> Decision:
    """Return what a session needs next."""
    decider = DECIDERS.get(view.status.phase)
    return with_visibility(view, decider(view)) if decider else Wait()


def is_concern(session: LabletSession) -> bool:
    """Return whether anything can be decided about a session here; before it has a worker it is the scheduler's."""
    status = session.status
    return status.phase in DECIDERS and (status.phase is not SessionPhase.SCHEDULED or status.worker_id is not None)


def rest_of(session: LabletSession, now: datetime) -> Requeue | None:
    """Return until when nothing is to be decided about a session, unless it changes; None if it does not rest."""
    status = session.status
    if status.phase is SessionPhase.RUNNING or not is_concern(session):
        return DONE  # what is decided of a session that runs always names the time of the next look
    if status.phase is SessionPhase.SCHEDULED and status.claim is not None and now < status.claim.start:
        return requeue_at(status.claim.start, now)
    return None


def react(view: SessionView, effect: Effect, outcome: EffectOutcome) -> Decision:
    """Return what to do after an effect, by its outcome."""
    if isinstance(effect, Start):
        return starting.after_start(view, effect, outcome)
    if isinstance(effect, Save):
        return saving.after_save(view, effect.request, outcome)
    return REACTIONS[type(effect)](view, outcome)


class SessionLifecycle(Lifecycle[LabletSession, SessionView, LabletSessionStatus, Effect]):
    """Takes each session one step further."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        eyes: SessionLook,
        hands: SessionEffects,
        *,
        clock: Clock,
        rules: Callable[[], SessionRules],
        rest: Callable[[SessionView], object],
    ) -> None:
        life: Life[LabletSession, SessionView, LabletSessionStatus, Effect] = Life(
            look=lambda session: eyes.look(session, rules()),
            decide=decide,
            act=hands.do,
            react=react,
            find_alerts=find_alerts,
            is_concern=is_concern,
            rest=rest,
        )
        alerts = RaisedAlerts(plane, LabletSession, ALERT_NAMES, stuck=SESSION_STUCK)
        super().__init__(plane, cache, clock, life, alerts)

    async def _write(self, view: SessionView, report: Report[LabletSessionStatus]) -> None:
        phase, ref = report.status.phase, ref_of(view.session)
        await super()._write(view, report)
        if phase is not view.status.phase:
            _log.info("session stepped", session=str(ref), phase=str(phase), reason=report.reason)
