"""What the control plane writes in the same commit as a step: a worker's licence seat, its bill, what is wanted of it.

`local` calls `beside` for every step. Most steps concern none of this and cost no read; for the others, what is beside
the object is read first (`look`), then decided without I/O (`companions`), then committed at exactly the state that was
read: whoever was faster makes the step be decided anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final, Generic

from lcm.control.accounts import billing, licences
from lcm.control.accounts import billing as session_costs
from lcm.control.booking import guards
from lcm.control.objects.actions import wanting
from lcm.control.plane.protocol import R
from lcm.model.base.event import Event
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, Remedy, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.model.money.prices import SHIPPED, PriceBook
from lcm.store.base import Delete, Entry, Op, Store

_P: Final = WorkerPhase
_RESTING: Final = frozenset({_P.READY, _P.READY_UNLICENSED, _P.DRAINING})
_LEADS_TO_STOPPED: Final = frozenset({_P.UNLICENSING, _P.STOPPING})
_concern: Final = attrgetter("phase", "cml.licensed", "ec2.state", "ec2.instance_id", "ec2.instance_type")


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the settings say of all workers: how many seats each token has, what things cost, how long they take."""

    seats: Mapping[str, int] = field(default_factory=dict)
    prices: PriceBook = SHIPPED
    horizon: timedelta = timedelta(minutes=40)
    """How long before a session its worker must not be taken away any more."""


NO_LIMITS: Final = Fleet()


@dataclass(frozen=True, slots=True)
class Known:
    """What was read beside a worker."""

    seat: Entry | None = None
    interval: Entry | None = None
    token: licences.Token | None = None
    occupants: guards.Occupancy | None = None
    """Read only when the step would take the machine away."""


@dataclass(frozen=True, slots=True)
class Companions(Generic[R]):
    """An object as it is after its step, and what is written and told along with it."""

    after: R
    ops: Sequence[Op] = ()
    told: Sequence[Event] = ()


async def beside(store: Store, fleet: Fleet, before: R, after: R, now: datetime) -> Companions[R]:
    """Say what must be written with a step. NoRoom without a free seat, IllegalStep while a session is in the way."""
    if isinstance(before, LabletSession) and isinstance(after, LabletSession):
        paid = await session_costs.charged(store, before, after, now)
        assert isinstance(paid, type(after))
        return Companions(paid, guards.touched(before, after))
    if isinstance(before, LabWorkerPool) and isinstance(after, LabWorkerPool):
        return Companions(after, await guards.taken_in(store, before, after))
    if isinstance(before, LabWorker) and isinstance(after, LabWorker) and concerns(before, after):
        made = companions(before, after, await look(store, fleet, before, after, now), fleet, now)
        assert isinstance(made.after, type(after))
        return Companions(made.after, made.ops, made.told)
    return Companions(after)


def concerns(before: LabWorker, after: LabWorker) -> bool:
    """Tell whether a step can matter to anything beside the worker."""
    return bool(_concern(before.status) != _concern(after.status))


async def look(store: Store, fleet: Fleet, before: LabWorker, after: LabWorker, now: datetime) -> Known:
    """Read what a step may change beside the worker."""
    uid = after.metadata.uid
    return Known(
        seat=await store.get(licences.seat_key(uid)),
        interval=await store.get(billing.open_key(uid)),
        token=await licences.look_at_token(store, after, fleet.seats) if licences.asks(before, after) else None,
        occupants=await guards.look(store, after, now, fleet.horizon) if guards.spoils(before, after, now) else None,
    )


def companions(before: LabWorker, after: LabWorker, known: Known, fleet: Fleet, now: datetime) -> Companions[LabWorker]:
    """Decide what a worker's step brings with it."""
    ops: list[Op] = []
    if known.occupants is not None:
        ops += guards.vacated(before, after, known.occupants)
    elif after.status.phase is _P.TERMINATED:
        ops.append(Delete(guards.guard_key(after.metadata.uid)))
    seats, told = _licence(before, after, known, now)
    ops += [*seats, *billing.ops_for(known.interval, after, fleet.prices, now)]
    return Companions(followed(before, after), ops, told)


def followed(before: LabWorker, after: LabWorker) -> LabWorker:
    """Want a worker as its step left it, or the next look would undo what somebody did, or what was decided."""
    source, target = before.status.phase, after.status.phase
    if source is target or after.metadata.deletion_timestamp is not None:
        return after
    if (target is _P.STOPPED and source is not _P.STOPPING) or (target in _LEADS_TO_STOPPED and _meant(before)):
        return wanting(after, "stopped")  # once, so that who wants it to run meanwhile is heard
    return wanting(after, "running") if (source, target) == (_P.STOPPED, _P.STARTING) else after


def _meant(worker: LabWorker) -> bool:
    """Tell whether a worker that is now stopped is meant to stay so, and not to get another machine."""
    status = worker.status
    replaced = status.remedy is Remedy.REPLACE and status.remedied_at is None
    return status.phase in _RESTING or (status.phase is _P.FAILED and not replaced)


def _licence(before: LabWorker, after: LabWorker, known: Known, now: datetime) -> tuple[Sequence[Op], Sequence[Event]]:
    old = licences.opened_seat(known.seat)
    new = licences.seat_after(before, after, old, now)
    ops = list(licences.ops_for(known.seat, new, after.metadata.uid))
    if new is not None and licences.asks(before, after):
        ops += licences.guarded(known.token, old, new)
    elif new is not None and old is None:
        ops.append(licences.noticed(new))
    if new is None or new.state is not SeatState.ORPHANED or (old and old.state is SeatState.ORPHANED):
        return ops, ()
    alert, event = licences.orphaned(new, now)
    return [*ops, alert], [event]
