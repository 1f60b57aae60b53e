"""What a session needs of the scheduler next, by its phase. Pure: facts in, one decision out.

It is decided from what is known now alone: whoever looks late, or again after a restart, comes to the same. Finding a
place is not decided here but for all sessions at once, in `queue_plan`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, SessionRef, ref_of
from lcm.controllers.runtime.reconcile import DONE, Again, after, at
from lcm.controllers.scheduler.effects import Hands
from lcm.controllers.scheduler.view import View
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.session import (
    SESSION,
    LabletSession,
    LabletSessionStatus,
    SessionPhase,
    is_asap,
    without_its_worker,
)
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.claims import begins_by, too_late
from lcm.placement.places import accepting

MOST_RETRIES: Final = 5
_W: Final = WorkerPhase
_LOST: Final = frozenset(
    {_W.DRAINING, _W.UNLICENSING, _W.STOPPING, _W.STOPPED, _W.TERMINATING_EC2, _W.TERMINATED, _W.FAILED}
)
_OFF_WORKER: Final[Mapping[str, Any]] = {
    "worker_id": None,
    "worker_ref": None,
    "worker_name": None,
    "worker_namespace": None,
    "assigned_at": None,
    "allocated_ports": None,
    "resource_allocation": None,
    "cml_lab_id": None,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """A session, the worker it was put on, and the worker that fills its seat; None for what is not there."""

    session: LabletSession
    now: datetime
    defined: bool = True
    worker: LabWorker | None = None
    seat_worker: LabWorker | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Take a step."""

    status: LabletSessionStatus
    reason: str


@dataclass(frozen=True, slots=True)
class Bind:
    """Put it on the worker that fills its seat, which its time has come for."""

    worker: LabWorker


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing until then, None: until something changes."""

    until: datetime | None = None


Decision = Move | Bind | Wait


def decide(facts: Facts) -> Decision:
    """Say what a session needs next."""
    due = SESSION.deadline(facts.session.status.phase, facts.session.status)
    decider = DECIDERS.get(facts.session.status.phase)
    if decider is None:
        return Wait()
    if due is not None and facts.now >= due[0]:
        return _to(facts, SessionPhase.EXPIRED, _missed(facts.session))
    decision = decider(facts)
    if isinstance(decision, Wait) and due is not None:
        return Wait(min(decision.until or due[0], due[0]))
    return decision


def lost(worker: LabWorker | None) -> bool:
    """Tell whether nothing can be begun on a worker any more."""
    return (
        worker is None
        or worker.status.phase in _LOST
        or worker.metadata.deletion_timestamp is not None
        or worker.spec.wanted_state == "stopped"
    )


def _pending(facts: Facts) -> Decision:
    session, status = facts.session, facts.session.status
    if status.retry_count >= MOST_RETRIES:
        told = f": {status.last_error}" if status.last_error else ""
        return _failed(facts, f"it was tried {status.retry_count} times{told}")
    if not facts.defined:
        return _failed(facts, f"its definition {session.spec.definition} is gone")
    if not is_asap(session) and status.claim is not None and status.seat is not None:
        return _to(facts, SessionPhase.SCHEDULED, f"seat {status.seat.pool}/{status.seat.number} is promised to it")
    return Wait()


def _scheduled(facts: Facts) -> Decision:
    status = facts.session.status
    if status.worker_id is not None:
        return _on_worker(facts)
    assert status.claim is not None, "the table lets nothing be scheduled without a claim"
    if facts.now < status.claim.start:
        return Wait(status.claim.start)
    worker = facts.seat_worker
    return Bind(worker) if worker is not None and accepting(worker) else Wait()


def _on_worker(facts: Facts) -> Decision:
    """Place a session anew whose worker is lost, or on which it would begin so late that others are in its way."""
    session, name = facts.session, facts.session.status.worker_name or facts.session.status.worker_id
    if lost(facts.worker):
        phase = facts.worker.status.phase if facts.worker else None
        what = str(phase) if phase in _LOST else "leaving" if phase else "gone"
        return _sent_back(facts, "WorkerLost", f"its worker {name} is {what}")
    if too_late(session, facts.now):
        return _sent_back(facts, "NotBegun", f"it could not begin on {name} in time")
    return Wait(begins_by(session))


DECIDERS: Final[Mapping[SessionPhase, Callable[[Facts], Decision]]] = {
    SessionPhase.PENDING: _pending,
    SessionPhase.SCHEDULED: _scheduled,
}


def rests(session: LabletSession, now: datetime) -> bool:
    """Tell whether nothing is to be decided about a session until it changes, or until its time comes."""
    status = session.status
    if status.phase not in DECIDERS:
        return True
    promised = status.phase is SessionPhase.SCHEDULED and status.worker_id is None
    return promised and status.claim is not None and now < status.claim.start


def _sent_back(facts: Facts, reason: str, why: str) -> Move:
    """Place a session anew; what it was promised stays its own, what it only had meanwhile does not."""
    kept: dict[str, object] = {} if not is_asap(facts.session) else {"claim": None, "seat": None}
    conditions = without_its_worker(facts.session, reason, why, facts.now)
    return _to(facts, SessionPhase.PENDING, why, conditions=conditions, **_OFF_WORKER, **kept)


def _failed(facts: Facts, why: str) -> Move:
    return _to(facts, SessionPhase.FAILED, why, last_error=why[:2000], waiting=None)


def _missed(session: LabletSession) -> str:
    return "nothing was free for it in time" if is_asap(session) else "its slot ended before it ran"


def _to(facts: Facts, phase: SessionPhase, reason: str, **fields: object) -> Move:
    changes: dict[str, Any] = {"phase": phase, "waiting": None, **fields}
    return Move(msgspec.structs.replace(facts.session.status, **changes), reason[:2000])


AGAIN: Final = timedelta(seconds=15)
"""After which a worker that had no room is asked again; meanwhile `placing` looks for another."""
_log: Final = structlog.get_logger()


class Sessions:
    """Looks at one session at a time."""

    def __init__(self, plane: Plane, cache: Cache, view: View, *, clock: Clock) -> None:
        self._plane = plane
        self._cache = cache
        self._view = view
        self._clock = clock
        self._hands = Hands(plane, cache)

    async def reconcile(self, ref: SessionRef) -> Again:
        """Look at a session, decide, do one thing, say when again."""
        session = self._cache.get(ref)
        if session is None or session.status.phase in SESSION.final:
            return DONE
        match decide(await self._facts(session)):
            case Move(status, reason):
                await self._hands.step(session, status, reason)
            case Bind(worker):
                return await self._bind(session, worker)
            case Wait(until) if until is not None:
                return at(until, self._clock.now())
        return DONE

    async def _facts(self, session: LabletSession) -> Facts:
        wanted = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
        known = self._cache.get(wanted) is not None or await self._plane.get(wanted) is not None
        return Facts(
            session=session,
            now=self._clock.now(),
            defined=known,
            worker=self._view.worker(session.status.worker_id),
            seat_worker=self._view.seat_worker(session),
        )

    async def _bind(self, session: LabletSession, worker: LabWorker) -> Again:
        claim = session.status.claim
        assert claim is not None, "what is bound has a claim"
        wanted = Assignment(
            start=claim.start,
            end=claim.end,
            worker_id=worker.metadata.uid,
            seat=session.status.seat,
            reason=f"its time has come, and {worker.metadata.name} has its seat",
        )
        try:
            await self._hands.schedule(session, wanted)
        except NoRoom as error:
            _log.warning("no room for a promise", session=str(ref_of(session)), error=str(error))
            return after(AGAIN)
        return DONE
