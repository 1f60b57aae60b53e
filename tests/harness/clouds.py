"""Clouds for tests, simulated or on moto, with the same images everywhere; and simulated CMLs on a set clock."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import yaml
from aiobotocore.session import AioSession

from harness.servers import ACCOUNT, IMAGES
from harness.stores import HandClock
from lcm.model.kinds.worker import AwsSpec, RootVolume
from lcm.providers.aws.clients import AwsClients, AwsKeys
from lcm.providers.aws.ec2 import Ec2
from lcm.providers.aws.ec2_messages import ec2_tags
from lcm.providers.protocols.compute import Compute, InstanceState, Launch, MachineMetrics
from lcm.sim.cloud.account import CloudBehaviour, LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.machines import RUNNING, STOPPED, STOPPING, SimMachine
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import Node, NodeState, SimLab
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock

HERE, THERE = "us-east-1", "eu-west-1"
KEYS = AwsKeys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
SESSION = AioSession()
"""Shared, for it reads megabytes of descriptions of AWS once."""

_serial = itertools.count()


def unique(word: str) -> str:
    """Make a name that no other test uses, in this process or another."""
    return f"{word}-{os.getpid()}-{next(_serial)}"


def launch(uid: str, *, attempt: int = 1, region: str = HERE, **aws: Any) -> Launch:
    """Ask for a small worker; moto cannot make io1 volumes."""
    spec = AwsSpec(region=region, ami_name_pattern="CML-2.*", root_volume=RootVolume(kind="gp3", iops=3000))
    return Launch(
        worker_uid=uid,
        worker_name=f"worker-{uid}",
        token=f"{uid}-{attempt}",
        aws=msgspec.structs.replace(spec, **aws),
        instance_type="m5zn.metal",
    )


class CloudWorld(Protocol):
    """An account, our door to it, and the verbs of others."""

    compute: Compute
    owner: str

    def now(self) -> datetime: ...

    def another(self) -> Compute:
        """Open another door to the same account, as another process of ours would."""
        ...

    def settle(self) -> None:
        """Let everything that goes on come to its end."""
        ...

    async def add_image(self, name: str) -> str: ...

    async def launch_by_hand(self, image_id: str, tags: Mapping[str, str]) -> str: ...

    async def measure(self, instance_id: str, load: MachineMetrics) -> None:
        """Have a load measured on a machine from now on."""
        ...


class SimWorld:
    """An account that we make up, on a clock that tests set."""

    def __init__(self) -> None:
        self.owner = unique("owner")
        self.clock = HandClock()
        self.cloud = SimCloud(
            self.clock, Chance(7), owner=self.owner, nature=CloudBehaviour(listed_within=timedelta(0))
        )
        self.compute: Compute = self.cloud
        for region, image in itertools.product((HERE, THERE), IMAGES):
            created_at = datetime.fromisoformat(str(image["creation_date"]))
            owner = "self" if image["owner_id"] == ACCOUNT else "somebody"
            self.cloud.account.add_image(region, str(image["name"]), created_at, owner=owner)

    def now(self) -> datetime:
        return self.clock.now()

    def another(self) -> Compute:
        return self.compute

    def settle(self) -> None:
        self.clock.step(minutes=30)

    async def add_image(self, name: str) -> str:
        return self.cloud.account.add_image(HERE, name, self.now()).image_id

    async def launch_by_hand(self, image_id: str, tags: Mapping[str, str]) -> str:
        return self.cloud.account.run(LaunchOrder(HERE, "t3.micro", image_id, tags)).instance_id

    async def measure(self, instance_id: str, load: MachineMetrics) -> None:
        self.cloud.account.measure(HERE, instance_id, load)


class MotoWorld:
    """An account on a moto server, which does everything at once."""

    def __init__(self, clients: AwsClients) -> None:
        self.owner = unique("owner")
        self._clients = clients
        self.compute: Compute = self.another()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def another(self) -> Compute:
        return Ec2(self._clients, SystemClock(), owner=self.owner, page=5)

    def settle(self) -> None:
        pass

    async def add_image(self, name: str) -> str:
        client = await self._clients.ec2(HERE)
        return (await client.register_image(Name=name, RootDeviceName="/dev/xvda"))["ImageId"]

    async def launch_by_hand(self, image_id: str, tags: Mapping[str, str]) -> str:
        client = await self._clients.ec2(HERE)
        answer = await client.run_instances(ImageId=image_id, MinCount=1, MaxCount=1)
        instance_id = answer["Instances"][0]["InstanceId"]
        if tags:
            await client.create_tags(Resources=[instance_id], Tags=ec2_tags(tags))
        return instance_id

    async def measure(self, instance_id: str, load: MachineMetrics) -> None:
        client = await self._clients.cloudwatch(HERE)
        of_ec2 = {
            "CPUUtilization": load.cpu_percent,
            "NetworkIn": load.network_in_bytes,
            "NetworkOut": load.network_out_bytes,
        }
        of_agent = {
            "mem_used_percent": load.memory_percent,
            "disk_used_percent": load.disk_percent,
        }
        for namespace, values, extra in (
            ("AWS/EC2", of_ec2, ()),
            ("CWAgent", of_agent, (("ImageId", "ami-1"),)),
        ):
            data = _data(instance_id, values, extra)
            if data:
                await client.put_metric_data(Namespace=namespace, MetricData=data)


def _data(instance_id: str, values: Mapping[str, float | None], extra: Sequence[tuple[str, str]]) -> list[Any]:
    dimensions = [{"Name": name, "Value": value} for name, value in (("InstanceId", instance_id), *extra)]
    return [
        {"MetricName": name, "Dimensions": dimensions, "Value": value}
        for name, value in values.items()
        if value is not None
    ]


LONG = 3_600


class Bench:
    """A machine with its clock, and short words for what tests do with it."""

    def __init__(self, **options: Any) -> None:
        self.clock = HandClock()
        self.cml = Cml(self.clock, Chance(options.pop("seed", 1)), **options)

    def imported(self, topology: str | None = None, title: str | None = None) -> SimLab:
        return self.cml.import_lab(text() if topology is None else topology, self.cml.users.administrator, title)[0]

    def started(self, topology: str | None = None) -> SimLab:
        lab = self.imported(topology)
        self.cml.labs.start(lab)
        return lab

    def booted(self, topology: str | None = None) -> SimLab:
        lab = self.started(topology)
        self.wait(LONG)
        return lab

    def wait(self, seconds: float) -> None:
        self.clock.step(seconds=seconds)

    def states(self, lab: SimLab) -> list[NodeState]:
        age = self.cml.pace.age()
        return [node.life.state(age) for node in lab.nodes.values()]

    def state(self, lab: SimLab) -> NodeState:
        return lab.state(self.cml.pace.age())

    def converged(self, lab: SimLab) -> bool:
        return lab.is_converged(self.cml.pace.age())

    def through(self, lab: SimLab, seconds: int) -> Iterator[list[NodeState]]:
        """Let seconds go by one by one and say the states at each."""
        for _ in range(seconds):
            yield self.states(lab)
            self.wait(1)


def node(label: str, definition: str = "iosv", interfaces: int = 1, **more: Any) -> dict[str, Any]:
    ends = [{"id": f"i{n}", "label": f"p{n}", "type": "physical", "slot": n} for n in range(interfaces)]
    return {"id": label, "label": label, "node_definition": definition, "x": 0, "y": 0, "interfaces": ends, **more}


def link(a: str, b: str) -> dict[str, str]:
    """Connect `node/interface` to `node/interface`."""
    (n1, i1), (n2, i2) = (end.split("/") for end in (a, b))
    return {"id": f"{a}-{b}", "n1": n1, "i1": i1, "n2": n2, "i2": i2}


def document(*nodes: Mapping[str, Any], links: Sequence[Mapping[str, str]] = (), **heading: object) -> dict[str, Any]:
    return {"lab": {"version": "0.3.0", **heading}, "nodes": list(nodes), "links": list(links)}


def text(*nodes: Mapping[str, Any], links: Sequence[Mapping[str, str]] = ()) -> str:
    return yaml.safe_dump(document(*(nodes or (node("R1"),)), links=links))


def one(lab: SimLab, label: str) -> Node:
    return next(node for node in lab.nodes.values() if node.spec.label == label)


MINIMUM_BILLED: Final = timedelta(seconds=60)
"""The least time that every start is billed for."""
_SECOND: Final = timedelta(seconds=1)
_SECONDS_PER_HOUR: Final = Decimal(3600)


@dataclass(frozen=True)
class SimPrices:
    """USD per hour by region and type, disk included while it runs; USD per GB and hour of a stopped machine's disk.

    `spot` are the prices of machines that are only lent.
    """

    hourly: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    disk_gb_hourly: Mapping[str, Decimal] = field(default_factory=dict)
    spot: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    other_hourly: Decimal = Decimal("3.9641")
    other_disk_gb_hourly: Decimal = Decimal("0.00017")

    def of_machine(self, machine: SimMachine) -> Decimal:
        table = self.spot if machine.spot else self.hourly
        return table.get((machine.region, machine.instance_type), self.other_hourly)

    def of_disk(self, machine: SimMachine) -> Decimal:
        return machine.disk_gb * self.disk_gb_hourly.get(machine.region, self.other_disk_gb_hourly)


class BilledInterval(NamedTuple):
    """A time span that costs money: the machine while it runs, its disk while it is stopped."""

    state: InstanceState
    since: datetime
    until: datetime
    billed: timedelta
    usd: Decimal


class BillLine(NamedTuple):
    """What one machine costs."""

    instance_id: str
    intervals: tuple[BilledInterval, ...]

    @property
    def usd(self) -> Decimal:
        return sum((one.usd for one in self.intervals), Decimal(0))


class Bill(NamedTuple):
    """What all machines cost until a moment, by instance id."""

    lines: Mapping[str, BillLine]

    @property
    def usd(self) -> Decimal:
        return sum((line.usd for line in self.lines.values()), Decimal(0))


def make_bill(machines: Iterable[SimMachine], prices: SimPrices, until: datetime) -> Bill:
    """Add up all costs before a moment."""
    lines = (BillLine(one.instance_id, tuple(_intervals(one, prices, until))) for one in machines)
    return Bill({line.instance_id: line for line in lines})


def _intervals(machine: SimMachine, prices: SimPrices, until: datetime) -> Iterator[BilledInterval]:
    for state, since, end in machine.spans(until):
        if state is RUNNING:
            whole_seconds = -(-(end - since) // _SECOND) * _SECOND
            billed = max(MINIMUM_BILLED, whole_seconds)
            yield BilledInterval(state, since, end, billed, _usd(prices.of_machine(machine), billed))
        elif state in {STOPPING, STOPPED}:
            yield BilledInterval(state, since, end, end - since, _usd(prices.of_disk(machine), end - since))


def _usd(hourly: Decimal, span: timedelta) -> Decimal:
    seconds = Decimal(span // timedelta(microseconds=1)) / 1_000_000
    return hourly * seconds / _SECONDS_PER_HOUR
