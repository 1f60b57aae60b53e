"""The simulated cloud of `lcm up`: images, machines with a simulated CML on each, one licence server, stored in a file.

The file is written before a caller learns of a machine's launch, start, stop or end, and within a while when anything
else changes: a process that is killed and restarted finds its machines, licences and labs, which went on meanwhile as
real ones do. SimHosts gives access to the CML of each machine behind the `Hosts` protocol, without a network.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Unreachable
from lcm.model.kinds.worker import LabWorker
from lcm.model.topology.node_definitions import NodeSize
from lcm.providers.protocols.compute import Instance, InstanceState, MachineMetrics
from lcm.sim.cloud.account import CloudBehaviour
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.effects import Effect, OnEffect, PowerHistory, ignore_effect
from lcm.sim.cloud.fleet_file import FleetContent, FleetFile
from lcm.sim.cml.definitions import custom_kind
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml, CmlSnapshot, restore_snapshot, take_snapshot
from lcm.sim.cml.facts import stats_facts
from lcm.sim.cml.licence import LicenceServer
from lcm.sim.cml.stats import CmlMachine
from lcm.sim.time.chance import Chance
from lcm.sim.time.faults import ActiveFaults

IMAGES: Final = (("CML-2.8.1", timedelta(days=400)), ("CML-2.9.0", timedelta(days=90)))
"""The images installed in every region, and how old they are."""
PASSWORD: Final = "admin"  # noqa: S105  a simulator's
SAVE_SECONDS: Final = 0.5
_SLEEP_FACTOR: Final = 50
_HOSTS_PER_SAVE: Final = 50
"""Of how many hosts it is looked each time whether they changed by themselves, in turn."""
_VERSION: Final = re.compile(r"(?<!\d)\d++\.\d++\.\d+")
_METAL_CPUS: Final = {"m5zn": 48, "c5n": 72, "z1d": 48, "m6i": 128, "c6i": 128, "r6i": 128, "m7i": 192, "c7i": 192}
_GB_PER_CPU: Final = {"c": 2, "m": 4, "z": 8, "r": 8, "x": 16}
_log: Final = structlog.get_logger()


class RunningMachine(NamedTuple):
    """A machine that runs, and the CML on it."""

    instance_id: str
    address: str
    cml: Cml


_BOOT_CPU_PERCENT: Final = 4.0
_BYTES_IN, _BYTES_IN_PER_NODE = 900, 1_500
_BYTES_OUT, _BYTES_OUT_PER_NODE = 1_400, 4_000
"""Bytes a second over the network: of CML itself, and of each node that runs."""


class SimFleet:
    """A simulated cloud that outlives its process, unless `file` is None. Machines are reached in `network`.

    `node_sizes` are node definitions that every CML has besides those that are shipped.
    """

    def __init__(
        self,
        clock: Clock,
        chance: Chance,
        *,
        owner: str = "lcm",
        regions: Iterable[str] = ("us-east-1",),
        speed: float = 1.0,
        file: Path | None = None,
        network: IPv4Network | None = None,
        on_effect: OnEffect = ignore_effect,
        password: str = PASSWORD,
        node_sizes: Mapping[str, NodeSize] = {},
    ) -> None:
        self._on_effect = on_effect
        self._password = password
        self._kinds = {name: custom_kind(name, size) for name, size in node_sizes.items()}
        self.licences = LicenceServer()
        self.cloud = SimCloud(
            clock,
            chance,
            owner=owner,
            nature=CloudBehaviour(speed=speed, network=network),
            attach=self._attach,
            measure=_measure_cml,
        )
        self.cloud.account.on_effect = on_effect
        self._clock = clock
        self._chance = chance
        self._speed = speed
        self._file = FleetFile(file) if file else None
        self._known: dict[str, CmlSnapshot] = {}
        self._hosts: dict[str, Cml] = {}
        self._unsaved: dict[str, None] = {}
        """The machines that may have changed since the file was written."""
        if self._file is not None and (known := self._file.read()) is not None:
            self._restore(known)
        self.install_images(regions)
        self.cloud.on_change = self._save_machine

    def install_images(self, regions: Iterable[str]) -> None:
        """Install CML's images in regions that lack them."""
        for region in regions:
            for name, age in IMAGES:
                if not self.cloud.account.images(region, name):
                    self.cloud.account.add_image(region, name, self._clock.now() - age)

    def running_machines(self) -> Iterator[RunningMachine]:
        """Yield every machine that runs now."""
        return (found for one in self.cloud.account.machines if (found := self.find_running(one)) is not None)

    def machines_with_labs(self) -> Sequence[str]:
        """Return the machines that have labs, whether they run or not."""
        here = [one for one, cml in self._hosts.items() if cml.has_labs]
        return [*here, *(one for one, known in self._known.items() if known.labs)]

    def find_running(self, instance_id: str) -> RunningMachine | None:
        """Return a machine; None if it does not run now."""
        cml = self.cloud.find_attached(instance_id)
        address = self.cloud.account.machines[instance_id].private_ip
        return RunningMachine(instance_id, address, cml) if isinstance(cml, Cml) else None

    def find_cml(self, instance_id: str) -> Cml | None:
        """Return the CML of a machine whatever its state; None if nobody ever looked for one there."""
        return self._hosts.get(instance_id)

    async def run(self) -> None:
        """Keep the file up to date until cancelled, and write it once more then."""
        now = asyncio.get_running_loop().time
        try:
            while True:
                began = now()
                await self._save(itertools.islice(self._rotate_hosts(), _HOSTS_PER_SAVE))
                # However large the file is, leave nearly all of the time to others.
                await asyncio.sleep(max(SAVE_SECONDS, (now() - began) * _SLEEP_FACTOR))
        finally:
            await self.save()

    async def save(self) -> None:
        """Write the file if anything has changed."""
        await self._save(self._hosts)

    def mark_unsaved(self, instance_id: str) -> None:
        """Have it looked soon whether a machine changed."""
        self._unsaved[instance_id] = None

    async def _save_machine(self, instance_id: str) -> None:
        await self._save([instance_id])

    async def _save(self, changed: Iterable[str]) -> None:
        """Write the file if one of some machines changed, or one of those that may have changed since the last time."""
        if self._file is None:
            return
        unsaved, self._unsaved = dict.fromkeys(itertools.chain(self._unsaved, changed)), {}
        account = self.cloud.account.export_state()
        for instance_id in unsaved:
            self._file.put_machine(account.machines[instance_id])
            self._save_host(self._file, instance_id)
        self._file.put_account(account.images, account.addresses)
        self._file.put_launches(self.cloud.launches_of(unsaved))
        self._file.put_licences(self.licences.taken)
        await self._file.write()

    def _save_host(self, file: FleetFile, instance_id: str) -> None:
        cml = self._hosts.get(instance_id)
        if self.cloud.account.machines[instance_id].state(self._clock.now()) is InstanceState.TERMINATED:
            self._hosts.pop(instance_id, None)
            self._known.pop(instance_id, None)
            file.put_host(instance_id, None)
        elif cml is not None:
            file.put_host(instance_id, take_snapshot(cml))

    def _rotate_hosts(self) -> Iterator[str]:
        """Yield the hosts, beginning with the one that was not looked at for longest."""
        for instance_id in list(self._hosts):
            self._hosts[instance_id] = self._hosts.pop(instance_id)
            yield instance_id

    def _restore(self, known: FleetContent) -> None:
        for instance_id in self.cloud.account.restore_state(known.account):
            self.mark_unsaved(instance_id)
        self.cloud.restore_launches(known.launches)
        self.licences.taken.update(known.taken)
        self._known = known.hosts
        _log.info("simulated cloud goes on", machines=len(known.account.machines), licences=len(known.taken))

    def _attach(self, instance: Instance, power: PowerHistory) -> Cml:
        cml = Cml(
            self._clock,
            self._chance.stream(instance.instance_id),
            speed=self._speed,
            machine=self._cml_machine(instance),
            password=self._password,
            licence_server=self.licences,
            power=power,
            on_effect=lambda verb, lab: self._on_effect(Effect(verb, instance.instance_id, lab)),
        )
        cml.node_kinds.update(self._kinds)
        if known := self._known.pop(instance.instance_id, None):
            restore_snapshot(cml, known)
        self._hosts[instance.instance_id] = cml
        self.mark_unsaved(instance.instance_id)
        return cml

    def _cml_machine(self, instance: Instance) -> CmlMachine:
        image = self.cloud.account.image(instance.region, instance.image_id)
        version = _VERSION.search(image.name) if image else None
        made = self.cloud.account.machines[instance.instance_id]
        cpus, memory_gb = machine_size(instance.instance_type)
        return CmlMachine(
            cpu_count=int(cpus * made.share),
            memory_mb=int(memory_gb * 1024 * made.share),
            disk_gb=made.disk_gb,
            version=version[0] if version else "2.9.0",
        )


