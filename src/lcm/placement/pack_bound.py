"""What no packing of claims can do without: a lower bound of the time that machines run.

At every moment at least as many machines run as the claims of that moment need, whichever dimension needs the most. A
dimension needs what is claimed of it, and room for large claims: of those that take more than a half of a machine, a
third or a quarter, a machine holds one, two or three. Over time, each further machine that is needed is started, or was
kept since it was needed last, whichever is less. The bound counts boots and gaps as `pack_board` does, so that the two
can be compared. The packer's result has it, and the bench measures by it.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS, Amount, Claim
from lcm.placement.timeline import micros

_PARTS: Final = (2, 3, 4)
_MICROSECOND: Final = timedelta(microseconds=1)
_ANY_NUMBER: Final = 1 << 60
"""However many claims of nothing there are, one machine holds them; but one it must be."""


class MachineCount(NamedTuple):
    """How many machines are needed at least from a moment on, until the next of these."""

    moment: int
    machines: int


def lower_bound(claims: Iterable[Claim], capacity: Amount, lead: timedelta) -> int:
    """Return how long machines run at least for claims, in total, in microseconds."""
    return total_time(count_machines(claims, capacity), lead // _MICROSECOND)


def count_machines(claims: Iterable[Claim], capacity: Amount) -> list[MachineCount]:
    """Return how many machines are needed over time at least, in order; the last count is zero."""
    steps: dict[int, list[int]] = {}
    sizes = [getattr(capacity, name) for name in DIMENSIONS]
    limits = [_ANY_NUMBER, *sizes, *(part - 1 for _ in DIMENSIONS for part in _PARTS)]
    for claim in claims:
        if claim.start < claim.end:
            weights = _weigh_need(claim.need, capacity)
            _add_weights(steps.setdefault(micros(claim.start), [0] * len(limits)), weights, 1)
            _add_weights(steps.setdefault(micros(claim.end), [0] * len(limits)), weights, -1)
    sums, found = [0] * len(limits), []
    for moment in sorted(steps):
        _add_weights(sums, steps[moment], 1)
        found.append(MachineCount(moment, max(-(-one // most) for one, most in zip(sums, limits, strict=True) if most)))
    return found


def _weigh_need(need: Amount, capacity: Amount) -> list[int]:
    """Return one, what a need takes of each dimension, and whether that is more than a half, a third, a quarter.

    A need that no machine has room for counts as a whole machine.
    """
    pairs = [(min(getattr(need, name), getattr(capacity, name)), getattr(capacity, name)) for name in DIMENSIONS]
    large = (int(part * share > whole) for part, whole in pairs for share in _PARTS)
    return [1, *(part for part, _ in pairs), *large]


def _add_weights(sums: list[int], weights: Sequence[int], sign: int) -> None:
    for place, weight in enumerate(weights):
        if weight:
            sums[place] += sign * weight


def total_time(counts: Sequence[MachineCount], lead: int) -> int:
    """Return the least time that so many machines run, each started a boot before it is needed or kept till then."""
    total = running = since = 0
    stopped: dict[int, int] = {}
    for moment, machines in counts:
        total += running * (moment - since)
        for number in range(running, machines):
            total += min(lead, moment - stopped[number]) if number in stopped else lead
        for number in range(machines, running):
            stopped[number] = moment
        running, since = machines, moment
    return total
