"""Hosts of sessions' labs that answer in a way of one's own."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field

from lablets import Lablets
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.labhost import LabHost, LabSummary
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml


@dataclass
class Through:
    """Hosts that are made of machines in a way of one's own."""

    world: Lablets
    make: Callable[[Cml], LabHost]
    made: dict[str, LabHost] = field(default_factory=dict)

    async def of(self, worker: LabWorker) -> LabHost:
        return self.made.setdefault(worker.metadata.uid, self.make(self.world.machine(worker)))

    async def certificate(self, _: LabWorker) -> str:
        return ""

    async def forget(self, _: LabWorker) -> None:
        return None

    async def close(self) -> None:
        for host in self.made.values():
            await host.close()


class LateHost(DirectHost):
    """Takes long over an import, and makes the lab also when nobody waits any more."""

    seconds = 90.0

    async def ensure(self, title: str, topology: str) -> LabSummary:
        if await self.find(title) is None:
            lands = asyncio.get_running_loop().create_task(self._lands(title, topology), context=Context())
            await asyncio.shield(lands)
        return await super().ensure(title, topology)

    async def _lands(self, title: str, topology: str) -> None:
        await asyncio.sleep(self.seconds)
        self._cml.import_lab(topology, self._cml.users.administrator, title)
