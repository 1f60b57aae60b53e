"""Costs by groups, as people ask for them: what was spent, divided among sessions, and what is booked ahead.

Who does not see the fleet sees what the own sessions cost. Called by `control.plane.local_operations`.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from lcm.control.accounts.ledger import REST_SECONDS, LedgerTurns, read_ledger, sort_groups
from lcm.control.accounts.stays import class_subject, first_month, read_spent
from lcm.control.booking.calendar import Calendar
from lcm.control.booking.estimates import BookedStay, booked_stays, price_bookings
from lcm.control.booking.promise import Promises
from lcm.control.objects.writer import Writer
from lcm.control.plane.bodies import ClassCost, LedgerQuery
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import SEES_ALL
from lcm.model.base.errors import Fault, Forbidden, Invalid
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.money.billing import local_days, next_month, start_of_month, to_usd
from lcm.model.money.ledger import FLEET_GROUPS, CostGroup, CostLedger, CostRow, LedgerSums
from lcm.placement.limits import forecast_cost
from lcm.placement.seats import Span
from lcm.placement.timeline import micros
from lcm.system.tasks import TimeSlice

LONGEST_SPAN: Final = timedelta(days=400)
MOST_DAYS: Final = timedelta(days=62)
_USUAL_SPAN: Final = timedelta(days=30)
_FARTHEST: Final = timedelta(days=800)
_CURSOR_KEPT: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, complete: all of it decides the answer."""

    by: CostGroup
    since: datetime
    until: datetime
    zone: ZoneInfo
    owner: str | None
    as_of: datetime


async def report_costs(writer: Writer, turns: LedgerTurns, promises: Promises | None, query: LedgerQuery) -> CostLedger:
    """Return a page of what groups cost in a span. Raise Invalid, or Forbidden for groups the caller may not see."""
    now = writer.clock.now()
    as_of, after = _parse_cursor(query.cursor, now)
    asked = _understand(writer, query, as_of)

    async def read() -> LedgerSums:
        sums = LedgerSums(asked.by, asked.zone, asked.owner)
        cuts = [start for _, start, _ in _days_in(asked)] if asked.by is CostGroup.DAY else ()
        await read_ledger(writer.store, sums, since=asked.since, until=asked.until, now=asked.as_of, cuts=cuts)
        if promises is not None and asked.until > now:
            await _add_forecast(promises.calendar, sums, asked)
        await sort_groups(sums)
        return sums

    sums = await turns.read_once(writer.caller.name, asked, now, read)
    rows, last = sums.page(after, query.limit)
    booked = sums.forecast
    return CostLedger(
        by=asked.by,
        since=asked.since,
        until=asked.until,
        as_of=asked.as_of,
        total_usd=to_usd(sums.used + sums.unused),
        unused_usd=to_usd(sums.unused),
        forecast_usd=to_usd(booked),
        forecast_unused_usd=to_usd(max(0, sums.machines_ahead - booked)),
        unpriced_seconds=sums.unpriced_seconds,
        stays_since=await first_month(writer.store),
        rows=_with_savings(rows, promises.calendar) if promises and asked.by is CostGroup.POOL else tuple(rows),
        next="" if last is None else f"{asked.as_of.isoformat()}~{last}",
    )


def _with_savings(rows: Sequence[CostRow], calendar: Calendar) -> tuple[CostRow, ...]:
    packed = {row.name: row.pool.status.packing for row in calendar.pools()}
    saved = {name: one.saved_usd for name, one in packed.items() if one is not None}
    return tuple(msgspec.structs.replace(row, saved_usd=saved.get(row.name, Decimal(0))) for row in rows)


async def report_class_cost(writer: Writer, promises: Promises | None, ref: Ref[Reservation]) -> ClassCost:
    """Return what the sessions of a reservation cost, and will cost. Raise Gone if the caller may not see it."""
    booking, now = await writer.read(ref), writer.clock.now()
    began = booking.status.starts_at or booking.metadata.created_at or now
    months = list(_months(began, now))
    ahead = list[int | None]()
    if promises is not None:
        await promises.calendar.ready()
        live = [one for one in promises.calendar.bookings_of(booking.spec.owner) if _is_of_class(one, booking)]
        priced = price_bookings(promises.calendar, [booking, *live], now)
        ahead = [one.micros(one.start, one.end) for one in priced]
    spent = await read_spent(writer.store, class_subject(booking.metadata.uid), months)
    return ClassCost(
        spent_usd=to_usd(sum(spent)),
        booked_usd=to_usd(sum(one or 0 for one in ahead)),
        sessions_ended=len(spent),
        sessions_ahead=len(ahead),
        unpriced=sum(one is None for one in ahead),
    )


