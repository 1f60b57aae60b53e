"""Which sessions want something of the scheduler: who waits for a place, who was promised one, who is at risk.

Kept up to date one by one. For `view`.
"""

from typing import Any, Final

from lcm.control.plane import Ref, SessionRef
from lcm.controllers.scheduler.bench import Bench
from lcm.model.pool import LabWorkerPool
from lcm.model.resource import Truth, condition
from lcm.model.session import LabletSession, SessionCondition, SessionPhase, is_asap

Chair = tuple[Ref[LabWorkerPool], int]
"""A seat of a pool."""
_P: Final = SessionPhase
_WAITING: Final = frozenset({_P.PENDING, _P.SCHEDULED})
_PROMISED: Final = "promised"


class LineUp:
    """Sessions by what they want."""

    def __init__(self) -> None:
        self.pending: dict[SessionRef, LabletSession] = {}
        """Those in PENDING."""
        self.promised: dict[Chair, Bench] = {}
        """Those with a slot that have a seat and no worker yet, by their seats."""
        self.flagged: dict[SessionRef, LabletSession] = {}
        """Those that somebody was told of as being at risk."""
        self._chairs: dict[SessionRef, Chair] = {}
        self._gists: dict[Ref[Any], object] = {}

    def note(self, ref: SessionRef, session: LabletSession | None) -> bool:
        """Take note of a session as it is now; tell whether that can matter to any who wait."""
        for where, belongs in ((self.pending, _waits), (self.flagged, at_risk)):
            if session is not None and belongs(session):
                where[ref] = session
            else:
                where.pop(ref, None)
        self._sit(ref, session)
        before, now = self._gists.pop(ref, None), _gist(session) if session else None
        if now is not None:
            self._gists[ref] = now
        return before != now

    def _sit(self, ref: SessionRef, session: LabletSession | None) -> None:
        before = self._chairs.pop(ref, None)
        if before is not None:
            self.promised[before].remove(ref)
            if not self.promised[before]:
                del self.promised[before]
        seat = session.status.seat if session else None
        if session is not None and seat is not None and _promised(session):
            chair = Ref(LabWorkerPool, seat.pool, ref.namespace), seat.number
            self.promised.setdefault(chair, Bench()).add(ref, session)
            self._chairs[ref] = chair


def at_risk(session: LabletSession) -> bool:
    """Tell whether a session carries the condition."""
    known = condition(session.status.conditions, SessionCondition.AT_RISK)
    return known is not None and known.status is Truth.TRUE


def _waits(session: LabletSession) -> bool:
    return session.status.phase is _P.PENDING


def _promised(session: LabletSession) -> bool:
    """Tell whether a session has a promise to wait for; the step that only says so changes nothing for anybody."""
    status = session.status
    return status.phase in _WAITING and status.claim is not None and status.worker_id is None and not is_asap(session)


def _gist(session: LabletSession) -> object:
    status = session.status
    return (
        session.metadata.uid,
        session.spec,
        _PROMISED if status.seat is not None and _promised(session) else status.phase,
        status.claim,
        status.seat,
        status.worker_id,
        status.ends_at,
        status.expires_at,
        status.retry_count,
    )
