"""What a simulated world is made of, as values: labs, pools, people, mishaps, and the random seed.

Also the documents that a scenario stands for, as an operator applies them: templates, pools, definitions and lab
files.
"""

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
from lcm.providers.protocols.artifacts import StoredArtifact
from lcm.settings.load import Settings

MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
SECRET: Final = "canary-5f3a9c"  # noqa: S105  opens nothing; who finds it anywhere has found a leak


class ScenarioLab(msgspec.Struct, frozen=True, kw_only=True):
    """A lab that can be booked."""

    name: str
    track: str
    cpu_cores: int = 4
    memory_gb: int = 8
    storage_gb: int = 10
    nodes: int = 4


class ScenarioPool(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one type for one track."""

    track: str
    instance_type: str = "m5zn.metal"
    least: int = 0
    most: int = 10
    licensed: bool = True
    price_per_hour_usd: str = "4.0"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A world, and what happens in it. Two runs of one scenario are the same to the last commit."""

    seed: int = 1
    start: datetime = MONDAY
    hours: float = 24
    """How long people come and things go wrong."""
    quiet_hours: float = 8
    """How long nothing new happens after that, so that everything that was begun can end."""
    processes: int = 3
    """How many of our processes there are, each with an API and every controller."""
    face: Literal["direct", "client"] = "direct"
    """How a CML is called: by its simulator's own methods, or by our client over its REST API."""
    labs: tuple[ScenarioLab, ...] = ()
    pools: tuple[ScenarioPool, ...] = ()
    sessions_a_day: int = 300
    mishaps_an_hour: float = 0.0
    mishaps: tuple[str, ...] = ()
    """Mishaps by their names; empty means all."""
    bystanders: bool = True
    """Whether there are operators, strangers, listeners and auditors besides those who book."""
    settings: Settings = msgspec.field(default_factory=Settings)

    @property
    def end(self) -> datetime:
        """When people stop coming."""
        return self.start + timedelta(hours=self.hours)


CAMPUS: Final = Scenario(
    labs=(
        ScenarioLab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),
        ScenarioLab(name="ccna-exam", track="ccna", cpu_cores=12, memory_gb=24, nodes=6),
        ScenarioLab(name="ccnp-core", track="ccnp", cpu_cores=16, memory_gb=32, nodes=5),
    ),
    pools=(ScenarioPool(track="ccna", most=10), ScenarioPool(track="ccnp", most=10, least=1)),
    settings=Settings(
        worker_controller_leader_lease_ttl=60,
        worker_controller_reconcile_interval=60,
        scheduler_reconcile_interval=60,
        metrics_poll_interval=120,
        lablet_watch_interval=60,
    ),
)
"""Twenty workers and three hundred sessions a day, polled as rarely as a frugal operator would."""

CLASSROOM: Final = Scenario(
    start=MONDAY + timedelta(hours=8),
    processes=2,
    labs=(ScenarioLab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),),
    pools=(ScenarioPool(track="ccna", most=4),),
    sessions_a_day=60,
)
"""Four workers and sixty sessions a day, for tests and for scenarios that are written down."""

CROWDED: Final = msgspec.structs.replace(
    CLASSROOM, processes=3, sessions_a_day=480, pools=(ScenarioPool(track="ccna", most=4, least=2),)
)
"""The same with workers that are always there and far more sessions: the most happens in the least time."""


REGION: Final = "us-east-1"
VERSION: Final = "1.0.0"


def definition_of(lab: ScenarioLab, stored: StoredArtifact) -> LabletDefinition:
    """Return the definition of a lab whose file is stored."""
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


def definition_name(lab: ScenarioLab) -> str:
    """Return the name by which a lab is booked."""
    return f"{lab.name}:{VERSION}"


def pool_documents(wanted: ScenarioPool) -> Sequence[Resource]:
    """Return the documents of a pool: the template of its workers, and the pool itself."""
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


def lab_topology(lab: ScenarioLab) -> bytes:
    """Return a lab's file: a chain of nodes, each with a console."""
    nodes = "".join(_node_yaml(number) for number in range(lab.nodes))
    links = "".join(
        f"- {{id: l{n}, n1: n{n}, i1: i1, n2: n{n + 1}, i2: i0, label: l{n}}}\n" for n in range(lab.nodes - 1)
    )
    return f"lab: {{version: 0.3.0, title: {lab.name}}}\nnodes:\n{nodes}links:\n{links}".encode()


def _node_yaml(number: int) -> str:
    interfaces = ", ".join(f"{{id: i{n}, label: eth{n}, slot: {n}, type: physical}}" for n in range(2))
    return (
        f"- id: n{number}\n  label: R{number}\n  node_definition: alpine\n  x: {100 * number}\n  y: 0\n"
        f"  tags:\n  - serial:{2000 + number}\n  configuration: hostname R{number}\n  interfaces: [{interfaces}]\n"
    )
