"""The ledger: what all workers cost in a span, divided among sessions and added up by groups. Read by `Plane.ledger`.

It is read worker by worker, in turns with other tasks: a month may have a hundred thousand stays. One reader of a
process has its turn at a time; the last answers are kept for a while, for the readers of their later pages.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from datetime import datetime, timedelta
from heapq import merge
from itertools import groupby
from typing import Final

from lcm.control.accounts.costs import read_costs
from lcm.control.accounts.stays import read_live, read_stays
from lcm.model.money.billing import BillingInterval
from lcm.model.money.ledger import LedgerSums
from lcm.model.money.split import split_bill
from lcm.store.base import Store
from lcm.system.tasks import CallerTurns, TimeSlice

_MOST_KEPT: Final = 4
_KEPT_FOR: Final = timedelta(minutes=5)
_SORTED_AT_ONCE: Final = 5000
REST_SECONDS: Final = 0.03
"""How long a reader rests after each turn: anybody may ask for a year of a large fleet, one after the other."""


async def read_ledger(
    store: Store, sums: LedgerSums, *, since: datetime, until: datetime, now: datetime, cuts: Sequence[datetime] = ()
) -> None:
    """Add up what workers cost in a span; `cuts` are moments at which a session's cost changes its group."""
    time_slice = TimeSlice(rest_seconds=REST_SECONDS)
    bill = await read_costs(store, since=since, until=min(until, now), now=now, time_slice=time_slice)
    for worker_id, own in groupby(bill, key=lambda one: one.worker_id):
        intervals = list(own)
        live = await read_live(store, worker_id, intervals, now)
        stays = await read_stays(store, worker_id, since, min(until, now), live=live, time_slice=time_slice)
        for piece in split_bill(sorted(intervals, key=lambda one: one.since), stays, now, cuts):
            sums.add_piece(piece)
            await time_slice.yield_if_over()
        if sums.owner is None:  # who sees only the own sessions learns nothing of machines
            sums.unpriced_seconds += _unpriced_seconds(intervals, now)
        await time_slice.yield_if_over()


def _unpriced_seconds(bill: Iterable[BillingInterval], now: datetime) -> int:
    return sum(round(one.seconds(now)) for one in bill if one.usd_hourly is None)


async def sort_groups(sums: LedgerSums) -> None:
    """Put the groups into their order, a part at a time: there may be as many as sessions."""
    names, time_slice = list(sums.groups), TimeSlice(rest_seconds=REST_SECONDS)
    parts = list[list[str]]()
    for first in range(0, len(names), _SORTED_AT_ONCE):
        parts.append(sorted(names[first : first + _SORTED_AT_ONCE]))
        await time_slice.yield_if_over()
    order = list[str]()
    for name in merge(*parts):
        order.append(name)
        await time_slice.yield_if_over()
    sums.order = order


class LedgerTurns:
    """The readers of ledgers in one process: one at a time, and the last answers of all."""

    def __init__(self) -> None:
        self._turns = CallerTurns("costs", most_of_caller=3, most_callers=30)
        self._kept: dict[Hashable, tuple[datetime, LedgerSums]] = {}

    async def read_once(
        self, caller: str, asked: Hashable, now: datetime, read: Callable[[], Awaitable[LedgerSums]]
    ) -> LedgerSums:
        """Return what was read for the same question lately, or read it. Raise Throttled when too many wait."""
        async with self._turns.hold(caller):
            found = self._kept.pop(asked, None)
            at, sums = found if found is not None and now - found[0] <= _KEPT_FOR else (now, await read())
            self._kept[asked] = at, sums
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            return sums
