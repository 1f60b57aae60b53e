"""The scheduler's view of the fleet: all places with their claims, kept up to date from the cache.

A seat with a worker that serves or boots is that worker's place, with all the seat's claims. A seat without one is a
place that can be used one lead from now, if its pool opens seats. All other workers are places of their own. It only
proposes: what it does not know yet, the plane does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref, Seen, SessionRef, ref_of
from lcm.controllers.scheduler.index import Holdings, LineUp, PoolRef, Spot, sessions_in
from lcm.controllers.scheduler.places import Boot, Pace, boot_of, places_of
from lcm.model.base.capacity import Claim
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, Seat, holds
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms
from lcm.placement.fleet import Fleet
from lcm.placement.places import Row, row_of, worker_place
from lcm.placement.request import Place

_RETIME: Final = timedelta(seconds=1)


class View:
    """Places by namespace: a session goes to what is in its own."""

    def __init__(
        self,
        cache: Cache,
        *,
        terms: Callable[[], Terms],
        now: Callable[[], datetime],
        changed: Callable[[], object],
    ) -> None:
        """Follow a cache that is ready; `changed` is told that something did."""
        self._cache = cache
        self.terms = terms
        self._now = now
        self._changed = changed
        self._poke: Callable[[SessionRef], object] = lambda _: None
        self.pace = Pace()
        self.line_up = LineUp()
        self._holdings = Holdings(lambda session, claim: self.pace.likely(session, claim, now(), terms()))
        self._fleets: dict[str, Fleet] = {}
        self._workers: dict[str, LabWorker] = {}
        self.small: dict[str, None] = {}
        """The uids of workers that hold less than their spec says, or of which that is not known."""
        self._uids: dict[Ref[Any], str] = {}
        self._place_at: dict[Spot, tuple[Fleet, str]] = {}
        self._spots_of: dict[str, tuple[Spot, ...]] = {}
        self._boots: dict[str, Boot] = {}
        self._pools: dict[PoolRef, frozenset[str]] = {}
        self._pooled: dict[str, tuple[PoolRef, int]] = {}
        self._dirty: set[PoolRef | str] = set()
        self._moving: set[PoolRef | str] = set()
        self._retimed_at: datetime | None = None
        self._barred: dict[str, tuple[datetime, str]] = {}
        self._turned_away: dict[SessionRef, datetime] = {}
        self._empty: list[tuple[Fleet, str]] = []
        self._news = True
        for kind in (LabWorker, LabWorkerPool, Reservation, LabletSession):
            for resource in cache.all(kind):
                self._note(Seen(ref_of(resource), resource))
        self.stop = cache.subscribe(self._note)

    def tell(self, poke: Callable[[SessionRef], object]) -> None:
        """Say from now on of each session that its worker, or that of its seat, changed."""
        self._poke = poke

    def fleet(self, namespace: str) -> Fleet:
        """Give the places of a namespace."""
        found = self._fleets.get(namespace)
        if found is None:
            found = self._fleets[namespace] = Fleet()
        return found

    def worker(self, uid: str | None) -> LabWorker | None:
        """Look up a worker by its uid."""
        return self._workers.get(uid) if uid else None

    def seat_worker(self, session: LabletSession) -> LabWorker | None:
        """Give the worker that fills a session's seat, whatever it does."""
        seat = session.status.seat
        pool = self._cache.get(_pool_of(session, seat)) if seat else None
        filled = pool.status.seats if pool else ()
        return next((self.worker(one.worker_id) for one in filled if seat and one.number == seat.number), None)

    def place_of(self, session: LabletSession) -> Place | None:
        """Give the place that a session's seat is now; None if it has no seat, or that is no place any more."""
        seat = session.status.seat
        return self.place_at((_pool_of(session, seat), seat.number)) if seat else None

    def place_at(self, spot: Spot) -> Place | None:
        """Give the place that a spot is now; None if it is none any more."""
        found = self._place_at.get(spot)
        return found[0][found[1]] if found else None

    def tokens(self) -> Iterator[tuple[PoolRef, str | None]]:
        """Say of each pool where the licence token of its workers is kept."""
        for pool in self._cache.all(LabWorkerPool):
            template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, pool.metadata.namespace))
            if template is not None:
                yield ref_of(pool), template.spec.worker.cml.license_token

    def claims_on(self, pool: PoolRef) -> Sequence[Sequence[Claim]]:
        """Give the claims on each seat of a pool that has any."""
        return [[one.claim for one in self._holdings.at((pool, n)).values()] for n in self._holdings.seats(pool)]

    def is_pooled(self, uid: str) -> bool:
        """Tell whether a worker fills a seat."""
        return uid in self._pooled

    def sessions_on(self, uid: str) -> Sequence[LabletSession]:
        """Give the sessions that were put on a worker."""
        return [one for one in map(self._cache.get, sessions_in(self._holdings.at(uid))) if one is not None]

    def claim_of(self, holder: str) -> Claim | None:
        """Give the claim of a session by its name as a holder, as it is kept for it."""
        session = next(map(self._cache.get, sessions_in([holder])), None)
        return holds(session) if session else None

    def seat_of(self, place_id: str) -> Seat | None:
        """Name the seat that a place is; None for a worker outside of pools."""
        spot = next((one for one in self._spots_of.get(place_id, ()) if not isinstance(one, str)), None)
        return Seat(pool=spot[0].name, number=spot[1]) if spot else None

    def boot(self, place_id: str) -> Boot:
        """Say how long a place's machine takes to boot."""
        return self._boots.get(place_id) or boot_of(None, self.terms())

    def bar(self, place_id: str, until: datetime, why: str, *, whole_pool: bool = False) -> None:
        """Leave a place alone for a while, or all seats of its pool that nobody needs yet: the plane knows better.

        A seat with a claim gets its worker anyway, and may be let have others where no other is.
        """
        pools = {spot[0] for spot in self._spots_of.get(place_id, ()) if not isinstance(spot, str)}
        others = [one for ref in pools if whole_pool for one in self._pools[ref] if self._is_unused(one)]
        for one in (place_id, *others):
            self._barred[one] = until, why
            self._relay(one)
        self._matters()

    def is_barred(self, place_id: str) -> bool:
        """Tell whether a place is left alone."""
        return place_id in self._barred

    def _is_unused(self, place_id: str) -> bool:
        """Tell whether a seat has neither a worker nor a claim."""
        return place_id not in self._workers and not any(map(self._holdings.at, self._spots_of[place_id]))

    def turn_away(self, session: SessionRef, until: datetime) -> None:
        """Have a session wait behind the others for a while: its pool's limits let none run for it, and may others."""
        self._turned_away[session] = until

    def is_turned_away(self, session: SessionRef) -> bool:
        """Tell whether a session waits behind the others."""
        return session in self._turned_away

    def refresh(self, now: datetime) -> bool:
        """Come up to the present moment; tell whether anything changed that matters to those who wait."""
        for place_id in [one for one, (until, _) in self._barred.items() if until <= now]:
            del self._barred[place_id]
            self._relay(place_id)
        self._turned_away = {ref: until for ref, until in self._turned_away.items() if until > now}
        if self._retimed_at is None or now - self._retimed_at >= _RETIME:
            self._retimed_at = now
            moving = sorted(self._moving - self._dirty, key=str)
            self._dirty.update(one for one in moving if not self._shift(one, now))
            for ref in self._holdings.overdue(now):
                self._book(ref, self._cache.get(ref))
        for fleet in self._fleets.values():
            fleet.advance(now)
        pools = sorted((one for one in self._dirty if not isinstance(one, str)), key=str)
        workers = sorted(one for one in self._dirty if isinstance(one, str))
        self._dirty.clear()
        for pool in pools:
            self._lay_pool(pool, now)
        for uid in workers:
            self._lay_worker(uid, now)
        news, self._news = self._news, False
        return news

    def _note(self, seen: Seen) -> None:
        resource = seen.resource
        if seen.ref.kind is LabletSession:
            session = resource if isinstance(resource, LabletSession) else None
            if session is not None:
                self.pace.note(session)
            if self.line_up.note(seen.ref, session):
                self._matters()
        if seen.ref.kind in {LabletSession, Reservation}:
            self._book(seen.ref, resource if isinstance(resource, LabletSession | Reservation) else None)
        elif seen.ref.kind is LabWorker:
            self._employ(seen.ref, resource if isinstance(resource, LabWorker) else None)
        elif seen.ref.kind is LabWorkerPool:
            self._refill(seen.ref, resource if isinstance(resource, LabWorkerPool) else None)
        elif seen.ref.kind in {WorkerTemplate, SystemSettings}:
            self._dirty.update(self._pools)
            self._dirty.update(self._workers.keys() - self._pooled.keys())
            self._matters()
        else:
            self._matters()

    def _matters(self) -> None:
        self._news = True
        self._changed()

    def _book(self, ref: Ref[Any], booking: LabletSession | Reservation | None) -> None:
        for spot, holder in self._holdings.note(ref, booking):
            self._sync(spot, holder)
            if not isinstance(spot, str) and bool(self._holdings.at(spot)) != (spot in self._place_at):
                self._dirty.add(spot[0])
            self._matters()

    def _employ(self, ref: Ref[Any], worker: LabWorker | None) -> None:
        uid = worker.metadata.uid if worker else None
        before = self._uids.pop(ref, None)
        if before is not None and before != uid:
            self._workers.pop(before, None)
            self.small.pop(before, None)
            self._touch(before)
        if worker is not None and uid is not None:
            self._workers[uid] = worker
            self._size_up(uid, worker)
            self._uids[ref] = uid
            self._touch(uid)
        self._changed()

    def _size_up(self, uid: str, worker: LabWorker) -> None:
        has, said = worker.status.capacity, declared_capacity(worker.spec)
        if has is None or (said is not None and said.within(has)):
            self.small.pop(uid, None)
        else:
            self.small[uid] = None

    def _touch(self, uid: str) -> None:
        spots: list[Spot] = [uid]
        if uid in self._pooled:
            self._dirty.add(self._pooled[uid][0])
            spots.append(self._pooled[uid])
        self._dirty.add(uid)
        for spot in spots:
            self._poke_all(spot)

    def _poke_all(self, spot: Spot) -> None:
        """Have the sessions of a spot looked at; a seat's worker means nothing to those whose time is yet to come."""
        now = self._now()
        here = self._holdings.at(spot)
        for ref in sessions_in([one for one, held in here.items() if isinstance(spot, str) or held.claim.start <= now]):
            self._poke(ref)

    def _relay(self, place_id: str) -> None:
        """Have a place made anew."""
        self._dirty.update(spot if isinstance(spot, str) else spot[0] for spot in self._spots_of.get(place_id, ()))

    def _refill(self, ref: PoolRef, pool: LabWorkerPool | None) -> None:
        """Take note of which workers fill a pool's seats, and have the sessions of those that changed looked at."""
        self._dirty.add(ref)
        filled = {(seat.worker_id, (ref, seat.number)) for seat in pool.status.seats} if pool else set()
        known = {(uid, spot) for uid, spot in self._pooled.items() if spot[0] == ref}
        for _, spot in sorted(filled ^ known, key=lambda one: (one[1][1], one[0])):
            self._poke_all(spot)
        self._changed()

    def _lay_pool(self, ref: PoolRef, now: datetime) -> None:
        """Make a pool's seats places, and take back those that are none any more."""
        row, terms = self._row(ref), self.terms()
        claimed = self._holdings.seats(ref)
        made = {n: self._open(one) for n, one in places_of(row, now, terms, claimed)} if row else {}
        boot = boot_of(row, terms)
        ids = {place.id for place in made.values()}
        for place_id in self._pools.get(ref, frozenset()) - ids:
            self._drop(place_id)
        # An index takes in fastest what sorts before all it has, and what holds nothing yet.
        for number, place in sorted(made.items(), key=lambda one: one[1].id, reverse=True):
            seat: Spot = ref, number
            self._put(place, ref.namespace, (place.id, seat) if place.id in self._workers else (seat,))
            self._boots[place.id] = boot
        self._fill()
        self._pools[ref] = frozenset(ids)
        self._mark_moving(ref, made.values())
        for uid in self._reseat(ref) - ids:
            self._lay_worker(uid, now)
        if self._cache.get(ref) is None:
            del self._pools[ref]

    def _shift(self, what: PoolRef | str, now: datetime) -> bool:
        """Have a pool's seats without a worker be opened from now on; False: more than that changes with time."""
        if isinstance(what, str):
            return False
        fleet = self.fleet(what.namespace)
        moving = [place for one in sorted(self._pools[what]) if (place := fleet[one]).usable_at is not None]
        if any(place.id in self._workers for place in moving):
            return False
        for place in moving:
            fleet.put(replace(place, usable_at=now + self._boots[place.id].lead))
        return True

    def _reseat(self, ref: PoolRef) -> set[str]:
        """Note which workers fill a pool's seats, known or not; gives those that do and those that did."""
        before = {uid for uid, (pool, _) in self._pooled.items() if pool == ref}
        for uid in before:
            del self._pooled[uid]
        pool = self._cache.get(ref)
        filling = {seat.worker_id: (ref, seat.number) for seat in pool.status.seats} if pool else {}
        self._pooled.update(filling)
        return before | filling.keys()

    def _row(self, ref: PoolRef) -> Row | None:
        pool = self._cache.get(ref)
        template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, ref.namespace)) if pool else None
        return row_of(pool, template, self._workers) if pool and template else None

    def _lay_worker(self, uid: str, now: datetime) -> None:
        """Make a worker outside of pools a place, also one whose seat does not count on it."""
        pooled, worker = self._pooled.get(uid), self._workers.get(uid)
        if pooled is not None and uid in self._pools.get(pooled[0], ()):
            return
        if worker is None:
            self._drop(uid)
            self._moving.discard(uid)
            return
        place = self._open(worker_place(worker, now, boot=self.terms().boot))
        self._put(place, worker.metadata.namespace, (uid,))
        self._fill()
        self._mark_moving(uid, [place])

    def _mark_moving(self, what: PoolRef | str, places: Iterable[Place]) -> None:
        if any(place.usable_at is not None for place in places):
            self._moving.add(what)
        else:
            self._moving.discard(what)

    def _open(self, place: Place) -> Place:
        barred = self._barred.get(place.id)
        return replace(place, closed=barred[1]) if barred else place

    def _put(self, place: Place, namespace: str, spots: tuple[Spot, ...]) -> None:
        fleet, known = self.fleet(namespace), place.id in self._spots_of
        if known and self._spots_of[place.id] != spots:
            self._drop(place.id)
            known = False
        if known and fleet[place.id] == place:
            return
        self._news = self._news or not known or replace(fleet[place.id], usable_at=place.usable_at) != place
        fleet.put(place)
        if known:
            return
        self._spots_of[place.id] = spots
        for spot in spots:
            self._place_at[spot] = fleet, place.id
        self._empty.append((fleet, place.id))

    def _fill(self) -> None:
        """Hold on new places what is held there."""
        for fleet, place_id in self._empty:
            held = {holder: one for spot in self._spots_of[place_id] for holder, one in self._holdings.at(spot).items()}
            for one in held.values():
                fleet.hold(place_id, one)
        self._empty.clear()

    def _drop(self, place_id: str) -> None:
        for spot in self._spots_of.pop(place_id, ()):
            fleet, at = self._place_at[spot]
            if at == place_id:
                fleet.drop(place_id)
                del self._place_at[spot]
                self._news = True

    def _sync(self, spot: Spot, holder: str) -> None:
        """Hold on a place what a holder has on any of its spots, or release it."""
        found = self._place_at.get(spot)
        if found is None:
            return
        fleet, place_id = found
        held = next((one for at in self._spots_of[place_id] if (one := self._holdings.at(at).get(holder))), None)
        if held is not None:
            fleet.hold(place_id, held)
        else:
            fleet.release(place_id, holder)


def _pool_of(session: LabletSession, seat: Seat) -> PoolRef:
    return Ref(LabWorkerPool, seat.pool, session.metadata.namespace)
