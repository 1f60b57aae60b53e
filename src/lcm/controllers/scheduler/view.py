"""The scheduler's view of the fleet: all places with their claims, and all sessions, kept up to date from the cache.

The view is only used for proposals: what it does not know yet, the plane does.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Ref, SessionRef, ref_of
from lcm.controllers.scheduler.fleet_places import FleetPlaces
from lcm.controllers.scheduler.index import (
    ClaimIndex,
    PoolRef,
    SeatKey,
    SessionIndex,
    Spot,
    is_same_to_scheduler,
    sessions_in,
)
from lcm.controllers.scheduler.places import BootTime, SessionDurations, boot_time_of
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, Seat, get_claim
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook, declared_capacity
from lcm.placement.claims import Terms
from lcm.placement.fleet import PlaceIndex
from lcm.placement.limits import LIMITS
from lcm.placement.places import is_accepting
from lcm.placement.request import Place
from lcm.placement.rules import is_static
from lcm.placement.workers import KnownWorkers

_OVERDUE_INTERVAL: Final = timedelta(seconds=1)
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
        prices: PriceBook = SHIPPED_PRICES,
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
        self._workers = KnownWorkers()
        self._places = FleetPlaces(cache, self._claims, self._workers, prices)
        self.undersized: dict[str, None] = {}
        """The uids of workers that hold less than their spec declares, or whose declared capacity is not known."""
        self._uids: dict[Ref[Any], str] = {}
        self._overdue_at: datetime | None = None
        self._refusals: dict[object, dict[str, _Refusal]] = {}
        self._turned_away: dict[object, datetime] = {}
        """Until when a wish stands behind the others: its pool's limits refused it, but may admit others."""
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
        prices: PriceBook = SHIPPED_PRICES,
    ) -> Self:
        """Follow a cache that is ready, until `stop` is called; `changed` is called whenever something changed."""
        made = cls(cache, terms=terms, now=now, changed=changed, prices=prices)
        kinds = (LabWorker, LabWorkerPool, Reservation, LabletSession)
        made.stop = await cache.replay(made._on_change, kinds)
        return made

    def subscribe(self, poke: Callable[[SessionRef], object]) -> None:
        """Call `poke` from now on with each session whose worker, or whose seat's worker, changed."""
        self._requeue = poke

    def fleet(self, namespace: str) -> PlaceIndex:
        """Return the places of a namespace."""
        return self._places.fleet(namespace)

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
        return self._places.place_at(spot, self._now())

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
        return self._places.seat_by_worker(uid) is not None

    def sessions_on(self, uid: str) -> Sequence[LabletSession]:
        """Return the sessions that were assigned to a worker."""
        return [one for one in map(self._cache.get, sessions_in(self._claims.claims_at(uid))) if one is not None]

    def claim_of(self, holder: str) -> Claim | None:
        """Return the claim recorded for a session, given its holder name; a prebuilt lab keeps nothing for itself."""
        session = next(map(self._cache.get, sessions_in([holder])), None)
        claim = get_claim(session) if session else None
        return replace(claim, end=claim.start) if session and claim and session.spec.prebuilt else claim

    def seat_of(self, place_id: str) -> Seat | None:
        """Return the seat of a place; None for a worker outside of pools."""
        return self._places.seat_of(place_id)

    def boot_time(self, place_id: str) -> BootTime:
        """Return how long a place's machine takes to boot."""
        return self._places.boot_time(place_id) or boot_time_of(None, self.terms())

    def refuse(self, wish: object, place_id: str, until: datetime, error: NoRoom) -> None:
        """Note until a moment that the plane refused a place to whoever wishes the same. Others may get it.

        What a pool's limits or its template refuse, they refuse on all its unused seats. A seat with a claim gets its
        worker anyway: it is not excluded with its pool.
        """
        whole_pool = error.why in LIMITS or is_static(error.why)
        others = self._places.unclaimed_seats(place_id) if whole_pool else ()
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
        if self._overdue_at is None or now - self._overdue_at >= _OVERDUE_INTERVAL:
            self._overdue_at = now
            for ref in self._claims.find_overdue(now):
                self._update_claims(ref, self._cache.get(ref))
        await self._places.refresh(now, self.terms())
        news = self._has_news or self._places.has_news
        self._has_news = self._places.has_news = False
        return news

    async def shift_openings(self, now: datetime) -> None:
        """Move the time from which seats without a worker can be used, before places are sought."""
        await self._places.shift_openings(now)

    def longest_lead(self) -> timedelta:
        """Return the longest time before a claim that a machine of any pool is started."""
        return max((one.lead for one in self._places.boot_times()), default=timedelta(0))

    def take_touched_seats(self) -> Collection[SeatKey]:
        """Return the seats of which something changed since they were last taken."""
        touched, self._places.touched = self._places.touched, set()
        return touched

    def _on_change(self, seen: ObjectChange) -> None:
        resource = seen.resource
        if is_same_to_scheduler(seen.before, resource):
            return
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
            self._update_worker(seen)
        elif seen.ref.kind is LabWorkerPool:
            pool = resource if isinstance(resource, LabWorkerPool) else None
            for seat in self._places.update_pool(seen.ref, pool):
                self._requeue_sessions(seat)
            self._notify()
        elif seen.ref.kind in {WorkerTemplate, SystemSettings}:
            self._places.update_all()
            self._signal_news()
        else:
            self._signal_news()

    def _signal_news(self) -> None:
        self._has_news = True
        self._notify()

    def _update_claims(self, ref: Ref[Any], booking: LabletSession | Reservation | None) -> None:
        for spot, holder in self._claims.update(ref, booking):
            self._places.update_claim(spot, holder)
            self._signal_news()

    def _update_worker(self, seen: ObjectChange) -> None:
        ref, worker = seen.ref, seen.resource if isinstance(seen.resource, LabWorker) else None
        uid = worker.metadata.uid if worker else None
        before = self._uids.pop(ref, None)
        if before is not None and before != uid:
            self._workers.remove(before)
            self.undersized.pop(before, None)
            self._requeue_sessions(*self._places.update_worker(before))
        if worker is not None and uid is not None:
            told = worker if self._workers.put(worker) else None
            has, said = worker.status.capacity, declared_capacity(worker.spec)
            if has is None or (said is not None and said.within(has)):
                self.undersized.pop(uid, None)
            else:
                self.undersized[uid] = None
            self._uids[ref] = uid
            spots = self._places.update_worker(uid, told=told)
            if not _serves_alike(seen.before, worker):
                self._requeue_sessions(*spots)
        self._notify()

    def _requeue_sessions(self, *spots: Spot) -> None:
        """Requeue the sessions of seats and workers; a seat's worker does not matter before a session's time."""
        now = self._now()
        for spot in spots:
            here, is_worker = self._claims.claims_at(spot), isinstance(spot, str)
            for ref in sessions_in([one for one, held in here.items() if is_worker or held.claim.start <= now]):
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


def _serves_alike(before: Resource | None, after: LabWorker) -> bool:
    """Return whether a worker did not change in what decides whether sessions are bound to it, or sent back."""
    if not isinstance(before, LabWorker) or before.metadata.uid != after.metadata.uid:
        return False
    return before.status.phase is after.status.phase and (
        is_accepting(before),
        before.metadata.deletion_timestamp,
        before.spec.wanted_state,
    ) == (is_accepting(after), after.metadata.deletion_timestamp, after.spec.wanted_state)


def _pool_of(session: LabletSession, seat: Seat) -> PoolRef:
    return Ref(LabWorkerPool, seat.pool, session.metadata.namespace)
