"""One place of the fleet with all that is held on it, and a sample of it at every hour for the shelf to search."""

from typing import TYPE_CHECKING, Final

from lcm.placement.lanes import Lanes
from lcm.placement.request import BOOTING, Held, Place
from lcm.placement.timeline import BEGINNING, Timeline

if TYPE_CHECKING:
    from lcm.placement.shelf import Shelf

HOUR: Final = 15 * 60 * 1_000_000
MOST_HOURS: Final = 48
"""A claim is sampled for two days from its start. Beyond that only the timeline knows it, which is asked anyway."""


class Line:
    """A place, its timeline, and at each hour what is used: packed, and as the shelf's rows tell it."""

    __slots__ = ("held", "lanes", "place", "samples", "shelf", "slot", "timeline", "usable")

    def __init__(self, place: Place, lanes: Lanes, shelf: "Shelf") -> None:
        self.place = place
        self.shelf = shelf
        self.lanes = lanes
        self.timeline = Timeline(lanes.top)
        self.samples: dict[int, tuple[int, bytes]] = {}
        self.held: dict[str, tuple[Held, int]] = {}
        self.usable = BEGINNING
        self.slot = 0


def accepts(place: Place) -> bool:
    """Tell whether a place takes sessions, now or once it has booted."""
    return not place.closed or (place.closed == BOOTING and place.usable_at is not None)


def hours(start: int, end: int) -> range:
    """Give the full hours that lie within [start, end)."""
    first = -(-start // HOUR)
    return range(first, max(first, min(-(-end // HOUR), first + MOST_HOURS)))
