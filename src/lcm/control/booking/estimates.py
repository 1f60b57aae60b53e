"""What bookings will cost, by their claims: the share of a worker, its price, the time.

Used for the price before booking, for forecasts, and for limits of what an owner may spend. A claim is paid for whether
or not its session uses all of its time, so that an estimate is the most that is expected.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from lcm.control.accounts.stays import owner_subject, read_spent
from lcm.control.booking.calendar import Calendar
from lcm.control.booking.request import Booking, claims_of
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Claim
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import LabletSession, Seat, get_claim
from lcm.model.money.billing import next_month, start_of_month
from lcm.model.money.ledger import Machine
from lcm.model.money.split import PricedClaim, Stay, owner_month_cost, share_of
from lcm.placement.claims import asap_claim, need_of
from lcm.placement.places import PoolSnapshot
from lcm.store.base import Store


async def read_owner_month_cost(
    store: Store, calendar: Calendar, owner: str, now: datetime, *, added: Iterable[PricedClaim] = ()
) -> Decimal:
    """Return what an owner's sessions cost this month: those that are over, and all claims of bookings in the calendar.

    `added` are claims that are asked for (`price_booking`). Call it once the calendar knows the owner's guard: what
    ends meanwhile is found in the store.
    """
    month, booked = start_of_month(now), list(price_bookings(calendar, calendar.bookings_of(owner), now))
    spent = await read_spent(store, owner_subject(owner), [month])
    return owner_month_cost(spent, [*booked, *added], (month, next_month(month)))


def price_bookings(calendar: Calendar, bookings: Iterable[Booking], now: datetime) -> Iterator[PricedClaim]:
    """Yield the claims of bookings that have not ended, with their prices."""
    for booking in bookings:
        if isinstance(booking, LabletSession):
            yield from price_session(calendar, booking, now)
        elif booking.status.phase not in RESERVATION_MACHINE.final:
            yield from price_reservation(calendar, booking)


def price_session(calendar: Calendar, session: LabletSession, now: datetime) -> Iterator[PricedClaim]:
    """Yield the claim of a session; one that waits for its worker is priced as if it began now."""
    claim, seat = get_claim(session), session.status.seat
    worker = calendar.worker(session.status.worker_id or "")
    row = calendar.pool(Ref(LabWorkerPool, seat.pool, session.metadata.namespace)) if seat else None
    if claim is not None and worker is not None:
        said = row.template.spec.price_per_hour_usd if row else None
        share = share_of(claim.need, worker.status.capacity)
        yield PricedClaim(claim.start, claim.end, share, calendar.hourly_cost_of(worker.spec.aws, said))
    elif claim is not None and seat is not None:
        yield price_claim(calendar, row, claim)
    elif claim is None:
        definition = calendar.get(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))
        yield from price_booking(calendar, session, definition, now) if definition else ()


def price_reservation(calendar: Calendar, booking: Reservation) -> Iterator[PricedClaim]:
    """Yield the claims of a reservation that no session has taken over."""
    for held in booking.status.held:
        if held.session is None and held.seat is not None:
            row = calendar.pool(Ref(LabWorkerPool, held.seat.pool, booking.metadata.namespace))
            yield price_claim(calendar, row, held.claim)


def price_claim(calendar: Calendar, row: PoolSnapshot | None, claim: Claim) -> PricedClaim:
    """Return a claim with what it costs on a worker of a pool."""
    seats = calendar.seats(row) if row is not None else None
    usd_hourly = calendar.hourly_cost(row) if row is not None and seats is not None else None
    return PricedClaim(claim.start, claim.end, share_of(claim.need, seats.capacity if seats else None), usd_hourly)


def price_booking(
    calendar: Calendar, booking: Booking, definition: LabletDefinition, now: datetime
) -> Sequence[PricedClaim]:
    """Return what a booking without seats would claim, priced in the cheapest pool of its track.

    Without a slot it begins now. The claims have no price if none is known; there are none while its definition does
    not state its needs.
    """
    claims = _asked_claims(calendar, booking, definition, now)
    rows = calendar.pools(booking.metadata.namespace, booking.spec.lab_track)
    offers = [[price_claim(calendar, row, one) for one in claims] for row in rows]
    known = [offer for offer in offers if all(one.usd_hourly is not None for one in offer)]
    if not known:
        return [price_claim(calendar, None, one) for one in claims]
    return min(known, key=lambda offer: sum(one.micros(one.start, one.end) or 0 for one in offer))


def _asked_claims(calendar: Calendar, booking: Booking, definition: LabletDefinition, now: datetime) -> Sequence[Claim]:
    session = booking if isinstance(booking, LabletSession) else None
    need = need_of(session, definition)
    if need is None:
        return ()
    if session is not None and session.spec.timeslot_start is None:
        return [asap_claim(session, now, need, calendar.terms)]
    return claims_of(booking, definition, calendar.terms)


class BookedStay(NamedTuple):
    """A claim as a stay that is ahead, with its price and where it will be."""

    stay: Stay
    machine: Machine
    priced: PricedClaim


def booked_stays(calendar: Calendar, now: datetime) -> Iterator[BookedStay]:
    """Yield the claims of all bookings that are ahead of now or last until then."""
    for session in calendar.all(LabletSession):
        claim = get_claim(session)
        if claim is not None and claim.end > now:
            yield from (_booked(session, session.status.seat, one) for one in price_session(calendar, session, now))
    for booking in calendar.all(Reservation):
        if booking.status.phase not in RESERVATION_MACHINE.final:
            priced = price_reservation(calendar, booking)
            seats = (one.seat for one in booking.status.held if one.session is None and one.seat is not None)
            yield from (_booked(booking, seat, one) for seat, one in zip(seats, priced, strict=True))


def _booked(booking: Booking, seat: Seat | None, priced: PricedClaim) -> BookedStay:
    session = booking if isinstance(booking, LabletSession) else None
    maker = booking.metadata.owner if session else booking.metadata
    worker = session.status.worker_name if session else None
    stay = Stay(
        session=booking.metadata.name,
        session_id=booking.metadata.uid,
        namespace=booking.metadata.namespace,
        definition=booking.spec.definition,
        worker_id="",
        share=priced.share,
        since=priced.start,
        until=priced.end,
        owner=booking.spec.owner,
        reservation=maker.name if maker else "",
        lab_track=booking.spec.lab_track,
    )
    name = f"{booking.metadata.namespace}/{worker}" if worker else ""
    pool = f"{booking.metadata.namespace}/{seat.pool}" if seat else ""
    return BookedStay(stay, Machine(pool, name, stay.lab_track, priced.start), priced)
