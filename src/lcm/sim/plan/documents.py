"""The documents for a timetable's short form, and the lab files that the simulated CMLs run.

The objects of a live system are converted to the same form: its images, networks and secrets do not exist in the
simulation.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final
from zlib import crc32

import msgspec

from lcm.control.objects.records import NAME
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import (
    AmiRequirements,
    DefinitionState,
    LabletDefinition,
    LabletDefinitionSpec,
    PortTemplate,
    PortUse,
    ResourceRequirements,
    Topology,
)
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, ScalingPolicy, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.worker import AwsSpec, CmlSpec, LabWorkerSpec
from lcm.providers.protocols.artifacts import StoredArtifact

VERSION: Final = "1.0.0"
IMAGE_PATTERN: Final = "CML-2.9*"
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.]+")
_MONTH_MINUTES: Final = 31 * 24 * 60
_MOST_NODES: Final = 300
"""The most nodes of a lab file, whatever its lab needs: more of them only take time."""
_CONSOLES_PER_NODE: Final = 100
"""The most consoles of one node."""
_PLACEHOLDER_URI: Final = "artifact://sha256:" + "0" * 64
"""Stands for a lab file, until there is one."""
_CML_SPEC: Final = CmlSpec(
    admin_password="env:CML_ADMIN_PASSWORD",  # noqa: S106  where it is, not what it is
    license_token="env:CML_LICENSE_TOKEN",  # noqa: S106  likewise
)


class LabOutline(msgspec.Struct, frozen=True, kw_only=True):
    """A lab in the short form of a timetable; memory and storage are in GB."""

    name: str
    track: str
    cpu: float
    memory: float
    storage: float = 0
    nodes: int = 1
    ports: int = 0


class PoolOutline(msgspec.Struct, frozen=True, kw_only=True):
    """A pool in the short form of a timetable; without a name it is called after its track."""

    track: str
    name: str = ""
    instance_type: str
    region: str = "us-east-1"
    least: int = 0
    most: int = 10
    price: Decimal | None = None
    spot: bool = False
    policy: ScalingPolicy = ScalingPolicy.SCHEDULED
    warm: int = 0


def definition_of(lab: LabOutline) -> LabletDefinition:
    """Return the definition of a lab."""
    spec = LabletDefinitionSpec(
        version=VERSION,
        state=DefinitionState.ACTIVE,
        lab_track=lab.track,
        topology=Topology(uri=_PLACEHOLDER_URI),
        resource_requirements=ResourceRequirements(cpu_cores=lab.cpu, memory_gb=lab.memory, storage_gb=lab.storage),
        node_count=lab.nodes,
        port_template=_port_template(lab.ports),
        max_duration_minutes=_MONTH_MINUTES,
    )
    return LabletDefinition(metadata=Metadata(name=f"{lab.name}:{VERSION}"), spec=spec)


def pool_of(machines: PoolOutline) -> tuple[WorkerTemplate, LabWorkerPool]:
    """Return a pool, and the template of its workers."""
    worker = LabWorkerSpec(
        lab_track=machines.track,
        aws=AwsSpec(
            region=machines.region,
            instance_type=machines.instance_type,
            market="spot" if machines.spot else "on_demand",
            ami_name_pattern=IMAGE_PATTERN,
            nested_virtualization=".metal" not in machines.instance_type,
        ),
        cml=_CML_SPEC,
    )
    name = machines.name or pool_name(machines.track)
    template = WorkerTemplateSpec(worker=worker, name_prefix=name, price_per_hour_usd=machines.price)
    spec = LabWorkerPoolSpec(
        lab_track=machines.track,
        template=name,
        min_workers=machines.least,
        max_workers=machines.most,
        warm_workers=machines.warm,
        policy=machines.policy,
    )
    metadata = Metadata(name=name)
    return WorkerTemplate(metadata=metadata, spec=template), LabWorkerPool(metadata=metadata, spec=spec)


def pool_name(track: str) -> str:
    """Name a pool after its track. A track that is no valid name gets a checksum of its text appended."""
    if NAME.fullmatch(track):
        return track
    plain = _NOT_IN_NAMES.sub("-", track.lower())[:40].strip("-.:")
    return f"{plain or 'pool'}-{crc32(track.encode()):08x}"


def launchable_template(template: WorkerTemplate) -> WorkerTemplate:
    """Return a template whose machines the simulated cloud can launch."""
    aws = template.spec.worker.aws
    plain = AwsSpec(
        region=aws.region,
        instance_type=aws.instance_type,
        instance_type_alternatives=aws.instance_type_alternatives,
        market=aws.market,
        ami_name_pattern=IMAGE_PATTERN,
        root_volume=aws.root_volume,
        nested_virtualization=aws.nested_virtualization,
    )
    cml = msgspec.structs.replace(
        template.spec.worker.cml, admin_password=_CML_SPEC.admin_password, license_token=_CML_SPEC.license_token
    )
    worker = msgspec.structs.replace(template.spec.worker, aws=plain, cml=cml)
    return WorkerTemplate(
        metadata=_fresh_metadata(template.metadata), spec=msgspec.structs.replace(template.spec, worker=worker)
    )


def fresh_pool(pool: LabWorkerPool) -> LabWorkerPool:
    """Return a pool as it was applied, without its status."""
    return LabWorkerPool(metadata=_fresh_metadata(pool.metadata), spec=pool.spec)


def bookable_definition(definition: LabletDefinition, stored: StoredArtifact) -> LabletDefinition:
    """Return a definition whose labs use a stored file. Which CML it needs is not part of a plan."""
    spec = msgspec.structs.replace(
        definition.spec,
        topology=Topology(uri=stored.uri, digest=stored.digest),
        node_count=definition.spec.node_count or 1,
        port_template=None,
        ami_requirements=AmiRequirements(),
        state=DefinitionState.ACTIVE,
    )
    return LabletDefinition(metadata=_fresh_metadata(definition.metadata), spec=spec)


def lab_file(definition: LabletDefinition) -> bytes:
    """Return a lab's file: nodes side by side, and as many consoles as the lab has ports."""
    spec = definition.spec
    ports = len(spec.port_template or {})
    nodes = max(1, min(spec.node_count or 1, _MOST_NODES), -(-ports // _CONSOLES_PER_NODE))
    text = "".join(_node_yaml(number, range(number, ports, nodes)) for number in range(nodes))
    title = definition.metadata.name.partition(":")[0]
    return f"lab: {{version: 0.3.0, title: '{title}'}}\nnodes:\n{text}links: []\n".encode()


def _node_yaml(number: int, ports: Sequence[int]) -> str:
    tags = ", ".join(f"'serial:{2000 + port}:{line}'" for line, port in enumerate(ports))
    return (
        f"- {{id: n{number}, label: R{number}, node_definition: alpine, x: {40 * number}, y: 0, tags: [{tags}], "
        "configuration: '', interfaces: []}\n"
    )


def _port_template(count: int) -> PortTemplate:
    return {f"port-{number}": PortUse(kind="placeholder") for number in range(count)}


def _fresh_metadata(metadata: Metadata) -> Metadata:
    return Metadata(name=metadata.name, labels=metadata.labels)
