"""Workers under a control plane, what people and controllers do with them, and what is committed beside their steps."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from harness import given
from harness.clouds import HERE
from harness.plane_world import OTTO, Stage, Standing, service
from lcm.control.accounts.costs import CLOSED_PREFIX, OPEN_PREFIX
from lcm.control.accounts.licences import SEATS_PREFIX
from lcm.control.booking.step_records import FleetSettings
from lcm.control.objects.records import CODEC, creation_ops
from lcm.control.objects.steps import TEARDOWN
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
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceSeat, token_id
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook
from lcm.providers.protocols.compute import Compute
from lcm.providers.protocols.labhost import Hosts
from lcm.store.base import Store, scan_all


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
        """Return whether a worker's machine has power, whatever we believe."""

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


P = WorkerPhase
BY = service(WORKER_CONTROLLER)
TOKEN = "env:CML_LICENSE_TOKEN"
LAUNCHED = {"client_token": "t", "launch_attempt": 1, "instance_id": "i-1", "instance_type": "m5zn.metal"}
RUNNING = {**LAUNCHED, "state": "running"}
BOOTED = {"version": "2.9.0", "api_url": "https://10.0.0.1", "licensed": False}


def fleet(seats: int | None = None, prices: PriceBook = SHIPPED_PRICES) -> FleetSettings:
    return FleetSettings({} if seats is None else {token_id(TOKEN): seats}, prices)


def worker(
    name: str = "w1",
    phase: WorkerPhase = P.READY_UNLICENSED,
    *,
    cml: Mapping[str, object] = {},
    token: str | None = TOKEN,
    **more: object,
) -> LabWorker:
    """Return a worker that is up, unless it is said otherwise; it was launched by us, and goes when it has ended."""
    status = {"phase": phase, "ec2": RUNNING, "cml": {**BOOTED, **cml}, "capacity": given.machine()}
    made = given.worker(name=name, uid=f"uid-{name}", finalizers=(TEARDOWN,), generation=1)
    return given.with_fields(given.changed(made, {"spec": {"cml": {"license_token": token}}, "status": status}), more)


async def move(stage: Stage, at: LabWorker, phase: WorkerPhase | None = None, **fields: object) -> LabWorker:
    """Take a step as the worker controller."""
    status = given.changed(at.status, {"phase": phase or at.status.phase, **fields})
    return await stage[BY].step(at, status, reason="seen")


def pass_time(stage: Stage, until: datetime) -> None:
    assert isinstance(stage.clock, Standing)
    stage.clock.moment = until


async def seats(store: Store) -> dict[str, LicenceSeat]:
    page = await scan_all(store, SEATS_PREFIX)
    found = [CODEC.decode(entry.value, LicenceSeat) for entry in page.entries]
    return {seat.worker_id: seat for seat in found}


async def intervals(store: Store) -> tuple[Sequence[BillingInterval], Sequence[BillingInterval]]:
    """Read those that go on and those that are closed, in the order of their ends."""
    pages = [await scan_all(store, prefix) for prefix in (OPEN_PREFIX, CLOSED_PREFIX)]
    going, closed = ([CODEC.decode(entry.value, BillingInterval) for entry in page.entries] for page in pages)
    return going, closed
