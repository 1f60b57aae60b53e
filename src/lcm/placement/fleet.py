"""The index of all places with their claims over time, updated claim by claim and searched without a full scan.

The scheduler keeps one `PlaceIndex` and follows the watch with it. Claims are taken from the store as they are, even
if they are too many; `fits` is for callers that check first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from lcm.model.base.capacity import Amount, Claim
from lcm.placement.candidate import IndexedClaim, IndexedPlace, PackedRequest
from lcm.placement.request import HeldClaim, Place
from lcm.placement.size_class import BLOCK_PLACES, SizeBlocks, SizeClass
from lcm.placement.timeline import BEGINNING, TICK_MICROS, Lanes, micros, moment_of, round_up_capacity


class PlaceIndex:
    """All places by id, with their claims. Not thread-safe."""

    def __init__(self, places: Iterable[Place] = (), held: Mapping[str, Iterable[HeldClaim]] | None = None) -> None:
        self._lines: dict[str, IndexedPlace] = {}
        self.last_request: PackedRequest | None = None
        """The request that was placed last: its claim is usually the next to be held."""
        self._since = 0
        self.now = self._known_now = self._until = moment_of(0)
        self._now_micros = 0
        self.workers: list[SizeClass] = []
        """The size classes of workers."""
        self.seats: list[SizeClass] = []
        """The size classes of seats."""
        self._lanes: dict[Amount, Lanes] = {}
        for place in sorted(places, key=lambda one: one.id):
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
            line.usable = _usable_from(place)
            line.shelf.set_facts(line, place)
            return
        held = self.drop(place.id)
        self._add_place(place)
        for one in held:
            self.hold(place.id, one)

    def drop(self, id_: str) -> Sequence[HeldClaim]:
        """Remove a place and return what it held. Removing it twice is safe."""
        line = self._lines.get(id_)
        if line is None:
            return ()
        held = self.claims_on(id_)
        for one in held:
            self.release(id_, one.holder)
        del self._lines[id_]
        line.shelf.remove(line)
        if not line.shelf.lines:
            (self.seats if line.place.seat else self.workers).remove(line.shelf)
            line.shelf.group.remove(line.shelf)
        return held

    def hold(self, id_: str, held: HeldClaim) -> None:
        """Hold a claim on a place; it replaces any that its holder had there."""
        line = self._lines[id_]
        if held.holder in line.held:
            self.release(id_, held.holder)
        claim, asked = held.claim, self.last_request
        if asked is not None and claim is asked.claim:
            start, end = asked.start, asked.end
            need = asked.need if asked.lanes is line.lanes else asked.pack_need(line.lanes)
        else:
            start, end, need = micros(claim.start), micros(claim.end), line.lanes.pack(claim.need)
        line.shelf.hold(line, IndexedClaim(held, start, end, need))

    def release(self, id_: str, holder: str) -> bool:
        """Release what a holder has on a place; return False if that is nothing."""
        line = self._lines.get(id_)
        claim = line.held.pop(holder, None) if line is not None else None
        if line is None or claim is None:
            return False
        line.shelf.release(line, claim, self._read_now())
        return True

    def advance(self, now: datetime) -> None:
        """Set the current time: the past is not searched any more. Claims stay held until they are released."""
        self.now = max(self.now, now)
        if now < self._until:
            return
        self._since = micros(now) // TICK_MICROS + 1
        self._until = moment_of(self._since * TICK_MICROS)
        for shelf in (*self.workers, *self.seats):
            shelf.advance(self._since)

    def _read_now(self) -> int:
        if self.now is not self._known_now:
            self._known_now, self._now_micros = self.now, micros(self.now)
        return self._now_micros

    def claims_on(self, id_: str) -> Sequence[HeldClaim]:
        """Return the claims held on a place."""
        return tuple(found.held for found in self._lines[id_].held.values())

    def fits(self, id_: str, claim: Claim) -> bool:
        """Return whether one more claim would stay within the place's capacity at every moment."""
        line = self._lines[id_]
        return line.timeline.fits(micros(claim.start), micros(claim.end), line.lanes.pack(claim.need))

    def indexed_places(self) -> Iterator[IndexedPlace]:
        """Iterate over all places in the order of their ids."""
        return (self._lines[id_] for id_ in sorted(self._lines))

    def _add_place(self, place: Place) -> None:
        if place.capacity not in self._lanes:
            self._lanes[place.capacity] = Lanes(place.capacity)
        shelf = self._size_class(round_up_capacity(place.capacity), seats=place.seat)
        line = self._lines[place.id] = IndexedPlace(place, self._lanes[place.capacity], shelf)
        line.usable = _usable_from(place)
        shelf.insert(line)

    def _size_class(self, size: Amount, *, seats: bool) -> SizeClass:
        """Return the first block of a size class that has a slot left, or a new one after the others."""
        shelves = self.seats if seats else self.workers
        alike = next((shelf.group.blocks for shelf in shelves if shelf.size == size), [])
        found = next((shelf for shelf in alike if len(shelf.lines) < BLOCK_PLACES), None)
        if found is None:
            group = alike[0].group if alike else SizeBlocks()
            found = SizeClass(size, group, seats=seats, since=self._since)
            shelves.append(found)
        return found


def _usable_from(place: Place) -> int:
    return micros(place.usable_at) if place.usable_at else BEGINNING
