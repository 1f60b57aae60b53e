"""What the API and its callers exchange about money. Used by `api` and `client_fleet`."""

from collections.abc import Sequence
from datetime import datetime

from lcm.model.billing import BillingInterval, CostTotal, total, totals
from lcm.model.resource import Moment, Part


class CostReport(Part):
    """What workers cost in a span: every interval, cut to it, and what they add up to."""

    since: Moment
    until: Moment
    total: CostTotal
    by_worker: tuple[CostTotal, ...]
    by_track: tuple[CostTotal, ...]
    intervals: tuple[BillingInterval, ...]


def report(intervals: Sequence[BillingInterval], *, since: datetime, until: datetime, now: datetime) -> CostReport:
    """Add up what workers cost."""
    return CostReport(
        since=since,
        until=until,
        total=total("all", intervals, now),
        by_worker=tuple(totals(intervals, lambda one: f"{one.namespace}/{one.worker_name}", now)),
        by_track=tuple(totals(intervals, lambda one: one.lab_track, now)),
        intervals=tuple(intervals),
    )
