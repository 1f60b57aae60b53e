"""The scheduler's view of the fleet: all places with their claims, kept up to date from the cache.

A seat whose worker serves or boots is that worker's place, with all claims on the seat. A seat without a worker is a
place that can be used one boot lead from now, if its pool opens seats. Every other worker is a place of its own. The
view is only used for proposals: what it does not know yet, the plane does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Ref, SessionRef, ref_of
from lcm.controllers.scheduler.index import ClaimIndex, PoolRef, SessionIndex, Spot, sessions_in
from lcm.controllers.scheduler.places import BootTime, SessionDurations, boot_time_of, places_of
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, Seat, get_claim
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms
from lcm.placement.fleet import PlaceIndex
from lcm.placement.limits import LIMITS
from lcm.placement.places import PoolSnapshot, snapshot_pool, worker_place
from lcm.placement.request import Place
from lcm.placement.rules import is_static
from lcm.placement.workers import KnownWorkers
from lcm.system.tasks import TimeSlice

_RETIME_INTERVAL: Final = timedelta(seconds=1)
_STANDS_BEHIND: Final = timedelta(minutes=1)


class _Refusal(NamedTuple):
    """What the plane said when it refused a place, and until when that counts."""

    until: datetime
    why: str
    reason: str


class SchedulerView:
    """Places by namespace: a session can only go to a place in its own namespace."""

    def __init__(
        self,
        cache: Cache,
        *,
        terms: Callable[[], Terms],
        now: Callable[[], datetime],
        changed: Callable[[], object],
    ) -> None:
        """See `follow`."""
        self._cache = cache
        self.terms = terms
        self._now = now
        self._notify = changed
        self._requeue: Callable[[SessionRef], object] = lambda _: None
        self.durations = SessionDurations()
        self.session_index = SessionIndex()
        self._claims = ClaimIndex(lambda session, claim: self.durations.likely_claim(session, claim, now(), terms()))
        self._fleets: dict[str, PlaceIndex] = {}
        self._workers = KnownWorkers()
        self.undersized: dict[str, None] = {}
        """The uids of workers that hold less than their spec declares, or whose declared capacity is not known."""
        self._uids: dict[Ref[Any], str] = {}
        self._place_at: dict[Spot, tuple[PlaceIndex, str]] = {}
        self._spots_of: dict[str, tuple[Spot, ...]] = {}
        self._boot_times: dict[str, BootTime] = {}
        self._pool_places: dict[PoolRef, frozenset[str]] = {}
        self._seat_by_worker: dict[str, tuple[PoolRef, int]] = {}
        self._dirty: set[PoolRef | str] = set()
        self._time_dependent: set[PoolRef | str] = set()
        self._retimed_at: datetime | None = None
        self._refusals: dict[object, dict[str, _Refusal]] = {}
        self._turned_away: dict[object, datetime] = {}
        """Until when a wish stands behind the others: its pool's limits refused it, but may admit others."""
        self._unfilled_places: list[tuple[PlaceIndex, str]] = []
        self._has_news = True
        self.stop: Callable[[], None] = lambda: None

    @classmethod
    async def follow(
        cls,
        cache: Cache,
        *,
        terms: Callable[[], Terms],
        now: Callable[[], datetime],
        changed: Callable[[], object],
    ) -> Self:
        """Follow a cache that is ready, until `stop` is called; `changed` is called whenever something changed."""
        made = cls(cache, terms=terms, now=now, changed=changed)
        kinds = (LabWorker, LabWorkerPool, Reservation, LabletSession)
        made.stop = await cache.replay(made._on_change, kinds)
        return made

    def subscribe(self, poke: Callable[[SessionRef], object]) -> None:
        """Call `poke` from now on with each session whose worker, or whose seat's worker, changed."""
        self._requeue = poke

    def fleet(self, namespace: str) -> PlaceIndex:
        """Return the places of a namespace."""
        found = self._fleets.get(namespace)
        if found is None:
            found = self._fleets[namespace] = PlaceIndex()
        return found

    def worker(self, uid: str | None) -> LabWorker | None:
        """Return the worker with a uid, or None."""
        return self._workers.get(uid) if uid else None

    def seat_worker(self, session: LabletSession) -> LabWorker | None:
        """Return the worker that fills a session's seat, in whatever phase it is."""
        seat = session.status.seat
        pool = self._cache.get(_pool_of(session, seat)) if seat else None
        filled = pool.status.seats if pool else ()
        return next((self.worker(one.worker_id) for one in filled if seat and one.number == seat.number), None)

    def place_of(self, session: LabletSession) -> Place | None:
        """Return the place of a session's seat; None if it has no seat, or the seat is no place any more."""
        seat = session.status.seat
        return self.place_at((_pool_of(session, seat), seat.number)) if seat else None

    def place_at(self, spot: Spot) -> Place | None:
        """Return the place of a seat or worker; None if it is no place any more."""
        found = self._place_at.get(spot)
        return found[0][found[1]] if found else None

    def licence_tokens(self) -> Iterator[tuple[PoolRef, str | None]]:
        """Yield for each pool where the licence token of its workers is kept."""
        for pool in self._cache.all(LabWorkerPool):
            template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, pool.metadata.namespace))
            if template is not None:
                yield ref_of(pool), template.spec.worker.cml.license_token

    def claims_on(self, pool: PoolRef) -> Sequence[Sequence[Claim]]:
        """Return the claims on each seat of a pool that has any."""
        return [
            [one.claim for one in self._claims.claims_at((pool, n)).values()] for n in self._claims.claimed_seats(pool)
        ]

    def is_pooled(self, uid: str) -> bool:
        """Return whether a worker fills a seat."""
        return uid in self._seat_by_worker

    def sessions_on(self, uid: str) -> Sequence[LabletSession]:
        """Return the sessions that were assigned to a worker."""
        return [one for one in map(self._cache.get, sessions_in(self._claims.claims_at(uid))) if one is not None]

    def claim_of(self, holder: str) -> Claim | None:
        """Return the claim recorded for a session, given its holder name."""
        session = next(map(self._cache.get, sessions_in([holder])), None)
        return get_claim(session) if session else None

    def seat_of(self, place_id: str) -> Seat | None:
        """Return the seat of a place; None for a worker outside of pools."""
        spot = next((one for one in self._spots_of.get(place_id, ()) if not isinstance(one, str)), None)
        return Seat(pool=spot[0].name, number=spot[1]) if spot else None

    def boot_time(self, place_id: str) -> BootTime:
        """Return how long a place's machine takes to boot."""
        return self._boot_times.get(place_id) or boot_time_of(None, self.terms())

    def refuse(self, wish: object, place_id: str, until: datetime, error: NoRoom) -> None:
        """Note until a moment that the plane refused a place to whoever wishes the same. Others may get it.

        What a pool's limits or its template refuse, they refuse on all its unused seats. A seat with a claim gets its
        worker anyway: it is not excluded with its pool.
        """
        whole_pool = error.why in LIMITS or is_static(error.why)
        pools = {spot[0] for spot in self._spots_of.get(place_id, ()) if not isinstance(spot, str)}
        seats = [one for ref in pools if whole_pool for one in self._pool_places[ref] if one not in self._workers]
        others = [one for one in seats if not any(map(self._claims.claims_at, self._spots_of[one]))]
        refusal = _Refusal(until, error.why, str(error))
        self._refusals.setdefault(wish, {}).update(dict.fromkeys((place_id, *others), refusal))
        if error.why in LIMITS:
            # Longer than the places are excluded: a shorter session may be admitted first.
            self._turned_away[wish] = until + _STANDS_BEHIND
        self._signal_news()

    def refusals(self, wish: object) -> Mapping[str, tuple[str, str]]:
        """Return the places that are refused to a wish for now, each with the filter and the reason."""
        return {place_id: (one.why, one.reason) for place_id, one in self._refusals.get(wish, {}).items()}

    def is_refused(self, wish: object, place_id: str) -> bool:
        """Return whether a place is refused to a wish for now."""
        return place_id in self._refusals.get(wish, {})

    def is_turned_away(self, wish: object) -> bool:
        """Return whether a wish stands behind the others for now."""
        return wish in self._turned_away

    async def refresh(self, now: datetime) -> bool:
        """Update all places to the present moment. Return whether anything changed that matters to waiting sessions.

        Others have their turn in between; what changes meanwhile is news for the next time.
        """
        self._forget_refusals(now)
        if self._retimed_at is None or now - self._retimed_at >= _RETIME_INTERVAL:
            self._retimed_at = now
            moving = sorted(self._time_dependent - self._dirty, key=str)
            self._dirty.update(one for one in moving if not self._shift_opening(one, now))
            for ref in self._claims.find_overdue(now):
                self._update_claims(ref, self._cache.get(ref))
        for fleet in self._fleets.values():
            fleet.advance(now)
        pools = sorted((one for one in self._dirty if not isinstance(one, str)), key=str)
        workers = sorted(one for one in self._dirty if isinstance(one, str))
        self._dirty.clear()
        time_slice = TimeSlice()
        for pool in pools:
            self._rebuild_pool(pool, now)
            await time_slice.yield_if_over()
        for uid in workers:
            self._rebuild_worker(uid, now)
            await time_slice.yield_if_over()
        await self._hold_claims()
        news, self._has_news = self._has_news, False
        return news

    def _on_change(self, seen: ObjectChange) -> None:
        resource = seen.resource
        if seen.ref.kind is LabletSession:
            session = resource if isinstance(resource, LabletSession) else None
            if session is not None:
                self.durations.learn(session)
            else:
                self.durations.forget(seen.ref)
            if self.session_index.update(seen.ref, session):
                self._signal_news()
        if seen.ref.kind in {LabletSession, Reservation}:
            self._update_claims(seen.ref, resource if isinstance(resource, LabletSession | Reservation) else None)
        elif seen.ref.kind is LabWorker:
            self._update_worker(seen.ref, resource if isinstance(resource, LabWorker) else None)
        elif seen.ref.kind is LabWorkerPool:
            self._update_pool(seen.ref, resource if isinstance(resource, LabWorkerPool) else None)
        elif seen.ref.kind in {WorkerTemplate, SystemSettings}:
            self._dirty.update(self._pool_places)
            self._dirty.update(self._workers.uids() - self._seat_by_worker.keys())
            self._signal_news()
        else:
            self._signal_news()

    def _signal_news(self) -> None:
        self._has_news = True
        self._notify()

    def _update_claims(self, ref: Ref[Any], booking: LabletSession | Reservation | None) -> None:
        for spot, holder in self._claims.update(ref, booking):
            self._sync_claim(spot, holder)
            if not isinstance(spot, str) and bool(self._claims.claims_at(spot)) != (spot in self._place_at):
                self._dirty.add(spot[0])
            self._signal_news()

    def _update_worker(self, ref: Ref[Any], worker: LabWorker | None) -> None:
        uid = worker.metadata.uid if worker else None
        before = self._uids.pop(ref, None)
        if before is not None and before != uid:
            self._workers.remove(before)
            self.undersized.pop(before, None)
            self._mark_worker_dirty(before)
        if worker is not None and uid is not None:
            self._workers.put(worker)
            has, said = worker.status.capacity, declared_capacity(worker.spec)
            if has is None or (said is not None and said.within(has)):
                self.undersized.pop(uid, None)
            else:
                self.undersized[uid] = None
            self._uids[ref] = uid
            self._mark_worker_dirty(uid)
        self._notify()

    def _mark_worker_dirty(self, uid: str) -> None:
        spots: list[Spot] = [uid]
        if uid in self._seat_by_worker:
            self._dirty.add(self._seat_by_worker[uid][0])
            spots.append(self._seat_by_worker[uid])
        self._dirty.add(uid)
        for spot in spots:
            self._requeue_sessions(spot)

    def _requeue_sessions(self, spot: Spot) -> None:
        """Requeue the sessions of a seat or worker; a seat's worker does not matter before a session's time."""
        now = self._now()
        here = self._claims.claims_at(spot)
        for ref in sessions_in([one for one, held in here.items() if isinstance(spot, str) or held.claim.start <= now]):
            self._requeue(ref)

    def _forget_refusals(self, now: datetime) -> None:
        """Forget the refusals that are over: those places may be asked again."""
        self._turned_away = {wish: until for wish, until in self._turned_away.items() if until > now}
        for wish, refused in list(self._refusals.items()):
            kept = {place_id: one for place_id, one in refused.items() if one.until > now}
            self._has_news = self._has_news or len(kept) < len(refused)
            self._refusals[wish] = kept
            if not kept:
                del self._refusals[wish]

    def _update_pool(self, ref: PoolRef, pool: LabWorkerPool | None) -> None:
        """Note that a pool changed, and requeue the sessions of seats whose worker changed."""
        self._dirty.add(ref)
        filled = {(seat.worker_id, (ref, seat.number)) for seat in pool.status.seats} if pool else set()
        known = {(uid, spot) for uid, spot in self._seat_by_worker.items() if spot[0] == ref}
        for _, spot in sorted(filled ^ known, key=lambda one: (one[1][1], one[0])):
            self._requeue_sessions(spot)
        self._notify()

    def _rebuild_pool(self, ref: PoolRef, now: datetime) -> None:
        """Rebuild the places of a pool's seats, and drop those that are no places any more."""
        row, terms = self._row(ref), self.terms()
        claimed = self._claims.claimed_seats(ref)
        made = dict(places_of(row, now, terms, claimed)) if row else {}
        boot = boot_time_of(row, terms)
        ids = {place.id for place in made.values()}
        for place_id in self._pool_places.get(ref, frozenset()) - ids:
            self._drop_place(place_id)
        # Searching is fastest if places came in the order of their ids.
        for number, place in sorted(made.items(), key=lambda one: one[1].id):
            seat: Spot = ref, number
            self._put_place(place, ref.namespace, (place.id, seat) if place.id in self._workers else (seat,))
            self._boot_times[place.id] = boot
        self._pool_places[ref] = frozenset(ids)
        self._mark_time_dependent(ref, made.values())
        for uid in self._index_seats(ref) - ids:
            self._rebuild_worker(uid, now)
        if self._cache.get(ref) is None:
            del self._pool_places[ref]

    def _shift_opening(self, what: PoolRef | str, now: datetime) -> bool:
        """Move the time from which seats without a worker can be used. False: more than that depends on time."""
        if isinstance(what, str):
            return False
        fleet = self.fleet(what.namespace)
        moving = [place for one in sorted(self._pool_places[what]) if (place := fleet[one]).usable_at is not None]
        if any(place.id in self._workers for place in moving):
            return False
        for place in moving:
            fleet.put(replace(place, usable_at=now + self._boot_times[place.id].lead))
        return True

    def _index_seats(self, ref: PoolRef) -> set[str]:
        """Record which workers fill a pool's seats. Return those that do and those that did."""
        before = {uid for uid, (pool, _) in self._seat_by_worker.items() if pool == ref}
        for uid in before:
            del self._seat_by_worker[uid]
        pool = self._cache.get(ref)
        filling = {seat.worker_id: (ref, seat.number) for seat in pool.status.seats} if pool else {}
        self._seat_by_worker.update(filling)
        return before | filling.keys()

    def _row(self, ref: PoolRef) -> PoolSnapshot | None:
        pool = self._cache.get(ref)
        template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, ref.namespace)) if pool else None
        return snapshot_pool(pool, template, self._workers) if pool and template else None

    def _rebuild_worker(self, uid: str, now: datetime) -> None:
        """Make a place of a worker outside of pools, or of one whose seat does not use it."""
        pooled, worker = self._seat_by_worker.get(uid), self._workers.get(uid)
        if pooled is not None and uid in self._pool_places.get(pooled[0], ()):
            return
        if worker is None:
            self._drop_place(uid)
            self._time_dependent.discard(uid)
            return
        place = worker_place(worker, now, boot=self.terms().boot)
        self._put_place(place, worker.metadata.namespace, (uid,))
        self._mark_time_dependent(uid, [place])

    def _mark_time_dependent(self, what: PoolRef | str, places: Iterable[Place]) -> None:
        if any(place.usable_at is not None for place in places):
            self._time_dependent.add(what)
        else:
            self._time_dependent.discard(what)

    def _put_place(self, place: Place, namespace: str, spots: tuple[Spot, ...]) -> None:
        fleet, known = self.fleet(namespace), place.id in self._spots_of
        if known and self._spots_of[place.id] != spots:
            self._drop_place(place.id)
            known = False
        if known and fleet[place.id] == place:
            return
        self._has_news = self._has_news or not known or replace(fleet[place.id], usable_at=place.usable_at) != place
        fleet.put(place)
        if known:
            return
        self._spots_of[place.id] = spots
        for spot in spots:
            self._place_at[spot] = fleet, place.id
        self._unfilled_places.append((fleet, place.id))

    async def _hold_claims(self) -> None:
        """Hold on new places the claims that are recorded there."""
        time_slice = TimeSlice()
        while self._unfilled_places:
            fleet, place_id = self._unfilled_places.pop()
            spots = self._spots_of.get(place_id, ())
            held = {holder: one for spot in spots for holder, one in self._claims.claims_at(spot).items()}
            if place_id in fleet:  # it may have been dropped since
                for one in held.values():
                    fleet.hold(place_id, one)
            await time_slice.yield_if_over()

    def _drop_place(self, place_id: str) -> None:
        for spot in self._spots_of.pop(place_id, ()):
            fleet, at = self._place_at[spot]
            if at == place_id:
                fleet.drop(place_id)
                del self._place_at[spot]
                self._has_news = True

    def _sync_claim(self, spot: Spot, holder: str) -> None:
        """Hold the claim that a holder has on any spot of a place, or release it."""
        found = self._place_at.get(spot)
        if found is None:
            return
        fleet, place_id = found
        held = next((one for at in self._spots_of[place_id] if (one := self._claims.claims_at(at).get(holder))), None)
        if held is not None:
            fleet.hold(place_id, held)
        else:
            fleet.release(place_id, holder)


def _pool_of(session: LabletSession, seat: Seat) -> PoolRef:
    return Ref(LabWorkerPool, seat.pool, session.metadata.namespace)
