"""Workers that run and are monitored, in virtual time: the real monitor on a made-up cloud with CML on each machine."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec

import given
from backstage import service
from clouds import HERE
from estates import spec
from fleets import Fleet
from lcm.config import Settings, effective
from lcm.control.plane import Plane, Ref
from lcm.control.records import creation
from lcm.controllers.cache import Cache
from lcm.controllers.together import together
from lcm.controllers.worker.facts import ec2_facts
from lcm.controllers.worker.monitor import Monitor
from lcm.model.machine import WORKER_CONTROLLER
from lcm.model.resource import Condition, Metadata, condition
from lcm.model.session import LabletSession
from lcm.model.settings import SystemSettings
from lcm.model.worker import (
    CmlFacts,
    Ec2Facts,
    LabWorker,
    LabWorkerStatus,
    WorkerCondition,
    WorkerPhase,
    WorkerTelemetry,
)
from lcm.providers.compute import OWNER_TAG, WORKER_TAG, Instance
from lcm.sim.cml.direct import DirectHost
from lcm.sim.compute import SimCloud
from lcm.sim.compute_account import Order
from lcm.sim.hosts import SimHosts

SETTLED = timedelta(minutes=2)
"""After so long everything in a quick fleet has booted."""


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

    calls: Counter[str]

    async def list_owned(self, region: str) -> Sequence[Instance]:
        self.calls["list_owned"] += 1
        return await super().list_owned(region)

    async def find(self, region: str, instance_id: str, *, launched_at: datetime | None = None) -> Instance | None:
        self.calls["find"] += 1
        return await super().find(region, instance_id, launched_at=launched_at)


class Watched:
    """A fleet whose workers are made as they are when they are ready, and a monitor over it."""

    def __init__(self, *, interval: int = 60) -> None:
        self.fleet = Fleet(quick=True)
        self.clock = self.fleet.clock
        self.cloud = self.fleet.cloud
        self.cloud.__class__ = NotedCloud
        self.calls: Counter[str] = Counter()
        self.cloud.calls = self.calls  # type: ignore[attr-defined]
        self.hosts = NotedHosts(self.cloud, self.clock.now)
        self.settings = Settings(metrics_poll_interval=interval)
        self.plane = self.fleet.plane()

    async def add(self, *names: str, tagged: bool = True, **status: Any) -> None:
        """Make machines, let them boot, and record them as workers that are ready."""
        image = self.cloud.account.images(HERE)[0]
        machines = {}
        for name in names:
            tags = {OWNER_TAG: "lcm", WORKER_TAG: f"uid-{name}"} if tagged else {}
            machines[name] = self.cloud.account.run(Order(HERE, "m5zn.metal", image.image_id, tags)).instance_id
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
                spec=spec(),
                status=msgspec.structs.replace(known, **status),
            )
            await self.fleet.store.commit(*creation(worker))

    @asynccontextmanager
    async def monitoring(self, plane: Plane | None = None) -> AsyncIterator[None]:
        """Run a monitor, as a newly elected leader would."""
        acting = plane or self.fleet.control().acting(service(WORKER_CONTROLLER))
        cache = Cache(acting, LabWorker, LabletSession, SystemSettings)

        def settings() -> Settings:
            return effective(self.settings, next(iter(cache.all(SystemSettings)), None))

        monitor = Monitor(
            acting, cache, self.cloud, self.hosts, clock=self.clock, chance=self.fleet.half, settings=settings
        )
        task = asyncio.create_task(together(cache.run(), monitor.run()))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def worker(self, name: str = "w1") -> LabWorker:
        return await self.fleet.worker(name)

    async def condition(self, kind: WorkerCondition, name: str = "w1") -> Condition:
        found = condition((await self.worker(name)).status.conditions, kind)
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
