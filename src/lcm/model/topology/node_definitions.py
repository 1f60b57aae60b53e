"""The node definitions that CML 2.9 ships, with their default sizes, read from `model/data/node_definitions.json`.

Used to derive a lab's needs where neither a setting nor a worker's CML says otherwise, and by the simulator. A disk of
0 means that CML declares none: the node runs on a thin clone of its image.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from lcm.model.base.data_files import read_data_file
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.quantity import parse_memory
from lcm.model.base.resource import Count, Part, shorten_text


class NodeSize(Part):
    """The size of a node whose lab file sets none: whole or fractional cores, and its two disks."""

    cpus: float = 0.0
    ram_mb: int = 0
    boot_disk_gb: float = 0.0
    data_volume_gb: float = 0.0


class ShippedNode(NodeSize, kw_only=True):
    """One node definition of CML: its size, driver, ports and interfaces."""

    definition_id: str
    nature: str
    driver: str
    cpus: float
    ram_mb: int
    boot_timeout_seconds: int
    serial_ports: int
    interfaces: tuple[str, ...]
    default_interfaces: int
    has_loopback: bool = False
    has_vnc: bool = False
    image_definitions: tuple[str, ...] = ()

    @property
    def disk_gb(self) -> float:
        """Both disks together."""
        return self.boot_disk_gb + self.data_volume_gb


NO_SIZE: Final = NodeSize()
NODE_SIZE_PATTERN: Final = (
    r"[^\s=,/]{1,250}=[0-9]{1,3}(\.[0-9]{1,3})?/[1-9][0-9]{0,6}(Mi|Gi|M|G)(/[1-9][0-9]{0,6}(Mi|Gi|M|G))?"
)
NODE_SIZE_FORM: Final = "NAME=CPUS/MEMORY or NAME=CPUS/MEMORY/DISK, such as gitlab=4/8G/60G"
_MB_PER_GB: Final = 1024


def parse_node_size(text: str) -> tuple[str, NodeSize]:
    """Parse the size of a node definition as people write it. Raises Invalid."""
    if not re.fullmatch(NODE_SIZE_PATTERN, text):
        raise Invalid(Fault("node size", f"{shorten_text(text)!r} is no size of a node", f"write {NODE_SIZE_FORM}"))
    name, _, size = text.partition("=")
    cpus, memory, *disk = size.split("/")
    disk_gb = parse_memory(disk[0]) / _MB_PER_GB if disk else 0.0
    return name, NodeSize(cpus=float(cpus), ram_mb=parse_memory(memory), boot_disk_gb=disk_gb)


@cache
def shipped_nodes() -> Mapping[str, ShippedNode]:
    """Return every shipped definition by its id."""
    nodes = read_data_file("lcm.model", "node_definitions.json", tuple[ShippedNode, ...])
    return {node.definition_id: node for node in nodes}


def size_of(node: NodeSize) -> NodeSize:
    """Return only the size of a node definition that says more."""
    return NodeSize(**{name: getattr(node, name) for name in NodeSize.__struct_fields__})


def sizes_unlike_shipped(sizes: Mapping[str, NodeSize]) -> Mapping[str, NodeSize]:
    """Return the sizes that a CML as shipped does not have: of its own definitions, and of changed ones.

    A definition without any size says nothing about what its nodes get.
    """
    known = shipped_nodes()
    return {
        name: size
        for name, size in sorted(sizes.items())
        if size != NO_SIZE and (name not in known or size_of(known[name]) != size)
    }


class KnownNode(Part):
    """A node definition that is known: the size of its nodes, None if nobody says it, and how many workers have it."""

    definition_id: str
    size: NodeSize | None = None
    workers: Count = 0


def list_known_nodes(
    reports: Iterable[tuple[Iterable[str], Mapping[str, NodeSize]]], declared: Mapping[str, NodeSize]
) -> Sequence[KnownNode]:
    """Return every node definition that is known, by its id.

    `reports` are what CMLs said: the definitions of each, and the sizes that differ from the shipped ones. A size that
    the installation declares counts first, then what CMLs report, then what CML ships. Where reports differ, the
    larger value counts: a lab must fit wherever it is placed.
    """
    shipped, reported, workers = shipped_nodes(), dict[str, NodeSize](), Counter[str]()
    for names, own in reports:
        for name in names:
            workers[name] += 1
            size = own.get(name) or shipped.get(name)
            if size is not None:
                reported[name] = _larger_size(size, reported.get(name, NO_SIZE))
    sizes = {**{name: size_of(node) for name, node in shipped.items()}, **reported, **declared}
    names = sorted(sizes.keys() | workers.keys())
    return [KnownNode(definition_id=name, size=sizes.get(name), workers=workers[name]) for name in names]


def sizes_of(known: Iterable[KnownNode]) -> Mapping[str, NodeSize]:
    """Return the sizes among what is known of node definitions."""
    return {one.definition_id: one.size for one in known if one.size is not None}


def _larger_size(one: NodeSize, other: NodeSize) -> NodeSize:
    return NodeSize(**{name: max(getattr(one, name), getattr(other, name)) for name in NodeSize.__struct_fields__})
