"""Where bookings are promised: what has a slot gets its seats in the commit that makes it, or is refused.

A refusal tells the reason and the nearest slots that would work. The path: guards are read, the calendar catches up
with them, `placement.promise` chooses, and the commit puts the guards at the revisions read. In one process the
bookings of a pool come one after another; those of other processes make a commit fail, and it is decided anew. Called
by `local` and `applying`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Self

from msgspec.structs import replace

from lcm.control.accounts.billing import read_costs
from lcm.control.booking.calendar import Calendar, PoolRef
from lcm.control.booking.guards import Guards, known_pools, pool_guard, read_guards, token_guard
from lcm.control.booking.request import (
    Booking,
    Bookings,
    Footing,
    Found,
    claims_at,
    claims_of,
    named,
    no_room,
    request_of,
    seated,
    slots_near,
)
from lcm.control.booking.snapshot import prolonged, read_ground
from lcm.control.objects.bundles import Breath
from lcm.control.objects.records import key_of
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.capacity import Claim
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, NoRoom
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import HOSTING, WorkerPhase
from lcm.model.money.billing import total
from lcm.placement.candidate import clock
from lcm.placement.claims import Terms, asks_of
from lcm.placement.limits import Rules
from lcm.placement.places import Row, seat_place, session_holder, template_room
from lcm.placement.promise import Refused as Refusal
from lcm.placement.promise import extend, promise, promise_all, seats_for_all
from lcm.placement.request import Held, Place
from lcm.placement.rules import REMEDIES
from lcm.placement.seat_choice import Kinds, how_far, kinds_of, suited
from lcm.placement.seats import Seats
from lcm.store.base import Op, Store

Public = tuple[str, str]
"""A namespace and a lab track: those who ask the same pools."""
_TRIAL: Final = "booked in the same commit, number {}"
_NO_POOL: Final = "make a LabWorkerPool for the track, or ask for it as soon as possible instead"
_NO_SIZE: Final = "give the template an instance type that is known, or wait until one of its workers has reported"


@dataclass(frozen=True, slots=True)
class Offer:
    """A pool, its seats, by what it promises them, and what they are alike in; None where that is not known."""

    row: Row
    seats: Seats | None
    rules: Rules
    kinds: Kinds | None


class Sitting:
    """Gives bookings seats; at its end all of them are free again."""

    def __init__(self, offers: Mapping[Public, Sequence[Offer]], terms: Terms) -> None:
        self._offers = offers
        self._terms = terms
        self._held: list[tuple[Seats, int, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for seats, number, name in self._held:
            seats.release(number, name)

    def seat(self, booking: Resource, definition: Resource | None) -> Found:
        """Choose seats for a booking and hold them; NoRoom with what says most of what the pools answered."""
        assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
        assert isinstance(definition, LabletDefinition), "a booking comes with its definition"
        claims = claims_of(booking, definition, self._terms)
        refused = list[NoRoom]()
        for offer in self._offers[public_of(booking)]:
            try:
                return self._ask(offer, booking, definition, claims)
            except NoRoom as error:
                refused.append(error)
        raise max(refused, key=_telling, default=_unserved(booking))

    def _ask(self, offer: Offer, booking: Booking, definition: LabletDefinition, claims: Sequence[Claim]) -> Found:
        row, seats, terms = offer.row, offer.seats, self._terms
        if seats is None or offer.kinds is None:
            raise NoRoom(f"it is not known what a worker of pool {row.name} holds; {_NO_SIZE}", why="unknown_size")
        request = request_of(booking, definition, claims[0], terms)
        rules = suited(offer.kinds, request, seats, offer.rules)
        if isinstance(rules, tuple):
            name, reason = rules
            raise NoRoom(f"pool {row.name}: {reason}; {REMEDIES[name]}", why=name)
        one = len(claims) == 1
        answer = promise(seats, claims[0], rules=rules) if one else promise_all(seats, claims, rules=rules)
        if isinstance(answer, Refusal):
            near = slots_near(answer, claims[0], terms)
            if isinstance(booking, Reservation) and booking.spec.recurrence is not None:
                series = ((slot, claims_at(booking, definition, slot, terms)) for slot in near)
                near = [slot for slot, its in series if its and isinstance(seats_for_all(seats, its, rules), tuple)]
            raise no_room(answer, near, row)
        self._hold(seats, claims, answer.seats)
        return Found(row, claims, answer.seats, asks_of(booking, definition))

    def _hold(self, seats: Seats, claims: Sequence[Claim], numbers: Sequence[int]) -> None:
        for claim, number in zip(claims, numbers, strict=True):
            name = _TRIAL.format(len(self._held))
            seats.hold(number, Held(name, claim))
            self._held.append((seats, number, name))


def public_of(booking: Resource) -> Public:
    """Say which pools a booking asks."""
    assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
    return booking.metadata.namespace, booking.spec.lab_track


def _telling(refusal: NoRoom) -> tuple[bool, int]:
    """Say how much a refusal helps: most if it knows when there is room, then the farther the pool came."""
    return bool(refusal.nearest), how_far(refusal.why)


def _unserved(booking: Booking) -> NoRoom:
    track = booking.spec.lab_track
    served = f"the track {track!r}" if track else "sessions without a track"
    return NoRoom(f"no pool in namespace {booking.metadata.namespace} serves {served}; {_NO_POOL}", why="no_pool")


Spent = Mapping[PoolRef, Decimal]
"""What each pool's workers have cost this month."""
_FEW: Final = 16
"""So many bookings are chosen seats for at once; while there are more, others get their turn."""
_LONGEST_PAUSE: Final = timedelta(milliseconds=50)


