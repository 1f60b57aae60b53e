"""What the cloud says of all our machines in a region, asked for at once and kept until the next time. For `monitor`.

Asking per machine would cost a call each; only those that the list does not show, such as imported ones that do not
carry our tag, are looked up one by one. What could not be asked is not known, which is not the same as gone.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.worker.measure import CloudView
from lcm.model.clock import Clock
from lcm.model.errors import Later, LcmError, Stuck
from lcm.model.worker import LabWorker
from lcm.providers.compute import ENDING, Checks, Compute, Instance, MachineMetrics

WINDOW: Final = timedelta(minutes=10)
"""Over how much time metrics are read: without detailed monitoring EC2 publishes them every five minutes."""


class Census:
    """The machines of one region."""

    def __init__(self, cloud: Compute, clock: Clock, region: str) -> None:
        self.region = region
        self._cloud = cloud
        self._clock = clock
        self._seen: Mapping[str, CloudView] = {}
        self.listed = False
        """Whether the last time the machines could be listed, and only other questions may have failed."""

    def of(self, worker: LabWorker) -> CloudView | None:
        """Tell what was last said of a worker's machine; None: nothing was."""
        return self._seen.get(worker.status.ec2.instance_id)

    async def take(self, workers: Sequence[LabWorker]) -> LcmError | None:
        """Ask about these workers' machines; what had no answer is as before. The first error is returned."""
        now, failure, self.listed = self._clock.now(), None, False
        try:
            listed = {one.instance_id: one for one in await self._cloud.list_owned(self.region)}
        except (Later, Stuck) as error:
            return error
        self.listed = True
        machines: dict[str, Instance | None] = {}
        for worker in workers:
            instance_id = worker.status.ec2.instance_id
            try:
                machines[instance_id] = listed.get(instance_id) or await self.look(worker)
            except (Later, Stuck) as error:
                failure = error
        there = [one for one, machine in machines.items() if machine and machine.state not in ENDING]
        checks, unchecked = await self._checks(there)
        metrics, unmeasured = await self._metrics(there, now)
        fresh = {one: CloudView(now, machine, checks.get(one), metrics.get(one)) for one, machine in machines.items()}
        known = {worker.status.ec2.instance_id for worker in workers}
        self._seen = {one: view for one, view in self._seen.items() if one in known} | fresh
        return failure or unchecked or unmeasured

    async def look(self, worker: LabWorker) -> Instance | None:
        """Look at one machine now; None: the cloud answered that it is gone."""
        ec2 = worker.status.ec2
        return await self._cloud.find(self.region, ec2.instance_id, launched_at=ec2.launched_at)

    async def _checks(self, ids: Sequence[str]) -> tuple[Mapping[str, Checks], LcmError | None]:
        try:
            return (await self._cloud.checks(self.region, ids) if ids else {}), None
        except (Later, Stuck) as error:
            return {}, error

    async def _metrics(self, ids: Sequence[str], now: datetime) -> tuple[Mapping[str, MachineMetrics], LcmError | None]:
        try:
            return (await self._cloud.metrics(self.region, ids, since=now - WINDOW, until=now) if ids else {}), None
        except (Later, Stuck) as error:
            return {}, error
