"""Workers that are monitored, and discovery of machines without a record, in virtual time on a simulated cloud."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from harness import given
from harness.clouds import HERE, THERE
from harness.credentials import given_keys
from harness.plane_world import ROOT, Stage, service
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref, WorkerRef
from lcm.controllers.discovery.search import Discovery
from lcm.controllers.worker.conditions import ec2_facts
from lcm.controllers.worker.monitor import Monitor
from lcm.model.base.clock import Clock
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Metadata, find_condition
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import (
    CmlFacts,
    Ec2Facts,
    LabWorker,
    LabWorkerSpec,
    LabWorkerStatus,
    WorkerCondition,
    WorkerPhase,
    WorkerTelemetry,
)
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG, Compute, Instance
from lcm.settings.load import Settings, effective_settings
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder
from lcm.sim.cloud.compute import Attach, SimCloud
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cloud.fleet import SimHosts
from lcm.sim.cloud.machines import MachinePace
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.stats import CmlMachine
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock
from lcm.store.memory import MemoryStore
from lcm.system.tasks import run_until_first_ends

SETTLED = timedelta(minutes=2)
"""After so long everything has booted."""
QUICK = MachinePace(timedelta(seconds=5), timedelta(seconds=20), timedelta(seconds=10), timedelta(seconds=10))
SMALL = CmlMachine(silent_seconds=5, boot_seconds=15)


class NotedHosts(SimHosts):
    """Notes who was asked for when; `slow` never gets there."""

    def __init__(self, cloud: SimCloud, now: Callable[[], datetime]) -> None:
        super().__init__(cloud)
        self._now = now
        self.asked: list[tuple[str, datetime]] = []
        self.slow = ""

    async def of(self, worker: LabWorker) -> DirectHost:
        self.asked.append((worker.metadata.name, self._now()))
        if worker.metadata.name == self.slow:
            await asyncio.sleep(3600)
        return await super().of(worker)

    def moments(self, name: str) -> list[datetime]:
        return [at for asked, at in self.asked if asked == name]


class NotedCloud(SimCloud):
    """Counts how often it was asked for what."""

    def __init__(self, clock: Clock, chance: Chance, *, nature: CloudBehaviour, attach: Attach) -> None:
        super().__init__(clock, chance, nature=nature, attach=attach)
        self.calls: Counter[str] = Counter()

    async def list_owned(self, region: str) -> Sequence[Instance]:
        self.calls["list_owned"] += 1
        return await super().list_owned(region)

    async def find(self, region: str, instance_id: str, *, launched_at: datetime | None = None) -> Instance | None:
        self.calls["find"] += 1
        return await super().find(region, instance_id, launched_at=launched_at)


class Watched:
    """Workers that are made as they are when they are ready, and a monitor over them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.core = ControlPlane(self.store, clock=self.clock, sealer=given_keys())
        self.cloud = NotedCloud(
            self.clock, Chance(7), nature=CloudBehaviour(paces={"m5zn.metal": QUICK}), attach=self._install
        )
        self.image = self.cloud.account.add_image(HERE, "CML-2.9.0", self.clock.now())
        self.hosts = NotedHosts(self.cloud, self.clock.now)
        self.settings = Settings()
        self.plane = self.core.plane_for(service(WORKER_CONTROLLER))

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        return Cml(self.clock, Chance(instance.instance_id), machine=SMALL, power=power)

    async def add(self, *names: str, tagged: bool = True, **status: Any) -> None:
        """Make machines, let them boot, and record them as workers that are ready."""
        machines = {}
        for name in names:
            tags = {OWNER_TAG: "lcm", WORKER_TAG: f"uid-{name}"} if tagged else {}
            machines[name] = self.cloud.account.run(
                LaunchOrder(HERE, "m5zn.metal", self.image.image_id, tags)
            ).instance_id
        await asyncio.sleep(SETTLED.total_seconds())
        for name, instance_id in machines.items():
            machine = self.cloud.account.machines[instance_id].instance(self.clock.now())
            known = LabWorkerStatus(
                phase=WorkerPhase.READY,
                ec2=ec2_facts(Ec2Facts(), machine),
                cml=CmlFacts(api_url=f"https://{machine.public_ip}", version="2.9.0", licensed=False),
                capacity=given.machine(),
            )
            worker = LabWorker(
                metadata=Metadata(name=name, uid=f"uid-{name}", created_at=self.clock.now()),
                spec=LabWorkerSpec(aws=given.IMAGE),
                status=msgspec.structs.replace(known, **status),
            )
            await self.store.commit(*creation_ops(worker))

    @asynccontextmanager
    async def monitoring(self, plane: Plane | None = None) -> AsyncIterator[None]:
        """Run a monitor, as a newly elected leader would."""
        acting = plane or self.plane
        cache = Cache(acting, LabWorker, LabletSession, SystemSettings)

        def settings() -> Settings:
            return effective_settings(self.settings, next(iter(cache.all(SystemSettings)), None))

        monitor = Monitor(
            acting, cache, self.cloud, self.hosts, clock=self.clock, chance=lambda: 0.5, settings=settings
        )
        task = asyncio.create_task(run_until_first_ends(cache.run(), monitor.run()))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def worker(self, name: str = "w1") -> LabWorker:
        found = await self.plane.get(Ref(LabWorker, name))
        assert found is not None, f"there is no worker {name}"
        return found

    async def cml(self, name: str = "w1") -> Cml:
        found = self.cloud.find_attached(await self.machine(name))
        assert isinstance(found, Cml), f"{name} does not run"
        return found

    async def condition(self, kind: WorkerCondition, name: str = "w1") -> Condition:
        found = find_condition((await self.worker(name)).status.conditions, kind)
        assert found is not None, f"nothing was said of {kind}"
        return found

    async def telemetry(self, name: str = "w1") -> WorkerTelemetry:
        found = await self.plane.telemetry(Ref(LabWorker, name))
        assert found is not None, f"{name} was never measured"
        return found

    async def machine(self, name: str = "w1") -> str:
        return (await self.worker(name)).status.ec2.instance_id

    async def host(self, name: str = "w1") -> DirectHost:
        return await SimHosts.of(self.hosts, await self.worker(name))


