"""The documents a scenario stands for: templates, pools, definitions and their labs, as an operator applies them."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.definition import DefinitionState, LabletDefinition, LabletDefinitionSpec, ResourceRequirements, Topology
from lcm.model.kinds import Resource
from lcm.model.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.resource import Metadata
from lcm.model.worker import AwsSpec, CmlSpec, LabWorkerSpec
from lcm.providers.artifacts import Stored
from lcm.sim.world.scenario import Lab, Pool

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
