"""What a session costs: its share of its worker for as long as it was there. Used by `companions`.

The share is the greatest of what it claimed of the worker's CPU, memory and labs: what others could not have meanwhile.
A session that was tried on several workers costs what it took of each.
"""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from itertools import takewhile
from typing import Final

import msgspec

from lcm.control.billing import read_bill
from lcm.control.records import UIDS, opened
from lcm.model.billing import BillingInterval
from lcm.model.capacity import Amount, utilization
from lcm.model.instance_types import HARDWARE
from lcm.model.session import ON_WORKER, LabletSession
from lcm.model.worker import LabWorker
from lcm.store.base import Store

_HOUR: Final = Decimal(3600)
_FINE: Final = Decimal("0.0001")
_COUNTED: Final = ("cpu_millis", "memory_mb", "labs")
_MANY: Final = 10**6


async def charged(store: Store, before: LabletSession, after: LabletSession, now: datetime) -> LabletSession:
    """Add what a session took of its worker to its cost in the step with which it leaves it."""
    worker_id = before.status.worker_id
    leaves = before.status.phase in ON_WORKER and after.status.phase not in ON_WORKER
    if not leaves or worker_id is None:
        return after
    bill = await read_bill(store, worker_id, since=_came(before, now), now=now)
    cost = cost_of(before, await _worker(store, worker_id), bill, now)
    if cost is None:
        return after
    cost += before.status.cost_usd or 0
    return msgspec.structs.replace(after, status=msgspec.structs.replace(after.status, cost_usd=cost))


def cost_of(
    session: LabletSession, worker: LabWorker | None, bill: Iterable[BillingInterval], now: datetime
) -> Decimal | None:
    """Say what a session took of a worker, by what that cost since it came onto it; None if nobody knows.

    Its machine may be gone by now, and then costs nothing from then on.
    """
    since = _came(session, now)
    parts = [
        one.usd_hourly * _share(session, worker, one) * _seconds(max(one.since, since), one.until or now)
        for one in bill
        if one.usd_hourly is not None
    ]
    return (sum(parts, Decimal(0)) / _HOUR).quantize(_FINE) if parts else None


def _came(session: LabletSession, now: datetime) -> datetime:
    """Say when a session came onto the worker that it is on."""
    lines = list(takewhile(lambda line: line.phase in ON_WORKER, reversed(session.status.history)))
    return lines[-1].at if lines else now


def _seconds(since: datetime, until: datetime) -> Decimal:
    return Decimal(str(max(0.0, (until - since).total_seconds())))


def _share(session: LabletSession, worker: LabWorker | None, paid: BillingInterval) -> Decimal:
    claim, capacity = session.status.claim, worker.status.capacity if worker else _machine(paid)
    if claim is None or capacity is None:
        return Decimal(1)
    used = utilization(claim.need, capacity)
    return Decimal(str(round(min(1.0, max(used[name] for name in _COUNTED)), 6)))


def _machine(paid: BillingInterval) -> Amount | None:
    """Say what a machine had by its type alone, when its worker is gone: how many labs that took is not known."""
    found = HARDWARE.get(paid.instance_type)
    return Amount(cpu_millis=1000 * found.vcpus, memory_mb=1024 * found.memory_gib, labs=_MANY) if found else None


async def _worker(store: Store, uid: str) -> LabWorker | None:
    named = await store.get(UIDS + uid)
    entry = await store.get(named.value.decode()) if named else None
    found = opened(entry, LabWorker) if entry else None
    return found if found is not None and found.metadata.uid == uid else None
