"""Workers under a control plane, and what people and other controllers do with them, on any cloud and any clock."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import msgspec

import given
from backstage import OTTO, service
from clouds import HERE
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Ref
from lcm.controllers.worker.controller import WorkerController
from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.clock import Clock
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import DefinitionState, LabletDefinition
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import AwsSpec, CmlSpec, LabWorker, LabWorkerSpec, WorkerPhase
from lcm.providers.protocols.compute import Compute
from lcm.providers.protocols.labhost import Hosts


def spec(**changes: Any) -> LabWorkerSpec:
    aws = AwsSpec(region=HERE, ami_name_pattern="CML-*")
    cml = CmlSpec(license_token="env:CML_LICENSE_TOKEN")
    return msgspec.structs.replace(LabWorkerSpec(aws=aws, cml=cml), **changes)


class Estate(ABC):
    """Workers, and the verbs of everybody but their controller."""

    clock: Clock
    core: ControlPlane
    cloud: Compute
    hosts: Hosts
    pin: str = ""
    """The certificate that its machines show, where they show one."""
    glance_seconds: float = 1
    """Between two looks of somebody who waits."""
    patience: timedelta = timedelta(hours=2)
    """After which somebody who waits gives up."""
    a_while: timedelta = timedelta(minutes=30)
    """Long enough for something that should not happen to happen."""

    @abstractmethod
    def controller(self) -> WorkerController:
        """Make the whole worker controller of one process."""

    @abstractmethod
    async def seats_taken(self) -> int:
        """Count the seats that the vendor's licence server has given out, whatever we believe."""

    @abstractmethod
    async def is_on(self, worker: LabWorker) -> bool:
        """Tell whether a worker's machine has power, whatever we believe."""

    @property
    def otto(self) -> LocalPlane:
        return self.core.plane_for(OTTO)

    def plane(self, actor: str = WORKER_CONTROLLER) -> LocalPlane:
        return self.core.plane_for(service(actor))

    def spec(self, **changes: Any) -> LabWorkerSpec:
        return spec(**changes)

    async def create(self, name: str = "w1", **changes: Any) -> LabWorker:
        return await self.otto.create(LabWorker(metadata=Metadata(name=name), spec=self.spec(**changes)))

    async def worker(self, name: str = "w1") -> LabWorker:
        found = await self.otto.get(Ref(LabWorker, name))
        assert found is not None, f"there is no worker {name}"
        return found

    async def gone(self, name: str = "w1") -> bool:
        return await self.otto.get(Ref(LabWorker, name)) is None

    async def reaches(self, *phases: WorkerPhase, name: str = "w1", within: timedelta | None = None) -> LabWorker:
        """Wait until a worker is in one of some phases."""
        try:
            async with asyncio.timeout((within or self.patience).total_seconds()):
                while True:
                    worker = await self.worker(name)
                    if worker.status.phase in phases:
                        return worker
                    await asyncio.sleep(self.glance_seconds)
        except TimeoutError:
            raise AssertionError(f"{name} did not get there:\n{story(await self.worker(name))}") from None

    async def vanishes(self, name: str = "w1", within: timedelta | None = None) -> None:
        try:
            async with asyncio.timeout((within or self.patience).total_seconds()):
                while not await self.gone(name):
                    await asyncio.sleep(self.glance_seconds)
        except TimeoutError:
            raise AssertionError(f"{name} is still there:\n{story(await self.worker(name))}") from None

    async def stays(self, phase: WorkerPhase, span: timedelta, name: str = "w1") -> LabWorker:
        """See that a worker does not leave a phase for a while."""
        until = self.clock.now() + span
        while self.clock.now() < until:
            worker = await self.worker(name)
            assert worker.status.phase is phase, story(worker)
            await asyncio.sleep(5 * self.glance_seconds)
        return await self.worker(name)

    async def host_session(
        self, worker: LabWorker, name: str = "s1", phase: SessionPhase = SessionPhase.RUNNING
    ) -> None:
        """Put a session on a worker, as scheduler and lablet controller will."""
        now = self.clock.now()
        await self._definition()
        session = msgspec.structs.replace(given.asap(), metadata=Metadata(name=name))
        made = await self.otto.create(session)
        claim = Claim(start=now, end=now + timedelta(hours=2), need=Amount(labs=1))
        status = msgspec.structs.replace(
            made.status,
            phase=SessionPhase.SCHEDULED,
            claim=claim,
            worker_id=worker.metadata.uid,
            worker_name=worker.metadata.name,
            allocated_ports={},
        )
        made = await self.plane(SCHEDULER).step(made, status)
        lablet = self.plane(LABLET_CONTROLLER)
        for step in (SessionPhase.INSTANTIATING, SessionPhase.RUNNING):
            if made.status.phase is phase:
                return
            fields: dict[str, Any] = {"cml_lab_id": "lab", "ends_at": now + timedelta(hours=2)}
            made = await lablet.step(made, msgspec.structs.replace(made.status, phase=step, **fields))

    async def end_session(self, name: str = "s1") -> None:
        lablet = self.plane(LABLET_CONTROLLER)
        for phase in (SessionPhase.COLLECTING, SessionPhase.STOPPING, SessionPhase.COMPLETED):
            session = await self.otto.get(Ref(LabletSession, name))
            assert session is not None
            if session.status.phase in {phase, SessionPhase.STOPPING} and phase is SessionPhase.COLLECTING:
                continue
            outcome = session.status.outcome or SessionPhase.COMPLETED
            target = outcome if phase is SessionPhase.COMPLETED else phase
            status = msgspec.structs.replace(session.status, phase=target, outcome=outcome)
            await lablet.step(session, status)

    @asynccontextmanager
    async def controlled(self) -> AsyncIterator[Self]:
        """Run the whole worker controller beside what a test does."""
        async with beside(self.controller().run()):
            yield self

    async def _definition(self) -> None:
        if await self.otto.get(Ref(LabletDefinition, "basics:1.0.0")) is None:
            definition = given.definition(state=DefinitionState.ACTIVE)
            await self.core.store.commit(*creation_ops(definition))


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something until the block ends; its failure ends the block's test."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def story(worker: LabWorker) -> str:
    return "\n".join(f"{line.at:%H:%M:%S} {line.phase}: {line.reason}" for line in worker.status.history)
