"""Places of about one size, searched for the fullest that fits without going through all. Kept by `PlaceIndex`.

Every place has one bit, its slot, which `IdOrder` gives. A few `|` and `&` of the rows of a claim's half hours leave
the places that could take it; their timelines decide, and ties go to the first id. `PlaceKinds` knows which places
suit a request but for their room. No row shows the time before a claim's first half hour, so a large size class
remembers in a `FullPlaceCache` which places are too full then.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from lcm.model.base.capacity import Amount
from lcm.placement.bitmap import (
    CAPPED_LEVELS,
    FullnessLimits,
    FullnessRow,
    FullnessRows,
    fullness_limits,
    masks_of_usage,
    new_row,
    places_above,
    shift_usage,
)
from lcm.placement.candidate import MOST_TICKS, IndexedClaim, IndexedPlace, PackedRequest, ticks_within
from lcm.placement.id_order import IdOrder
from lcm.placement.place_kinds import PlaceKinds
from lcm.placement.request import Place, PlacementRequest
from lcm.placement.timeline import GUARD_BITS, TICK_MICROS, Lanes, levels


class FullPlaceCache:
    """Places found too full between two half hours, in a row of their own, each until a known time.

    A place may use more by now, so the cache, like the rows, never counts a place as fuller than it is.
    """

    __slots__ = ("_ends", "_known", "_row")

    def __init__(self) -> None:
        self._row = new_row()
        self._known: dict[int, tuple[tuple[int, ...], int]] = {}
        self._ends: list[tuple[int, int]] = []

    def remember(self, slot: int, used: int, until: int, limit: FullnessLimits) -> None:
        """Remember that the place of a slot uses so much, if that is above a limit of CPU or memory."""
        cpu, memory, *_ = levels(used).translate(CAPPED_LEVELS)
        if cpu > limit.levels[0] or memory > limit.levels[1]:
            self.forget(slot)
            masks = masks_of_usage(used)
            self._flip(masks, slot)
            self._known[slot] = masks, until
            heappush(self._ends, (until, slot))

    def forget(self, slot: int) -> None:
        """Forget a place, because it may use less now."""
        if slot in self._known:
            self._flip(self._known.pop(slot)[0], slot)

    def places_above(self, moment: int, limit: FullnessLimits) -> int:
        """Return the places above a limit at some time from a moment on; entries that ended by then are dropped."""
        ends = self._ends
        while ends and ends[0][0] <= moment:
            until, slot = heappop(ends)
            if slot in self._known and self._known[slot][1] == until:
                self.forget(slot)
        return places_above(self._row, limit) if self._known else 0

    def _flip(self, masks: Iterable[int], slot: int) -> None:
        bit = 1 << slot
        for number in masks:
            self._row[number] ^= bit


class SizeClass:
    """Workers, or seats, none of which is larger than `size`."""

    __slots__ = (
        "_crowds",
        "_kinds",
        "_lanes_of_lines",
        "_rounded",
        "_rows",
        "lanes",
        "lines",
        "order",
        "seats",
        "since",
        "size",
    )

    def __init__(self, size: Amount, *, seats: bool, since: int) -> None:
        self.size = size
        self.seats = seats
        self.since = since
        self.order = IdOrder()
        self.lines: dict[int, IndexedPlace] = {}
        self.lanes = self._rounded = Lanes(size)
        self._lanes_of_lines: Counter[Lanes] = Counter()
        self._rows = FullnessRows()
        self._crowds: dict[int, FullPlaceCache] = {}
        self._kinds = PlaceKinds()

    def insert(self, line: IndexedPlace) -> None:
        """Add a place, without what it holds."""
        slot = line.slot = self.order.insert(line.place.id)
        self.lines[slot] = line
        self._kinds.add(slot, line.place)
        self._lanes_of_lines[line.lanes] += 1
        self._choose_lanes()

    def remove(self, line: IndexedPlace) -> None:
        """Remove a place that holds nothing any more."""
        self.order.remove(line.place.id)
        del self.lines[line.slot]
        self._kinds.remove(line.slot, line.place)
        self._lanes_of_lines -= Counter((line.lanes,))
        self._choose_lanes()

    def set_facts(self, line: IndexedPlace, place: Place) -> None:
        """Record what a place is now: whether it accepts sessions, and its kind."""
        self._kinds.change(line.slot, line.place, place)
        line.place = place

    def add(self, line: IndexedPlace, span: range, need: int) -> None:
        """Record that a place uses so much more, or less, at these half hours; its timeline shows it already."""
        if span.start < self.since:
            span = range(self.since, span.stop)
        if need and span:
            shift_usage(self._rows, line.sampled, span, 1 << line.slot, need)

    def subtract(self, line: IndexedPlace, claim: IndexedClaim) -> None:
        """Record that a place does not hold a claim any more."""
        if claim.end <= self.since * TICK_MICROS:
            return
        span, crowds = ticks_within(claim.start, claim.end), self._crowds
        if crowds:
            around = range(max(span.start - 1, self.since), span.stop + 1)
            for tick in around if len(span) < MOST_TICKS else tuple(crowds):
                if tick in crowds:
                    crowds[tick].forget(line.slot)
        self.add(line, span, -claim.need)

    def advance(self, since: int) -> None:
        """Drop the samples of the half hours before this one."""
        self.since = since
        self._crowds = {tick: crowd for tick, crowd in self._crowds.items() if tick >= since}
        for tick in [tick for tick in self._rows if tick < since]:
            del self._rows[tick]

    def open_to(self, request: PlacementRequest, region: str | None = None) -> int:
        """Return the mask of places that accept sessions and whose kind suits a request, if given in a region."""
        found = self._kinds.open_to(request)
        if request.refused:
            found &= ~self.order.mask_of(request.refused)
        return found if region is None else found & self._kinds.in_region(region)

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
        return map(self.lines.__getitem__, self.order.slots_in(mask))

    def _choose_lanes(self) -> None:
        """Use the packing of the places themselves if they all have one size: it tells best which are too full."""
        found = self._lanes_of_lines
        self.lanes = next(iter(found)) if len(found) == 1 else self._rounded
