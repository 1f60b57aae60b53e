"""Stays: what sessions leave behind of their time on a worker, and what each of them cost.

Written in the commit of the step that takes a session off its worker (`booking.step_records`). Records end with their
UTC month and are kept by month and worker; the amounts alone also by owner and by class, so that a booking can be
checked without a look at everybody's. Read by `accounts.ledger` and for budgets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from itertools import takewhile
from typing import Final

import msgspec

from lcm.control.accounts.costs import find_worker, format_stamp, read_costs
from lcm.control.objects.records import CODEC, encode_checked, sessions_on
from lcm.model.base.capacity import Amount
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import ON_WORKER_PHASES, PREBUILT_OWNER, LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.billing import BillingInterval, next_month, start_of_month, to_usd
from lcm.model.money.prices import HARDWARE
from lcm.model.money.split import WHOLE, Stay, share_of, split_bill
from lcm.store.base import Op, Put, Store, scan_all, scan_from
from lcm.system.tasks import TimeSlice

STAYS: Final = "stays/"
STAY_COSTS: Final = "stay-costs/"
_MOST_MONTHS: Final = 14
"""As many as are kept: what a stay cost before is swept anyway."""
_UNKNOWN_LABS: Final = 10**6
_ROUNDING: Final = Decimal("0.0001")


async def leave_worker(
    store: Store, before: LabletSession, after: LabletSession, now: datetime
) -> tuple[LabletSession, Sequence[Op]]:
    """Return the session with the cost of its time on a worker, and what is written, if this step takes it off one."""
    worker_id = before.status.worker_id
    leaves = before.status.phase in ON_WORKER_PHASES and after.status.phase not in ON_WORKER_PHASES
    if not leaves or worker_id is None:
        return after, ()
    since = _placed_at(before, now)
    bill = await read_costs(store, since=since, until=now, now=now, worker_id=worker_id)
    worker = await find_worker(store, worker_id)
    own = make_stay(before, capacity_of(worker, bill), now)
    others = await read_stays(store, worker_id, since, now, live=await read_live(store, worker_id, bill, now))
    cost = cost_of_stay(own, bill, others, now)
    ops = list(_stay_ops(own, cost or {}))
    if cost is None:
        return after, ops
    usd = (to_usd(sum(cost.values())) + (before.status.cost_usd or 0)).quantize(_ROUNDING)
    return msgspec.structs.replace(after, status=msgspec.structs.replace(after.status, cost_usd=usd)), ops


def cost_of_stay(
    own: Stay, bill: Sequence[BillingInterval], others: Iterable[Stay], now: datetime
) -> Mapping[str, int] | None:
    """Return a stay's parts of a worker's bill, in micro-dollars by month; None when no price is known.

    The machine may be gone by now; it then costs nothing from that moment on.
    """
    if all(one.usd_hourly is None for one in bill):
        return None
    cost = dict.fromkeys((month for month, _ in _months_of(own)), 0)
    beside = [one for one in others if (one.session_id, one.since) != (own.session_id, own.since)]
    cuts = [piece.since for _, piece in _months_of(own)]
    for piece in split_bill(bill, [own, *beside], now, cuts):
        for stay, micros in piece.parts:
            if stay is own:
                cost[_month_name(piece.since)] += micros
    return cost


def make_stay(session: LabletSession, capacity: Amount | None, until: datetime) -> Stay:
    """Return a session's time on its worker until a moment."""
    status, spec, maker = session.status, session.spec, session.metadata.owner
    booked = maker if maker is not None and maker.kind == Reservation.__name__ else None
    return Stay(
        session=session.metadata.name,
        session_id=session.metadata.uid,
        namespace=session.metadata.namespace,
        definition=spec.definition,
        worker_id=status.worker_id or "",
        share=share_of(status.claim.need, capacity) if status.claim else WHOLE,
        since=min(_placed_at(session, until), until),
        until=until,
        owner=spec.owner,
        reservation=booked.name if booked else "",
        reservation_id=booked.uid if booked else "",
        lab_track=spec.lab_track,
    )


def capacity_of(worker: LabWorker | None, bill: Sequence[BillingInterval]) -> Amount | None:
    """Return what a worker can hold; of one that is gone, what its type has: how many labs it ran is not known."""
    found = HARDWARE.get(bill[-1].instance_type) if bill else None
    if worker is not None or found is None:
        return worker.status.capacity if worker else None
    return Amount(cpu_millis=1000 * found.vcpus, memory_mb=1024 * found.memory_gib, labs=_UNKNOWN_LABS)


