"""Limits per owner: how many sessions may wait, how many may run at once, how many slots are booked and how far ahead.

What an owner uses is derived from the bookings that the calendar follows; nothing is counted up and down. A booking
under limits is checked in its commit, which writes the guard of its owner: of two that would pass only one at a time,
the second is decided again. Staff and services are not limited; what they book for an owner counts as that owner's.
Called by `control.plane.local`, `control.objects.apply` and `control.booking.explain`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lcm.control.booking.calendar import Calendar
from lcm.control.booking.guards import Guards, owner_guard_key, read_guards
from lcm.model.access.identity import SEES_ALL, Caller
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation, occurrences
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap
from lcm.model.kinds.settings import QuotaSettings, SystemSettings
from lcm.placement.candidate import format_moment
from lcm.placement.claims import asap_length, booked_slot
from lcm.store.base import Op, Store

Span = tuple[datetime, datetime]
_MORE: Final = "an operator may book more for you, or raise"
LIMIT_REMEDIES: Final = {
    "pending_limit": f"wait until one has started, or cancel one; {_MORE} MAX_PENDING_PER_OWNER",
    "live_limit": f"choose another time, book fewer, or cancel one; {_MORE} MAX_LIVE_PER_OWNER",
    "ahead_limit": f"book fewer, or cancel some; {_MORE} MAX_AHEAD_PER_OWNER",
    "horizon_limit": f"choose an earlier time; {_MORE} BOOKING_HORIZON_DAYS",
}
"""What an owner can do about each limit, and who can grant more."""


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """How much one owner may have: sessions waiting, sessions at once, slots ahead, and how far ahead."""

    pending: int = 10
    live: int = 10
    ahead: int = 50
    horizon: timedelta = timedelta(days=90)

    def with_settings(self, system: SystemSettings | None) -> "OwnerLimits":
        """Return the limits overridden by what the SystemSettings object sets."""
        own = system.spec.quotas if system else QuotaSettings()
        return OwnerLimits(
            pending=self.pending if own.max_pending is None else own.max_pending,
            live=self.live if own.max_live is None else own.max_live,
            ahead=self.ahead if own.max_ahead is None else own.max_ahead,
            horizon=self.horizon if own.horizon_days is None else timedelta(days=own.horizon_days),
        )


@dataclass(frozen=True, slots=True)
class OwnerUse:
    """What bookings take of their owner's limits: how many wait, how many begin later, when all of them run.

    `latest` is the last moment at which one of them may begin.
    """

    latest: datetime
    spans: Sequence[Span] = ()
    pending: int = 0
    ahead: int = 0


def compute_use(bookings: Iterable[LabletSession | Reservation], now: datetime) -> OwnerUse:
    """Compute what bookings that have not ended take; a session that waits counts as if it began now."""
    pending, spans, latest = 0, list[Span](), now
    for one in bookings:
        if isinstance(one, Reservation):
            spans += _reserved_spans(one)
        elif is_asap(one):
            pending += one.status.phase is SessionPhase.PENDING
            spans.append((now, now + asap_length(one, now)))
            latest = max(latest, one.spec.give_up_at or now)
        else:
            assert one.spec.timeslot_start is not None, "it has a slot"
            end = one.status.ends_at or one.spec.timeslot_end
            assert end is not None, "so it has an end"
            spans.append((one.spec.timeslot_start, end))
    spans = [(start, end) for start, end in spans if end > now]
    ahead = sum(start > now for start, _ in spans)
    return OwnerUse(max([latest, *(start for start, _ in spans)]), spans, pending, ahead)


def _reserved_spans(booking: Reservation) -> Sequence[Span]:
    """Return the slots that a reservation holds itself; it holds none yet that it does not ask for."""
    if booking.status.held:
        return [booked_slot(booking, one.claim) for one in booking.status.held if one.session is None]
    return [slot for slot in occurrences(booking.spec) for _ in range(booking.spec.count)]


def find_busiest(added: Iterable[Span], others: Iterable[Span]) -> tuple[int, datetime | None]:
    """Return how many spans overlap at most while one of the added ones lasts, and the first moment of that."""
    changes = [(start, 1, True) for start, _ in added] + [(end, -1, True) for _, end in added]
    changes += [(start, 1, False) for start, _ in others] + [(end, -1, False) for _, end in others]
    total = own = most = 0
    at: datetime | None = None
    for moment, by, is_added in sorted(changes):  # at the same moment, ends come before starts
        total += by
        own += by * is_added
        if own and total > most:
            most, at = total, moment
    return most, at


def refuse_excess(owner: str, limits: OwnerLimits, have: OwnerUse, more: OwnerUse, now: datetime) -> None:
    """Raise NoRoom if more bookings take an owner above a limit; it says what is left and who can grant more."""
    if more.latest > now + limits.horizon:
        until, days = format_moment(now + limits.horizon), limits.horizon // timedelta(days=1)
        problem = f"{owner} may book {days} days ahead, until {until}, and this is for {format_moment(more.latest)}"
        raise _refusal("horizon_limit", problem)
    if more.pending and have.pending + more.pending > limits.pending:
        problem = _describe_left(owner, "waiting", have.pending, limits.pending, more.pending)
        raise _refusal("pending_limit", problem)
    most, at = find_busiest(more.spans, have.spans)
    if most > limits.live and at is not None:
        before = sum(start <= at < end for start, end in have.spans)
        problem = _describe_left(owner, f"at {format_moment(at)}", before, limits.live, most - before)
        raise _refusal("live_limit", problem)
    if more.ahead and have.ahead + more.ahead > limits.ahead:
        problem = _describe_left(owner, "booked ahead", have.ahead, limits.ahead, more.ahead)
        raise _refusal("ahead_limit", problem)


def _describe_left(owner: str, state: str, have: int, most: int, asked: int) -> str:
    left = max(0, most - have)
    return f"{owner} has {have} of at most {most} sessions {state}: {left} left, {asked} asked for"


def _refusal(why: str, problem: str) -> NoRoom:
    return NoRoom(f"{problem}; {LIMIT_REMEDIES[why]}", why=why)


def is_limited(caller: Caller, made: Iterable[Resource]) -> bool:
    """Return whether a caller's limits bound what is made: bookings of anybody but staff, who book for themselves."""
    return caller.role not in SEES_ALL and any(isinstance(one, LabletSession | Reservation) for one in made)


