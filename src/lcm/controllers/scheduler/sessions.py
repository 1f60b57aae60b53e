"""Takes each session the scheduler's steps: what was promised is scheduled, bound at its time, expired if missed.

Look, decide, do one thing, say when again. Run by `controller` through the runtime; finding places is `placing`'s.
"""

from datetime import timedelta
from typing import Final

import structlog

from lcm.control.cache import Cache
from lcm.control.plane import Plane, Ref, SessionRef, ref_of
from lcm.controllers.runtime import DONE, Again, after, at
from lcm.controllers.scheduler.deciding import Bind, Facts, Move, Wait, decide
from lcm.controllers.scheduler.hands import Hands
from lcm.controllers.scheduler.view import View
from lcm.model.clock import Clock
from lcm.model.definition import LabletDefinition
from lcm.model.errors import NoRoom
from lcm.model.placing import Assignment
from lcm.model.session import SESSION, LabletSession
from lcm.model.worker import LabWorker

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
