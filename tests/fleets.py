"""A fleet in virtual time: the real worker controller, a control plane on the memory store, a made-up cloud."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from backstage import service
from clouds import HERE
from estates import Estate, beside
from lcm.control.objects.cache import Cache
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref
from lcm.controllers.runtime.election import Election
from lcm.controllers.runtime.reconcile import Runtime
from lcm.controllers.worker.controller import WorkerController
from lcm.controllers.worker.effects import WorkerEffects
from lcm.controllers.worker.lifecycle import WorkerLifecycle
from lcm.controllers.worker.look import WorkerLook
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import WorkerRules
from lcm.model.access.secret import Secret
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.compute import Compute, Instance
from lcm.providers.protocols.labhost import Hosts
from lcm.settings.load import Settings
from lcm.sim.cloud.account import CloudBehaviour
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cloud.fleet import SimHosts
from lcm.sim.cloud.machines import MachinePace
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.licence import LicenceServer
from lcm.sim.cml.stats import CmlMachine
from lcm.sim.time.chance import Chance, Ids
from lcm.sim.time.loop import VirtualClock, VirtualStopwatch
from lcm.store.base import scan_all
from lcm.store.memory import MemoryStore
from lcm.system.tasks import run_until_first_ends
from seals import given_keys

TOKEN = "good-token"
QUICK = MachinePace(timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=10), timedelta(seconds=10))
"""A cloud and a CML that boot in seconds: crash tests stop at every await, so there must not be thousands."""
W1 = Ref(LabWorker, "w1")


class OneSecret:
    """Gives the same secret for every reference."""

    async def reveal(self, _ref: str) -> Secret:
        await asyncio.sleep(0)
        return Secret(TOKEN)


@dataclass
class Fleet(Estate):
    """The world: what outlives every process of ours."""

    seed: int = 7
    seats: int = 100
    quick: bool = False
    listed_within: timedelta = timedelta(seconds=4)
    rules: WorkerRules = field(default_factory=WorkerRules)
    settings: Settings = field(default_factory=Settings)
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.chance = Chance(self.seed)
        self.licences = LicenceServer(seats=self.seats)
        paces = {"m5zn.metal": QUICK} if self.quick else {}
        subnets = {"subnet-a": f"{HERE}a", "subnet-b": f"{HERE}b"}
        nature = CloudBehaviour(paces=paces, subnets=subnets, listed_within=self.listed_within)
        self.cloud: SimCloud = SimCloud(self.clock, self.chance.stream("cloud"), nature=nature, attach=self._install)
        self.cloud.account.add_image(HERE, "CML-2.9.0", self.clock.now())
        self.hosts: Hosts = SimHosts(self.cloud)
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

    def cml(self, instance_id: str) -> Cml:
        found = self.cloud.find_attached(instance_id)
        assert isinstance(found, Cml), f"{instance_id} does not run"
        return found

    async def seats_taken(self) -> int:
        return len(self.licences.taken)

    async def is_on(self, worker: LabWorker) -> bool:
        return self.cloud.find_attached(worker.status.ec2.instance_id) is not None

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        machine = CmlMachine(silent_seconds=5, boot_seconds=15) if self.quick else CmlMachine()
        chance = Chance(f"{self.seed}/{instance.instance_id}")
        return Cml(self.clock, chance, machine=machine, power=power, licence_server=self.licences)

    def living(self) -> Sequence[Instance]:
        """List the machines that are not gone."""
        now = self.clock.now()
        every = [machine.instance(now) for machine in self.cloud.account.machines.values()]
        return [one for one in every if one.state not in {"terminated", "shutting-down"}]

    async def run_lifecycle(
        self, *, cloud: Compute | None = None, hosts: Hosts | None = None, holder: str = "a"
    ) -> None:
        """Run the worker controller's lifecycle as one process would: elected, fenced, until cancelled."""
        plane = self.control().plane_for(service(WORKER_CONTROLLER))
        election = Election(
            plane, "worker-controller", holder, ttl_seconds=15, stopwatch=VirtualStopwatch(), chance=self.half
        )
        await election.run(lambda fenced: self._lead(fenced, cloud or self.cloud, hosts or self.hosts))

    def half(self) -> float:
        return 0.5

    async def _lead(self, plane: Plane, cloud: Compute, hosts: Hosts) -> None:
        cache = Cache(plane, LabWorker, LabletSession, SystemSettings)
        await run_until_first_ends(cache.run(), self._work(plane, cache, cloud, hosts))

    async def _work(self, plane: Plane, cache: Cache, cloud: Compute, hosts: Hosts) -> None:
        await cache.ready()
        occupants = Occupants(cache)
        lifecycle = WorkerLifecycle(
            plane,
            cache,
            WorkerLook(cloud, hosts, self.clock),
            WorkerEffects(plane, cloud, hosts, OneSecret()),
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
            report_bug=lifecycle.report_bug,
        )
        occupants.subscribe(runtime.enqueue)
        await runtime.run()

    def controller(self, *, cloud: Compute | None = None, hosts: Hosts | None = None) -> WorkerController:
        """Make the whole worker controller of one process."""
        return WorkerController(
            plane=self.control().plane_for(service(WORKER_CONTROLLER)),
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
    async def running(self) -> AsyncIterator["Fleet"]:
        """Run the lifecycle beside what a test does."""
        async with beside(self.run_lifecycle()):
            yield self

    async def stored(self, prefix: str) -> Sequence[str]:
        return [entry.key for entry in (await scan_all(self.store, prefix)).entries]
