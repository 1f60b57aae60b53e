"""Where bookings are promised: what has a slot gets its seats in the commit that makes it, or is refused.

A refusal tells the reason and the nearest slots that would work. The path: guards are read, the calendar catches up
with them, `placement.promise` chooses, and the commit puts the guards at the revisions read. In one process the
bookings of a pool come one after another; those of other processes make a commit fail, and it is decided anew. Called
by `local` and `applying`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

import msgspec

from lcm.control.billing import read_costs
from lcm.control.calendar import Calendar, PoolRef
from lcm.control.guards import known_pools, pool_guard, read_guards, token_guard
from lcm.control.plane import Ref, ref_of
from lcm.control.records import key_of
from lcm.control.stepping import moved
from lcm.model.billing import total
from lcm.model.capacity import Claim
from lcm.model.clock import Clock
from lcm.model.definition import LabletDefinition
from lcm.model.errors import NoRoom, Refused
from lcm.model.kinds import Resource
from lcm.model.machine import CONTROL_PLANE
from lcm.model.pool import LabWorkerPool
from lcm.model.reservation import Held as Reserved
from lcm.model.reservation import Reservation, ReservationPhase, occurrences
from lcm.model.session import LabletSession, Seat
from lcm.model.worker import HOSTING
from lcm.placement.limits import Rules
from lcm.placement.promise import Promised, extend, promise, promise_all
from lcm.placement.promise import Refused as Refusal
from lcm.placement.request import Held, Place, Request
from lcm.placement.roster import Row, seat_place, session_holder, template_room
from lcm.placement.rules import REMEDIES, static_rejection
from lcm.placement.seats import Seats
from lcm.placement.terms import Terms, need_of, request_for, slot_claim, slot_of
from lcm.store.base import Check, Op, Store

Booking = LabletSession | Reservation
B = TypeVar("B", LabletSession, Reservation)
_LONGEST_PAUSE: Final = timedelta(milliseconds=50)
_TRIAL: Final = "booked in the same commit, number {}"
_NO_POOL: Final = "make a LabWorkerPool for the track, or ask for it as soon as possible instead"
_NO_SIZE: Final = "give the template an instance type that is known, or wait until one of its workers has reported"


@dataclass(frozen=True, slots=True)
class Bookings:
    """Bookings as they are promised, and what joins their commit."""

    made: Sequence[Resource]
    ops: Sequence[Op] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The seats that a booking gets, and where."""

    row: Row
    claims: Sequence[Claim]
    seats: Sequence[int]


