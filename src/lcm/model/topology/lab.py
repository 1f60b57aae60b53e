"""Lab files: what they contain, what they need, and the same file with other ports.

Admission parses a file when its definition is published; the session controller rewrites it before each import.
Always rewrite the original, never a rewritten file: a placeholder is gone once it has become a number. `patch_document`
changes scalars in place and verifies that nothing else changed. `TopologyReport` is the answer to an upload.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import Final

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Count, Part
from lcm.model.base.yaml_tree import BYTE_ORDER_MARK, YamlMapping, YamlScalar, kind_of, quote_text
from lcm.model.kinds.definition import PortTemplate, ResourceRequirements
from lcm.model.topology.lab_text import FieldReader, LabText, read_lab_text
from lcm.model.topology.node_definitions import NO_SIZE, NodeSize
from lcm.model.topology.ports import LAST_PORT, PLACEHOLDER, PortIndex, RewriteSite, read_ports


def patch_document(
    document: LabText, sites: Iterable[RewriteSite], ports: Mapping[str, int], verified: set[object] | None = None
) -> bytes:
    """Return the file with each site's new value in place of its old one, in the same quotes.

    `verified` holds the forms in which this very document was written before without changing anything else. It was
    parsed then: where one digit of a port stands in a tag, any other reads the same.
    """
    ordered = sorted(sites, key=lambda site: site.scalar.start)
    _check_ports(ordered, ports)
    pieces: list[str] = []
    form: list[object] = []
    done = 0
    for site in ordered:
        start, end = document.span(site.scalar)
        written = _write_site(site, document.text[start:end], ports)
        pieces += (document.text[done:start], written)
        form.append((len(written), *(len(str(ports[name])) for name in site.parts[1::2])))
        done = end
    pieces.append(document.text[done:])
    data = ((BYTE_ORDER_MARK if document.has_bom else "") + "".join(pieces)).encode()
    if verified is None or tuple(form) not in verified:
        _verify_rest(document, read_lab_text(data), {site.scalar.ordinal: site for site in ordered}, ports)
    if verified is not None:
        verified.add(tuple(form))
    return data


def _check_ports(sites: Iterable[RewriteSite], ports: Mapping[str, int]) -> None:
    """Refuse to write a port that is missing, invalid, or given to another name."""
    faults: list[Fault] = []
    owners: dict[int, str] = {}
    for site in sites:
        for name in site.parts[1::2]:
            port = ports.get(name)
            if port is None:
                faults.append(
                    _site_fault(site, f"no port was given for {name!r}", "allocate all ports of the template")
                )
            elif not 0 < port <= LAST_PORT:
                faults.append(_site_fault(site, f"{port} for {name!r} is no port", f"use 1 to {LAST_PORT}"))
            elif owners.setdefault(port, name) != name:
                problem = f"port {port} was given to {owners[port]!r} and to {name!r}"
                faults.append(_site_fault(site, problem, "allocate each port once"))
    if faults:
        raise Invalid(*faults)


def _write_site(site: RewriteSite, source: str, ports: Mapping[str, int]) -> str:
    """Return a site in the notation that it had, with the new ports."""
    scalar, value = site.scalar, site.value(ports)
    if source.count(scalar.value) == 1:
        written = source.replace(scalar.value, value)
    else:
        written = PLACEHOLDER.sub(lambda found: str(ports.get(found[1], found[0])), source)
    changed_kind = scalar.plain and kind_of(value) != scalar.kind
    # A lone unquoted ${PORT_X} is text to YAML, but the number that replaces it would not be: add quotes.
    return f"'{written}'" if changed_kind else written


def _verify_rest(before: LabText, after: LabText, sites: Mapping[int, RewriteSite], ports: Mapping[str, int]) -> None:
    """Compare both files event by event, and the text between: only the sites may differ."""
    for number, (old, new) in enumerate(zip_longest(before.happenings, after.happenings)):
        if isinstance(old, YamlScalar) and isinstance(new, YamlScalar):
            site = sites.get(number)
            if site is None:
                assert (new.value, new.plain) == (old.value, old.plain), f"line {old.line} changed"
            elif new.value != site.value(ports) or new.kind != old.kind:
                problem = f"{quote_text(old.value)} is written in a way that cannot be changed in place"
                raise Invalid(_site_fault(site, problem, "write it on one line, plain or in quotes, without escapes"))
        else:
            assert old == new, f"the structure changed at {old} or {new}"
    assert _text_outside(before, sites) == _text_outside(after, sites), "a comment or a space changed"


def _text_outside(document: LabText, sites: Iterable[int]) -> list[str]:
    """Return the text of a file without the sites, which may change."""
    pieces: list[str] = []
    done = 0
    for number in sites:
        scalar = document.happenings[number]
        assert isinstance(scalar, YamlScalar)
        start, end = document.span(scalar)
        pieces.append(document.text[done:start])
        done = end
    return [*pieces, document.text[done:]]


def _site_fault(site: RewriteSite, problem: str, remedy: str) -> Fault:
    where = f"line {site.scalar.line}"
    return Fault(f"{where}: {site.path}" if site.path else where, problem, remedy)


SCHEMA_VERSIONS: Final = ("0.0.1", "0.0.2", "0.0.3", "0.0.4", "0.0.5", "0.1.0", "0.2.0", "0.2.1", "0.2.2", "0.3.0")
MAX_TAG_LENGTH: Final = 64
MAX_FAULTS: Final = 100
_LABS_KEPT: Final = 32
_MOST_KEPT_BYTES: Final = 128 * 1024
"""Larger files are parsed again each time."""
_MB_PER_GB: Final = 1024


class LabNode(Part):
    """A node of a lab. None means inherited from its definition; `cpu_limit_percent` is not a number of cores."""

    node_id: str
    label: str
    node_definition: str
    line: int
    image_definition: str = ""
    cpus: int | None = None
    cpu_limit_percent: int | None = None
    ram_mb: int | None = None
    boot_disk_gb: int | None = None
    data_volume_gb: int | None = None
    tags: tuple[str, ...] = ()
    x: float = 0.0
    y: float = 0.0


class LabLink(Part):
    """A link between two nodes, by their ids."""

    n1: str
    n2: str


class ParsedLab(Part):
    """The contents of a lab file."""

    version: str
    title: str
    description: str
    nodes: tuple[LabNode, ...]
    links: tuple[LabLink, ...]
    port_template: PortTemplate

    @property
    def node_count(self) -> int:
        """The number of nodes, switches and connectors included."""
        return len(self.nodes)

    @property
    def link_count(self) -> int:
        """The number of links."""
        return len(self.links)

    @property
    def node_definitions(self) -> tuple[str, ...]:
        """The node definitions that a worker must have, each once."""
        return tuple(sorted({node.node_definition for node in self.nodes}))

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports that its tags hold now; placeholders hold none."""
        return read_ports(((node.label, node.tags) for node in self.nodes), self.port_template)