async def minutes(count: float) -> None:
    """Let time go by."""
    await asyncio.sleep(60 * count)


BY = service(WORKER_CONTROLLER)
BOTH = Settings(worker_discovery_regions=(HERE, THERE))
OLD = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass
class Seeking:
    """A world to discover, and those who are poked in it."""

    stage: Stage = field(default_factory=lambda: Stage(clock=VirtualClock()))
    said: Settings = BOTH
    poked: list[WorkerRef] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cloud = SimCloud(VirtualClock(), Chance(1), nature=CloudBehaviour(listed_within=timedelta(0)))
        self.images = {
            (region, name): self.cloud.account.add_image(region, name, OLD).image_id
            for region in (HERE, THERE)
            for name in ("CML-2.9", "other")
        }

    def launch(self, region: str = HERE, image: str = "CML-2.9", tags: Mapping[str, str] | None = None) -> str:
        """Have somebody launch a machine by hand."""
        order = LaunchOrder(region, "m8i.large", self.images[region, image], tags or {})
        return self.cloud.account.run(order).instance_id

    async def workers(self) -> dict[str, LabWorker]:
        """Read all records by the instances that they know."""
        found = (await self.stage[ROOT].list(LabWorker, limit=1000)).items
        known = [one.status.ec2.instance_id for one in found if one.status.ec2.instance_id]
        assert len(set(known)) == len(known), "two records share an instance"
        return {one.status.ec2.instance_id: one for one in found}

    async def names(self) -> list[str]:
        return sorted(one.metadata.name for one in (await self.stage[ROOT].list(LabWorker, limit=1000)).items)

    async def alerts(self) -> Sequence[tuple[str, str, str]]:
        return [(one.alert, one.name, one.reason) for one in await self.stage[ROOT].alerts()]

    def discovery(self, cache: Cache, cloud: Compute | None = None, plane: Plane | None = None) -> Discovery:
        """Make one that decides by the settings object as far as the cache knows it."""

        def settings() -> Settings:
            return effective_settings(self.said, next(iter(cache.all(SystemSettings)), None))

        return Discovery(
            plane or self.stage[BY],
            cache,
            cloud or self.cloud,
            clock=self.stage.clock,
            chance=lambda: 0.0,
            settings=settings,
            poke=self.poked.append,
        )

    async def scan(self, cloud: Compute | None = None) -> Discovery:
        """Scan once, as a leader that was elected just now does."""
        async with self.cached() as cache:
            discovery = self.discovery(cache, cloud)
            await discovery.scan()
            return discovery

    @contextlib.asynccontextmanager
    async def cached(self) -> AsyncIterator[Cache]:
        cache = Cache(self.stage[BY], SystemSettings, LabWorker, WorkerTemplate)
        async with running(cache.run()):
            await cache.ready()
            yield cache


@contextlib.asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    """Keep something going for a while; its own error counts."""
    task = asyncio.create_task(work)
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
