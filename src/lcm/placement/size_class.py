"""Places of about one size, searched for the fullest that fits without going through all. Kept by `PlaceIndex`.

Every place has one bit, the higher the earlier its id sorts, so that ties go to the first id. A few `|` and `&` of the
rows of a claim's half hours leave the places that could take it; their timelines decide. Places with the same facts
are of one kind: filters are asked once per kind and the answer is remembered as a mask. No row shows the time before
a claim's first half hour, so a large size class remembers in a `FullPlaceCache` which places are too full then.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from heapq import heappop, heappush
from operator import attrgetter, or_
from typing import Final

from lcm.model.base.capacity import Amount
from lcm.placement.bitmap import (
    BUSY,
    CAPPED_LEVELS,
    FullnessLimits,
    FullnessRow,
    FullnessRows,
    fullness_limits,
    shift_usage,
)
from lcm.placement.candidate import MOST_TICKS, TICK_MICROS, IndexedClaim, IndexedPlace, PackedRequest, accepts_sessions
from lcm.placement.request import Place, PlacementRequest
from lcm.placement.rules import place_facts, request_facts, static_rejection
from lcm.placement.timeline import GUARD_BITS, LEVELS, Lanes, levels


class FullPlaceCache:
    """Places found too full between two half hours, as a mask per level of CPU and memory, until a known time.

    A place may use more by now, so the cache, like the rows, never counts a place as fuller than it is.
    """

    __slots__ = ("_ends", "_known", "_masks")

    def __init__(self) -> None:
        self._masks = [[0] * (LEVELS + 1), [0] * (LEVELS + 1)]
        self._known: dict[int, tuple[list[int], int, int]] = {}
        self._ends: list[tuple[int, int]] = []

    def remember(self, slot: int, used: int, until: int, limit: FullnessLimits) -> None:
        """Remember that the place of a slot uses so much, if that is above a limit of CPU or memory."""
        capped = levels(used).translate(CAPPED_LEVELS)
        for masks, level, fits in zip(self._masks, capped, limit.levels, strict=False):
            if level > fits:
                self.forget(slot)
                masks[level] ^= 1 << slot
                self._known[slot] = masks, level, until
                heappush(self._ends, (until, slot))
                return

    def forget(self, slot: int) -> None:
        """Forget a place, because it may use less now."""
        if slot in self._known:
            masks, level, _ = self._known.pop(slot)
            masks[level] ^= 1 << slot

    def places_above(self, moment: int, limit: FullnessLimits) -> int:
        """Return the places above a limit at some time from a moment on; entries that ended by then are dropped."""
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


class SizeClass:
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
        self.lines: list[IndexedPlace] = []
        self.lanes = self._rounded = Lanes(size)
        self._lanes_of_lines: Counter[Lanes] = Counter()
        self._rows = FullnessRows()
        self._crowds: dict[int, FullPlaceCache] = {}
        self._kinds: dict[object, tuple[Place, int]] = {}
        self._accepting = 0
        self._since = since
        self._open_to: dict[object, int] = {}

    def insert(self, line: IndexedPlace) -> None:
        """Add a place, without what it holds."""
        place = bisect_left(self.lines, line.place.id, key=_BY_ID)
        slot = line.slot = len(self.lines) - place
        self.lines.insert(place, line)
        self._lanes_of_lines[line.lanes] += 1
        self._choose_lanes()
        for before in self.lines[:place]:
            before.slot += 1
        self._move_bits(lambda mask: mask >> slot << slot + 1 | mask & (1 << slot) - 1)
        self.set_facts(line, line.place)

    def remove(self, line: IndexedPlace) -> None:
        """Remove a place that holds nothing any more."""
        slot = line.slot
        place = len(self.lines) - 1 - slot
        del self.lines[place]
        self._lanes_of_lines -= Counter((line.lanes,))
        self._choose_lanes()
        for before in self.lines[:place]:
            before.slot -= 1
        self._move_bits(lambda mask: mask >> slot + 1 << slot | mask & (1 << slot) - 1)

    def set_facts(self, line: IndexedPlace, place: Place) -> None:
        """Record what a place is now: whether it accepts sessions, and its kind."""
        bit = 1 << line.slot
        self._accepting &= ~bit
        kept = ((key, kind, mask & ~bit) for key, (kind, mask) in self._kinds.items())
        self._kinds = {key: (kind, mask) for key, kind, mask in kept if mask}
        line.place = place
        known, mask = self._kinds.get(place_facts(place), (place, 0))
        self._kinds[place_facts(place)] = known, mask | bit
        if accepts_sessions(place):
            self._accepting |= bit
        self._open_to.clear()

    def add(self, line: IndexedPlace, span: range, need: int) -> None:
        """Record that a place uses so much more, or less, at these half hours."""
        if span.start < self._since:
            span = range(self._since, span.stop)
        if need:
            shift_usage(self._rows, line.samples, span, 1 << line.slot, need)

    def subtract(self, line: IndexedPlace, held: IndexedClaim) -> None:
        """Record that a place does not hold a claim any more."""
        span, crowds = held.span, self._crowds
        if crowds:
            for tick in range(span.start - 1, span.stop + 1) if len(span) < MOST_TICKS else tuple(crowds):
                if tick in crowds:
                    crowds[tick].forget(line.slot)
        self.add(line, span, -held.need)

    def advance(self, since: int) -> None:
        """Drop the samples of the half hours before this one."""
        self._since = since
        self._crowds = {tick: crowd for tick, crowd in self._crowds.items() if tick >= since}
        for tick in [tick for tick in self._rows if tick < since]:
            del self._rows[tick]
            for line in self.lines:
                line.samples.pop(tick, None)

    def open_to(self, request: PlacementRequest, region: str | None = None) -> int:
        """Return the mask of places that accept sessions and whose kind suits a request, if given in a region."""
        asked = request_facts(request)
        found = self._open_to.get(asked)
        if found is None:
            if len(self._open_to) >= _MOST_REMEMBERED:
                self._open_to.clear()
            masks = (mask for kind, mask in self._kinds.values() if static_rejection(kind, request) is None)
            found = self._open_to[asked] = self._accepting & sum(masks)
        if request.refused:
            found &= ~self._mask_of(request.refused)
        if region is None:
            return found
        return found & sum(mask for kind, mask in self._kinds.values() if kind.region == region)

    def _mask_of(self, ids: Iterable[str]) -> int:
        """Return the mask of those of these places that are here."""
        places = ((bisect_left(self.lines, one, key=_BY_ID), one) for one in ids)
        here = (self.lines[at] for at, one in places if at < len(self.lines) and self.lines[at].place.id == one)
        return reduce(or_, (1 << line.slot for line in here), 0)

    def limits(self, ask: PackedRequest) -> FullnessLimits | None:
        """Return how full a place may be to have room for a need; None if the need is larger than every place."""
        room = ask.room(self.lanes)
        return fullness_limits(self.lanes.highest_levels(room)) if room & GUARD_BITS == GUARD_BITS else None

    def rows(self, span: Iterable[int]) -> list[FullnessRow]:
        """Return the rows of these half hours."""
        return list(map(self._rows.__getitem__, span))

    def known_full(self, start: int, limit: FullnessLimits) -> int:
        """Return the mask of places remembered as too full between a moment and the next half hour."""
        found = self._crowds.get(start // TICK_MICROS)
        return found.places_above(start, limit) if found else 0

    def remember_full(self, line: IndexedPlace, start: int, obstacle: int, limit: FullnessLimits) -> None:
        """Remember a place with too little room at a step of its timeline, if that is before the next half hour."""
        timeline, tick = line.timeline, start // TICK_MICROS
        if timeline.moments[obstacle] < (tick + 1) * TICK_MICROS:
            if tick not in self._crowds:
                self._crowds[tick] = FullPlaceCache()
            self._crowds[tick].remember(line.slot, timeline.levels[obstacle], timeline.step_end(obstacle), limit)

    def row(self, tick: int) -> FullnessRow:
        """Return the row of a half hour."""
        return self._rows[tick]

    def places_in(self, mask: int) -> Iterator[IndexedPlace]:
        """Iterate over the places of a mask in the order of their ids."""
        while mask:
            slot = mask.bit_length() - 1
            yield self.lines[-1 - slot]
            mask ^= 1 << slot

    def _choose_lanes(self) -> None:
        """Use the packing of the places themselves if they all have one size: it tells best which are too full."""
        found = self._lanes_of_lines
        self.lanes = next(iter(found)) if len(found) == 1 else self._rounded

    def _move_bits(self, moved: Callable[[int], int]) -> None:
        self._open_to.clear()
        self._crowds.clear()
        self._accepting = moved(self._accepting)
        kinds = ((key, kind, moved(mask)) for key, (kind, mask) in self._kinds.items())
        self._kinds = {key: (kind, mask) for key, kind, mask in kinds if mask}
        for row in self._rows.values():
            row[: BUSY + 1] = [moved(mask) if mask else 0 for mask in row[: BUSY + 1]]
