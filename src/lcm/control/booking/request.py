"""What a booking claims and asks for, and the texts and fields of its promise or refusal.

Pure; used by `control.booking.promise`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from lcm.control.booking.guards import Guards
from lcm.control.objects.steps import take_plane_step
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import NoRoom, Refused
from lcm.model.base.machine import CONTROL_PLANE
from lcm.model.base.resource import Condition, Truth, shorten_text, with_condition
from lcm.model.kinds.definition import LabletDefinition, Requirements
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import (
    OCCURRENCES_LIMIT,
    Reservation,
    ReservationClaim,
    ReservationPhase,
    Slot,
    occurrences,
)
from lcm.model.kinds.session import LabletSession, Seat, SessionCondition
from lcm.placement.claims import Terms, need_of, request_for, requirements_of, slot_claim
from lcm.placement.places import PoolSnapshot
from lcm.placement.request import PlacementRequest
from lcm.store.base import CheckRevision, Op

Booking = LabletSession | Reservation
ClaimsAt = Callable[[Slot], Sequence[Claim]]
"""Returns what a booking would claim if its first slot were another; empty if it could not be booked so."""
PoolScope = tuple[str, str]
"""A namespace and a lab track: bookings of one scope ask the same pools."""


def scope_of(booking: Resource) -> PoolScope:
    """Return the scope of a booking: which pools it asks."""
    assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
    return booking.metadata.namespace, booking.spec.lab_track


def scopes_of(bookings: Iterable[Resource]) -> Sequence[PoolScope]:
    """Return the scopes that bookings ask, each once and in their order."""
    return list(dict.fromkeys(scope_of(one) for one in bookings if has_slot(one)))


def has_slot(resource: Resource) -> bool:
    """Return whether a resource is promised at the moment it is booked."""
    return isinstance(resource, Reservation) or (
        isinstance(resource, LabletSession) and resource.spec.timeslot_start is not None
    )


@dataclass(frozen=True, slots=True)
class PromisePreconditions:
    """What a promise was decided from: guards and the pool, each at the revision that was read."""

    guards: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromisedBookings:
    """Bookings with their seats, and the preconditions of each; None for those that are not promised."""

    made: Sequence[Resource]
    preconditions: Sequence[PromisePreconditions | None]

    @property
    def ops(self) -> Sequence[Op]:
        """The guard writes and checks that join the commit of all of them."""
        found = [one for one in self.preconditions if one is not None]
        guards = {key: seen for one in found for key, seen in one.guards.items()}
        pools = {key: seen for one in found for key, seen in one.pools.items()}
        by = self.made[0].metadata.uid
        return [*Guards(list(guards.items())).ops(by), *(CheckRevision(key, seen) for key, seen in pools.items())]


@dataclass(frozen=True, slots=True)
class ChosenSeats:
    """The seats chosen for a booking, and their pool."""

    row: PoolSnapshot
    claims: Sequence[Claim]
    seats: Sequence[int]
    requirements: Requirements


def claims_of(booking: Booking, definition: LabletDefinition, terms: Terms) -> Sequence[Claim]:
    """Return what a booking claims, in the order of its sessions.

    Raises Refused while its definition does not state its needs.
    """
    need = need_of(booking if isinstance(booking, LabletSession) else None, definition)
    if need is None:
        name = definition.metadata.name
        raise Refused(f"{name} does not say what it needs: set its resource_requirements and node_count")
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
    """Return what a booking would claim if its first slot were another; empty if it could not be booked so.

    A series keeps its last day, its weekdays and its wall-clock time, so not all of its slots shift equally.
    """
    start, end = slot
    spec: Any = msgspec.structs.replace(booking.spec, timeslot_start=start, timeslot_end=end)
    claims = claims_of(msgspec.structs.replace(booking, spec=spec), definition, terms)
    return claims if len(claims) <= OCCURRENCES_LIMIT else ()


def request_of(booking: Booking, definition: LabletDefinition, claim: Claim, terms: Terms) -> PlacementRequest:
    """Return what a booking asks of the seat it is placed on."""
    if isinstance(booking, LabletSession):
        return request_for(booking, definition, claim, terms)
    asks = requirements_of(booking, definition)
    return PlacementRequest(
        name=booking.metadata.name,
        claim=claim,
        lab_type=definition.spec.lab_type,
        affinity=asks.license_affinity,
        track=booking.spec.lab_track,
        region_required=booking.spec.region_required,
        region_preferred=booking.spec.region_preferred,
        cml_version_min=asks.ami_requirements.cml_version_min,
        cml_version_max=asks.ami_requirements.cml_version_max,
        node_definitions=frozenset(asks.ami_requirements.node_definitions),
        require_licensed=terms.require_licensed,
        movable=False,
    )


@contextmanager
def name_booking_in_refusal(name: str) -> Iterator[None]:
    """Put the name of the booking in front of any refusal raised inside the block."""
    try:
        yield
    except Refused as error:
        if not name:
            raise
        message = f"{name}: {error}"
        if isinstance(error, NoRoom):
            raise NoRoom(message, why=error.why, nearest=error.nearest, remedy=error.remedy) from error
        raise Refused(message) from error


def with_seats(booking: Resource, found: ChosenSeats, now: datetime) -> Booking:
    """Return a booking with the seats that were chosen for it."""
    assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
    pool = found.row.pool.metadata.name
    if isinstance(booking, LabletSession):
        (claim,), (number,) = found.claims, found.seats
        seat, asks = Seat(pool=pool, number=number), found.requirements
        status = msgspec.structs.replace(booking.status, claim=claim, seat=seat, requirements=asks)
        return msgspec.structs.replace(booking, status=status)
    held = tuple(
        ReservationClaim(number=place, claim=claim, seat=Seat(pool=pool, number=number))
        for place, (claim, number) in enumerate(zip(found.claims, found.seats, strict=True), start=1)
    )
    reason = "all its claims are held"
    starts_at, ends_at = found.claims[0].start, found.claims[-1].end
    fields: dict[str, Any] = {"held": held, "requirements": found.requirements}
    fields |= {"starts_at": starts_at, "ends_at": ends_at}
    return take_plane_step(booking, ReservationPhase.PROMISED, author=CONTROL_PLANE, now=now, reason=reason, **fields)


def with_time_shortened(session: LabletSession, asked: timedelta, why: str, now: datetime) -> LabletSession:
    """Return a running session with the condition that tells how much of its time it gets, and why not all of it."""
    assert session.status.ends_at is not None, "it runs"
    seconds, whole = round((session.status.ends_at - now).total_seconds()), round(asked.total_seconds())
    new = Condition(
        type=SessionCondition.TIME_SHORTENED,
        status=Truth.TRUE,
        last_transition_at=now,
        reason="StartedLate",
        message=shorten_text(f"it started late and gets {seconds} of the {whole} seconds it asked for: {why}"),
    )
    conditions = with_condition(session.status.conditions, new)
    return msgspec.structs.replace(session, status=msgspec.structs.replace(session.status, conditions=conditions))
