"""Which promises are in danger, and the condition that reports it. Pure except for the view it reads.

`PlacementLoop` first tries to keep a promise elsewhere; what is reported here could not be helped. `find_misfits` finds
sessions that no longer fit on the worker they are on, because it holds less than was thought. They cannot be moved,
only reported. The control plane raises and clears the alert with the condition (`control.telemetry.state_alerts`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.capacity import ZERO_AMOUNT, Amount, Claim, Profile
from lcm.model.base.resource import Condition, Truth, find_condition, shorten_text, with_condition
from lcm.model.kinds.session import (
    LabletSession,
    LabletSessionStatus,
    RiskReason,
    SessionCondition,
    SessionPhase,
    get_claim,
)
from lcm.model.kinds.worker import LabWorker
from lcm.placement.candidate import format_moment
from lcm.placement.fleet import PlaceIndex
from lcm.placement.places import full_capacity, session_holder
from lcm.placement.request import BOOTING, Place
from lcm.placement.seats import FOREIGN_LABS_STAY


@dataclass(frozen=True, slots=True)
class Risk:
    """Why a session may not get what it was promised: a reason, and a message."""

    reason: RiskReason
    message: str


@dataclass(frozen=True, slots=True)
class RiskFacts:
    """What a promise is judged by: the place of its seat now, and the claims held on all places.

    `latest` is until when its claim must begin to be in time. `stays` returns until when others will likely stay on
    a place that they should leave by a given moment.
    """

    place: Place | None
    fleet: PlaceIndex
    now: datetime
    grace: timedelta
    latest: datetime | None = None
    stays: Callable[[Place, datetime], datetime | None] = lambda *_: None


def risk_of(session: LabletSession, facts: RiskFacts) -> Risk | None:
    """Return the risk of a session that has a seat and no worker yet, or None."""
    seat, claim = session.status.seat, session.status.claim
    if seat is None or claim is None:
        return Risk(RiskReason.NO_PLACE, "it has no place")
    name = f"{seat.pool}/{seat.number}"
    if facts.place is None:
        return Risk(RiskReason.NO_WORKER, f"its planned worker {name} has no machine and gets none")
    if facts.place.until is not None and claim.start >= facts.place.until:
        return None  # another machine takes the place of this smaller one
    return _lateness_risk(name, claim, facts.place, facts) or _occupied_risk(name, claim, facts.place, facts)


def _lateness_risk(seat: str, claim: Claim, place: Place, facts: RiskFacts) -> Risk | None:
    usable = place.usable_at
    if usable is not None and usable > claim.start + facts.grace:
        # A boot that has not begun ends later every minute, so no time is named: the message is written only once.
        boots = place.closed == BOOTING
        when = f"can be used from {format_moment(usable)} on" if boots else "has no machine that is up by then"
        return Risk(RiskReason.NO_WORKER, f"{_needed_text(seat, claim)}, and {place.name} {when}")
    if facts.latest is not None and claim.start > facts.latest:
        return Risk(
            RiskReason.LATE,
            f"its planned worker {seat} is free for it from {format_moment(claim.start)} on, too late for its slot",
        )
    return None


def _occupied_risk(seat: str, claim: Claim, place: Place, facts: RiskFacts) -> Risk | None:
    due, left = claim.start + facts.grace, _claim_from(claim, facts.now)
    until = None if _fits_all(facts.fleet, place, left) else facts.stays(place, claim.start)
    if until is not None and until > due:
        told = f"sessions on {place.name} end later than they claimed, at {format_moment(until)}"
        return Risk(RiskReason.TAKEN, f"{_needed_text(seat, claim)}, and {told}")
    if facts.now > due:
        return Risk(RiskReason.NO_WORKER, f"{_needed_text(seat, claim)}, and {place.name} did not take it")
    left = _claim_from(left, until or left.start)
    return None if _fits_all(facts.fleet, place, left) else _overload_risk(facts.fleet, place, left, facts.now)


def _needed_text(seat: str, claim: Claim) -> str:
    return f"its planned worker {seat} is needed from {format_moment(claim.start)} on"


def _overload_risk(fleet: PlaceIndex, place: Place, claim: Claim, now: datetime) -> Risk | None:
    """Return why more is held on a place than fits. Labs that no session made count only as long as they may last."""
    held = Profile.of(one.claim for one in fleet.claims_on(place.id))
    if place.whole is None or not held.peak(claim.start, claim.end).within(place.whole):
        return Risk(
            RiskReason.TOO_SMALL,
            f"{place.name} is smaller than its template says: more is promised on it than it holds",
        )
    near = claim.start < now + FOREIGN_LABS_STAY
    return (
        Risk(RiskReason.FOREIGN, f"labs on {place.name} that no session made take what was promised: end them")
        if near
        else None
    )


def with_risk(session: LabletSession, risk: Risk | None, now: datetime) -> LabletSessionStatus:
    """Return a session's status with the condition as it is now; after a danger it tells what the danger was."""
    known = find_condition(session.status.conditions, SessionCondition.AT_RISK)
    # The owner of a late session should learn why, and nothing else records it.
    past = f"before: {known.reason}, {known.message}" if known and known.status is Truth.TRUE else ""
    new = Condition(
        type=SessionCondition.AT_RISK,
        status=Truth.TRUE if risk else Truth.FALSE,
        last_transition_at=now,
        reason=risk.reason if risk else "Kept",
        message=shorten_text(risk.message if risk else past),
    )
    return msgspec.structs.replace(session.status, conditions=with_condition(session.status.conditions, new))


