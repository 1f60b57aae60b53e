"""All places with their claims over time, kept up to date claim by claim and searched without going through all.

The scheduler keeps one and follows the watch with it. What is held is the store's word and is taken as it is, even if
it is too much; `take` is for those who ask first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from lcm.model.base.capacity import Amount, Claim
from lcm.placement.candidate import TICK, Ask, Holding, Line, ticks
from lcm.placement.request import Held, Place
from lcm.placement.shelf import Shelf
from lcm.placement.timeline import BEGINNING, Lanes, micros, moment_of, rounded_up


class Fleet:
    """Places by id. Not for several threads."""

    def __init__(self, places: Iterable[Place] = (), held: Mapping[str, Iterable[Held]] | None = None) -> None:
        self._lines: dict[str, Line] = {}
        self._asked: Ask | None = None
        self._since = 0
        self._until = moment_of(TICK)
        self._workers: list[Shelf] = []
        self._seats: list[Shelf] = []
        self._lanes: dict[Amount, Lanes] = {}
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
        if line is not None and (line.place.capacity, line.place.seat) == (place.capacity, place.seat):
            self._mark(line, place)
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
        line.shelf.remove(line)
        if not line.shelf.lines:
            (self._seats if line.place.seat else self._workers).remove(line.shelf)
        return held

    def hold(self, id_: str, held: Held) -> None:
        """Hold a claim on a place, in place of any that its holder had there."""
        line = self._lines[id_]
        if held.holder in line.held:
            self.release(id_, held.holder)
        claim, asked = held.claim, self._asked
        need = line.lanes.pack(claim.need)
        if asked is not None and claim is asked.claim:
            start, end, span = asked.start, asked.end, asked.span
        else:
            start, end = micros(claim.start), micros(claim.end)
            span = ticks(start, end)
        line.held[held.holder] = Holding(held, start, end, span, need)
        line.timeline.add(start, end, need)
        line.shelf.add(line, span, need)

    def expect(self, ask: Ask) -> None:
        """Keep the numbers of what was asked: it is what is held next."""
        self._asked = ask

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
        line.timeline.add(found.start, found.end, -found.need)
        line.shelf.take_away(line, found)
        return True

    def advance(self, now: datetime) -> None:
        """Say what time it is: what is past is not searched any more. Claims stay held until they are released."""
        if now < self._until:
            return
        since = micros(now) // TICK
        self._until = moment_of((since + 1) * TICK)
        if since > self._since:
            self._since = since
            for shelf in (*self._workers, *self._seats):
                shelf.advance(since)

    def held(self, id_: str) -> Sequence[Held]:
        """List what is held on a place."""
        return tuple(found.held for found in self._lines[id_].held.values())

    def fits(self, id_: str, claim: Claim) -> bool:
        """Tell whether one more claim would stay within the place's capacity at every moment."""
        line = self._lines[id_]
        return line.timeline.fits(micros(claim.start), micros(claim.end), line.lanes.pack(claim.need))

    def lines(self) -> Iterator[Line]:
        """Go through all places in the order of their ids."""
        return (self._lines[id_] for id_ in sorted(self._lines))

    def shelves(self, *, seats: bool) -> Sequence[Shelf]:
        """Give the shelves of workers, or of seats."""
        return self._seats if seats else self._workers

    def _add(self, place: Place) -> None:
        if place.capacity not in self._lanes:
            self._lanes[place.capacity] = Lanes(place.capacity)
        shelf = self._shelf(rounded_up(place.capacity), seats=place.seat)
        line = self._lines[place.id] = Line(place, self._lanes[place.capacity], shelf)
        shelf.insert(line)
        self._mark(line, place)

    def _shelf(self, size: Amount, *, seats: bool) -> Shelf:
        shelves = self._seats if seats else self._workers
        found = next((shelf for shelf in shelves if shelf.size == size), None)
        if found is None:
            found = Shelf(size, seats=seats, since=self._since)
            shelves.append(found)
        return found

    def _mark(self, line: Line, place: Place) -> None:
        line.usable = micros(place.usable_at) if place.usable_at else BEGINNING
        line.shelf.mark(line, place)
