"""One place of the fleet with all that is held on it, and a sample of it at every half hour for the shelf to search."""

from typing import TYPE_CHECKING, Final

import msgspec

from lcm.placement.lanes import Lanes
from lcm.placement.request import BOOTING, Held, Place
from lcm.placement.timeline import BEGINNING, Timeline

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
