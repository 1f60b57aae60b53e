"""Lab files: what is in them, what they need, and the same file with other ports.

Admission parses a file when its definition is published; the lablet controller rewrites it before each import. The
original is always rewritten, never a rewritten one: a placeholder is gone once it has become a number.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lcm.model.definition import PortTemplate, ResourceRequirements
from lcm.model.errors import Fault, Invalid
from lcm.model.node_definitions import NO_SIZE, NodeSize
from lcm.model.resource import Part
from lcm.model.topology_fields import Fields
from lcm.model.topology_patch import patch
from lcm.model.topology_ports import LAST_PORT, PLACEHOLDER, Annotation, Survey, Tagged, ports_on
from lcm.model.topology_yaml import Document, Scalar, Table, Tree, read

VERSIONS: Final = ("0.0.1", "0.0.2", "0.0.3", "0.0.4", "0.0.5", "0.1.0", "0.2.0", "0.2.1", "0.2.2", "0.3.0")
LONGEST_TAG: Final = 64
MOST_FAULTS: Final = 100
_MB_PER_GB: Final = 1024


class LabNode(Part):
    """A node of a lab. What is None is inherited from its definition; `cpu_limit_percent` is no number of cores."""

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


class Lab(Part):
    """What a lab file says."""

    version: str
    title: str
    description: str
    nodes: tuple[LabNode, ...]
    link_count: int
    port_template: PortTemplate

    @property
    def node_count(self) -> int:
        """How many nodes it has, switches and connectors included."""
        return len(self.nodes)

    @property
    def node_definitions(self) -> tuple[str, ...]:
        """Which definitions a worker must know, each once."""
        return tuple(sorted({node.node_definition for node in self.nodes}))

    @property
    def ports(self) -> Mapping[str, int]:
        """Which ports its tags hold now; placeholders hold none."""
        return ports_on(((node.label, node.tags) for node in self.nodes), self.port_template)


def parse(data: bytes) -> Lab:
    """Read a lab file. Raises TooLarge, or Invalid with the faults found, each with its line."""
    return _surveyed(read(data)).lab


def needs(lab: Lab, definitions: Mapping[str, NodeSize], *, otherwise: NodeSize | None = None) -> ResourceRequirements:
    """Add up what a lab needs; a value that a node leaves unset is its definition's.

    A limit on CPU use in percent does not make a node smaller: it may still be given all of its cores. Raises Invalid
    for nodes of unknown size unless `otherwise` says what to take for them.
    """
    faults: list[Fault] = []
    cpus = ram_mb = disk_gb = 0.0
    for number, node in enumerate(lab.nodes):
        size = definitions.get(node.node_definition, otherwise)
        if size is None:
            faults += _unknown_size(node, f"line {node.line}: nodes[{number}].node_definition")
            size = NO_SIZE
        cpus += size.cpus if node.cpus is None else node.cpus
        ram_mb += size.ram_mb if node.ram_mb is None else node.ram_mb
        disk_gb += size.boot_disk_gb if node.boot_disk_gb is None else node.boot_disk_gb
        disk_gb += size.data_volume_gb if node.data_volume_gb is None else node.data_volume_gb
    if faults:
        raise Invalid(*faults)
    return ResourceRequirements(cpu_cores=cpus, memory_gb=ram_mb / _MB_PER_GB, storage_gb=disk_gb)


def rewrite(data: bytes, ports: Mapping[str, int]) -> bytes:
    """Give the file with these ports by name, the same byte for byte in every other place.

    Ports that the file does not name are ignored. Raises what `parse` raises, and Invalid when a port is missing, no
    port at all or given twice, or when a tag is written in a way that cannot be changed.
    """
    document = read(data)
    return patch(document, _surveyed(document).survey.sites.values(), ports)


class _Surveyed(NamedTuple):
    lab: Lab
    survey: Survey


def _unknown_size(node: LabNode, path: str) -> Iterator[Fault]:
    if node.cpus is None or node.ram_mb is None:
        problem = f"the size of a {node.node_definition!r} is not known"
        yield Fault(path, problem, "set cpus and ram on the node, or give the definition's resource_requirements")


def _surveyed(document: Document) -> _Surveyed:
    fields, survey = Fields(), Survey()
    root = fields.table(document.root, "document")
    if root is None:
        raise Invalid(*fields.faults)
    version, title, description = _heading(fields, root)
    interfaces: dict[str, frozenset[str]] = {}
    nodes = tuple(_nodes(fields, survey, interfaces, root))
    link_count = _links(fields, interfaces, root)
    for annotation in _annotations(fields, root):
        survey.add_annotation(annotation)
    survey.add_placeholders(document)
    if faults := (*fields.faults, *survey.faults):
        raise Invalid(*faults[:MOST_FAULTS], *_too_many(len(faults) - MOST_FAULTS))
    lab = Lab(
        version=version,
        title=title,
        description=description,
        nodes=nodes,
        link_count=link_count,
        port_template=survey.template,
    )
    return _Surveyed(lab, survey)


def _too_many(left_off: int) -> Iterator[Fault]:
    if left_off > 0:
        yield Fault("document", f"and {left_off} faults more", "correct these first")


def _heading(fields: Fields, root: Table) -> tuple[str, str, str]:
    tree = root.entries.get("lab")
    if tree is None:
        fields.fault(root, "lab", "missing", "add `lab:` with the schema's version and a title")
        return "", "", ""
    heading = fields.table(tree, "lab")
    if heading is None:
        return "", "", ""
    version = fields.text(heading, "version", "lab", most=64, required=True)
    if version and version not in VERSIONS:
        remedy = f"export the lab from CML 2.9 or older; known are {VERSIONS[0]} to {VERSIONS[-1]}"
        fields.fault(heading.entries["version"], "lab.version", f"{version} is no known schema version", remedy)
    fields.text(heading, "notes", "lab", most=32_768)
    return (
        version,
        fields.text(heading, "title", "lab", most=64),
        fields.text(heading, "description", "lab", most=4_096),
    )


def _nodes(fields: Fields, survey: Survey, interfaces: dict[str, frozenset[str]], root: Table) -> Iterator[LabNode]:
    for path, table in fields.tables(root, "nodes", required=True):
        tags = list(_tags(fields, path, table))
        node = _node(fields, path, table, tags)
        if node.node_id in interfaces:
            problem = f"there is another node of the id {node.node_id!r}"
            fields.fault(table, f"{path}.id", problem, "give each node an id of its own")
        interfaces[node.node_id] = frozenset(
            fields.text(interface, "id", where, most=64, required=True)
            for where, interface in fields.tables(table, "interfaces", path)
        )
        survey.add_node(Tagged(node.label, tags))
        yield node


def _node(fields: Fields, path: str, table: Table, tags: Iterable[tuple[str, Scalar]]) -> LabNode:
    fields.number(table, "x", path)
    fields.number(table, "y", path)
    return LabNode(
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


def _tags(fields: Fields, path: str, table: Table) -> Iterator[tuple[str, Scalar]]:
    for where, tree in fields.members(table, "tags", path):
        if isinstance(tree, Table):
            remedy = "write serial:5041 without a space after the colon"
            fields.fault(tree, where, "a mapping, not a tag", remedy)
        elif (tag := fields.plain_text(tree, where, most=_longest_tag(tree))) is not None:
            yield where, tag


def _longest_tag(tree: Tree) -> int:
    """Allow a tag what a placeholder in it is longer than a port."""
    value = tree.value if isinstance(tree, Scalar) else ""
    return LONGEST_TAG + len(value) - len(PLACEHOLDER.sub(str(LAST_PORT), value))


def _links(fields: Fields, interfaces: Mapping[str, frozenset[str]], root: Table) -> int:
    links = list(fields.tables(root, "links", required=True))
    for path, link in links:
        for node_key, interface_key in (("n1", "i1"), ("n2", "i2")):
            node = fields.text(link, node_key, path, most=64, required=True)
            interface = fields.text(link, interface_key, path, most=64, required=True)
            if node and node not in interfaces:
                problem = f"there is no node of the id {node!r}"
                fields.fault(link, f"{path}.{node_key}", problem, "link nodes by their ids")
            elif node and interface and interface not in interfaces[node]:
                problem = f"node {node!r} has no interface of the id {interface!r}"
                fields.fault(link, f"{path}.{interface_key}", problem, "link interfaces by their ids")
    return len(links)


def _annotations(fields: Fields, root: Table) -> Iterator[Annotation]:
    for path, table in fields.tables(root, "smart_annotations"):
        tag = table.entries.get("tag")
        label = table.entries.get("label")
        if isinstance(tag, Scalar):
            yield Annotation(path, tag, label if isinstance(label, Scalar) else None)
