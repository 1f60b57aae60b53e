"""What bookings take of quotas: one book per owner and scope, and one per scope, kept up with every booking.

A scope is a namespace and a track. `UsageBooks` follows the calendar's bookings, so that a booking is checked against
sums and a timeline, however many bookings there are. What has ended counts in its month; what ended before the process
began is read once, from the archive and from the records of deleted sessions. Used by `control.booking.quota`.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from lcm.control.booking.calendar import Calendar
from lcm.control.objects.archive import archived_prefix
from lcm.control.objects.records import CODEC, DELETED_SESSIONS, read_entry
from lcm.control.plane.protocol import ObjectChange, Ref
from lcm.model.base.capacity import ZERO_AMOUNT, Amount, Claim
from lcm.model.base.clock import Clock
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation, held_slot, occurrences
from lcm.model.kinds.session import (
    PREBUILT_OWNER,
    SESSION_MACHINE,
    DeletedSession,
    LabletSession,
    Seat,
    SessionPhase,
    SessionUse,
    use_of_ended,
)
from lcm.placement.claims import asap_claim, asap_length, need_of, slot_claim
from lcm.placement.places import PoolSnapshot, template_room
from lcm.placement.timeline import Timeline, micros, moment_of
from lcm.store.base import Store, scan_from
from lcm.system.tasks import TimeSlice

Scope = tuple[str, str]
"""A namespace and a lab track."""
Span = tuple[int, int]
"""From when until when, in microseconds since 1970."""
EstimatePrice = Callable[[Claim, Amount, Decimal], Decimal]
"""Returns what a claim costs to its end, on a worker of a capacity with an hourly price, in US dollars."""
MICROS_PER_USD: Final = 1_000_000
_NODES_SHIFT: Final = 32
_SESSIONS_MASK: Final = (1 << _NODES_SHIFT) - 1


class UsedPiece(NamedTuple):
    """What one slot takes: its time, its CML nodes, and micro-dollars.

    One that floats has no start yet: it counts as if it began now, and `end` is its length.
    """

    start: int
    end: int
    nodes: int
    usd: int
    floats: bool = False
    is_pending: bool = False

    def span(self, now: int) -> Span:
        """Return from when until when it counts."""
        return (now, now + self.end) if self.floats else (self.start, self.end)


class UseBook:
    """The sum of pieces: how many there are at any moment, how many begin later, and what each month has."""

    __slots__ = ("_ahead", "_floating", "_later", "_months", "_steps", "ahead_time", "pending", "size")

    def __init__(self) -> None:
        self.size = 0
        self.pending = 0
        self.ahead_time = 0
        self._ahead: list[Span] = []
        self._floating: list[tuple[int, int, int]] = []
        self._later: list[tuple[int, int, int]] | None = None
        """The sums of the lengths, nodes and micro-dollars of what floats from each place on; None if they changed."""
        self._months: dict[int, tuple[int, int]] = {}
        self._steps = Timeline(0)

    def add(self, piece: UsedPiece) -> None:
        """Add a piece."""
        self._count(piece, 1)
        if piece.floats:
            insort(self._floating, (piece.end, piece.nodes, piece.usd))
            self._later = None
        else:
            insort(self._ahead, (piece.start, piece.end))
            self.ahead_time += piece.end - piece.start

    def remove(self, piece: UsedPiece) -> None:
        """Remove a piece that was added."""
        self._count(piece, -1)
        if piece.floats:
            del self._floating[bisect_left(self._floating, (piece.end, piece.nodes, piece.usd))]
            self._later = None
            return
        place = bisect_left(self._ahead, (piece.start, piece.end))
        if self._ahead[place : place + 1] == [(piece.start, piece.end)]:  # unless it has begun
            self.ahead_time -= piece.end - piece.start
            del self._ahead[place]

    def add_extension(self, piece: UsedPiece, *, is_ahead: bool) -> None:
        """Add the time by which a slot becomes longer; that is no slot more."""
        self._count(piece, 1)
        self.ahead_time += (piece.end - piece.start) * is_ahead

    def add_past(self, used: SessionUse) -> None:
        """Add what has ended: it counts in its months only."""
        usd = int((used.cost_usd or 0) * MICROS_PER_USD)
        self._add_to_months(micros(used.since), micros(used.until), usd, 1)

    def count_ahead(self, now: int) -> int:
        """Return how many slots begin later than now."""
        begun = bisect_right(self._ahead, now, key=lambda span: span[0])
        if begun:
            self.ahead_time -= sum(end - start for start, end in self._ahead[:begun])
            del self._ahead[:begun]
        return len(self._ahead)

    def months(self, now: int) -> set[int]:
        """Return the months in which there is anything."""
        return {*self._months, *([month_of(now)] if self._floating else [])}

    def month_sum(self, month: int, now: int) -> Span:
        """Return the time and the micro-dollars of a month; what floats counts in the present one."""
        time, usd = self._months.get(month, (0, 0))
        if self._floating and month == month_of(now):
            length, _, cost = self._sum_floating(0)
            time, usd = time + length, usd + cost
        return time, usd

    def moments_in(self, start: int, end: int) -> Sequence[int]:
        """Return the moments within [start, end) at which anything begins or ends."""
        moments = self._steps.moments
        return moments[bisect_right(moments, start) : bisect_left(moments, end)]

    def level_at(self, moment: int, now: int) -> Span:
        """Return how many sessions and nodes there are at a moment."""
        level = self._steps.used_at(moment)
        sessions, nodes = level & _SESSIONS_MASK, level >> _NODES_SHIFT
        if self._floating and moment >= now:
            first = bisect_right(self._floating, moment - now, key=_length_of)
            sessions, nodes = sessions + len(self._floating) - first, nodes + self._sum_floating(first)[1]
        return sessions, nodes

    def _sum_floating(self, first: int) -> tuple[int, int, int]:
        """Return the sums of what floats from a place on. They are made once for many moments."""
        if self._later is None:
            sums = accumulate(reversed(self._floating), _add_three, initial=(0, 0, 0))
            self._later = list(sums)[::-1]
        return self._later[first]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever added that counts."""
        return not (self.size or self._months)

    def _count(self, piece: UsedPiece, sign: int) -> None:
        self.size += sign
        self.pending += sign * piece.is_pending
        if not piece.floats:
            self._steps.add(piece.start, piece.end, sign * (1 + (piece.nodes << _NODES_SHIFT)))
            self._add_to_months(piece.start, piece.end, piece.usd, sign)

    def _add_to_months(self, start: int, end: int, usd: int, sign: int) -> None:
        for month, part, cost in split_by_month(start, end, usd):
            time, sum_usd = self._months.get(month, (0, 0))
            left = time + sign * part, sum_usd + sign * cost
            if any(left):
                self._months[month] = left
            else:
                self._months.pop(month, None)


