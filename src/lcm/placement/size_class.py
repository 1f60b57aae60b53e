"""Places of about one size, searched for the fullest that fits without going through all. Kept by `PlaceIndex`.

Every place has one bit, its slot, which `IdOrder` gives. A few `|` and `&` of the rows of a claim's half hours leave
the places that could take it; their timelines decide, and ties go to the first id. `PlaceKinds` knows which places
suit a request but for their room. No row shows the current half hour: `current` is a row of its own, with how full each
place was when something last began or ended on it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from lcm.model.base.capacity import Amount
from lcm.placement.bitmap import EMPTY_ROW, FullnessRows, code_of, flip_masks, shift_usage
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
        self.lines[slot] = line
        self._kinds.add(slot, line.place)
        self._lanes_of_lines[line.lanes] += 1
        self._choose_lanes()

    def remove(self, line: IndexedPlace) -> None:
        """Remove a place that holds nothing any more."""
        self.order.remove(line.place.id)
        del self.lines[line.slot]
        self._renew_code(line)
        self._note_current(line, 0)
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
        begins_soon = start < self.rows.since * TICK_MICROS
        if begins_soon:
            self._renew_code(line)
            if start < line.since:
                start = BEGINNING if line.since < end else end
        if end - claim.start > MOST_MICROS or line.sampled is not line.timeline:
            if line.sampled is line.timeline:
                line.sampled = line.timeline.copy()
            line.timeline.add(start, end, need)
            end = claim.sampled_end if claim.sampled_end > line.since else start
        shift_usage(self.rows, line.sampled, (start, end), need, 1 << line.slot)
        if begins_soon:
            self._note_current(line, line.sampled.used_at(max(claim.start, (self.rows.since - 1) * TICK_MICROS)))

    def release(self, line: IndexedPlace, claim: IndexedClaim, now: int) -> None:
        """Subtract the need of a claim that a place no longer holds from what the place uses."""
        start, end, need, since = claim.start, claim.end, claim.need, self.rows.since
        began = start < since * TICK_MICROS
        if began:
            self._renew_code(line)
            if start < line.since:
                start = BEGINNING if line.since < end else end
        if line.sampled is not line.timeline:
            line.timeline.add(start, end, -need)
            end = claim.sampled_end if claim.sampled_end > line.since else start
            shift_usage(self.rows, line.sampled, (start, end), -need, 1 << line.slot)
            if claim.is_long and not any(one.is_long for one in line.held.values()):
                line.sampled = line.timeline
        elif end <= now:
            line.drop_past(now)
        else:
            shift_usage(self.rows, line.timeline, (start, end), -need, 1 << line.slot)
        if began:
            self._note_current(line, line.sampled.used_at(now))
            if self.number < self.group.starts.get(since, 0):
                self.group.starts[since] = self.number

    def _renew_code(self, line: IndexedPlace) -> None:
        """Read the code that a place has in the row of the current half hour since that began."""
        since = self.rows.since
        if line.noted != since:
            line.noted, line.code = since, code_of(line.sampled.used_at((since - 1) * TICK_MICROS))

    def _note_current(self, line: IndexedPlace, used: int) -> None:
        """Record in the row of the current half hour what a place uses."""
        code = code_of(used)
        if code != line.code:
            flip_masks(self.current, line.code, code, 1 << line.slot)
            line.code = code

    def advance(self, since: int) -> None:
        """Drop what is known of the half hours before this one."""
        self.group.starts.clear()
        self.current = self.rows.row(since - 1).copy()
        self.rows.advance(since)

    def open_to(self, ask: PackedRequest, region: str | None = None) -> int:
        """Return the mask of places that accept sessions and whose kind suits a request, if given in a region."""
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
