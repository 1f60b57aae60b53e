"""The nearest other times at which claims could be promised. A refusal carries them."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Final

import msgspec

from lcm.model.capacity import Claim
from lcm.placement.lanes import micros
from lcm.placement.limits import Rules
from lcm.placement.request import Held
from lcm.placement.seating import candidates, seat_for
from lcm.placement.seats import Seats, Span, span_of

STEP: Final = timedelta(minutes=15)
WITHIN: Final = timedelta(days=7)
MOST_TRIES: Final = 2 * WITHIN // STEP
_MICROSECOND: Final = timedelta(microseconds=1)
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
) -> tuple[timedelta, ...]:
    """Find by how much claims can be shifted, all by the same, so that all can be promised; the least shifts first.

    Shifts are whole steps, earlier ones are negative. There is an earlier one among several if any is near enough.
    """
    search = _Search(seats, claims, rules, step // _MICROSECOND, within // step)
    earlier = list(islice(search.earlier(tries // 2), count))
    later = list(islice(search.later(tries // 2), count))
    return tuple(step * steps for steps in _mixed(earlier, later, count))


def shifted(claim: Claim, by: timedelta) -> Claim:
    """Give a claim at another time."""
    return msgspec.structs.replace(claim, start=claim.start + by, end=claim.end + by)


def seats_for_all(seats: Seats, claims: Sequence[Claim], rules: Rules) -> tuple[int, ...] | int:
    """Choose seats for all of several claims; or give the place of the first for which there is none.

    Nothing is held when it returns. What is longest and needs most goes first, because small claims fit in anywhere.
    """
    order = sorted(range(len(claims)), key=lambda place: _weight(claims[place]))
    chosen: dict[int, int] = {}
    try:
        for place in order:
            number = seat_for(seats, claims[place], rules)
            if number is None:
                return place
            chosen[place] = number
            seats.hold(number, Held(_HOLDER.format(place), claims[place]))
    finally:
        for place, number in chosen.items():
            seats.release(number, _HOLDER.format(place))
    return tuple(chosen[place] for place in range(len(claims)))


class _Search:
    """Goes through shifts, leaping over those for which there is no room whatever the rules say."""

    def __init__(self, seats: Seats, claims: Sequence[Claim], rules: Rules, step: int, limit: int) -> None:
        self._seats = seats
        self._claims = claims
        self._rules = rules
        self._step = step
        self._limit = limit
        self._numbers = list(candidates(seats, rules))

    def later(self, tries: int) -> Iterator[int]:
        """Give the shifts to later times that work, the least first."""
        return self._going(1, tries, self._earliest)

    def earlier(self, tries: int) -> Iterator[int]:
        """Give the shifts to earlier times that work, the least first; none begins in the past."""
        return self._going(-1, tries, self._latest)

    def _going(self, way: int, tries: int, leap: Callable[[Claim, int], int | None]) -> Iterator[int]:
        steps, hardest = way, 0
        while abs(steps) <= self._limit and tries:
            landed = leap(self._claims[hardest], steps)
            if landed is None or abs(landed) > self._limit or self._past(landed):
                return
            found = self._works(landed)
            if found is None:
                yield landed
            else:
                hardest = found
            steps, tries = landed + way, tries - 1

    def _works(self, steps: int) -> int | None:
        by = timedelta(microseconds=steps * self._step)
        if len(self._claims) == 1:
            return None if seat_for(self._seats, shifted(self._claims[0], by), self._rules, self._numbers) else 0
        found = seats_for_all(self._seats, [shifted(claim, by) for claim in self._claims], self._rules)
        return found if isinstance(found, int) else None

    def _past(self, steps: int) -> bool:
        return steps < 0 and micros(min(claim.start for claim in self._claims)) + steps * self._step < micros(
            self._rules.now
        )

    def _earliest(self, claim: Claim, steps: int) -> int | None:
        """Give the least shift of at least so many steps at which any seat has the room."""
        span = span_of(claim)
        not_before = span.start + steps * self._step
        found = [self._first_room(number, claim, span, not_before) for number in self._numbers]
        starts = [start for start in found if start is not None]
        return -(-(min(starts) - span.start) // self._step) if starts else None

    def _latest(self, claim: Claim, steps: int) -> int | None:
        span = span_of(claim)
        not_after = span.start + steps * self._step
        found = [self._last_room(number, claim, span, not_after) for number in self._numbers]
        starts = [start for start in found if start is not None]
        return (max(starts) - span.start) // self._step if starts else None

    def _first_room(self, number: int, claim: Claim, span: Span, not_before: int) -> int | None:
        seat = self._seats[number]
        return seat.timeline.earliest(not_before, span.end - span.start, seat.packed(claim.need))

    def _last_room(self, number: int, claim: Claim, span: Span, not_after: int) -> int | None:
        return self._seats[number].latest(not_after, span.end - span.start, claim.need)


def _mixed(earlier: Sequence[int], later: Sequence[int], count: int) -> list[int]:
    """Take the least of both, but not all from one side."""
    found = sorted([*earlier, *later], key=lambda steps: (abs(steps), steps))[:count]
    for side in (earlier, later):
        if side and count > 1 and not set(found) & set(side):
            found[-1] = side[0]
    return found


def _weight(claim: Claim) -> tuple[timedelta, int]:
    return claim.start - claim.end, -claim.need.cpu_millis - claim.need.memory_mb
