"""Small pools of seats for tests, in whole minutes of one Monday, and what they must do told in the plainest way."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from hypothesis import strategies as st

import given
from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.placement.limits import PromiseRules
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, Span
from lcm.placement.timeline import micros

LEAD, KEEP = 25, 15
MINUTE = timedelta(minutes=1)
ROOM = Amount(cpu_millis=4, memory_mb=6, labs=3)
EARLY = given.moment("00:00", day=-1)
LONG_BEFORE = PromiseRules(EARLY)

Minutes = set[int]


def at(minute: int) -> datetime:
    return given.moment("00:00") + minute * MINUTE


def claim(start: int, end: int, need: Amount) -> Claim:
    return Claim(start=at(start), end=at(end), need=need)


needs = st.builds(Amount, cpu_millis=st.integers(0, 5), memory_mb=st.integers(0, 6), labs=st.just(1))
spans = st.tuples(st.integers(0, 46).map(lambda n: n * 10), st.integers(1, 18).map(lambda n: n * 10))
claims = st.builds(lambda span, need: claim(span[0], span[0] + span[1], need), spans, needs)
books = st.lists(claims, max_size=14)


def seats(size: int = 3, *, room: Amount = ROOM, standing: int = 0) -> Seats:
    return Seats(room, size, lead=LEAD * MINUTE, keep=KEEP * MINUTE, standing=standing)


def minutes(spans_: Iterable[Span]) -> Minutes:
    start = micros(at(0))
    each = ((span.start - start, span.end - start) for span in spans_)
    return {minute for begin, end in each for minute in range(begin // 60_000_000, end // 60_000_000)}


def covered(one: Claim) -> Minutes:
    return set(range((one.start - at(0)) // MINUTE, (one.end - at(0)) // MINUTE))


def plainly_running(several: Iterable[Claim]) -> Minutes:
    """Give the minutes a worker runs: claims, the boot before each stretch of them, and gaps not worth a release."""
    busy = set().union(*map(covered, several))
    running = set(busy)
    for minute in busy:
        if minute - 1 not in busy:
            last = max((other for other in busy if other < minute), default=None)
            gap = LEAD + KEEP if last is None else minute - 1 - last
            running |= set(range(minute - (gap if gap < LEAD + KEEP else LEAD), minute))
    return running


def on(pool: Seats, number: int) -> list[Claim]:
    return [held.claim for held in pool[number].held.values()]


def plainly_fits(pool: Seats, number: int, new: Claim) -> bool:
    return Profile.of(on(pool, number)).fits(new, pool[number].capacity)


def sound(pool: Seats) -> bool:
    """Tell whether no seat is over-committed at any moment."""
    every = range(1, len(pool) + 1)
    return not any(Profile.of(on(pool, number)).find_overcommitted(pool[number].capacity) for number in every)


def filled(pool: Seats, held: Sequence[tuple[int, Claim]]) -> Seats:
    for place, (number, one) in enumerate(held):
        pool.hold(number, HeldClaim(f"h{place}", one))
    return pool


def state(pool: Seats) -> object:
    lines = [pool[number].timeline for number in range(1, len(pool) + 1)]
    return [(line.moments, line.levels) for line in lines], pool.opening.moments, pool.opening.levels, pool.time