def _length_of(floating: tuple[int, int, int]) -> int:
    return floating[0]


def _add_three(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def month_of(moment: int) -> int:
    """Return the number of the UTC month of a moment."""
    at = moment_of(moment)
    return 12 * at.year + at.month - 1


def month_start(month: int) -> datetime:
    """Return when a month begins."""
    return datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)


def split_by_month(start: int, end: int, usd: int) -> Iterator[tuple[int, int, int]]:
    """Yield the months of a time, with the part of the time and of its cost that is in each."""
    month, whole, left = month_of(start), end - start, usd
    while micros(month_start(month + 1)) < end:
        until = micros(month_start(month + 1))
        part = usd * (until - start) // whole
        yield month, until - start, part
        month, start, left = month + 1, until, left - part
    yield month, end - start, left


def find_busiest(books: Sequence[UseBook], spans: Iterable[Span], lane: int, now: int) -> tuple[int, int]:
    """Return the most sessions (lane 0) or nodes (lane 1) of all books together during the spans, and when first."""
    most, when = 0, now
    for start, end in sorted(set(spans)):
        moments = {max(start, min(now, end - 1)), *(one for book in books for one in book.moments_in(start, end))}
        for at in sorted(moments):
            level = sum(book.level_at(at, now)[lane] for book in books)
            if level > most:
                most, when = level, at
    return most, when


