"""The simulated account: its machines, images and limits, and actions on them, immediate and without faults.

`sim.cloud.compute` puts a network in front of it. Scenarios act here directly, as people do at the cloud's console.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network
from itertools import chain
from typing import Final, NamedTuple
from zlib import crc32

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, Stuck
from lcm.model.money.prices import HARDWARE
from lcm.providers.protocols.compute import (
    ENDING,
    RECLAIM_NOTICE,
    Image,
    InstanceState,
    MachineMetrics,
    MachineType,
    NoCapacity,
    QuotaExceeded,
)
from lcm.sim.cloud.effects import Effect, OnEffect, ignore_effect
from lcm.sim.cloud.machines import METAL, RUNNING, TERMINATED, VIRTUAL, CheckName, MachinePace, SimMachine
from lcm.sim.time.chance import Chance

OURS: Final = "self"
SPREAD: Final = 0.2
"""The fraction by which a duration may be shorter or longer."""

_NESTING_FAMILIES: Final = ("c8i", "m8i", "r8i")
_PRIVATE: Final = IPv4Address("10.0.0.10")
_PUBLIC: Final = IPv4Address("100.64.0.10")
_RETRY_AFTER: Final = timedelta(seconds=10)


@dataclass(frozen=True)
class CloudBehaviour:
    """How this cloud behaves. `speed` divides every duration."""

    paces: Mapping[str, MachinePace] = field(default_factory=dict)
    subnets: Mapping[str, str] = field(default_factory=dict)
    zones: str = "abc"
    listed_within: timedelta = timedelta(seconds=4)
    shown_for: timedelta = timedelta(hours=1)
    mean_life: timedelta | None = None
    speed: float = 1.0
    network: IPv4Network | None = None
    """Where machines can really be reached, each on one permanent address; None means addresses lead nowhere."""


class LaunchOrder(NamedTuple):
    """What is requested by a launch."""

    region: str
    instance_type: str
    image_id: str
    tags: Mapping[str, str] = {}
    disk_gb: int = 30
    subnet_id: str | None = None
    public_ip: bool = True
    spot: bool = False


class CapacityShortage(NamedTuple):
    """An instance type, or a zone, without capacity until a moment."""

    region: str
    what: str
    until: datetime


@dataclass
class AccountState:
    """Everything an account has; another account can be restored from it."""

    images: dict[str, list[tuple[Image, str]]]
    machines: dict[str, SimMachine]
    addresses: int


class SimAccount:
    """Everything that one simulated account has."""

    def __init__(self, clock: Clock, chance: Chance, nature: CloudBehaviour) -> None:
        self._clock = clock
        self._chance = chance
        self._nature = nature
        self._shortages: list[CapacityShortage] = []
        self._limits: dict[str, int] = {}
        self._images: defaultdict[str, list[tuple[Image, str]]] = defaultdict(list)
        self._addresses = 0
        self._never_up = 0
        self.slowness = 1.0
        """How many times longer than usual machines launched now take."""
        self.share = 1.0
        """The fraction of their type's CPUs and memory that machines launched now have."""
        self.listed_late = timedelta(0)
        """How much later than usual machines launched now are listed."""
        self.withdrawn_types: set[tuple[str, str]] = set()
        """Types of machines that are not offered, each with its region."""
        self.vcpu_quotas: dict[str, int] = {}
        """How many virtual CPUs there may be, by region; launches are not held to it."""
        self.machines: dict[str, SimMachine] = {}
        self._by_address: dict[str, SimMachine] = {}
        """The newest machine that was given each private address."""
        self.on_effect: OnEffect = ignore_effect

    def export_state(self) -> AccountState:
        """Return everything that it has; later changes show in this too."""
        return AccountState(dict(self._images), self.machines, self._addresses)

    def restore_state(self, holdings: AccountState) -> Sequence[str]:
        """Restore another account's state. A machine whose address is not in our network gets a new one.

        Return the ids of those machines.
        """
        self._images.update(holdings.images)
        self.machines.update(holdings.machines)
        self._by_address = {machine.private_ip: machine for machine in self.machines.values()}
        self._addresses = holdings.addresses
        network, moved = self._nature.network, list[str]()
        for number, machine in enumerate(self.machines.values()):
            if network is not None and IPv4Address(machine.private_ip) not in network:
                machine.set_address(self._local_address(network, number))
                self._by_address[machine.private_ip] = machine
                moved.append(machine.instance_id)
        return moved

    def add_image(self, region: str, name: str, created_at: datetime, *, owner: str = OURS) -> Image:
        """Publish an image."""
        image = Image(image_id=f"ami-{self._chance.getrandbits(68):017x}", name=name, created_at=created_at)
        self._images[region].append((image, owner))
        return image

    def images(self, region: str, name_pattern: str = "*") -> list[Image]:
        """Return our images whose name matches; `*` and `?` are wildcards."""
        pattern = name_pattern.replace("[", "[[]")  # not special on AWS
        return [image for image, owner in self._images[region] if owner == OURS and fnmatchcase(image.name, pattern)]

    def image(self, region: str, image_id: str) -> Image | None:
        """Return an image, whoever owns it; None when there is none."""
        return next((image for image, _ in self._images[region] if image.image_id == image_id), None)

    def run(self, order: LaunchOrder) -> SimMachine:
        """Launch a machine."""
        now, zone = self._clock.now(), self._zone(order)
        self._refuse_without_capacity(order.region, zone, order.instance_type)
        self._refuse_over_limit(order.region)
        machine = SimMachine(
            instance_id=f"i-{self._chance.getrandbits(68):017x}",
            region=order.region,
            zone=zone,
            instance_type=order.instance_type,
            image_id=order.image_id,
            disk_gb=order.disk_gb,
            private_ip=self._private_ip(),
            visible_at=now + self.listed_late + self._nature.listed_within * self._chance.random() / self._nature.speed,
            pace=self._pace(order.instance_type),
            shown_for=self._nature.shown_for / self._nature.speed,
            tags=dict(order.tags),
            public=order.public_ip,
            comes_up=not self._never_up,
            spot=order.spot,
            share=self.share,
        )
        self._never_up = max(0, self._never_up - 1)
        machine.boot(now, self._address(machine))
        if self._nature.mean_life is not None:
            life = self._nature.mean_life * self._chance.expovariate(1.0) / self._nature.speed
            machine.dies_at = now + max(life, timedelta(seconds=1))
        self.machines[machine.instance_id] = self._by_address[machine.private_ip] = machine
        self.on_effect(Effect("run", machine.instance_id))
        return machine

    def machine(self, region: str, instance_id: str) -> SimMachine:
        """Return a machine, including one that the cloud does not list yet or any more. Raise Gone."""
        machine = self.machines.get(instance_id)
        if machine is None or machine.region != region:
            raise Gone(f"{instance_id} does not exist in {region}")
        return machine

    def start(self, region: str, instance_id: str) -> None:
        machine, state = self._live_machine(region, instance_id)
        if state is InstanceState.STOPPING:
            raise Later(f"{instance_id} is still stopping", after=_RETRY_AFTER)
        if state is InstanceState.STOPPED:
            self._refuse_without_capacity(region, machine.zone, machine.instance_type)
            self.on_effect(Effect("start", instance_id))
            machine.boot(self._clock.now(), self._address(machine))

    def stop(self, region: str, instance_id: str) -> None:
        machine, state = self._live_machine(region, instance_id)
        if state is InstanceState.PENDING:
            raise Later(f"{instance_id} does not run yet", after=_RETRY_AFTER)
        if machine.spot:
            raise Stuck("Unsupported", f"{instance_id} is a spot machine, which cannot be stopped")
        if state is RUNNING:
            self.on_effect(Effect("stop", instance_id))
            machine.stop(self._clock.now())

    def reboot(self, region: str, instance_id: str) -> None:
        machine, state = self._live_machine(region, instance_id)
        if state is not RUNNING:
            raise Later(f"{instance_id} is {state}", after=_RETRY_AFTER)
        self.on_effect(Effect("reboot", instance_id))
        machine.reboots.append(self._clock.now())

    def terminate(self, region: str, instance_id: str) -> None:
        machine = self.machine(region, instance_id)
        if machine.state(self._clock.now()) not in ENDING:
            self.on_effect(Effect("terminate", instance_id))
            machine.terminate(self._clock.now())

    def tag(self, region: str, instance_id: str, tags: Mapping[str, str]) -> None:
        machine, _ = self._live_machine(region, instance_id)
        self.on_effect(Effect("tag", instance_id))
        machine.tags.update(tags)

    def untag(self, region: str, instance_id: str, *keys: str) -> None:
        machine, _ = self._live_machine(region, instance_id)
        for key in keys:
            machine.tags.pop(key, None)

    def die(self, region: str, instance_id: str, at: datetime | None = None) -> None:
        """Make a machine end by itself, now or at a future moment."""
        self.machine(region, instance_id).dies_at = at or self._clock.now()

    def reclaim(self, region: str, instance_id: str) -> None:
        """Announce that a spot machine is taken away, and take it away after the notice unless it has ended."""
        machine = self.machine(region, instance_id)
        machine.reclaim_at = machine.dies_at = self._clock.now() + RECLAIM_NOTICE / self._nature.speed

    def reclaimed(self, region: str) -> dict[str, datetime]:
        """Return the machines that are about to be taken away, and when each is."""
        now = self._clock.now()
        marked = ((one, one.reclaim_at) for one in self.machines.values() if one.region == region and one.reclaim_at)
        return {one.instance_id: at for one, at in marked if one.state(now) not in ENDING}

    def machine_type(self, region: str, name: str) -> MachineType | None:
        """Return what a type of machine has; None if it is not offered in a region."""
        found = HARDWARE.get(name)
        if found is None or (region, name) in self.withdrawn_types:
            return None
        metal = ".metal" in name
        return MachineType(
            instance_type=name,
            vcpus=found.vcpus,
            memory_mb=1024 * found.memory_gib,
            metal=metal,
            nested=not metal and name.startswith(_NESTING_FAMILIES),
        )

    def impair(self, region: str, instance_id: str, check: CheckName = "instance") -> None:
        """Make a status check fail until a reboot (the instance's check) or a new start repairs it."""
        self.machine(region, instance_id).impaired[check] = self._clock.now()

    def never_boot(self, times: int = 1) -> None:
        """Make the next machines never come up: they run, their instance check fails, and nothing answers there."""
        self._never_up = times

    def measure(self, region: str, instance_id: str, load: MachineMetrics) -> None:
        """Set the load that is measured on a machine while it runs."""
        self.machine(region, instance_id).load = load

    def add_shortage(self, region: str, what: str, until: datetime) -> None:
        """Refuse launches of a type, or in a zone, for lack of capacity until a moment."""
        self._shortages.append(CapacityShortage(region, what, until))

    def end_shortages(self) -> None:
        """End all shortages."""
        self._shortages.clear()

    def limit(self, region: str, machines: int) -> None:
        """Allow at most this many machines at a time."""
        self._limits[region] = machines

    def _live_machine(self, region: str, instance_id: str) -> tuple[SimMachine, InstanceState]:
        machine = self.machine(region, instance_id)
        state = machine.state(self._clock.now())
        if state in ENDING:
            raise Gone(f"{instance_id} in {region} is {state}")
        return machine, state

    def _refuse_without_capacity(self, region: str, zone: str, instance_type: str) -> None:
        now = self._clock.now()
        self._shortages = [one for one in self._shortages if one.until > now]
        if any(one.region == region and one.what in {zone, instance_type} for one in self._shortages):
            raise NoCapacity(f"there is no {instance_type} free in {zone} now")

    def _refuse_over_limit(self, region: str) -> None:
        if region not in self._limits:
            return
        now = self._clock.now()
        here = (one for one in self.machines.values() if one.region == region)
        living = sum(one.state(now) not in ENDING for one in here)
        if living >= self._limits[region]:
            quota = "Running On-Demand instances"
            raise QuotaExceeded(f"no more than {living} machines in {region}; raise the quota «{quota}»", quota=quota)

    def _zone(self, order: LaunchOrder) -> str:
        known = self._nature.subnets.get(order.subnet_id or "")
        letters = self._nature.zones
        return known or order.region + letters[crc32((order.subnet_id or "").encode()) % len(letters)]

    def _pace(self, instance_type: str) -> MachinePace:
        pace = self._nature.paces.get(instance_type) or (METAL if ".metal" in instance_type else VIRTUAL)
        spread = (self._chance.uniform(1 - SPREAD, 1 + SPREAD) / self._nature.speed for _ in pace)
        return MachinePace(*(span * factor * self.slowness for span, factor in zip(pace, spread, strict=True)))

    def _address(self, machine: SimMachine) -> str | None:
        if not machine.public:
            return None
        if self._nature.network is not None:
            return machine.private_ip
        self._addresses += 1
        return str(_PUBLIC + self._addresses)

    def _private_ip(self) -> str:
        network, number = self._nature.network, len(self.machines)
        return str(_PRIVATE + number) if network is None else self._local_address(network, number)

    def _local_address(self, network: IPv4Network, number: int) -> str:
        """Choose an address that no living machine has; a network of one address is shared by all."""
        room = max(1, network.num_addresses - 2)
        numbers = ((number + step) % room for step in range(len(self.machines) + 1))
        addresses = (str(network[min(one + 1, network.num_addresses - 1)]) for one in numbers)
        first = next(addresses)
        return next((one for one in chain([first], addresses) if not self._is_taken(one)), first)

    def _is_taken(self, address: str) -> bool:
        holder = self._by_address.get(address)
        return holder is not None and holder.state(self._clock.now()) is not TERMINATED
