"""When the worker of each seat must be started, and when it may be released. The pool's follower acts on this.

It is computed from the claims each time and remembers nothing: who looks late, or again, or after a restart, gets the
same answer.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from lcm.placement.lanes import micros, moment_of
from lcm.placement.seats import Seats


class Demand(NamedTuple):
    """A seat's worker must be launched or resumed at `start_by`, and may be released at `needed_until`, None: never."""

    start_by: datetime
    needed_until: datetime | None


def demand(seats: Seats, now: datetime) -> Mapping[int, Demand]:
    """Say of each seat that needs a worker, now or later, when it does next; a seat without is not needed any more."""
    numbers = range(1, len(seats) + 1)
    standing = {number: Demand(now, None) for number in numbers if number in seats.always}
    others = {number: _next(seats, number, now) for number in numbers if number not in seats.always}
    return standing | {number: found for number, found in others.items() if found}


def next_change(seats: Seats, now: datetime) -> datetime | None:
    """Say when the demand changes next; None if it stays as it is."""
    wanted = demand(seats, now).values()
    moments = [moment for one in wanted for moment in (one.start_by, one.needed_until) if moment and moment > now]
    return min(moments, default=None)


def _next(seats: Seats, number: int, now: datetime) -> Demand | None:
    present = micros(now)
    run = next((run for run in seats.runs(number) if run.end > present), None)
    return Demand(moment_of(run.start), moment_of(run.end)) if run else None
