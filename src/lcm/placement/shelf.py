"""Places of about one size, searched for the fullest that fits without going through all.

Every place has one bit. A few `|` and `&` of the rows of a claim's half hours leave the places that could take it, and
then the best of those; whether one really can is asked of its timeline. Before its first half hour a claim meets others
that no row shows: in a large shelf a place that is too full there is remembered until it no longer is, or all who begin
at about that time would ask it again. A place's bit stands the higher the earlier its id sorts, so that ties go to the
first id. Places whose other facts are the same too are of one kind: filters are asked once per kind, and the answer
is remembered as a mask. The fleet keeps the shelves.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Final

from lcm.model.capacity import Amount
from lcm.placement.lanes import Lanes
from lcm.placement.line import MOST_TICKS, TICK, Line, accepts, ticks
from lcm.placement.request import Place, Request
from lcm.placement.rows import (
    BUSY,
    EMPTY,
    FULLEST,
    Crowd,
    Limits,
    Row,
    by_count,
    by_fullness,
    limits,
    shift,
)
from lcm.placement.rules import asked_of, kind_of, static_rejection

_BY_ID: Final = attrgetter("place.id")
_MOST_REMEMBERED: Final = 1000


def pack_score(idle: int, looked: int, fullness: int, *, together: bool) -> float:
    """Score a place from 0 to 1: first by how little idle time it fills, then by fullness, then by a common end."""
    return (looked - idle + (2 * fullness + together) / (2 * FULLEST + 2)) / (looked + 1)


class Shelf:
    """Workers, or seats, none of which is larger than `size`."""

    __slots__ = (
        "_accepting",
        "_crowds",
        "_kinds",
        "_lanes",
        "_lanes_of_lines",
        "_open_to",
        "_rounded",
        "_rows",
        "_since",
        "lines",
        "seats",
        "size",
    )

    def __init__(self, size: Amount, *, seats: bool, since: int) -> None:
        self.size = size
        self.seats = seats
        self.lines: list[Line] = []
        self._lanes = self._rounded = Lanes(size)
        self._lanes_of_lines: Counter[Lanes] = Counter()
        self._rows: dict[int, Row] = {}
        self._crowds: dict[int, Crowd] = {}
        self._kinds: dict[object, tuple[Place, int]] = {}
        self._accepting = 0
        self._since = since
        self._open_to: dict[object, int] = {}

    def insert(self, line: Line) -> None:
        """Take a place in, without what it holds."""
        place = bisect_left(self.lines, line.place.id, key=_BY_ID)
        slot = line.slot = len(self.lines) - place
        self.lines.insert(place, line)
        self._lanes_of_lines[line.lanes] += 1
        self._choose_lanes()
        for before in self.lines[:place]:
            before.slot += 1
        self._move_bits(lambda mask: mask >> slot << slot + 1 | mask & (1 << slot) - 1)
        self.mark(line, line.place)

    def remove(self, line: Line) -> None:
        """Take a place out, which holds nothing any more."""
        slot = line.slot
        place = len(self.lines) - 1 - slot
        del self.lines[place]
        self._lanes_of_lines -= Counter((line.lanes,))
        self._choose_lanes()
        for before in self.lines[:place]:
            before.slot -= 1
        self._move_bits(lambda mask: mask >> slot + 1 << slot | mask & (1 << slot) - 1)

    def mark(self, line: Line, place: Place) -> None:
        """Note what a place is now: whether it accepts anything, and its kind."""
        bit = 1 << line.slot
        self._unmark(line)
        line.place = place
        known, mask = self._kinds.get(kind_of(place), (place, 0))
        self._kinds[kind_of(place)] = known, mask | bit
        if accepts(place):
            self._accepting |= bit
        self._open_to.clear()

    def shift(self, line: Line, start: int, end: int, need: int) -> None:
        """Note that a place uses so much more, or less, during [start, end)."""
        if need < 0 and self._crowds:
            self._forget_crowded(line.slot, start // TICK, end // TICK)
        shift(self._rows, line.samples, ticks(start, end, self._since), 1 << line.slot, need)

    def advance(self, since: int) -> None:
        """Forget the samples of the half hours before this one."""
        self._since = since
        self._crowds = {tick: crowd for tick, crowd in self._crowds.items() if tick >= since}
        for tick in [tick for tick in self._rows if tick < since]:
            for line in self.of(self._rows.pop(tick)[BUSY]):
                del line.samples[tick]

    def open_to(self, request: Request) -> int:
        """Give the places that accept sessions and whose kind a request may go to."""
        asked = asked_of(request)
        found = self._open_to.get(asked)
        if found is None:
            if len(self._open_to) >= _MOST_REMEMBERED:
                self._open_to.clear()
            masks = (mask for kind, mask in self._kinds.values() if static_rejection(kind, request) is None)
            found = self._open_to[asked] = self._accepting & sum(masks)
        return found

    def in_region(self, region: str) -> int:
        """Give the places in a region."""
        return sum(mask for kind, mask in self._kinds.values() if kind.region == region)

    def limits(self, need: Amount) -> Limits | None:
        """Say how full a place may be at most to have room for a need; None if it is larger than all places."""
        highest = self._lanes.highest_levels(need)
        return None if highest is None else limits(highest)

    def rows(self, span: Iterable[int]) -> list[Row]:
        """Give the rows of these half hours."""
        return list(map(self._rows.get, span, repeat(EMPTY)))

    def crowded(self, start: int, limit: Limits) -> int:
        """Give the places remembered as too full between a moment and the next half hour."""
        found = self._crowds.get(start // TICK)
        return found.above(start, limit) if found else 0

    def note(self, line: Line, start: int, used: int, until: int, limit: Limits) -> None:
        """Remember what a place uses between a moment and the next half hour, for as long as it does."""
        tick = start // TICK
        if tick not in self._crowds:
            self._crowds[tick] = Crowd()
        self._crowds[tick].note(line.slot, used, until, limit)

    def row(self, tick: int) -> Row:
        """Give the row of a half hour."""
        return self._rows.get(tick, EMPTY)

    def ranked(self, warm: int, cold: int, span: range, rows: Sequence[Row]) -> Iterator[tuple[int, int, bool, int]]:
        """Tell places apart by what their score for packing a claim of these half hours is made of, the best first.

        Those that are warm run anyway in all of them, the cold do not.
        """
        first, after = rows[0] if rows else self.row(span.start), self.row(span.stop)[BUSY]
        for idle, group in _by_idle_time(warm, cold, rows):
            for fullness, alike in by_fullness(first, group):
                staying = alike & after
                if alike != staying:
                    yield idle, fullness, True, alike ^ staying
                if staying:
                    yield idle, fullness, False, staying

    def of(self, mask: int) -> Iterator[Line]:
        """Give the places of a mask in the order of their ids."""
        while mask:
            slot = mask.bit_length() - 1
            yield self.lines[-1 - slot]
            mask ^= 1 << slot

    def _choose_lanes(self) -> None:
        """Count as the places do if they are all of one size: that tells best who is too full."""
        found = self._lanes_of_lines
        self._lanes = next(iter(found)) if len(found) == 1 else self._rounded

    def _forget_crowded(self, slot: int, first: int, last: int) -> None:
        crowds = self._crowds
        for tick in range(first, last + 1) if last - first < MOST_TICKS else tuple(crowds):
            if tick in crowds:
                crowds[tick].forget(slot)

    def _unmark(self, line: Line) -> None:
        keep = ~(1 << line.slot)
        self._accepting &= keep
        kept = ((key, kind, mask & keep) for key, (kind, mask) in self._kinds.items())
        self._kinds = {key: (kind, mask) for key, kind, mask in kept if mask}

    def _move_bits(self, moved: Callable[[int], int]) -> None:
        self._open_to.clear()
        self._crowds.clear()
        self._accepting = moved(self._accepting)
        kinds = ((key, kind, moved(mask)) for key, (kind, mask) in self._kinds.items())
        self._kinds = {key: (kind, mask) for key, kind, mask in kinds if mask}
        for row in self._rows.values():
            row[: BUSY + 1] = [moved(mask) if mask else 0 for mask in row[: BUSY + 1]]


def _by_idle_time(warm: int, cold: int, rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    if warm:
        yield 0, warm
    if cold:
        for busy, group in by_count(cold, [row[BUSY] for row in rows], len(rows)):
            yield len(rows) - busy, group
