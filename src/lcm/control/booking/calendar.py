"""Who has which seat when, and who is on which worker: followed in process, so that a booking reads nothing else.

It is behind the store by a moment. Whoever decides by it reads the guard of what it decides about first, waits until
the calendar knows the guard's revision, and commits at that revision: had anybody claimed anything since, it fails.
Made once a process by `local`; `desk`, `scheduling`, `preview` and `idleness` ask it.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, R, Ref, Seen, ref_of
from lcm.model.base.errors import Later
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION, LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.licences import token_id
from lcm.model.money.prices import PriceBook
from lcm.placement.claims import Terms
from lcm.placement.limits import Rules
from lcm.placement.places import Row, held_by, row_of, seats_of, standing_seats, usable_seats
from lcm.placement.request import Held
from lcm.placement.seats import Seats
from lcm.placement.timeline import Timeline

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
PATIENCE: Final = timedelta(seconds=10)
"""How long a request waits for the calendar to catch up."""
_Claims = dict[str, tuple[int, Held]]
_Placed = dict[tuple[PoolRef, str], tuple[int, Held]]


@dataclass(slots=True)
class _Lag:
    """A revision that was waited for first of those not known yet, and since when by the loop's clock."""

    revision: int = 0
    since: float = 0.0


class Calendar:
    """The claims of every booking, by pool and by worker."""

    def __init__(self, plane: Plane, *, terms: Terms, licences: Mapping[str, int], prices: PriceBook) -> None:
        """Follow what `plane` sees; `terms` are the process's, `licences` the seats that each token has."""
        self._cache = Cache(plane, *KINDS)
        self._terms = terms
        self._licences = licences
        self._prices = prices
        self._claims: dict[PoolRef, _Claims] = {}
        self._placed: dict[Ref[Any], _Placed] = {}
        self._on: dict[str, dict[Ref[LabletSession], LabletSession]] = {}
        self._worker_of: dict[Ref[Any], str] = {}
        self._workers: dict[str, LabWorker] = {}
        self._seats: dict[PoolRef, tuple[object, Seats | None]] = {}
        self._planned: Mapping[Ref[Any], Resource] = {}
        self._lag = _Lag()
        self._cache.subscribe(self._note)

    async def run(self) -> None:
        """Follow, until cancelled."""
        await self._cache.run()

    async def ready(self) -> None:
        """Wait until everything was read once; Later if that takes too long."""
        await _soon(self._cache.ready(), asyncio.get_running_loop().time())

    async def until(self, revision: int) -> None:
        """Wait until what was claimed up to a revision, at which something was, is known; Later if it is not soon."""
        if self._cache.knows(revision):
            return
        if self._cache.knows(self._lag.revision):
            self._lag.revision, self._lag.since = revision, asyncio.get_running_loop().time()
        await _soon(self._cache.until(revision), self._lag.since)

    @property
    def terms(self) -> Terms:
        """What the settings say now."""
        return self._terms.under(next(iter(self.all(SystemSettings)), None))

    def foreseeing(self, planned: Iterable[Resource]) -> "Calendar":
        """Give the calendar of a moment, at which some objects are as they are planned to be; the claims are shared."""
        made = copy(self)
        made._planned = {**self._planned, **{ref_of(one): one for one in planned}}  # noqa: SLF001 - one of us
        made._seats = {}  # noqa: SLF001 - made of other pools
        return made

    def get(self, ref: Ref[R]) -> R | None:
        """Look up an object by its name; None: there is none, as far as is known."""
        planned = self._planned.get(ref)
        return planned if isinstance(planned, ref.kind) else self._cache.get(ref)

    def all(self, kind: type[R]) -> Sequence[R]:
        """Give all objects of a kind."""
        planned = [one for one in self._planned.values() if isinstance(one, kind)]
        if not planned:
            return self._cache.all(kind)
        return [*planned, *(one for one in self._cache.all(kind) if ref_of(one) not in self._planned)]

    def worker(self, uid: str) -> LabWorker | None:
        """Look up a worker by its uid."""
        return self._workers.get(uid)

    def sessions_on(self, worker_id: str) -> Sequence[LabletSession]:
        """Give the sessions that a worker is assigned to and that have not ended."""
        return list(self._on[worker_id].values()) if worker_id in self._on else []

    def rows(self, namespace: str | None = None, track: str | None = None) -> Sequence[Row]:
        """Give the pools that serve a track, all if it is "" or None, in the order of their names."""
        pools = (
            pool
            for pool in self.all(LabWorkerPool)
            if namespace in (None, pool.metadata.namespace) and (not track or pool.spec.lab_track == track)
        )
        found = (
            self.row(ref_of(pool))
            for pool in sorted(pools, key=lambda one: (one.metadata.namespace, one.metadata.name))
        )
        return [row for row in found if row is not None]

    def row(self, ref: PoolRef) -> Row | None:
        """Put a pool together with its template and its workers; None while either is not known."""
        pool = self.get(ref)
        template = self.get(Ref(WorkerTemplate, pool.spec.template, ref.namespace)) if pool else None
        return row_of(pool, template, self._workers) if pool and template else None

    def row_at(self, worker_id: str) -> tuple[Row, int] | None:
        """Tell which seat of which pool a worker fills; None for one that fills none."""
        for pool in self.all(LabWorkerPool):
            number = next((seat.number for seat in pool.status.seats if seat.worker_id == worker_id), None)
            row = self.row(ref_of(pool)) if number is not None else None
            if row is not None and number is not None:
                return row, number
        return None

    def claims(self, ref: PoolRef) -> Iterable[tuple[int, Held]]:
        """Give the claims on a pool's seats."""
        return self._claims[ref].values() if ref in self._claims else ()

    def seats(self, row: Row) -> Seats | None:
        """Give a pool's seats with their claims; None while it is not known what a seat holds."""
        ref, terms = ref_of(row.pool), self.terms
        made_of = _made_of(row, terms)
        known, seats = self._seats.get(ref, (None, None))
        if known != made_of:
            seats = seats_of(row, self.claims(ref), terms)
            self._seats[ref] = made_of, seats
        return seats

    def rules(self, row: Row, now: datetime, *, spent: Decimal = Decimal(0)) -> Rules:
        """Say by what a pool promises at a moment; `spent` is what its workers cost this month so far."""
        spec, token = row.pool.spec, token_id(row.template.spec.worker.cml.license_token)
        total = self._licences.get(token)
        others = [one for one in self._sharing(token) if one.pool.metadata.uid != row.pool.metadata.uid]
        price = row.template.spec.price_per_hour_usd
        return Rules(
            now=now,
            policy=spec.policy,
            usable=usable_seats(row, now, self.terms),
            licences=None if total is None else total - self._unpooled(token) - sum(map(_standing, others)),
            sharing=() if total is None else tuple(self._openings(others)),
            hours=spec.allowed_hours,
            budget=spec.budget,
            price=price if price is not None else self._price(row),
            spent=spent,
        )

    def shared(self, row: Row) -> str | None:
        """Name the token whose seats a pool shares with others, if they are counted."""
        token = token_id(row.template.spec.worker.cml.license_token)
        return token if token in self._licences else None

    def _price(self, row: Row) -> Decimal | None:
        aws = row.template.spec.worker.aws
        types = (aws.instance_type, *aws.instance_type_alternatives)
        found = [self._prices.hourly(aws.region, one) for one in types]
        known = [one for one in found if one is not None]
        return max(known) if len(known) == len(types) else None

    def _sharing(self, token: str) -> Iterator[Row]:
        return (row for row in self.rows() if token_id(row.template.spec.worker.cml.license_token) == token)

    def _openings(self, rows: Iterable[Row]) -> Iterator[Timeline]:
        for row in rows:
            seats = self.seats(row)
            if seats is not None:
                yield seats.opening

    def _unpooled(self, token: str) -> int:
        """Count the workers that have, or will have, a licence of a token and are in no seat that is counted for it."""
        pooled = {seat.worker_id for row in self._sharing(token) for seat in row.pool.status.seats}
        return sum(
            uid not in pooled
            and worker.spec.wanted_state == "running"
            and token_id(worker.spec.cml.license_token) == token
            for uid, worker in self._workers.items()
        )

    def _note(self, seen: Seen) -> None:
        resource = seen.resource
        if seen.ref.kind in {LabletSession, Reservation}:
            self._book(seen.ref, resource)
        if seen.ref.kind is LabletSession:
            self._seat(seen.ref, resource if isinstance(resource, LabletSession) else None)
        if seen.ref.kind is LabWorker:
            self._employ(seen.ref, resource if isinstance(resource, LabWorker) else None)

    def _book(self, ref: Ref[Any], resource: Resource | None) -> None:
        """Hold what a booking has; what it had before already stays as it is, for a reservation has hundreds."""
        before, after = self._placed.pop(ref, {}), _placed(ref, resource)
        for pool, holder in before.keys() - after.keys():
            self._release(pool, holder)
        for place, (number, held) in after.items():
            if before.get(place) != (number, held):
                self._release(*place)
                self._hold(place[0], number, held)
        if after:
            self._placed[ref] = after

    def _hold(self, pool: PoolRef, number: int, held: Held) -> None:
        self._claims.setdefault(pool, {})[held.holder] = number, held
        _, seats = self._seats.get(pool, (None, None))
        if seats is not None and number <= len(seats):
            seats.hold(number, held)
        else:
            self._seats.pop(pool, None)

    def _release(self, pool: PoolRef, holder: str) -> None:
        claims = self._claims.get(pool, {})
        found = claims.pop(holder, None)
        if not claims:
            self._claims.pop(pool, None)
        _, seats = self._seats.get(pool, (None, None))
        if found is not None and seats is not None:
            seats.release(found[0], holder)

    def _seat(self, ref: Ref[Any], session: LabletSession | None) -> None:
        before = self._worker_of.pop(ref, None)
        if before is not None:
            self._on[before].pop(ref, None)
            if not self._on[before]:
                del self._on[before]
        worker_id = session.status.worker_id if session and session.status.phase not in SESSION.final else None
        if session is not None and worker_id is not None:
            self._on.setdefault(worker_id, {})[ref] = session
            self._worker_of[ref] = worker_id

    def _employ(self, ref: Ref[Any], worker: LabWorker | None) -> None:
        if worker is not None:
            self._workers[worker.metadata.uid] = worker
            return
        for uid in [uid for uid, one in self._workers.items() if ref_of(one) == ref]:
            del self._workers[uid]


def _placed(ref: Ref[Any], resource: Resource | None) -> _Placed:
    if not isinstance(resource, LabletSession | Reservation):
        return {}
    pools = ((Ref(LabWorkerPool, pool, ref.namespace), number, held) for pool, number, held in held_by(resource))
    return {(pool, held.holder): (number, held) for pool, number, held in pools}


async def _soon(known: Awaitable[None], since: float) -> None:
    """Wait for a while from a moment on: who books holds up others at the same pool, and all can ask again."""
    try:
        async with asyncio.timeout_at(since + PATIENCE.total_seconds()):
            await known
    except TimeoutError as error:
        raise Later("the calendar is behind what was booked: try again", after=PATIENCE) from error


def _made_of(row: Row, terms: Terms) -> object:
    """Give what a pool's seats are made of besides its claims."""
    workers = tuple(
        (number, one.status.phase, one.status.capacity, one.status.foreign) for number, one in row.workers.items()
    )
    pool = row.pool
    stand = standing_seats(row)
    return stand, pool.spec.max_workers, pool.status.boot_seconds, row.template.spec.worker, workers, terms


def _standing(row: Row) -> int:
    return len(standing_seats(row))