def parse_lab(data: bytes) -> ParsedLab:
    """Parse a lab file. Raises TooLarge, or Invalid with the faults found, each with its line."""
    return _parse_document(read_lab_text(data))[0]


def compute_needs(
    lab: ParsedLab, definitions: Mapping[str, NodeSize], *, otherwise: NodeSize | None = None
) -> ResourceRequirements:
    """Return the sum of what the nodes of a lab need. Where a node sets no value its definition's counts.

    A CPU limit in percent does not make a node smaller: it may still be given all of its cores. Raises
    Invalid for nodes of unknown size unless `otherwise` says which size to assume for them.
    """
    faults: list[Fault] = []
    cpus = ram_mb = disk_gb = 0.0
    for number, node in enumerate(lab.nodes):
        size = definitions.get(node.node_definition, otherwise)
        if size is None:
            if node.cpus is None or node.ram_mb is None:
                problem = f"the size of a {node.node_definition!r} is not known"
                remedy = (
                    f"set cpus and ram on the node, publish it with --node-size {node.node_definition}=CPUS/MEMORY, "
                    "name its size in NODE_SIZES, or give the definition's resource_requirements"
                )
                faults.append(Fault(f"line {node.line}: nodes[{number}].node_definition", problem, remedy))
            size = NO_SIZE
        cpus += size.cpus if node.cpus is None else node.cpus
        ram_mb += size.ram_mb if node.ram_mb is None else node.ram_mb
        disk_gb += size.boot_disk_gb if node.boot_disk_gb is None else node.boot_disk_gb
        disk_gb += size.data_volume_gb if node.data_volume_gb is None else node.data_volume_gb
    if faults:
        raise Invalid(*faults)
    return ResourceRequirements(cpu_cores=cpus, memory_gb=ram_mb / _MB_PER_GB, storage_gb=disk_gb)


