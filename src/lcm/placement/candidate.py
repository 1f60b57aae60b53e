"""One request and one place in the numbers of the index, and what the place answers to the request.

`PackedRequest` is a request while it is being placed, with its claim in packed numbers. `IndexedPlace` is a place with
all that is held on it, and a sample of it at every half hour, which the size classes search.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from lcm.model.base.capacity import DIMENSIONS, Amount
from lcm.placement.request import BOOTING, HeldClaim, Place, PlacementRequest
from lcm.placement.rules import ROOM_FILTERS, closed_rejection, request_facts, static_rejection
from lcm.placement.timeline import (
    BEGINNING,
    EPOCH,
    MICROSECOND,
    TICK_MICROS,
    Lanes,
    Timeline,
    moment_of,
    short_of,
)

if TYPE_CHECKING:
    from lcm.placement.size_class import SizeClass


MOST_TICKS: Final = 96
"""A claim is sampled for two days from its start.

Beyond that only the timeline knows it, which is asked anyway. What is held for longer should be held again from
time to time.
"""
MOST_MICROS: Final = MOST_TICKS * TICK_MICROS


class IndexedClaim(msgspec.Struct, frozen=True, gc=False):
    """A claim held on a place: its [start, end) in microseconds, and its packed need."""

    held: HeldClaim
    start: int
    end: int
    need: int

    @property
    def is_long(self) -> bool:
        """Whether some of its half hours may not be sampled."""
        return self.end - self.start > MOST_MICROS

    @property
    def sampled_end(self) -> int:
        """The end of what is sampled of it."""
        return min(self.end, (-(-self.start // TICK_MICROS) + MOST_TICKS) * TICK_MICROS)


class IndexedPlace:
    """A place with its timeline, and its slot in the size class.

    `sampled` is the timeline whose half hours the rows of the size class show: `timeline` itself, or one in which long
    claims end earlier if it holds any. Of the time before `since` they only show what was used then. `code` is that of
    the place in the row of the current half hour, if that is the one in `noted`.
    """

    __slots__ = (
        "bit",
        "code",
        "held",
        "lanes",
        "noted",
        "place",
        "sampled",
        "shelf",
        "since",
        "slot",
        "timeline",
        "usable",
    )

    def __init__(self, place: Place, lanes: Lanes, shelf: "SizeClass") -> None:
        self.place = place
        self.shelf = shelf
        self.lanes = lanes
        self.timeline = self.sampled = Timeline(lanes.top)
        self.held: dict[str, IndexedClaim] = {}
        self.usable = self.since = BEGINNING
        self.slot = self.bit = self.code = self.noted = 0

    def sampled_at(self, tick: int) -> int:
        """Return what is used at a half hour, as far as the rows show it, packed."""
        return self.sampled.used_at(tick * TICK_MICROS) if tick >= self.shelf.rows.since else 0


def accepts_sessions(place: Place) -> bool:
    """Return whether a place takes sessions, now or once it has booted."""
    return not place.closed or (place.closed == BOOTING and place.usable_at is not None)


class PackedRequest:
    """A request with its claim's [start, end) in microseconds, the half hours [first, stop) in it, and its packed need.

    `facts` are what the static filters look at. `need` is the packed need as places with the packing `lanes` count it.
    During a search, `asked` counts the places that were asked.
    """

    __slots__ = (
        "_room",
        "asked",
        "claim",
        "end",
        "facts",
        "first",
        "lanes",
        "need",
        "request",
        "start",
        "stop",
    )

    def __init__(self, request: PlacementRequest) -> None:
        self.request = request
        self.facts = request_facts(request)
        self.claim = claim = request.claim
        # As `micros` does, without its two calls.
        self.start = start = (claim.start - EPOCH) // MICROSECOND
        self.end = end = (claim.end - EPOCH) // MICROSECOND
        self.first = first = -(-start // TICK_MICROS)
        stop = -(-end // TICK_MICROS)
        self.stop = stop if stop - first < MOST_TICKS else first + MOST_TICKS
        self.asked = 0
        self.lanes: Lanes | None = None

    def fits(self, line: IndexedPlace) -> bool:
        """Return whether a place that passes all other filters is up by then and has the room at every moment."""
        start = self.start
        return line.usable <= start and line.timeline.first_obstacle(start, self.end, self.room(line.lanes)) is None

    def room(self, lanes: Lanes) -> int:
        """Return how much of a place of this capacity may be used, at most, so that the need still fits."""
        if lanes is not self.lanes:
            self.lanes = lanes
            self.need = need = lanes.pack(self.claim.need)
            self._room: int = lanes.top - need
        return self._room

    def pack_need(self, lanes: Lanes) -> int:
        """Return the need as places of this capacity count it."""
        if lanes is not self.lanes:
            self.room(lanes)
        return self.need

    def rejection(self, line: IndexedPlace) -> tuple[str, str] | None:
        """Return the first filter by which a place rejects the request, and its reason; None if it would take it."""
        closed = None if accepts_sessions(line.place) else closed_rejection(line.place, self.request)
        return (
            closed
            or static_rejection(line.place, self.request)
            or self.request.refused.get(line.place.id)
            or self._booting_rejection(line)
            or self._room_rejection(line)
        )

    def earliest(self, line: IndexedPlace) -> datetime | None:
        """Return from when on a place would have the room for as long as is asked; None if never."""
        place, request = line.place, self.request
        if not accepts_sessions(place) or place.id in request.refused or static_rejection(place, request):
            return None
        not_before = max(self.start, line.usable)
        found = line.timeline.earliest(not_before, self.end - self.start, self.pack_need(line.lanes))
        return None if found is None else moment_of(found)

    def _booting_rejection(self, line: IndexedPlace) -> tuple[str, str] | None:
        if line.usable <= self.start or line.usable == BEGINNING:
            return None
        return "booting", f"it can be used from {format_moment(moment_of(line.usable))}"

    def _room_rejection(self, line: IndexedPlace) -> tuple[str, str] | None:
        need = self.pack_need(line.lanes)
        moment = line.timeline.first_misfit(self.start, self.end, need)
        if moment is None:
            return None
        used = line.timeline.used_at(moment)
        name = short_of(line.timeline.top - need - used)[0]
        free = line.place.capacity - line.lanes.unpack(used)
        asap = self.request.movable and moment <= self.start
        needed, when = (
            _format_amount(name, self.claim.need),
            "now" if asap else f"at {format_moment(moment_of(moment))}",
        )
        reason = f"{needed} needed, {_format_amount(name, free)} free {when}"
        return ROOM_FILTERS[name], reason


_UNITS = dict(
    zip(
        DIMENSIONS,
        ((1000, "cores"), (1024, "GB memory"), (1024, "GB storage"), (1, "nodes"), (1, "ports"), (1, "labs")),
        strict=True,
    )
)


def _format_amount(name: str, amount: Amount) -> str:
    divisor, unit = _UNITS[name]
    return f"{max(0, getattr(amount, name)) / divisor:g} {unit}"


def format_moment(moment: datetime) -> str:
    """Format a moment for people."""
    return f"{moment:%Y-%m-%d %H:%M}Z"


def format_apart(first: datetime, second: datetime) -> tuple[str, str]:
    """Format two moments so that they differ: to the second if they are of the same minute."""
    both = format_moment(first), format_moment(second)
    return both if both[0] != both[1] else (f"{first:%Y-%m-%d %H:%M:%S}Z", f"{second:%Y-%m-%d %H:%M:%S}Z")
