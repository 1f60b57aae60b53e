"""The node definitions that CML 2.9 ships, with their default sizes, read from `model/data/node_definitions.json`.

Used to derive a lab's needs while no worker has reported its own definitions, and by the simulator. A disk of 0 means
that CML declares none: the node runs on a thin clone of its image.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from lcm.model.base.data_files import read_data_file
from lcm.model.base.resource import Part


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


@cache
def shipped_nodes() -> Mapping[str, ShippedNode]:
    """Return every shipped definition by its id."""
    nodes = read_data_file("lcm.model", "node_definitions.json", tuple[ShippedNode, ...])
    return {node.definition_id: node for node in nodes}
