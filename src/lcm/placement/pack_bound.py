"""What no packing of claims can do without: a lower bound of the time that machines run.

At every moment at least as many machines run as the claims of that moment need, whichever dimension needs the most. A
dimension needs what is claimed of it, and room for large claims: of those that take more than a half of a machine, a
third or a quarter, a machine holds one, two or three. Over time, each further machine that is needed is started, or was
kept since it was needed last, whichever is less. The bound counts boots and gaps as `pack_board` does, so that the two
can be compared. The packer's result has it, and the bench measures by it.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import accumulate
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
    sums = DemandSums(capacity)
    for claim in claims:
        sums.add(claim)
    return sums.lower_bound(lead)


class DemandSums:
    """What claims need in total over time; claims come and go, so that the bound of many is soon known again."""

    def __init__(self, capacity: Amount) -> None:
        self._capacity = capacity
        sizes = [getattr(capacity, name) for name in DIMENSIONS]
        self._limits = [_ANY_NUMBER, *sizes, *(part - 1 for _ in DIMENSIONS for part in _PARTS)]
        self._steps: dict[int, list[int]] = {}

    def add(self, claim: Claim, sign: int = 1) -> None:
        """Add a claim; with the sign -1, remove one that was added."""
        if claim.start < claim.end:
            weights = _weigh_need(claim.need, self._capacity)
            for moment, change in ((claim.start, sign), (claim.end, -sign)):
                sums = self._steps.setdefault(micros(moment), [0] * len(self._limits))
                for place, weight in enumerate(weights):
                    sums[place] += change * weight

    def count_machines(self) -> list[MachineCount]:
        """Return how many machines are needed over time at least, in order; the last count is zero."""
        moments = sorted(self._steps)
        rows = [self._steps[moment] for moment in moments]
        most = [0] * len(rows)
        for place, limit in enumerate(self._limits):
            if limit and any(row[place] for row in rows):
                needed = (-(-total // limit) for total in accumulate(row[place] for row in rows))
                most = list(map(max, most, needed))
        return [MachineCount(moment, machines) for moment, machines in zip(moments, most, strict=True)]

    def lower_bound(self, lead: timedelta, standing: int = 0) -> int:
        """Return how long machines run at least for the claims, in total, in microseconds.

        The time of those that are `standing`, which run anyway, is not counted.
        """
        counts = self.count_machines()
        if standing:
            counts = [MachineCount(moment, max(0, machines - standing)) for moment, machines in counts]
        return total_time(counts, lead // _MICROSECOND)


def _weigh_need(need: Amount, capacity: Amount) -> list[int]:
    """Return one, what a need takes of each dimension, and whether that is more than a half, a third, a quarter.

    A need that no machine has room for counts as a whole machine.
    """
    pairs = [(min(getattr(need, name), getattr(capacity, name)), getattr(capacity, name)) for name in DIMENSIONS]
    large = (int(part * share > whole) for part, whole in pairs for share in _PARTS)
    return [1, *(part for part, _ in pairs), *large]


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
