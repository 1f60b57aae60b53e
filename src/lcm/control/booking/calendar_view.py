"""The calendar as people see it: seats and workers against time. Called by `control.plane.local_operations`.

Everybody sees when something is taken; by whom, only those who may see the booking itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from lcm.control.booking.calendar import Calendar
from lcm.control.booking.guards import pool_guard_key, read_guards
from lcm.control.booking.promise import Promises
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.access.identity import SEES_ALL, Caller
from lcm.model.access.learner import can_see
from lcm.model.base.capacity import Amount
from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.placement import MAX_BOOKED, MAX_ROWS, Booked, CalendarRow, CalendarView, Slot
from lcm.model.kinds.pool import LabWorkerPool, PoolPacking
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, get_claim
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.split import WHOLE, share_of
from lcm.placement.claims import booked_slot, slot_of
from lcm.placement.hours import open_times_of
from lcm.placement.places import session_holder
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, Span, join_spans
from lcm.placement.timeline import micros, moment_of
from lcm.system.tasks import TimeSlice

LONGEST_SPAN: Final = timedelta(days=62)


@dataclass(frozen=True, slots=True)
class _CalendarSeat:
    """One row of the calendar, before its claims are reduced to what the caller may see."""

    namespace: str
    pool: str
    seat: int
    worker: LabWorker | None
    claims: Iterable[HeldClaim]
    capacity: Amount | None
    runs: Sequence[Span] = ()
    usd_hourly: Decimal | None = None


async def show_calendar(
    writer: Writer, promises: Promises, *, since: datetime, until: datetime, namespace: str | None
) -> CalendarView:
    """Return all seats, pool by pool, and the workers outside of pools; raise Invalid for too long a span."""
    if until - since > LONGEST_SPAN:
        raise Invalid(Fault("until", "too long after since", f"ask for at most {LONGEST_SPAN.days} days"))
    known = promises.calendar
    await known.ready()
    guards = await read_guards(writer.store, *(pool_guard_key(ref_of(row.pool)) for row in known.pools(namespace)))
    await known.wait_for_revision(guards.revision)
    rows, booked, left_off, time_slice = list[CalendarRow](), 0, 0, TimeSlice()
    detailed = writer.caller.role in SEES_ALL
    span = Span(micros(since), micros(until)) if detailed else None
    seats = _pool_seats(known, namespace, span)
    for line in (*seats, *_unpooled_workers(known, namespace)):
        if len(rows) >= MAX_ROWS or booked >= MAX_BOOKED:
            left_off += 1
            continue
        rows.append(_calendar_row(known, line, writer.caller, since, until))
        booked += len(rows[-1].booked)
        await time_slice.yield_if_over()
    packing = _packing_by_pool(known, namespace) if detailed else {}
    return CalendarView(since=since, until=until, rows=tuple(rows), rows_left_off=left_off, packing=packing)


def _packing_by_pool(known: Calendar, namespace: str | None) -> Mapping[str, PoolPacking]:
    pools = (row.pool for row in known.pools(namespace))
    return {f"{one.metadata.namespace}/{one.metadata.name}": one.status.packing for one in pools if one.status.packing}


def _pool_seats(known: Calendar, namespace: str | None, span: Span | None) -> Iterator[_CalendarSeat]:
    """Yield the seats of all pools; with a span also when their workers must run in it, and their price."""
    for row in known.pools(namespace):
        claims = defaultdict[int, list[HeldClaim]](list)
        for number, held in known.claims(ref_of(row.pool)):
            claims[number].append(held)
        place, seats, price = row.pool.metadata, known.seats(row), known.hourly_cost(row) if span else None
        opened = list(open_times_of(row.pool).open_spans(span)) if span else []
        for number in range(1, max([row.pool.spec.max_workers, *claims, *row.workers]) + 1):
            seat = seats[number] if seats is not None and number <= len(seats) else None
            yield _CalendarSeat(
                place.namespace,
                place.name,
                number,
                row.workers.get(number),
                claims.get(number, ()),
                seat.capacity if seat else None,
                _runs_of(seats, number, opened) if span and seats is not None and seat else (),
                price,
            )


def _runs_of(seats: Seats, number: int, opened: Sequence[Span]) -> Sequence[Span]:
    """Return when a seat's worker must run: for its claims, and one that always runs while the pool is open."""
    return join_spans(sorted([*opened, *seats.runs(number)])) if number in seats.always else seats.runs(number)


def _unpooled_workers(known: Calendar, namespace: str | None) -> Iterator[_CalendarSeat]:
    pooled = {seat.worker_id for pool in known.all(LabWorkerPool) for seat in pool.status.seats}
    workers = sorted(known.all(LabWorker), key=lambda one: (one.metadata.namespace, one.metadata.name))
    for worker in workers:
        uid, place = worker.metadata.uid, worker.metadata
        if uid not in pooled and namespace in (None, place.namespace):
            on_it = ((session_holder(one), get_claim(one)) for one in known.sessions_on(uid))
            yield _CalendarSeat(
                place.namespace,
                "",
                0,
                worker,
                [HeldClaim(name, claim) for name, claim in on_it if claim],
                worker.status.capacity,
            )


def _calendar_row(
    known: Calendar, line: _CalendarSeat, caller: Caller, since: datetime, until: datetime
) -> CalendarRow:
    shown = [one for one in line.claims if one.claim.overlaps(since, until)]
    shown.sort(key=lambda one: (one.claim.start, one.claim.end, one.holder))
    return CalendarRow(
        namespace=line.namespace,
        pool=line.pool,
        seat=line.seat,
        worker=line.worker.metadata.name if line.worker else "",
        phase=line.worker.status.phase if line.worker else "",
        booked=tuple(_show_claim(known, one, caller, line.capacity) for one in shown),
        runs=tuple(_clip_runs(line.runs, since, until)),
        usd_hourly=line.usd_hourly,
    )


def _clip_runs(runs: Iterable[Span], since: datetime, until: datetime) -> Iterator[Slot]:
    first, last = micros(since), micros(until)
    for run in runs:
        if run.start < last and run.end > first:
            yield Slot(start=moment_of(max(run.start, first)), end=moment_of(min(run.end, last)))


def _show_claim(known: Calendar, held: HeldClaim, caller: Caller, capacity: Amount | None) -> Booked:
    claim, booking = held.claim, _find_booking(known, held.holder)
    number = int(held.holder.partition("#")[2] or 0)
    start, end = booked_slot(booking, claim, number) if booking else slot_of(claim, known.terms)
    share = share_of(claim.need, capacity) / WHOLE if capacity else None
    if booking is None or not can_see(caller, booking):
        return Booked(start=claim.start, end=claim.end, slot=Slot(start=start, end=end), share=share)
    return Booked(
        start=claim.start,
        end=claim.end,
        slot=Slot(start=start, end=end),
        share=share,
        kind=booking.kind,
        name=booking.metadata.name,
        owner=booking.spec.owner,
        phase=booking.status.phase,
    )


def _find_booking(known: Calendar, holder: str) -> LabletSession | Reservation | None:
    """Look up the holder of a claim: a session, or a reservation with the number of the claim after "#"."""
    namespace, _, named = holder.partition("/")
    name, numbered, _ = named.partition("#")
    if numbered:
        return known.get(Ref(Reservation, name, namespace))
    return known.get(Ref(LabletSession, name, namespace))
