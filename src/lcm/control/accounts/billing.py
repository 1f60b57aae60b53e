"""The ledger of billing intervals: when which worker cost what.

The interval that goes on is kept under its worker's uid, closed ones by when they ended. They stay when their worker is
removed: they are the bill. Written in the commits of workers' steps (`companions`), read by `Plane.costs`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import Final

import msgspec

from lcm.control.objects.records import CODEC, UIDS, opened, written
from lcm.model.base.capacity import Amount, utilization
from lcm.model.kinds.session import ON_WORKER, LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.billing import Billing, BillingInterval, cut
from lcm.model.money.prices import HARDWARE, PriceBook
from lcm.store.base import ABSENT, Cursor, Delete, Entry, Op, Put, Store, everything

OPEN: Final = "billing-open/"
CLOSED: Final = "billing/"
_STATES: Final[Mapping[str, Billing]] = {
    "running": Billing.RUNNING,
    "stopping": Billing.STOPPED,
    "stopped": Billing.STOPPED,
}
"""What is paid for, by what EC2 says; in every other state nothing is."""
_PENDING: Final = "pending"
_SEEN_LATE: Final = timedelta(minutes=5)
"""A machine that was started longer ago than this was running before anybody looked."""


def open_key(worker_id: str) -> str:
    """Say where the interval of a worker is that goes on."""
    return OPEN + worker_id


def ops_for(entry: Entry | None, worker: LabWorker, prices: PriceBook, now: datetime) -> Sequence[Op]:
    """Say how a worker's open interval becomes what it must be now; `entry` is the one that was read."""
    known = CODEC.decode(entry.value, BillingInterval) if entry else None
    since = _turned(worker, known, now)
    wanted = _interval(worker, prices, since)
    if _alike(known, wanted):
        return ()
    ops: list[Op] = []
    if wanted is not None:
        ops.append(Put(open_key(worker.metadata.uid), written(wanted), at=entry.revision if entry else ABSENT))
    elif entry is not None:
        ops.append(Delete(entry.key, at=entry.revision))
    if known is not None and entry is not None:
        # Another process's clock may have been ahead when it began.
        until = max(since, known.since)
        # With the revision, for two may begin and end in the same moment.
        key = f"{CLOSED}{_stamp(until)}/{known.worker_id}/{entry.revision:020d}"
        ops.append(Put(key, written(msgspec.structs.replace(known, until=until)), at=ABSENT))
    return ops


async def read_costs(store: Store, *, since: datetime, until: datetime, now: datetime) -> Sequence[BillingInterval]:
    """List what workers cost in a span, each interval cut to it, by worker and time."""
    page = await everything(store, OPEN)
    entries = list(page.entries)
    cursor: Cursor | None = Cursor(page.revision, CLOSED + _stamp(since))
    while cursor is not None:
        page = await store.scan(CLOSED, cursor=cursor)
        entries += page.entries
        cursor = page.next
    every = (cut(CODEC.decode(entry.value, BillingInterval), since, until, now) for entry in entries)
    return sorted(
        (one for one in every if one), key=lambda one: (one.namespace, one.worker_name, one.worker_id, one.since)
    )


async def read_bill(store: Store, worker_id: str, *, since: datetime, now: datetime) -> Sequence[BillingInterval]:
    """List what one worker cost from a moment until now, each interval cut to that, also if it is gone by now."""
    page = await everything(store, open_key(worker_id))
    entries = list(page.entries)
    cursor: Cursor | None = Cursor(page.revision, CLOSED + _stamp(since))
    while cursor is not None:
        page = await store.scan(CLOSED, cursor=cursor)
        entries += (entry for entry in page.entries if f"/{worker_id}/" in entry.key)
        cursor = page.next
    every = (cut(CODEC.decode(entry.value, BillingInterval), since, now, now) for entry in entries)
    return [one for one in every if one]


def _turned(worker: LabWorker, known: BillingInterval | None, now: datetime) -> datetime:
    """Say since when a worker is what it is now: what ran while nobody looked is paid for too.

    But not from before it was a worker, nor twice.
    """
    facts, launched_at = worker.status.ec2, worker.status.ec2.launched_at
    if launched_at is None or launched_at >= now or not _started(facts.state, now - launched_at):
        return now
    if known is None:
        return max(launched_at, worker.metadata.created_at or launched_at)
    # An older one tells of another start than the one that was seen now.
    return launched_at if launched_at > known.since else now


def _started(state: str, ago: timedelta) -> bool:
    """Tell whether a machine is what it is since it was started, and not since a moment ago when it came up."""
    return state == _PENDING or (state == Billing.RUNNING and ago >= _SEEN_LATE)


def _interval(worker: LabWorker, prices: PriceBook, since: datetime) -> BillingInterval | None:
    """Give the interval that begins at a moment; None when nothing is to be paid."""
    facts, aws = worker.status.ec2, worker.spec.aws
    state, kind = _STATES.get(facts.state), facts.instance_type or aws.instance_type
    if state is None:
        return None
    return BillingInterval(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        lab_track=worker.spec.lab_track,
        region=aws.region,
        instance_type=kind,
        instance_id=facts.instance_id,
        state=state,
        usd_hourly=_hourly(worker, state, kind, prices),
        since=since,
    )


def _hourly(worker: LabWorker, state: Billing, kind: str, prices: PriceBook) -> Decimal | None:
    region = worker.spec.aws.region
    disk = prices.disk_hourly(worker.spec.aws.root_volume, region)
    if state is Billing.STOPPED or disk is None:
        return disk
    machine = prices.hourly(region, kind)
    return None if machine is None else machine + disk


def _alike(known: BillingInterval | None, wanted: BillingInterval | None) -> bool:
    if known is None or wanted is None:
        return known is wanted
    return (known.state, known.instance_id, known.instance_type) == (
        wanted.state,
        wanted.instance_id,
        wanted.instance_type,
    )


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"


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