class BookingMeter:
    """Measures what bookings take, by what the calendar knows of definitions and pools."""

    def __init__(self, calendar: Calendar, price: EstimatePrice) -> None:
        self._calendar = calendar
        self._price = price
        self._prices: dict[str, tuple[PoolSnapshot, tuple[Decimal, Amount] | None]] = {}

    def measure(self, booking: LabletSession | Reservation, now: datetime) -> dict[int, UsedPiece]:
        """Return the pieces of a booking that has not ended, by number."""
        if isinstance(booking, LabletSession):
            return {0: self._measure_session(booking, now)}
        need = self._need_of(booking)
        scope, held = scope_of(booking), booking.status.held
        if held:
            return {
                one.number: self._piece(held_slot(booking.spec, one), one.claim, one.seat, scope)
                for one in held
                if one.session is None
            }
        slots = [slot for slot in occurrences(booking.spec) for _ in range(booking.spec.count)]
        terms = self._calendar.terms
        return {
            number: self._piece(slot, slot_claim(*slot, need, terms), None, scope) for number, slot in enumerate(slots)
        }

    def measure_extension(self, before: LabletSession, after: LabletSession) -> UsedPiece:
        """Return what the time takes by which a session becomes longer."""
        old, new, claim = before.status.ends_at, after.status.ends_at, before.status.claim
        assert old is not None, "it is extended from an end"
        assert new is not None, "to another end"
        added = Claim(start=old, end=new, need=claim.need if claim else self._need_of(before))
        return self._piece((old, new), added, before.status.seat, scope_of(before))

    def _measure_session(self, session: LabletSession, now: datetime) -> UsedPiece:
        status, spec, scope = session.status, session.spec, scope_of(session)
        claim, terms = status.claim, self._calendar.terms
        spent = int((status.cost_usd or 0) * MICROS_PER_USD)
        start, end = spec.timeslot_start, status.ends_at or spec.timeslot_end
        if start is not None and end is not None:
            claim = claim or slot_claim(start, end, self._need_of(session), terms)
            piece = self._piece((start, end), claim, status.seat, scope)
            return piece._replace(usd=piece.usd + spent)
        runs = [line.at for line in status.history if line.phase == SessionPhase.RUNNING]
        if runs and status.ends_at is not None:
            claim = claim or Claim(start=runs[-1], end=status.ends_at, need=self._need_of(session))
            piece = self._piece((runs[-1], max(runs[-1], status.ends_at)), claim, status.seat, scope)
            return piece._replace(usd=piece.usd + spent)
        claim = claim or asap_claim(session, now, self._need_of(session), terms)
        length = micros(now + asap_length(session, now)) - micros(now)
        waits = status.phase is SessionPhase.PENDING
        usd = self._estimate(claim, status.seat, scope) + spent
        return UsedPiece(0, length, claim.need.nodes, usd, floats=True, is_pending=waits)

    def _piece(self, slot: tuple[datetime, datetime], claim: Claim, seat: Seat | None, scope: Scope) -> UsedPiece:
        start, end = map(micros, slot)
        return UsedPiece(start, end, claim.need.nodes, self._estimate(claim, seat, scope))

    def _need_of(self, booking: LabletSession | Reservation) -> Amount:
        known = self._calendar.get(Ref(LabletDefinition, booking.spec.definition, booking.metadata.namespace))
        session = booking if isinstance(booking, LabletSession) else None
        return (need_of(session, known) if known else None) or ZERO_AMOUNT

    def _estimate(self, claim: Claim, seat: Seat | None, scope: Scope) -> int:
        """Return what a claim costs on its planned worker, or else in the cheapest pool of its track; 0 if unknown."""
        row = self._calendar.pool(Ref(LabWorkerPool, seat.pool, scope[0])) if seat is not None else None
        rows = [row] if row is not None else self._calendar.pools(*scope)
        priced = [self._price(claim, room, hourly) for hourly, room in filter(None, map(self._pool_price, rows))]
        return int(min(priced, default=Decimal(0)) * MICROS_PER_USD)

    def _pool_price(self, row: PoolSnapshot) -> tuple[Decimal, Amount] | None:
        known = self._prices.get(row.name)
        if known is None or known[0] is not row:
            hourly, room = self._calendar.hourly_cost(row), template_room(row)
            known = self._prices[row.name] = row, None if hourly is None or room is None else (hourly, room)
        return known[1]


