"""What a session costs: its share of its worker for as long as it was there. Used by `companions`.

The share is the greatest of what it claimed of the worker's CPU, memory and labs: what others could not have meanwhile.
A session that was tried on several workers costs what it took of each.
"""

from datetime import datetime
from decimal import Decimal
from itertools import takewhile
from typing import Final

import msgspec

from lcm.control.billing import open_key
from lcm.control.records import CODEC, UIDS, opened
from lcm.model.billing import BillingInterval
from lcm.model.capacity import utilization
from lcm.model.session import ON_WORKER, LabletSession
from lcm.model.worker import LabWorker
from lcm.store.base import Store

_HOUR: Final = Decimal(3600)
_FINE: Final = Decimal("0.0001")
_COUNTED: Final = ("cpu_millis", "memory_mb", "labs")


async def charged(store: Store, before: LabletSession, after: LabletSession, now: datetime) -> LabletSession:
    """Add what a session took of its worker to its cost in the step with which it leaves it."""
    worker_id = before.status.worker_id
    leaves = before.status.phase in ON_WORKER and after.status.phase not in ON_WORKER
    if not leaves or worker_id is None:
        return after
    worker, hourly = await _worker(store, worker_id), await _hourly(store, worker_id)
    if worker is None or hourly is None:
        return after
    cost = (before.status.cost_usd or Decimal(0)) + cost_of(before, worker, hourly, now)
    return msgspec.structs.replace(after, status=msgspec.structs.replace(after.status, cost_usd=cost))


def cost_of(session: LabletSession, worker: LabWorker, hourly: Decimal, now: datetime) -> Decimal:
    """Say what a session has taken of a worker, which costs so much an hour, since it came onto it."""
    lines = list(takewhile(lambda line: line.phase in ON_WORKER, reversed(session.status.history)))
    since = lines[-1].at if lines else now
    seconds = Decimal(str((now - since).total_seconds()))
    return (hourly * _share(session, worker) * seconds / _HOUR).quantize(_FINE)


def _share(session: LabletSession, worker: LabWorker) -> Decimal:
    claim, capacity = session.status.claim, worker.status.capacity
    if claim is None or capacity is None:
        return Decimal(1)
    used = utilization(claim.need, capacity)
    return Decimal(str(round(min(1.0, max(used[name] for name in _COUNTED)), 6)))


async def _worker(store: Store, uid: str) -> LabWorker | None:
    named = await store.get(UIDS + uid)
    entry = await store.get(named.value.decode()) if named else None
    found = opened(entry, LabWorker) if entry else None
    return found if found is not None and found.metadata.uid == uid else None


async def _hourly(store: Store, uid: str) -> Decimal | None:
    """Say what a worker's machine costs an hour as it is billed now; None if nobody knows, or nothing is."""
    entry = await store.get(open_key(uid))
    return CODEC.decode(entry.value, BillingInterval).usd_hourly if entry else None
