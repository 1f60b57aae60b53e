"""When a promise is in danger, and who is told: a condition on the session and an alert. Pure.

`placing` first tries to keep the promise elsewhere; what is told here is what could not be helped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from lcm.controllers.scheduler.view import View
from lcm.model.base.capacity import NOTHING, Amount, Claim, Profile
from lcm.model.base.resource import Condition, Truth, condition, with_condition
from lcm.model.kinds.session import LabletSession, LabletSessionStatus, SessionCondition, SessionPhase, holds
from lcm.model.kinds.worker import LabWorker
from lcm.model.telemetry.alert import Complaint, Severity
from lcm.placement.candidate import clock
from lcm.placement.fleet import Fleet
from lcm.placement.places import session_holder, whole_of
from lcm.placement.request import BOOTING, Place
from lcm.placement.seats import STRANGERS_STAY

ALERT: Final = "SessionAtRisk"
NO_WORKER: Final = "NoWorkerInTime"
LATE: Final = "SeatTooLate"
TAKEN: Final = "SeatStillTaken"
TOO_SMALL: Final = "SeatTooSmall"
FOREIGN: Final = "ForeignLabs"
NO_PLACE: Final = "NoPlace"
NO_LICENCE: Final = "NoLicence"


@dataclass(frozen=True, slots=True)
class Risk:
    """Why a session may not get what it was promised: in one word, and in a sentence; and what an operator can do."""

    reason: str
    message: str
    remedy: str = "free a worker for it"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a promise is judged by: the place that its seat is now, and what is held on all.

    `latest` is until when its claim must begin for it to be in time. `stays` says until when others will likely be on
    a place that should be gone by a moment.
    """

    place: Place | None
    fleet: Fleet
    now: datetime
    grace: timedelta
    latest: datetime | None = None
    stays: Callable[[Place, datetime], datetime | None] = lambda *_: None


def risk_of(session: LabletSession, facts: Facts) -> Risk | None:
    """Judge a session that has a seat and no worker yet."""
    seat, claim = session.status.seat, session.status.claim
    if seat is None or claim is None:
        return Risk(NO_PLACE, "it has no place")
    name = f"{seat.pool}/{seat.number}"
    if facts.place is None:
        return Risk(NO_WORKER, f"its seat {name} has no worker and gets none")
    return _late(name, claim, facts.place, facts) or _taken(name, claim, facts.place, facts)


def _late(seat: str, claim: Claim, place: Place, facts: Facts) -> Risk | None:
    usable = place.usable_at
    if usable is not None and usable > claim.start + facts.grace:
        # A boot that has not begun ends later with every minute, and this is told once.
        boots = place.closed == BOOTING
        when = f"can be used from {clock(usable)} on" if boots else "has no worker that is up by then"
        return Risk(NO_WORKER, f"{_needed(seat, claim)}, and {place.name} {when}")
    if facts.latest is not None and claim.start > facts.latest:
        return Risk(LATE, f"its seat {seat} is its own from {clock(claim.start)} on, too late for when its slot begins")
    return None


def _taken(seat: str, claim: Claim, place: Place, facts: Facts) -> Risk | None:
    due, left = claim.start + facts.grace, _from(claim, facts.now)
    until = None if _bears(facts.fleet, place, left) else facts.stays(place, claim.start)
    if until is not None and until > due:
        told = f"sessions on {place.name} end later than they claimed, at {clock(until)}"
        return Risk(TAKEN, f"{_needed(seat, claim)}, and {told}")
    if facts.now > due:
        return Risk(NO_WORKER, f"{_needed(seat, claim)}, and {place.name} did not take it")
    left = _from(left, until or left.start)
    return None if _bears(facts.fleet, place, left) else _crowded(facts.fleet, place, left, facts.now)


def _needed(seat: str, claim: Claim) -> str:
    return f"its seat {seat} is needed from {clock(claim.start)} on"


def _crowded(fleet: Fleet, place: Place, claim: Claim, now: datetime) -> Risk | None:
    """Say why more is held on a place than it holds; labs that no session made count only while they may last."""
    if not _bears_alone(fleet, place, claim):
        return Risk(TOO_SMALL, f"{place.name} is smaller than its template says: more is promised on it than it holds")
    near = claim.start < now + STRANGERS_STAY
    return (
        Risk(FOREIGN, f"labs on {place.name} that no session made take what was promised: end them") if near else None
    )


def flagged(session: LabletSession, risk: Risk | None, now: datetime) -> LabletSessionStatus:
    """Give a session's status with the condition as it is now; of a danger that is over it says what it was."""
    new = Condition(
        type=SessionCondition.AT_RISK,
        status=Truth.TRUE if risk else Truth.FALSE,
        last_transition_at=now,
        reason=risk.reason if risk else "Kept",
        message=risk.message[:2000] if risk else _was(session),
    )
    return msgspec.structs.replace(session.status, conditions=with_condition(session.status.conditions, new))


def _was(session: LabletSession) -> str:
    """Say what the danger was: who starts late is to know why, and nobody else remembers."""
    known = condition(session.status.conditions, SessionCondition.AT_RISK)
    return f"before: {known.reason}, {known.message}"[:2000] if known and known.status is Truth.TRUE else ""


def complaint(session: LabletSession, risk: Risk) -> Complaint:
    """Say to operators what is wrong."""
    remedy = "" if risk.message.endswith(risk.remedy) else f"; {risk.remedy}"
    text = f"{session.metadata.name}: {risk.message}{remedy}, or tell its owner"
    return Complaint(alert=ALERT, severity=Severity.CRITICAL, reason=risk.reason, message=text[:2000])


def _from(claim: Claim, moment: datetime) -> Claim:
    """Give what is left of a claim from a moment on."""
    return msgspec.structs.replace(claim, start=max(claim.start, moment))


def _bears(fleet: Fleet, place: Place, claim: Claim) -> bool:
    """Tell whether what is held on a place is within what it holds, as long as a claim lasts."""
    return claim.start >= claim.end or fleet.fits(place.id, msgspec.structs.replace(claim, need=NOTHING))


def _bears_alone(fleet: Fleet, place: Place, claim: Claim) -> bool:
    """Tell whether it would be, were there no labs that no session made."""
    if place.whole is None:
        return False
    return Profile.of(one.claim for one in fleet.held(place.id)).peak(claim.start, claim.end).within(place.whole)


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
