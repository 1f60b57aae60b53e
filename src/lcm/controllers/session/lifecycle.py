"""The lives of sessions: look, decide, take one action, and requeue. Run by the controller through the reconcile loop.

`DECIDERS` names the function that decides for each phase, and `REACTIONS` the one that handles each effect's outcome. A
lab that nobody can see is reported in a condition after a while, and looked for less and less often.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import structlog
from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, SessionRef, ref_of
from lcm.controllers.runtime.reconcile import DONE, Requeue, requeue_after, requeue_at
from lcm.controllers.session import ending, running, starting
from lcm.controllers.session.alerts import ALERT_NAMES, SESSION_STUCK, find_alerts, stuck_alert
from lcm.controllers.session.effects import SessionEffects
from lcm.controllers.session.look import SessionLook
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
    SessionDo,
    SessionFailure,
    SessionReport,
    SessionRules,
    SessionView,
    SessionWait,
    Start,
    is_condition_false,
    set_condition,
    update_status,
)
from lcm.controllers.worker.view import Unknown
from lcm.model.base.clock import Clock
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase
from lcm.model.telemetry.alert import AlertFinding, Severity

LAB_SEEN: Final = "LabSeen"
"""False: for a while the worker has not shown what the lab does."""


def with_visibility(view: SessionView, decision: Decision) -> Decision:
    """Report that a lab cannot be seen, or is seen again; any other decision does not wait for that."""
    if not isinstance(view.lab, Unknown):
        if not is_condition_false(view.session, LAB_SEEN):
            return decision
        return update_status(view, conditions=set_condition(view, LAB_SEEN, Truth.TRUE, "Seen")) or decision
    since = view.unseen_since
    if since is None or not isinstance(decision, SessionWait):
        return decision
    if view.now >= since + view.rules.unseen_for and not is_condition_false(view.session, LAB_SEEN):
        told = f"{view.worker_label} has not shown it since {since.astimezone(UTC):%H:%M:%S}Z: {view.lab.why}"
        return (
            update_status(
                view, conditions=set_condition(view, LAB_SEEN, Truth.FALSE, view.lab.reason or "Silent", told)
            )
            or decision
        )
    then = view.now + min(view.now - since, view.rules.seldom)
    return SessionWait(view.cap_at_deadline(max(decision.until or then, then)))


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
    Start: starting.after_start,
    Restart: running.after_restart,
    Observe: running.after_observe,
    Collect: ending.after_collect,
    Remove: ending.after_remove,
    Discard: ending.after_discard,
}
_AlertKey = tuple[Severity, str]
"""The part of an alert that makes it be raised again when it changes."""
_log: Final = structlog.get_logger()


def decide(view: SessionView) -> Decision:
    """Return what a session needs next."""
    decider = DECIDERS.get(view.status.phase)
    return with_visibility(view, decider(view)) if decider else SessionWait()


def is_resting(session: LabletSession, now: datetime) -> bool:
    """Return whether nothing is to be decided about a session until it changes, or until its time comes."""
    status = session.status
    if status.phase is not SessionPhase.SCHEDULED:
        return status.phase not in DECIDERS
    return status.worker_id is None or (status.claim is not None and now < status.claim.start)


def react(view: SessionView, effect: Effect, outcome: EffectOutcome) -> Decision:
    """Return what to do after an effect, by its outcome."""
    return REACTIONS[type(effect)](view, outcome)


class SessionLifecycle:
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
    ) -> None:
        self._plane = plane
        self._cache = cache
        self._look = eyes
        self._effects = hands
        self._clock = clock
        self._rules = rules
        self._raised_alerts: dict[str, dict[str, _AlertKey | None]] = {}

    async def load_alerts(self) -> None:
        """Read the alerts that were raised before this term."""
        for alert in await self._plane.alerts():
            if alert.kind == LabletSession.__name__ and alert.alert in ALERT_NAMES:
                self._raised_alerts.setdefault(alert.uid, {})[alert.alert] = None

    async def reconcile(self, ref: SessionRef) -> Requeue:
        """Look at a session, decide, take one action, and return when to look again."""
        session = self._cache.get(ref)
        if session is None or session.status.phase not in DECIDERS:
            return DONE
        view = await self._look.look(session, self._rules())
        await self._sync_alerts(view, {one.alert: one for one in find_alerts(view)})
        decision = decide(view)
        if isinstance(decision, SessionDo):
            outcome = await self._effects.do(view, decision.effect)
            refusal = outcome.reason if isinstance(outcome, SessionFailure) else None
            _log.info("effect", session=str(ref), effect=type(decision.effect).__name__, refused=refusal)
            answered = replace(view, now=self._clock.now())  # an effect may take a minute
            decision = react(answered, decision.effect, outcome)
        return await self._apply_decision(view, decision)

    async def report_bug(self, ref: SessionRef, error: Exception) -> None:
        """Raise an alert about a bug of ours that keeps a session from going on."""
        session = self._cache.get(ref)
        if session is None or session.status.phase in SESSION_MACHINE.final:
            return
        bug = type(error).__name__
        self._raised_alerts.setdefault(session.metadata.uid, {})[SESSION_STUCK] = None
        await self._plane.raise_alert(
            ref, stuck_alert(ref.name, bug, f"a bug of ours, please report it: {bug}: {error}")
        )

    async def _apply_decision(self, view: SessionView, decision: Decision) -> Requeue:
        if isinstance(decision, SessionReport):
            await self._write_status(view, decision)
            return requeue_after(view.rules.poll)
        assert isinstance(decision, SessionWait), "an effect is not followed by another"
        return DONE if decision.until is None else requeue_at(decision.until, self._clock.now())

    async def _write_status(self, view: SessionView, report: SessionReport) -> None:
        session, phase = view.session, report.status.phase
        if phase in SESSION_MACHINE.final:
            await self._sync_alerts(view, {})
            self._raised_alerts.pop(session.metadata.uid, None)
        stepped = await self._plane.step(session, report.status, reason=report.reason)
        self._cache.accept(stepped)
        if phase is not session.status.phase:
            _log.info("session stepped", session=str(ref_of(session)), phase=str(phase), reason=report.reason)

    async def _sync_alerts(self, view: SessionView, wrong: Mapping[str, AlertFinding]) -> None:
        """Raise the alerts of what is wrong and clear the others; both may be repeated."""
        ref, uid = ref_of(view.session), view.session.metadata.uid
        known = self._raised_alerts.get(uid, {})
        for name in sorted(set(known) - set(wrong)):
            await self._plane.clear_alert(ref, name)
        gists: dict[str, _AlertKey | None] = {name: (one.severity, one.reason) for name, one in wrong.items()}
        for name, complaint in wrong.items():
            if known.get(name) != gists[name]:
                await self._plane.raise_alert(ref, complaint)
        self._raised_alerts[uid] = gists
        if not gists:
            del self._raised_alerts[uid]
