"""The calendar: who has which seat when, and who is on which worker, followed in process from the watch.

A booking reads nothing else, and the calendar is a moment behind the store. A caller that decides by it first reads
the guard, waits until the calendar knows the guard's revision, and commits at that revision: the commit fails if
anything was claimed since. Made once per process by `control.plane.local`; used by all of `control.booking` and by
`control.telemetry.idleness`.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Plane, R, Ref, ref_of
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Later
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, has_same_hold
from lcm.model.kinds.settings import SystemSettings, TrackBudget
from lcm.model.kinds.worker import AwsSpec, LabWorker
from lcm.model.money.licences import token_id
from lcm.model.money.prices import PriceBook
from lcm.placement.claims import Terms, boot_lead
from lcm.placement.hours import open_times_of
from lcm.placement.limits import PromiseRules, TrackLimit
from lcm.placement.places import (
    PoolSnapshot,
    SeatShapes,
    adjust_seats,
    claims_of_booking,
    foreign_seats,
    make_seats,
    seat_shapes,
    snapshot_pool,
    standing_seats,
    usable_seats,
)
from lcm.placement.preference import machine_usd
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats
from lcm.placement.timeline import Timeline
from lcm.placement.workers import KnownWorkers
from lcm.system.tasks import TimeSlice, run_until_first_ends

PoolRef = Ref[LabWorkerPool]
KINDS: Final = (
    LabletSession,
    Reservation,
    LabWorkerPool,
    WorkerTemplate,
    LabWorker,
    LabletDefinition,
    SystemSettings,
)
_MAKES_SEATS: Final = frozenset({LabWorkerPool, WorkerTemplate, SystemSettings})
"""Kinds of which a change may mean that the seats of pools must be made anew."""
CATCH_UP_TIMEOUT: Final = timedelta(seconds=10)
"""How long a request waits for the calendar to catch up."""


class Spending(NamedTuple):
    """What the workers of a pool, and all of its track, have cost this month; zero where there is no budget."""

    pool: Decimal = Decimal(0)
    track: Decimal = Decimal(0)


NOTHING_SPENT: Final = Spending()
_PoolClaims = dict[str, tuple[int, HeldClaim]]
_BookingClaims = dict[tuple[PoolRef, str], tuple[int, HeldClaim]]


@dataclass(slots=True, eq=False)
class _PoolSeats:
    """A pool's seats, what they were made of, and what is still to be filled in; None while their size is unknown."""

    made_of: object
    shapes: SeatShapes | None
    seats: Seats | None
    filling: Iterator[None]


def _fill(seats: Seats, claims: _PoolClaims) -> Iterator[None]:
    """Hold claims on seats, one at each step; what came or went meanwhile is there or gone already."""
    for holder in list(claims):
        number, held = claims.get(holder, (0, None))
        if held is not None and holder not in seats[number].held:
            seats.hold(number, held)
        yield


@dataclass(slots=True)
class _Lag:
    """The first revision that is waited for and not known yet, and since when, by the event loop's clock."""

    revision: int = 0
    since: float = 0.0


