"""What is committed together with a step: a worker's licence seat, its bill, its wanted state, a session's stay.

`control.plane.local` calls `records_for_step` for every step. Most steps affect no record and cost no read. For the
others the records are read (`read_records`), decided without I/O (`decide_records`), and committed at exactly the
revisions that were read: if another writer was faster, the step is decided anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Final, Generic

import msgspec

from lcm.control.accounts import costs, licences, stays
from lcm.control.booking import guards
from lcm.control.objects.actions import with_wanted_state
from lcm.control.objects.records import find_record
from lcm.control.plane.protocol import R, Ref
from lcm.model.base.event import Event
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, Remedy, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook
from lcm.store.base import Delete, Entry, Op, Store

_P: Final = WorkerPhase
_CENT: Final = Decimal("0.01")
_RESTING: Final = frozenset({_P.READY, _P.READY_UNLICENSED, _P.DRAINING})
_LEADS_TO_STOPPED: Final = frozenset({_P.UNLICENSING, _P.STOPPING})
_relevant_status: Final = attrgetter(
    "phase", "cml.licensed", "ec2.state", "ec2.instance_id", "ec2.instance_type", "ec2.launched_at"
)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What the settings say about all workers: seats of each licence token, prices, and lead time."""

    seats: Mapping[str, int] = field(default_factory=dict)
    prices: PriceBook = SHIPPED_PRICES
    horizon: timedelta = timedelta(minutes=40)
    """How long before a session its worker must not be taken away any more."""


NO_LIMITS: Final = FleetSettings()


@dataclass(frozen=True, slots=True)
class WorkerRecords:
    """The records of a worker as they were read before its step is decided."""

    seat: Entry | None = None
    interval: Entry | None = None
    token: licences.TokenSeats | None = None
    occupants: guards.Occupancy | None = None
    """Read only when the step would take the machine away."""
    template_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class StepRecords(Generic[R]):
    """An object after its step, with the operations and events that are committed together with it."""

    after: R
    ops: Sequence[Op] = ()
    events: Sequence[Event] = ()


async def records_for_step(store: Store, fleet: FleetSettings, before: R, after: R, now: datetime) -> StepRecords[R]:
    """Return what must be committed together with a step.

    Raises NoRoom when no licence seat is free, IllegalStep while a session is in the way.
    """
    if isinstance(before, LabletSession) and isinstance(after, LabletSession):
        paid, left = await stays.leave_worker(store, before, after, now)
        assert isinstance(paid, type(after))
        return StepRecords(paid, [*guards.touch_worker_guards(before, after), *left])
    if isinstance(before, LabWorkerPool) and isinstance(after, LabWorkerPool):
        priced = await _with_saving(store, fleet.prices.at(now), before, after)
        assert isinstance(priced, type(after))
        return StepRecords(priced, await guards.admit_workers_to_seats(store, before, after))
    if not isinstance(before, LabWorker) or not isinstance(after, LabWorker):
        return StepRecords(after)
    if _relevant_status(before.status) != _relevant_status(after.status):
        made = decide_records(before, after, await read_records(store, fleet, before, after, now), fleet, now)
        assert isinstance(made.after, type(after))
        return StepRecords(made.after, made.ops, made.events)
    return StepRecords(after)


async def _with_saving(store: Store, prices: PriceBook, before: LabWorkerPool, after: LabWorkerPool) -> LabWorkerPool:
    """Return a pool with what packing saved in dollars: what it had, and what was saved since at the present price."""
    packing, known = after.status.packing, before.status.packing
    if packing is None or packing == known:
        return after
    usd, more = (known.saved_usd, known.saved_machine_hours) if known else (Decimal(0), 0.0)
    hours = packing.saved_machine_hours - more
    if hours > 0:
        ref = Ref(WorkerTemplate, after.spec.template, after.metadata.namespace)
        template = await find_record(store, ref)
        price = costs.template_hourly(template.resource.spec, prices) if template else None
        usd += (Decimal(str(hours)) * (price or 0)).quantize(_CENT)
    if packing.saved_usd == usd:
        return after
    status = msgspec.structs.replace(after.status, packing=msgspec.structs.replace(packing, saved_usd=usd))
    return msgspec.structs.replace(after, status=status)


async def read_records(
    store: Store, fleet: FleetSettings, before: LabWorker, after: LabWorker, now: datetime
) -> WorkerRecords:
    """Read the records that a step may change."""
    uid = after.metadata.uid
    interval = await store.get(costs.open_key(uid))
    needs_price = costs.needs_price(interval, after, fleet.prices, now)
    return WorkerRecords(
        seat=await store.get(licences.seat_key(uid)),
        interval=interval,
        token=await licences.read_token_seats(store, after, fleet.seats)
        if licences.starts_registration(before, after)
        else None,
        occupants=await guards.read_occupancy(store, after, now, fleet.horizon)
        if guards.disrupts_sessions(before, after, now)
        else None,
        template_usd=await costs.find_template_usd(store, after, fleet.prices) if needs_price else None,
    )


def decide_records(
    before: LabWorker, after: LabWorker, known: WorkerRecords, fleet: FleetSettings, now: datetime
) -> StepRecords[LabWorker]:
    """Decide what is written together with a worker's step. Pure."""
    ops: list[Op] = []
    if known.occupants is not None:
        ops += guards.vacate_worker(before, after, known.occupants)
    elif after.status.phase is _P.TERMINATED:
        ops.append(Delete(guards.worker_guard_key(after.metadata.uid)))
    seats, events = _licence_records(before, after, known, now)
    ops += [*seats, *costs.interval_ops(known.interval, after, fleet.prices, now, template_usd=known.template_usd)]
    return StepRecords(follow_wanted_state(before, after), ops, events)


def follow_wanted_state(before: LabWorker, after: LabWorker) -> LabWorker:
    """Return the worker with a wanted state that agrees with its step.

    Otherwise the next reconcile would undo what a person did, or what was decided.
    """
    source, target = before.status.phase, after.status.phase
    if source is target or after.metadata.deletion_timestamp is not None:
        return after
    if (target is _P.STOPPED and source is not _P.STOPPING) or (
        target in _LEADS_TO_STOPPED and _is_stop_intended(before)
    ):
        return with_wanted_state(
            after, "stopped"
        )  # only in this step, so that a later request to run it is not overwritten
    return with_wanted_state(after, "running") if (source, target) == (_P.STOPPED, _P.STARTING) else after


def _is_stop_intended(worker: LabWorker) -> bool:
    """Return whether a stopped worker is meant to stay stopped, and not to get another machine."""
    status = worker.status
    replaced = status.remedy is Remedy.REPLACE and status.remedied_at is None
    return status.phase in _RESTING or (status.phase is _P.FAILED and not replaced)


def _licence_records(
    before: LabWorker, after: LabWorker, known: WorkerRecords, now: datetime
) -> tuple[Sequence[Op], Sequence[Event]]:
    old = licences.decode_seat(known.seat)
    new = licences.seat_after(before, after, old, now)
    ops = list(licences.seat_ops(known.seat, new, after.metadata.uid))
    if new is not None and licences.starts_registration(before, after):
        ops += licences.claim_seat(known.token, old, new)
    elif new is not None and old is None:
        ops.append(licences.touch_guard(new))
    if new is None or new.state is not SeatState.ORPHANED or (old and old.state is SeatState.ORPHANED):
        return ops, ()
    alert, event = licences.orphan_alert(new, now)
    return [*ops, alert], [event]
