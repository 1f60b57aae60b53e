"""Lab files as they come in: stored, looked through, and what a definition says nothing of derived from them.

`local` stores what people upload; `drafts` completes new definitions. A file that could not be rewritten with the ports
of a session is refused, with the line, before anybody books it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from lcm.model.base.errors import Fault, Gone, Invalid, Stuck, TooLarge
from lcm.model.kinds.definition import LabletDefinition, LabletDefinitionSpec, ResourceRequirements
from lcm.model.kinds.worker import LabType
from lcm.model.topology.lab import Lab, TopologyFault, TopologyReport, needs, parse, rewrite
from lcm.model.topology.node_definitions import SHIPPED
from lcm.model.topology.ports import OPEN_PORTS
from lcm.model.topology.yaml_tree import MOST_BYTES
from lcm.providers.protocols.artifacts import Artifacts, digest_of

_URI: Final = "spec.topology.uri"
_DIGEST: Final = "spec.topology.digest"
_OF_CML: Final = frozenset({LabType.CML, LabType.HYBRID})
"""Types whose topology is a lab file of CML."""
_QUICK_BYTES: Final = 100_000
_SHOWN: Final = 5


async def upload(artifacts: Artifacts, data: bytes) -> TopologyReport:
    """Store a lab file; Invalid, with lines, for one that cannot be read or rewritten. May be repeated."""
    lab = await _looked(data)
    needed, faults = _needs(lab)
    stored = await artifacts.put(data)
    return TopologyReport(
        uri=stored.uri,
        digest=stored.digest,
        size_bytes=stored.size_bytes,
        title=lab.title,
        node_count=lab.node_count,
        link_count=lab.link_count,
        needs=needed,
        port_template=lab.port_template,
        node_definitions=lab.node_definitions,
        faults=tuple(TopologyFault(path=one.path, problem=one.problem, remedy=one.remedy) for one in faults),
    )


def _needs(lab: Lab) -> tuple[ResourceRequirements | None, Sequence[Fault]]:
    try:
        return needs(lab, SHIPPED), ()
    except Invalid as error:
        return None, error.faults


async def completed(artifacts: Artifacts, definition: LabletDefinition) -> LabletDefinition:
    """Fill in what a definition says nothing of: digest, ports, nodes and needs. What it says stays as it is.

    Raises Invalid when its file is not there, cannot be read or rewritten, or is not what the definition says.
    """
    if definition.spec.lab_type not in _OF_CML:
        return definition
    data = await _fetched(lambda: _read(artifacts, definition.spec))
    try:
        spec = _derived(definition.spec, await _looked(data), data)
    except Invalid as error:
        raise Invalid(*map(_within, error.faults)) from error
    return msgspec.structs.replace(definition, spec=spec)


def looked_through(data: bytes) -> Lab:
    """Read a lab file and rewrite it once, for trial; raises TooLarge, or Invalid with the faults and their lines."""
    lab = parse(data)
    if not lab.node_count:
        raise Invalid(Fault("nodes", "there are none, so that its labs would never run", "add a node"))
    names = sorted(lab.port_template)
    if len(names) > len(OPEN_PORTS):
        raise Invalid(Fault("nodes", f"{len(names)} ports", f"a worker has {len(OPEN_PORTS)}; use fewer port tags"))
    rewrite(data, dict(zip(names, OPEN_PORTS, strict=False)))
    return lab


async def _looked(data: bytes) -> Lab:
    """Look through a file; a large one beside the loop, which others need meanwhile."""
    return looked_through(data) if len(data) <= _QUICK_BYTES else await asyncio.to_thread(looked_through, data)


def _within(fault: Fault) -> Fault:
    """Say of a fault of a file where the definition has it."""
    return (
        fault if fault.path.startswith("spec.") else Fault(f"spec.topology: {fault.path}", fault.problem, fault.remedy)
    )


def _derived(spec: LabletDefinitionSpec, lab: Lab, data: bytes) -> LabletDefinitionSpec:
    _hold_ports(spec, lab)
    return msgspec.structs.replace(
        spec,
        topology=msgspec.structs.replace(spec.topology, digest=spec.topology.digest or digest_of(data)),
        resource_requirements=spec.resource_requirements or needs(lab, SHIPPED),
        node_count=lab.node_count if spec.node_count is None else spec.node_count,
        port_template=lab.port_template if spec.port_template is None else spec.port_template,
    )


def _hold_ports(spec: LabletDefinitionSpec, lab: Lab) -> None:
    """Refuse a template without a port of the file: its sessions could not be given that."""
    missing = sorted(
        lab.port_template.keys() - (lab.port_template if spec.port_template is None else spec.port_template)
    )
    if missing:
        rest = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        problem = f"lacks ports of the topology: {', '.join(missing[:_SHOWN])}{rest}"
        raise Invalid(Fault("spec.port_template", problem, "name them, or leave port_template out to derive it"))


async def _read(artifacts: Artifacts, spec: LabletDefinitionSpec) -> bytes:
    return await artifacts.get(spec.topology.uri, digest=spec.topology.digest, limit_bytes=MOST_BYTES)


async def _fetched(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Read a file, and say of what cannot be read what is to be done about the definition."""
    try:
        return await read()
    except Gone as error:
        raise Invalid(Fault(_URI, str(error), "upload the file first, or correct the address")) from error
    except TooLarge as error:
        raise Invalid(Fault(_URI, str(error), "use a smaller lab")) from error
    except Invalid as error:
        raise Invalid(*(Fault(_URI, f"{one.path}: {one.problem}", one.remedy) for one in error.faults)) from error
    except Stuck as error:
        where = _DIGEST if error.reason == "DigestMismatch" else _URI
        raise Invalid(Fault(where, str(error), "correct the definition, or have the file made readable")) from error
