"""The promise of a booking: a seat of the pool for its whole claim, or a refusal that says why and what would work.

Bookings, extensions and reservations are decided here. Pure: nothing is held by asking.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Final

from lcm.model.base.capacity import Claim
from lcm.placement.limits import Rules
from lcm.placement.request import Held
from lcm.placement.seat_choice import REMEDIES, seat_for, why_not
from lcm.placement.seats import Seats
from lcm.placement.slot_search import Search, Work

STEP: Final = timedelta(minutes=15)
WITHIN: Final = timedelta(days=7)
MOST_TRIES: Final = 2 * WITHIN // STEP
MOST_WORK: Final = 30_000
"""About so many microseconds: others wait while one is searched for."""
_HOLDER: Final = "a trial, number {}"


def nearest(
    seats: Seats,
    claims: Sequence[Claim],
    rules: Rules,
    *,
    count: int = 3,
    step: timedelta = STEP,
    within: timedelta = WITHIN,
    tries: int = MOST_TRIES,
    work: int = MOST_WORK,
) -> tuple[timedelta, ...]:
    """Find by how much claims can be shifted, all by the same, so that all can be promised; the least shifts first.

    Shifts are whole steps, earlier ones are negative. There is an earlier one among several if any is near enough.
    Whoever must look at too much is given those that were found by then; half of the work is kept for later ones.
    """
    search = Search(seats, claims, rules, step, within // step, together=_all_seated)
    first = Work(work // 2)
    earlier = list(islice(search.earlier(tries // 2, first), count))
    later = list(islice(search.later(tries // 2, Work(work // 2 + max(0, first.left))), count))
    return tuple(step * steps for steps in _mixed(earlier, later, count))


def _all_seated(seats: Seats, claims: Sequence[Claim], rules: Rules) -> int | None:
    found = seats_for_all(seats, claims, rules)
    return found if isinstance(found, int) else None


def seats_for_all(seats: Seats, claims: Sequence[Claim], rules: Rules) -> tuple[int, ...] | int:
    """Choose seats for all of several claims; or give the place of the first for which there is none.

    Nothing is held when it returns. What is longest and needs most goes first, because small claims fit in anywhere.
    """
    with _seated(seats, claims, rules) as (chosen, missing):
        return tuple(chosen[place] for place in range(len(claims))) if missing is None else missing


def why_not_all(seats: Seats, claims: Sequence[Claim], rules: Rules) -> tuple[str, str]:
    """Say in a word and in a sentence why one of several claims gets no seat beside those before it."""
    with _seated(seats, claims, rules) as (_, missing):
        assert missing is not None, "not all of them get seats"
        return why_not(seats, claims[missing], rules)


@contextmanager
def _seated(seats: Seats, claims: Sequence[Claim], rules: Rules) -> Iterator[tuple[Mapping[int, int], int | None]]:
    """Hold claims on seats one after another until one gets none; gives seats by place, and the place of that one."""
    order = sorted(range(len(claims)), key=lambda place: _weight(claims[place]))
    chosen: dict[int, int] = {}
    missing: int | None = None
    try:
        for place in order:
            number = seat_for(seats, claims[place], rules)
            if number is None:
                missing = place
                break
            chosen[place] = number
            seats.hold(number, Held(_HOLDER.format(place), claims[place]))
        yield chosen, missing
    finally:
        for place, number in chosen.items():
            seats.release(number, _HOLDER.format(place))


def _mixed(earlier: Sequence[int], later: Sequence[int], count: int) -> list[int]:
    """Take the least of both, but not all from one side."""
    found = sorted([*earlier, *later], key=lambda steps: (abs(steps), steps))[:count]
    for side in (earlier, later):
        if side and count > 1 and not set(found) & set(side):
            found[-1] = side[0]
    return found


def _weight(claim: Claim) -> tuple[timedelta, int]:
    return claim.start - claim.end, -claim.need.cpu_millis - claim.need.memory_mb


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
