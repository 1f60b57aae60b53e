"""Claims over time in packed numbers: six dimensions in one whole number, and moments as microseconds.

Each dimension has a lane of 64 bits, scaled so that every capacity comes to about 2**45. Sums and comparisons stay
exact, and the bits of a lane from 2**40 up tell in 32nds how full it is. `Timeline` is one place's usage over time,
exact to the microsecond: the arithmetic of `lcm.model.base.capacity.Profile` on packed amounts, updated in place.
"""

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from lcm.model.base.capacity import DIMENSIONS, ZERO_AMOUNT, Amount

LEVELS: Final = 32
"""The level of a dimension that is exactly full."""

LANE_BITS: Final = 64
_FULL_SHIFT: Final = 45
LEVEL_SHIFT: Final = 40
_MOST_CAPACITY: Final = 2**47
_MOST_NEED: Final = 2**52
"""A need beyond this fits nowhere, and two thousand of them still stay below a lane's guard bit."""

_SHIFTS: Final = tuple(LANE_BITS * number for number in range(len(DIMENSIONS)))
GUARD_BITS: Final = sum(1 << shift + LANE_BITS - 1 for shift in _SHIFTS)
"""The top bit of each lane: it is borrowed from, and so cleared, where more is taken than there is."""

PACKED_BYTES: Final = LANE_BITS * len(DIMENSIONS) // 8
_LEVEL_BYTES: Final = slice(LEVEL_SHIFT // 8, None, LANE_BITS // 8)
TICK_MICROS: Final = 30 * 60 * 1_000_000
"""The half hour of the index."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class Lanes:
    """The packing of amounts for places of one capacity."""

    __slots__ = ("_factors", "_last", "_limits", "slack", "top")

    def __init__(self, capacity: Amount) -> None:
        sizes = [min(getattr(capacity, name), _MOST_CAPACITY) for name in DIMENSIONS]
        factors = [-(-(1 << _FULL_SHIFT) // size) if size else 1 for size in sizes]
        self._factors = tuple(factor << shift for factor, shift in zip(factors, _SHIFTS, strict=True))
        self._limits = tuple(_MOST_NEED // factor for factor in factors)
        full = sum(size * factor for size, factor in zip(sizes, self._factors, strict=True))
        self.slack = sum(size + 1 << shift for size, shift in zip(sizes, _SHIFTS, strict=True))
        """What is added to a room before its levels are read, so that they are the highest of what is within it."""
        self.top = GUARD_BITS + full
        self._last = ZERO_AMOUNT, 0

    def pack(self, need: Amount) -> int:
        """Pack a need; one that is absurdly large is packed as one that is merely too large."""
        # Written out without a loop for speed, because every claim is packed.
        cpu, memory, storage = need.cpu_millis, need.memory_mb, need.storage_mb
        nodes, ports, labs = need.nodes, need.ports, need.labs
        most_cpu, most_memory, most_storage, most_nodes, most_ports, most_labs = self._limits
        if (
            cpu > most_cpu
            or memory > most_memory
            or storage > most_storage
            or nodes > most_nodes
            or ports > most_ports
            or labs > most_labs
        ):
            amounts = cpu, memory, storage, nodes, ports, labs
            cpu, memory, storage, nodes, ports, labs = map(min, amounts, self._limits)
        by_cpu, by_memory, by_storage, by_nodes, by_ports, by_labs = self._factors
        return (
            cpu * by_cpu
            + memory * by_memory
            + storage * by_storage
            + nodes * by_nodes
            + ports * by_ports
            + labs * by_labs
        )

    def pack_again(self, need: Amount) -> int:
        """Pack a need that is probably the same as the last, as seats do for every seat that is asked."""
        if need is not self._last[0]:
            self._last = need, self.pack(need)
        return self._last[1]

    def highest_levels(self, room: int) -> bytes:
        """Return, for each dimension, the highest level at which a place may still be within a room."""
        return levels(room + self.slack)

    def unpack(self, packed: int) -> Amount:
        """Return the amount that was packed."""
        lanes = (packed >> shift & (1 << LANE_BITS) - 1 for shift in _SHIFTS)
        factors = (factor >> shift for factor, shift in zip(self._factors, _SHIFTS, strict=True))
        return Amount(**{n: lane // factor for n, lane, factor in zip(DIMENSIONS, lanes, factors, strict=True)})


@lru_cache(maxsize=256)
def lanes_of(capacity: Amount) -> Lanes:
    """Return the packing for places of a capacity, the same for all of them."""
    return Lanes(capacity)


def levels(packed: int) -> bytes:
    """Return, for each dimension, how many 32nds of the capacity are used; the count wraps after 255."""
    return packed.to_bytes(PACKED_BYTES, "little")[_LEVEL_BYTES]


def short_of(room: int) -> list[str]:
    """Return the names of the dimensions in which a packed room went below zero."""
    return [name for name, shift in zip(DIMENSIONS, _SHIFTS, strict=True) if not room >> shift + LANE_BITS - 1 & 1]


def micros(moment: datetime) -> int:
    """Return a moment as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def moment_of(number: int) -> datetime:
    """Return microseconds since 1970 as a moment."""
    return EPOCH + timedelta(microseconds=number)


def round_up_capacity(capacity: Amount) -> Amount:
    """Round each dimension up to three binary digits, so that machines of about the same size count as alike."""
    return Amount(**{name: _round_up_to_three_bits(getattr(capacity, name)) for name in DIMENSIONS})


def _round_up_to_three_bits(number: int) -> int:
    shift = max(0, number.bit_length() - 3)
    return -(-number >> shift) << shift


BEGINNING: Final = -(1 << 62)
END: Final = 1 << 62


class Timeline:
    """A step function of time: `levels[i]` is used during [moments[i], moments[i + 1]); neighbours always differ."""

    __slots__ = ("levels", "moments", "top")

    def __init__(self, top: int) -> None:
        self.top = top
        self.moments = [BEGINNING]
        self.levels = [0]

    def copy(self) -> "Timeline":
        """Return another timeline with the same steps."""
        made = Timeline(self.top)
        made.moments, made.levels = self.moments.copy(), self.levels.copy()
        return made

    def add(self, start: int, end: int, need: int) -> None:
        """Add a need, which may be negative, to what is used during [start, end)."""
        if start < end and need:
            levels = self.levels
            first, last = self.split(start, end)
            for place in range(first, last):
                levels[place] += need
            self.merge(first, last)

    def split(self, start: int, end: int) -> tuple[int, int]:
        """Split the steps at two moments, and return which begin there; until `merge`, neighbours may be alike."""
        moments, levels = self.moments, self.levels
        first = bisect_left(moments, start)
        if first == len(moments) or moments[first] != start:
            moments.insert(first, start)
            levels.insert(first, levels[first - 1])
        last = bisect_left(moments, end, first)
        if last == len(moments) or moments[last] != end:
            moments.insert(last, end)
            levels.insert(last, levels[last - 1])
        return first, last

    def merge(self, first: int, last: int) -> None:
        """Join two steps with those before them where these are like them."""
        moments, levels = self.moments, self.levels
        if levels[last] == levels[last - 1]:
            del moments[last], levels[last]
        if first and levels[first] == levels[first - 1]:
            del moments[first], levels[first]

    def used_at(self, moment: int) -> int:
        """Return what is used at a moment."""
        return self.levels[bisect_right(self.moments, moment) - 1]

    def fits(self, start: int, end: int, need: int) -> bool:
        """Return whether a need fits at every moment of [start, end)."""
        return self.first_obstacle(start, end, self.top - need) is None

    def first_obstacle(self, start: int, end: int, room: int) -> int | None:
        """Return the first step within [start, end) at which more is used than a room; None if there is none."""
        moments, levels = self.moments, self.levels
        place = bisect_right(moments, start) - 1
        if start >= end:
            return None if room & GUARD_BITS == GUARD_BITS else place
        # Fast path: a place that is too full mostly is so at the first step.
        if (room - levels[place]) & GUARD_BITS != GUARD_BITS:
            return place
        for level in levels[place + 1 : bisect_left(moments, end, place)]:
            place += 1
            if (room - level) & GUARD_BITS != GUARD_BITS:
                return place
        return None

    def first_misfit(self, start: int, end: int, need: int) -> int | None:
        """Return the first moment of [start, end) at which a need does not fit; None if it always fits."""
        place = self.first_obstacle(start, end, self.top - need)
        return None if place is None else max(start, self.moments[place])

    def step_end(self, place: int) -> int:
        """Return when a step ends."""
        return self.moments[place + 1] if place + 1 < len(self.moments) else END

    def earliest(self, not_before: int, length: int, need: int) -> int | None:
        """Return the first moment from which a need fits for so long; None if it never does."""
        room = self.top - need
        if room & GUARD_BITS != GUARD_BITS:
            return None
        if length <= 0:
            return not_before
        start: int | None = not_before
        for place in range(bisect_right(self.moments, not_before) - 1, len(self.moments)):
            if start is not None and self.moments[place] >= start + length:
                break
            if (room - self.levels[place]) & GUARD_BITS != GUARD_BITS:
                start = None
            elif start is None:
                start = self.moments[place]
        return start
