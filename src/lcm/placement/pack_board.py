"""The board that a pool's claims are packed on: which claim is on which seat, and how long machines run for that.

Claims have numbers; seats have numbers from 0. All dimensions of a need are
lanes of one whole number, and the lowest lane counts claims, so that zero means that no machine is needed. `cost` is in
microseconds: the time that machines run, boots and short gaps included, as `seats` counts it, and the price of each
claim that is not on the seat it had. Changes can be undone as a whole. `pack_build` and `pack_moves` use this.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS, Amount
from lcm.placement.seats import KEEP_THROUGH_GAP
from lcm.placement.timeline import BEGINNING, END

NOWHERE: Final = -1
_COUNT_BITS: Final = 20
_ALWAYS_ON: Final = 1
"""The level of a standing seat without claims, as of a claim of nothing."""
_SPARE_BITS: Final = 14
"""Seats may have far more claims than fit, and those of thousands of seats are added: no lane may reach the next."""
_MICROSECOND: Final = timedelta(microseconds=1)


class PackTerms(NamedTuple):
    """What a pool is packed by: the size and number of its seats, a machine's boot and gaps, and what a move is worth.

    A claim changes its seat only where that saves at least `move_price` of machine time. Seats have numbers from 1.
    The machines of those that are `standing` always run, so that claims add no time there. Those that are `closed`
    keep what they have, and their machines' time counts, but they take no further claim.
    """

    capacity: Amount
    seats: int
    lead: timedelta
    keep: timedelta = KEEP_THROUGH_GAP
    move_price: timedelta = timedelta(0)
    standing: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()


class NeedLanes:
    """The packing of needs for machines of one capacity; narrower than those of `timeline`, and so faster."""

    __slots__ = ("guards", "masks", "shifts", "sizes", "top")

    def __init__(self, capacity: Amount) -> None:
        self.sizes = tuple(getattr(capacity, name) for name in DIMENSIONS)
        widths = [size.bit_length() + _SPARE_BITS for size in self.sizes]
        self.shifts = tuple(_COUNT_BITS + sum(widths[:place]) for place in range(len(widths)))
        self.masks = tuple((1 << width - 1) - 1 for width in widths)
        pairs = list(zip(self.shifts, widths, strict=True))
        self.guards = sum(1 << shift + width - 1 for shift, width in pairs)
        self.top = self.guards + sum(size << shift for size, shift in zip(self.sizes, self.shifts, strict=True))
        self.top += (1 << _COUNT_BITS) - 1

    def pack(self, need: Amount) -> int:
        """Pack a need; one that is too large for a machine is packed as just too large."""
        wanted: Iterable[int] = (getattr(need, name) for name in DIMENSIONS)
        rows = zip(wanted, self.sizes, self.shifts, strict=True)
        packed: int = 1 + sum(min(amount, size + 1) << shift for amount, size, shift in rows)
        return packed

    def fractions(self, level: int) -> list[float]:
        """Return how much of each dimension a level takes; 0 for a dimension that machines have nothing of."""
        lanes = zip(self.shifts, self.masks, self.sizes, strict=True)
        return [(level >> shift & mask) / size if size else 0.0 for shift, mask, size in lanes]


class PackBoard:
    """Claims on seats. The lists by claim number are only read by others; `put`, `take` and `undo` change them.

    `open_seats` are those that take further claims; `fits` says only whether there is room. A seat that is standing is
    never without a level, so that its machine always runs at no cost.
    """

    __slots__ = (
        "_free",
        "_moved",
        "_saved",
        "at",
        "cost",
        "ends",
        "gap",
        "guards",
        "home",
        "lanes",
        "lead",
        "levels",
        "longest",
        "moments",
        "needs",
        "on_seat",
        "open_seats",
        "price",
        "standing",
        "starts",
        "top",
        "volumes",
    )

    def __init__(self, terms: PackTerms) -> None:
        """Make a board without claims; raise ValueError for standing or closed seats that the pool does not have."""
        numbers = range(1, terms.seats + 1)
        if not (terms.standing | terms.closed) <= set(numbers):
            raise ValueError(f"seats beyond the pool's {terms.seats}: {sorted(terms.standing | terms.closed)}")
        self.standing = frozenset(number - 1 for number in terms.standing)
        self.open_seats = [number - 1 for number in numbers if number not in terms.closed]
        self.lanes = NeedLanes(terms.capacity)
        self.guards, self.top = self.lanes.guards, self.lanes.top
        self.lead = terms.lead // _MICROSECOND
        self.gap = self.lead + terms.keep // _MICROSECOND
        self.price = terms.move_price // _MICROSECOND
        self.cost = 0
        self.longest = 0
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.needs: list[int] = []
        self.volumes: list[float] = []
        self.home: list[int] = []
        self.at: list[int] = []
        self.moments = [[BEGINNING, END] for _ in range(terms.seats)]
        self.levels = [[_ALWAYS_ON if number in terms.standing else 0, 0] for number in numbers]
        self.on_seat: list[list[tuple[int, int]]] = [[] for _ in range(terms.seats)]
        self._free: list[int] = []
        self._saved: dict[int, tuple[list[int], list[int], list[tuple[int, int]]]] = {}
        self._moved: dict[int, int] = {}

    def add(self, start: int, end: int, need: Amount, home: int = NOWHERE) -> int:
        """Add a claim that is on no seat yet, and return its number; `home` is the seat on which it costs no move."""
        packed = self.lanes.pack(need)
        parts = self.lanes.fractions(packed)
        volume = sum(parts) / len(parts) * (end - start)
        self.longest = max(self.longest, end - start)
        number = self._free.pop() if self._free else self._append()
        self.starts[number], self.ends[number], self.needs[number] = start, end, packed
        self.volumes[number], self.home[number] = volume, home
        return number

    def _append(self) -> int:
        for row in (self.starts, self.ends, self.needs):
            row.append(0)
        self.volumes.append(0.0)
        self.home.append(NOWHERE)
        self.at.append(NOWHERE)
        return len(self.at) - 1

    def drop(self, claim: int) -> None:
        """Forget a claim; its number is given to another."""
        self.clear([claim])
        self._free.append(claim)

    def fits(self, claim: int, seat: int) -> bool:
        """Return whether a claim would stay within a seat's capacity at every moment."""
        moments, guards, room = self.moments[seat], self.guards, self.top - self.needs[claim]
        first = bisect_right(moments, self.starts[claim]) - 1
        for level in self.levels[seat][first : bisect_left(moments, self.ends[claim], first)]:
            if (room - level) & guards != guards:
                return False
        return True

    def added_time(self, seat: int, start: int, end: int) -> int:
        """Return how much longer a seat's machine would run for a claim of some time."""
        moments, levels = self.moments[seat], self.levels[seat]
        first = bisect_right(moments, start) - 1
        last = bisect_left(moments, end, first)
        if 0 not in levels[first:last]:
            return 0
        gap_time, added = self._gap_time, 0
        for place in range(first, last):
            if not levels[place]:
                before, after = moments[place], moments[place + 1]
                begin, stop = max(start, before), min(end, after)
                added += stop - begin + gap_time(before, begin) + gap_time(stop, after) - gap_time(before, after)
        return added

    def _gap_time(self, start: int, end: int) -> int:
        """Return how long a machine runs in an idle time: all of a short one, else the boot at its end."""
        if end == END or start >= end:
            return 0
        return end - start if start != BEGINNING and end - start < self.gap else self.lead

    def put(self, claim: int, seat: int) -> None:
        """Put a claim that is nowhere on a seat, whether it fits or not."""
        self._save(seat)
        start, end, need = self.starts[claim], self.ends[claim], self.needs[claim]
        self.cost += self.added_time(seat, start, end)
        if self.home[claim] not in {NOWHERE, seat}:
            self.cost += self.price
        self._change(seat, start, end, need)
        insort(self.on_seat[seat], (start, claim))
        self._moved.setdefault(claim, self.at[claim])
        self.at[claim] = seat

    def take(self, claim: int) -> None:
        """Take a claim off its seat."""
        seat = self.at[claim]
        self._save(seat)
        start, end = self.starts[claim], self.ends[claim]
        self._change(seat, start, end, -self.needs[claim])
        there = self.on_seat[seat]
        del there[bisect_left(there, (start, claim))]
        self.cost -= self.added_time(seat, start, end)
        if self.home[claim] not in {NOWHERE, seat}:
            self.cost -= self.price
        self._moved.setdefault(claim, seat)
        self.at[claim] = NOWHERE

    def _change(self, seat: int, start: int, end: int, need: int) -> None:
        moments, levels = self.moments[seat], self.levels[seat]
        first = bisect_left(moments, start)
        if moments[first] != start:
            moments.insert(first, start)
            levels.insert(first, levels[first - 1])
        last = bisect_left(moments, end, first)
        if moments[last] != end:
            moments.insert(last, end)
            levels.insert(last, levels[last - 1])
        for place in range(first, last):
            levels[place] += need
        if levels[last] == levels[last - 1]:
            del moments[last], levels[last]
        if levels[first] == levels[first - 1]:
            del moments[first], levels[first]

    def begin(self) -> int:
        """Begin changes that may be undone, and return the cost before them."""
        self._saved = {}
        self._moved = {}
        return self.cost

    def undo(self, cost: int) -> None:
        """Undo all changes since `begin`, which returned that cost."""
        for seat, (moments, levels, there) in self._saved.items():
            self.moments[seat], self.levels[seat], self.on_seat[seat] = moments, levels, there
        for claim, seat in self._moved.items():
            self.at[claim] = seat
        self.cost = cost
        self.begin()

    def _save(self, seat: int) -> None:
        if seat not in self._saved:
            self._saved[seat] = self.moments[seat].copy(), self.levels[seat].copy(), self.on_seat[seat].copy()

    def run_around(self, claim: int) -> tuple[int, int]:
        """Return from when to when the machine of a claim, which must not be standing, has claims without a pause."""
        seat = self.at[claim]
        moments, levels = self.moments[seat], self.levels[seat]
        first = bisect_right(moments, self.starts[claim]) - 1
        while levels[first]:
            first -= 1
        last = bisect_left(moments, self.ends[claim])
        while levels[last]:
            last += 1
        return moments[first + 1], moments[last]

    def claims_between(self, seat: int, start: int, end: int) -> list[int]:
        """Return the claims of a seat that overlap a time, by their starts."""
        there, ends = self.on_seat[seat], self.ends
        first = bisect_left(there, (start - self.longest,))
        return [claim for _, claim in there[first : bisect_left(there, (end,))] if ends[claim] > start]

    def busy_seats(self, seats: Iterable[int], moment: int) -> list[int]:
        """Return those seats that are standing or have a claim at a moment."""
        levels, moments = self.levels, self.moments
        return [seat for seat in seats if levels[seat][bisect_right(moments[seat], moment) - 1]]

    def seats_in_use(self) -> list[int]:
        """Return the open seats that are standing or have any claim, and then the first other one, if there is one."""
        there, standing = self.on_seat, self.standing
        used = [seat for seat in self.open_seats if there[seat] or seat in standing]
        fresh = next((seat for seat in self.open_seats if self.is_fresh(seat)), NOWHERE)
        return used if fresh == NOWHERE else [*used, fresh]

    def is_fresh(self, seat: int) -> bool:
        """Return whether a seat has no claim and is not standing: one such seat is as good as another."""
        return not self.on_seat[seat] and seat not in self.standing

    def clear(self, claims: Iterable[int]) -> None:
        """Take claims off their seats, where they have any."""
        for claim in claims:
            if self.at[claim] != NOWHERE:
                self.take(claim)
        self.begin()

    def lay(self, claims: Iterable[int], seats: Sequence[int]) -> None:
        """Put claims on the seats that a list by claim number says; those that are NOWHERE stay off."""
        for claim in claims:
            if seats[claim] != NOWHERE:
                self.put(claim, seats[claim])
        self.begin()