class Desk:
    """Promises what people book."""

    def __init__(self, store: Store, calendar: Calendar, *, clock: Clock, chance: Callable[[], float]) -> None:
        self.calendar = calendar
        self._store = store
        self._clock = clock
        self._chance = chance
        self._turns: dict[PoolRef, asyncio.Lock] = {}

    @asynccontextmanager
    async def turn(self, bookings: Iterable[Resource]) -> AsyncIterator[None]:
        """Wait for one's turn at every pool that bookings may be promised by."""
        bookings = list(bookings)
        await self._caught_up(bookings)
        pools = {ref_of(row.pool) for one in bookings if timed(one) for row in self._rows(one)}
        async with AsyncExitStack() as turns:
            for ref in sorted(pools, key=str):
                await turns.enter_async_context(self._turns.setdefault(ref, asyncio.Lock()))
            yield

    async def breathe(self) -> None:
        """Pause for a moment that differs from what others pause who were disturbed at the same time."""
        await asyncio.sleep(self._chance() * _LONGEST_PAUSE.total_seconds())

    async def promised(self, bookings: Sequence[Resource], definitions: Sequence[Resource | None]) -> Bookings:
        """Give bookings their seats, all or none; what has no slot stays as it is. NoRoom with the reason."""
        if not any(map(timed, bookings)):
            return Bookings(bookings)
        await self._caught_up(bookings)
        rows = {ref_of(row.pool): row for one in bookings if timed(one) for row in self._rows(one)}
        guards = await read_guards(self._store, *self._keys(rows.values()))
        await self.calendar.until(guards.revision)
        now, made, used, trials = self._clock.now(), list[Resource](), dict[str, Row](), _Trials()
        try:
            for booking, definition in zip(bookings, definitions, strict=True):
                if not timed(booking):
                    made.append(booking)
                    continue
                assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
                assert isinstance(definition, LabletDefinition), "a booking comes with its definition"
                found = await self._find(booking, definition, now)
                trials.hold(self.calendar.seats(found.row), found)
                used[found.row.name] = found.row
                made.append(_seated(booking, found, now))
        finally:
            trials.release()
        touched = set(self._keys(used.values()))
        seen = replace(guards, seen=[one for one in guards.seen if one[0] in touched])
        by = made[0].metadata.uid
        return Bookings(made, [*seen.ops(by), *(_unchanged(row) for row in used.values())])

    async def extended(self, before: LabletSession, after: LabletSession) -> Sequence[Op]:
        """Promise a session more time on its seat; NoRoom with the reason. What has no seat is not asked about here."""
        claim, seat = after.status.claim, before.status.seat
        if claim is None or seat is None or claim == before.status.claim:
            return ()
        await self.calendar.ready()
        ref: PoolRef = Ref(LabWorkerPool, seat.pool, before.metadata.namespace)
        row = self.calendar.row(ref)
        guards = await read_guards(self._store, *(self._keys([row]) if row else [pool_guard(ref)]))
        await self.calendar.until(guards.revision)
        row = self.calendar.row(ref)
        seats = self.calendar.seats(row) if row else None
        holder = session_holder(before)
        if row is None or seats is None or holder not in seats[seat.number].held:
            raise NoRoom(f"the seat {seat.pool}/{seat.number} is not there any more: book another slot", why="no_pool")
        answer = extend(seats, seat.number, Held(holder, claim), rules=await self._rules(row, self._clock.now()))
        if isinstance(answer, Refusal):
            raise NoRoom(f"it cannot be extended: {answer.details}; {answer.remedy}", why=answer.reason)
        return guards.ops(before.metadata.uid)

    async def refusal_or_seat(self, booking: Booking, definition: LabletDefinition) -> Found:
        """Choose seats without promising them; NoRoom with the reason."""
        await self._caught_up([booking])
        return await self._find(booking, definition, self._clock.now())

    async def _caught_up(self, bookings: Iterable[Resource]) -> None:
        """Wait until the calendar knows the pools as they are."""
        await self.calendar.ready()
        for namespace in {one.metadata.namespace for one in bookings if timed(one)}:
            await self.calendar.until(await known_pools(self._store, namespace))

    async def _find(self, booking: Booking, definition: LabletDefinition, now: datetime) -> Found:
        claims = claims_of(booking, definition, self.calendar.terms)
        refusals = list[NoRoom]()
        for row in self._rows(booking):
            try:
                return await self._ask(row, booking, definition, claims, now)
            except NoRoom as error:
                refusals.append(error)
        if refusals:
            raise refusals[-1]
        track = booking.spec.lab_track
        named = f"the track {track!r}" if track else "sessions without a track"
        raise NoRoom(f"no pool in namespace {booking.metadata.namespace} serves {named}; {_NO_POOL}", why="no_pool")

    async def _ask(
        self, row: Row, booking: Booking, definition: LabletDefinition, claims: Sequence[Claim], now: datetime
    ) -> Found:
        seats, terms = self.calendar.seats(row), self.calendar.terms
        if seats is None:
            raise NoRoom(f"it is not known what a worker of pool {row.name} holds; {_NO_SIZE}", why="unknown_size")
        place = offered(row)
        asked = static_rejection(place, _request(booking, definition, claims[0], terms)) if place else None
        if asked is not None:
            name, reason = asked
            raise NoRoom(f"pool {row.name}: {reason}; {REMEDIES[name]}", why=name)
        rules = await self._rules(row, now)
        answer = _answer(seats, claims, rules)
        if isinstance(answer, Refusal):
            raise _no_room(answer, claims[0], terms, row)
        return Found(row, claims, answer.seats)

    async def _rules(self, row: Row, now: datetime) -> Rules:
        spent = Decimal(0)
        if row.pool.spec.budget.monthly_usd is not None:
            month = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            track, namespace = row.pool.spec.lab_track, row.pool.metadata.namespace
            found = await read_costs(self._store, since=month, until=now, now=now) if month < now else []
            mine = [one for one in found if (one.lab_track, one.namespace) == (track, namespace)]
            spent = total("pool", mine, now).usd
        return self.calendar.rules(row, now, spent=spent)

    def _rows(self, booking: Resource) -> Sequence[Row]:
        assert isinstance(booking, LabletSession | Reservation)
        found = self.calendar.rows(booking.metadata.namespace, booking.spec.lab_track)
        return [row for row in found if row.pool.metadata.deletion_timestamp is None]

    def _keys(self, rows: Iterable[Row]) -> Sequence[str]:
        keys: dict[str, None] = {}
        for row in rows:
            keys[pool_guard(ref_of(row.pool))] = None
            token = self.calendar.shared(row)
            if token is not None:
                keys[token_guard(token)] = None
        return list(keys)


