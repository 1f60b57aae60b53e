"""Which sessions want something of the scheduler: who waits for a place, who was promised one, who is at risk.

Kept up to date one by one. For `view`.
"""

from typing import Any, Final

from lcm.control.plane import Ref, SessionRef
from lcm.model.resource import Truth, condition
from lcm.model.session import LabletSession, SessionCondition, SessionPhase, is_asap

_P: Final = SessionPhase


class LineUp:
    """Sessions by what they want."""

    def __init__(self) -> None:
        self.pending: dict[SessionRef, LabletSession] = {}
        """Those in PENDING."""
        self.promised: dict[SessionRef, LabletSession] = {}
        """Those with a slot that have a seat and no worker yet."""
        self.flagged: dict[SessionRef, LabletSession] = {}
        """Those that somebody was told of as being at risk."""
        self._gists: dict[Ref[Any], object] = {}

    def note(self, ref: SessionRef, session: LabletSession | None) -> bool:
        """Take note of a session as it is now; tell whether that can matter to any who wait."""
        for where, belongs in ((self.pending, _waits), (self.promised, _promised), (self.flagged, at_risk)):
            if session is not None and belongs(session):
                where[ref] = session
            else:
                where.pop(ref, None)
        before, now = self._gists.pop(ref, None), _gist(session) if session else None
        if now is not None:
            self._gists[ref] = now
        return before != now


def at_risk(session: LabletSession) -> bool:
    """Tell whether a session carries the condition."""
    known = condition(session.status.conditions, SessionCondition.AT_RISK)
    return known is not None and known.status is Truth.TRUE


def _waits(session: LabletSession) -> bool:
    return session.status.phase is _P.PENDING


def _promised(session: LabletSession) -> bool:
    status = session.status
    return status.phase is _P.SCHEDULED and status.worker_id is None and not is_asap(session)


def _gist(session: LabletSession) -> object:
    status = session.status
    return (
        session.metadata.uid,
        session.spec,
        status.phase,
        status.claim,
        status.seat,
        status.worker_id,
        status.ends_at,
        status.expires_at,
        status.retry_count,
    )
