"""Six dimensions in one whole number, so that all of them are added and compared at once; and moments as numbers.

Each dimension has a lane of 64 bits, multiplied so that every capacity comes to about 2**45. Sums and comparisons stay
exact, and the bits of a lane from 2**40 up tell in 32nds how full it is. The timeline and the shelf use this.
"""

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from typing import Final

from lcm.model.base.capacity import DIMENSIONS, NOTHING, Amount

LEVELS: Final = 32
"""The level of what is just full."""

LANE: Final = 64
_FULL: Final = 45
STEP: Final = 40
_MOST_CAPACITY: Final = 2**47
_MOST_NEED: Final = 2**52
"""A need beyond this fits nowhere, and two thousand of them still stay below a lane's guard bit."""

_SHIFTS: Final = tuple(LANE * number for number in range(len(DIMENSIONS)))
GUARD: Final = sum(1 << shift + LANE - 1 for shift in _SHIFTS)
"""The top bit of each lane: it is borrowed from where more is taken than there is."""

BYTES: Final = LANE * len(DIMENSIONS) // 8
_LEVEL_BYTES: Final = slice(STEP // 8, None, LANE // 8)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1_000_000
_DAY_SECONDS: Final = 86_400


class Lanes:
    """How amounts are packed for places of one capacity."""

    __slots__ = ("_factors", "_last", "_limits", "_slack", "top")

    def __init__(self, capacity: Amount) -> None:
        sizes = [min(getattr(capacity, name), _MOST_CAPACITY) for name in DIMENSIONS]
        factors = [_factor(size) for size in sizes]
        self._factors = tuple(factor << shift for factor, shift in zip(factors, _SHIFTS, strict=True))
        self._limits = tuple(_MOST_NEED // factor for factor in factors)
        full = sum(size * factor for size, factor in zip(sizes, self._factors, strict=True))
        self._slack = sum(size + 1 << shift for size, shift in zip(sizes, _SHIFTS, strict=True))
        self.top = GUARD + full
        self._last = NOTHING, 0

    def pack(self, need: Amount) -> int:
        """Pack a need; one that is absurdly large is packed as one that is merely too large."""
        last, packed = self._last
        if need is last:
            # What a place was asked for is what it holds next.
            return packed
        # Spelled out, because every claim is packed.
        cpu, memory, storage = need.cpu_millis, need.memory_mb, need.storage_mb
        nodes, ports, labs = need.nodes, need.ports, need.labs
        most = self._limits
        if (
            cpu > most[0]
            or memory > most[1]
            or storage > most[2]
            or nodes > most[3]
            or ports > most[4]
            or labs > most[5]
        ):
            cpu, memory, storage, nodes, ports, labs = map(min, (cpu, memory, storage, nodes, ports, labs), most)
        by_cpu, by_memory, by_storage, by_nodes, by_ports, by_labs = self._factors
        packed = (
            cpu * by_cpu
            + memory * by_memory
            + storage * by_storage
            + nodes * by_nodes
            + ports * by_ports
            + labs * by_labs
        )
        self._last = need, packed
        return packed

    def highest_levels(self, room: int) -> bytes:
        """Tell for each dimension the highest level at which a place may still be within a room."""
        return levels(room + self._slack)

    def unpack(self, packed: int) -> Amount:
        """Give back the amount that was packed."""
        lanes = (packed >> shift & (1 << LANE) - 1 for shift in _SHIFTS)
        factors = (factor >> shift for factor, shift in zip(self._factors, _SHIFTS, strict=True))
        return Amount(**{n: lane // factor for n, lane, factor in zip(DIMENSIONS, lanes, factors, strict=True)})


def levels(packed: int) -> bytes:
    """Tell for each dimension how many 32nds of the capacity are used; beyond 255 of them it begins anew."""
    return packed.to_bytes(BYTES, "little")[_LEVEL_BYTES]


def short_of(room: int) -> list[str]:
    """Name the dimensions in which a packed room went below nothing."""
    return [name for name, shift in zip(DIMENSIONS, _SHIFTS, strict=True) if not room >> shift + LANE - 1 & 1]


def micros(moment: datetime) -> int:
    """Give a moment as microseconds since 1970."""
    since = moment - _EPOCH
    return (since.days * _DAY_SECONDS + since.seconds) * _SECOND + since.microseconds


def moment_of(number: int) -> datetime:
    """Give microseconds since 1970 as a moment."""
    return _EPOCH + timedelta(microseconds=number)


def rounded_up(capacity: Amount) -> Amount:
    """Round each dimension up to three binary digits, so that machines of about the same size count as alike."""
    return Amount(**{name: _three_digits(getattr(capacity, name)) for name in DIMENSIONS})


def _factor(size: int) -> int:
    return -(-(1 << _FULL) // size) if size else 1


def _three_digits(number: int) -> int:
    shift = max(0, number.bit_length() - 3)
    return -(-number >> shift) << shift


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
