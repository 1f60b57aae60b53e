"""Which sessions no longer fit on the worker they are on, because that holds less than was thought. For `placing`.

What is only promised there is `risk`'s, and can be promised elsewhere; whoever is on the worker can only be told.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from lcm.controllers.scheduler.risk import TOO_SMALL, Risk
from lcm.controllers.scheduler.view import View
from lcm.model.capacity import NOTHING, Amount, Claim, Profile
from lcm.model.session import LabletSession, SessionPhase, holds
from lcm.model.worker import LabWorker
from lcm.placement.roster import session_holder, whole_of

_P: Final = SessionPhase
_TURNS: Final[Mapping[SessionPhase, int]] = {_P.STOPPING: 0, _P.COLLECTING: 0, _P.RUNNING: 1, _P.INSTANTIATING: 2}
"""Who has what there is: those who leave, then those who work, then those who come up; the others after them."""
_LAST: Final = 3
_EVER: Final = datetime.min.replace(tzinfo=UTC)


def squeezed(view: View, now: datetime) -> Mapping[str, tuple[LabletSession, Risk]]:
    """Give, by holder, the sessions that do not fit any more beside the others on their worker."""
    found: dict[str, tuple[LabletSession, Risk]] = {}
    for uid in view.small:
        worker, sessions = view.worker(uid), view.sessions_on(uid)
        whole = whole_of(worker) if worker else None
        if worker is None or whole is None or _holds_all(view, worker, sessions, now):
            continue
        text = f"{worker.metadata.name} has less than its template says: more is on it than it holds"
        for session in _misfits(sessions, whole, now):
            found[session_holder(session)] = session, Risk(TOO_SMALL, text, "end others there")
    return found


def _holds_all(view: View, worker: LabWorker, sessions: Iterable[LabletSession], now: datetime) -> bool:
    """Tell, by the index alone, whether everything fits that is on a worker or promised there."""
    ends = [claim.end for one in sessions if (claim := holds(one)) is not None and claim.end > now]
    place = view.place_at(worker.metadata.uid)
    if not ends or place is None:
        return not ends
    return view.fleet(worker.metadata.namespace).fits(place.id, Claim(start=now, end=max(ends), need=NOTHING))


def _misfits(sessions: Iterable[LabletSession], room: Amount, now: datetime) -> Iterator[LabletSession]:
    kept: list[Claim] = []
    for session in sorted(sessions, key=_turn):
        claim = holds(session)
        if claim is None or claim.end <= now:
            continue
        left = msgspec.structs.replace(claim, start=max(claim.start, now))
        if _TURNS.get(session.status.phase) == 0 or Profile.of(kept).fits(left, room):
            kept.append(left)
        else:
            yield session


def _turn(session: LabletSession) -> tuple[int, datetime, str]:
    status = session.status
    return _TURNS.get(status.phase, _LAST), status.assigned_at or _EVER, session.metadata.name