def rewrite(data: bytes, ports: Mapping[str, int]) -> bytes:
    """Return the file with these ports by name, identical byte for byte everywhere else.

    Ports that the file does not name are ignored. Raises what `parse_lab` raises, and Invalid when a port is
    missing, is not a valid port or is given twice, or when a tag is written in a way that cannot be changed.
    """
    read = _read_original if len(data) <= _MOST_KEPT_BYTES else _read_original.__wrapped__
    document, survey, verified = read(data)
    return patch_document(document, survey.sites.values(), ports, verified)


@lru_cache(_LABS_KEPT)
def _read_original(data: bytes) -> tuple[LabText, PortIndex, set[object]]:
    """Parse a file that is to be rewritten, once for all sessions of its definition that start."""
    document = read_lab_text(data)
    return document, _parse_document(document)[1], set()


def _parse_document(document: LabText) -> tuple[ParsedLab, PortIndex]:
    fields, survey = FieldReader(), PortIndex()
    root = fields.table(document.root, "document")
    if root is None:
        raise Invalid(*fields.faults)
    version, title, description = _read_heading(fields, root)
    interfaces: dict[str, frozenset[str]] = {}
    nodes = tuple(_read_nodes(fields, survey, interfaces, root))
    links = tuple(_read_links(fields, interfaces, root))
    for path, table in fields.tables(root, "smart_annotations"):
        tag, label = table.entries.get("tag"), table.entries.get("label")
        if isinstance(tag, YamlScalar):
            survey.add_annotation(path, tag, label if isinstance(label, YamlScalar) else None)
    survey.add_placeholders(document)
    if faults := (*fields.faults, *survey.faults):
        left_off = len(faults) - MAX_FAULTS
        more = [Fault("document", f"and {left_off} faults more", "correct these first")] if left_off > 0 else []
        raise Invalid(*faults[:MAX_FAULTS], *more)
    lab = ParsedLab(
        version=version,
        title=title,
        description=description,
        nodes=nodes,
        links=links,
        port_template=survey.template,
    )
    return lab, survey


def _read_heading(fields: FieldReader, root: YamlMapping) -> tuple[str, str, str]:
    tree = root.entries.get("lab")
    if tree is None:
        fields.fault(root, "lab", "missing", "add `lab:` with the schema's version and a title")
        return "", "", ""
    heading = fields.table(tree, "lab")
    if heading is None:
        return "", "", ""
    version = fields.text(heading, "version", "lab", most=64, required=True)
    if version and version not in SCHEMA_VERSIONS:
        remedy = f"export the lab from CML 2.9 or older; known are {SCHEMA_VERSIONS[0]} to {SCHEMA_VERSIONS[-1]}"
        fields.fault(heading.entries["version"], "lab.version", f"{version} is no known schema version", remedy)
    fields.text(heading, "notes", "lab", most=32_768)
    return (
        version,
        fields.text(heading, "title", "lab", most=64),
        fields.text(heading, "description", "lab", most=4_096),
    )


def _read_nodes(
    fields: FieldReader, survey: PortIndex, interfaces: dict[str, frozenset[str]], root: YamlMapping
) -> Iterator[LabNode]:
    for path, table in fields.tables(root, "nodes", required=True):
        tags = list(_read_tags(fields, path, table))
        node = _read_node(fields, path, table, tags)
        if node.node_id in interfaces:
            problem = f"there is another node of the id {node.node_id!r}"
            fields.fault(table, f"{path}.id", problem, "give each node an id of its own")
        interfaces[node.node_id] = frozenset(
            fields.text(interface, "id", where, most=64, required=True)
            for where, interface in fields.tables(table, "interfaces", path)
        )
        survey.add_node(node.label, tags)
        yield node


