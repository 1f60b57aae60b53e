"""Places that are alike but for their claims, and which of them are how full at each half hour.

For every half hour, dimension and level there is one whole number whose bits are the places that are at least so full
then. A few `|` and `&` of such numbers leave the places that could take a claim, fullest first; whether one really can
is asked of its timeline. A place's bit stands the higher the earlier its id sorts. The fleet keeps a shelf per kind of
place.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from lcm.model.capacity import DIMENSIONS, Amount
from lcm.placement.lanes import LEVELS, Lanes, highest_levels, levels
from lcm.placement.request import BOOTING, Held, Place
from lcm.placement.timeline import BEGINNING, Timeline

TICK: Final = 30 * 60 * 1_000_000
MOST_TICKS: Final = 96
"""A claim is looked at for two days from its start; beyond that only the timeline knows it, which is asked anyway."""

_WIDTH: Final = LEVELS + 1
_BUSY: Final = _WIDTH * len(DIMENSIONS)
_IDLE: Final = bytes(len(DIMENSIONS))
_BY_ID: Final = attrgetter("place.id")


class Line:
    """A place with what is held on it. `samples` tells what is used at each half hour, packed and as levels."""

    __slots__ = ("held", "lanes", "place", "samples", "shelf", "slot", "timeline", "usable")

    def __init__(self, place: Place, lanes: Lanes, shelf: "Shelf") -> None:
        self.place = place
        self.shelf = shelf
        self.lanes = lanes
        self.timeline = Timeline(lanes.top)
        self.samples: dict[int, tuple[int, bytes]] = {}
        self.held: dict[str, tuple[Held, int]] = {}
        self.usable = BEGINNING
        self.slot = 0


def accepts(place: Place) -> bool:
    """Tell whether a place takes sessions, now or once it has booted."""
    return not place.closed or (place.closed == BOOTING and place.usable_at is not None)


def ticks(start: int, end: int) -> range:
    """Give the half hours that lie within [start, end)."""
    first = -(-start // TICK)
    return range(first, max(first, min(-(-end // TICK), first + MOST_TICKS)))


def pack_score(idle: int, looked: int, level: int, *, together: bool) -> float:
    """Score a place from 0 to 1: first by how little idle time is filled, then by fullness, then by a common end."""
    return (looked - idle + (2 * level + together) / (2 * LEVELS + 2)) / (looked + 1)


class Shelf:
    """Places of one kind. `size` is at least as large as the capacity of each."""

    __slots__ = ("accepting", "kind", "lines", "rows", "size")

    def __init__(self, kind: Place, size: Amount) -> None:
        self.kind = kind
        self.size = size
        self.lines: list[Line] = []
        self.rows: dict[int, list[int]] = {}
        self.accepting = 0

    def insert(self, line: Line) -> None:
        """Take a place in, without what it holds."""
        place = bisect_left(self.lines, line.place.id, key=_BY_ID)
        line.slot = len(self.lines) - place
        self.lines.insert(place, line)
        for before in self.lines[:place]:
            before.slot += 1
        self._map(lambda mask: mask >> line.slot << line.slot + 1 | mask & (1 << line.slot) - 1)
        self.mark(line)

    def remove(self, line: Line) -> None:
        """Take a place out, which holds nothing any more."""
        place = len(self.lines) - 1 - line.slot
        del self.lines[place]
        for before in self.lines[:place]:
            before.slot -= 1
        self._map(lambda mask: mask >> line.slot + 1 << line.slot | mask & (1 << line.slot) - 1)

    def mark(self, line: Line) -> None:
        """Note whether a place accepts anything."""
        bit = 1 << line.slot
        self.accepting = self.accepting | bit if accepts(line.place) else self.accepting & ~bit

    def shift(self, line: Line, start: int, end: int, need: int) -> None:
        """Note that a place uses so much more, or less, during [start, end)."""
        bit = 1 << line.slot
        samples, rows = line.samples, self.rows
        for tick in ticks(start, end):
            used, before = samples.get(tick) or (0, _IDLE)
            row = rows.get(tick)
            if row is None:
                row = rows[tick] = [0] * (_BUSY + 1)
            now = used + need
            after = levels(now)
            if before != after:
                _flip(row, before, after, bit)
            if now:
                samples[tick] = now, after
                row[_BUSY] |= bit
            elif used:
                del samples[tick]
                row[_BUSY] ^= bit
            if not row[_BUSY]:
                del rows[tick]

    def possible(self, need: Amount, span: range) -> int:
        """Give the places that no sample rules out, among those that accept anything."""
        cpu, memory, storage, nodes, ports, labs = (
            _WIDTH * number + level + 1 if level < LEVELS else 0
            for number, level in enumerate(highest_levels(need, self.size))
        )
        full = 0
        for tick in span:
            if row := self.rows.get(tick):
                full |= row[cpu] | row[memory] | row[storage] | row[nodes] | row[ports] | row[labs]
        return self.accepting ^ (self.accepting & full)

    def packed(self, need: Amount, span: range) -> Iterator[tuple[Line, float]]:
        """Go through the places that could fit a need, the best to pack it into first, each with its score."""
        after = self._busy(span.stop)
        for idle, group in self._by_idle_time(self.possible(need, span), span):
            for level, alike in self._by_fullness(group, span.start):
                staying = alike & after
                for line in self.of(alike ^ staying):
                    yield line, pack_score(idle, len(span), level, together=True)
                for line in self.of(staying):
                    yield line, pack_score(idle, len(span), level, together=False)

    def of(self, mask: int) -> Iterator[Line]:
        """Give the places of a mask in the order of their ids."""
        while mask:
            slot = mask.bit_length() - 1
            yield self.lines[-1 - slot]
            mask ^= 1 << slot

    def _by_idle_time(self, mask: int, span: range) -> Iterator[tuple[int, int]]:
        warm = mask
        for tick in span:
            warm &= self._busy(tick)
        if warm:
            yield 0, warm
        idle = [mask ^ (mask & self._busy(tick)) for tick in span]
        yield from _counted(mask ^ warm, idle)

    def _by_fullness(self, mask: int, tick: int) -> Iterator[tuple[int, int]]:
        row = self.rows.get(tick)
        for level in range(LEVELS if row else 0, 0, -1):
            found = mask & _any(row or [], level)
            if found:
                yield level, found
                mask ^= found
        if mask:
            yield 0, mask

    def _busy(self, tick: int) -> int:
        row = self.rows.get(tick)
        return row[_BUSY] if row else 0

    def _map(self, moved: Callable[[int], int]) -> None:
        self.accepting = moved(self.accepting)
        for row in self.rows.values():
            row[:] = [moved(mask) if mask else 0 for mask in row]


def _flip(row: list[int], before: bytes, after: bytes, bit: int) -> None:
    base = 1
    for old, new in zip(before, after, strict=True):
        if old < new:
            for number in range(base + old, base + new):
                row[number] |= bit
        elif new < old:
            for number in range(base + new, base + old):
                row[number] ^= bit
        base += _WIDTH


def _any(row: list[int], level: int) -> int:
    found = 0
    for number in range(level, _BUSY, _WIDTH):
        found |= row[number]
    return found


def _counted(mask: int, idle: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Tell places apart by in how many of these masks they are: binary counters, one digit of all of them a number."""
    digits: list[int] = []
    for carry in idle:
        for place, digit in enumerate(digits):
            digits[place], carry = digit ^ carry, digit & carry  # noqa: PLW2901 - the carry moves on
        digits.append(carry)
    for count in range(1, len(idle) + 1):
        found = mask
        for place, digit in enumerate(digits):
            found &= digit if count >> place & 1 else mask ^ (mask & digit)
        if found:
            yield count, found
