"""How much of a trial's work is over at which moment, for whoever waits for it.

A night costs next to nothing, and sixty labs that come up at nine cost seconds: the share that is over is counted by
what there is to do, not by time. The weights were measured; one is about what a booking costs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from lcm.sim.plan.timetable import Wanted

_BOOKED: Final = 1.0
_COMES: Final = 7.0
_GOES: Final = 3.0
_A_DAY: Final = 50.0
_UP: Final = timedelta(minutes=40)
_DOWN: Final = timedelta(minutes=5)
_DAY: Final = timedelta(days=1)


class Work(NamedTuple):
    """So much is to be done between two moments."""

    since: datetime
    until: datetime
    weight: float


def works(sessions: Iterable[Wanted], begins: datetime, ends: datetime) -> Iterator[Work]:
    """Say what there is to do from a moment on, at which what has no `booked_at` is booked already."""
    yield Work(begins, ends, _A_DAY * ((ends - begins) / _DAY))
    for one in sessions:
        if one.booked_at is not None:
            yield Work(one.booked_at, one.booked_at + timedelta(seconds=1), _BOOKED)
        start = one.start or (one.booked_at or begins) + _UP
        end = start + timedelta(minutes=one.minutes)
        yield Work(start - _UP, start, _COMES)
        yield Work(end, end + _DOWN, _GOES)


def booking_share(bookings: int, several: Iterable[Work]) -> float:
    """Say which part of all is to book so many at the beginning."""
    booked = bookings * _BOOKED
    whole = booked + sum(one.weight for one in several)
    return booked / whole if whole else 0.0


def milestones(several: Sequence[Work], steps: int) -> Iterator[tuple[datetime, float]]:
    """Give the moments at which each of so many equal parts of the work is done, and the share that is over then."""
    slopes: dict[datetime, float] = defaultdict(float)
    for one in several:
        slope = one.weight / max((one.until - one.since).total_seconds(), 1.0)
        slopes[one.since] += slope
        slopes[one.until] -= slope
    whole, done, slope, step = sum(one.weight for one in several), 0.0, 0.0, 1
    for since, until in pairwise(sorted(slopes)):
        slope += slopes[since]
        after = done + slope * (until - since).total_seconds()
        while step < steps and after >= whole * step / steps and slope > 0:
            yield since + timedelta(seconds=(whole * step / steps - done) / slope), step / steps
            step += 1
        done = after
