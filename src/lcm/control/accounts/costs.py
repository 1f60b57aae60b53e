"""What workers and sessions cost: billing intervals of workers, and each session's share of them.

Written with the steps of workers and sessions (`booking.step_records`), read by `Plane.costs`. The open interval is
stored under its worker's uid, closed ones by their end; they stay when the worker is removed: they are the bill. A
session's share is the largest of its shares of the worker's CPU, memory and labs, which others could not use
meanwhile; one that was tried on several workers pays its share of each.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import Final

import msgspec

from lcm.control.objects.records import CODEC, UIDS, encode_checked, read_entry
from lcm.model.base.capacity import Amount, Claim, utilization
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.billing import Billing, BillingInterval, clip_interval
from lcm.model.money.prices import HARDWARE, PriceBook
from lcm.store.base import ABSENT, Cursor, Delete, Entry, Op, Put, Store, scan_all

OPEN_PREFIX: Final = "billing-open/"
CLOSED_PREFIX: Final = "billing/"
_BILLED_STATES: Final[Mapping[str, Billing]] = {
    "running": Billing.RUNNING,
    "stopping": Billing.STOPPED,
    "stopped": Billing.STOPPED,
}
"""What is paid for, by EC2 instance state. In every other state nothing is."""
_PENDING: Final = "pending"
_OBSERVED_LATE: Final = timedelta(minutes=5)
"""A machine launched longer ago than this was already running before it was first observed."""


def open_key(worker_id: str) -> str:
    """Return the store key of a worker's open interval."""
    return OPEN_PREFIX + worker_id


def interval_ops(entry: Entry | None, worker: LabWorker, prices: PriceBook, now: datetime) -> Sequence[Op]:
    """Return the operations that bring a worker's open interval up to date; `entry` is the one that was read."""
    known = CODEC.decode(entry.value, BillingInterval) if entry else None
    since = _state_since(worker, known, now)
    wanted = _new_interval(worker, prices, since)
    if _is_same_interval(known, wanted):
        return ()
    ops: list[Op] = []
    if wanted is not None:
        ops.append(Put(open_key(worker.metadata.uid), encode_checked(wanted), at=entry.revision if entry else ABSENT))
    elif entry is not None:
        ops.append(Delete(entry.key, at=entry.revision))
    if known is not None and entry is not None:
        # Another process's clock may have been ahead when it began.
        until = max(since, known.since)
        # The revision keeps keys unique: two intervals may begin and end in the same moment.
        key = f"{CLOSED_PREFIX}{_stamp(until)}/{known.worker_id}/{entry.revision:020d}"
        ops.append(Put(key, encode_checked(msgspec.structs.replace(known, until=until)), at=ABSENT))
    return ops


async def read_costs(
    store: Store, *, since: datetime, until: datetime, now: datetime, worker_id: str = ""
) -> Sequence[BillingInterval]:
    """List the cost of all workers, or of one, in a time span, by worker and time; each interval is cut to the span."""
    page = await scan_all(store, open_key(worker_id))
    entries = list(page.entries)
    cursor: Cursor | None = Cursor(page.revision, CLOSED_PREFIX + _stamp(since))
    while cursor is not None:
        page = await store.scan(CLOSED_PREFIX, cursor=cursor)
        entries += (entry for entry in page.entries if not worker_id or f"/{worker_id}/" in entry.key)
        cursor = page.next
    every = (clip_interval(CODEC.decode(entry.value, BillingInterval), since, until, now) for entry in entries)
    return sorted(
        (one for one in every if one), key=lambda one: (one.namespace, one.worker_name, one.worker_id, one.since)
    )


def _state_since(worker: LabWorker, known: BillingInterval | None, now: datetime) -> datetime:
    """Return since when the worker is in its present state; time when it ran unobserved is billed too.

    But no time from before it was a worker, and none twice.
    """
    state, launched_at = worker.status.ec2.state, worker.status.ec2.launched_at
    if launched_at is None or launched_at >= now or state not in {_PENDING, Billing.RUNNING}:
        return now
    if state == Billing.RUNNING and now - launched_at < _OBSERVED_LATE:
        return now  # it came up just now
    if known is None:
        return max(launched_at, worker.metadata.created_at or launched_at)
    # An older launch time belongs to an earlier start than the one that was observed now.
    return launched_at if launched_at > known.since else now


