"""Which sessions need a place, and what each one requests.

Pure except for the view it reads; `PlacementLoop` plans for them all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref
from lcm.controllers.scheduler.index import PromisedSessions, SeatKey
from lcm.controllers.scheduler.licences import LicenceShortage, Shortages, needs_licence, unlicensed_risk
from lcm.controllers.scheduler.queue_plan import Seeker
from lcm.controllers.scheduler.risk import Risk, RiskFacts, risk_of
from lcm.controllers.scheduler.sessions import MAX_RETRIES
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.capacity import ZERO_AMOUNT, Claim
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, RiskReason, is_asap
from lcm.placement.claims import asap_claim, asap_length, need_of, request_for, slot_claim
from lcm.placement.places import session_holder
from lcm.placement.request import Place, PlacementRequest
from lcm.placement.rules import request_facts
from lcm.system.tasks import TimeSlice

_NEAR_MARGIN: Final = timedelta(minutes=10)
_FOREVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PlacementNeeds:
    """Who needs a place, by namespace; which promises are in danger; whose request is not known."""

    seekers: dict[str, list[Seeker]]
    risks: dict[str, Risk]
    """By holder."""
    unclear: list[LabletSession]


class SuspectSeats:
    """The seats of which a promise may be in danger whatever the time is; of all others only near promises are."""

    def __init__(self) -> None:
        self._seats: set[SeatKey] = set()

    async def update(self, view: SchedulerView, now: datetime) -> None:
        """Look at the seats of which something changed; others have their turn in between."""
        time_slice = TimeSlice()
        for seat in view.take_touched_seats():
            promised = view.session_index.promised.get(seat)
            suspect = promised is not None and _is_suspect(view, seat, promised, now)
            (self._seats.add if suspect else self._seats.discard)(seat)
            await time_slice.yield_if_over()

    def find(self, view: SchedulerView, now: datetime, lacking: Shortages) -> Sequence[SeatKey]:
        """Return the seats to look at now, in a fixed order."""
        near = max(now + view.terms().horizon + _NEAR_MARGIN, now + view.longest_lead())
        found = self._seats | view.session_index.seats_claimed_before(near)
        if lacking:
            found |= {seat for seat in view.session_index.promised if seat[0] in lacking}
        return sorted(found, key=lambda seat: (str(seat[0]), seat[1]))


def _is_suspect(view: SchedulerView, seat: SeatKey, promised: PromisedSessions, now: datetime) -> bool:
    terms = view.terms()
    return _holds_too_little(view, seat, now) or promised.has_late(terms.buffer - terms.instantiation)


def _holds_too_little(view: SchedulerView, seat: SeatKey, now: datetime) -> bool:
    """Return whether a seat has no place, one whose worker failed, or one that does not hold all promises."""
    place = view.place_at(seat)
    worker = view.worker(place.id) if place else None
    always = Claim(start=now, end=_FOREVER, need=ZERO_AMOUNT)
    failed = worker is not None and bool(worker.status.failure)
    return place is None or failed or not view.fleet(seat[0].namespace).fits(place.id, always)


def find_seekers(
    view: SchedulerView, cache: Cache, now: datetime, lacking: Shortages, seats: Iterable[SeatKey]
) -> PlacementNeeds:
    """Find all sessions that need a place now, of those that were promised one those of some seats.

    `lacking` names the pools that have too few licences.
    """
    found = PlacementNeeds({}, {}, [])
    for session in view.session_index.pending.values():
        known = cache.get(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))
        if known is None or is_expired(session, now) or session.status.retry_count >= MAX_RETRIES:
            continue
        if session.spec.prebuilt:
            continue  # it is placed after all others, where nobody needs the room
        if is_asap(session):
            _add_seeker(found, session, _asap_seeker(view, session, known, now))
        elif session.status.seat is None or session.status.claim is None:
            found.risks[session_holder(session)] = Risk(
                RiskReason.NO_PLACE, "its worker is lost, and no other place fits it"
            )
            _add_seeker(found, session, _slot_seeker(view, session, known, now))
    for session, risk in _find_endangered(view, now, lacking, seats):
        known = cache.get(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))
        found.risks[session_holder(session)] = risk
        if known is not None:
            _add_seeker(found, session, _slot_seeker(view, session, known, now))
    return found


def _find_endangered(
    view: SchedulerView, now: datetime, lacking: Shortages, seats: Iterable[SeatKey]
) -> Iterator[tuple[LabletSession, Risk]]:
    terms, promised = view.terms(), view.session_index.promised
    near = now + terms.horizon + _NEAR_MARGIN
    for chair, bench in ((seat, promised[seat]) for seat in seats if seat in promised):
        place, short = view.place_at(chair), lacking.get(chair[0])
        open_yet = place is None or place.seat
        for session in bench.all() if short else _find_suspects(view, chair, bench, now, near):
            claim = session.status.claim
            far = claim is not None and claim.start > near and open_yet
            if claim is None or (far and short is None) or is_expired(session, now):
                continue
            risk = _licence_risk(view, session, place, short) or (
                None if far else _place_risk(view, session, place, now)
            )
            if risk is not None:
                yield session, risk


def _find_suspects(
    view: SchedulerView, chair: SeatKey, bench: PromisedSessions, now: datetime, near: datetime
) -> Sequence[LabletSession]:
    """Return the sessions of a seat that can be in danger; only late ones where the place holds all promises."""
    place, terms = view.place_at(chair), view.terms()
    if place is None:
        return bench.find_early_or_late(near, timedelta.max)
    if _holds_too_little(view, chair, now):
        return bench.all()
    usable = max(now, place.usable_at or now)
    return bench.find_early_or_late(usable - terms.buffer, terms.buffer - terms.instantiation)


def _licence_risk(
    view: SchedulerView, session: LabletSession, place: Place | None, short: LicenceShortage | None
) -> Risk | None:
    """Return the risk that a session will lack a licence, or None; one whose worker has a licence keeps it."""
    worker, claim = view.worker(place.id) if place else None, session.status.claim
    risk = short.risk(claim) if short and claim and needs_licence(session, worker) else None
    return risk or unlicensed_risk(session, worker, view)


def _place_risk(view: SchedulerView, session: LabletSession, place: Place | None, now: datetime) -> Risk | None:
    fleet, latest = view.fleet(session.metadata.namespace), latest_start(view, session)

    def find_latest_overstay(place: Place, since: datetime) -> datetime | None:
        several = [(one.claim.end, view.claim_of(one.holder)) for one in fleet.claims_on(place.id)]
        return max((end for end, claim in several if claim and claim.end <= since < end), default=None)

    return risk_of(session, RiskFacts(place, fleet, now, view.terms().buffer, latest, find_latest_overstay))


def latest_start(view: SchedulerView, session: LabletSession) -> datetime | None:
    """Return until when a slot's claim must begin for its lab to be up about when the slot begins."""
    terms, begins = view.terms(), session.spec.timeslot_start
    start_up = min(view.durations.usual_start_up(session.spec.definition, terms), terms.instantiation)
    return begins - start_up + terms.buffer if begins else None