def _measure_cml(running: object) -> MachineMetrics:
    """Return what CloudWatch and its agent publish of a machine with CML on it; bytes are those of a second."""
    if not isinstance(running, Cml) or not running.is_up:
        return MachineMetrics(cpu_percent=_BOOT_CPU_PERCENT)
    stats = stats_facts(running)
    return MachineMetrics(
        cpu_percent=stats.cpu_percent,
        memory_percent=100 * stats.memory_used_mb / stats.memory_total_mb,
        disk_percent=100 * stats.disk_used_mb / stats.disk_total_mb,
        network_in_bytes=_BYTES_IN + _BYTES_IN_PER_NODE * stats.running_nodes,
        network_out_bytes=_BYTES_OUT + _BYTES_OUT_PER_NODE * stats.running_nodes,
    )


def machine_size(instance_type: str) -> tuple[int, int]:
    """Return a machine type's number of CPUs and GB of memory, by the rules of EC2's names."""
    family, _, name = instance_type.partition(".")
    if found := re.fullmatch(r"(\d*)xlarge|metal-(\d+)xl", name):
        cpus = 4 * int(found[1] or found[2] or 1)
    else:
        cpus = _METAL_CPUS.get(family, 96) if name.startswith("metal") else 2
    return cpus, cpus * _GB_PER_CPU.get(family[:1], 4)


class SimHosts:
    """The CML attached to each machine; its password is the simulator's own, whatever the spec says."""

    def __init__(self, cloud: SimCloud, *, on_use: Callable[[str], object] = lambda _: None) -> None:
        """Give access to the CML of each machine; `on_use` is called with the machine's id each time."""
        self._cloud = cloud
        self._on_use = on_use
        self._hosts: dict[str, DirectHost] = {}
        self.spells = ActiveFaults()
        """Faults on the way to all of them."""

    async def of(self, worker: LabWorker) -> DirectHost:
        instance_id = worker.status.ec2.instance_id
        if instance_id not in self._hosts:
            await asyncio.sleep(0)
        cml = self._cloud.find_attached(instance_id)
        if not isinstance(cml, Cml):
            raise Unreachable(f"{worker.metadata.name} is not there: its machine {instance_id} does not run")
        self._on_use(instance_id)
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