class Calendar:
    """The claims of every booking, by pool and by worker."""

    def __init__(
        self, plane: Plane, *, terms: Terms, licences: Mapping[str, int], prices: PriceBook, clock: Clock
    ) -> None:
        """Follow what `plane` reports. `terms` are the process's own, `licences` the licence seats of each token."""
        self.cache = Cache(plane, *KINDS)
        """What is known of the store, for others in this process as well."""
        self._terms = terms
        self._licences = licences
        self._prices = prices
        self._clock = clock
        self._claims: dict[PoolRef, _PoolClaims] = {}
        self._booking_claims: dict[Ref[Any], _BookingClaims] = {}
        self._sessions_by_worker: dict[str, dict[Ref[LabletSession], LabletSession]] = {}
        self._worker_by_session: dict[Ref[Any], str] = {}
        self._bookings_by_owner: dict[str, dict[Ref[Any], LabletSession | Reservation]] = {}
        self._owner_by_booking: dict[Ref[Any], str] = {}
        self._workers = KnownWorkers()
        self._worker_uids: dict[Ref[Any], str] = {}
        self._rows: dict[PoolRef, PoolSnapshot] = {}
        """Pools with what they are made of, until any of that changes."""
        self._seats: dict[PoolRef, _PoolSeats] = {}
        self._filled: dict[PoolRef, Sequence[str]] = {}
        """The workers that fill the seats of each pool."""
        self._seat_by_worker: dict[str, tuple[PoolRef, int]] = {}
        self._stale: set[PoolRef] = set()
        self._has_stale = asyncio.Event()
        self._planned: Mapping[Ref[Any], Resource] = {}
        self._lag = _Lag()
        self.changes = 0
        """How many changes were seen: while the number stays, everything here does."""
        self.cache.subscribe(self._apply_change)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        await run_until_first_ends(self.cache.run(), self._fill_seats())

    async def ready(self) -> None:
        """Wait until everything was read once; raise Later if that takes too long."""
        await _wait_briefly(self.cache.ready(), asyncio.get_running_loop().time())

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until every claim up to a revision is known; raise Later if that takes too long.

        Something must have been written at that revision.
        """
        if self.cache.has_reached(revision):
            return
        if self.cache.has_reached(self._lag.revision):
            self._lag.revision, self._lag.since = revision, asyncio.get_running_loop().time()
        await _wait_briefly(self.cache.wait_for_revision(revision), self._lag.since)

    @property
    def terms(self) -> Terms:
        """The terms under the current settings."""
        return self._terms.with_settings(next(iter(self.all(SystemSettings)), None))

    def with_planned(self, planned: Iterable[Resource]) -> "Calendar":
        """Return a copy in which some objects are as they are planned to be; the claims are shared with this one."""
        made = copy(self)
        made._planned = {**self._planned, **{ref_of(one): one for one in planned}}  # noqa: SLF001 - same class
        made._seats = {}  # noqa: SLF001 - same class; the cached seats are of other pools
        return made

    def get(self, ref: Ref[R]) -> R | None:
        """Look up an object by its name; None means there is none, as far as the calendar knows."""
        planned = self._planned.get(ref)
        return planned if isinstance(planned, ref.kind) else self.cache.get(ref)

    def all(self, kind: type[R]) -> Sequence[R]:
        """Return all objects of a kind."""
        planned = [one for one in self._planned.values() if isinstance(one, kind)]
        if not planned:
            return self.cache.all(kind)
        return [*planned, *(one for one in self.cache.all(kind) if ref_of(one) not in self._planned)]

    def worker(self, uid: str) -> LabWorker | None:
        """Look up a worker by its uid."""
        return self._workers.get(uid)

    def sessions_on(self, worker_id: str) -> Sequence[LabletSession]:
        """Return the sessions that are assigned to a worker and have not ended."""
        return list(self._sessions_by_worker[worker_id].values()) if worker_id in self._sessions_by_worker else []

    def bookings_of(self, owner: str) -> Sequence[LabletSession | Reservation]:
        """Return the bookings of an owner that have not ended, in all namespaces."""
        return list(self._bookings_by_owner[owner].values()) if owner in self._bookings_by_owner else []

    def pools(self, namespace: str | None = None, track: str | None = None) -> Sequence[PoolSnapshot]:
        """Return the pools that serve a track, in the order of their names; "" or None means every track."""
        pools = (
            pool
            for pool in self.all(LabWorkerPool)
            if namespace in (None, pool.metadata.namespace) and (not track or pool.spec.lab_track == track)
        )
        found = (
            self.pool(ref_of(pool))
            for pool in sorted(pools, key=lambda one: (one.metadata.namespace, one.metadata.name))
        )
        return [row for row in found if row is not None]

    def pool(self, ref: PoolRef) -> PoolSnapshot | None:
        """Return a pool with its template and its workers; None while pool or template is not known."""
        known = self._rows.get(ref) if not self._planned else None
        if known is not None:
            return known
        pool = self.get(ref)
        template = self.get(Ref(WorkerTemplate, pool.spec.template, ref.namespace)) if pool else None
        prices = self._prices.at(self._clock.now())
        row = snapshot_pool(pool, template, self._workers, prices) if pool and template else None
        if row is not None and not self._planned:
            self._rows[ref] = row
        return row

    def pool_seat_of(self, worker_id: str) -> tuple[LabWorkerPool, int] | None:
        """Return the pool and the number of the seat that a worker fills; None if it fills none."""
        ref, number = self._seat_by_worker.get(worker_id, (None, 0))
        pool = self.get(ref) if ref is not None else None
        return (pool, number) if pool is not None else None

    def claims(self, ref: PoolRef) -> Iterable[tuple[int, HeldClaim]]:
        """Return the claims on a pool's seats."""
        return self._claims[ref].values() if ref in self._claims else ()

    def claims_on_seat(self, ref: PoolRef, number: int) -> Iterable[HeldClaim]:
        """Return the claims on one seat of a pool."""
        known = self._seats.get(ref)
        if known is None or known.seats is None or number > len(known.seats):
            return (held for place, held in self.claims(ref) if place == number)
        for _ in known.filling:
            pass
        return known.seats[number].held.values()

    def seats(self, row: PoolSnapshot) -> Seats | None:
        """Return a pool's seats with their claims; None while the size of a seat is not known."""
        known = self._known_seats(row)
        for _ in known.filling:
            pass
        return known.seats

    async def _fill_seats(self) -> None:
        """Fill the seats of changed pools, in turns, so that whoever books there next need not wait for that."""
        await self.cache.ready()
        time_slice = TimeSlice()
        while True:
            self._has_stale.clear()
            while self._stale:
                row = self.pool(self._stale.pop())
                for _ in self._known_seats(row).filling if row else ():
                    await time_slice.yield_if_over()
            await self._has_stale.wait()

    def _mark_stale(self, seen: ObjectChange) -> None:
        if seen.ref.kind is LabWorkerPool:
            self._stale.add(seen.ref)
        else:  # a template or the settings: any pool may be made of them
            self._stale.update(self._filled)
        self._has_stale.set()

    def _known_seats(self, row: PoolSnapshot) -> "_PoolSeats":
        """Return a pool's seats, adjusted to what it is made of now; its claims may still have to be filled in."""
        ref, terms = ref_of(row.pool), self.terms
        known, made_of = self._seats.get(ref), _seat_inputs(row, terms)
        if known is not None and known.made_of == made_of:
            return known
        shapes = seat_shapes(row, terms)
        if known and known.seats and known.shapes and shapes and adjust_seats(known.seats, known.shapes, shapes):
            known.made_of, known.shapes = made_of, shapes
            return known
        claims = self._claims.get(ref, {})
        seats = make_seats(shapes, max((number for number, _ in claims.values()), default=0)) if shapes else None
        made = self._seats[ref] = _PoolSeats(made_of, shapes, seats, _fill(seats, claims) if seats else iter(()))
        return made

    def rules(self, row: PoolSnapshot, now: datetime, *, spent: Spending = NOTHING_SPENT) -> PromiseRules:
        """Return the rules by which a pool promises at a moment; `spent` is what was spent this month."""
        spec, token = row.pool.spec, token_id(row.template.spec.worker.cml.license_token)
        total = self._licences.get(token)
        licences, sharing = None, tuple[Timeline, ...]()
        if total is not None:
            others = [one for one in self._pools_with_token(token) if one.pool.metadata.uid != row.pool.metadata.uid]
            licences = total - self._count_unpooled(token) - sum(len(standing_seats(one)) for one in others)
            sharing = tuple(seats.opening for seats in map(self.seats, others) if seats is not None)
        return PromiseRules(
            now=now,
            policy=spec.policy,
            usable=usable_seats(row, now, self.terms),
            licences=licences,
            sharing=sharing,
            times=open_times_of(row.pool),
            budget=spec.budget,
            price=row.usd_hourly,
            saved=row.saved_hourly,
            spent=spent.pool,
            track=self._track_limit(row, now, spent.track),
            foreign=len(foreign_seats(row)),
        )

    def track_budget(self, row: PoolSnapshot) -> TrackBudget | None:
        """Return the budget of a pool's track; None if it has none."""
        settings, spec = next(iter(self.all(SystemSettings)), None), row.pool.spec
        budgets = settings.spec.budgets.tracks if settings else ()
        own = row.pool.metadata.namespace, spec.lab_track
        return next((one for one in budgets if (one.namespace, one.lab_track) == own), None)

    def _track_limit(self, row: PoolSnapshot, now: datetime, spent: Decimal) -> TrackLimit | None:
        budget = self.track_budget(row)
        if budget is None:
            return None
        pools = (one for one in self.pools(budget.namespace) if one.pool.spec.lab_track == budget.lab_track)
        others = ((self.seats(one), one) for one in pools if one.pool.metadata.uid != row.pool.metadata.uid)
        priced = tuple((seats, self._forecast_rules(one, now)) for seats, one in others if seats is not None)
        return TrackLimit(budget.lab_track, budget.monthly_usd, spent, priced)

    def _forecast_rules(self, row: PoolSnapshot, now: datetime) -> PromiseRules:
        times, foreign = open_times_of(row.pool), len(foreign_seats(row))
        return PromiseRules(now=now, times=times, price=row.usd_hourly, saved=row.saved_hourly, foreign=foreign)

    def counted_token(self, row: PoolSnapshot) -> str | None:
        """Return the token whose licences a pool shares with others; None if its licences are not counted."""
        token = token_id(row.template.spec.worker.cml.license_token)
        return token if token in self._licences else None

    def hourly_cost(self, row: PoolSnapshot) -> Decimal | None:
        """Return what a worker of a pool costs an hour with its disk, as it is billed; None if it is not known."""
        return self.hourly_cost_of(row.template.spec.worker.aws, row.template.spec.price_per_hour_usd)

    def hourly_cost_of(self, aws: AwsSpec, otherwise: Decimal | None = None) -> Decimal | None:
        """Return what a machine costs an hour with its disk; `otherwise` is its price if the price book has none."""
        prices = self._prices.at(self._clock.now())
        machine = machine_usd(aws, prices)
        machine = otherwise if machine is None else machine
        return None if machine is None else machine + (prices.disk_hourly(aws.root_volume, aws.region) or 0)

    def _pools_with_token(self, token: str) -> Iterator[PoolSnapshot]:
        return (row for row in self.pools() if token_id(row.template.spec.worker.cml.license_token) == token)

    def _count_unpooled(self, token: str) -> int:
        """Count the workers with a licence of a token, now or later, that fill no seat counted for that token."""
        pooled = {seat.worker_id for row in self._pools_with_token(token) for seat in row.pool.status.seats}
        return sum(
            uid not in pooled
            and worker.spec.wanted_state == "running"
            and token_id(worker.spec.cml.license_token) == token
            for uid, worker in self._workers.items()
        )

    def _apply_change(self, seen: ObjectChange) -> None:
        resource = seen.resource
        self.changes += 1
        if seen.ref.kind in {LabletSession, Reservation}:
            self._apply_owner(seen.ref, resource)
            if not has_same_hold(seen.before, resource):
                self._apply_booking(seen.ref, resource)
        if seen.ref.kind is LabletSession:
            self._apply_session(seen.ref, resource if isinstance(resource, LabletSession) else None)
        if seen.ref.kind is LabWorkerPool:
            self._apply_pool(seen.ref, resource if isinstance(resource, LabWorkerPool) else None)
        if seen.ref.kind is WorkerTemplate:
            self._rows.clear()
        if seen.ref.kind in _MAKES_SEATS:
            self._mark_stale(seen)
        if seen.ref.kind is LabWorker:
            self._apply_worker(seen.ref, resource if isinstance(resource, LabWorker) else None)

    def _apply_pool(self, ref: PoolRef, pool: LabWorkerPool | None) -> None:
        self._rows.pop(ref, None)
        for worker_id in self._filled.pop(ref, ()):
            if self._seat_by_worker.get(worker_id, (None, 0))[0] == ref:
                del self._seat_by_worker[worker_id]
        if pool is not None:
            self._filled[ref] = [seat.worker_id for seat in pool.status.seats]
            self._seat_by_worker |= {seat.worker_id: (ref, seat.number) for seat in pool.status.seats}

    def _apply_booking(self, ref: Ref[Any], resource: Resource | None) -> None:
        """Hold the claims of a booking. Those it already had stay untouched: a reservation may have hundreds."""
        before, after = self._booking_claims.pop(ref, {}), _claims_of(ref, resource)
        for pool, holder in before.keys() - after.keys():
            self._release(pool, holder)
        for place, (number, held) in after.items():
            if before.get(place) != (number, held):
                self._release(*place)
                self._hold(place[0], number, held)
        if after:
            self._booking_claims[ref] = after

    def _apply_owner(self, ref: Ref[Any], resource: Resource | None) -> None:
        booking = resource if isinstance(resource, LabletSession | Reservation) and not _has_ended(resource) else None
        before, owner = self._owner_by_booking.get(ref), booking.spec.owner if booking else None
        if before is not None and before != owner:
            del self._bookings_by_owner[before][ref], self._owner_by_booking[ref]
            if not self._bookings_by_owner[before]:
                del self._bookings_by_owner[before]
        if booking is not None and owner is not None:
            self._bookings_by_owner.setdefault(owner, {})[ref] = booking
            self._owner_by_booking[ref] = owner

    def _hold(self, pool: PoolRef, number: int, held: HeldClaim) -> None:
        self._claims.setdefault(pool, {})[held.holder] = number, held
        known = self._seats.get(pool)
        if known is not None and known.seats is not None and number <= len(known.seats):
            known.seats.hold(number, held)
        else:
            self._seats.pop(pool, None)

    def _release(self, pool: PoolRef, holder: str) -> None:
        claims = self._claims.get(pool, {})
        found = claims.pop(holder, None)
        if not claims:
            self._claims.pop(pool, None)
        known = self._seats.get(pool)
        if found is not None and known is not None and known.seats is not None:
            known.seats.release(found[0], holder)

    def _apply_session(self, ref: Ref[Any], session: LabletSession | None) -> None:
        worker_id = session.status.worker_id if session and session.status.phase not in SESSION_MACHINE.final else None
        before = self._worker_by_session.get(ref)
        if before is not None and before != worker_id:
            del self._sessions_by_worker[before][ref], self._worker_by_session[ref]
            if not self._sessions_by_worker[before]:
                del self._sessions_by_worker[before]
        if session is not None and worker_id is not None:
            self._sessions_by_worker.setdefault(worker_id, {})[ref] = session
            self._worker_by_session[ref] = worker_id

    def _apply_worker(self, ref: Ref[Any], worker: LabWorker | None) -> None:
        before, now = self._worker_uids.pop(ref, None), worker.metadata.uid if worker else None
        if before is not None and before != now:
            self._workers.remove(before)
            self._rows.clear()  # other pools may go by what it told of its image
        if worker is not None and now is not None:
            if self._workers.put(worker):
                self._rows.clear()
            elif now in self._seat_by_worker:
                self._rows.pop(self._seat_by_worker[now][0], None)
            self._worker_uids[ref] = now


