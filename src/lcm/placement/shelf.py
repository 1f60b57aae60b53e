"""Places that are alike but for their claims, searched for the fullest that fits without going through all.

A few `|` and `&` of the rows of the claim's hours leave the places that could take it, and then the best of those;
whether one really can is asked of its timeline. A place's bit stands the higher the earlier its id sorts, so that ties
go to the first id. The fleet keeps a shelf per kind of place.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final

from lcm.model.capacity import Amount
from lcm.placement.lanes import Lanes
from lcm.placement.line import Line, accepts, hours
from lcm.placement.request import Place
from lcm.placement.rows import BUSY, FULLEST, UNUSED, Row, above, by_count, by_fullness, flip, limits, new_row, told

_BY_ID: Final = attrgetter("place.id")


def pack_score(idle: int, looked: int, fullness: int, *, together: bool) -> float:
    """Score a place from 0 to 1: first by how few idle hours it fills, then by fullness, then by a common end."""
    return (looked - idle + (2 * fullness + together) / (2 * FULLEST + 2)) / (looked + 1)


class Shelf:
    """Places of one kind. `size` is at least as large as the capacity of each."""

    __slots__ = ("_lanes", "accepting", "kind", "lines", "rows", "size")

    def __init__(self, kind: Place, size: Amount) -> None:
        self.kind = kind
        self.size = size
        self.lines: list[Line] = []
        self.rows: dict[int, Row] = {}
        self.accepting = 0
        self._lanes = Lanes(size)

    def insert(self, line: Line) -> None:
        """Take a place in, without what it holds."""
        place = bisect_left(self.lines, line.place.id, key=_BY_ID)
        slot = line.slot = len(self.lines) - place
        self.lines.insert(place, line)
        for before in self.lines[:place]:
            before.slot += 1
        self._move_bits(lambda mask: mask >> slot << slot + 1 | mask & (1 << slot) - 1)

    def remove(self, line: Line) -> None:
        """Take a place out, which holds nothing any more."""
        slot = line.slot
        place = len(self.lines) - 1 - slot
        del self.lines[place]
        for before in self.lines[:place]:
            before.slot -= 1
        self._move_bits(lambda mask: mask >> slot + 1 << slot | mask & (1 << slot) - 1)

    def mark(self, line: Line) -> None:
        """Note whether a place accepts anything."""
        bit = 1 << line.slot
        if bool(self.accepting & bit) is not accepts(line.place):
            self.accepting ^= bit

    def shift(self, line: Line, start: int, end: int, need: int) -> None:
        """Note that a place uses so much more, or less, during [start, end)."""
        bit = 1 << line.slot
        samples, rows = line.samples, self.rows
        for hour in hours(start, end):
            used, before = samples.get(hour, UNUSED)
            row = rows.get(hour)
            if row is None:
                row = rows[hour] = new_row()
            now = used + need
            after = told(now)
            if before != after:
                flip(row, before, after, bit)
            if not (used and now):
                row[BUSY] ^= bit * (used != now)
            samples[hour] = now, after
            if not now:
                self._forget(line, hour)

    def possible(self, need: Amount, span: range) -> int:
        """Give the places that no sample rules out, among those that accept anything."""
        limit = limits(self._lanes.highest_levels(need))
        full, rows = 0, self.rows
        for hour in span:
            if hour in rows:
                full |= above(rows[hour], limit)
        return self.accepting ^ (self.accepting & full)

    def fullest(self, need: Amount, span: range, fits: Callable[[Line], bool]) -> tuple[Line | None, float, int]:
        """Find the place that scores best for packing, its score, and how many were asked whether they fit."""
        asked = 0
        after = self._busy(span.stop)
        for idle, group in self._by_idle_hours(self.possible(need, span), span):
            for fullness, alike in by_fullness(self.rows.get(span.start), group):
                staying = alike & after
                for together, mask in ((True, alike ^ staying), (False, staying)):
                    for line in self.of(mask):
                        asked += 1
                        if fits(line):
                            return line, pack_score(idle, len(span), fullness, together=together), asked
        return None, 0.0, asked

    def of(self, mask: int) -> Iterator[Line]:
        """Give the places of a mask in the order of their ids."""
        while mask:
            slot = mask.bit_length() - 1
            yield self.lines[-1 - slot]
            mask ^= 1 << slot

    def _by_idle_hours(self, mask: int, span: range) -> Iterator[tuple[int, int]]:
        warm = mask
        for hour in span:
            warm &= self._busy(hour)
        if warm:
            yield 0, warm
        cold = mask ^ warm
        if cold:
            idle = (cold ^ (cold & self._busy(hour)) for hour in span)
            yield from by_count(cold, idle, len(span))

    def _busy(self, hour: int) -> int:
        row = self.rows.get(hour)
        return row[BUSY] if row else 0

    def _forget(self, line: Line, hour: int) -> None:
        del line.samples[hour]
        if not self.rows[hour][BUSY]:
            del self.rows[hour]

    def _move_bits(self, moved: Callable[[int], int]) -> None:
        self.accepting = moved(self.accepting)
        for row in self.rows.values():
            row[:] = [moved(mask) if mask else 0 for mask in row]
