"""A hall of workers and seats under control planes that promise, and their scheduler, on a clock that stands still."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import TypeVar

import given
from backstage import NOW, Standing, active, service
from estates import beside
from lcm.control.accounts.step_records import NO_LIMITS, FleetSettings
from lcm.control.objects.records import creation_ops, find_record
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import ref_of
from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.machine import POOL_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.definition import LabletDefinition, PortUse, ResourceRequirements
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.placement.claims import Terms
from lcm.store.memory import MemoryStore

R = TypeVar("R", bound=Resource)
NEED = Amount(cpu_millis=4_000, memory_mb=16_384, storage_mb=20_480, nodes=4, ports=3, labs=1)
ROOM = Amount(cpu_millis=8_000, memory_mb=43_008, storage_mb=51_200, nodes=10, ports=6_000, labs=3)
PORTS = ("PC_serial", "PC_vnc", "web")
HOUR = timedelta(hours=1)


@dataclass
class Hall:
    """Some control planes on one store; verbs go to the first unless said otherwise."""

    planes: int = 1
    fleet: FleetSettings = NO_LIMITS
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: Standing = field(default_factory=Standing)
    cores: list[ControlPlane] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbers = count(1)
        ids = lambda: f"uid-{next(numbers)}"  # noqa: E731 - as short as what it stands for
        for _ in range(self.planes):
            terms = Terms()
            self.cores.append(ControlPlane(self.store, clock=self.clock, ids=ids, terms=terms, fleet=self.fleet))

    def scheduler(self, plane: int = 0) -> LocalPlane:
        return self.cores[plane].plane_for(service(SCHEDULER))

    def follower(self) -> LocalPlane:
        return self.cores[0].plane_for(service(POOL_CONTROLLER))

    async def put(self, resource: R) -> R:
        await self.store.commit(*creation_ops(resource))
        return await self.read(resource)

    async def read(self, resource: R) -> R:
        found = await find_record(self.store, ref_of(resource))
        assert found is not None
        return found.resource

    async def place(
        self, session: LabletSession, *, worker: LabWorker | None = None, seat: int | None = None, plane: int = 0
    ) -> LabletSession:
        """Put a session somewhere for as long as it has a claim, or for two hours from now on."""
        held = session.status.claim
        start, end = (held.start, held.end) if held else (NOW, NOW + 2 * HOUR)
        return await self.scheduler(plane).schedule(session, assignment(start, end, worker=worker, seat=seat))


@asynccontextmanager
async def hall(planes: int = 1, fleet: FleetSettings = NO_LIMITS) -> AsyncIterator[Hall]:
    """Open a hall that has the definition basics:1.0.0."""
    made = Hall(planes, fleet)
    async with AsyncExitStack() as running, asyncio.timeout(60):
        for core in made.cores:
            assert core.promises is not None
            await running.enter_async_context(beside(core.promises.calendar.run()))
        await made.put(lab())
        yield made


def assignment(
    start: datetime = NOW, end: datetime = NOW + 2 * HOUR, *, worker: LabWorker | None = None, seat: int | None = None
) -> Assignment:
    return Assignment(
        start=start,
        end=end,
        worker_id=worker.metadata.uid if worker else None,
        seat=None if seat is None else Seat(pool="ccna", number=seat),
    )


def lab(need: Amount = NEED, ports: tuple[str, ...] = PORTS) -> LabletDefinition:
    requirements = ResourceRequirements(
        cpu_cores=need.cpu_millis / 1000, memory_gb=need.memory_mb / 1024, storage_gb=need.storage_mb / 1024
    )
    template = {name: PortUse(kind="vnc", node=name) for name in ports}
    return active(resource_requirements=requirements, node_count=need.nodes, port_template=template)


def waiting(name: str, **overrides: object) -> LabletSession:
    """Give a session that is wanted as soon as possible."""
    return given.asap(**{"name": name, "uid": f"uid-{name}"} | overrides)


def booked(name: str, seat: int | None = 1, start: datetime = NOW + HOUR, **overrides: object) -> LabletSession:
    """Give a session with a slot of an hour, that has a claim for it."""
    held = claim(start, start + HOUR)
    fields = {"claim": held, "seat": Seat(pool="ccna", number=seat) if seat else None}
    slot = {"timeslot_start": start, "timeslot_end": start + HOUR}
    return given.session(**{"name": name, "uid": f"uid-{name}"} | fields | slot | overrides)


def claim(start: datetime = NOW, end: datetime = NOW + 2 * HOUR, need: Amount = NEED) -> Claim:
    return Claim(start=start, end=end, need=need)


def on(worker: LabWorker, name: str, **overrides: object) -> LabletSession:
    """Give a session that runs on a worker."""
    there = {"worker_id": worker.metadata.uid, "phase": SessionPhase.RUNNING, "claim": claim()}
    return waiting(name, **there | overrides)


def worker(name: str = "w1", *, licensed: bool = True, **overrides: object) -> LabWorker:
    """Give a worker that takes sessions."""
    accepts = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=NOW)
    ready = {"phase": WorkerPhase.READY, "conditions": (accepts,), "capacity": ROOM}
    made = given.worker(**{"name": name, "uid": f"uid-{name}"} | ready | overrides)
    return given.changed(made, {"status": {"cml": {"licensed": licensed}}})


def filled(*workers: LabWorker, **overrides: object) -> LabWorkerPool:
    """Give a pool whose first seats have these workers."""
    seats = tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )
    return given.pool(**{"seats": seats, "min_workers": 0, "max_workers": 3} | overrides)
