"""Who starts on a worker before whom: twenty labs that boot at once take longer than four at a time. Pure.

Told from the sessions as they are known, oldest first, so that whoever looks comes to the same.
"""

from collections.abc import Iterable
from datetime import datetime

from lcm.controllers.session.restarts import coming_up
from lcm.model.session import LabletSession, SessionPhase


def ahead_of(session: LabletSession, others: Iterable[LabletSession], now: datetime) -> int:
    """Count the labs on a session's worker that start now, or are to start before its own."""
    mine = _turn(session)
    rest = (one for one in others if one.metadata.uid != session.metadata.uid)
    return sum(_starts(one, now) or (_waits(one, now) and _turn(one) < mine) for one in rest)


def _starts(session: LabletSession, now: datetime) -> bool:
    """Tell whether its lab boots; one that runs and never comes up again keeps no place for ever."""
    phase = session.status.phase
    return phase is SessionPhase.INSTANTIATING or (phase is SessionPhase.RUNNING and coming_up(session, now))


def _waits(session: LabletSession, now: datetime) -> bool:
    status = session.status
    has_all = status.claim is not None and status.allocated_ports is not None
    return status.phase is SessionPhase.SCHEDULED and has_all and status.claim is not None and status.claim.start <= now


def _turn(session: LabletSession) -> tuple[str, str, str]:
    claim, made = session.status.claim, session.metadata.created_at
    return (
        claim.start.isoformat() if claim else "",
        made.isoformat() if made else "",
        session.metadata.uid,
    )
