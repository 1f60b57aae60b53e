"""The places of all seats and workers, each remade when something about it changed. Used by `SchedulerView`.

A seat whose worker serves or boots is that worker's place, with all claims on the seat. A seat without a worker is a
place that can be used one boot lead from now, if its pool opens seats. Every other worker is a place of its own. A
change of a pool, of its template or of the settings concerns all its seats, any other one only a seat or a worker.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref
from lcm.controllers.scheduler.index import ClaimIndex, PoolRef, SeatKey, Spot
from lcm.controllers.scheduler.places import BootTime, SeatPlaces
from lcm.model.base.capacity import Claim
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.session import Seat
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import PriceBook
from lcm.placement.claims import Terms
from lcm.placement.fleet import PlaceIndex
from lcm.placement.places import PoolSnapshot, snapshot_pool, worker_place
from lcm.placement.request import HeldClaim, Place
from lcm.placement.small_runs import run_pause
from lcm.placement.workers import ImageFacts, KnownWorkers, image_of
from lcm.system.tasks import TimeSlice

_RETIME_INTERVAL: Final = timedelta(seconds=1)
_NEXT_MACHINE: Final = "the next machine"


class FleetPlaces:
    """Places by namespace, in the order and with the claims that the caches tell."""

    def __init__(self, cache: Cache, claims: ClaimIndex, workers: KnownWorkers, prices: PriceBook) -> None:
        self._cache = cache
        self._claims = claims
        self._workers = workers
        self._prices = prices
        self._fleets: dict[str, PlaceIndex] = {}
        self._place_at: dict[Spot, tuple[PlaceIndex, str]] = {}
        self._spots_of: dict[str, tuple[Spot, ...]] = {}
        self._pools: dict[PoolRef, SeatPlaces] = {}
        self._numbers: dict[PoolRef, set[int]] = {}
        """The seats of each pool that are places."""
        self._filled: dict[PoolRef, dict[int, str]] = {}
        """Which worker fills which seat."""
        self._seat_by_worker: dict[str, SeatKey] = {}
        self._facts: dict[object, ImageFacts] = {}
        self._told_images: set[object] = set()
        """The images of which a worker told something new."""
        self._dirty_pools: set[PoolRef] = set()
        self._dirty: set[Spot] = set()
        self._booting: set[Spot] = set()
        """The seats and workers whose machine boots: when it can be used depends on the time."""
        self._unopened: dict[str, tuple[PlaceIndex, timedelta]] = {}
        """The places of seats without a worker, and how long after now each can be used."""
        self._retimed_at: datetime | None = None
        self._shifted_at: datetime | None = None
        self._unfilled: list[tuple[PlaceIndex, str]] = []
        self.has_news = True
        """Whether a place changed in more than the time from which it can be used."""
        self.touched: set[SeatKey] = set()
        """The seats whose place, or what it holds, changed since somebody last took them from here."""

    def fleet(self, namespace: str) -> PlaceIndex:
        """Return the places of a namespace."""
        found = self._fleets.get(namespace)
        if found is None:
            found = self._fleets[namespace] = PlaceIndex()
        return found

    def place_at(self, spot: Spot, now: datetime) -> Place | None:
        """Return the place of a seat or worker as it is at a moment; None if it is no place any more."""
        found = self._place_at.get(spot)
        if found is None:
            return None
        fleet, place_id = found
        unopened = self._unopened.get(place_id)
        return replace(fleet[place_id], usable_at=now + unopened[1]) if unopened else fleet[place_id]

    def seat_of(self, place_id: str) -> Seat | None:
        """Return the seat of a place; None for a worker outside of pools."""
        spot = next((one for one in self._spots_of.get(place_id, ()) if not isinstance(one, str)), None)
        return Seat(pool=spot[0].name, number=spot[1]) if spot else None

    def boot_time(self, place_id: str) -> BootTime | None:
        """Return how long a machine takes to boot at the place of a seat; None for another place."""
        spot = next((one for one in self._spots_of.get(place_id, ()) if not isinstance(one, str)), None)
        return self._pools[spot[0]].boot if spot and spot[0] in self._pools else None

    def boot_times(self) -> Iterator[BootTime]:
        """Yield how long the machines of each pool take to boot."""
        return (one.boot for one in self._pools.values())

    def seat_by_worker(self, uid: str) -> SeatKey | None:
        """Return the seat that a worker fills; None if it fills none."""
        return self._seat_by_worker.get(uid)

    def unclaimed_seats(self, place_id: str) -> Iterator[str]:
        """Yield the places of the seats without worker and claim in the pool of a place."""
        pools = {spot[0] for spot in self._spots_of.get(place_id, ()) if not isinstance(spot, str)}
        for seat in ((ref, number) for ref in pools for number in self._numbers.get(ref, ())):
            _, other = self._place_at[seat]
            if other not in self._workers and not any(map(self._claims.claims_at, self._spots_of[other])):
                yield other

    def update_pool(self, ref: PoolRef, pool: LabWorkerPool | None) -> Sequence[SeatKey]:
        """Note that a pool changed. Return its seats whose worker changed."""
        before = self._filled.get(ref, {})
        after = {seat.number: seat.worker_id for seat in pool.status.seats} if pool else {}
        changed = sorted(number for number in before | after if before.get(number) != after.get(number))
        made = self._pools.get(ref)
        if pool is None or made is None or not made.is_made_of(pool):
            self._dirty_pools.add(ref)
        for uid in (before[number] for number in changed if number in before):
            if self._seat_by_worker.get(uid, (None,))[0] == ref:
                del self._seat_by_worker[uid]
            self._dirty.add(uid)
        self._filled[ref] = after
        self._seat_by_worker |= {after[number]: (ref, number) for number in changed if number in after}
        seats = [(ref, number) for number in changed]
        self._dirty.update(seats)
        if pool is None:
            del self._filled[ref]
        return seats

    def update_worker(self, uid: str, *, told: LabWorker | None = None) -> Sequence[Spot]:
        """Note that a worker changed, and `told` something new. Return where it is."""
        if told is not None:
            self._told_images.add(image_of(told.spec))
        seat = self._seat_by_worker.get(uid)
        spots: list[Spot] = [uid] if seat is None else [uid, seat]
        self._dirty.update(spots)
        return spots

    def update_claim(self, spot: Spot, holder: str) -> None:
        """Hold the claim that a holder has on any spot of a place, or release it."""
        if not isinstance(spot, str):
            self.touched.add(spot)
        if bool(self._claims.claims_at(spot)) != (spot in self._place_at):
            self._dirty.add(spot)
        found = self._place_at.get(spot)
        if found is None:
            return
        fleet, place_id = found
        held = next((one for at in self._spots_of[place_id] if (one := self._claims.claims_at(at).get(holder))), None)
        if held is not None:
            fleet.hold(place_id, held)
        else:
            fleet.release(place_id, holder)

    def update_all(self) -> None:
        """Note that a template or the settings changed."""
        self._dirty_pools.update(self._filled)
        self._dirty.update(self._workers.uids() - self._seat_by_worker.keys())

    async def refresh(self, now: datetime, terms: Terms) -> None:
        """Remake what changed. Others have their turn in between; what changes meanwhile counts the next time."""
        if self._retimed_at is None or now - self._retimed_at >= _RETIME_INTERVAL:
            self._retimed_at = now
            self._dirty.update(self._booting)
        for fleet in self._fleets.values():
            fleet.advance(now)
        self._note_image_facts()
        time_slice = TimeSlice()
        pools, self._dirty_pools = sorted(self._dirty_pools, key=str), set()
        dirty, self._dirty = self._dirty, set()
        seats: dict[PoolRef, set[int]] = {}
        for ref in pools:
            await time_slice.yield_if_over()
            seats[ref] = self._prepare_pool(ref, terms)
        for ref, number in (spot for spot in dirty if not isinstance(spot, str)):
            seats.setdefault(ref, set()).add(number)
        for ref in sorted(seats, key=str):
            for number in sorted(seats[ref]):
                self._remake_seat((ref, number), now, terms)
                await time_slice.yield_if_over()
        for uid in sorted(spot for spot in dirty if isinstance(spot, str)):
            self._remake_worker(uid, now, terms)
            await time_slice.yield_if_over()
        await self._hold_claims()

    async def shift_openings(self, now: datetime) -> None:
        """Move the time from which seats without a worker can be used: somebody wants to know where there is room."""
        if self._shifted_at is not None and now - self._shifted_at < _RETIME_INTERVAL:
            return
        self._shifted_at, time_slice = now, TimeSlice()
        for place_id in list(self._unopened):
            if place_id in self._unopened:
                fleet, lead = self._unopened[place_id]
                fleet.put(replace(fleet[place_id], usable_at=now + lead))
            await time_slice.yield_if_over()

    def _note_image_facts(self) -> None:
        """Have the pools of images remade of which is known more than before."""
        images, self._told_images = self._told_images, set()
        for image in images:
            facts = self._workers.image_facts(image)
            if self._facts.get(image) != facts:
                self._facts[image] = facts
                self._dirty_pools.update(ref for ref, made in self._pools.items() if made.image == image)

    def _prepare_pool(self, ref: PoolRef, terms: Terms) -> set[int]:
        """Make anew what all places of a pool have in common. Return the numbers of all its seats."""
        row, known = self._snapshot(ref), self._numbers.get(ref, set())
        if row is None:
            self._pools.pop(ref, None)
            return set(known)
        made = self._pools[ref] = SeatPlaces(row, terms)
        return {*made.numbers, *known, *self._claims.claimed_seats(ref)}

    def _remake_seat(self, seat: SeatKey, now: datetime, terms: Terms) -> None:
        ref, number = seat
        pool, uid = self._pools.get(ref), self._filled.get(ref, {}).get(number)
        worker = self._workers.get(uid) if uid else None
        is_claimed = bool(self._claims.claims_at(seat))
        place = pool.make(number, worker, now, is_claimed=is_claimed) if pool else None
        before = self._place_at.get(seat)
        if before is not None and (place is None or before[1] != place.id):
            self._drop_place(before[1])
        if place is not None:
            spots: tuple[Spot, ...] = (place.id, seat) if place.id in self._workers else (seat,)
            self._put_place(place, ref.namespace, spots)
            self._numbers.setdefault(ref, set()).add(number)
        if before is not None and before[1] in self._workers and (place is None or place.id != before[1]):
            self._remake_worker(before[1], now, terms)
        self.touched.add(seat)

    def _remake_worker(self, uid: str, now: datetime, terms: Terms) -> None:
        """Make a place of a worker outside of pools, or of one whose seat does not use it."""
        worker, seat = self._workers.get(uid), self._seat_by_worker.get(uid)
        used = self._spots_of.get(uid, ())
        if seat is not None and len(used) > 1 and used[1] == seat:
            return
        if worker is None:
            self._drop_place(uid)
        else:
            self._put_place(worker_place(worker, now, boot=terms.boot), worker.metadata.namespace, (uid,))

    def _snapshot(self, ref: PoolRef) -> PoolSnapshot | None:
        pool = self._cache.get(ref)
        template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, ref.namespace)) if pool else None
        return snapshot_pool(pool, template, self._workers, self._prices) if pool and template else None

    def _put_place(self, place: Place, namespace: str, spots: tuple[Spot, ...]) -> None:
        fleet = self.fleet(namespace)
        if self._spots_of.get(place.id, spots) != spots:
            self._drop_place(place.id)
        known = place.id in self._spots_of
        self._note_time(place, spots, fleet)
        if known and fleet[place.id] == place:
            return
        self.has_news = self.has_news or not known or replace(fleet[place.id], usable_at=place.usable_at) != place
        fleet.put(place)
        self._hold_end(place, spots[-1], fleet)
        if known:
            return
        self._spots_of[place.id] = spots
        for spot in spots:
            self._place_at[spot] = fleet, place.id
        self._unfilled.append((fleet, place.id))

    def _hold_end(self, place: Place, spot: Spot, fleet: PlaceIndex) -> None:
        """Hold the time in which a smaller machine makes way for another: nobody can be there through it."""
        fleet.release(place.id, _NEXT_MACHINE)
        if place.until is not None and not isinstance(spot, str):
            end = place.until + run_pause(self._pools[spot[0]].boot.lead)
            fleet.hold(place.id, HeldClaim(_NEXT_MACHINE, Claim(start=place.until, end=end, need=place.capacity)))

    def _note_time(self, place: Place, spots: tuple[Spot, ...], fleet: PlaceIndex) -> None:
        """Note how a place depends on the time."""
        boots = place.usable_at is not None and place.id in self._workers
        (self._booting.add if boots else self._booting.discard)(spots[-1])
        self._unopened.pop(place.id, None)
        if place.usable_at is not None and not boots and not isinstance(spots[-1], str):
            self._unopened[place.id] = fleet, self._pools[spots[-1][0]].boot.lead

    async def _hold_claims(self) -> None:
        """Hold on new places the claims that are recorded there."""
        time_slice = TimeSlice()
        while self._unfilled:
            fleet, place_id = self._unfilled.pop()
            spots = self._spots_of.get(place_id, ())
            held = {holder: one for spot in spots for holder, one in self._claims.claims_at(spot).items()}
            if place_id in fleet:  # it may have been dropped since
                for one in held.values():
                    fleet.hold(place_id, one)
            await time_slice.yield_if_over()

    def _drop_place(self, place_id: str) -> None:
        self._unopened.pop(place_id, None)
        for spot in self._spots_of.pop(place_id, ()):
            self._booting.discard(spot)
            fleet, at = self._place_at[spot]
            if at == place_id:
                fleet.drop(place_id)
                del self._place_at[spot]
                self.has_news = True
                if not isinstance(spot, str):
                    self._numbers[spot[0]].discard(spot[1])
