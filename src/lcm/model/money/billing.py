"""What workers cost: intervals in one billing state, each with the price at which it began.

Pure. The control plane opens and closes intervals in the commits that report what EC2 said
(`control.accounts.costs`).
Amounts are decimal US dollars, so that a month of minutes adds up exactly to the bill.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final
from zoneinfo import ZoneInfo

import msgspec

from lcm.model.base.resource import Count, Moment, Name, Part, Region, ShortText

Usd = Annotated[Decimal, msgspec.Meta(description="US dollars", examples=["3.9641"])]


MINIMUM_CHARGE: Final = timedelta(seconds=60)
"""The shortest time for which every start is billed."""

MICROS_PER_USD: Final = 1_000_000
"""Exact amounts are whole micro-dollars."""

_SECOND: Final = timedelta(seconds=1)
_SECONDS_PER_HOUR: Final = Decimal(3600)
_USD_PRECISION: Final = Decimal("0.000001")


def to_usd(micros: int) -> Decimal:
    """Return micro-dollars as dollars."""
    return (Decimal(micros) / MICROS_PER_USD).quantize(_USD_PRECISION)


class Billing(StrEnum):
    """What is billed: machine and disk, or the disk alone."""

    RUNNING = "running"
    STOPPED = "stopped"


class BillingInterval(Part):
    """A time during which a worker had one price; without an end it is still open.

    `usd_hourly` null means that the price book has no such price, so the cost is unknown. An interval that
    was clipped to a span has its true beginning in `began_at`.
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
    pool: ShortText = ""
    """The pool that made the worker, if one did."""
    on_demand_usd_hourly: Usd | None = None
    """What a spot machine would have cost on demand; null for others, or if that is not known."""

    def seconds(self, now: datetime) -> Decimal:
        """Return the seconds billed until now. While running: whole seconds, at least a minute."""
        whole = self._billable_seconds((self.until or now) - (self.began_at or self.since))
        # The part before the clip is billed there, so that all parts add up to the whole interval.
        return whole if self.began_at is None else whole - self._billable_seconds(self.since - self.began_at)

    def usd(self, now: datetime) -> Decimal | None:
        """Return the cost until now; None means that it is unknown."""
        return None if self.usd_hourly is None else self.usd_hourly * self.seconds(now) / _SECONDS_PER_HOUR

    def saved_usd(self, now: datetime) -> Decimal:
        """Return what was saved until now by a spot machine, as far as it is known."""
        if self.usd_hourly is None or self.on_demand_usd_hourly is None:
            return Decimal(0)
        return (self.on_demand_usd_hourly - self.usd_hourly) * self.seconds(now) / _SECONDS_PER_HOUR

    def micros_between(self, start: datetime, end: datetime) -> int:
        """Return what a part of it costs in whole micro-dollars; nothing if the price is unknown.

        The costs of parts that follow one another add up to the cost of all of them.
        """
        begin = self.began_at or self.since
        return self._micros_until(end) - (self._micros_until(start) if start > begin else 0)

    def micros(self, now: datetime) -> int:
        """Return what it costs until now in whole micro-dollars; nothing if the price is unknown."""
        return self.micros_between(self.since, self.until or now)

    def _micros_until(self, moment: datetime) -> int:
        usd_hourly, seconds = self.usd_hourly or 0, self._billable_seconds(moment - (self.began_at or self.since))
        return round(MICROS_PER_USD * usd_hourly * seconds / _SECONDS_PER_HOUR)

    def _billable_seconds(self, span: timedelta) -> Decimal:
        span = max(span, timedelta(0))
        if self.state is Billing.RUNNING:
            span = max(MINIMUM_CHARGE, -(-span // _SECOND) * _SECOND)
        return Decimal(span // timedelta(microseconds=1)) / 1_000_000


class CostTotal(Part):
    """The cost of several intervals; `unpriced_seconds` are those with an unknown price.

    `saved_usd` is what spot machines among them saved, as far as it is known what they would have cost on demand.
    """

    name: ShortText
    usd: Usd
    seconds: Count
    unpriced_seconds: Count
    saved_usd: Usd = Decimal(0)


def clip_interval(interval: BillingInterval, since: datetime, until: datetime, now: datetime) -> BillingInterval | None:
    """Return the part of an interval within a span; None when there is none. An open interval stays open."""
    start, end = max(interval.since, since), min(interval.until or now, until)
    moment = interval.since == end and since <= interval.since < until
    if start >= end and not moment:
        return None
    return msgspec.structs.replace(
        interval,
        since=start,
        until=None if interval.until is None and until > now else end,
        began_at=(interval.began_at or interval.since) if start > interval.since else interval.began_at,
    )


def sum_costs_by(
    intervals: Iterable[BillingInterval], by: Callable[[BillingInterval], str], now: datetime
) -> Sequence[CostTotal]:
    """Return the total cost of each group of intervals, sorted by the name of the group."""
    groups: dict[str, list[BillingInterval]] = {}
    for one in intervals:
        groups.setdefault(by(one), []).append(one)
    return [sum_costs(name, groups[name], now) for name in sorted(groups)]


def sum_costs(name: str, intervals: Iterable[BillingInterval], now: datetime) -> CostTotal:
    """Return the total cost of intervals. Unknown costs are counted as unpriced time, never as zero."""
    micros, seconds, unpriced, saved = 0, Decimal(0), Decimal(0), Decimal(0)
    for one in intervals:
        lasted = one.seconds(now)
        seconds += lasted
        micros += one.micros(now)
        saved += one.saved_usd(now)
        unpriced += lasted if one.usd_hourly is None else 0
    return CostTotal(
        name=name,
        usd=to_usd(micros),
        seconds=round(seconds),
        unpriced_seconds=round(unpriced),
        saved_usd=to_usd(round(1_000_000 * saved)),
    )


def start_of_month(moment: datetime) -> datetime:
    """Return when a moment's month began in UTC."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(moment: datetime) -> datetime:
    """Return when the month after a moment's begins in UTC."""
    return start_of_month(start_of_month(moment) + timedelta(days=32))


def local_days(since: datetime, until: datetime, zone: ZoneInfo) -> Sequence[tuple[str, datetime, datetime]]:
    """Return the days of a zone that a span touches, each with its date, and cut to the span."""
    first, last = since.astimezone(zone).date(), until.astimezone(zone).date()
    dates = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    starts = [datetime.combine(one, time(), zone).astimezone(UTC) for one in [*dates, last + timedelta(days=1)]]
    cut = [
        (f"{day}", max(start, since), min(end, until))
        for day, (start, end) in zip(dates, pairwise(starts), strict=True)
    ]
    return [(day, start, end) for day, start, end in cut if start < end]


def sum_costs_by_day(
    intervals: Iterable[BillingInterval], days: Sequence[tuple[str, datetime, datetime]], now: datetime
) -> Sequence[CostTotal]:
    """Return the total cost of each of some days, which follow one another: name, start and end."""
    starts, parts = [start for _, start, _ in days], dict[str, list[BillingInterval]]()
    for one in intervals:
        for name, start, end in days[max(0, bisect_right(starts, one.since) - 1) :]:
            if start >= (one.until or now):
                break
            part = clip_interval(one, start, end, now)
            if part is not None:
                parts.setdefault(name, []).append(part)
    return [sum_costs(name, parts.get(name, ()), now) for name, _, _ in days]
