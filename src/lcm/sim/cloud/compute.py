"""A simulated cloud behind the `Compute` protocol, for the simulation and for `lcm up`.

Every verb suspends before and after its effect, so that a caller can be stopped on either side. Calls on `account` act
at once, as a person at the cloud's console would; `faults` injects what goes wrong over the network.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, Throttled, Unreachable
from lcm.providers.protocols.compute import (
    OWNER_TAG,
    WORKER_TAG,
    Compute,
    Image,
    Instance,
    Launch,
    MachineMetrics,
    MachineType,
    StatusChecks,
    image_missing,
    not_listed_yet,
    oldest_live,
    ownership_tags,
    subnet_of,
)
from lcm.providers.protocols.permit import check_permit
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder, SimAccount
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cloud.machines import RUNNING, SimMachine
from lcm.sim.time.chance import Chance
from lcm.sim.time.faults import ActiveFaults, PlannedFailures
from lcm.system.tasks import TimeSlice

Attach = Callable[[Instance, PowerHistory], object]
_RATE_WINDOW: Final = timedelta(seconds=1)


async def _ignore_change(_: str) -> None:
    """Do nothing."""


class PastLaunch(NamedTuple):
    """The request made with a launch token, and the machine it launched."""

    region: str
    token: str
    asked: bytes
    instance_id: str


class CloudFaults:
    """Planned failures, lost answers, and throttling."""

    def __init__(self, *, calls_per_second: int | None = None) -> None:
        self.calls_per_second = calls_per_second
        self.spells = ActiveFaults()
        self._failures = PlannedFailures(Compute, self.spells)
        self.fail_next = self._failures.fail_next
        self._throttled: dict[str, datetime] = {}
        self._calls: defaultdict[str, deque[datetime]] = defaultdict(deque)

    def lose_answer_next(self, verb: str, times: int = 1) -> None:
        """Make the next calls of a verb take effect, but lose their answers."""
        self.fail_next(verb, Unreachable(f"{verb}: no answer came"), times=times, after_effect=True)

    def throttle(self, until: datetime, region: str = "") -> None:
        """Refuse all calls until a moment, in one region or everywhere."""
        self._throttled[region] = until

    async def delay_call(self, verb: str) -> None:
        """Delay a call that hangs or is slow, and pause a caller."""
        await self.spells.delay_call(verb)

    def raise_before_effect(self, verb: str, region: str, now: datetime) -> None:
        """Raise what prevents a call's effect."""
        self._failures.raise_before_effect(verb)
        throttled = self._throttled
        until = max((throttled[one] for one in ("", region) if one in throttled), default=now) if throttled else now
        if until > now or self._exceeds_rate(region, now):
            raise Throttled(f"{verb}: too many calls in {region}", after=max(until - now, _RATE_WINDOW))

    def raise_after_effect(self, verb: str) -> None:
        """Raise what happens between an effect and its caller."""
        self._failures.raise_after_effect(verb)

    def _exceeds_rate(self, region: str, now: datetime) -> bool:
        if self.calls_per_second is None:
            return False
        calls = self._calls[region]
        while calls and calls[0] <= now - _RATE_WINDOW:
            calls.popleft()
        if len(calls) >= self.calls_per_second:
            return True
        calls.append(now)
        return False