class UsageBooks:
    """The books of all owners and scopes, in one process."""

    def __init__(self, store: Store, calendar: Calendar, *, clock: Clock, price: EstimatePrice) -> None:
        self.meter = BookingMeter(calendar, price)
        self._store = store
        self._calendar = calendar
        self._clock = clock
        self._by_owner: dict[str, dict[Scope, UseBook]] = {}
        self._owners: list[str] = []
        self._by_scope: dict[Scope, UseBook] = {}
        self._entered: dict[Ref[Any], tuple[str, Scope, Mapping[int, UsedPiece]]] = {}
        self._ended: dict[Ref[Any], str] = {}
        """Sessions that ended and are still live objects, with their uids: their use is counted."""
        self._past: set[str] = set()
        """The uids of those whose use was read from the store when the books were opened."""
        self._opening = asyncio.Lock()
        self._is_open = False

    async def ready(self) -> None:
        """Wait until everything is in the books; the first to ask reads it."""
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                await self._calendar.ready()
                await self._calendar.cache.replay(self._apply_change, (LabletSession, Reservation))
                await self._read_past()
                self._is_open = True

    @property
    def owners(self) -> Sequence[str]:
        """The owners who have or had anything, in the order of their names."""
        return self._owners

    @property
    def scopes(self) -> Iterable[Scope]:
        """The namespaces and tracks in which there is or was anything."""
        return self._by_scope.keys()

    def books_of(self, owner: str) -> Mapping[Scope, UseBook]:
        """Return the books of an owner, by scope."""
        return self._by_owner.get(owner, {})

    def shared_book(self, scope: Scope) -> UseBook:
        """Return the book of everybody in a scope."""
        return self._by_scope.get(scope) or UseBook()

    @contextmanager
    def without(self, refs: Iterable[Ref[Any]]) -> Iterator[None]:
        """Leave bookings out of the books inside the block. Nothing may be awaited in it."""
        left = {ref: self._entered.pop(ref) for ref in refs if ref in self._entered}
        for owner, scope, pieces in left.values():
            self._change_books(owner, scope, pieces, {})
        try:
            yield
        finally:
            for ref, (owner, scope, pieces) in left.items():
                self._change_books(owner, scope, {}, pieces)
                self._entered[ref] = owner, scope, pieces

    def _apply_change(self, seen: ObjectChange) -> None:
        if seen.ref.kind not in {LabletSession, Reservation}:
            return
        booking = seen.resource if isinstance(seen.resource, LabletSession | Reservation) else None
        if booking is not None and booking.spec.owner == PREBUILT_OWNER:
            return  # prebuilt labs count towards nobody's limits
        is_over = booking is not None and _has_ended(booking)
        self._enter(seen.ref, None if is_over else booking)
        if isinstance(booking, LabletSession) and is_over:
            if self._ended.get(seen.ref) != booking.metadata.uid:
                self._ended[seen.ref] = booking.metadata.uid
                self._add_past(booking.metadata.uid, use_of_ended(booking))
        elif self._ended.pop(seen.ref, None) is None and booking is None and isinstance(seen.before, LabletSession):
            self._add_past(seen.before.metadata.uid, self._assume_use(seen.before))

    def _assume_use(self, session: LabletSession) -> SessionUse:
        """Return what a session took that went with its last step, which is not seen: by what is known before it."""
        used, now = use_of_ended(session), self._clock.now()
        if session.status.phase is not SessionPhase.RUNNING:
            return used
        until, piece = max(used.since, now), self.meter.measure(session, now)[0]
        share = (until - used.since) / (moment_of(piece.end) - moment_of(piece.start) or timedelta.max)
        usd = Decimal(int(piece.usd * min(1, share))) / MICROS_PER_USD
        return msgspec.structs.replace(used, until=until, cost_usd=usd)

    def _enter(self, ref: Ref[Any], booking: LabletSession | Reservation | None) -> None:
        """Bring the books up to date with a booking; what it already had there stays untouched."""
        owner, scope, before = self._entered.pop(ref, ("", ("", ""), {}))
        if booking is None:
            self._change_books(owner, scope, before, {})
            return
        after = self.meter.measure(booking, self._clock.now())
        now_of = booking.spec.owner, scope_of(booking)
        if before and (owner, scope) != now_of:
            self._change_books(owner, scope, before, {})
            before = {}
        self._change_books(*now_of, before, after)
        self._entered[ref] = (*now_of, after)

    def _change_books(
        self, owner: str, scope: Scope, before: Mapping[int, UsedPiece], after: Mapping[int, UsedPiece]
    ) -> None:
        if before == after:
            return
        books = self._books_for(owner, scope)
        for number in before.keys() | after.keys():
            old, new = before.get(number), after.get(number)
            if old != new:
                for book in books:
                    if old is not None:
                        book.remove(old)
                    if new is not None:
                        book.add(new)
        if not after and books[0].is_empty:
            del self._by_owner[owner][scope]
            if not self._by_owner[owner]:
                del self._by_owner[owner]
                del self._owners[bisect_left(self._owners, owner)]

    def _books_for(self, owner: str, scope: Scope) -> tuple[UseBook, UseBook]:
        if owner not in self._by_owner:
            self._by_owner[owner] = {}
            insort(self._owners, owner)
        own = self._by_owner[owner].setdefault(scope, UseBook())
        return own, self._by_scope.setdefault(scope, UseBook())

    def _add_past(self, uid: str, used: SessionUse) -> None:
        if uid in self._past or used.until < month_start(month_of(micros(self._clock.now()))):
            return
        if used.owner == PREBUILT_OWNER:
            return
        for book in self._books_for(used.owner, (used.namespace, used.lab_track)):
            book.add_past(used)

    async def _read_past(self) -> None:
        """Read what ended this month and is no longer among the live objects."""
        begin, live = month_start(month_of(micros(self._clock.now()))), set(self._ended.values())
        prefix, time_slice = archived_prefix(LabletSession), TimeSlice()
        async for entry in scan_from(self._store, prefix, f"{prefix}{begin:%Y%m%dT%H%M%S.%fZ}"):
            session = read_entry(entry, LabletSession)
            self._read_past_use(session.metadata.uid, use_of_ended(session), live)
            await time_slice.yield_if_over()
        async for entry in scan_from(self._store, DELETED_SESSIONS, DELETED_SESSIONS):
            gone = CODEC.decode(entry.value, DeletedSession)
            if gone.used is not None and gone.ended_at >= begin:
                self._read_past_use(entry.key.removeprefix(DELETED_SESSIONS), gone.used, live)
            await time_slice.yield_if_over()

    def _read_past_use(self, uid: str, used: SessionUse, live: set[str]) -> None:
        if uid not in live:
            self._add_past(uid, used)
            self._past.add(uid)


def scope_of(booking: Resource) -> Scope:
    """Return the namespace and the track of a booking."""
    assert isinstance(booking, LabletSession | Reservation), "nothing else is booked"
    return booking.metadata.namespace, booking.spec.lab_track


def _has_ended(booking: LabletSession | Reservation) -> bool:
    machine = SESSION_MACHINE if isinstance(booking, LabletSession) else RESERVATION_MACHINE
    return booking.status.phase in machine.final
