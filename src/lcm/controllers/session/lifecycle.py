"""The lives of sessions: look, decide, do one thing, say when again. Run by `controller` through the runtime.

What each phase decides stands in the file named in `DECIDERS`; what an effect's answer means in `REACTIONS`.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import structlog
from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, SessionRef, ref_of
from lcm.controllers.runtime.reconcile import DONE, Again, after, at
from lcm.controllers.session import ending, running, starting
from lcm.controllers.session.alerts import NAMES, STUCK, complaints, stuck
from lcm.controllers.session.effects import Hands
from lcm.controllers.session.look import Eyes
from lcm.controllers.session.view import (
    Collect,
    Decide,
    Decision,
    Discard,
    Do,
    Effect,
    Failure,
    Import,
    Observe,
    Outcome,
    Prepare,
    React,
    Remove,
    Report,
    Restart,
    Rules,
    Start,
    View,
    Wait,
    denied,
    note,
    said,
)
from lcm.controllers.worker.view import Unknown
from lcm.model.base.clock import Clock
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import SESSION, LabletSession, SessionPhase
from lcm.model.telemetry.alert import Complaint, Severity

LAB_SEEN: Final = "LabSeen"
"""False: its worker has not said for a while what its lab does."""


def with_silence(view: View, decision: Decision) -> Decision:
    """Say that a lab is out of sight, or seen again; what else was decided does not wait for it to be seen."""
    if not isinstance(view.lab, Unknown):
        if not denied(view.session, LAB_SEEN):
            return decision
        return note(view, conditions=said(view, LAB_SEEN, Truth.TRUE, "Seen")) or decision
    since = view.unseen_since
    if since is None or not isinstance(decision, Wait):
        return decision
    if view.now >= since + view.rules.unseen_for and not denied(view.session, LAB_SEEN):
        told = f"{view.on_worker} has not shown it since {since.astimezone(UTC):%H:%M:%S}Z: {view.lab.why}"
        return note(view, conditions=said(view, LAB_SEEN, Truth.FALSE, view.lab.reason or "Silent", told)) or decision
    then = view.now + min(view.now - since, view.rules.seldom)
    return Wait(view.no_later(max(decision.until or then, then)))


DECIDERS: Final[Mapping[SessionPhase, Decide]] = {
    SessionPhase.SCHEDULED: starting.scheduled,
    SessionPhase.INSTANTIATING: starting.instantiating,
    SessionPhase.RUNNING: running.running,
    SessionPhase.COLLECTING: ending.collecting,
    SessionPhase.STOPPING: ending.stopping,
}
"""Phases that are not here are none of the lablet controller's."""
REACTIONS: Final[Mapping[type[Effect], React]] = {
    Prepare: starting.prepared,
    Import: starting.imported,
    Start: starting.started,
    Restart: running.restarted,
    Observe: running.observed,
    Collect: ending.collected,
    Remove: ending.removed,
    Discard: ending.discarded,
}
_Gist = tuple[Severity, str]
"""What of a complaint is told again when it changes."""
_log: Final = structlog.get_logger()


def decide(view: View) -> Decision:
    """Say what a session needs next."""
    decider = DECIDERS.get(view.status.phase)
    return with_silence(view, decider(view)) if decider else Wait()


def rests(session: LabletSession, now: datetime) -> bool:
    """Tell whether nothing is to be decided about a session until it changes, or until its time comes."""
    status = session.status
    if status.phase is not SessionPhase.SCHEDULED:
        return status.phase not in DECIDERS
    return status.worker_id is None or (status.claim is not None and now < status.claim.start)


def react(view: View, effect: Effect, outcome: Outcome) -> Decision:
    """Say what an effect's answer means."""
    return REACTIONS[type(effect)](view, outcome)


class Lifecycle:
    """Takes each session one step further."""

    def __init__(
        self, plane: Plane, cache: Cache, eyes: Eyes, hands: Hands, *, clock: Clock, rules: Callable[[], Rules]
    ) -> None:
        self._plane = plane
        self._cache = cache
        self._eyes = eyes
        self._hands = hands
        self._clock = clock
        self._rules = rules
        self._raised: dict[str, dict[str, _Gist | None]] = {}

    async def recall(self) -> None:
        """Learn what was complained of before this term."""
        for alert in await self._plane.alerts():
            if alert.kind == LabletSession.__name__ and alert.alert in NAMES:
                self._raised.setdefault(alert.uid, {})[alert.alert] = None

    async def reconcile(self, ref: SessionRef) -> Again:
        """Look at a session, decide, do one thing, say when again."""
        session = self._cache.get(ref)
        if session is None or session.status.phase not in DECIDERS:
            return DONE
        view = await self._eyes.look(session, self._rules())
        await self._complain(view, {one.alert: one for one in complaints(view)})
        decision = decide(view)
        if isinstance(decision, Do):
            outcome = await self._hands.do(view, decision.effect)
            refusal = outcome.reason if isinstance(outcome, Failure) else None
            _log.info("effect", session=str(ref), effect=type(decision.effect).__name__, refused=refusal)
            answered = replace(view, now=self._clock.now())  # an effect may take a minute
            decision = react(answered, decision.effect, outcome)
        return await self._report(view, decision)

    async def troubled(self, ref: SessionRef, error: Exception) -> None:
        """Complain of a bug of ours that a session cannot be helped past."""
        session = self._cache.get(ref)
        if session is None or session.status.phase in SESSION.final:
            return
        bug = type(error).__name__
        self._raised.setdefault(session.metadata.uid, {})[STUCK] = None
        await self._plane.complain(ref, stuck(ref.name, bug, f"a bug of ours, please report it: {bug}: {error}"))

    async def _report(self, view: View, decision: Decision) -> Again:
        if isinstance(decision, Report):
            await self._step(view, decision)
            return after(view.rules.poll)
        assert isinstance(decision, Wait), "an effect is not followed by another"
        return DONE if decision.until is None else at(decision.until, self._clock.now())

    async def _step(self, view: View, report: Report) -> None:
        session, phase = view.session, report.status.phase
        if phase in SESSION.final:
            await self._complain(view, {})
            self._raised.pop(session.metadata.uid, None)
        stepped = await self._plane.step(session, report.status, reason=report.reason)
        self._cache.accept(stepped)
        if phase is not session.status.phase:
            _log.info("session stepped", session=str(ref_of(session)), phase=str(phase), reason=report.reason)

    async def _complain(self, view: View, wrong: Mapping[str, Complaint]) -> None:
        """Raise what is wrong and settle what no longer is; both may be repeated."""
        ref, uid = ref_of(view.session), view.session.metadata.uid
        known = self._raised.get(uid, {})
        for name in sorted(set(known) - set(wrong)):
            await self._plane.settle(ref, name)
        gists: dict[str, _Gist | None] = {name: (one.severity, one.reason) for name, one in wrong.items()}
        for name, complaint in wrong.items():
            if known.get(name) != gists[name]:
                await self._plane.complain(ref, complaint)
        self._raised[uid] = gists
        if not gists:
            del self._raised[uid]
