"""Choosing seats for bookings of one commit, one after another: each is held on trial for those after it.

Pure. Made by `desk` from pools as they are at one moment; what changes in them meanwhile is noticed by the guards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from lcm.control.bookings import Booking, Found, claims_at, claims_of, no_room, request_of, slots_near
from lcm.model.capacity import Claim
from lcm.model.definition import LabletDefinition
from lcm.model.errors import NoRoom
from lcm.model.kinds import Resource
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession
from lcm.placement.limits import Rules
from lcm.placement.promise import Refused as Refusal
from lcm.placement.promise import promise, promise_all
from lcm.placement.request import Held
from lcm.placement.roster import Row
from lcm.placement.rules import REMEDIES
from lcm.placement.seating import how_far
from lcm.placement.seats import Seats
from lcm.placement.slots import seats_for_all
from lcm.placement.suiting import Kinds, suited
from lcm.placement.terms import Terms, asks_of

Public = tuple[str, str]
"""A namespace and a lab track: those who ask the same pools."""
_TRIAL: Final = "booked in the same commit, number {}"
_NO_POOL: Final = "make a LabWorkerPool for the track, or ask for it as soon as possible instead"
_NO_SIZE: Final = "give the template an instance type that is known, or wait until one of its workers has reported"


@dataclass(frozen=True, slots=True)
class Offer:
    """A pool, its seats, by what it promises them, and what they are alike in; None where that is not known."""

    row: Row
    seats: Seats | None
    rules: Rules
    kinds: Kinds | None


class Sitting:
    """Gives bookings seats; at its end all of them are free again."""

    def __init__(self, offers: Mapping[Public, Sequence[Offer]], terms: Terms) -> None:
        self._offers = offers
        self._terms = terms
        self._held: list[tuple[Seats, int, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for seats, number, name in self._held:
            seats.release(number, name)

    def seat(self, booking: Resource, definition: Resource | None) -> Found:
        """Choose seats for a booking and hold them; NoRoom with what says most of what the pools answered."""
        assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
        assert isinstance(definition, LabletDefinition), "a booking comes with its definition"
        claims = claims_of(booking, definition, self._terms)
        refused = list[NoRoom]()
        for offer in self._offers[public_of(booking)]:
            try:
                return self._ask(offer, booking, definition, claims)
            except NoRoom as error:
                refused.append(error)
        raise max(refused, key=_telling, default=_unserved(booking))

    def _ask(self, offer: Offer, booking: Booking, definition: LabletDefinition, claims: Sequence[Claim]) -> Found:
        row, seats, terms = offer.row, offer.seats, self._terms
        if seats is None or offer.kinds is None:
            raise NoRoom(f"it is not known what a worker of pool {row.name} holds; {_NO_SIZE}", why="unknown_size")
        request = request_of(booking, definition, claims[0], terms)
        rules = suited(offer.kinds, request, seats, offer.rules)
        if isinstance(rules, tuple):
            name, reason = rules
            raise NoRoom(f"pool {row.name}: {reason}; {REMEDIES[name]}", why=name)
        one = len(claims) == 1
        answer = promise(seats, claims[0], rules=rules) if one else promise_all(seats, claims, rules=rules)
        if isinstance(answer, Refusal):
            near = slots_near(answer, claims[0], terms)
            if isinstance(booking, Reservation) and booking.spec.recurrence is not None:
                series = ((slot, claims_at(booking, definition, slot, terms)) for slot in near)
                near = [slot for slot, its in series if its and isinstance(seats_for_all(seats, its, rules), tuple)]
            raise no_room(answer, near, row)
        self._hold(seats, claims, answer.seats)
        return Found(row, claims, answer.seats, asks_of(booking, definition))

    def _hold(self, seats: Seats, claims: Sequence[Claim], numbers: Sequence[int]) -> None:
        for claim, number in zip(claims, numbers, strict=True):
            name = _TRIAL.format(len(self._held))
            seats.hold(number, Held(name, claim))
            self._held.append((seats, number, name))


def public_of(booking: Resource) -> Public:
    """Say which pools a booking asks."""
    assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
    return booking.metadata.namespace, booking.spec.lab_track


def _telling(refusal: NoRoom) -> tuple[bool, int]:
    """Say how much a refusal helps: most if it knows when there is room, then the farther the pool came."""
    return bool(refusal.nearest), how_far(refusal.why)


def _unserved(booking: Booking) -> NoRoom:
    track = booking.spec.lab_track
    served = f"the track {track!r}" if track else "sessions without a track"
    return NoRoom(f"no pool in namespace {booking.metadata.namespace} serves {served}; {_NO_POOL}", why="no_pool")
