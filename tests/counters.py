"""A desk at which slots are promised, on a store in memory, and objects that stand there as a test says."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import companies
import given
from backstage import NOW, OTTO
from estates import beside
from lcm.control.accounts.step_records import NO_LIMITS, FleetSettings
from lcm.control.objects.records import creation_ops, find_record
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import ref_of
from lcm.model.access.identity import Caller
from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, ResourceRequirements
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.placement.claims import Terms
from lcm.sim.time.chance import Chance, Ids
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.memory import MemoryStore

R = TypeVar("R", bound=Resource)
HOUR = timedelta(hours=1)


class Counter:
    """One store, its control plane and whoever stands before it."""

    def __init__(self, fleet: FleetSettings = NO_LIMITS, terms: Terms | None = None) -> None:
        self.store = MemoryStore()
        ids = Ids(Chance(1).stream("ids"))
        self.core = ControlPlane(
            self.store, clock=VirtualClock(), ids=ids, record_ids=ids, fleet=fleet, terms=terms or Terms()
        )

    @property
    def otto(self) -> LocalPlane:
        return self.core.plane_for(OTTO)

    def __getitem__(self, caller: Caller) -> LocalPlane:
        return self.core.plane_for(caller)

    async def put(self, *resources: Resource) -> None:
        """Place objects as they are, whatever their phases, and let the calendar learn of them."""
        assert self.core.promises is not None
        for one in resources:
            revision = await self.store.commit(*creation_ops(one))
            await self.core.promises.calendar.wait_for_revision(revision)

    async def read(self, resource: R) -> R:
        record = await find_record(self.store, ref_of(resource))
        assert record is not None
        return record.resource


@asynccontextmanager
async def staffed(fleet: FleetSettings = NO_LIMITS, terms: Terms | None = None) -> AsyncIterator[Counter]:
    counter = Counter(fleet, terms)
    assert counter.core.promises is not None
    async with beside(counter.core.promises.calendar.run()):
        yield counter
    await counter.store.close()


def attended(
    work: Callable[[Counter], Awaitable[None]], *, fleet: FleetSettings = NO_LIMITS, terms: Terms | None = None
) -> None:
    """Do something at a desk, in virtual time from eight o'clock on."""

    async def main() -> None:
        async with staffed(fleet, terms) as counter:
            await work(counter)

    run(main, start=NOW)


def lab(cores: float = 4, **more: object) -> LabletDefinition:
    """Give a lab that may be booked and says what it needs."""
    needs = ResourceRequirements(cpu_cores=cores, memory_gb=8)
    said = {"state": DefinitionState.ACTIVE, "resource_requirements": needs, "node_count": 4, "lab_track": "ccna"}
    return given.definition(**said | more)


def warm(name: str = "w1", phase: WorkerPhase = WorkerPhase.READY, **more: Any) -> LabWorker:
    """Give a worker that serves, unless it is said otherwise."""
    cml = {"licensed": True, "ready": True, **more.pop("cml", {})}
    serves = phase in {WorkerPhase.READY, WorkerPhase.ACTIVE}
    accepts = Condition(
        type=WorkerCondition.ACCEPTING_LABS,
        status=Truth.TRUE if serves else Truth.FALSE,
        last_transition_at=NOW,
        reason="Ready" if serves else f"Phase{phase}",
    )
    return companies.worker(name, phase, cml=cml, conditions=(accepts,), **more)


def pool(*workers: LabWorker, **more: object) -> LabWorkerPool:
    """Give a pool whose first seats these workers fill."""
    seats = tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )
    return given.pool(**{"min_workers": 0, "max_workers": 2, "seats": seats} | more)


def running(name: str, on: LabWorker, seat: int | None = None, **need: int) -> LabletSession:
    """Give somebody else's session that is on a worker until eleven, and takes so much of it."""
    place = {"worker_id": on.metadata.uid, "worker_name": on.metadata.name}
    return given.asap(
        name=name,
        uid=f"uid-{name}",
        owner="bob",
        lab_track="ccna",
        phase=SessionPhase.RUNNING,
        claim=Claim(start=NOW - HOUR, end=NOW + 3 * HOUR, need=Amount(labs=1, **need)),
        seat=Seat(pool="ccna", number=seat) if seat else None,
        **place,
    )


def wanted(**more: object) -> LabletSession:
    """Give Ada's session, which waits to be placed as soon as possible."""
    return given.asap(**{"name": "wanted", "uid": "uid-wanted", "owner": "ada", "lab_track": "ccna"} | more)