class OwnerQuota:
    """Checks bookings against the limits of their owner."""

    def __init__(self, store: Store, calendar: Calendar, limits: OwnerLimits, *, clock: Clock) -> None:
        self._store = store
        self._calendar = calendar
        self._limits = limits
        self._clock = clock

    async def check_new(self, caller: Caller, made: Sequence[Resource]) -> Sequence[Op]:
        """Return operations that must join the commit of new bookings; raise NoRoom if they are above a limit."""
        bookings = [one for one in made if isinstance(one, LabletSession | Reservation)]
        if not is_limited(caller, bookings):
            return ()
        return await self._check(caller.name, lambda now: compute_use(bookings, now))

    async def check_extension(self, caller: Caller, before: LabletSession, after: LabletSession) -> Sequence[Op]:
        """Return operations that must join the commit of an extension; raise NoRoom if too many would run then."""
        old, new = before.status.ends_at, after.status.ends_at
        if old is None or new is None or new <= old or not is_limited(caller, [after]):
            return ()
        return await self._check(caller.name, lambda now: OwnerUse(now, [(old, new)]))

    async def read_use(self, owner: str) -> tuple[OwnerLimits, OwnerUse, Guards]:
        """Return an owner's limits, what the owner's bookings take of them, and the guards at which that is so."""
        await self._calendar.ready()
        guards = await read_guards(self._store, owner_guard_key(owner))
        await self._calendar.wait_for_revision(guards.revision)
        limits = self._limits.with_settings(next(iter(self._calendar.all(SystemSettings)), None))
        return limits, compute_use(self._calendar.bookings_of(owner), self._clock.now()), guards

    async def _check(self, owner: str, added: Callable[[datetime], OwnerUse]) -> Sequence[Op]:
        limits, have, guards = await self.read_use(owner)
        now = self._clock.now()
        refuse_excess(owner, limits, have, added(now), now)
        return guards.ops(owner)
