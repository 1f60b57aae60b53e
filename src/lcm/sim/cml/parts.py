"""The things a simulated CML holds: labs, nodes, interfaces, links. Plain data; the rules stand elsewhere."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lcm.sim.cml.definitions import Kind
from lcm.sim.cml.documents import Associations, ConfigurationFile, NodeSpec
from lcm.sim.cml.life import Life, State

Json = dict[str, Any]
Files = list[ConfigurationFile]


@dataclass(slots=True, eq=False)
class Interface:
    """An interface of a node; its operational address is made up at the first start and forgotten by a wipe."""

    id: str
    node_id: str
    label: str
    type: str
    slot: int | None
    mac_address: str | None = None
    operational_mac: str | None = None
    ip4: str | None = None
    down: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """A node: what was asked for, what it runs with, and its life."""

    id: str
    lab_id: str
    spec: NodeSpec
    kind: Kind
    life: Life
    files: Files = field(default_factory=list)
    running: Files | None = None
    """The configuration inside the running node, once it differs from the stored one."""
    interfaces: list[Interface] = field(default_factory=list)
    console_keys: list[str] = field(default_factory=list)
    vnc_key: str | None = None
    pinned_compute_id: str | None = None

    @property
    def cpus(self) -> int:
        return self.spec.cpus or int(self.kind.shipped.cpus)

    @property
    def cpu_limit(self) -> int:
        return self.spec.cpu_limit or 100

    @property
    def ram_mb(self) -> int:
        return self.spec.ram or self.kind.shipped.ram_mb

    @property
    def boot_disk_gb(self) -> int:
        return self.spec.boot_disk_size or int(self.kind.shipped.boot_disk_gb)

    @property
    def data_volume_gb(self) -> int:
        return self.spec.data_volume or int(self.kind.shipped.data_volume_gb)


@dataclass(slots=True, eq=False)
class Link:
    """A link between two interfaces."""

    id: str
    label: str
    a: Interface
    b: Interface
    conditioning: Json = field(default_factory=dict)
    down: bool = False


@dataclass(slots=True, eq=False)
class Lab:
    """A lab with everything in it."""

    id: str
    title: str
    owner_id: str
    created: datetime
    modified: datetime
    description: str = ""
    notes: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    annotations: dict[str, Json] = field(default_factory=dict)
    smart_annotations: dict[str, Json] = field(default_factory=dict)
    associations: Associations = field(default_factory=Associations)

    def interface(self, ref: str) -> Interface | None:
        """Find an interface by its id."""
        return next((one for node in self.nodes.values() for one in node.interfaces if one.id == ref), None)

    def link_of(self, interface: Interface) -> Link | None:
        """Find the link that an interface is on."""
        return next((link for link in self.links.values() if link.a is interface or link.b is interface), None)

    def state(self, age: float) -> State:
        """Return the lab's state, which follows from its nodes'."""
        states = {node.life.state(age) for node in self.nodes.values()}
        if states - {State.DEFINED, State.STOPPED}:
            return State.STARTED
        return State.STOPPED if State.STOPPED in states else State.DEFINED

    def converged(self, age: float) -> bool:
        """Tell whether every node has reached the state that it was asked for."""
        return all(node.life.settled(age) for node in self.nodes.values())
