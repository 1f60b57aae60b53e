"""A fleet in virtual time: the real worker controller, a control plane on the memory store, a made-up cloud."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

import given
from backstage import OTTO, service
from clouds import HERE
from lcm.config import Settings
from lcm.control.local import ControlPlane, LocalPlane
from lcm.control.plane import Plane, Ref
from lcm.control.records import creation
from lcm.controllers.cache import Cache
from lcm.controllers.election import Election
from lcm.controllers.runtime import Runtime
from lcm.controllers.together import together
from lcm.controllers.worker.controller import WorkerController
from lcm.controllers.worker.effects import Hands
from lcm.controllers.worker.lifecycle import Lifecycle
from lcm.controllers.worker.look import Eyes
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import Rules
from lcm.model.capacity import Amount, Claim
from lcm.model.definition import DefinitionState, LabletDefinition
from lcm.model.machine import LABLET_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.resource import Metadata
from lcm.model.secret import Secret
from lcm.model.session import LabletSession, SessionPhase
from lcm.model.settings import SystemSettings
from lcm.model.worker import AwsSpec, CmlSpec, LabWorker, LabWorkerSpec, WorkerPhase
from lcm.providers.compute import Compute, Instance
from lcm.providers.hosts import Hosts
from lcm.sim.chance import Chance, Ids
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.licence import LicenceServer
from lcm.sim.cml.stats import Machine
from lcm.sim.compute import SimCloud
from lcm.sim.compute_account import Nature
from lcm.sim.compute_machines import Pace
from lcm.sim.hosts import SimHosts
from lcm.sim.loop import VirtualClock, VirtualStopwatch
from lcm.sim.power import Power
from lcm.store.base import everything
from lcm.store.memory import MemoryStore
from seals import given_keys

TOKEN = "good-token"
QUICK = Pace(timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=10), timedelta(seconds=10))
"""A cloud and a CML that boot in seconds: crash tests stop at every await, so there must not be thousands."""
W1 = Ref(LabWorker, "w1")


class OneSecret:
    """Gives the same secret for every reference."""

    async def reveal(self, _ref: str) -> Secret:
        await asyncio.sleep(0)
        return Secret(TOKEN)


def spec(**changes: Any) -> LabWorkerSpec:
    aws = AwsSpec(region=HERE, ami_name_pattern="CML-*")
    cml = CmlSpec(license_token="env:CML_LICENSE_TOKEN")
    return msgspec.structs.replace(LabWorkerSpec(aws=aws, cml=cml), **changes)


@dataclass
class Fleet:
    """The world: what outlives every process of ours."""

    seed: int = 7
    seats: int = 100
    quick: bool = False
    rules: Rules = field(default_factory=Rules)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.chance = Chance(self.seed)
        self.store = MemoryStore()
        self.licences = LicenceServer(seats=self.seats)
        paces = {"m5zn.metal": QUICK} if self.quick else {}
        nature = Nature(paces=paces, subnets={"subnet-a": f"{HERE}a", "subnet-b": f"{HERE}b"})
        self.cloud = SimCloud(self.clock, self.chance.stream("cloud"), nature=nature, attach=self._install)
        self.cloud.account.add_image(HERE, "CML-2.9.0", self.clock.now())
        self.hosts = SimHosts(self.cloud)
        self.core = self.control()

    def control(self) -> ControlPlane:
        """Make a control plane, as each process has one."""
        return ControlPlane(
            self.store,
            clock=self.clock,
            ids=Ids(self.chance.stream("ids")),
            record_ids=Ids(self.chance.stream("records")),
            sealer=given_keys(),
        )

    def plane(self, actor: str = WORKER_CONTROLLER) -> LocalPlane:
        return self.core.acting(service(actor))

    @property
    def otto(self) -> LocalPlane:
        return self.core.acting(OTTO)

    def cml(self, instance_id: str) -> Cml:
        found = self.cloud.attached(instance_id)
        assert isinstance(found, Cml), f"{instance_id} does not run"
        return found

    def _install(self, instance: Instance, power: Power) -> Cml:
        machine = Machine(silent_seconds=5, boot_seconds=15) if self.quick else Machine()
        chance = Chance(f"{self.seed}/{instance.instance_id}")
        return Cml(self.clock, chance, machine=machine, power=power, licence_server=self.licences)

    async def create(self, name: str = "w1", **changes: Any) -> LabWorker:
        return await self.otto.create(LabWorker(metadata=Metadata(name=name), spec=spec(**changes)))

    async def worker(self, name: str = "w1") -> LabWorker:
        found = await self.otto.get(Ref(LabWorker, name))
        assert found is not None, f"there is no worker {name}"
        return found

    async def gone(self, name: str = "w1") -> bool:
        return await self.otto.get(Ref(LabWorker, name)) is None

    async def reaches(
        self, *phases: WorkerPhase, name: str = "w1", within: timedelta = timedelta(hours=2)
    ) -> LabWorker:
        """Wait until a worker is in one of some phases."""
        async with asyncio.timeout(within.total_seconds()):
            while True:
                worker = await self.worker(name)
                if worker.status.phase in phases:
                    return worker
                await asyncio.sleep(1)

    async def vanishes(self, name: str = "w1", within: timedelta = timedelta(hours=2)) -> None:
        async with asyncio.timeout(within.total_seconds()):
            while not await self.gone(name):
                await asyncio.sleep(1)

    async def stays(self, phase: WorkerPhase, span: timedelta, name: str = "w1") -> LabWorker:
        """See that a worker does not leave a phase for a while."""
        until = self.clock.now() + span
        while self.clock.now() < until:
            worker = await self.worker(name)
            assert worker.status.phase is phase, story(worker)
            await asyncio.sleep(5)
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

    async def _definition(self) -> None:
        if await self.otto.get(Ref(LabletDefinition, "basics:1.0.0")) is None:
            definition = given.definition(state=DefinitionState.ACTIVE)
            await self.core.store.commit(*creation(definition))

    def living(self) -> Sequence[Instance]:
        """List the machines that are not gone."""
        now = self.clock.now()
        every = [machine.instance(now) for machine in self.cloud.account.machines.values()]
        return [one for one in every if one.state not in {"terminated", "shutting-down"}]

    async def run_lifecycle(
        self, *, cloud: Compute | None = None, hosts: Hosts | None = None, holder: str = "a"
    ) -> None:
        """Run the worker controller's lifecycle as one process would: elected, fenced, until cancelled."""
        plane = self.control().acting(service(WORKER_CONTROLLER))
        election = Election(
            plane, "worker-controller", holder, ttl_seconds=15, stopwatch=VirtualStopwatch(), chance=self.half
        )
        await election.run(lambda fenced: self._lead(fenced, cloud or self.cloud, hosts or self.hosts))

    def half(self) -> float:
        return 0.5

    async def _lead(self, plane: Plane, cloud: Compute, hosts: Hosts) -> None:
        cache = Cache(plane, LabWorker, LabletSession, SystemSettings)
        await together(cache.run(), self._work(plane, cache, cloud, hosts))

    async def _work(self, plane: Plane, cache: Cache, cloud: Compute, hosts: Hosts) -> None:
        await cache.ready()
        occupants = Occupants(cache)
        lifecycle = Lifecycle(
            plane,
            cache,
            Eyes(cloud, hosts, self.clock),
            Hands(plane, cloud, hosts, OneSecret()),
            clock=self.clock,
            rules=lambda: self.rules,
            occupants=occupants,
        )
        runtime = Runtime(
            "worker-controller",
            lifecycle.reconcile,
            cache,
            LabWorker,
            clock=self.clock,
            chance=self.half,
            concurrency=2,
        )
        occupants.tell(runtime.poke)
        await runtime.run()

    def controller(self, *, cloud: Compute | None = None, hosts: Hosts | None = None) -> WorkerController:
        """Make the whole worker controller of one process."""
        return WorkerController(
            plane=self.control().acting(service(WORKER_CONTROLLER)),
            cloud=cloud or self.cloud,
            hosts=hosts or self.hosts,
            secrets=OneSecret(),
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=self.half,
            settings=self.settings,
            holder="controller",
        )

    @asynccontextmanager
    async def controlled(self) -> AsyncIterator["Fleet"]:
        """Run the whole worker controller beside what a test does."""
        async with beside(self.controller().run()):
            yield self

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Fleet"]:
        """Run the lifecycle beside what a test does."""
        async with beside(self.run_lifecycle()):
            yield self

    async def stored(self, prefix: str) -> Sequence[str]:
        return [entry.key for entry in (await everything(self.store, prefix)).entries]


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
