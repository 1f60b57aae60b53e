"""Which sessions need a place, and what each asks for. Pure but for the view it reads; `placing` plans for them all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lcm.control.plane.protocol import ref_of
from lcm.controllers.scheduler.index import Bench, Chair
from lcm.controllers.scheduler.licences import Shortage, Shortages, needs_one, unlicensed
from lcm.controllers.scheduler.queue_plan import Seeker
from lcm.controllers.scheduler.risk import NO_PLACE, Facts, Risk, risk_of
from lcm.controllers.scheduler.sessions import MOST_RETRIES
from lcm.controllers.scheduler.view import View
from lcm.model.base.capacity import NOTHING, Claim
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import CLEAN_UP, LabletSession, is_asap
from lcm.placement.claims import asap_claim, asap_length, need_of, request_for, slot_claim
from lcm.placement.fleet import Fleet
from lcm.placement.places import session_holder
from lcm.placement.request import Place

_AHEAD: Final = timedelta(minutes=10)
_EVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Seeking:
    """Who needs a place, by namespace; which promises are in danger; who asks for nobody knows how much."""

    seekers: dict[str, list[Seeker]]
    risks: dict[str, Risk]
    """By holder."""
    unclear: list[LabletSession]


def look(
    view: View,
    definition: Callable[[LabletSession], LabletDefinition | None],
    now: datetime,
    lacking: Shortages | None = None,
) -> Seeking:
    """Find all who need a place now; `lacking` says which pools have too few licences."""
    found = Seeking({}, {}, [])
    for session in view.line_up.pending.values():
        known = definition(session)
        if known is None or ends(session, now) or session.status.retry_count >= MOST_RETRIES:
            continue
        if is_asap(session):
            _join(found, session, _asap(view, session, known, now))
        elif session.status.seat is None or session.status.claim is None:
            found.risks[session_holder(session)] = Risk(NO_PLACE, "its worker is lost, and no other place fits it")
            _join(found, session, _slot(view, session, known, now))
    for session, risk in _endangered(view, now, lacking or {}):
        known = definition(session)
        found.risks[session_holder(session)] = risk
        if known is not None:
            _join(found, session, _slot(view, session, known, now))
    return found


def _endangered(view: View, now: datetime, lacking: Shortages) -> Iterator[tuple[LabletSession, Risk]]:
    terms = view.terms()
    near = now + terms.horizon + _AHEAD
    for chair, bench in view.line_up.promised.items():
        place, short = view.place_at(chair), lacking.get(chair[0])
        open_yet = place is None or place.seat
        for session in bench.all() if short else _suspects(view, chair, bench, now, near):
            claim = session.status.claim
            far = claim is not None and claim.start > near and open_yet
            if claim is None or (far and short is None) or ends(session, now):
                continue
            risk = _lack(view, session, place, short) or (None if far else _judged(view, session, place, now))
            if risk is not None:
                yield session, risk


def _suspects(view: View, chair: Chair, bench: Bench, now: datetime, near: datetime) -> Sequence[LabletSession]:
    """Give those of a seat who can be in danger: of a place that holds all that is promised on it, whoever is late."""
    place, terms = view.place_at(chair), view.terms()
    if place is None:
        return bench.some(near, timedelta.max)
    worker, fleet = view.worker(place.id), view.fleet(chair[0].namespace)
    if (worker is not None and worker.status.failure) or not fleet.fits(place.id, _hence(now)):
        return bench.all()
    usable = max(now, place.usable_at or now)
    return bench.some(usable - terms.buffer, terms.buffer - terms.instantiation)


def _hence(now: datetime) -> Claim:
    return Claim(start=now, end=_EVER, need=NOTHING)


def _lack(view: View, session: LabletSession, place: Place | None, short: Shortage | None) -> Risk | None:
    """Say whether a session will lack a licence; one whose worker has it keeps it."""
    worker, claim = view.worker(place.id) if place else None, session.status.claim
    risk = short.risk(claim) if short and claim and needs_one(session, worker) else None
    return risk or unlicensed(session, worker, view)


def _judged(view: View, session: LabletSession, place: Place | None, now: datetime) -> Risk | None:
    return risk_of(session, _facts(view, session, place, now))


def latest_start(view: View, session: LabletSession) -> datetime | None:
    """Say until when a slot's place must be its own, for its lab to be up about when it begins."""
    terms, begins = view.terms(), session.spec.timeslot_start
    start_up = min(view.pace.start_up(session.spec.definition, terms), terms.instantiation)
    return begins - start_up + terms.buffer if begins else None


def _facts(view: View, session: LabletSession, place: Place | None, now: datetime) -> Facts:
    fleet, latest = view.fleet(session.metadata.namespace), latest_start(view, session)
    return Facts(place, fleet, now, view.terms().buffer, latest, lambda *asked: _overstay(view, fleet, *asked))


def _overstay(view: View, fleet: Fleet, place: Place, since: datetime) -> datetime | None:
    several = [(one.claim.end, view.claim_of(one.holder)) for one in fleet.held(place.id)]
    return max((end for end, claim in several if claim and claim.end <= since < end), default=None)


def _join(found: Seeking, session: LabletSession, seeker: Seeker | None) -> None:
    if seeker is None:
        found.unclear.append(session)
    else:
        found.seekers.setdefault(session.metadata.namespace, []).append(seeker)


def _asap(view: View, session: LabletSession, definition: LabletDefinition, now: datetime) -> Seeker | None:
    need = need_of(session, definition)
    if need is None:
        return None
    return _seeker(view, session, definition, asap_claim(session, now, need, view.terms()))


def _slot(view: View, session: LabletSession, definition: LabletDefinition, now: datetime) -> Seeker | None:
    """Say what a slot still asks for: from its time on, or from now on if that has come, until its end."""
    known, terms = session.status.claim, view.terms()
    need = known.need if known else need_of(session, definition)
    start, end = session.spec.timeslot_start, session.status.ends_at or session.spec.timeslot_end
    if need is None or start is None or end is None:
        return None
    wanted = slot_claim(start, end, need, terms)
    claim = Claim(start=max(now, known.start if known else wanted.start), end=end + CLEAN_UP, need=need)
    seeker = _seeker(view, session, definition, claim)
    # What missed its beginning may begin whenever it can.
    return replace(seeker, request=replace(seeker.request, movable=True)) if claim.start <= now else seeker


def _seeker(view: View, session: LabletSession, definition: LabletDefinition, claim: Claim) -> Seeker:
    terms, place = view.terms(), view.place_of(session)
    start_up = view.pace.start_up(session.spec.definition, terms)
    length = asap_length(session, claim.start)
    return Seeker(
        session,
        request_for(session, definition, claim, terms),
        start_up,
        place.id if place else None,
        start_up + length + view.pace.clean_up() if is_asap(session) else None,
        view.is_turned_away(ref_of(session)),
    )


def ends(session: LabletSession, now: datetime) -> bool:
    """Tell whether a session's time is over, which only its step out of this phase is still to say."""
    return session.status.expires_at is not None and session.status.expires_at <= now
