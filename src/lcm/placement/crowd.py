"""Who was found too full between two half hours, where no row shows it. A large shelf keeps one per half hour."""

from functools import reduce
from heapq import heappop, heappush
from operator import or_

from lcm.placement.lanes import LEVELS, levels
from lcm.placement.rows import CAPPED, Limits


class Crowd:
    """Places found too full between two half hours: a mask for each level of CPU and memory that was found, until when.

    What a place uses may have become more since then, so that this too never counts it as fuller than it is.
    """

    __slots__ = ("_ends", "_known", "_masks")

    def __init__(self) -> None:
        self._masks = [[0] * (LEVELS + 1), [0] * (LEVELS + 1)]
        self._known: dict[int, tuple[list[int], int, int]] = {}
        self._ends: list[tuple[int, int]] = []

    def note(self, slot: int, used: int, until: int, limit: Limits) -> None:
        """Remember that the place of a slot uses so much, if it is above a limit of CPU or memory by that."""
        told = levels(used).translate(CAPPED)
        for masks, level, fits in zip(self._masks, told, limit.levels, strict=False):
            if level > fits:
                self.forget(slot)
                masks[level] ^= 1 << slot
                self._known[slot] = masks, level, until
                heappush(self._ends, (until, slot))
                return

    def forget(self, slot: int) -> None:
        """Know nothing of a place any more, as it may use less now."""
        if slot in self._known:
            masks, level, _ = self._known.pop(slot)
            masks[level] ^= 1 << slot

    def above(self, moment: int, limit: Limits) -> int:
        """Give the places that are above a limit at some time from a moment on; what has ended by then is forgotten."""
        ends = self._ends
        while ends and ends[0][0] <= moment:
            until, slot = heappop(ends)
            if slot in self._known and self._known[slot][-1] == until:
                self.forget(slot)
        if not self._known:
            return 0
        cpu, memory = self._masks
        most_cpu, most_memory, *_ = limit.levels
        return reduce(or_, memory[most_memory + 1 :], reduce(or_, cpu[most_cpu + 1 :], 0))
