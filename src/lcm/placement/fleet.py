"""All places with their claims over time, kept up to date claim by claim and searched without going through all.

The scheduler keeps one and follows the watch with it. What is held is the store's word and is taken as it is, even if
it is too much; `take` is for those who ask first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from lcm.model.capacity import Amount, Claim
from lcm.placement.lanes import Lanes, micros, rounded_up
from lcm.placement.line import Line
from lcm.placement.request import Held, Place, Request
from lcm.placement.rules import static_rejection
from lcm.placement.shelf import Shelf
from lcm.placement.timeline import BEGINNING

_MOST_REMEMBERED: Final = 1000


class Fleet:
    """Places by id. Not for several threads."""

    def __init__(self, places: Iterable[Place] = (), held: Mapping[str, Iterable[Held]] | None = None) -> None:
        self._lines: dict[str, Line] = {}
        self._shelves: dict[object, Shelf] = {}
        self._lanes: dict[Amount, Lanes] = {}
        self._open_to: dict[object, tuple[Shelf, ...]] = {}
        for place in sorted(places, key=lambda one: one.id, reverse=True):
            self.put(place)
        for id_, several in (held or {}).items():
            for one in several:
                self.hold(id_, one)

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._lines

    def __getitem__(self, id_: str) -> Place:
        return self._lines[id_].place

    def put(self, place: Place) -> None:
        """Add a place, or change it; what it holds stays held."""
        line = self._lines.get(place.id)
        if line is not None and _kind(line.place) == _kind(place) and line.place.capacity == place.capacity:
            self._change(line, place)
            return
        held = self.drop(place.id)
        self._add(place)
        for one in held:
            self.hold(place.id, one)

    def drop(self, id_: str) -> Sequence[Held]:
        """Forget a place; gives what it held. Forgetting it twice is safe."""
        line = self._lines.get(id_)
        if line is None:
            return ()
        held = self.held(id_)
        for one in held:
            self.release(id_, one.holder)
        del self._lines[id_]
        self._take_off(line)
        return held

    def hold(self, id_: str, held: Held) -> None:
        """Hold a claim on a place, in place of any that its holder had there."""
        line = self._lines[id_]
        if held.holder in line.held:
            self.release(id_, held.holder)
        need = line.lanes.pack(held.claim.need)
        line.held[held.holder] = held, need
        self._shift(line, held.claim, need)

    def take(self, id_: str, held: Held) -> bool:
        """Hold a claim if it fits, beside what its holder has there already; False if it does not."""
        if not self.fits(id_, held.claim):
            return False
        self.hold(id_, held)
        return True

    def release(self, id_: str, holder: str) -> bool:
        """Give up what a holder has on a place; False if that is nothing."""
        line = self._lines.get(id_)
        found = line.held.pop(holder, None) if line else None
        if line is None or found is None:
            return False
        held, need = found
        self._shift(line, held.claim, -need)
        return True

    def held(self, id_: str) -> Sequence[Held]:
        """List what is held on a place."""
        return tuple(held for held, _ in self._lines[id_].held.values())

    def fits(self, id_: str, claim: Claim) -> bool:
        """Tell whether one more claim would stay within the place's capacity at every moment."""
        line = self._lines[id_]
        return line.timeline.fits(micros(claim.start), micros(claim.end), line.lanes.pack(claim.need))

    def lines(self) -> Iterator[Line]:
        """Go through all places in the order of their ids."""
        return (self._lines[id_] for id_ in sorted(self._lines))

    def shelves(self, request: Request) -> Sequence[Shelf]:
        """Give the shelves whose kind of place a request may go to, of whatever size."""
        asked = _asked(request)
        found = self._open_to.get(asked)
        if found is None:
            if len(self._open_to) >= _MOST_REMEMBERED:
                self._open_to.clear()
            found = tuple(shelf for shelf in self._shelves.values() if static_rejection(shelf.kind, request) is None)
            self._open_to[asked] = found
        return found

    def _add(self, place: Place) -> None:
        kind = _kind(place)
        if kind not in self._shelves:
            self._shelves[kind] = Shelf(place, rounded_up(place.capacity))
            self._open_to.clear()
        if place.capacity not in self._lanes:
            self._lanes[place.capacity] = Lanes(place.capacity)
        line = Line(place, self._lanes[place.capacity], self._shelves[kind])
        self._lines[place.id] = line
        line.shelf.insert(line)
        self._change(line, place)

    def _take_off(self, line: Line) -> None:
        line.shelf.remove(line)
        if not line.shelf.lines:
            del self._shelves[_kind(line.place)]
            self._open_to.clear()

    def _change(self, line: Line, place: Place) -> None:
        line.place = place
        line.usable = micros(place.usable_at) if place.usable_at else BEGINNING
        line.shelf.mark(line)

    def _shift(self, line: Line, claim: Claim, need: int) -> None:
        start, end = micros(claim.start), micros(claim.end)
        line.timeline.add(start, end, need)
        line.shelf.shift(line, start, end, need)


def _kind(place: Place) -> object:
    return (
        place.region,
        place.track,
        place.lab_types,
        place.licence,
        place.licensed,
        place.version,
        place.node_definitions,
        place.seat,
        place.template,
        rounded_up(place.capacity),
    )


def _asked(request: Request) -> object:
    return (
        request.lab_type,
        request.affinity,
        request.track,
        request.region_required,
        request.cml_version_min,
        request.cml_version_max,
        request.node_definitions,
        request.require_licensed,
    )