def _new_interval(worker: LabWorker, prices: PriceBook, since: datetime) -> BillingInterval | None:
    """Return the interval that begins at a moment; None when nothing has to be paid."""
    facts, aws, owner = worker.status.ec2, worker.spec.aws, worker.metadata.owner
    state, kind = _BILLED_STATES.get(facts.state), facts.instance_type or aws.instance_type
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
        usd_hourly=_usd_hourly(worker, state, kind, prices),
        since=since,
        pool=owner.name if owner and owner.kind == LabWorkerPool.__name__ else "",
    )


def _usd_hourly(worker: LabWorker, state: Billing, kind: str, prices: PriceBook) -> Decimal | None:
    region = worker.spec.aws.region
    disk = prices.disk_hourly(worker.spec.aws.root_volume, region)
    if state is Billing.STOPPED or disk is None:
        return disk
    machine = prices.hourly(region, kind)
    return None if machine is None else machine + disk


def _is_same_interval(known: BillingInterval | None, wanted: BillingInterval | None) -> bool:
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
_ROUNDING: Final = Decimal("0.0001")
_SHARED_AMOUNTS: Final = ("cpu_millis", "memory_mb", "labs")
_UNKNOWN_LABS: Final = 10**6


async def with_cost(store: Store, before: LabletSession, after: LabletSession, now: datetime) -> LabletSession:
    """Return the session with the cost of its time on the worker, if this step takes it off the worker."""
    worker_id = before.status.worker_id
    leaves = before.status.phase in ON_WORKER_PHASES and after.status.phase not in ON_WORKER_PHASES
    if not leaves or worker_id is None:
        return after
    bill = await read_costs(store, since=_placed_at(before, now), until=now, now=now, worker_id=worker_id)
    cost = cost_of(before, await find_worker(store, worker_id), bill, now)
    if cost is None:
        return after
    cost += before.status.cost_usd or 0
    return msgspec.structs.replace(after, status=msgspec.structs.replace(after.status, cost_usd=cost))


def cost_of(
    session: LabletSession, worker: LabWorker | None, bill: Iterable[BillingInterval], now: datetime
) -> Decimal | None:
    """Return what a session's share of a worker cost since it came onto it; None when no price is known.

    The machine may be gone by now; it then costs nothing from that moment on.
    """
    since = _placed_at(session, now)
    parts = [
        one.usd_hourly * _share(session, worker, one) * _seconds(max(one.since, since), one.until or now)
        for one in bill
        if one.usd_hourly is not None
    ]
    return (sum(parts, Decimal(0)) / _HOUR).quantize(_ROUNDING) if parts else None


def estimate_cost(claim: Claim, capacity: Amount, usd_hourly: Decimal) -> Decimal:
    """Return what a session costs whose claim lasts to its end, on a worker of this capacity."""
    return (usd_hourly * share_of(claim.need, capacity) * _seconds(claim.start, claim.end) / _HOUR).quantize(_ROUNDING)


def share_of(need: Amount, capacity: Amount) -> Decimal:
    """Return the part of a worker that a need keeps from others, at most 1."""
    used = utilization(need, capacity)
    return Decimal(str(round(min(1.0, max(used[name] for name in _SHARED_AMOUNTS)), 6)))


def _placed_at(session: LabletSession, now: datetime) -> datetime:
    """Return when a session came onto the worker it is on."""
    lines = list(takewhile(lambda line: line.phase in ON_WORKER_PHASES, reversed(session.status.history)))
    return lines[-1].at if lines else now


def _seconds(since: datetime, until: datetime) -> Decimal:
    return Decimal(str(max(0.0, (until - since).total_seconds())))


def _share(session: LabletSession, worker: LabWorker | None, paid: BillingInterval) -> Decimal:
    claim, capacity = session.status.claim, worker.status.capacity if worker else _type_capacity(paid)
    if claim is None or capacity is None:
        return Decimal(1)
    return share_of(claim.need, capacity)


def _type_capacity(paid: BillingInterval) -> Amount | None:
    """Return the capacity of an instance type, for a worker that is gone.

    How many labs it could run is not known.
    """
    found = HARDWARE.get(paid.instance_type)
    return (
        Amount(cpu_millis=1000 * found.vcpus, memory_mb=1024 * found.memory_gib, labs=_UNKNOWN_LABS) if found else None
    )


async def find_worker(store: Store, uid: str) -> LabWorker | None:
    """Read a worker by its uid; None means that there is none."""
    named = await store.get(UIDS + uid)
    key = named.value.decode() if named else ""
    entry = await store.get(key) if key.startswith(KINDS[LabWorker.__name__].prefix) else None
    found = read_entry(entry, LabWorker) if entry else None
    # Another worker may have taken the name since the uid was looked up.
    return found if found is not None and found.metadata.uid == uid else None
