"""Places of about one size, searched for the fullest that fits without going through all. Kept by `PlaceIndex`.

Every place has one bit, its slot, which `IdOrder` gives. A few `|` and `&` of the rows of a claim's half hours leave
the places that could take it; their timelines decide, and ties go to the first id. `PlaceKinds` knows which places
suit a request but for their room. No row shows the time before a claim's first half hour, so a large size class
remembers in a `FullPlaceCache` which places are too full now.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from lcm.model.base.capacity import Amount
from lcm.placement.bitmap import EMPTY_ROW, FullnessLimits, FullnessRows, masks_above, places_above, shift_usage
from lcm.placement.candidate import MOST_MICROS, IndexedClaim, IndexedPlace, PackedRequest
from lcm.placement.id_order import IdOrder
from lcm.placement.place_kinds import PlaceKinds
from lcm.placement.request import Place, PlacementRequest
from lcm.placement.timeline import TICK_MICROS, Lanes


class FullPlaceCache:
    """Places found too full in the current half hour, in a row of their own, each until a known time.

    A place may use more by now, so the cache, like the rows, never counts a place as fuller than it is.
    """

    __slots__ = ("_ends", "_known", "_row")

    def __init__(self) -> None:
        self._row = EMPTY_ROW.copy()
        self._known: dict[int, tuple[tuple[int, ...], int]] = {}
        self._ends: list[tuple[int, int]] = []

    def remember(self, slot: int, used: int, until: int, limit: FullnessLimits) -> None:
        """Remember that the place of a slot uses so much, if that is above a limit of CPU or memory."""
        masks = masks_above(used, limit)
        if masks:
            self.forget(slot)
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
        "_kinds",
        "_lanes_of_lines",
        "_rounded",
        "full_places",
        "lanes",
        "lines",
        "order",
        "rows",
        "seats",
        "size",
    )

    def __init__(self, size: Amount, *, seats: bool, since: int) -> None:
        self.size = size
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
        if claim.end - claim.start > MOST_MICROS or line.sampled is not line.timeline:
            if line.sampled is line.timeline:
                line.sampled = line.timeline.copy()
            line.timeline.add(claim.start, claim.end, claim.need)
            claim = claim.sampled
        shift_usage(self.rows, line.sampled, claim, claim.need, 1 << line.slot)

    def release(self, line: IndexedPlace, claim: IndexedClaim) -> None:
        """Subtract the need of a claim that a place no longer holds from what the place uses."""
        self.full_places.forget(line.slot)
        if line.sampled is line.timeline:
            shift_usage(self.rows, line.timeline, claim, -claim.need, 1 << line.slot)
            return
        line.timeline.add(claim.start, claim.end, -claim.need)
        shift_usage(self.rows, line.sampled, claim.sampled, -claim.need, 1 << line.slot)
        if claim.is_long and not any(one.is_long for one in line.held.values()):
            line.sampled = line.timeline

    def advance(self, since: int) -> None:
        """Drop what is known of the half hours before this one."""
        self.full_places = FullPlaceCache()
        self.rows.advance(since)

    def open_to(self, request: PlacementRequest, region: str | None = None) -> int:
        """Return the mask of places that accept sessions and whose kind suits a request, if given in a region."""
        found = self._kinds.open_to(request)
        if request.refused:
            found &= ~self.order.mask_of(request.refused)
        return found if region is None else found & self._kinds.in_region(region)

    def remember_full(self, line: IndexedPlace, ask: PackedRequest, obstacle: int, limit: FullnessLimits) -> None:
        """Remember a place with too little room at a step of its timeline, if the step ends within this half hour.

        A step that lasts longer is in the rows already.
        """
        timeline, tick = line.timeline, self.rows.since
        until = timeline.step_end(obstacle)
        if ask.start // TICK_MICROS == tick and until <= (tick + 1) * TICK_MICROS:
            self.full_places.remember(line.slot, timeline.levels[obstacle], until, limit)

    def places_in(self, mask: int) -> Iterator[IndexedPlace]:
        """Iterate over the places of a mask in the order of their ids."""
        return map(self.lines.__getitem__, self.order.slots_in(mask))

    def _choose_lanes(self) -> None:
        """Use the packing of the places themselves if they all have one size: it tells best which are too full."""
        found = self._lanes_of_lines
        self.lanes = next(iter(found)) if len(found) == 1 else self._rounded