def _add_seeker(found: PlacementNeeds, session: LabletSession, seeker: Seeker | None) -> None:
    if seeker is None:
        found.unclear.append(session)
    else:
        found.seekers.setdefault(session.metadata.namespace, []).append(seeker)


def _asap_seeker(
    view: SchedulerView, session: LabletSession, definition: LabletDefinition, now: datetime
) -> Seeker | None:
    need = need_of(session, definition)
    if need is None:
        return None
    return _make_seeker(view, session, definition, asap_claim(session, now, need, view.terms()))


def _slot_seeker(
    view: SchedulerView, session: LabletSession, definition: LabletDefinition, now: datetime
) -> Seeker | None:
    """Return what a slot still requests: from its start, or from now if that has passed, until its end."""
    known, terms = session.status.claim, view.terms()
    need = known.need if known else need_of(session, definition)
    start, end = session.spec.timeslot_start, session.status.ends_at or session.spec.timeslot_end
    if need is None or start is None or end is None:
        return None
    wanted = slot_claim(start, end, need, terms)
    claim = Claim(start=max(now, known.start if known else wanted.start), end=end + CLEAN_UP_TIME, need=need)
    seeker = _make_seeker(view, session, definition, claim)
    # A session that missed its start may begin whenever it can.
    return replace(seeker, request=replace(seeker.request, movable=True)) if claim.start <= now else seeker


def _make_seeker(view: SchedulerView, session: LabletSession, definition: LabletDefinition, claim: Claim) -> Seeker:
    terms, place = view.terms(), view.place_of(session)
    start_up = view.durations.usual_start_up(session.spec.definition, terms)
    length, request = asap_length(session, claim.start), request_for(session, definition, claim, terms)
    wish = _wish_of(session, request)
    return Seeker(
        session,
        replace(request, refused=view.refusals(wish)),
        start_up,
        place.id if place else None,
        start_up + length + view.durations.usual_clean_up() if is_asap(session) else None,
        view.is_turned_away(wish),
        view.session_index.count_served(session),
        wish,
    )


def _wish_of(session: LabletSession, request: PlacementRequest) -> object:
    """Return what a session wishes: whoever wishes the same gets the same answers.

    It stays the same while time passes: a session without an end moves as a whole, of another less and less is left.
    """
    claim, moves = request.claim, is_asap(session) and session.status.ends_at is None
    return request_facts(request), claim.need, claim.end - claim.start if moves else claim.end


def is_expired(session: LabletSession, now: datetime) -> bool:
    """Return whether a session's time is over, although its phase does not show it yet."""
    return session.status.expires_at is not None and session.status.expires_at <= now
