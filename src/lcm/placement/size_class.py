"""Places of about one size, searched for the fullest that fits without going through all. Kept by `PlaceIndex`.

Every place has one bit, its slot, which `IdOrder` gives. A few `|` and `&` of the rows of a claim's half hours leave
the places that could take it; their timelines decide, and ties go to the first id. `PlaceKinds` knows which places
suit a request but for their room. No row shows the time before a claim's first half hour, so a large size class
remembers in a `FullPlaceCache` which places are too full now.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

from lcm.model.base.capacity import Amount
from lcm.placement.bitmap import EMPTY_ROW, FullnessLimits, FullnessRows, full_masks, shift_usage
from lcm.placement.candidate import MOST_MICROS, IndexedClaim, IndexedPlace, PackedRequest
from lcm.placement.id_order import IdOrder
from lcm.placement.place_kinds import PlaceKinds
from lcm.placement.request import Place
from lcm.placement.timeline import TICK_MICROS, Lanes


BLOCK_PLACES: Final = 1024
"""A size class with more places is split into blocks, so that its masks stay short."""


class SizeBlocks:
    """The blocks of places of one size, and for the first half hour of claims the block that is searched first.

    That is the one that took the last such claim, or from which something was released since. What it was is forgotten
    every half hour, so that the first blocks fill up again.
    """

    __slots__ = ("blocks", "starts")

    def __init__(self) -> None:
        self.blocks: list[SizeClass] = []
        self.starts: dict[int, int] = {}

    def remove(self, block: "SizeClass") -> None:
        """Remove a block without places."""
        self.blocks.remove(block)
        self.starts.clear()
        for number, other in enumerate(self.blocks):
            other.number = number

    def in_turn(self, first: int) -> Sequence["SizeClass"]:
        """Return the blocks in the order in which they are searched for a claim with this first half hour."""
        start = self.starts.get(first, 0)
        return self.blocks[start:] + self.blocks[:start] if start else self.blocks


class FullPlaceCache:
    """Places found too full in the current half hour, in a row of their own, each until a known time.

    A place may use more by now, so the cache, like the rows, never counts a place as fuller than it is.
    """

    __slots__ = ("_ends", "_row", "known")

    def __init__(self) -> None:
        self._row = EMPTY_ROW.copy()
        self.known: dict[int, tuple[tuple[int, ...], int]] = {}
        self._ends: list[tuple[int, int]] = []

    def remember(self, slot: int, used: int, until: int, limit: FullnessLimits) -> None:
        """Remember that the place of a slot uses so much, if that is above a limit of CPU or memory."""
        masks = full_masks(used, limit)
        if masks:
            self.forget(slot)
            self._flip(masks, slot)
            self.known[slot] = masks, until
            heappush(self._ends, (until, slot))

    def forget(self, slot: int) -> None:
        """Forget a place, because it may use less now."""
        if slot in self.known:
            self._flip(self.known.pop(slot)[0], slot)

    def places_above(self, moment: int, limit: FullnessLimits) -> int:
        """Return the places above a limit at some time from a moment on; entries that ended by then are dropped."""
        ends = self._ends
        while ends and ends[0][0] <= moment:
            until, slot = heappop(ends)
            if slot in self.known and self.known[slot][1] == until:
                self.forget(slot)
        return self._row[limit.cpu] | self._row[limit.memory]

    def _flip(self, masks: Iterable[int], slot: int) -> None:
        bit = 1 << slot
        for number in masks:
            self._row[number] ^= bit


class SizeClass:
    """Workers, or seats, none of which is larger than `size`: all of them, or one block of many."""

    __slots__ = (
        "_kinds",
        "_lanes_of_lines",
        "_rounded",
        "full_places",
        "group",
        "lanes",
        "lines",
        "number",
        "order",
        "rows",
        "seats",
        "size",
    )

    def __init__(self, size: Amount, group: SizeBlocks, *, seats: bool, since: int) -> None:
        self.size = size
        self.group = group
        self.number = len(group.blocks)
        group.blocks.append(self)
        self.seats = seats
        self.order = IdOrder()
        self.lines: dict[int, IndexedPlace] = {}
        self.lanes = self._rounded = Lanes(size)
        self._lanes_of_lines: Counter[Lanes] = Counter()
        self.rows = FullnessRows(since)
        self.full_places = FullPlaceCache()
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

    def hold(self, line: IndexedPlace, claim: IndexedClaim) -> None:
        """Add a claim to what a place holds."""
        line.held[claim.held.holder] = claim
        start, end, need = claim.start, claim.end, claim.need
        if end - start > MOST_MICROS or line.sampled is not line.timeline:
            if line.sampled is line.timeline:
                line.sampled = line.timeline.copy()
            line.timeline.add(start, end, need)
            end = claim.sampled_end
        shift_usage(self.rows, line.sampled, start, end, need, 1 << line.slot)

    def release(self, line: IndexedPlace, claim: IndexedClaim) -> None:
        """Subtract the need of a claim that a place no longer holds from what the place uses."""
        if self.full_places.known:
            self.full_places.forget(line.slot)
        if self.number < self.group.starts.get(self.rows.since + 1, 0):
            self.group.starts[self.rows.since + 1] = self.number
        start, end, need = claim.start, claim.end, claim.need
        if line.sampled is line.timeline:
            if end <= self.rows.since * TICK_MICROS:
                line.timeline.add(start, end, -need)
            else:
                shift_usage(self.rows, line.timeline, start, end, -need, 1 << line.slot)
            return
        line.timeline.add(start, end, -need)
        shift_usage(self.rows, line.sampled, start, claim.sampled_end, -need, 1 << line.slot)
        if claim.is_long and not any(one.is_long for one in line.held.values()):
            line.sampled = line.timeline

    def advance(self, since: int) -> None:
        """Drop what is known of the half hours before this one."""
        self.group.starts.clear()
        self.full_places = FullPlaceCache()
        self.rows.advance(since)

    def open_to(self, ask: PackedRequest, region: str | None = None) -> int:
        """Return the mask of places that accept sessions and whose kind suits a request, if given in a region."""
        found = self._kinds.open_to(ask)
        if ask.request.refused:
            found &= ~self.order.mask_of(ask.request.refused)
        return found if region is None else found & self._kinds.in_region(region)

    def remember_full(self, line: IndexedPlace, ask: PackedRequest, room: int) -> None:
        """Remember a place in which a step of the timeline leaves too little room, if it ends within this half hour.

        A step that lasts longer is in the rows already.
        """
        soon = (self.rows.since + 1) * TICK_MICROS
        if not soon - TICK_MICROS <= ask.start < soon:
            return
        timeline, limit = line.timeline, ask.limits(self.lanes)
        obstacle = timeline.first_obstacle(ask.start, ask.end, room)
        if limit is not None and obstacle is not None and timeline.step_end(obstacle) <= soon:
            self.full_places.remember(line.slot, timeline.levels[obstacle], timeline.step_end(obstacle), limit)

    def places_in(self, mask: int) -> Iterator[IndexedPlace]:
        """Iterate over the places of a mask in the order of their ids."""
        return map(self.lines.__getitem__, self.order.slots_in(mask))

    def _choose_lanes(self) -> None:
        """Use the packing of the places themselves if they all have one size: it tells best which are too full."""
        found = self._lanes_of_lines
        self.lanes = next(iter(found)) if len(found) == 1 else self._rounded
