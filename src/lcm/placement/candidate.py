"""One request while it is being placed: its claim in the numbers of the index, and what a single place says to it."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from lcm.model.base.capacity import DIMENSIONS, Amount
from lcm.placement.request import BOOTING, Held, Place, Request
from lcm.placement.rules import ROOM, closed_rejection, static_rejection
from lcm.placement.timeline import BEGINNING, Lanes, Timeline, micros, moment_of, short_of

if TYPE_CHECKING:
    from lcm.placement.shelf import Shelf


TICK: Final = 30 * 60 * 1_000_000
MOST_TICKS: Final = 96
"""A claim is sampled for two days from its start. Beyond that only the timeline knows it, which is asked anyway; what
is held for longer is best held anew from time to time."""


class Holding(msgspec.Struct, frozen=True):
    """What is held on a place: its [start, end) in microseconds, the half hours in it, and its need, packed."""

    held: Held
    start: int
    end: int
    span: range
    need: int


class Line:
    """A place, its timeline, and at each half hour what is used, packed."""

    __slots__ = ("held", "lanes", "place", "samples", "shelf", "slot", "timeline", "usable")

    def __init__(self, place: Place, lanes: Lanes, shelf: "Shelf") -> None:
        self.place = place
        self.shelf = shelf
        self.lanes = lanes
        self.timeline = Timeline(lanes.top)
        self.samples: dict[int, int] = {}
        self.held: dict[str, Holding] = {}
        self.usable = BEGINNING
        self.slot = 0


def accepts(place: Place) -> bool:
    """Tell whether a place takes sessions, now or once it has booted."""
    return not place.closed or (place.closed == BOOTING and place.usable_at is not None)


def ticks(start: int, end: int) -> range:
    """Give the half hours that lie within [start, end)."""
    first, stop = -(-start // TICK), -(-end // TICK)
    return range(first, stop) if stop - first <= MOST_TICKS else range(first, first + MOST_TICKS)


class Ask:
    """A request, its claim's [start, end) in microseconds and the half hours in it."""

    __slots__ = ("_lanes", "_left", "_packed", "claim", "end", "need", "request", "span", "start")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.claim = claim = request.claim
        self.need = claim.need
        self.start = start = micros(claim.start)
        self.end = end = micros(claim.end)
        self.span = ticks(start, end)
        self._lanes: Lanes | None = None
        self._packed = self._left = 0

    def fits(self, line: Line) -> bool:
        """Tell whether a place that passes all other filters has the room at every moment, and is up by then."""
        start = self.start
        return line.usable <= start and line.timeline.obstacle(start, self.end, self.room(line.lanes)) is None

    def room(self, lanes: Lanes) -> int:
        """Give what may be used, at most, of a place of this capacity."""
        if lanes is not self._lanes:
            self._pack(lanes)
        return self._left

    def packed(self, lanes: Lanes) -> int:
        """Give the need as places of this capacity count it."""
        if lanes is not self._lanes:
            self._pack(lanes)
        return self._packed

    def _pack(self, lanes: Lanes) -> None:
        self._lanes, self._packed = lanes, lanes.pack(self.need)
        self._left = lanes.top - self._packed

    def rejection(self, line: Line) -> tuple[str, str] | None:
        """Give the first filter by which a place turns the request away, and its reason; None if it would take it."""
        closed = None if accepts(line.place) else closed_rejection(line.place, self.request)
        return closed or static_rejection(line.place, self.request) or self._booting(line) or self._room(line)

    def earliest(self, line: Line) -> datetime | None:
        """Say from when on a place would have the room, for as long as is asked; None if never."""
        if not accepts(line.place) or static_rejection(line.place, self.request):
            return None
        not_before = max(self.start, line.usable)
        found = line.timeline.earliest(not_before, self.end - self.start, self.packed(line.lanes))
        return None if found is None else moment_of(found)

    def _booting(self, line: Line) -> tuple[str, str] | None:
        if line.usable <= self.start or line.usable == BEGINNING:
            return None
        return "booting", f"it can be used from {clock(moment_of(line.usable))}"

    def _room(self, line: Line) -> tuple[str, str] | None:
        need = self.packed(line.lanes)
        moment = line.timeline.misfit(self.start, self.end, need)
        if moment is None:
            return None
        used = line.timeline.at(moment)
        name = short_of(line.timeline.top - need - used)[0]
        free = line.place.capacity - line.lanes.unpack(used)
        told = f"{_told(name, self.need)} needed, {_told(name, free)} free at {clock(moment_of(moment))}"
        return ROOM[name], told

    def too_large_for(self, line: Line) -> bool:
        """Tell whether the place is too small even when empty."""
        return not self.need.within(line.place.capacity)


_UNITS = dict(
    zip(
        DIMENSIONS,
        ((1000, "cores"), (1024, "GB memory"), (1024, "GB storage"), (1, "nodes"), (1, "ports"), (1, "labs")),
        strict=True,
    )
)


def _told(name: str, amount: Amount) -> str:
    divisor, unit = _UNITS[name]
    return f"{max(0, getattr(amount, name)) / divisor:g} {unit}"


def clock(moment: datetime) -> str:
    """Say a moment to people."""
    return f"{moment:%Y-%m-%d %H:%M}Z"
