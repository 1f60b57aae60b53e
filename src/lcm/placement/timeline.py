"""One place's claims over time, exact to the microsecond: what is used when, and what still fits.

The same arithmetic as `lcm.model.capacity.Profile`, on packed amounts and updated in place. The fleet keeps one per
place.
"""

from bisect import bisect_left, bisect_right

from lcm.placement.lanes import GUARD

BEGINNING = -(1 << 62)


class Timeline:
    """A step function of time: `levels[i]` is used during [moments[i], moments[i + 1]), never twice the same."""

    __slots__ = ("levels", "moments", "top")

    def __init__(self, top: int) -> None:
        self.top = top
        self.moments = [BEGINNING]
        self.levels = [0]

    def add(self, start: int, end: int, need: int) -> None:
        """Use so much more, or less, during [start, end)."""
        if start >= end:
            return
        first, last = self._cut(start), self._cut(end)
        levels = self.levels
        for place in range(first, last):
            levels[place] += need
        self._join(last)
        self._join(first)

    def at(self, moment: int) -> int:
        """Say what is used at a moment."""
        return self.levels[bisect_right(self.moments, moment) - 1]

    def fits(self, start: int, end: int, need: int) -> bool:
        """Tell whether a need fits at every moment of [start, end)."""
        room = self.top - need
        moments = self.moments
        for level in self.levels[bisect_right(moments, start) - 1 : bisect_left(moments, end)]:
            if (room - level) & GUARD != GUARD:
                return False
        return room & GUARD == GUARD

    def misfit(self, start: int, end: int, need: int) -> int | None:
        """Find the first moment of [start, end) at which a need does not fit."""
        room = self.top - need
        if room & GUARD != GUARD:
            return start
        moments = self.moments
        place = bisect_right(moments, start) - 1
        for level in self.levels[place : bisect_left(moments, end)]:
            if (room - level) & GUARD != GUARD:
                return max(start, moments[place])
            place += 1
        return None

    def earliest(self, not_before: int, length: int, need: int) -> int | None:
        """Find the first moment from which a need fits for so long; None when it never does."""
        room = self.top - need
        if room & GUARD != GUARD:
            return None
        start: int | None = not_before
        for place in range(bisect_right(self.moments, not_before) - 1, len(self.moments)):
            if start is not None and self.moments[place] >= start + length:
                break
            if (room - self.levels[place]) & GUARD != GUARD:
                start = None
            elif start is None:
                start = self.moments[place]
        return start

    def _cut(self, moment: int) -> int:
        place = bisect_left(self.moments, moment)
        if place == len(self.moments) or self.moments[place] != moment:
            self.moments.insert(place, moment)
            self.levels.insert(place, self.levels[place - 1])
        return place

    def _join(self, place: int) -> None:
        if self.levels[place] == self.levels[place - 1]:
            del self.moments[place]
            del self.levels[place]
