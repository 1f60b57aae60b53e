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
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from heapq import heappop, heappush
from operator import attrgetter, or_
from typing import Final

from lcm.model.base.capacity import Amount
from lcm.placement.bitmap import BUSY, CAPPED, Limits, Row, Rows, limits, shift
from lcm.placement.candidate import MOST_TICKS, TICK, Ask, Holding, Line, accepts
from lcm.placement.request import Place, Request
from lcm.placement.rules import asked_of, kind_of, static_rejection
from lcm.placement.timeline import GUARD, LEVELS, Lanes, levels


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


_BY_ID: Final = attrgetter("place.id")
_MOST_REMEMBERED: Final = 1000


class Shelf:
    """Workers, or seats, none of which is larger than `size`."""

    __slots__ = (
        "_accepting",
        "_crowds",
        "_kinds",
        "_lanes_of_lines",
        "_open_to",
        "_rounded",
        "_rows",
        "_since",
        "lanes",
        "lines",
        "seats",
        "size",
    )

    def __init__(self, size: Amount, *, seats: bool, since: int) -> None:
        self.size = size
        self.seats = seats
        self.lines: list[Line] = []
        self.lanes = self._rounded = Lanes(size)
        self._lanes_of_lines: Counter[Lanes] = Counter()
        self._rows = Rows()
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

    def add(self, line: Line, span: range, need: int) -> None:
        """Note that a place uses so much more, or less, at these half hours."""
        if span.start < self._since:
            span = range(self._since, span.stop)
        if need:
            shift(self._rows, line.samples, span, 1 << line.slot, need)

    def take_away(self, line: Line, held: Holding) -> None:
        """Note that a place does not hold something any more."""
        if self._crowds:
            self._forget_crowded(line.slot, held.span)
        self.add(line, held.span, -held.need)

    def advance(self, since: int) -> None:
        """Forget the samples of the half hours before this one."""
        self._since = since
        self._crowds = {tick: crowd for tick, crowd in self._crowds.items() if tick >= since}
        for tick in [tick for tick in self._rows if tick < since]:
            del self._rows[tick]
            for line in self.lines:
                line.samples.pop(tick, None)

    def open_to(self, request: Request, region: str | None = None) -> int:
        """Give the places that accept sessions and whose kind a request may go to, in a region if one is given."""
        asked = asked_of(request)
        found = self._open_to.get(asked)
        if found is None:
            if len(self._open_to) >= _MOST_REMEMBERED:
                self._open_to.clear()
            masks = (mask for kind, mask in self._kinds.values() if static_rejection(kind, request) is None)
            found = self._open_to[asked] = self._accepting & sum(masks)
        return found if region is None else found & self._in(region)

    def limits(self, ask: Ask) -> Limits | None:
        """Say how full a place may be at most to have room for a need; None if it is larger than all places."""
        room = ask.room(self.lanes)
        return limits(self.lanes.highest_levels(room)) if room & GUARD == GUARD else None

    def rows(self, span: Iterable[int]) -> list[Row]:
        """Give the rows of these half hours."""
        return list(map(self._rows.__getitem__, span))

    def crowded(self, start: int, limit: Limits) -> int:
        """Give the places remembered as too full between a moment and the next half hour."""
        found = self._crowds.get(start // TICK)
        return found.above(start, limit) if found else 0

    def note(self, line: Line, start: int, obstacle: int, limit: Limits) -> None:
        """Remember a place that has too little room at a step of its timeline, if that is before the next half hour."""
        timeline, tick = line.timeline, start // TICK
        if timeline.moments[obstacle] < (tick + 1) * TICK:
            if tick not in self._crowds:
                self._crowds[tick] = Crowd()
            self._crowds[tick].note(line.slot, timeline.levels[obstacle], timeline.until(obstacle), limit)

    def row(self, tick: int) -> Row:
        """Give the row of a half hour."""
        return self._rows[tick]

    def of(self, mask: int) -> Iterator[Line]:
        """Give the places of a mask in the order of their ids."""
        while mask:
            slot = mask.bit_length() - 1
            yield self.lines[-1 - slot]
            mask ^= 1 << slot

    def _in(self, region: str) -> int:
        return sum(mask for kind, mask in self._kinds.values() if kind.region == region)

    def _choose_lanes(self) -> None:
        """Count as the places do if they are all of one size: that tells best who is too full."""
        found = self._lanes_of_lines
        self.lanes = next(iter(found)) if len(found) == 1 else self._rounded

    def _forget_crowded(self, slot: int, span: range) -> None:
        crowds = self._crowds
        for tick in range(span.start - 1, span.stop + 1) if len(span) < MOST_TICKS else tuple(crowds):
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
