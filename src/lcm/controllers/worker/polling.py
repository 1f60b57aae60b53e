"""All that is asked of one CML when its worker is measured: few calls, one after the other. For `monitor`.

One connection carries them, so that a thousand workers cost a thousand sockets. What was answered before an error is
kept; an error that only concerns one question does not end the others.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

from lcm.controllers.worker.measure import CloudView, HostView, confirm_licence
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, LcmError, Refused, Stuck, Unreachable
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.compute import ENDING, Checks, Compute, Instance, MachineMetrics
from lcm.providers.protocols.labhost import Hosts

HOST_SECONDS: Final = 20.0
"""How long all of it may take."""


async def ask(hosts: Hosts, worker: LabWorker, *, now: datetime, since: datetime, seldom: bool) -> HostView:
    """Ask a worker's CML; `since` is for what people did, `seldom` asks also for what hardly ever changes."""
    talk = _Talk(HostView(now))
    try:
        async with asyncio.timeout(HOST_SECONDS):
            await talk.hold(hosts, worker, since=since, seldom=seldom)
    except TimeoutError:
        talk.failed(Unreachable(f"{worker.status.cml.api_url} takes longer than {HOST_SECONDS:g} s to answer"))
    except (Later, Stuck, Refused, Gone) as error:
        talk.failed(error)
    return talk.view


class _Talk:
    """What one CML has said so far."""

    def __init__(self, view: HostView) -> None:
        self.view = view

    async def hold(self, hosts: Hosts, worker: LabWorker, *, since: datetime, seldom: bool) -> None:
        host, known = await hosts.of(worker), worker.status.cml
        await self._ask("stats", host.stats())
        await self._ask("health", host.health())
        await self._ask("nodes", host.all_nodes())
        await self._ask("activity", host.activity(since=since))
        if seldom or not known.version:
            await self._ask("system", host.system())
        if seldom or confirm_licence(worker.status, self.view.health):
            await self._ask("licence", host.licence())

    def failed(self, error: LcmError) -> None:
        self.view = replace(self.view, error=self.view.error or error)

    async def _ask(self, name: str, question: Awaitable[object]) -> None:
        try:
            answer: dict[str, Any] = {name: await question}
        except (Stuck, Refused, Gone) as error:
            self.failed(error)
        else:
            self.view = replace(self.view, **answer)


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


_BYTES: Final = 8
_MANY: Final = 1_000_000


def fraction(name: str) -> float:
    """Place a name in an interval, always at the same point of it: from 0 up to 1."""
    return int.from_bytes(blake2b(name.encode(), digest_size=_BYTES).digest()) / float(2 ** (8 * _BYTES))


def next_slot(name: str, every: timedelta, *, after: datetime) -> datetime:
    """Tell the first moment of a name after a moment."""
    seconds = every.total_seconds()
    offset = fraction(name) * seconds
    number = (after.timestamp() - offset) // seconds + 1
    slot = datetime.fromtimestamp(number * seconds + offset, UTC)
    return slot if slot > after else slot + every


def turn(name: str, every: timedelta, at: datetime) -> int:
    """Say which number a slot of a name has; names count from different numbers."""
    share = fraction(name)
    return round(at.timestamp() / every.total_seconds() - share) + int(share * _MANY)
