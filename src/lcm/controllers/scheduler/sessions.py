"""Takes each session through the scheduler's steps: promised, scheduled, bound at its time, or expired.

`decide` is pure and uses only what is known now, so a late look, or one after a restart, comes to the same result.
Finding places is done for all sessions at once, in `controllers.scheduler.queue_plan`. `SchedulingReconciler` is run by
the controller.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, SessionRef, ref_of
from lcm.controllers.runtime.lifecycle import Report, Wait
from lcm.controllers.runtime.reconcile import DONE, Requeue, requeue_at
from lcm.controllers.scheduler.effects import SchedulerEffects
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, LabletSessionStatus, SessionPhase, is_asap
from lcm.model.kinds.session_fields import fields_to_place_again
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.claims import is_too_late, latest_start
from lcm.placement.places import is_accepting

MAX_RETRIES: Final = 5
_W: Final = WorkerPhase
_LOST_PHASES: Final = frozenset(
    {_W.DRAINING, _W.UNLICENSING, _W.STOPPING, _W.STOPPED, _W.TERMINATING_EC2, _W.TERMINATED, _W.FAILED}
)


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """A session, the worker it was assigned to, and the worker that fills its seat; None for what does not exist."""

    session: LabletSession
    now: datetime
    defined: bool = True
    worker: LabWorker | None = None
    seat_worker: LabWorker | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """Assign the session to the worker that fills its seat, because its time has come."""

    worker: LabWorker


StepDecision = Report[LabletSessionStatus] | Bind | Wait


def decide(facts: SchedulerFacts) -> StepDecision:
    """Return what a session needs next."""
    due = SESSION_MACHINE.deadline(facts.session.status.phase, facts.session.status)
    decider = DECIDERS.get(facts.session.status.phase)
    if decider is None:
        return Wait()
    if due is not None and facts.now >= due[0]:
        why = "nothing was free for it in time" if is_asap(facts.session) else "its slot ended before it ran"
        return _move_to(facts, SessionPhase.EXPIRED, why)
    decision = decider(facts)
    if isinstance(decision, Wait) and due is not None:
        return Wait(min(decision.until or due[0], due[0]))
    return decision


def is_worker_lost(worker: LabWorker | None) -> bool:
    """Return whether nothing can be started on a worker any more."""
    return (
        worker is None
        or worker.status.phase in _LOST_PHASES
        or worker.metadata.deletion_timestamp is not None
        or worker.spec.wanted_state == "stopped"
    )


def _decide_pending(facts: SchedulerFacts) -> StepDecision:
    session, status = facts.session, facts.session.status
    if status.retry_count >= MAX_RETRIES:
        told = f": {status.last_error}" if status.last_error else ""
        return _fail(facts, f"it was tried {status.retry_count} times{told}")
    if not facts.defined:
        return _fail(facts, f"its definition {session.spec.definition} is gone")
    if not is_asap(session) and status.claim is not None and status.seat is not None:
        return _move_to(
            facts, SessionPhase.SCHEDULED, f"planned worker {status.seat.pool}/{status.seat.number} is promised to it"
        )
    return Wait()


def _decide_scheduled(facts: SchedulerFacts) -> StepDecision:
    status = facts.session.status
    if status.worker_id is not None:
        return _decide_assigned(facts)
    assert status.claim is not None, "the table lets nothing be scheduled without a claim"
    if facts.now < status.claim.start:
        return Wait(status.claim.start)
    worker = facts.seat_worker
    return Bind(worker) if worker is not None and is_accepting(worker) else Wait()


def _decide_assigned(facts: SchedulerFacts) -> StepDecision:
    """Send a session back whose worker is lost, or that would begin there too late because others are in the way."""
    session, name = facts.session, facts.session.status.worker_name or facts.session.status.worker_id
    if is_worker_lost(facts.worker):
        phase = facts.worker.status.phase if facts.worker else None
        what = str(phase) if phase in _LOST_PHASES else "leaving" if phase else "gone"
        return _send_back(facts, "WorkerLost", f"its worker {name} is {what}")
    if is_too_late(session, facts.now):
        return _send_back(facts, "NotBegun", f"it could not begin on {name} in time")
    return Wait(latest_start(session))


DECIDERS: Final[Mapping[SessionPhase, Callable[[SchedulerFacts], StepDecision]]] = {
    SessionPhase.PENDING: _decide_pending,
    SessionPhase.SCHEDULED: _decide_scheduled,
}


def rest_of(session: LabletSession, now: datetime) -> Requeue | None:
    """Return until when nothing is to be decided about a session, unless it changes; None if it does not rest."""
    status = session.status
    if status.phase not in DECIDERS:
        return DONE
    promised = status.phase is SessionPhase.SCHEDULED and status.worker_id is None
    rests = promised and status.claim is not None and now < status.claim.start
    return requeue_at(status.claim.start, now) if rests and status.claim is not None else None


def is_concern(session: Resource | None) -> bool:
    """Return whether anything can be decided about a session here."""
    return isinstance(session, LabletSession) and session.status.phase in DECIDERS


def _send_back(facts: SchedulerFacts, reason: str, why: str) -> Report[LabletSessionStatus]:
    return _move_to(facts, SessionPhase.PENDING, why, **fields_to_place_again(facts.session, reason, why, facts.now))


def _fail(facts: SchedulerFacts, why: str) -> Report[LabletSessionStatus]:
    return _move_to(facts, SessionPhase.FAILED, why, last_error=shorten_text(why), waiting=None)


def _move_to(facts: SchedulerFacts, phase: SessionPhase, reason: str, **fields: object) -> Report[LabletSessionStatus]:
    changes: dict[str, Any] = {"phase": phase, "waiting": None, **fields}
    return Report(msgspec.structs.replace(facts.session.status, **changes), shorten_text(reason))


RETRY_AFTER: Final = timedelta(seconds=15)
"""After this time a worker that had no room is asked again; meanwhile `PlacementLoop` looks for another place."""
_log: Final = structlog.get_logger()


class SchedulingReconciler:
    """Reconciles one session at a time."""

    def __init__(self, plane: Plane, cache: Cache, view: SchedulerView, *, clock: Clock) -> None:
        self._plane = plane
        self._cache = cache
        self._view = view
        self._clock = clock
        self._effects = SchedulerEffects(plane, cache)

    async def reconcile(self, ref: SessionRef) -> Requeue:
        """Look at a session, decide, take one action, and return when to look again."""
        session = self._cache.get(ref)
        if session is None or session.status.phase in SESSION_MACHINE.final:
            return DONE
        match decide(await self._read_facts(session)):
            case Report(status, reason):
                await self._effects.step(session, status, reason)
            case Bind(worker):
                return await self._bind(session, worker)
            case Wait(until) if until is not None:
                return requeue_at(until, self._clock.now())
        return DONE

    async def _read_facts(self, session: LabletSession) -> SchedulerFacts:
        wanted = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
        known = self._cache.get(wanted) is not None or await self._plane.get(wanted) is not None
        return SchedulerFacts(
            session=session,
            now=self._clock.now(),
            defined=known,
            worker=self._view.worker(session.status.worker_id),
            seat_worker=self._view.seat_worker(session),
        )

    async def _bind(self, session: LabletSession, worker: LabWorker) -> Requeue:
        claim = session.status.claim
        assert claim is not None, "what is bound has a claim"
        wanted = Assignment(
            start=claim.start,
            end=claim.end,
            worker_id=worker.metadata.uid,
            seat=session.status.seat,
            reason=f"its time has come, and {worker.metadata.name} is the worker planned for it",
        )
        try:
            await self._effects.schedule(session, wanted)
        except NoRoom as error:
            _log.warning("no room for a promise", session=str(ref_of(session)), error=str(error))
            return Requeue(RETRY_AFTER)
        return DONE