async def read_live(store: Store, worker_id: str, bill: Sequence[BillingInterval], now: datetime) -> Sequence[Stay]:
    """Return the stays, until now, of the sessions that are on a worker.

    Call it before `read_stays`, so that what ends meanwhile is not lost.
    """
    sessions = [one for one in await sessions_on(store, worker_id) if one.status.phase in ON_WORKER_PHASES]
    capacity = capacity_of(await find_worker(store, worker_id), bill) if sessions else None
    return [make_stay(one, capacity, now) for one in sessions]


async def read_stays(
    store: Store,
    worker_id: str,
    since: datetime,
    until: datetime,
    *,
    live: Iterable[Stay] = (),
    time_slice: TimeSlice | None = None,
) -> Sequence[Stay]:
    """Read the stays on a worker that overlap a span, with those of `live` that have not ended since they were read."""
    found, month, time_slice = list[Stay](), start_of_month(since), time_slice or TimeSlice()
    while month < until:
        prefix = f"{STAYS}{_month_name(month)}/{worker_id}/"
        async for entry in scan_from(store, prefix, prefix + format_stamp(since)):  # they are kept by their ends
            one = CODEC.decode(entry.value, Stay)
            found += [one] * (one.until > since and one.since < until)
            await time_slice.yield_if_over()
        month = next_month(month)
    last = {one.session_id: one.until for one in sorted(found, key=lambda one: one.until)}
    return [*found, *(one for one in live if one.session_id not in last or last[one.session_id] <= one.since)]


async def read_spent(store: Store, subject: str, months: Iterable[datetime]) -> Sequence[int]:
    """Return what each stay of an owner or of a class cost in some months, in micro-dollars.

    `subject` comes from `owner_subject` or `class_subject`.
    """
    pages = [await scan_all(store, f"{STAY_COSTS}{_month_name(month)}/{subject}/") for month in months]
    return [int(entry.value) for page in pages for entry in page.entries]


def owner_subject(owner: str) -> str:
    """Return under what the costs of an owner's stays are kept; a name may hold what a key may not."""
    return f"owner-{sha256(owner.encode()).hexdigest()}"


def class_subject(reservation_id: str) -> str:
    """Return under what the costs of the stays of a reservation's sessions are kept."""
    return f"class-{reservation_id}"


def prebuilt_subject(namespace: str, definition: str) -> str:
    """Return under what the costs of a definition's prebuilt labs are kept."""
    return f"prebuilt-{sha256(f'{namespace}/{definition}'.encode()).hexdigest()}"


def is_older_stay(key: str, before: datetime) -> bool:
    """Return whether a stay's record, or its cost, is of a month that ended before a moment."""
    return key.split("/", 2)[1] < _month_name(before)


async def first_month(store: Store) -> datetime | None:
    """Return the first month of which stays are known; None if there is none."""
    page = await store.scan(STAYS, limit=1)
    if not page.entries:
        return None
    return datetime.strptime(page.entries[0].key.split("/", 2)[1], "%Y%m").replace(tzinfo=UTC)


def _stay_ops(own: Stay, cost: Mapping[str, int]) -> Iterator[Op]:
    for month, piece in list(_months_of(own))[-_MOST_MONTHS:]:
        stamp = format_stamp(piece.until)
        yield Put(f"{STAYS}{month}/{own.worker_id}/{stamp}/{own.session_id}", encode_checked(piece))
        subjects = [owner_subject(own.owner)] + [class_subject(own.reservation_id)] * bool(own.reservation_id)
        if own.owner == PREBUILT_OWNER:
            subjects.append(prebuilt_subject(own.namespace, own.definition))
        for subject in subjects if cost else ():
            yield Put(f"{STAY_COSTS}{month}/{subject}/{own.session_id}/{stamp}", str(cost[month]).encode())


def _months_of(own: Stay) -> Iterator[tuple[str, Stay]]:
    """Yield a stay month by month."""
    start = own.since
    while True:
        end = min(next_month(start), own.until)
        yield _month_name(start), msgspec.structs.replace(own, since=start, until=end)
        if end >= own.until:
            return
        start = end


def _month_name(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m}"


def _placed_at(session: LabletSession, now: datetime) -> datetime:
    """Return when a session came onto the worker it is on."""
    lines = list(takewhile(lambda line: line.phase in ON_WORKER_PHASES, reversed(session.status.history)))
    return lines[-1].at if lines else now