def _is_of_class(one: LabletSession | Reservation, booking: Reservation) -> bool:
    owner = one.metadata.owner
    return isinstance(one, LabletSession) and owner is not None and owner.uid == booking.metadata.uid


def _understand(writer: Writer, query: LedgerQuery, as_of: datetime) -> _Question:
    group, caller = query.by, writer.caller
    sees_all = caller.role in SEES_ALL
    if group in FLEET_GROUPS and not sees_all:
        raise Forbidden(f"{caller.name} may not read what a {group} costs; ask for session, class, definition or day")
    since, until = _span_of(query, as_of)
    owner = (query.owner or None) if sees_all else caller.name
    asked = _Question(group, since, until, _zone_of(query.time_zone), owner, as_of)
    longest = MOST_DAYS if group is CostGroup.DAY else LONGEST_SPAN
    if until - since > longest:
        raise Invalid(Fault("until", "too long after since", f"ask for at most {longest.days} days by {group}"))
    return asked


def _span_of(query: LedgerQuery, as_of: datetime) -> tuple[datetime, datetime]:
    if query.month and (query.since or query.until):
        raise Invalid(Fault("month", "a month and a span at once", "leave out month, or both since and until"))
    if query.month:
        zone = _zone_of(query.time_zone)
        start = datetime.strptime(query.month, "%Y-%m").replace(tzinfo=zone)
        end = (start + timedelta(days=32)).replace(day=1)
        return start.astimezone(UTC), end.astimezone(UTC)
    until = query.until or as_of
    since = query.since or until - _USUAL_SPAN
    if since >= until:
        raise Invalid(Fault("since", "not before until", "use an earlier moment"))
    if until > as_of + _FARTHEST:
        raise Invalid(Fault("until", "too far away", f"ask for at most {_FARTHEST.days} days ahead"))
    return since, until


def _zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name or "UTC")
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise Invalid(Fault("time_zone", "there is no such zone", "use a name such as Europe/Berlin")) from error


def _parse_cursor(cursor: str, now: datetime) -> tuple[datetime, str | None]:
    """Return the moment of the first page, and the name behind which the next one begins; None for the first."""
    if not cursor:
        return now, None
    moment, _, after = cursor.partition("~")
    try:
        as_of = datetime.fromisoformat(moment)
    except ValueError:
        as_of = now + _CURSOR_KEPT
    if as_of.tzinfo is None or not now - _CURSOR_KEPT <= as_of <= now:
        raise Invalid(Fault("cursor", "not one of ours, or too old", "use `next` of the page before"))
    return as_of.astimezone(UTC), after


def _days_in(asked: _Question) -> Sequence[tuple[str, datetime, datetime]]:
    return local_days(asked.since, asked.until, asked.zone)


def _months(since: datetime, until: datetime) -> Iterator[datetime]:
    month = start_of_month(since)
    while month <= until:
        yield month
        month = next_month(month)


async def _add_forecast(calendar: Calendar, sums: LedgerSums, asked: _Question) -> None:
    """Add what is booked in the part of a span that is ahead, and what the machines for it will cost."""
    await calendar.ready()
    start, time_slice = max(asked.since, asked.as_of), TimeSlice(rest_seconds=REST_SECONDS)
    by_day = asked.by is CostGroup.DAY
    days = _days_in(replace(asked, since=start)) if by_day else [("", start, asked.until)]
    starts = [since for _, since, _ in days]
    for one in booked_stays(calendar, asked.as_of):
        first = max(0, bisect_right(starts, one.priced.start) - 1)
        for _, since, until in days[first:]:
            if since >= one.priced.end:
                break
            _add_booked(sums, one, since, until)
        await time_slice.yield_if_over()
    if asked.owner is None:
        sums.machines_ahead = forecast_machines(calendar, start, asked.until, asked.as_of)


def _add_booked(sums: LedgerSums, one: BookedStay, since: datetime, until: datetime) -> None:
    cost = one.priced.micros(since, until)
    if cost:
        sums.add_booked(one.stay, one.machine._replace(at=max(since, one.priced.start)), cost)


def forecast_machines(calendar: Calendar, since: datetime, until: datetime, now: datetime) -> int:
    """Return what the workers of all pools will cost in a span for what is booked, in micro-dollars."""
    total, span = 0, Span(micros(since), micros(until))
    for row in calendar.pools():
        seats, hourly = calendar.seats(row), calendar.hourly_cost(row)
        if seats is not None and hourly is not None:
            rules = calendar.rules(row, now)
            total += round(1_000_000 * forecast_cost(seats, span, replace(rules, price=hourly)))
    return total
