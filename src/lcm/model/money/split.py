"""A worker's bill, divided among the sessions that were on it: exact parts, and the rest, which nobody used.

Pure. The worker's time is cut wherever an interval begins or ends and a session comes or goes; in each piece the
sessions pay by their shares. Amounts are whole micro-dollars, divided by the largest remainder, so that all parts add
up to the bill whatever they are grouped by. Used by `control.accounts`.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

from lcm.model.base.capacity import Amount, utilization
from lcm.model.base.resource import Count, Moment, Name, Part, ShortText
from lcm.model.money.billing import BillingInterval, to_usd

WHOLE: Final = 1_000_000
"""All of a worker: shares are in millionths."""
_SHARED_AMOUNTS: Final = ("cpu_millis", "memory_mb", "labs")


class Stay(Part):
    """A session's time on a worker: its share of it, and everything that its cost may be grouped by."""

    session: Name
    session_id: ShortText
    namespace: Name
    definition: Name
    worker_id: ShortText
    share: Count
    since: Moment
    until: Moment
    owner: ShortText = ""
    reservation: ShortText = ""
    reservation_id: ShortText = ""
    lab_track: ShortText = ""


class BillPiece(NamedTuple):
    """A time in which the same sessions were on a worker: what each of them pays, and what nobody used.

    Amounts are micro-dollars.
    """

    paid: BillingInterval
    since: datetime
    parts: Sequence[tuple[Stay, int]]
    unused: int


def share_of(need: Amount, capacity: Amount | None) -> int:
    """Return the part of a worker that a need keeps from others, in millionths; all of one of unknown capacity."""
    if capacity is None:
        return WHOLE
    used = utilization(need, capacity)
    return round(WHOLE * min(1.0, max(used[name] for name in _SHARED_AMOUNTS)))


def apportion(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide an amount by weights, with the largest remainder; without any weight all goes to the last."""
    total = sum(weights)
    if not total:
        return [0] * (len(weights) - 1) + [amount]
    parts = [amount * weight // total for weight in weights]
    left = amount - sum(parts)
    if left:
        order = sorted(range(len(weights)), key=lambda place: (-(amount * weights[place] % total), place))
        for place in order[:left]:
            parts[place] += 1
    return parts


def split_bill(
    bill: Iterable[BillingInterval], stays: Iterable[Stay], now: datetime, cuts: Sequence[datetime] = ()
) -> Iterator[BillPiece]:
    """Divide the intervals of one worker, in the order of time; `cuts` are more moments at which to cut.

    Intervals without a price are left out.
    """
    known = sorted((one for one in stays if one.since < one.until), key=lambda one: (one.since, one.session_id))
    edges = [(one.since, 1, place) for place, one in enumerate(known)]
    edges += [(one.until, -1, place) for place, one in enumerate(known)]
    edges += [(moment, 0, 0) for moment in cuts]
    edges.sort()
    present, place = list[int](), 0
    for paid in bill:
        start, end = paid.since, paid.until or now
        while True:
            while place < len(edges) and edges[place][0] <= start:
                _turn(present, *edges[place][1:])
                place += 1
            until = min(edges[place][0], end) if place < len(edges) else end
            if paid.usd_hourly is not None:
                yield _divide(paid, start, until, [known[one] for one in present])
            if until >= end:
                break
            start = until


def _turn(present: list[int], step: int, place: int) -> None:
    """Add a session to those that are present, or remove it."""
    if step > 0:
        insort(present, place)
    elif step < 0:
        present.remove(place)


def _divide(paid: BillingInterval, since: datetime, until: datetime, stays: Sequence[Stay]) -> BillPiece:
    cost = paid.micros_between(since, until)
    shares = [one.share for one in stays]
    *parts, unused = apportion(cost, [*shares, max(0, WHOLE - sum(shares))])
    return BillPiece(paid, since, list(zip(stays, parts, strict=True)), unused)


class PricedClaim(NamedTuple):
    """A claim's time and share of a worker, and what that costs an hour; None if no price is known."""

    start: datetime
    end: datetime
    share: int
    usd_hourly: Decimal | None

    def micros(self, since: datetime, until: datetime) -> int | None:
        """Return what the claim costs within a span; None if no price is known."""
        if self.usd_hourly is None:
            return None
        seconds = (min(self.end, until) - max(self.start, since)).total_seconds()
        return round(self.usd_hourly * self.share * max(0, round(seconds)) / 3600)


def owner_month_cost(spent: Iterable[int], booked: Iterable[PricedClaim], month: tuple[datetime, datetime]) -> Decimal:
    """Return what an owner's sessions cost in a month: those that left their workers, and those that have claims.

    `spent` are micro-dollars, as `control.accounts.stays.read_spent` returns them. A claim without a known price counts
    as nothing.
    """
    ahead = (one.micros(*month) or 0 for one in booked)
    return to_usd(sum(spent) + sum(ahead))
