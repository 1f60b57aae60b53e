"""What a simulated world is made of, as values: labs, pools, people, what goes wrong, and the seed of all chance."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

import msgspec

from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import (
    DefinitionState,
    LabletDefinition,
    LabletDefinitionSpec,
    ResourceRequirements,
    Topology,
)
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.worker import AwsSpec, CmlSpec, LabWorkerSpec
from lcm.providers.protocols.artifacts import Stored
from lcm.settings.load import Settings

MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
SECRET: Final = "canary-5f3a9c"  # noqa: S105  opens nothing; who finds it anywhere has found a leak


class Lab(msgspec.Struct, frozen=True, kw_only=True):
    """A lab that can be booked."""

    name: str
    track: str
    cpu_cores: int = 4
    memory_gb: int = 8
    storage_gb: int = 10
    nodes: int = 4


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one kind for one track."""

    track: str
    instance_type: str = "m5zn.metal"
    least: int = 0
    most: int = 10
    licensed: bool = True
    price_per_hour_usd: str = "4.0"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A world and what happens in it. Two runs of one scenario are the same to the last commit."""

    seed: int = 1
    start: datetime = MONDAY
    hours: float = 24
    """How long people come and things go wrong."""
    quiet_hours: float = 8
    """How long nothing happens then, so that all is done that was begun."""
    processes: int = 3
    """How many of ours there are, each with an API and every controller."""
    face: Literal["direct", "client"] = "direct"
    """How a CML is spoken to: by its simulator's own verbs, or by our client over its REST face."""
    labs: tuple[Lab, ...] = ()
    pools: tuple[Pool, ...] = ()
    sessions_a_day: int = 300
    mishaps_an_hour: float = 0.0
    mishaps: tuple[str, ...] = ()
    """Which, by their names; empty: all."""
    bystanders: bool = True
    """Whether there are operators, strangers, listeners and auditors besides those who book."""
    settings: Settings = msgspec.field(default_factory=Settings)

    @property
    def end(self) -> datetime:
        """When people stop to come."""
        return self.start + timedelta(hours=self.hours)


CAMPUS: Final = Scenario(
    labs=(
        Lab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),
        Lab(name="ccna-exam", track="ccna", cpu_cores=12, memory_gb=24, nodes=6),
        Lab(name="ccnp-core", track="ccnp", cpu_cores=16, memory_gb=32, nodes=5),
    ),
    pools=(Pool(track="ccna", most=10), Pool(track="ccnp", most=10, least=1)),
    settings=Settings(
        worker_controller_leader_lease_ttl=60,
        worker_controller_reconcile_interval=60,
        scheduler_reconcile_interval=60,
        metrics_poll_interval=120,
        lablet_watch_interval=60,
    ),
)
"""Twenty workers and three hundred sessions a day, looked at as often as a frugal operator would have it."""

CLASSROOM: Final = Scenario(
    start=MONDAY + timedelta(hours=8),
    processes=2,
    labs=(Lab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),),
    pools=(Pool(track="ccna", most=4),),
    sessions_a_day=60,
)
"""Four workers and sixty sessions a day, for tests and for scenarios that are written down."""

CROWDED: Final = msgspec.structs.replace(
    CLASSROOM, processes=3, sessions_a_day=480, pools=(Pool(track="ccna", most=4, least=2),)
)
"""The same with workers that are always there and far more sessions: most happens in least time."""


REGION: Final = "us-east-1"
VERSION: Final = "1.0.0"


def definition(lab: Lab, stored: Stored) -> LabletDefinition:
    """Publish a lab whose file is kept."""
    spec = LabletDefinitionSpec(
        version=VERSION,
        state=DefinitionState.ACTIVE,
        lab_track=lab.track,
        topology=Topology(uri=stored.uri, digest=stored.digest),
        resource_requirements=ResourceRequirements(
            cpu_cores=lab.cpu_cores, memory_gb=lab.memory_gb, storage_gb=lab.storage_gb
        ),
    )
    return LabletDefinition(metadata=Metadata(name=definition_name(lab)), spec=spec)


def definition_name(lab: Lab) -> str:
    """Say what a lab is booked by."""
    return f"{lab.name}:{VERSION}"


def pool(wanted: Pool) -> Sequence[Resource]:
    """Make a pool and what its workers look like."""
    cml = CmlSpec(admin_password="env:CML_ADMIN_PASSWORD")  # noqa: S106  where the password is, not what it is
    if wanted.licensed:
        cml = msgspec.structs.replace(cml, license_token="env:CML_LICENSE_TOKEN", license_flavour="enterprise")  # noqa: S106  likewise
    worker = LabWorkerSpec(
        lab_track=wanted.track,
        aws=AwsSpec(region=REGION, instance_type=wanted.instance_type, ami_name_pattern="CML-2.9*"),
        cml=cml,
    )
    name = Metadata(name=wanted.track)
    price = Decimal(wanted.price_per_hour_usd)
    template = WorkerTemplateSpec(worker=worker, name_prefix=wanted.track, price_per_hour_usd=price)
    spec = LabWorkerPoolSpec(
        lab_track=wanted.track, template=wanted.track, min_workers=wanted.least, max_workers=wanted.most
    )
    return (WorkerTemplate(metadata=name, spec=template), LabWorkerPool(metadata=name, spec=spec))


def topology(lab: Lab) -> bytes:
    """Write a lab's file: a chain of nodes, each with a console."""
    nodes = "".join(_node(number) for number in range(lab.nodes))
    links = "".join(
        f"- {{id: l{n}, n1: n{n}, i1: i1, n2: n{n + 1}, i2: i0, label: l{n}}}\n" for n in range(lab.nodes - 1)
    )
    return f"lab: {{version: 0.3.0, title: {lab.name}}}\nnodes:\n{nodes}links:\n{links}".encode()


def _node(number: int) -> str:
    interfaces = ", ".join(f"{{id: i{n}, label: eth{n}, slot: {n}, type: physical}}" for n in range(2))
    return (
        f"- id: n{number}\n  label: R{number}\n  node_definition: alpine\n  x: {100 * number}\n  y: 0\n"
        f"  tags:\n  - serial:{2000 + number}\n  configuration: hostname R{number}\n  interfaces: [{interfaces}]\n"
    )
