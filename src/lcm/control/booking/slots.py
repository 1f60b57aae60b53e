"""Which starts of a booking would be accepted now, and at what price. Called by `control.plane.local_operations`.

Every start passes the checks of a booking: admission, the limits of the owner, and the pools in their order, by the
same functions. Nothing is held: a slot is taken only when it is booked.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count, takewhile
from typing import Final

import msgspec

from lcm.control.accounts.costs import estimate_cost
from lcm.control.booking.explain import draft_session, split_refusal
from lcm.control.booking.promise import Promises, SpendingByPool, no_pool_error, sort_offers, suitable_seats
from lcm.control.booking.request import claims_of, request_of, scope_of
from lcm.control.objects.writer import Writer
from lcm.model.base.capacity import Claim
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Invalid, NoRoom
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import MAX_SLOTS, PreviewRequest, SlotOffer, SlotOffers, SlotRequest
from lcm.model.kinds.session import LabletSession
from lcm.placement.seat_choice import refusal_rank
from lcm.placement.slot_offers import PoolSurvey
from lcm.system.tasks import TimeSlice

_MINUTE: Final = timedelta(minutes=1)
_LONGEST_LOOK: Final = 1.0
"""Seconds after which a request is answered with the starts that were looked at by then."""
_FARTHEST: Final = timedelta(days=800)
_FAULT_PATHS: Final = {"timeslot_start": "since", "timeslot_end": "duration_minutes"}
LimitCheck = Callable[[LabletSession], None]
"""Raises NoRoom if a booking is above a limit of its owner."""


@dataclass(frozen=True, slots=True)
class _PoolPrice:
    """A pool that may take the booking, and what a session costs there; None if no price is known."""

    name: str
    survey: PoolSurvey
    usd: Decimal | None


async def list_slots(writer: Writer, promises: Promises, asked: SlotRequest) -> SlotOffers:
    """Return which starts would be accepted if they were booked now; raise Invalid for what could never be booked.

    Raise Throttled when too many ask at once.
    A look that takes too long ends early: `until` says before which moment all starts were looked at.
    """
    async with promises.survey_turns.hold(writer.caller.name):
        return await _survey_starts(writer, promises, asked)


async def _survey_starts(writer: Writer, promises: Promises, asked: SlotRequest) -> SlotOffers:
    now, step = writer.clock.now(), asked.step_minutes * _MINUTE
    starts = _starts(asked, step, now)
    session, definition = await _draft_at(writer, asked, starts[0] if starts else now + step)
    check = await _limit_check(writer, promises)
    spent = await promises.read_spending(session)
    look = _Look(promises, writer.clock, session, definition, spent, check)
    offers, until = list[SlotOffer](), asked.until
    for start in starts:
        offers.append(look.ask(start))
        if await look.is_over():
            until = start + step
            break
    return SlotOffers(
        definition=session.spec.definition,
        since=asked.since,
        until=until,
        usd=look.lowest_price(),
        regions=look.list_regions(),
        slots=tuple(offers),
    )


def _starts(asked: SlotRequest, step: timedelta, now: datetime) -> Sequence[datetime]:
    """Return the starts that are asked about and not past; raise Invalid if they are too many."""
    if asked.until <= asked.since:
        raise Invalid(Fault("until", "not after since", "use a later moment"))
    if asked.until > now + _FARTHEST:
        raise Invalid(Fault("until", "too far away", f"ask for at most {_FARTHEST.days} days ahead"))
    if asked.until - asked.since > MAX_SLOTS * step:
        raise Invalid(Fault("until", "too long after since", f"ask for at most {MAX_SLOTS} starts at once"))
    every = (asked.since + number * step for number in count())
    return [start for start in takewhile(lambda start: start < asked.until, every) if start > now]


async def _draft_at(writer: Writer, asked: SlotRequest, start: datetime) -> tuple[LabletSession, LabletDefinition]:
    """Admit a booking that starts then; faults are reported under the names of the request's own fields."""
    wish = PreviewRequest(
        definition=asked.definition,
        namespace=asked.namespace,
        timeslot_start=start,
        timeslot_end=start + asked.duration_minutes * _MINUTE,
        lab_track=asked.lab_track,
        region_required=asked.region_required,
        region_preferred=asked.region_preferred,
    )
    try:
        return await draft_session(writer, wish)
    except Invalid as error:
        faults = [Fault(_FAULT_PATHS.get(one.path, one.path), one.problem, one.remedy) for one in error.faults]
        raise Invalid(*faults) from error


