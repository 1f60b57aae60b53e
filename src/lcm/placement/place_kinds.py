"""Which places of a size class suit a request, but for their room: places with the same facts are of one kind.

Filters are asked once per kind, and the kinds that suit are remembered for requests with the same facts. The change of
one place moves one bit.
"""

from functools import reduce
from operator import or_
from typing import Final

from lcm.placement.candidate import PackedRequest, accepts_sessions
from lcm.placement.request import Place, PlacementRequest
from lcm.placement.rules import place_facts, static_rejection

_MOST_REMEMBERED: Final = 1000


class PlaceKind:
    """Places with the same facts: one of them as an example, and the mask of all."""

    __slots__ = ("example", "mask")

    def __init__(self, example: Place) -> None:
        self.example = example
        self.mask = 0


class PlaceKinds:
    """The kinds of a size class."""

    __slots__ = ("_kinds", "_suitable", "masks")

    def __init__(self) -> None:
        self._kinds: dict[object, PlaceKind] = {}
        self._suitable: dict[object, list[PlaceKind]] = {}
        self.masks: dict[object, int] = {}
        """What `open_to` has returned since places last changed, by the facts of requests."""

    def add(self, slot: int, place: Place) -> None:
        """Record the kind of a place that has none yet."""
        facts = _facts_of(place)
        kind = self._kinds.get(facts)
        if kind is None:
            kind = self._kinds[facts] = PlaceKind(place)
            self._suitable.clear()
        kind.mask |= 1 << slot
        self.masks.clear()

    def remove(self, slot: int, place: Place) -> None:
        """Forget the kind of a place, which was recorded for it as it is given here."""
        facts = _facts_of(place)
        kind = self._kinds[facts]
        kind.mask ^= 1 << slot
        if not kind.mask:
            del self._kinds[facts]
            self._suitable.clear()
        self.masks.clear()

    def change(self, slot: int, before: Place, after: Place) -> None:
        """Record that a place is another now."""
        if _facts_of(before) != _facts_of(after):
            self.remove(slot, before)
            self.add(slot, after)

    def open_to(self, ask: PackedRequest) -> int:
        """Return the mask of places that accept sessions and whose kind suits a request."""
        suitable = self._suitable_kinds(ask.facts, ask.request)
        self.masks[ask.facts] = found = reduce(or_, (kind.mask for kind in suitable), 0)
        return found

    def in_region(self, region: str) -> int:
        """Return the mask of places in a region."""
        return reduce(or_, (kind.mask for kind in self._kinds.values() if kind.example.region == region), 0)

    def _suitable_kinds(self, asked: object, request: PlacementRequest) -> list[PlaceKind]:
        found = self._suitable.get(asked)
        if found is None:
            if len(self._suitable) >= _MOST_REMEMBERED:
                self._suitable.clear()
                self.masks.clear()
            kinds = (kind for kind in self._kinds.values() if accepts_sessions(kind.example))
            found = [kind for kind in kinds if static_rejection(kind.example, request) is None]
            self._suitable[asked] = found
        return found


def _facts_of(place: Place) -> object:
    return accepts_sessions(place), place_facts(place)
