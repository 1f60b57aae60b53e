"""One place's claims over time, exact to the microsecond: what is used when, and what still fits.

The same arithmetic as `lcm.model.capacity.Profile`, on packed amounts and updated in place. The fleet keeps one per
place.
"""

from bisect import bisect_left, bisect_right

from lcm.placement.lanes import GUARD

BEGINNING = -(1 << 62)
END = 1 << 62


class Timeline:
    """A step function of time: `levels[i]` is used during [moments[i], moments[i + 1]), never twice the same."""

    __slots__ = ("levels", "moments", "top")

    def __init__(self, top: int) -> None:
        self.top = top
        self.moments = [BEGINNING]
        self.levels = [0]

    def add(self, start: int, end: int, need: int) -> None:
        """Use so much more, or less, during [start, end)."""
        if start >= end or not need:
            return
        moments, levels = self.moments, self.levels
        first = bisect_left(moments, start)
        steps_before = first < len(moments) and moments[first] == start
        if not steps_before:
            moments.insert(first, start)
            levels.insert(first, levels[first - 1])
        last = bisect_left(moments, end, first)
        if last == len(moments) or moments[last] != end:
            moments.insert(last, end)
            levels.insert(last, levels[last - 1])
            for place in range(first, last):
                levels[place] += need
        else:
            for place in range(first, last):
                levels[place] += need
            if levels[last] == levels[last - 1]:
                del moments[last], levels[last]
        # Only where there was a step before can it have become even.
        if steps_before and levels[first] == levels[first - 1]:
            del moments[first], levels[first]

    def at(self, moment: int) -> int:
        """Say what is used at a moment."""
        return self.levels[bisect_right(self.moments, moment) - 1]

    def fits(self, start: int, end: int, need: int) -> bool:
        """Tell whether a need fits at every moment of [start, end)."""
        return self.obstacle(start, end, self.top - need) is None

    def obstacle(self, start: int, end: int, room: int) -> int | None:
        """Find the first of the steps that [start, end) meets at which more is used than a room."""
        moments, levels = self.moments, self.levels
        place = bisect_right(moments, start) - 1
        if start >= end:
            return None if room & GUARD == GUARD else place
        # Most of those that are too full are so at once.
        if (room - levels[place]) & GUARD != GUARD:
            return place
        for level in levels[place + 1 : bisect_left(moments, end, place)]:
            place += 1
            if (room - level) & GUARD != GUARD:
                return place
        return None

    def misfit(self, start: int, end: int, need: int) -> int | None:
        """Find the first moment of [start, end) at which a need does not fit."""
        place = self.obstacle(start, end, self.top - need)
        return None if place is None else max(start, self.moments[place])

    def until(self, place: int) -> int:
        """Say when a step ends."""
        return self.moments[place + 1] if place + 1 < len(self.moments) else END

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
