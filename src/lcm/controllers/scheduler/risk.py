"""When a promise is in danger, and who is told: a condition on the session and an alert. Pure.

`placing` first tries to keep the promise elsewhere; what is told here is what could not be helped.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.model.alert import Complaint, Severity
from lcm.model.capacity import NOTHING, Claim
from lcm.model.resource import Condition, Truth, with_condition
from lcm.model.session import LabletSession, LabletSessionStatus, SessionCondition
from lcm.placement.ask import clock
from lcm.placement.fleet import Fleet
from lcm.placement.request import Place

ALERT: Final = "SessionAtRisk"
NO_WORKER: Final = "NoWorkerInTime"
TOO_SMALL: Final = "SeatTooSmall"
NO_PLACE: Final = "NoPlace"


@dataclass(frozen=True, slots=True)
class Risk:
    """Why a session may not get what it was promised: in one word, and in a sentence."""

    reason: str
    message: str


def risk_of(session: LabletSession, place: Place | None, fleet: Fleet, now: datetime, grace: timedelta) -> Risk | None:
    """Judge a session that has a seat and no worker yet, by the place which its seat is now."""
    status = session.status
    if status.seat is None or status.claim is None:
        return Risk(NO_PLACE, "it has no place")
    seat, claim = f"{status.seat.pool}/{status.seat.number}", status.claim
    if place is None:
        return Risk(NO_WORKER, f"its seat {seat} has no worker and gets none")
    usable = place.usable_at or now
    if max(usable, now) > claim.start + grace:
        told = f"can be used from {clock(usable)} on" if usable > now else "did not take it"
        return Risk(NO_WORKER, f"its seat {seat} is needed from {clock(claim.start)} on, and {place.name} {told}")
    if not _bears(fleet, place, claim):
        return Risk(TOO_SMALL, f"{place.name} is smaller than its template says: more is promised on it than it holds")
    return None


def flagged(session: LabletSession, risk: Risk | None, now: datetime) -> LabletSessionStatus:
    """Give a session's status with the condition as it is now."""
    new = Condition(
        type=SessionCondition.AT_RISK,
        status=Truth.TRUE if risk else Truth.FALSE,
        last_transition_at=now,
        reason=risk.reason if risk else "Kept",
        message=risk.message[:2000] if risk else "",
    )
    return msgspec.structs.replace(session.status, conditions=with_condition(session.status.conditions, new))


def complaint(session: LabletSession, risk: Risk) -> Complaint:
    """Say to operators what is wrong."""
    text = f"{session.metadata.name}: {risk.message}; free a worker for it, or tell its owner"
    return Complaint(alert=ALERT, severity=Severity.CRITICAL, reason=risk.reason, message=text[:2000])


def _bears(fleet: Fleet, place: Place, claim: Claim) -> bool:
    """Tell whether what is held on a place is within what it holds, as long as a claim lasts."""
    return fleet.fits(place.id, msgspec.structs.replace(claim, need=NOTHING))
