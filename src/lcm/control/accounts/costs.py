"""What workers cost: their billing intervals.

Written with the steps of workers (`booking.step_records`), read by `Plane.costs`. The open interval is stored under its
worker's uid, closed ones by their end; they stay when the worker is removed: they are the bill. `accounts.stays` and
`accounts.ledger` divide it among sessions.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.control.objects.records import CODEC, UIDS, encode_checked, find_record, read_entry
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.billing import MINIMUM_CHARGE, Billing, BillingInterval, clip_interval, to_usd
from lcm.model.money.prices import PriceBook
from lcm.model.money.split import PricedClaim, share_of
from lcm.store.base import ABSENT, Cursor, Delete, Entry, Op, Put, Store, scan_all
from lcm.system.tasks import TimeSlice

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


def interval_ops(
    entry: Entry | None, worker: LabWorker, prices: PriceBook, now: datetime, *, template_usd: Decimal | None = None
) -> Sequence[Op]:
    """Return the operations that bring a worker's open interval up to date; `entry` is the one that was read.

    `template_usd` is the price of a machine that the price book does not know.
    """
    known = CODEC.decode(entry.value, BillingInterval) if entry else None
    since = _state_since(worker, known, now)
    wanted = _new_interval(worker, prices.at(since), since, template_usd)
    if _is_same_interval(known, wanted, worker.status.ec2.launched_at):
        return ()
    ops: list[Op] = []
    if wanted is not None:
        ops.append(Put(open_key(worker.metadata.uid), encode_checked(wanted), at=entry.revision if entry else ABSENT))
    elif entry is not None:
        ops.append(Delete(entry.key, at=entry.revision))
    if known is not None and entry is not None:
        # Another process's clock may have been ahead when it began.
        until = max(_left_at(worker, known, since), known.since)
        # The revision keeps keys unique: two intervals may begin and end in the same moment.
        key = f"{CLOSED_PREFIX}{format_stamp(until)}/{known.worker_id}/{entry.revision:020d}"
        ops.append(Put(key, encode_checked(msgspec.structs.replace(known, until=until)), at=ABSENT))
    return ops


async def read_costs(
    store: Store,
    *,
    since: datetime,
    until: datetime,
    now: datetime,
    worker_id: str = "",
    time_slice: TimeSlice | None = None,
) -> Sequence[BillingInterval]:
    """List the cost of all workers, or of one, in a time span, by worker and time; each interval is cut to the span."""
    time_slice = time_slice or TimeSlice()
    page = await scan_all(store, open_key(worker_id))
    entries = list(page.entries)
    cursor: Cursor | None = Cursor(page.revision, CLOSED_PREFIX + format_stamp(since))
    while cursor is not None:
        page = await store.scan(CLOSED_PREFIX, cursor=cursor)
        entries += (entry for entry in page.entries if not worker_id or f"/{worker_id}/" in entry.key)
        cursor = page.next
    groups = dict[tuple[str, str, str], list[BillingInterval]]()
    for entry in entries:
        one = clip_interval(CODEC.decode(entry.value, BillingInterval), since, until, now)
        if one is not None:
            groups.setdefault((one.namespace, one.worker_name, one.worker_id), []).append(one)
        await time_slice.yield_if_over()
    # Worker by worker, so that sorting a month of them takes no long turn.
    found = list[BillingInterval]()
    for key in sorted(groups):
        found += sorted(groups.pop(key), key=lambda one: one.since)
        await time_slice.yield_if_over()
    return found


def _state_since(worker: LabWorker, known: BillingInterval | None, now: datetime) -> datetime:
    """Return since when the worker is in its present state; time when it ran unobserved is billed too.

    But no time from before it was a worker, and none twice.
    """
    facts = worker.status.ec2
    state, launched_at = facts.state, facts.launched_at
    earliest = known.since if known else worker.metadata.created_at
    if facts.state_since is not None and (earliest is None or facts.state_since > earliest):
        return min(facts.state_since, now)
    if launched_at is None or launched_at >= now or state not in {_PENDING, Billing.RUNNING}:
        return now
    if state == Billing.RUNNING and now - launched_at < _OBSERVED_LATE:
        return now  # it came up just now
    if known is None:
        return max(launched_at, worker.metadata.created_at or launched_at)
    # An older launch time belongs to an earlier start than the one that was observed now.
    return launched_at if launched_at > known.since else now


def needs_price(entry: Entry | None, worker: LabWorker, prices: PriceBook, now: datetime) -> bool:
    """Return whether an interval begins, or the open one has no price yet."""
    known = CODEC.decode(entry.value, BillingInterval) if entry else None
    return bool(interval_ops(entry, worker, prices, now)) or (known is not None and known.usd_hourly is None)


async def find_template_usd(store: Store, worker: LabWorker, prices: PriceBook) -> Decimal | None:
    """Read the price in the template of a worker; None if it has none, or the price book knows one."""
    aws, owner = worker.spec.aws, worker.metadata.owner
    kind = worker.status.ec2.instance_type or aws.instance_type
    hourly = prices.spot_hourly if aws.market == "spot" else prices.hourly
    if owner is None or hourly(aws.region, kind) is not None:
        return None
    namespace = worker.metadata.namespace
    pool = await find_record(store, Ref(LabWorkerPool, owner.name, namespace))
    template = await find_record(store, Ref(WorkerTemplate, pool.resource.spec.template, namespace)) if pool else None
    return template.resource.spec.price_per_hour_usd if template else None


def _left_at(worker: LabWorker, known: BillingInterval, since: datetime) -> datetime:
    """Return when a worker left its former state: a stopped machine, when it was started, before it ran."""
    launched_at = worker.status.ec2.launched_at
    starts = worker.status.ec2.state in {_PENDING, Billing.RUNNING}
    return min(since, launched_at) if starts and launched_at is not None and launched_at > known.since else since


def _new_interval(
    worker: LabWorker, prices: PriceBook, since: datetime, template_usd: Decimal | None
) -> BillingInterval | None:
    """Return the interval that begins at a moment; None when nothing has to be paid."""
    facts, aws, owner = worker.status.ec2, worker.spec.aws, worker.metadata.owner
    state, kind = _BILLED_STATES.get(facts.state), facts.instance_type or aws.instance_type
    if state is None:
        return None
    disk, on_demand = prices.disk_hourly(aws.root_volume, aws.region), prices.hourly(aws.region, kind)
    spot = aws.market == "spot"
    known = prices.spot_hourly(aws.region, kind) if spot else on_demand
    paid = template_usd if known is None else known
    return BillingInterval(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        lab_track=worker.spec.lab_track,
        region=aws.region,
        instance_type=kind,
        instance_id=facts.instance_id,
        state=state,
        usd_hourly=_with_disk(paid, disk, state),
        on_demand_usd_hourly=_with_disk(on_demand, disk, state) if spot else None,
        since=since,
        pool=owner.name if owner and owner.kind == LabWorkerPool.__name__ else "",
    )


def _with_disk(machine: Decimal | None, disk: Decimal | None, state: Billing) -> Decimal | None:
    """Return the hourly price of a machine with its disk if that is known, or of the disk alone; None means unknown."""
    if state is Billing.STOPPED:
        return disk
    return None if machine is None else machine + (disk or 0)


def template_hourly(template: WorkerTemplateSpec, prices: PriceBook) -> Decimal | None:
    """Return what a machine of a template costs an hour, with its disk; None if it is not known."""
    aws = template.worker.aws
    machine, disk = prices.hourly(aws.region, aws.instance_type), prices.disk_hourly(aws.root_volume, aws.region)
    machine = template.price_per_hour_usd if machine is None else machine
    return None if machine is None else machine + (disk or 0)


def _is_same_interval(
    known: BillingInterval | None, wanted: BillingInterval | None, launched_at: datetime | None
) -> bool:
    """Return whether nothing has changed: neither what is paid for, nor was the machine started again meanwhile.

    A price that was not known before is a change.
    """
    if known is None or wanted is None:
        return known is wanted
    if known.usd_hourly is None and wanted.usd_hourly is not None:
        return False
    # The cloud's clock may be ahead of ours by a little.
    again = launched_at is not None and launched_at > known.since + MINIMUM_CHARGE and wanted.state is Billing.RUNNING
    return not again and (known.state, known.instance_id, known.instance_type) == (
        wanted.state,
        wanted.instance_id,
        wanted.instance_type,
    )


def format_stamp(moment: datetime) -> str:
    """Return a moment as keys hold it, in the order of time."""
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"


_ROUNDING: Final = Decimal("0.0001")


def estimate_cost(claim: Claim, capacity: Amount, usd_hourly: Decimal) -> Decimal:
    """Return what a session costs whose claim lasts to its end, on a worker of this capacity."""
    priced = PricedClaim(claim.start, claim.end, share_of(claim.need, capacity), usd_hourly)
    return to_usd(priced.micros(claim.start, claim.end) or 0).quantize(_ROUNDING)


async def find_worker(store: Store, uid: str) -> LabWorker | None:
    """Read a worker by its uid; None means that there is none."""
    named = await store.get(UIDS + uid)
    key = named.value.decode() if named else ""
    entry = await store.get(key) if key.startswith(KINDS[LabWorker.__name__].prefix) else None
    found = read_entry(entry, LabWorker) if entry else None
    # Another worker may have taken the name since the uid was looked up.
    return found if found is not None and found.metadata.uid == uid else None
