"""Promises of bookings: a booking with a slot gets its seats in the commit that makes it, or is refused.

A refusal says why and which nearest slots would work. Guards are read, the calendar catches up with them,
`lcm.placement.promise` chooses, and the commit writes the guards at the revisions read. In one process the bookings of
a pool are promised one after another; a conflict with another process is decided again. `SeatTrial` holds the seats
of one commit's bookings on trial. Called by `control.plane.local` and `control.objects.apply`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Final, Self

from msgspec.structs import replace

from lcm.control.accounts.costs import estimate_cost
from lcm.control.accounts.spending import MonthBill, MonthSpending
from lcm.control.booking.calendar import NOTHING_SPENT, Calendar, PoolRef, Spending
from lcm.control.booking.guards import (
    Guards,
    pool_guard_key,
    pools_revision,
    read_guards,
)
from lcm.control.booking.prebuilt_labs import PrebuiltLabs
from lcm.control.booking.quota import BookingQuota, OwnerLimits
from lcm.control.booking.request import (
    Booking,
    ChosenSeats,
    ClaimsAt,
    PoolScope,
    PromisedBookings,
    PromisePreconditions,
    claims_at,
    claims_of,
    has_slot,
    name_booking_in_refusal,
    request_of,
    scope_of,
    scopes_of,
    with_seats,
    with_time_shortened,
)
from lcm.control.booking.snapshot import extend_on_worker, pool_guard_keys, read_snapshot
from lcm.control.booking.usage import EstimatePrice
from lcm.control.objects.records import key_of
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.access.identity import Caller
from lcm.model.base.capacity import Claim
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, NoRoom
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, SessionPhase, is_asap
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.billing import start_of_month
from lcm.placement.candidate import format_moment
from lcm.placement.claims import Terms, asap_claim, asap_length, need_of, requirements_of, slot_of
from lcm.placement.limits import PromiseRules
from lcm.placement.places import PoolSnapshot, find_unhostable, session_holder, template_place
from lcm.placement.preference import Preference, preference
from lcm.placement.promise import PromiseRefusal as Refusal
from lcm.placement.promise import choose_seats_for_all, extend, promise, promise_all
from lcm.placement.request import HeldClaim, PlacementRequest
from lcm.placement.rules import FILTER_REMEDIES
from lcm.placement.seat_choice import SEAT_REMEDIES, SeatKinds, exclude_unsuitable, refusal_rank, seat_kinds_of
from lcm.placement.seats import Seats
from lcm.store.base import Op, Store
from lcm.system.tasks import CallerTurns, KeyedLocks, TimeSlice

_UNKNOWN_PREFERENCE: Final[Preference] = True, inf
_TRIAL_HOLDER: Final = "booked in the same commit, number {}"
NO_POOL_REMEDY: Final = "make a LabWorkerPool for the track, or ask for it as soon as possible instead"
_HOSTING_REMEDIES: Final[Mapping[str, str]] = {**FILTER_REMEDIES, "too_large": SEAT_REMEDIES["too_large"]}
UNKNOWN_SIZE_REMEDY: Final = "use a known instance type in the template, or wait until one of its workers has reported"


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """A pool with its seats, its rules and the kinds of its seats; None where those are not known."""

    row: PoolSnapshot
    seats: Seats | None
    rules: PromiseRules
    kinds: SeatKinds | None


class SeatTrial:
    """A trial of seats for the bookings of one commit; when it ends, all of its claims are released again."""

    def __init__(self, offers: Mapping[PoolScope, Sequence[PoolOffer]], terms: Terms) -> None:
        self._offers = offers
        self._terms = terms
        self._trial_claims: list[tuple[Seats, int, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for seats, number, name in self._trial_claims:
            seats.release(number, name)

    def choose_seats(self, booking: Resource, definition: Resource | None) -> ChosenSeats:
        """Choose seats for a booking, of the first pool that has them, and hold them on trial.

        Raises NoRoom with the most helpful of the pools' refusals.
        """
        assert isinstance(booking, LabletSession | Reservation), "nothing else has slots"
        assert isinstance(definition, LabletDefinition), "a booking comes with its definition"
        series = isinstance(booking, Reservation) and booking.spec.recurrence is not None
        shift = partial(claims_at, booking, definition, terms=self._terms) if series else None
        return self.choose_seats_for(booking, definition, claims_of(booking, definition, self._terms), shift)

    def choose_seats_for(
        self, booking: Booking, definition: LabletDefinition, claims: Sequence[Claim], shift: ClaimsAt | None = None
    ) -> ChosenSeats:
        """Choose seats for claims of a booking as `choose_seats` does.

        With `shift`, the claims do not all shift equally when the first of them gets another slot.
        """
        refused = list[NoRoom]()
        request = request_of(booking, definition, claims[0], self._terms)
        for offer in sort_offers(self._offers[scope_of(booking)], request):
            try:
                return self._ask_pool(offer, booking, definition, claims, shift)
            except NoRoom as error:
                refused.append(error)
        if not refused:
            raise no_pool_error(scope_of(booking))
        # The most helpful one names free slots, or else has passed the most checks.
        raise max(refused, key=lambda one: (bool(one.nearest), refusal_rank(one.why)))

    def _ask_pool(
        self,
        offer: PoolOffer,
        booking: Booking,
        definition: LabletDefinition,
        claims: Sequence[Claim],
        shift: ClaimsAt | None,
    ) -> ChosenSeats:
        row, terms = offer.row, self._terms
        seats, rules = suitable_seats(offer, request_of(booking, definition, claims[0], terms))
        one = len(claims) == 1
        answer = promise(seats, claims[0], rules=rules) if one else promise_all(seats, claims, rules=rules)
        if isinstance(answer, Refusal):
            start, end = slot_of(claims[0], terms)
            near = [(start + by, end + by) for by in answer.nearest]
            if shift is not None:
                series = ((slot, shift(slot)) for slot in near)
                near = [
                    slot for slot, its in series if its and isinstance(choose_seats_for_all(seats, its, rules), tuple)
                ]
            problem = f"pool {row.name}: {answer.details}; {answer.remedy}"
            raise NoRoom(problem, why=answer.reason, nearest=near, remedy=answer.remedy)
        for claim, number in zip(claims, answer.seats, strict=True):
            name = _TRIAL_HOLDER.format(len(self._trial_claims))
            seats.hold(number, HeldClaim(name, claim))
            self._trial_claims.append((seats, number, name))
        return ChosenSeats(row, claims, answer.seats, requirements_of(booking, definition))


def sort_offers(offers: Iterable[PoolOffer], request: PlacementRequest) -> Sequence[PoolOffer]:
    """Return pools in the order in which a booking asks them; those whose size is not known come last."""

    def order(offer: PoolOffer) -> tuple[bool, Preference, str]:
        place = offer.kinds.template if offer.kinds else None
        return place is None, preference(place, request) if place else _UNKNOWN_PREFERENCE, offer.row.name

    return sorted(offers, key=order)


def suitable_seats(offer: PoolOffer, request: PlacementRequest) -> tuple[Seats, PromiseRules]:
    """Return a pool's seats, and its rules without the seats that do not suit a request; raise NoRoom if none does."""
    row, seats = offer.row, offer.seats
    if seats is None or offer.kinds is None:
        problem = f"the size of the workers of pool {row.name} is not known; {UNKNOWN_SIZE_REMEDY}"
        raise NoRoom(problem, why="unknown_size")
    rules = exclude_unsuitable(offer.kinds, request, seats, offer.rules)
    if isinstance(rules, tuple):
        name, reason = rules
        raise NoRoom(f"pool {row.name}: {reason}; {FILTER_REMEDIES[name]}", why=name)
    return seats, rules


