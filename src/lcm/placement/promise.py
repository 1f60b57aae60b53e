"""The promise of a booking: a seat of the pool for its whole claim, or a refusal that says why and what would work.

Bookings, extensions and reservations are decided here. Pure: nothing is held by asking.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lcm.model.capacity import Claim
from lcm.placement.limits import Rules
from lcm.placement.request import Held
from lcm.placement.seating import REMEDIES, seat_for, why_not
from lcm.placement.seats import Seats
from lcm.placement.slots import nearest, seats_for_all, why_not_all

GROUP_LOOKS: Final = 3_000
"""How many claims are tried in all before nothing nearer is looked for: some microseconds each."""
GROUP_TRIES: Final = range(8, 97)
"""The fewest and the most slots that are tried for a group."""


@dataclass(frozen=True, slots=True)
class Promised:
    """The seats that claims get, in the order of the claims."""

    seats: tuple[int, ...]

    @property
    def seat(self) -> int:
        """The seat of a single claim."""
        (number,) = self.seats
        return number


@dataclass(frozen=True, slots=True)
class Refused:
    """Why claims cannot be promised: in a word, in a sentence, and what helps.

    `nearest` says by how much the booking can be shifted so that it would be promised.
    """

    reason: str
    details: str
    remedy: str
    nearest: tuple[timedelta, ...] = ()


def promise(seats: Seats, claim: Claim, *, rules: Rules, slots: int = 3) -> Promised | Refused:
    """Promise a claim or refuse it."""
    number = seat_for(seats, claim, rules)
    if number is not None:
        return Promised((number,))
    return _refused(seats, claim, rules, nearest(seats, [claim], rules, count=slots))


def promise_all(seats: Seats, claims: Sequence[Claim], *, rules: Rules, slots: int = 3) -> Promised | Refused:
    """Promise all of several claims, or refuse them all."""
    found = seats_for_all(seats, claims, rules)
    if isinstance(found, tuple):
        return Promised(found)
    tries = min(max(GROUP_LOOKS // len(claims), GROUP_TRIES[0]), GROUP_TRIES[-1])
    near = nearest(seats, claims, rules, count=slots, tries=tries)
    if seat_for(seats, claims[found], rules) is None:
        return _refused(seats, claims[found], rules, near)
    reason, details = why_not_all(seats, claims, rules)
    told = f"there is room for some of the {len(claims)} claims, and not for all of them together: {details}"
    return Refused(reason, told, REMEDIES[reason], near)


def extend(seats: Seats, number: int, held: Held, *, rules: Rules) -> Promised | Refused:
    """Promise a longer claim, on its seat, to one who has a claim there; what it has already is not asked for again."""
    before = seats[number].held[held.holder].claim
    more = Claim(start=before.end, end=held.claim.end, need=held.claim.need)
    if seat_for(seats, more, rules, [number]) is not None:
        return Promised((number,))
    return _refused(seats, more, rules, (), [number])


def _refused(
    seats: Seats, claim: Claim, rules: Rules, near: tuple[timedelta, ...], among: Sequence[int] | None = None
) -> Refused:
    reason, details = why_not(seats, claim, rules, among)
    return Refused(reason, details, REMEDIES[reason], near)
