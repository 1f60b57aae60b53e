"""What a booking claims and asks for, and how it is told that it was promised or refused. Pure; used by `desk`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from lcm.control.booking.guards import Guards
from lcm.control.objects.steps import moved
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import NoRoom, Refused
from lcm.model.base.machine import CONTROL_PLANE
from lcm.model.kinds.definition import LabletDefinition, Requirements
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, Held, Reservation, ReservationPhase, occurrences
from lcm.model.kinds.session import LabletSession, Seat
from lcm.placement.claims import Terms, asks_of, need_of, request_for, slot_claim, slot_of
from lcm.placement.places import Row
from lcm.placement.promise import Refused as Refusal
from lcm.placement.request import Request
from lcm.store.base import Check, Op

Booking = LabletSession | Reservation


@dataclass(frozen=True, slots=True)
class Footing:
    """What a promise stands on: the guards of what it was chosen from, and its pool, each at the revision seen."""

    guards: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bookings:
    """Bookings as they are promised, and what each stands on; None for those that are not promised."""

    made: Sequence[Resource]
    footings: Sequence[Footing | None]

    @property
    def ops(self) -> Sequence[Op]:
        """What joins the commit of all of them."""
        found = [one for one in self.footings if one is not None]
        guards = {key: seen for one in found for key, seen in one.guards.items()}
        pools = {key: seen for one in found for key, seen in one.pools.items()}
        by = self.made[0].metadata.uid
        return [*Guards(list(guards.items())).ops(by), *(Check(key, seen) for key, seen in pools.items())]


@dataclass(frozen=True, slots=True)
class Found:
    """The seats that a booking gets, and where."""

    row: Row
    claims: Sequence[Claim]
    seats: Sequence[int]
    requirements: Requirements


def claims_of(booking: Booking, definition: LabletDefinition, terms: Terms) -> Sequence[Claim]:
    """Give what a booking claims, in the order of its sessions; Refused while its definition says no needs."""
    need = need_of(booking if isinstance(booking, LabletSession) else None, definition)
    if need is None:
        name = definition.metadata.name
        raise Refused(f"{name} does not say what it needs: give it resource_requirements and node_count")
    if isinstance(booking, Reservation):
        slots = [slot for slot in occurrences(booking.spec) for _ in range(booking.spec.count)]
        return [slot_claim(start, end, need, terms) for start, end in slots]
    spec = booking.spec
    assert spec.timeslot_start is not None, "only what has a slot is promised"
    assert spec.timeslot_end is not None, "admission has checked that"
    return [slot_claim(spec.timeslot_start, spec.timeslot_end, need, terms)]


def claims_at(
    booking: Booking, definition: LabletDefinition, slot: tuple[datetime, datetime], terms: Terms
) -> Sequence[Claim]:
    """Give what a booking would claim if its first slot were another; nothing if it could not be booked so.

    A series keeps its last day, its weekdays and its wall-clock time, so that it may get other slots than shifted ones.
    """
    start, end = slot
    spec: Any = msgspec.structs.replace(booking.spec, timeslot_start=start, timeslot_end=end)
    claims = claims_of(msgspec.structs.replace(booking, spec=spec), definition, terms)
    return claims if len(claims) <= OCCURRENCES_LIMIT else ()


def request_of(booking: Booking, definition: LabletDefinition, claim: Claim, terms: Terms) -> Request:
    """Say what a booking asks of the seat it is put on."""
    if isinstance(booking, LabletSession):
        return request_for(booking, definition, claim, terms)
    asks = asks_of(booking, definition)
    return Request(
        name=booking.metadata.name,
        claim=claim,
        lab_type=definition.spec.lab_type,
        affinity=asks.license_affinity,
        track=booking.spec.lab_track,
        region_required=booking.spec.region_required,
        cml_version_min=asks.ami_requirements.cml_version_min,
        cml_version_max=asks.ami_requirements.cml_version_max,
        node_definitions=frozenset(asks.ami_requirements.node_definitions),
        require_licensed=terms.require_licensed,
        movable=False,
    )


def slots_near(refusal: Refusal, claim: Claim, terms: Terms) -> Sequence[tuple[datetime, datetime]]:
    """Give the slots that a refusal names in place of that of a claim."""
    start, end = slot_of(claim, terms)
    return [(start + by, end + by) for by in refusal.nearest]


def no_room(refusal: Refusal, nearest: Sequence[tuple[datetime, datetime]], row: Row) -> NoRoom:
    """Say why a pool does not take a booking, and when it would."""
    return NoRoom(f"pool {row.name}: {refusal.details}; {refusal.remedy}", why=refusal.reason, nearest=nearest)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Say in a refusal which booking it is about."""
    try:
        yield
    except Refused as error:
        if not name:
            raise
        told = f"{name}: {error}"
        if isinstance(error, NoRoom):
            raise NoRoom(told, why=error.why, nearest=error.nearest) from error
        raise Refused(told) from error


def seated(booking: Resource, found: Found, now: datetime) -> Booking:
    """Give a booking with the seats that were found for it."""
    assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
    pool = found.row.pool.metadata.name
    if isinstance(booking, LabletSession):
        (claim,), (number,) = found.claims, found.seats
        seat, asks = Seat(pool=pool, number=number), found.requirements
        status = msgspec.structs.replace(booking.status, claim=claim, seat=seat, requirements=asks)
        return msgspec.structs.replace(booking, status=status)
    held = tuple(
        Held(number=place, claim=claim, seat=Seat(pool=pool, number=number))
        for place, (claim, number) in enumerate(zip(found.claims, found.seats, strict=True), start=1)
    )
    reason = "all its claims are held"
    starts_at, ends_at = found.claims[0].start, found.claims[-1].end
    fields: dict[str, Any] = {"held": held, "requirements": found.requirements}
    fields |= {"starts_at": starts_at, "ends_at": ends_at}
    return moved(booking, ReservationPhase.PROMISED, author=CONTROL_PLANE, now=now, reason=reason, **fields)