@dataclass(slots=True)
class _Look:
    """One look at many starts of a booking. Other tasks run in between; what they change is seen."""

    promises: Promises
    clock: Clock
    session: LabletSession
    definition: LabletDefinition
    spent: SpendingByPool
    check: LimitCheck
    time_slice: TimeSlice = field(default_factory=TimeSlice)
    pools: Sequence[_PoolPrice | NoRoom] = ()
    begun: float = 0.0
    changes: int = 0

    def __post_init__(self) -> None:
        self.begun = asyncio.get_running_loop().time()
        self._find_pools()

    def ask(self, start: datetime) -> SlotOffer:
        """Return whether a booking that starts then would be accepted."""
        session = _moved(self.session, start)
        (claim,) = claims_of(session, self.definition, self.promises.calendar.terms)
        try:
            self.check(session)
            return self._ask_pools(start, claim)
        except NoRoom as error:
            reason, remedy = split_refusal(error)
            return SlotOffer(start=start, why=error.why, reason=reason, remedy=remedy)

    def lowest_price(self) -> Decimal | None:
        """Return the lowest price of any pool that could take the booking; None if none is known."""
        prices = [one.usd for one in self.pools if not isinstance(one, NoRoom) and one.usd is not None]
        return min(prices, default=None)

    def list_regions(self) -> tuple[str, ...]:
        """Return the regions of all pools of the booking's track, whichever it wishes for."""
        namespace, track = scope_of(self.session)
        rows = self.promises.calendar.pools(namespace)
        return tuple(sorted({row.template.spec.worker.aws.region for row in rows if row.pool.spec.lab_track == track}))

    async def is_over(self) -> bool:
        """Return whether the look has taken too long; other tasks run first, if it is time."""
        if not await self.time_slice.yield_if_over():
            return False
        if self.changes != self.promises.calendar.changes:
            self._find_pools()
        return asyncio.get_running_loop().time() - self.begun > _LONGEST_LOOK

    def _ask_pools(self, start: datetime, claim: Claim) -> SlotOffer:
        refused = list[NoRoom]()
        for pool in self.pools:
            if isinstance(pool, NoRoom):
                refused.append(pool)
                continue
            answer = pool.survey.ask(claim)
            if isinstance(answer, int):
                return SlotOffer(start=start, pool=pool.name, usd=pool.usd)
            why, details = answer
            refused.append(NoRoom(f"pool {pool.name}: {details}", why=why))
        if not refused:
            raise no_pool_error(scope_of(self.session))
        raise max(refused, key=lambda one: refusal_rank(one.why))

    def _find_pools(self) -> None:
        self.changes = self.promises.calendar.changes
        self.pools = list(self._iterate_pools())

    def _iterate_pools(self) -> Iterator[_PoolPrice | NoRoom]:
        """Yield the pools that the booking asks, in their order; the refusal of each that never takes it."""
        calendar = self.promises.calendar
        (claim,) = claims_of(self.session, self.definition, calendar.terms)
        request = request_of(self.session, self.definition, claim, calendar.terms)
        offers = self.promises.offers_for(self.session, self.clock.now(), self.spent)
        for offer in sort_offers(offers, request):
            try:
                seats, rules = suitable_seats(offer, request)
            except NoRoom as error:
                yield error
                continue
            hourly = calendar.hourly_cost(offer.row)
            usd = None if hourly is None else estimate_cost(claim, seats.capacity, hourly)
            yield _PoolPrice(offer.row.name, PoolSurvey(seats, rules), usd)


async def _limit_check(writer: Writer, promises: Promises) -> LimitCheck:
    """Return the check of the caller's limits by what is booked now; it passes everything for whom there are none."""
    quota = promises.quota
    if quota is None:
        return lambda _: None
    bounds = await quota.open_bounds(writer.caller)
    return lambda wanted: quota.refuse_booking(bounds, wanted)


def _moved(session: LabletSession, start: datetime) -> LabletSession:
    """Return a booking with another start, as long as before."""
    spec, status = session.spec, session.status
    assert spec.timeslot_start is not None, "it was admitted with a slot"
    assert spec.timeslot_end is not None, "likewise"
    end = start + (spec.timeslot_end - spec.timeslot_start)
    return msgspec.structs.replace(
        session,
        spec=msgspec.structs.replace(spec, timeslot_start=start, timeslot_end=end),
        status=msgspec.structs.replace(status, ends_at=end, expires_at=end),
    )
