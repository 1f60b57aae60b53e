"""Dollars. Exact, so that a month of minutes adds up to the bill."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from lcm.model.base.resource import Count, Moment, Name, Part, Region, ShortText

Usd = Annotated[Decimal, msgspec.Meta(description="US dollars", examples=["3.9641"])]


MINIMUM: Final = timedelta(seconds=60)
"""What every start costs at least."""

_SECOND: Final = timedelta(seconds=1)
_HOUR: Final = Decimal(3600)
_CENT: Final = Decimal("0.0001")


class Billing(StrEnum):
    """What is paid for: machine and disk, or the disk alone."""

    RUNNING = "running"
    STOPPED = "stopped"


class BillingInterval(Part):
    """A stretch during which a worker cost the same; without an end it goes on.

    `usd_hourly` null: the price book has no such price, and nobody knows the cost. One that is cut to a span tells in
    `began_at` when it really began.
    """

    worker_id: ShortText
    worker_name: Name
    namespace: Name
    lab_track: ShortText
    region: Region
    instance_type: ShortText
    instance_id: ShortText
    state: Billing
    usd_hourly: Usd | None
    since: Moment
    until: Moment | None = None
    began_at: Moment | None = None

    def seconds(self, now: datetime) -> Decimal:
        """Say for how many seconds one has to pay until now: whole ones, and a minute at least, while it runs."""
        whole = self._paid((self.until or now) - (self.began_at or self.since))
        # What went before the cut is paid with what went before, so that the parts add up to the whole.
        return whole if self.began_at is None else whole - self._paid(self.since - self.began_at)

    def usd(self, now: datetime) -> Decimal | None:
        """Say what it has cost until now; None means that nobody knows."""
        return None if self.usd_hourly is None else self.usd_hourly * self.seconds(now) / _HOUR

    def _paid(self, span: timedelta) -> Decimal:
        span = max(span, timedelta(0))
        if self.state is Billing.RUNNING:
            span = max(MINIMUM, -(-span // _SECOND) * _SECOND)
        return Decimal(span // timedelta(microseconds=1)) / 1_000_000


class CostTotal(Part):
    """What several intervals cost together; `unpriced_seconds` are those whose price nobody knows."""

    name: ShortText
    usd: Usd
    seconds: Count
    unpriced_seconds: Count


def cut(interval: BillingInterval, since: datetime, until: datetime, now: datetime) -> BillingInterval | None:
    """Give the part of an interval that lies in a span; None when there is none. What goes on still has no end."""
    start, end = max(interval.since, since), min(interval.until or now, until)
    moment = interval.since == end and since <= interval.since < until
    if start >= end and not moment:
        return None
    return msgspec.structs.replace(
        interval,
        since=start,
        until=None if interval.until is None and until > now else end,
        began_at=interval.since if start > interval.since else None,
    )


def totals(
    intervals: Iterable[BillingInterval], by: Callable[[BillingInterval], str], now: datetime
) -> Sequence[CostTotal]:
    """Add up by something that intervals have in common, in the order of its names."""
    groups: dict[str, list[BillingInterval]] = {}
    for one in intervals:
        groups.setdefault(by(one), []).append(one)
    return [total(name, groups[name], now) for name in sorted(groups)]


def total(name: str, intervals: Iterable[BillingInterval], now: datetime) -> CostTotal:
    """Add up intervals; what is not known counts as such, never as nothing."""
    usd = seconds = unpriced = Decimal(0)
    for one in intervals:
        cost, lasted = one.usd(now), one.seconds(now)
        seconds += lasted
        usd += cost or 0
        unpriced += lasted if cost is None else 0
    return CostTotal(name=name, usd=usd.quantize(_CENT), seconds=round(seconds), unpriced_seconds=round(unpriced))
