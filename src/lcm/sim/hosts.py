"""The hypervisors on a simulated cloud's machines behind the `Hosts` protocol, without a network."""

import asyncio

from lcm.model.errors import Unreachable
from lcm.model.worker import LabWorker
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.compute import SimCloud
from lcm.sim.faults import Spells


class SimHosts:
    """The CML that is attached to each machine; its password is the simulator's own, whatever the spec says."""

    def __init__(self, cloud: SimCloud) -> None:
        self._cloud = cloud
        self._hosts: dict[str, DirectHost] = {}
        self.spells = Spells()
        """What lies on the way to all of them."""

    async def of(self, worker: LabWorker) -> DirectHost:
        await asyncio.sleep(0)
        instance_id = worker.status.ec2.instance_id
        cml = self._cloud.attached(instance_id)
        if not isinstance(cml, Cml):
            raise Unreachable(f"{worker.metadata.name} is not there: its machine {instance_id} does not run")
        if instance_id not in self._hosts:
            self._hosts[instance_id] = DirectHost(cml, spells=self.spells)
        return self._hosts[instance_id]

    async def certificate(self, worker: LabWorker) -> str:
        await self.of(worker)
        return ""

    async def forget(self, worker: LabWorker) -> None:
        await asyncio.sleep(0)
        self._hosts.pop(worker.status.ec2.instance_id, None)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._hosts.clear()