def no_pool_error(public: PoolScope) -> NoRoom:
    """Return the refusal of a booking that no pool serves."""
    namespace, track = public
    served = f"the track {track!r}" if track else "sessions without a track"
    return NoRoom(f"no pool in namespace {namespace} serves {served}; {NO_POOL_REMEDY}", why="no_pool")


SpendingByPool = Mapping[PoolRef, Spending]
"""What each pool's workers, and those of its track, have cost this month."""
_BATCH_SIZE: Final = 16
"""Up to this many bookings are placed without yielding; with more, other tasks get to run in between."""
_MAX_BACKOFF: Final = timedelta(milliseconds=50)


class Promises:
    """Promises of seats to bookings: every booking with a slot gets its seats in its own commit, or is refused."""

    def __init__(
        self,
        store: Store,
        calendar: Calendar,
        *,
        clock: Clock,
        chance: Callable[[], float],
        limits: OwnerLimits | None = None,
        price: EstimatePrice = estimate_cost,
    ) -> None:
        """Promise seats by a calendar that runs; without `limits`, anybody may book as much as there is."""
        self.calendar = calendar
        self.quota = BookingQuota(store, calendar, limits, clock=clock, price=price) if limits is not None else None
        self.prebuilt = PrebuiltLabs(calendar)
        self._store = store
        self._clock = clock
        self._chance = chance
        self.survey_turns = CallerTurns("slots", most_of_caller=4, most_callers=50)
        """Held by those who ask about many slots; see `slots`."""
        self._guard_locks = KeyedLocks()
        self.month_spending = MonthSpending(store)

    @asynccontextmanager
    async def lock_guards(self, bookings: Iterable[Resource], quotas: Iterable[str] = ()) -> AsyncIterator[None]:
        """Hold the locks of these quotas' guards, of prebuilt labs, and of every pool that may promise a booking."""
        bookings = list(bookings)
        labs = {key for one in bookings for key in self.prebuilt.lock_keys(one)}
        async with AsyncExitStack() as locks:
            for key in sorted({*quotas, *labs}):
                await locks.enter_async_context(self._guard_locks.hold(key))
            await self._catch_up(bookings)
            for key in sorted(pool_guard_key(ref_of(row.pool)) for row in self._pools_for(bookings)):
                await locks.enter_async_context(self._guard_locks.hold(key))
            yield

    def quota_keys(self, caller: Caller, made: Iterable[Resource]) -> Sequence[str]:
        """Return the guards of the quotas that bound these bookings of a caller."""
        return self.quota.guard_keys(caller, made) if self.quota is not None else ()

    async def back_off(self) -> None:
        """Sleep for a random moment, so that writers that collided do not retry at the same time."""
        await asyncio.sleep(self._chance() * _MAX_BACKOFF.total_seconds())

    def with_planned(self, planned: Sequence[Resource]) -> "Promises":
        """Return a copy that sees pools, templates and settings as they are about to be written."""
        own = [one for one in planned if isinstance(one, LabWorkerPool | WorkerTemplate | SystemSettings)]
        if not own:
            return self
        made = copy(self)
        made.calendar = self.calendar.with_planned(own)
        return made

    async def promise_bookings(
        self, bookings: Sequence[Resource], definitions: Sequence[Resource | None], *, names: Sequence[str] = ()
    ) -> PromisedBookings:
        """Choose seats for bookings, all or none; raise NoRoom with the reason.

        Bookings without a slot are returned unchanged, unless nobody could ever host them. With `names`, the error also
        names the booking that did not fit.
        """
        await self._refuse_unhostable(bookings, definitions, names)
        if not any(map(has_slot, bookings)):
            return PromisedBookings(bookings, [None] * len(bookings))
        await self._catch_up(bookings)
        guards, spent = await self.read_guards_and_spending(bookings)
        now, found, several = self._clock.now(), list[ChosenSeats | None](), len(bookings) > _BATCH_SIZE
        with self._begin_trial(bookings, now, spent, apart=several) as trial:
            time_slice = TimeSlice()
            for place, (booking, definition) in enumerate(zip(bookings, definitions, strict=True)):
                with name_booking_in_refusal(names[place] if names else ""):
                    found.append(trial.choose_seats(booking, definition) if has_slot(booking) else None)
                if several:
                    await time_slice.yield_if_over()
        made = [with_seats(one, its, now) if its else one for one, its in zip(bookings, found, strict=True)]
        return PromisedBookings(made, [self.preconditions(its.row, guards) if its else None for its in found])

    async def _refuse_unhostable(
        self, bookings: Sequence[Resource], definitions: Sequence[Resource | None], names: Sequence[str]
    ) -> None:
        """Raise NoRoom if a session is wanted as soon as possible that no pool and no worker could ever host."""
        for place, (session, definition) in enumerate(zip(bookings, definitions, strict=True)):
            if (
                isinstance(session, LabletSession)
                and not has_slot(session)
                and isinstance(definition, LabletDefinition)
            ):
                with name_booking_in_refusal(names[place] if names else ""):
                    await self.refuse_unhostable(session, definition)

    async def refuse_unhostable(self, session: LabletSession, definition: LabletDefinition) -> None:
        """Raise NoRoom if no pool and no worker could ever host a session. Where no pool serves it, one may come."""
        await self.calendar.ready()
        if self._find_unhostable(session, definition) is None:
            return  # nearly always, and it costs no read
        namespace = session.metadata.namespace
        await self.calendar.wait_for_revision(await pools_revision(self._store, namespace))
        found = self._find_unhostable(session, definition)
        if found is not None:
            pool, why, reason = found
            raise NoRoom(f"nobody can ever host it: pool {pool}: {reason}; {_HOSTING_REMEDIES[why]}", why=why)

    def _find_unhostable(self, session: LabletSession, definition: LabletDefinition) -> tuple[str, str, str] | None:
        """Return why nobody could ever host a session, as far as the calendar knows: a pool, the filter, the reason."""
        namespace, need, now = session.metadata.namespace, need_of(session, definition), self._clock.now()
        if need is None:
            return None
        claim = asap_claim(session, now, need, self.calendar.terms)
        request = request_of(session, definition, claim, self.calendar.terms)
        rows = [one for one in self.calendar.pools(namespace) if one.pool.metadata.deletion_timestamp is None]
        workers = (
            one for one in self.calendar.all(LabWorker) if one.metadata.namespace == namespace and _may_serve(one)
        )
        return find_unhostable(rows, workers, request, now)

    async def grant_time(self, before: LabletSession, after: LabletSession) -> tuple[LabletSession, Sequence[Op]]:
        """Extend a session that came up late to the time it asked for, counted from now, or record what it lacks.

        Returns the session, and the operations that must join its commit.
        """
        claim, now = after.status.claim, self._clock.now()
        begins = after.status.phase is SessionPhase.RUNNING is not before.status.phase
        if not begins or claim is None or not is_asap(after) or after.status.ends_at != claim.end - CLEAN_UP_TIME:
            return after, ()
        end = now + asap_length(before, now)
        longer = replace(
            after, status=replace(after.status, ends_at=end, claim=replace(claim, end=end + CLEAN_UP_TIME))
        )
        if end <= after.status.ends_at:
            return after, ()
        try:
            return longer, await self.extend_session(before, longer)
        except NoRoom as error:
            return with_time_shortened(after, end - now, str(error), now), ()

    async def extend_session(self, before: LabletSession, after: LabletSession) -> Sequence[Op]:
        """Promise a session more time, on its seat or else on its worker; raise NoRoom with the reason.

        Returns the operations that must join the session's commit.
        """
        claim, seat = after.status.claim, before.status.seat
        if claim is None or claim == before.status.claim:
            return ()
        await self.calendar.ready()
        self.refuse_past_drain(after)
        if seat is None:
            return await extend_on_worker(self._store, self.calendar, before, claim, self._clock.now())
        ref: PoolRef = Ref(LabWorkerPool, seat.pool, before.metadata.namespace)
        known = before.metadata.resource_version
        snapshot = await read_snapshot(self._store, self.calendar, pool=ref, adds=True, known=known)
        row = snapshot.row
        if row is None or row.pool.metadata.deletion_timestamp is not None:
            raise NoRoom(f"the pool {seat.pool} is gone or being deleted: book another slot", why="no_pool")
        rules = await self.read_rules(row, self._clock.now())
        self._check_extension(row, rules, before, claim)
        return snapshot.ops(before.metadata.uid)

    def refuse_past_drain(self, session: LabletSession) -> None:
        """Raise NoRoom if a session would end after the drain of its worker ends everything on it."""
        worker, end = self.calendar.worker(session.status.worker_id or ""), session.status.ends_at
        deadline = worker.status.drain_deadline_at if worker else None
        if worker is None or worker.status.phase is not WorkerPhase.DRAINING or deadline is None or end is None:
            return
        if end > deadline:
            name = worker.metadata.name
            problem = f"its worker {name} is being drained, which ends what is on it at {format_moment(deadline)}"
            raise NoRoom(f"it cannot be extended: {problem}; extend it by less, or undrain {name}", why="draining")

    def _check_extension(self, row: PoolSnapshot, rules: PromiseRules, session: LabletSession, claim: Claim) -> None:
        """Raise NoRoom if a session cannot keep its seat for longer, Conflict if it has moved meanwhile."""
        seats, seat, holder = self.calendar.seats(row), session.status.seat, session_holder(session)
        assert seat is not None, "it is extended on its seat"
        if seats is None or seat.number > len(seats) or holder not in seats[seat.number].held:
            wanted = session.metadata.resource_version
            raise Conflict(key_of(session), wanted=wanted, found=wanted, message=f"{holder} was moved meanwhile")
        answer = extend(seats, seat.number, HeldClaim(holder, claim), rules=rules)
        if isinstance(answer, Refusal):
            raise NoRoom(f"it cannot be extended: {answer.details}; {answer.remedy}", why=answer.reason)

    async def preview_seats(self, booking: Booking, definition: LabletDefinition) -> ChosenSeats:
        """Choose seats without promising them; raise NoRoom with the reason."""
        spent = await self.read_spending(booking)
        with self._begin_trial([booking], self._clock.now(), spent) as trial:
            return trial.choose_seats(booking, definition)

    async def read_spending(self, booking: Booking) -> SpendingByPool:
        """Return what each pool has cost that a booking asks, once the calendar knows what was claimed until now."""
        await self._catch_up([booking])
        return (await self.read_guards_and_spending([booking]))[1]

    def offers_for(self, booking: Booking, now: datetime, spent: SpendingByPool) -> Sequence[PoolOffer]:
        """Return what the pools that a booking asks offer at this moment: other tasks may change it."""
        return self._offers_of(self.calendar, scope_of(booking), now, spent)

    async def _catch_up(self, bookings: Iterable[Resource]) -> None:
        """Wait until the calendar knows the current pools of these bookings' namespaces."""
        await self.calendar.ready()
        for namespace in dict.fromkeys(namespace for namespace, _ in scopes_of(bookings)):
            await self.calendar.wait_for_revision(await pools_revision(self._store, namespace))

    async def read_guards_and_spending(self, bookings: Sequence[Resource]) -> tuple[Guards, SpendingByPool]:
        """Read the guards and the costs of every pool that may promise these bookings.

        Returns once the calendar knows everything that was claimed up to the revision of the guards.
        """
        while True:
            rows = self._pools_for(bookings)
            guards = await read_guards(self._store, *self._guard_keys(rows))
            spent = {ref_of(row.pool): await self._read_spending(row, self._clock.now()) for row in rows}
            await self.calendar.wait_for_revision(guards.revision)
            if {key for key, _ in guards.seen}.issuperset(self._guard_keys(self._pools_for(bookings))):
                return guards, spent

    def preconditions(self, row: PoolSnapshot, guards: Guards) -> PromisePreconditions:
        """Return what the commit must find unchanged: the guards, and the pool.

        The size and the hours of the pool are part of the promise.
        """
        seen = dict(guards.seen)
        used = {key: seen[key] for key in self._guard_keys([row])}
        return PromisePreconditions(used, {key_of(row.pool): row.pool.metadata.resource_version})

    def _begin_trial(
        self, bookings: Iterable[Resource], now: datetime, spent: SpendingByPool, *, apart: bool = False
    ) -> SeatTrial:
        """Start a trial of seats.

        With `apart` it uses copies of the seats: a trial that yields to other tasks must not show them its claims.
        """
        calendar = self.calendar.with_planned(()) if apart else self.calendar
        offers = {one: self._offers_of(calendar, one, now, spent) for one in scopes_of(bookings)}
        return SeatTrial(offers, calendar.terms)

    def _offers_of(
        self, calendar: Calendar, public: PoolScope, now: datetime, spent: SpendingByPool
    ) -> Sequence[PoolOffer]:
        """Return what the pools of a scope offer, as far as it is known what they have cost."""
        rows = [(row, ref_of(row.pool)) for row in self._pools_in(public)]
        return [
            PoolOffer(row, calendar.seats(row), calendar.rules(row, now, spent=spent[ref]), seat_kinds(row))
            for row, ref in rows
            if ref in spent
        ]

    async def read_rules(self, row: PoolSnapshot, now: datetime) -> PromiseRules:
        """Return the rules by which a pool promises at a moment, including what it has cost this month."""
        return self.calendar.rules(row, now, spent=await self._read_spending(row, now))

    async def _read_spending(self, row: PoolSnapshot, now: datetime) -> Spending:
        month = start_of_month(now)
        limited = row.pool.spec.budget.monthly_usd is not None or self.calendar.track_budget(row) is not None
        if not limited or month == now:
            return NOTHING_SPENT
        return spending_of(row.pool, await self.month_spending.read(now), now)

    def _pools_for(self, bookings: Iterable[Resource]) -> Sequence[PoolSnapshot]:
        """Return every pool that may promise any of these bookings."""
        rows = {ref_of(row.pool): row for public in scopes_of(bookings) for row in self._pools_in(public)}
        return list(rows.values())

    def _pools_in(self, public: PoolScope) -> Sequence[PoolSnapshot]:
        return [row for row in self.calendar.pools(*public) if row.pool.metadata.deletion_timestamp is None]

    def _guard_keys(self, rows: Iterable[PoolSnapshot]) -> Sequence[str]:
        keys: dict[str, None] = {}
        for row in rows:
            keys |= dict.fromkeys(pool_guard_keys(self.calendar, ref_of(row.pool)))
        return list(keys)


def spending_of(pool: LabWorkerPool, bill: MonthBill, now: datetime) -> Spending:
    """Return what a bill says of a pool, for the workers that it made or has adopted, and of its track."""
    namespace, adopted = pool.metadata.namespace, [seat.worker_id for seat in pool.status.seats]
    own = bill.pool_usd(namespace, pool.metadata.name, adopted, now)
    return Spending(own, bill.track_usd(namespace, pool.spec.lab_track, now))


def _may_serve(worker: LabWorker) -> bool:
    """Return whether a worker could take sessions now or after a person helped it."""
    return worker.metadata.deletion_timestamp is None and worker.status.phase is not WorkerPhase.TERMINATED


def seat_kinds(row: PoolSnapshot) -> SeatKinds | None:
    """Return what kind each of a pool's seats is; None while the size of its workers is not known."""
    place = template_place(row)
    return seat_kinds_of(row, place) if place is not None else None