class _Trials:
    """Claims that are held while others of the same commit are being chosen seats for."""

    def __init__(self) -> None:
        self._held: list[tuple[Seats, int, str]] = []

    def hold(self, seats: Seats | None, found: Found) -> None:
        assert seats is not None, "what was found was found there"
        for claim, number in zip(found.claims, found.seats, strict=True):
            name = _TRIAL.format(len(self._held))
            seats.hold(number, Held(name, claim))
            self._held.append((seats, number, name))

    def release(self) -> None:
        for seats, number, name in self._held:
            seats.release(number, name)


def timed(resource: Resource) -> bool:
    """Tell whether something is promised when it is booked."""
    return isinstance(resource, Reservation) or (
        isinstance(resource, LabletSession) and resource.spec.timeslot_start is not None
    )


def claims_of(booking: Booking, definition: LabletDefinition, terms: Terms) -> Sequence[Claim]:
    """Give what a booking claims, in the order of its sessions; Refused while its definition says no needs."""
    need = need_of(booking if isinstance(booking, LabletSession) else None, definition)
    if need is None:
        name = definition.metadata.name
        raise Refused(f"{name} does not say what it needs: give it resource_requirements and node_count")
    if isinstance(booking, Reservation):
        slots = [slot for slot in occurrences(booking.spec) for _ in range(booking.spec.count)]
        return [slot_claim(start, end, need, terms) for start, end in slots]
    spec = booking.spec
    assert spec.timeslot_start is not None, "only what has a slot is promised"
    assert spec.timeslot_end is not None, "admission has checked that"
    return [slot_claim(spec.timeslot_start, spec.timeslot_end, need, terms)]


def offered(row: Row) -> Place | None:
    """Give what a pool's seats are alike in; its workers tell which CML they have."""
    room = template_room(row)
    if room is None:
        return None
    place = seat_place(row, 0, room, datetime.min.replace(tzinfo=UTC))
    seen = [one.status.cml.version for one in row.workers.values() if one.status.phase in HOSTING]
    return replace(place, version=seen[0]) if seen else place


def _request(booking: Booking, definition: LabletDefinition, claim: Claim, terms: Terms) -> Request:
    if isinstance(booking, LabletSession):
        return request_for(booking, definition, claim, terms)
    wanted = definition.spec
    return Request(
        name=booking.metadata.name,
        claim=claim,
        lab_type=wanted.lab_type,
        affinity=wanted.license_affinity,
        track=booking.spec.lab_track,
        region_required=booking.spec.region_required,
        cml_version_min=wanted.ami_requirements.cml_version_min,
        cml_version_max=wanted.ami_requirements.cml_version_max,
        node_definitions=frozenset(wanted.ami_requirements.node_definitions),
        movable=False,
    )


def _answer(seats: Seats, claims: Sequence[Claim], rules: Rules) -> Promised | Refusal:
    return promise(seats, claims[0], rules=rules) if len(claims) == 1 else promise_all(seats, claims, rules=rules)


def _no_room(refusal: Refusal, claim: Claim, terms: Terms, row: Row) -> NoRoom:
    start, end = slot_of(claim, terms)
    slots = [(start + by, end + by) for by in refusal.nearest]
    return NoRoom(f"pool {row.name}: {refusal.details}; {refusal.remedy}", why=refusal.reason, nearest=slots)


def _seated(booking: Booking, found: Found, now: datetime) -> Booking:
    pool = found.row.pool.metadata.name
    if isinstance(booking, LabletSession):
        (claim,), (number,) = found.claims, found.seats
        status = msgspec.structs.replace(booking.status, claim=claim, seat=Seat(pool=pool, number=number))
        return msgspec.structs.replace(booking, status=status)
    held = tuple(
        Reserved(number=place, claim=claim, seat=Seat(pool=pool, number=number))
        for place, (claim, number) in enumerate(zip(found.claims, found.seats, strict=True), start=1)
    )
    reason = "all its claims are held"
    fields: dict[str, Any] = {"held": held, "starts_at": found.claims[0].start}
    return moved(booking, ReservationPhase.PROMISED, author=CONTROL_PLANE, now=now, reason=reason, **fields)


def _unchanged(row: Row) -> Check:
    """Hold a pool as it was seen: its size and its hours are part of the promise."""
    return Check(key_of(row.pool), row.pool.metadata.resource_version)