def _claims_of(ref: Ref[Any], resource: Resource | None) -> _BookingClaims:
    if not isinstance(resource, LabletSession | Reservation):
        return {}
    return {
        (Ref(LabWorkerPool, pool, ref.namespace), held.holder): (number, held)
        for pool, number, held in claims_of_booking(resource)
    }


def _has_ended(booking: LabletSession | Reservation) -> bool:
    machine = SESSION_MACHINE if isinstance(booking, LabletSession) else RESERVATION_MACHINE
    return booking.status.phase in machine.final


async def _wait_briefly(known: Awaitable[None], since: float) -> None:
    """Wait until a limited time after `since`; raise Later when it has passed.

    A waiting booking holds up the others of its pool, and any caller can ask again.
    """
    try:
        async with asyncio.timeout_at(since + CATCH_UP_TIMEOUT.total_seconds()):
            await known
    except TimeoutError as error:
        raise Later("the calendar is not up to date yet: try again", after=CATCH_UP_TIMEOUT) from error


def _seat_inputs(row: PoolSnapshot, terms: Terms) -> object:
    """Return everything that a pool's seats are computed from, besides its claims."""
    workers = tuple(
        (number, one.status.phase, one.status.capacity, one.status.foreign) for number, one in row.workers.items()
    )
    pool = row.pool
    stand = standing_seats(row)
    spec, small = row.template.spec.worker, pool.status.small_runs
    return stand, pool.spec.max_workers, boot_lead(pool, terms), spec, small, workers
