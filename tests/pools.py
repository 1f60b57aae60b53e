"""Pools in virtual time: the real desk and pool controller, with the real worker controller or without."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

import given
from backstage import service
from estates import beside
from fleets import Fleet
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Ref
from lcm.controllers.pool.controller import PoolController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.base.machine import POOL_CONTROLLER, WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Metadata, Truth
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, ResourceRequirements
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, PoolPhase, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.placement.claims import Terms
from lcm.settings.load import Settings
from lcm.sim.time.chance import Ids
from lcm.sim.time.loop import VirtualStopwatch
from seals import given_keys

CCNA = Ref(LabWorkerPool, "ccna")
PER_WORKER = 12
"""Labs of four cores that fit onto a machine of 48."""
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
UP = (
    WorkerPhase.PROVISIONING_EC2,
    WorkerPhase.EC2_READY,
    WorkerPhase.STARTING,
    WorkerPhase.READY_UNLICENSED,
    WorkerPhase.READY,
)


@dataclass
class Pools(Fleet):
    """A fleet with a pool of one track."""

    terms: Terms = field(default_factory=Terms)
    settings: Settings = field(default_factory=lambda: Settings(worker_controller_leader_lease_ttl=3600))
    """Nobody dies here unless a test says so: a lease that is renewed every few seconds would take most of the time."""

    def control(self) -> ControlPlane:
        return ControlPlane(
            self.store,
            clock=self.clock,
            ids=Ids(self.chance.stream("ids")),
            record_ids=Ids(self.chance.stream("records")),
            sealer=given_keys(),
            terms=self.terms,
        )

    def controller(self, **parts: Any) -> WorkerController:
        return replace(super().controller(**parts), plane=self.plane(WORKER_CONTROLLER))

    def pool_controller(self, holder: str = "pools") -> PoolController:
        return PoolController(
            plane=self.core.plane_for(service(POOL_CONTROLLER)),
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=self.half,
            settings=self.settings,
            holder=holder,
        )

    @asynccontextmanager
    async def booking(self) -> AsyncIterator["Pools"]:
        """Run the desk's calendar beside what a test does."""
        assert self.core.promises is not None
        async with beside(self.core.promises.calendar.run()):
            yield self

    @asynccontextmanager
    async def following(self, *, workers: bool = False) -> AsyncIterator["Pools"]:
        """Run the pool controller, and the worker controller if asked to, beside what a test does."""
        async with self.booking():
            if workers:
                async with beside(self.controller().run()), beside(self.pool_controller().run()):
                    yield self
            else:
                async with beside(self.pool_controller().run()):
                    yield self

    async def found(self, *, cpu: int = 4, template: dict[str, Any] | None = None, **spec: Any) -> LabWorkerPool:
        """Make a template, a definition and a pool."""
        worker = self.spec(**(template or {}))
        made = WorkerTemplateSpec(worker=worker, name_prefix="ccna", labels={"team": "exams"})
        await self.otto.create(WorkerTemplate(metadata=Metadata(name="metal"), spec=made))
        definition = given.definition(
            lab_track="ccna",
            state=DefinitionState.ACTIVE,
            node_count=5,
            resource_requirements=ResourceRequirements(cpu_cores=cpu, memory_gb=8),
        )
        await self.otto.create(LabletDefinition(metadata=Metadata(name="basics:1.0.0"), spec=definition.spec))
        wanted: dict[str, Any] = {"min_workers": 0, "max_workers": 10} | spec
        pool = LabWorkerPoolSpec(lab_track="ccna", template="metal", **wanted)
        return await self.otto.create(LabWorkerPool(metadata=Metadata(name="ccna"), spec=pool))

    async def book(self, name: str, start: datetime, span: timedelta = 2 * HOUR) -> LabletSession:
        spec = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=start + span)
        return await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))

    async def book_many(self, count: int, start: datetime, span: timedelta = 2 * HOUR) -> Sequence[LabletSession]:
        return await asyncio.gather(*(self.book(f"s{number}", start, span) for number in range(count)))

    async def pool(self) -> LabWorkerPool:
        found = await self.otto.get(CCNA)
        assert found is not None, "the pool is gone"
        return found

    async def workers(self) -> Sequence[LabWorker]:
        return (await self.otto.list(LabWorker)).items

    async def settles(self, seconds: float = 5) -> LabWorkerPool | None:
        """Let the controller have its looks."""
        await asyncio.sleep(seconds)
        return await self.otto.get(CCNA)

    async def pool_reaches(self, phase: PoolPhase, within: timedelta = 3 * HOUR) -> LabWorkerPool:
        until = self.clock.now() + within
        while (pool := await self.pool()).status.phase is not phase:
            assert self.clock.now() < until, f"it is {pool.status.phase}"
            await asyncio.sleep(5)
        return pool

    async def comes_up(self, name: str) -> LabWorker:
        """Take a worker to where it accepts labs, as its controller would, with no machine behind it."""
        worker = await self.worker(name)
        way = UP if worker.status.phase is WorkerPhase.PENDING else UP[2:]
        for phase in way:
            worker = await self.stepped(worker, phase)
        return worker

    async def stepped(self, worker: LabWorker, phase: WorkerPhase, **fields: Any) -> LabWorker:
        """Take a worker one step further, with what that needs."""
        machine = "" if phase is WorkerPhase.PROVISIONING_EC2 else "i-1"
        status = msgspec.structs.replace(
            worker.status,
            phase=phase,
            ec2=msgspec.structs.replace(worker.status.ec2, client_token="t", instance_id=machine, launch_attempt=1),
            cml=msgspec.structs.replace(
                worker.status.cml, api_url="https://cml", version="2.9.0", ready=True, licensed=phase in _LICENSED
            ),
            capacity=given.machine(labs=20),
            conditions=(_accepting(phase, self.clock.now()),),
            observed_generation=worker.metadata.generation,
            **fields,
        )
        return await self.plane(WORKER_CONTROLLER).step(worker, status)


_LICENSED = frozenset({WorkerPhase.READY, WorkerPhase.ACTIVE})


def _accepting(phase: WorkerPhase, now: datetime) -> Condition:
    truth = Truth.TRUE if phase in _LICENSED else Truth.FALSE
    return Condition(type=WorkerCondition.ACCEPTING_LABS, status=truth, last_transition_at=now)


def names(workers: Sequence[LabWorker]) -> list[str]:
    return sorted(one.metadata.name for one in workers)
