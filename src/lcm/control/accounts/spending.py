"""What the present month has cost so far by pool and by track, for everybody whom a budget bounds.

A booking must not read a month of bills: it is read once in a while for all of them, and what runs is counted up to the
present moment. Read by `booking.promise` and `booking.budget_watch`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from lcm.control.accounts.costs import read_costs
from lcm.model.money.billing import BillingInterval, start_of_month, to_usd
from lcm.store.base import Store
from lcm.system.tasks import TimeSlice

KEPT_FOR: Final = timedelta(seconds=5)
"""How old the list of what runs may be: who was started or stopped since counts for some seconds too few or many."""
OLDEST: Final = timedelta(minutes=5)
"""How old it may be for those who ask while it is read again."""
_Key = tuple[str, str, str]
"""Whether it is about a pool, a track or a worker that no pool made; the namespace; its name, or the worker's uid."""


class MonthBill:
    """The bill of one month until a moment, added up by pool, track, and worker that no pool made."""

    def __init__(self, month: datetime, as_of: datetime) -> None:
        self.month = month
        self.as_of = as_of
        self._micros: defaultdict[_Key, int] = defaultdict(int)
        self._open: defaultdict[_Key, list[BillingInterval]] = defaultdict(list)

    def add(self, interval: BillingInterval) -> None:
        """Add an interval; one without an end goes on."""
        namespace = interval.namespace
        own = ("pool", namespace, interval.pool) if interval.pool else ("worker", namespace, interval.worker_id)
        for key in (own, ("track", namespace, interval.lab_track)):
            if interval.until is None:
                self._open[key].append(interval)
            else:
                self._micros[key] += interval.micros(interval.until)

    def pool_usd(self, namespace: str, pool: str, adopted: Iterable[str], now: datetime) -> Decimal:
        """Return what the workers have cost that a pool made, and those of these uids that no pool made."""
        every = [("pool", namespace, pool), *(("worker", namespace, uid) for uid in adopted)]
        return to_usd(sum(self._sum(key, now) for key in every))

    def track_usd(self, namespace: str, track: str, now: datetime) -> Decimal:
        """Return what the workers of a track have cost."""
        return to_usd(self._sum(("track", namespace, track), now))

    def _sum(self, key: _Key, now: datetime) -> int:
        return self._micros.get(key, 0) + sum(one.micros(now) for one in self._open.get(key, ()))


class MonthSpending:
    """The present month's bill in one process: one who asks reads it, and the others meanwhile get the one before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = asyncio.Lock()
        self._bill: MonthBill | None = None

    async def read(self, now: datetime) -> MonthBill:
        """Return the bill of a moment's month, as it was read a few seconds ago or now."""
        known = self._find_known(now, OLDEST if self._reading.locked() else KEPT_FOR)
        if known is not None:
            return known
        async with self._reading:
            known = self._find_known(now, KEPT_FOR)
            if known is None:
                self._bill = known = await self._read(now)
            return known

    def _find_known(self, now: datetime, oldest: timedelta) -> MonthBill | None:
        known = self._bill
        if known is None or known.month != start_of_month(now):
            return None
        # Some ask about a minute ago. A clock that was set back by more must not keep it for ever.
        return known if -OLDEST < now - known.as_of < oldest else None

    async def _read(self, now: datetime) -> MonthBill:
        made, time_slice = MonthBill(start_of_month(now), now), TimeSlice()
        for one in await read_costs(self._store, since=made.month, until=now + timedelta.resolution, now=now):
            made.add(one)
            await time_slice.yield_if_over()
        return made
