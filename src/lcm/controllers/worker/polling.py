"""Reading the cloud and CML for `monitor`: one CML, all machines of a region, and when each is due.

One connection carries the few calls to a CML, one after the other. What was answered before an error is kept; an
error of one question does not end the others. Machines are listed per region; only those that the list does not show,
such as imported ones without our tag, are looked up one by one. No answer means unknown, not gone. Slots are evenly
spread, and are the same after a failover.
"""

from collections.abc import Awaitable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, TypeVar

from lcm.controllers.worker.measure import CloudView, HostView, needs_licence_check
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, LcmError, Refused, Stuck, Unreachable
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.compute import ENDING, Compute, Instance, InstanceState
from lcm.providers.protocols.labhost import Hosts
from lcm.system.tasks import TimeLimit, TimeSlice

T = TypeVar("T")
HOST_SECONDS: Final = 20.0
"""How long all questions to one host may take together."""


async def poll_host(hosts: Hosts, worker: LabWorker, *, now: datetime, since: datetime, seldom: bool) -> HostView:
    """Ask a worker's CML. `since` limits the activity record; `seldom` also reads what hardly ever changes."""
    talk = _HostPoll()
    try:
        with TimeLimit(HOST_SECONDS):
            await talk.run(hosts, worker, since=since, seldom=seldom)
    except TimeoutError:
        talk.record_error(Unreachable(f"{worker.status.cml.api_url} takes longer than {HOST_SECONDS:g} s to answer"))
    except (Later, Stuck, Refused, Gone) as error:
        talk.record_error(error)
    return HostView(now, **talk.answers, error=talk.error)


class _HostPoll:
    """What one CML has answered so far."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        """By the names that `HostView` has for them."""
        self.error: LcmError | None = None

    async def run(self, hosts: Hosts, worker: LabWorker, *, since: datetime, seldom: bool) -> None:
        host, known = await hosts.of(worker), worker.status.cml
        await self._ask("stats", host.stats())
        await self._ask("health", host.health())
        await self._ask("nodes", host.all_nodes())
        await self._ask("activity", host.activity(since=since))
        if seldom or not known.version:
            await self._ask("system", host.system())
        if seldom or needs_licence_check(worker.status, self.answers.get("health")):
            await self._ask("licence", host.licence())
        if seldom or known.node_definitions is None:
            await self._ask("definitions", host.node_definitions())

    def record_error(self, error: LcmError) -> None:
        self.error = self.error or error

    async def _ask(self, name: str, question: Awaitable[object]) -> None:
        try:
            self.answers[name] = await question
        except (Stuck, Refused, Gone) as error:
            self.record_error(error)


METRICS_WINDOW: Final = timedelta(minutes=10)
"""The period over which metrics are read. Without detailed monitoring EC2 publishes them every five minutes."""


class RegionSnapshot:
    """The machines of one region, as last read."""

    def __init__(self, cloud: Compute, clock: Clock, region: str) -> None:
        self.region = region
        self._cloud = cloud
        self._clock = clock
        self._views: Mapping[str, CloudView] = {}
        self.was_listed = False
        """Whether the machines could be listed last time; then only other questions may have failed."""

    def of(self, worker: LabWorker) -> CloudView | None:
        """Return what was last said of a worker's machine; None: nothing was."""
        return self._views.get(worker.status.ec2.instance_id)

    async def refresh(self, workers: Sequence[LabWorker]) -> LcmError | None:
        """Ask about these workers' machines. What had no answer stays as before. Return the first error, if any."""
        now, failure, self.was_listed = self._clock.now(), None, False
        try:
            listed = {one.instance_id: one for one in await self._cloud.list_owned(self.region)}
        except (Later, Stuck) as error:
            return error
        self.was_listed = True
        machines: dict[str, Instance | None] = {}
        time_slice = TimeSlice()
        for worker in workers:
            instance_id = worker.status.ec2.instance_id
            try:
                machines[instance_id] = listed.get(instance_id) or await self.look(worker)
            except (Later, Stuck) as error:
                failure = error
            await time_slice.yield_if_over()
        resting = {
            one: self._views[one].checks for one, machine in machines.items() if machine and self._rests(machine)
        }
        asked = (one for one, machine in machines.items() if machine and machine.state not in ENDING)
        there = [one for one in asked if one not in resting]
        checks, unchecked = await _read(self._cloud.checks(self.region, there)) if there else ({}, None)
        measuring = self._cloud.metrics(self.region, there, since=now - METRICS_WINDOW, until=now) if there else None
        metrics, unmeasured = await _read(measuring) if measuring else ({}, None)
        known = {worker.status.ec2.instance_id for worker in workers}
        views = {one: view for one, view in self._views.items() if one in known}
        for one, machine in machines.items():
            views[one] = CloudView(now, machine, checks.get(one, resting.get(one)), metrics.get(one))
            await time_slice.yield_if_over()
        self._views = views
        return failure or unchecked or unmeasured

    def _rests(self, machine: Instance) -> bool:
        """Return whether a machine is off as it was before. There is no news of it besides its state then."""
        before = self._views.get(machine.instance_id)
        if before is None or before.checks is None or before.instance is None:
            return False
        return before.instance.state is machine.state is InstanceState.STOPPED

    async def look(self, worker: LabWorker) -> Instance | None:
        """Ask for one machine now; None: the cloud answered that it is gone."""
        ec2 = worker.status.ec2
        return await self._cloud.find(self.region, ec2.instance_id, launched_at=ec2.launched_at)


async def _read(question: Awaitable[Mapping[str, T]]) -> tuple[Mapping[str, T], LcmError | None]:
    try:
        return await question, None
    except (Later, Stuck) as error:
        return {}, error


_HASH_BYTES: Final = 8
_NUMBER_RANGE: Final = 1_000_000
_MOST_SLOTS: Final = 60
_WORKERS_PER_SLOT: Final = 20
"""Who is asked at the same moment is reported together; so many at once are no burden, and fit into one commit."""


@lru_cache(16_384)
def fraction(name: str) -> float:
    """Return a name's place in an interval, always the same: from 0 up to 1."""
    return int.from_bytes(blake2b(name.encode(), digest_size=_HASH_BYTES).digest()) / float(2 ** (8 * _HASH_BYTES))


def next_slot(name: str, every: timedelta, *, after: datetime, workers: int | None = None) -> datetime:
    """Return a name's first slot after a moment. The more workers there are, the more slots; None means the most."""
    seconds, few = every.total_seconds(), _MOST_SLOTS if workers is None else workers // _WORKERS_PER_SLOT + 1
    slots = min(few, _MOST_SLOTS)
    offset = (int(fraction(name) * slots) + 0.5) / slots * seconds
    number = (after.timestamp() - offset) // seconds + 1
    slot = datetime.fromtimestamp(number * seconds + offset, UTC)
    return slot if slot > after else slot + every


def slot_number(name: str, every: timedelta, at: datetime) -> int:
    """Return the number of a name's slot. Different names count from different numbers."""
    share = fraction(name)
    return round(at.timestamp() / every.total_seconds() - share) + int(share * _NUMBER_RANGE)
