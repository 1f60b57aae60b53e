"""The nearest other times at which claims could be promised. A refusal carries them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import Final

from lcm.model.capacity import Claim
from lcm.placement.limits import Rules
from lcm.placement.request import Held
from lcm.placement.search import Search, Work
from lcm.placement.seating import seat_for, why_not
from lcm.placement.seats import Seats

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