def _claim_from(claim: Claim, moment: datetime) -> Claim:
    """Return what is left of a claim from a moment on."""
    return msgspec.structs.replace(claim, start=max(claim.start, moment))


def _fits_all(fleet: PlaceIndex, place: Place, claim: Claim) -> bool:
    """Return whether everything held on a place fits for as long as a claim lasts."""
    return claim.start >= claim.end or fleet.fits(place.id, msgspec.structs.replace(claim, need=ZERO_AMOUNT))


_P: Final = SessionPhase
_KEEP_ORDER: Final[Mapping[SessionPhase, int]] = {_P.STOPPING: 0, _P.COLLECTING: 0, _P.RUNNING: 1, _P.INSTANTIATING: 2}
"""Who keeps the capacity: sessions that leave, then those that run, then those that start; all others after them."""
_KEEP_LAST: Final = 3
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def find_misfits(view: SchedulerView, now: datetime) -> Mapping[str, tuple[LabletSession, Risk]]:
    """Return, by holder, the sessions that no longer fit beside the others on their worker."""
    found: dict[str, tuple[LabletSession, Risk]] = {}
    for uid in view.undersized:
        worker, sessions = view.worker(uid), [one for one in view.sessions_on(uid) if not one.spec.prebuilt]
        whole = full_capacity(worker) if worker else None
        if worker is None or whole is None or _fits_everything(view, worker, sessions, now):
            continue
        text = f"{worker.metadata.name} has less than its template says: more is on it than it holds; end others there"
        for session in _pick_misfits(sessions, whole, now):
            found[session_holder(session)] = session, Risk(RiskReason.TOO_SMALL, text)
    return found


def _fits_everything(view: SchedulerView, worker: LabWorker, sessions: Iterable[LabletSession], now: datetime) -> bool:
    """Return, from the index alone, whether everything fits that is on a worker or promised there."""
    ends = [claim.end for one in sessions if (claim := get_claim(one)) is not None and claim.end > now]
    place = view.place_at(worker.metadata.uid)
    if not ends or place is None:
        return not ends
    return view.fleet(worker.metadata.namespace).fits(place.id, Claim(start=now, end=max(ends), need=ZERO_AMOUNT))


def _pick_misfits(sessions: Iterable[LabletSession], room: Amount, now: datetime) -> Iterator[LabletSession]:
    kept: list[Claim] = []
    for session in sorted(sessions, key=_keep_key):
        claim = get_claim(session)
        if claim is None or claim.end <= now:
            continue
        left = _claim_from(claim, now)
        if _KEEP_ORDER.get(session.status.phase) == 0 or Profile.of(kept).fits(left, room):
            kept.append(left)
        else:
            yield session


def _keep_key(session: LabletSession) -> tuple[int, datetime, str]:
    status = session.status
    return _KEEP_ORDER.get(status.phase, _KEEP_LAST), status.assigned_at or _EARLIEST, session.metadata.name
