"""Lab files as they come in: stored, checked, and used to fill in what a definition leaves out.

`control.plane.local_operations` stores what people upload; `control.admission.admit` completes new definitions. A file
that could not be rewritten with the ports of a session is refused, with the line, before anybody books it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lcm.control.objects.lab_files import check_lab_file, run_on_file
from lcm.control.objects.records import find_record, read_entry
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.base.errors import Fault, Gone, Invalid, Refused, Stuck, TooLarge
from lcm.model.kinds.definition import LabletDefinition, LabletDefinitionSpec, Topology
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.saved_lab import as_continued
from lcm.model.kinds.worker import LabType, LabWorker
from lcm.model.topology.lab import (
    DefinitionTopology,
    LabGraph,
    ParsedLab,
    TopologyFault,
    TopologyReport,
    compute_needs,
    graph_of,
    parse_lab,
)
from lcm.model.topology.lab_text import MAX_BYTES
from lcm.model.topology.node_definitions import KnownNode, NodeSize, list_known_nodes, sizes_of
from lcm.providers.protocols.artifacts import Artifacts, digest_of
from lcm.store.base import Store, scan_all

_URI: Final = "spec.topology.uri"
_DIGEST: Final = "spec.topology.digest"
_CML_TYPES: Final = frozenset({LabType.CML, LabType.HYBRID})
"""Lab types whose topology is a CML lab file."""
_DRAWN_ITEMS: Final = 50_000
"""Nodes and links of the pictures that are kept, about twenty megabytes."""
_SHOWN_PORTS: Final = 5
NO_PORTS: Final = Fault(
    "nodes",
    "none has a port tag, so nobody can reach the lab",
    "tag nodes with ports, such as serial:5041, vnc:5901 or pat:tcp:5022:22",
)
"""What the author of a lab without ports should know. The lab can be used nevertheless."""


async def read_node_definitions(store: Store, declared: Mapping[str, NodeSize]) -> Sequence[KnownNode]:
    """Read what is known of node definitions, by their ids: declared sizes, what workers reported, what CML ships."""
    page = await scan_all(store, KINDS[LabWorker.__name__].prefix)
    facts = [read_entry(entry, LabWorker).status.cml for entry in page.entries]
    reports = [(one.node_definitions, one.node_sizes) for one in facts if one.node_definitions is not None]
    return list_known_nodes(reports, declared)


async def upload_topology(
    artifacts: Artifacts, store: Store, data: bytes, declared: Mapping[str, NodeSize]
) -> TopologyReport:
    """Store a lab file. Raise Invalid, with lines, for one that cannot be read or rewritten. May be repeated."""
    lab = await run_on_file(data, check_lab_file)
    needed, faults = None, [] if lab.port_template else [NO_PORTS]
    try:
        needed = compute_needs(lab, sizes_of(await read_node_definitions(store, declared)))
    except Invalid as error:
        faults += error.faults
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
        graph=graph_of(lab),
        faults=tuple(TopologyFault(path=one.path, problem=one.problem, remedy=one.remedy) for one in faults),
    )


class LabGraphs:
    """Pictures of lab files, by their digests. What a digest stands for never changes; the least used are forgotten."""

    def __init__(self, most_items: int = _DRAWN_ITEMS) -> None:
        self._most = most_items
        self._known: OrderedDict[str, LabGraph | None] = OrderedDict()
        self._items = 0
        self._drawing = asyncio.Lock()
        """One at a time, so that many who look at one lab have it parsed once, and authors wait for one at most."""

    async def read(self, artifacts: Artifacts, topology: Topology) -> LabGraph | None:
        """Return the picture of a file, which is fetched if need be; None if it cannot be read. Raise Gone or Stuck."""
        if topology.digest in self._known:
            return self._recall(topology.digest)
        return await self.draw(await _read_file(artifacts, topology))

    async def draw(self, data: bytes) -> LabGraph | None:
        """Return the picture of a file; None if it cannot be read."""
        digest = digest_of(data)
        async with self._drawing:
            if digest not in self._known:
                self._keep(digest, await run_on_file(data, _draw_lab))
            return self._recall(digest)

    def _recall(self, digest: str) -> LabGraph | None:
        self._known.move_to_end(digest)
        return self._known[digest]

    def _keep(self, digest: str, graph: LabGraph | None) -> None:
        self._known[digest] = graph
        self._items += _count_items(graph)
        while self._items > self._most and len(self._known) > 1:
            self._items -= _count_items(self._known.popitem(last=False)[1])


def _draw_lab(data: bytes) -> LabGraph | None:
    try:
        return graph_of(parse_lab(data))
    except (Invalid, TooLarge):  # one from before a rule was made
        return None


def _count_items(graph: LabGraph | None) -> int:
    return 1 + (len(graph.nodes) + len(graph.links) if graph else 0)


async def read_topology(artifacts: Artifacts, graphs: LabGraphs, definition: LabletDefinition) -> DefinitionTopology:
    """Read the lab file of a definition. Raise Gone or Stuck when it is not there as the definition says."""
    data = await _read_file(artifacts, definition.spec.topology)
    graph = await graphs.draw(data) if definition.spec.lab_type in _CML_TYPES else None
    return DefinitionTopology(text=data.decode(errors="replace"), graph=graph)


async def _read_file(artifacts: Artifacts, topology: Topology) -> bytes:
    return await artifacts.get(topology.uri, digest=topology.digest, limit_bytes=MAX_BYTES)


async def read_session_graph(artifacts: Artifacts, graphs: LabGraphs, writer: Writer, ref: SessionRef) -> LabGraph:
    """Read the nodes and links of the lab that a session starts with; whoever sees the session sees those.

    Raise Gone when there is no such session for this caller, or its lab file is not there any more; Refused for a lab
    that is not CML's.
    """
    session = await writer.read(ref)
    record = await find_record(writer.store, Ref(LabletDefinition, session.spec.definition, ref.namespace))
    if record is None:
        raise Gone(f"the definition of session {ref.name} is gone")
    spec = as_continued(record.resource, session.status.continues).spec
    graph = await graphs.read(artifacts, spec.topology) if spec.lab_type in _CML_TYPES else None
    if graph is None:
        raise Refused(f"there is no picture of {session.spec.definition}: its file is not a CML lab that can be read")
    return graph


async def complete_definition(
    artifacts: Artifacts, store: Store, definition: LabletDefinition, declared: Mapping[str, NodeSize]
) -> LabletDefinition:
    """Fill in what a definition leaves out: digest, ports, nodes, needs, node definitions. What it says stays as it is.

    Raise Invalid when its file is missing, cannot be read or rewritten, or is not what the definition says.
    """
    if definition.spec.lab_type not in _CML_TYPES:
        return definition
    data = await _fetch_topology(artifacts, definition.spec.topology)
    if definition.spec.topology.uri == f"artifact://{digest_of(data)}":
        await artifacts.put(data)  # it counts as stored now, so that no sweep removes it before this is committed
    needs = definition.spec.resource_requirements
    sizes = sizes_of(await read_node_definitions(store, declared)) if needs is None else {}
    try:
        spec = _derive_spec(definition.spec, await run_on_file(data, check_lab_file), data, sizes)
    except Invalid as error:
        faults = [
            one if one.path.startswith("spec.") else Fault(f"spec.topology: {one.path}", one.problem, one.remedy)
            for one in error.faults
        ]
        raise Invalid(*faults) from error
    return msgspec.structs.replace(definition, spec=spec)


def _derive_spec(
    spec: LabletDefinitionSpec, lab: ParsedLab, data: bytes, sizes: Mapping[str, NodeSize]
) -> LabletDefinitionSpec:
    _check_ports(spec, lab)
    asked = spec.ami_requirements
    return msgspec.structs.replace(
        spec,
        topology=msgspec.structs.replace(spec.topology, digest=spec.topology.digest or digest_of(data)),
        resource_requirements=spec.resource_requirements or compute_needs(lab, sizes),
        node_count=lab.node_count if spec.node_count is None else spec.node_count,
        port_template=lab.port_template if spec.port_template is None else spec.port_template,
        ami_requirements=msgspec.structs.replace(
            asked, node_definitions=asked.node_definitions or lab.node_definitions
        ),
    )


def _check_ports(spec: LabletDefinitionSpec, lab: ParsedLab) -> None:
    """Raise Invalid for a port template that lacks a port of the file: sessions could not be given that port."""
    missing = sorted(
        lab.port_template.keys() - (lab.port_template if spec.port_template is None else spec.port_template)
    )
    if missing:
        rest = f" and {len(missing) - _SHOWN_PORTS} more" if len(missing) > _SHOWN_PORTS else ""
        problem = f"lacks ports of the topology: {', '.join(missing[:_SHOWN_PORTS])}{rest}"
        raise Invalid(Fault("spec.port_template", problem, "name them, or leave port_template out to derive it"))


async def _fetch_topology(artifacts: Artifacts, topology: Topology) -> bytes:
    """Read a file. Raise Invalid, with what to correct in the definition, when it cannot be read."""
    try:
        return await _read_file(artifacts, topology)
    except Gone as error:
        raise Invalid(Fault(_URI, str(error), "upload the file first, or correct the address")) from error
    except TooLarge as error:
        raise Invalid(Fault(_URI, str(error), "use a smaller lab")) from error
    except Invalid as error:
        raise Invalid(*(Fault(_URI, f"{one.path}: {one.problem}", one.remedy) for one in error.faults)) from error
    except Stuck as error:
        where = _DIGEST if error.reason == "DigestMismatch" else _URI
        raise Invalid(Fault(where, str(error), "correct the definition, or make the file readable")) from error