@dataclass(slots=True)
class _Turn:
    """One after another at a pool; `asked` counts who has the turn or waits for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: int = 0


class Desk:
    """Promises what people book."""

    def __init__(self, store: Store, calendar: Calendar, *, clock: Clock, chance: Callable[[], float]) -> None:
        self.calendar = calendar
        self._store = store
        self._clock = clock
        self._chance = chance
        self._turns: dict[PoolRef, _Turn] = {}

    @asynccontextmanager
    async def turn(self, bookings: Iterable[Resource]) -> AsyncIterator[None]:
        """Wait for one's turn at every pool that bookings may be promised by."""
        bookings = list(bookings)
        await self._caught_up(bookings)
        pools = [ref_of(row.pool) for row in self._rows_of(bookings)]
        async with AsyncExitStack() as turns:
            for ref in sorted(pools, key=str):
                await turns.enter_async_context(self._turn_at(ref))
            yield

    @asynccontextmanager
    async def _turn_at(self, pool: PoolRef) -> AsyncIterator[None]:
        turn = self._turns.setdefault(pool, _Turn())
        turn.asked += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.asked -= 1
            if not turn.asked:
                del self._turns[pool]

    async def breathe(self) -> None:
        """Pause for a moment that differs from what others pause who were disturbed at the same time."""
        await asyncio.sleep(self._chance() * _LONGEST_PAUSE.total_seconds())

    def foreseeing(self, planned: Sequence[Resource]) -> "Desk":
        """Give the desk of a moment, at which pools, templates and settings are as they are about to be written."""
        own = [one for one in planned if isinstance(one, LabWorkerPool | WorkerTemplate | SystemSettings)]
        if not own:
            return self
        made = copy(self)
        made.calendar = self.calendar.foreseeing(own)
        return made

    async def promised(
        self, bookings: Sequence[Resource], definitions: Sequence[Resource | None], *, names: Sequence[str] = ()
    ) -> Bookings:
        """Give bookings their seats, all or none; what has no slot stays as it is. NoRoom with the reason.

        With `names` it says also which booking it was that there is no room for.
        """
        if not any(map(timed, bookings)):
            return Bookings(bookings, [None] * len(bookings))
        await self._caught_up(bookings)
        guards, spent = await self._known(bookings)
        now, found, several = self._clock.now(), list[Found | None](), len(bookings) > _FEW
        with self._sitting(bookings, now, spent, apart=several) as sitting:
            breath = Breath()
            for place, (booking, definition) in enumerate(zip(bookings, definitions, strict=True)):
                with named(names[place] if names else ""):
                    found.append(sitting.seat(booking, definition) if timed(booking) else None)
                if several:
                    await breath.take()
        made = [seated(one, its, now) if its else one for one, its in zip(bookings, found, strict=True)]
        return Bookings(made, [self._footing(its.row, guards) if its else None for its in found])

    async def extended(self, before: LabletSession, after: LabletSession) -> Sequence[Op]:
        """Promise a session more time on its seat, or on its worker if it has none; NoRoom with the reason."""
        claim, seat = after.status.claim, before.status.seat
        if claim is None or claim == before.status.claim:
            return ()
        await self.calendar.ready()
        self._refuse_past_drain(after)
        if seat is None:
            return await prolonged(self._store, self.calendar, before, claim, self._clock.now())
        ref: PoolRef = Ref(LabWorkerPool, seat.pool, before.metadata.namespace)
        known = before.metadata.resource_version
        ground = await read_ground(self._store, self.calendar, pool=ref, adds=True, known=known)
        row = ground.row
        if row is None or row.pool.metadata.deletion_timestamp is not None:
            raise NoRoom(f"the pool {seat.pool} is not there any more, or is going: book another slot", why="no_pool")
        rules = await self.rules(row, self._clock.now())
        self._extend(row, rules, before, claim)
        return ground.ops(before.metadata.uid)

    def _refuse_past_drain(self, session: LabletSession) -> None:
        """Raise NoRoom if a session would end after its worker's drain ends all that is on it."""
        worker, end = self.calendar.worker(session.status.worker_id or ""), session.status.ends_at
        deadline = worker.status.drain_deadline_at if worker else None
        if worker is None or worker.status.phase is not WorkerPhase.DRAINING or deadline is None or end is None:
            return
        if end > deadline:
            name = worker.metadata.name
            told = f"its worker {name} is being drained, which ends what is on it at {clock(deadline)}"
            raise NoRoom(f"it cannot be extended: {told}; extend it by less, or undrain {name}", why="draining")

    def _extend(self, row: Row, rules: Rules, session: LabletSession, claim: Claim) -> None:
        """Raise NoRoom if a session's seat cannot be its own for longer, Conflict if it has moved meanwhile."""
        seats, seat, holder = self.calendar.seats(row), session.status.seat, session_holder(session)
        assert seat is not None, "it is extended on its seat"
        if seats is None or seat.number > len(seats) or holder not in seats[seat.number].held:
            wanted = session.metadata.resource_version
            raise Conflict(key_of(session), wanted=wanted, found=wanted, message=f"{holder} is on another seat by now")
        answer = extend(seats, seat.number, Held(holder, claim), rules=rules)
        if isinstance(answer, Refusal):
            raise NoRoom(f"it cannot be extended: {answer.details}; {answer.remedy}", why=answer.reason)

    async def refusal_or_seat(self, booking: Booking, definition: LabletDefinition) -> Found:
        """Choose seats without promising them; NoRoom with the reason."""
        await self._caught_up([booking])
        _, spent = await self._known([booking])
        with self._sitting([booking], self._clock.now(), spent) as sitting:
            return sitting.seat(booking, definition)

    async def _caught_up(self, bookings: Iterable[Resource]) -> None:
        """Wait until the calendar knows the pools as they are."""
        await self.calendar.ready()
        for namespace in dict.fromkeys(namespace for namespace, _ in _publics(bookings)):
            await self.calendar.until(await known_pools(self._store, namespace))

    async def _known(self, bookings: Sequence[Resource]) -> tuple[Guards, Spent]:
        """Read the guards of every pool that may promise bookings and what each has cost, and know what was claimed."""
        while True:
            rows = self._rows_of(bookings)
            guards = await read_guards(self._store, *self._keys(rows))
            spent = {ref_of(row.pool): await self._spent(row, self._clock.now()) for row in rows}
            await self.calendar.until(guards.revision)
            if {key for key, _ in guards.seen}.issuperset(self._keys(self._rows_of(bookings))):
                return guards, spent

    def _footing(self, row: Row, guards: Guards) -> Footing:
        """Hold a pool as it was seen, too: its size and its hours are part of the promise."""
        seen = dict(guards.seen)
        used = {key: seen[key] for key in self._keys([row])}
        return Footing(used, {key_of(row.pool): row.pool.metadata.resource_version})

    def _sitting(self, bookings: Iterable[Resource], now: datetime, spent: Spent, *, apart: bool = False) -> Sitting:
        """Begin to choose seats; who takes a while, on seats `apart`, where nobody sees what is held on trial."""
        calendar = self.calendar.foreseeing(()) if apart else self.calendar
        offers = {
            one: [
                Offer(row, calendar.seats(row), calendar.rules(row, now, spent=spent[ref_of(row.pool)]), kinds(row))
                for row in self._rows(one)
            ]
            for one in _publics(bookings)
        }
        return Sitting(offers, calendar.terms)

    async def rules(self, row: Row, now: datetime) -> Rules:
        """Say by what a pool promises at a moment, with what it has cost this month."""
        return self.calendar.rules(row, now, spent=await self._spent(row, now))

    async def _spent(self, row: Row, now: datetime) -> Decimal:
        month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        if row.pool.spec.budget.monthly_usd is None or month == now:
            return Decimal(0)
        found = await read_costs(self._store, since=month, until=now, now=now)
        own = row.pool.spec.lab_track, row.pool.metadata.namespace
        return total("pool", [one for one in found if (one.lab_track, one.namespace) == own], now).usd

    def _rows_of(self, bookings: Iterable[Resource]) -> Sequence[Row]:
        """Give every pool that may promise any of several bookings."""
        rows = {ref_of(row.pool): row for public in _publics(bookings) for row in self._rows(public)}
        return list(rows.values())

    def _rows(self, public: Public) -> Sequence[Row]:
        return [row for row in self.calendar.rows(*public) if row.pool.metadata.deletion_timestamp is None]

    def _keys(self, rows: Iterable[Row]) -> Sequence[str]:
        keys: dict[str, None] = {}
        for row in rows:
            keys[pool_guard(ref_of(row.pool))] = None
            token = self.calendar.shared(row)
            if token is not None:
                keys[token_guard(token)] = None
        return list(keys)


def _publics(bookings: Iterable[Resource]) -> Sequence[Public]:
    """Say, each once and in their order, which pools bookings ask."""
    return list(dict.fromkeys(public_of(one) for one in bookings if timed(one)))


def timed(resource: Resource) -> bool:
    """Tell whether something is promised when it is booked."""
    return isinstance(resource, Reservation) or (
        isinstance(resource, LabletSession) and resource.spec.timeslot_start is not None
    )


def kinds(row: Row) -> Kinds | None:
    """Say what each of a pool's seats is; None while it is not known what a worker of it holds."""
    place = offered(row)
    return kinds_of(row, place) if place is not None else None


def offered(row: Row) -> Place | None:
    """Give what a pool's seats without a worker are alike in; its workers tell which CML they will have."""
    room = template_room(row)
    if room is None:
        return None
    place = seat_place(row, 0, room, datetime.min.replace(tzinfo=UTC))
    seen = [one.status.cml.version for one in row.workers.values() if one.status.phase in HOSTING]
    return replace(place, version=seen[0]) if seen else place
