"""Discovery in a made-up world: a plane on the memory store, a simulated cloud with images in two regions, settings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from backstage import ROOT, Stage, service
from clouds import HERE, THERE
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, WorkerRef
from lcm.controllers.discovery.search import Discovery
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.compute import Compute
from lcm.settings.load import Settings, effective_settings
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock

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
