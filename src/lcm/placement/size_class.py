"""Places of about one size, searched for the fullest that fits without going through all. Kept by `PlaceIndex`.

Every place has one bit, its slot, which `IdOrder` gives. A few `|` and `&` of the rows of a claim's half hours leave
the places that could take it; their timelines decide, and ties go to the first id. `PlaceKinds` knows which places
suit a request but for their room. No row shows the current half hour: `current` is a row of its own, with how full each
place was when something last began or ended on it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from lcm.model.base.capacity import Amount
from lcm.placement.bitmap import EMPTY_ROW, FullnessRows, code_of, shift_usage, show_usage
from lcm.placement.candidate import MOST_MICROS, IndexedClaim, IndexedPlace, PackedRequest
from lcm.placement.id_order import IdOrder
from lcm.placement.place_kinds import PlaceKinds
from lcm.placement.request import Place
from lcm.placement.timeline import BEGINNING, TICK_MICROS, Lanes

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


class SizeClass:
    """Workers, or seats, none of which is larger than `size`: all of them, or one block of many."""

    __slots__ = (
        "_kinds",
        "_lanes_of_lines",
        "_rounded",
        "current",
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
        self.current = EMPTY_ROW.copy()
        self._kinds = PlaceKinds()

    def insert(self, line: IndexedPlace) -> None:
        """Add a place, without what it holds."""
        slot = line.slot = self.order.insert(line.place.id)
        line.bit = 1 << slot
        self.lines[slot] = line
        self._kinds.add(slot, line.place)
        self._lanes_of_lines[line.lanes] += 1
        self._choose_lanes()

    def remove(self, line: IndexedPlace) -> None:
        """Remove a place that holds nothing any more."""
        self.order.remove(line.place.id)
        del self.lines[line.slot]
        if line.noted != self.rows.since:
            self._renew_code(line)
        show_usage(self.current, line.code, 0, line.bit)
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
        start, end, rows, sampled = claim.start, claim.end, self.rows, line.sampled
        begins_soon = start < rows.begin
        if begins_soon:
            if line.noted != rows.since:
                self._renew_code(line)
            if start < line.since:
                start = BEGINNING if line.since < end else end
        if end - claim.start > MOST_MICROS or sampled is not line.timeline:
            if sampled is line.timeline:
                sampled = line.sampled = sampled.copy()
            line.timeline.add(start, end, claim.need)
            end = claim.sampled_end if claim.sampled_end > line.since else start
        shift_usage(rows, sampled, start, end, claim.need, line.bit)
        if begins_soon:
            used = sampled.used_at(max(claim.start, rows.begin - TICK_MICROS))
            line.code = show_usage(self.current, line.code, used, line.bit)

    def release(self, line: IndexedPlace, claim: IndexedClaim, now: int) -> None:
        """Subtract the need of a claim that a place no longer holds from what the place uses."""
        rows, sampled = self.rows, line.sampled
        began = claim.start < rows.begin
        if began and line.noted != rows.since:
            self._renew_code(line)
        if claim.end <= now and sampled is line.timeline:
            # What was used before is dropped, as nobody asks for it any more.
            moments, levels = sampled.moments, sampled.levels
            step = bisect_right(moments, now)
            if step > 1:
                del moments[1:step], levels[: step - 1]
            line.since = now
            used = levels[0]
        else:
            self._subtract(line, claim)
            used = line.sampled.used_at(now)
        if began:
            line.code = show_usage(self.current, line.code, used, line.bit)
            starts = self.group.starts
            if starts and self.number < starts.get(rows.since, 0):
                starts[rows.since] = self.number

    def _subtract(self, line: IndexedPlace, claim: IndexedClaim) -> None:
        """Subtract a claim from the timeline of a place, or from both of one that holds, or held, a long claim."""
        start, end = claim.start, claim.end
        if start < line.since:
            start = BEGINNING if line.since < end else end
        if line.sampled is not line.timeline:
            line.timeline.add(start, end, -claim.need)
            end = claim.sampled_end if claim.sampled_end > line.since else start
        shift_usage(self.rows, line.sampled, start, end, -claim.need, line.bit)
        if claim.is_long and not any(one.is_long for one in line.held.values()):
            line.sampled = line.timeline

    def _renew_code(self, line: IndexedPlace) -> None:
        """Read the code that a place had when the current half hour began, as its row shows it."""
        line.noted, line.code = self.rows.since, code_of(line.sampled.used_at(self.rows.begin - TICK_MICROS))

    def advance(self, since: int) -> None:
        """Drop what is known of the half hours before this one."""
        self.group.starts.clear()
        self.current = self.rows.row(since - 1).copy()
        self.rows.advance(since)

    def open_to(self, ask: PackedRequest, region: str | None = None) -> int:
        """Return the mask of places that accept sessions and whose kind suits a request, if given in a region."""
        found = self._kinds.masks.get(ask.facts)
        if found is None:
            found = self._kinds.open_to(ask)
        if ask.request.refused:
            found &= ~self.order.mask_of(ask.request.refused)
        return found if region is None else found & self._kinds.in_region(region)

    def places_in(self, mask: int) -> Iterator[IndexedPlace]:
        """Iterate over the places of a mask in the order of their ids."""
        return map(self.lines.__getitem__, self.order.slots_in(mask))

    def _choose_lanes(self) -> None:
        """Use the packing of the places themselves if they all have one size: it tells best which are too full."""
        found = self._lanes_of_lines
        self.lanes = next(iter(found)) if len(found) == 1 else self._rounded