class SimCloud:
    """The machines of one simulated account, in any region.

    `attach` makes what runs on a machine, such as a simulated CML, when it is first looked for while the machine runs.
    It is given the machine's power history, since it may be kept and must know when the machine stops, starts, reboots.
    `measure` returns what CloudWatch and its agent would publish of what runs on a machine, bytes as those of a second;
    without it, and of a machine on which nothing runs, only what a test says is published.
    """

    def __init__(
        self,
        clock: Clock,
        chance: Chance,
        *,
        owner: str = "lcm",
        nature: CloudBehaviour | None = None,
        latency: timedelta = timedelta(0),
        calls_per_second: int | None = None,
        attach: Attach | None = None,
        measure: Callable[[object], MachineMetrics] | None = None,
    ) -> None:
        self.account = SimAccount(clock, chance, nature or CloudBehaviour())
        self.faults = CloudFaults(calls_per_second=calls_per_second)
        self.fail_next = self.faults.fail_next
        self.lose_answer_next = self.faults.lose_answer_next
        self._clock = clock
        self._owner = owner
        self._latency_seconds = latency.total_seconds()
        self._attach = attach
        self._measure = measure
        self._attached: dict[str, object] = {}
        self._tokens: dict[tuple[str, str], tuple[bytes, SimMachine]] = {}
        """The request and the machine of each launch, by region and token."""
        self._launched_by: dict[str, tuple[str, str]] = {}
        self.on_change: Callable[[str], Awaitable[None]] = _ignore_change
        """Awaited with the id of a machine when a verb has had its effect, before its caller gets the answer."""

    def launches_of(self, instance_ids: Iterable[str]) -> Sequence[PastLaunch]:
        """Return the requests by which machines were launched; another cloud can be restored from them."""
        keys = [(one, self._launched_by[one]) for one in instance_ids if one in self._launched_by]
        return [PastLaunch(*key, self._tokens[key][0], one) for one, key in keys]

    def restore_launches(self, launches: Iterable[PastLaunch]) -> None:
        """Restore another cloud's launch requests; the account must already have its machines."""
        for one in launches:
            self._note_launch((one.region, one.token), one.asked, self.account.machines[one.instance_id])

    def find_attached(self, instance_id: str) -> object | None:
        """Return what runs on a machine; None while the machine does not run."""
        machine = self.account.machines.get(instance_id)
        if self._attach is None or machine is None or machine.state(self._clock.now()) is not RUNNING:
            return None
        if instance_id not in self._attached:
            self._attached[instance_id] = self._attach(machine.instance(self._clock.now()), machine.runs)
        return self._attached[instance_id]

    async def ensure(self, launch: Launch) -> Instance:
        region = launch.aws.region
        async with self._call("ensure", region):
            tagged = await self._list_instances(region, lambda one: one.tags.get(WORKER_TAG) == launch.worker_uid)
            found = oldest_live(tagged)
            if found is None:
                await self._delay()
                check_permit()
                found = self._launch(launch)
            await self.on_change(found.instance_id)
        return found

    async def find(self, region: str, instance_id: str, *, launched_at: datetime | None = None) -> Instance | None:
        async with self._call("find", region):
            now = self._clock.now()
            machine = self._find_listed(region, instance_id)
            later = not_listed_yet(instance_id, launched_at=launched_at, now=now)
            if machine is None and later is not None:
                raise later
            return machine.instance(now) if machine else None

    async def list_owned(self, region: str) -> Sequence[Instance]:
        async with self._call("list_owned", region):
            return await self._list_instances(region, lambda one: one.tags.get(OWNER_TAG) == self._owner)

    async def list_by_image(self, region: str, name_pattern: str) -> Sequence[Instance]:
        async with self._call("list_by_image", region):
            images = {one.image_id for one in self.account.images(region, name_pattern)}
            return await self._list_instances(region, lambda one: one.image_id in images)

    async def newest_image(self, region: str, name_pattern: str) -> Image | None:
        async with self._call("newest_image", region):
            return self._newest_image(region, name_pattern)

    async def list_reclaimed(self, region: str) -> Mapping[str, datetime]:
        async with self._call("list_reclaimed", region):
            return self.account.reclaimed(region)

    async def machine_types(self, region: str, names: Sequence[str]) -> Mapping[str, MachineType]:
        async with self._call("machine_types", region):
            found = {name: self.account.machine_type(region, name) for name in names}
            return {name: one for name, one in found.items() if one is not None}

    async def vcpu_quota(self, region: str, instance_type: str, *, spot: bool) -> int | None:  # noqa: ARG002 - one for all
        async with self._call("vcpu_quota", region):
            return self.account.vcpu_quotas.get(region)

    async def start(self, region: str, instance_id: str) -> None:
        async with self._call("start", region):
            check_permit()
            self.account.start(region, self._check_listed(region, instance_id))
            await self.on_change(instance_id)

    async def stop(self, region: str, instance_id: str) -> None:
        async with self._call("stop", region):
            check_permit()
            self.account.stop(region, self._check_listed(region, instance_id))
            await self.on_change(instance_id)

    async def reboot(self, region: str, instance_id: str) -> None:
        async with self._call("reboot", region):
            check_permit()
            self.account.reboot(region, self._check_listed(region, instance_id))
            await self.on_change(instance_id)

    async def remove(self, region: str, instance_id: str) -> None:
        async with self._call("remove", region):
            if self._find_listed(region, instance_id) is not None:
                check_permit()
                self.account.terminate(region, instance_id)
                await self.on_change(instance_id)

    async def tag(self, region: str, instance_id: str, tags: Mapping[str, str]) -> None:
        async with self._call("tag", region):
            check_permit()
            self.account.tag(region, self._check_listed(region, instance_id), tags)
            await self.on_change(instance_id)

    async def console(self, region: str, instance_id: str) -> str:
        async with self._call("console", region):
            machine = self.account.machine(region, self._check_listed(region, instance_id))
            past = [change for change in machine.all_changes() if change.at <= self._clock.now()]
            return "".join(f"{change.at:%Y-%m-%dT%H:%M:%SZ} {instance_id} {change.state}\n" for change in past)

    async def checks(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, StatusChecks]:
        async with self._call("checks", region):
            now, found, time_slice = self._clock.now(), dict[str, StatusChecks](), TimeSlice()
            for one in self._answered_ids("checks", instance_ids):
                if (machine := self._find_listed(region, one)) is not None:
                    found[one] = machine.checks(now)
                await time_slice.yield_if_over()
            return found

    async def metrics(
        self, region: str, instance_ids: Sequence[str], *, since: datetime, until: datetime
    ) -> Mapping[str, MachineMetrics]:
        async with self._call("metrics", region):
            found, time_slice = dict[str, MachineMetrics](), TimeSlice()
            for one in self._answered_ids("metrics", instance_ids):
                found[one] = self._metrics_of(region, one, since, until)
                await time_slice.yield_if_over()
            return found

    async def close(self) -> None:
        await self._delay()

    def _launch(self, launch: Launch) -> Instance:
        region, image_id = launch.aws.region, launch.aws.ami_id
        image = (
            self.account.image(region, image_id)
            if image_id
            else self._newest_image(region, launch.aws.ami_name_pattern)
        )
        if image is None:
            raise image_missing(launch)
        request = msgspec.json.encode((launch, image.image_id))
        if (region, launch.token) not in self._tokens:
            self._note_launch((region, launch.token), request, self.account.run(self._order(launch, image)))
        known, machine = self._tokens[region, launch.token]
        now = self._clock.now()
        if known != request and not machine.is_listed(now):
            raise Later(f"{launch.worker_name} was launched already and is not listed yet", after=timedelta(seconds=10))
        return machine.instance(now)

    def _note_launch(self, key: tuple[str, str], request: bytes, machine: SimMachine) -> None:
        self._tokens[key] = request, machine
        self._launched_by[machine.instance_id] = key

    def _order(self, launch: Launch, image: Image) -> LaunchOrder:
        return LaunchOrder(
            region=launch.aws.region,
            instance_type=launch.instance_type,
            image_id=image.image_id,
            tags=ownership_tags(launch, self._owner),
            disk_gb=launch.aws.root_volume.size_gb,
            subnet_id=subnet_of(launch),
            public_ip=launch.aws.public_ip,
            spot=launch.aws.market == "spot",
        )

    def _newest_image(self, region: str, name_pattern: str | None) -> Image | None:
        images = self.account.images(region, name_pattern or "")
        return max(images, key=lambda one: (one.created_at, one.image_id), default=None)

    async def _list_instances(self, region: str, is_wanted: Callable[[SimMachine], bool]) -> list[Instance]:
        """List machines as they are now; others have their turn meanwhile, if there are many."""
        now, found, time_slice = self._clock.now(), list[Instance](), TimeSlice()
        for one in [machine for machine in self.account.machines.values() if machine.region == region]:
            if is_wanted(one) and one.is_listed(now):
                found.append(one.instance(now))
            await time_slice.yield_if_over()
        return found

    def _find_listed(self, region: str, instance_id: str) -> SimMachine | None:
        machine = self.account.machines.get(instance_id)
        return machine if machine and machine.region == region and machine.is_listed(self._clock.now()) else None

    def _check_listed(self, region: str, instance_id: str) -> str:
        if self._find_listed(region, instance_id) is None:
            raise Gone(f"{instance_id} in {region} is not listed")
        return instance_id

    def _answered_ids(self, verb: str, instance_ids: Sequence[str]) -> Sequence[str]:
        """Return the ids that the answer covers."""
        return instance_ids[1::2] if self.faults.spells.is_partial(verb) else instance_ids

    def _metrics_of(self, region: str, instance_id: str, since: datetime, until: datetime) -> MachineMetrics:
        machine, load = self.account.machines.get(instance_id), MachineMetrics()
        if machine is not None and machine.region == region:
            load = machine.load if machine.load != load else self._measured_load(instance_id, until - since)
        if machine is None or load == MachineMetrics():
            return load
        now = self._clock.now()
        ran = [span.until for span in machine.spans(min(now, until)) if span.state is RUNNING and span.until > since]
        return msgspec.structs.replace(load, measured_at=ran[-1]) if ran else MachineMetrics()

    def _measured_load(self, instance_id: str, window: timedelta) -> MachineMetrics:
        found = self.find_attached(instance_id) if self._measure else None
        if found is None or self._measure is None:
            return MachineMetrics()
        load, seconds = self._measure(found), window.total_seconds()
        return msgspec.structs.replace(
            load,
            network_in_bytes=round((load.network_in_bytes or 0) * seconds),
            network_out_bytes=round((load.network_out_bytes or 0) * seconds),
        )

    def _call(self, verb: str, region: str) -> "_CallScope":
        return _CallScope(verb, region, self.faults, self._clock, self._latency_seconds)

    async def _delay(self) -> None:
        await asyncio.sleep(self._latency_seconds)


class _CallScope:
    """What surrounds a call's effect: it suspends on either side, and what is to go wrong does."""

    __slots__ = ("_clock", "_faults", "_latency_seconds", "_region", "_verb")

    def __init__(self, verb: str, region: str, faults: CloudFaults, clock: Clock, latency_seconds: float) -> None:
        self._verb = verb
        self._region = region
        self._faults = faults
        self._clock = clock
        self._latency_seconds = latency_seconds

    async def __aenter__(self) -> None:
        await asyncio.sleep(self._latency_seconds)
        if self._faults.spells.now:
            await self._faults.delay_call(self._verb)
        self._faults.raise_before_effect(self._verb, self._region, self._clock.now())

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await asyncio.sleep(self._latency_seconds)
            self._faults.raise_after_effect(self._verb)
