"""The worlds that are played most, and the documents that a scenario stands for, as an operator applies them."""

from datetime import timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import (
    AmiRequirements,
    DefinitionState,
    LabletDefinition,
    LabletDefinitionSpec,
    ResourceRequirements,
    Topology,
)
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.worker import AwsSpec, CmlSpec, LabWorkerSpec
from lcm.providers.protocols.artifacts import StoredArtifact
from lcm.sim.world.scenario import MONDAY, REGION, Scenario, ScenarioLab, ScenarioPool

VERSION: Final = "1.0.0"

UNHOSTABLE_PREFIX: Final = "unhostable-"
"""How the names of labs begin that nobody can host."""


def unhostable_labs(track: str) -> tuple[ScenarioLab, ...]:
    """Return labs that ask for a CML, for nodes, and for a machine that no pool has."""
    wanted = ScenarioLab(name=UNHOSTABLE_PREFIX, track=track, cpu_cores=8, memory_gb=16)
    differences: tuple[tuple[str, dict[str, object]], ...] = (
        ("version", {"cml_version_min": "3.1"}),
        ("nodes", {"node_definition": "router-of-tomorrow"}),
        ("size", {"cpu_cores": 900, "memory_gb": 4_000}),
    )
    return tuple(
        msgspec.structs.replace(wanted, name=UNHOSTABLE_PREFIX + name, **change) for name, change in differences
    )


CAMPUS: Final = Scenario(
    labs=(
        ScenarioLab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),
        ScenarioLab(name="ccna-exam", track="ccna", cpu_cores=12, memory_gb=24, nodes=6),
        ScenarioLab(name="ccnp-core", track="ccnp", cpu_cores=16, memory_gb=32, nodes=5),
    ),
    unhostable=(*unhostable_labs("ccna")[:2], unhostable_labs("ccnp")[2]),
    pools=(ScenarioPool(track="ccna", most=10), ScenarioPool(track="ccnp", most=10, least=1)),
)
"""Twenty workers and three hundred sessions a day, with the settings that a new installation has."""

CLASSROOM: Final = Scenario(
    start=MONDAY + timedelta(hours=8),
    processes=2,
    labs=(ScenarioLab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),),
    pools=(ScenarioPool(track="ccna", most=4),),
    sessions_a_day=60,
)
"""Four workers and sixty sessions a day, for tests and for scenarios that are written down."""

CROWDED: Final = msgspec.structs.replace(
    CLASSROOM,
    processes=3,
    sessions_a_day=480,
    unhostable=unhostable_labs("ccna"),
    pools=(ScenarioPool(track="ccna", most=4, least=2),),
)
"""The same with workers that are always there and far more sessions: the most happens in the least time."""


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
        ami_requirements=AmiRequirements(cml_version_min=lab.cml_version_min),
    )
    return LabletDefinition(metadata=Metadata(name=definition_name(lab)), spec=spec)


def definition_name(lab: ScenarioLab) -> str:
    """Return the name by which a lab is booked."""
    return f"{lab.name}:{VERSION}"


def pool_documents(wanted: ScenarioPool) -> tuple[WorkerTemplate, LabWorkerPool]:
    """Return the documents of a pool: the template of its workers, and the pool itself."""
    cml = CmlSpec(admin_password="env:CML_ADMIN_PASSWORD")
    if wanted.licensed:
        cml = msgspec.structs.replace(cml, license_token="env:CML_LICENSE_TOKEN", license_flavour="enterprise")
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