def _read_node(fields: FieldReader, path: str, table: YamlMapping, tags: Iterable[tuple[str, YamlScalar]]) -> LabNode:
    return LabNode(
        x=fields.number(table, "x", path),
        y=fields.number(table, "y", path),
        node_id=fields.text(table, "id", path, most=64, required=True),
        label=fields.text(table, "label", path, most=128, required=True),
        node_definition=fields.text(table, "node_definition", path, most=250, required=True),
        line=table.line,
        image_definition=fields.text(table, "image_definition", path, most=250),
        cpus=fields.whole(table, "cpus", path, least=1, most=128),
        cpu_limit_percent=fields.whole(table, "cpu_limit", path, least=20, most=100),
        ram_mb=fields.whole(table, "ram", path, least=1, most=1_048_576),
        boot_disk_gb=fields.whole(table, "boot_disk_size", path, least=1, most=4_096),
        data_volume_gb=fields.whole(table, "data_volume", path, least=1, most=4_096),
        tags=tuple(tag.value for _, tag in tags),
    )


def _read_tags(fields: FieldReader, path: str, table: YamlMapping) -> Iterator[tuple[str, YamlScalar]]:
    for where, tree in fields.members(table, "tags", path):
        # A placeholder may be longer than the port that replaces it.
        value = tree.value if isinstance(tree, YamlScalar) else ""
        most = MAX_TAG_LENGTH + len(value) - len(PLACEHOLDER.sub(str(LAST_PORT), value))
        if isinstance(tree, YamlMapping):
            remedy = "write serial:5041 without a space after the colon"
            fields.fault(tree, where, "a mapping, not a tag", remedy)
        elif (tag := fields.plain_text(tree, where, most=most)) is not None:
            yield where, tag


def _read_links(fields: FieldReader, interfaces: Mapping[str, frozenset[str]], root: YamlMapping) -> Iterator[LabLink]:
    for path, link in fields.tables(root, "links", required=True):
        ends = []
        for node_key, interface_key in (("n1", "i1"), ("n2", "i2")):
            node = fields.text(link, node_key, path, most=64, required=True)
            interface = fields.text(link, interface_key, path, most=64, required=True)
            if node and node not in interfaces:
                problem = f"there is no node of the id {node!r}"
                fields.fault(link, f"{path}.{node_key}", problem, "link nodes by their ids")
            elif node and interface and interface not in interfaces[node]:
                problem = f"node {node!r} has no interface of the id {interface!r}"
                fields.fault(link, f"{path}.{interface_key}", problem, "link interfaces by their ids")
            ends.append(node)
        yield LabLink(n1=ends[0], n2=ends[1])


class TopologyFault(Part):
    """Something about a lab file that its author should know; the file can be used nevertheless."""

    path: str
    problem: str
    remedy: str = ""


class DrawnNode(Part):
    """A node as a picture of the lab shows it."""

    id: str
    label: str
    definition: str
    x: float
    y: float


class LabGraph(Part):
    """A lab as a picture shows it."""

    nodes: tuple[DrawnNode, ...]
    links: tuple[LabLink, ...]


def graph_of(lab: ParsedLab) -> LabGraph:
    """Return the nodes and links of a lab, each where its author put it."""
    nodes = (
        DrawnNode(id=one.node_id, label=one.label, definition=one.node_definition, x=one.x, y=one.y)
        for one in lab.nodes
    )
    return LabGraph(nodes=tuple(nodes), links=lab.links)


class DefinitionTopology(Part):
    """The lab file of a definition, and a picture of it; null for labs that are not CML's."""

    text: str
    graph: LabGraph | None = None


class TopologyReport(Part):
    """A stored lab file and its contents.

    `needs` is null when the size of a node is unknown; `faults` says of which.
    """

    uri: str
    digest: str
    size_bytes: Count
    title: str
    node_count: Count
    link_count: Count
    needs: ResourceRequirements | None
    port_template: PortTemplate
    node_definitions: tuple[str, ...]
    graph: LabGraph = LabGraph(nodes=(), links=())
    faults: tuple[TopologyFault, ...] = ()
