"""The promise of a booking: a seat of the pool for its whole claim, or a refusal with the reason and a remedy.

Bookings, extensions and reservations are decided here, by `lcm.control.booking.promise`. A refusal carries the nearest
other times at which the claims could be promised. Pure: nothing is held by asking.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Final

from lcm.model.base.capacity import DIMENSIONS, Amount, Claim
from lcm.placement.candidate import format_moment
from lcm.placement.limits import OPENING_POLICIES, PromiseRules
from lcm.placement.request import HeldClaim
from lcm.placement.seat_choice import SEAT_REMEDIES, choose_seat, explain_refusal
from lcm.placement.seats import Seats
from lcm.placement.slot_search import SlotSearch, WorkBudget

SHIFT_STEP: Final = timedelta(minutes=15)
LARGEST_SHIFT: Final = timedelta(days=7)
MOST_TRIES: Final = 2 * LARGEST_SHIFT // SHIFT_STEP
MOST_WORK: Final = 30_000
"""The budget of a search, in about microseconds: other tasks wait while it runs."""
_TRIAL_HOLDER: Final = "a trial, number {}"


def nearest_shifts(
    seats: Seats,
    claims: Sequence[Claim],
    rules: PromiseRules,
    *,
    count: int = 3,
    step: timedelta = SHIFT_STEP,
    within: timedelta = LARGEST_SHIFT,
    tries: int = MOST_TRIES,
    work: int = MOST_WORK,
) -> tuple[timedelta, ...]:
    """Return by how much claims can be shifted, all by the same, so that all can be promised; the least first.

    Shifts are whole steps, earlier ones are negative. An earlier one is among several if any is near enough. A search
    that uses up its budget returns what it has found by then; half of the budget is reserved for later shifts.
    """
    search = SlotSearch(seats, claims, rules, step, within // step, together=_first_unseated)
    first = WorkBudget(work // 2)
    earlier = list(islice(search.earlier(tries // 2, first), count))
    later = list(islice(search.later(tries // 2, WorkBudget(work // 2 + max(0, first.left))), count))
    return tuple(step * steps for steps in _mix_shifts(earlier, later, count))


def _first_unseated(seats: Seats, claims: Sequence[Claim], rules: PromiseRules) -> int | None:
    found = choose_seats_for_all(seats, claims, rules)
    return found if isinstance(found, int) else None


def choose_seats_for_all(seats: Seats, claims: Sequence[Claim], rules: PromiseRules) -> tuple[int, ...] | int:
    """Choose seats for all of several claims, or return the index of the first that gets none.

    Nothing is held when it returns. The longest and largest claims go first, because small ones fit in anywhere.
    """
    with _held_on_trial(seats, claims, rules) as (chosen, missing):
        return tuple(chosen[place] for place in range(len(claims))) if missing is None else missing


@contextmanager
def _held_on_trial(
    seats: Seats, claims: Sequence[Claim], rules: PromiseRules
) -> Iterator[tuple[Mapping[int, int], int | None]]:
    """Hold claims on seats one after another inside the block, until one gets none.

    Yields the seats by index of the claim, and the index of the claim that got none.
    """
    sizes = [(one.start - one.end, -one.need.cpu_millis - one.need.memory_mb) for one in claims]
    order = sorted(range(len(claims)), key=lambda place: sizes[place])
    chosen: dict[int, int] = {}
    missing: int | None = None
    try:
        for place in order:
            number = choose_seat(seats, claims[place], rules)
            if number is None:
                missing = place
                break
            chosen[place] = number
            seats.hold(number, HeldClaim(_TRIAL_HOLDER.format(place), claims[place]))
        yield chosen, missing
    finally:
        for place, number in chosen.items():
            seats.release(number, _TRIAL_HOLDER.format(place))


def _mix_shifts(earlier: Sequence[int], later: Sequence[int], count: int) -> list[int]:
    """Return the least shifts of both sides, but not all from one side."""
    found = sorted([*earlier, *later], key=lambda steps: (abs(steps), steps))[:count]
    for side in (earlier, later):
        if side and count > 1 and not set(found) & set(side):
            found[-1] = side[0]
    return found


_LACKS_ROOM: Final = frozenset({"full", "foreign_labs"})
GROUP_LOOKS: Final = 3_000
"""How many claims are tried in total before the search for nearer slots ends; each takes some microseconds."""
GROUP_TRIES: Final = range(8, 97)
"""The fewest and the most slots that are tried for a group."""


@dataclass(frozen=True, slots=True)
class PromisedSeats:
    """The seats that claims get, in the order of the claims."""

    seats: tuple[int, ...]

    @property
    def seat(self) -> int:
        """The seat of a single claim."""
        (number,) = self.seats
        return number


@dataclass(frozen=True, slots=True)
class PromiseRefusal:
    """Why claims cannot be promised: a word, a sentence, and a remedy.

    `nearest` lists by how much the booking can be shifted so that it would be promised.
    """

    reason: str
    details: str
    remedy: str
    nearest: tuple[timedelta, ...] = ()


def promise(seats: Seats, claim: Claim, *, rules: PromiseRules, slots: int = 3) -> PromisedSeats | PromiseRefusal:
    """Promise a claim or refuse it."""
    number = choose_seat(seats, claim, rules)
    if number is not None:
        return PromisedSeats((number,))
    found = _refuse_claim(seats, claim, rules, nearest_shifts(seats, [claim], rules, count=slots))
    if found.reason not in _LACKS_ROOM:
        return found
    return replace(found, details=f"{found.details}; this pool holds {count_at_once(seats, claim.need, rules)} at once")


def promise_all(
    seats: Seats, claims: Sequence[Claim], *, rules: PromiseRules, slots: int = 3
) -> PromisedSeats | PromiseRefusal:
    """Promise all of several claims, or refuse them all."""
    found = choose_seats_for_all(seats, claims, rules)
    if isinstance(found, tuple):
        return PromisedSeats(found)
    missing, together = claims[found], sum(one.start == claims[found].start for one in claims)
    tries = min(max(GROUP_LOOKS // len(claims), GROUP_TRIES[0]), GROUP_TRIES[-1])
    most = count_at_once(seats, missing.need, rules)
    near = nearest_shifts(seats, claims, rules, count=slots, tries=tries) if together <= most else ()
    with _held_on_trial(seats, claims, rules) as (chosen, _):
        fit = sum(claims[place].start == missing.start for place in chosen)
        reason, details = explain_refusal(seats, missing, rules)
    if choose_seat(seats, missing, rules) is None:  # not even alone, for a reason that the others may hide
        reason, details = explain_refusal(seats, missing, rules)
    when = "then" if len(claims) == together else f"at {format_moment(missing.start)}"
    holds = f"; this pool holds {most} at once" if reason in _LACKS_ROOM else ""
    counted = f"{fit} of {together} fit {when}{holds}: {details}" if fit or holds else details
    remedy = SEAT_REMEDIES[reason] if near or not fit else _remedy_by_parts(reason, fit, most)
    return PromiseRefusal(reason, counted, remedy, near)


def _remedy_by_parts(reason: str, fit: int, most: int) -> str:
    """Return what helps a group that no slot near takes as a whole."""
    limit = f", at most {most} at once" if reason in _LACKS_ROOM else ""
    other = SEAT_REMEDIES[reason].rpartition(", or ")[2]
    return f"book {fit} then and the others at another time{limit}, or {other}"


def count_at_once(seats: Seats, need: Amount, rules: PromiseRules) -> int:
    """Return how many claims of the same need a pool holds at once while nothing else is booked."""
    opens = rules.policy in OPENING_POLICIES
    suited = (n for n in range(1, seats.most + 1) if n not in rules.unsuited and (opens or n in rules.usable))
    wanted = [name for name in DIMENSIONS if getattr(need, name)]
    return sum(
        min((getattr(seats[number].capacity, name) // getattr(need, name) for name in wanted), default=0)
        for number in suited
    )


def extend(seats: Seats, number: int, held: HeldClaim, *, rules: PromiseRules) -> PromisedSeats | PromiseRefusal:
    """Promise a longer claim to a holder on its own seat; only the added time is checked."""
    before = seats[number].held[held.holder].claim
    more = Claim(start=before.end, end=held.claim.end, need=held.claim.need)
    if choose_seat(seats, more, rules, [number]) is not None:
        return PromisedSeats((number,))
    return _refuse_claim(seats, more, rules, (), [number])


def _refuse_claim(
    seats: Seats, claim: Claim, rules: PromiseRules, near: tuple[timedelta, ...], among: Sequence[int] | None = None
) -> PromiseRefusal:
    reason, details = explain_refusal(seats, claim, rules, among)
    return PromiseRefusal(reason, details, SEAT_REMEDIES[reason], near)
