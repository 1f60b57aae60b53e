"""The data of a simulated CML: labs, nodes, interfaces, links, and the timeline of a node's states.

A node's state is a pure function of its past and planned state changes and of the machine's age, so nothing ticks.
The rules are in `sim.cml.labs` and `sim.cml.wiring`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Self

from lcm.sim.cml.definitions import NodeKind
from lcm.sim.cml.rest.documents import Associations, ConfigurationFile, Json, NodeSpec

_MOST_PAST_CHANGES: Final = 12


class NodeState(StrEnum):
    """CML's states of a node; links and interfaces know the first two and STARTED only."""

    DEFINED = "DEFINED_ON_CORE"
    STOPPED = "STOPPED"
    QUEUED = "QUEUED"
    STARTED = "STARTED"
    BOOTED = "BOOTED"
    DISCONNECTED = "DISCONNECTED"


ACTIVE: Final = frozenset({NodeState.QUEUED, NodeState.STARTED, NodeState.BOOTED, NodeState.DISCONNECTED})
RUNNING: Final = frozenset({NodeState.STARTED, NodeState.BOOTED})
_STABLE: Final = frozenset({NodeState.DEFINED, NodeState.STOPPED, NodeState.BOOTED})


class NodeTimeline:
    """A node's changes of state by age; the last may be in the future."""

    __slots__ = ("_changes",)

    def __init__(self, age: float, state: NodeState = NodeState.DEFINED) -> None:
        self._changes: list[tuple[float, NodeState]] = [(age, state)]

    @property
    def changes(self) -> Sequence[tuple[float, NodeState]]:
        """Every change that is still known; another timeline can be made from them."""
        return self._changes

    @classmethod
    def from_changes(cls, changes: Iterable[tuple[float, NodeState]]) -> Self:
        """Make a timeline of these changes."""
        (age, state), *later = changes
        made = cls(age, state)
        made._changes.extend(later)
        return made

    def state(self, age: float) -> NodeState:
        """Return the state at an age."""
        for since, state in reversed(self._changes):
            if since <= age:
                return state
        return self._changes[0][1]

    def plan(self, age: float, *steps: tuple[float, NodeState]) -> None:
        """Drop future changes, and change state after each of these numbers of simulated seconds."""
        self._changes = [change for change in self._changes if change[0] <= age][-_MOST_PAST_CHANGES:]
        self._changes.extend((age + delay, state) for delay, state in steps)

    def next_change(self, age: float) -> float:
        """Return the age at which the state changes next, if nothing else is planned."""
        return min((since for since, _ in self._changes if since > age), default=math.inf)

    def is_settled(self, age: float) -> bool:
        """Return whether it has reached the state that it was asked for."""
        since, state = self._changes[-1]
        return since <= age and state in _STABLE

    def is_stopping(self, age: float) -> bool:
        """Return whether it is on its way to STOPPED or DEFINED."""
        since, state = self._changes[-1]
        return since > age and state in {NodeState.STOPPED, NodeState.DEFINED}

    def age_entered(self, state: NodeState) -> float | None:
        """Return the age at which it last entered, or will enter, a state; None if it did not."""
        for since, entered in reversed(self._changes):
            if entered is state:
                return since
        return None


Files = list[ConfigurationFile]


@dataclass(slots=True, eq=False)
class Interface:
    """An interface of a node. Its operational address is assigned at the first start and erased by a wipe."""

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
    """A node: its specification, its running configuration, and its timeline."""

    id: str
    lab_id: str
    spec: NodeSpec
    kind: NodeKind
    life: NodeTimeline
    files: Files = field(default_factory=list)
    running: Files | None = None
    """The configuration inside the node since its last start; None before the first."""
    saved: Files | None = None
    """The configuration on its disk, which it starts with again; None without a disk: the stored one is put there."""
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
class LabLink:
    """A link between two interfaces."""

    id: str
    label: str
    a: Interface
    b: Interface
    conditioning: Json = field(default_factory=dict)
    down: bool = False


@dataclass(slots=True, eq=False)
class SimLab:
    """A lab with everything in it."""

    id: str
    title: str
    owner_id: str
    created: datetime
    modified: datetime
    description: str = ""
    notes: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    links: dict[str, LabLink] = field(default_factory=dict)
    annotations: dict[str, Json] = field(default_factory=dict)
    smart_annotations: dict[str, Json] = field(default_factory=dict)
    associations: Associations = field(default_factory=Associations)

    def interface(self, ref: str) -> Interface | None:
        """Return an interface by its id; None when there is none."""
        return next((one for node in self.nodes.values() for one in node.interfaces if one.id == ref), None)

    def link_of(self, interface: Interface) -> LabLink | None:
        """Return the link that an interface is on; None when there is none."""
        return next((link for link in self.links.values() if link.a is interface or link.b is interface), None)

    def node_states(self, age: float) -> dict[str, NodeState]:
        """Return the states of its nodes, by their ids."""
        return {node.id: node.life.state(age) for node in self.nodes.values()}

    def state(self, age: float) -> NodeState:
        """Return the lab's state, which follows from its nodes' states."""
        states = {node.life.state(age) for node in self.nodes.values()}
        if states - {NodeState.DEFINED, NodeState.STOPPED}:
            return NodeState.STARTED
        return NodeState.STOPPED if NodeState.STOPPED in states else NodeState.DEFINED

    def is_converged(self, age: float) -> bool:
        """Return whether every node has reached the state that it was asked for."""
        return all(node.life.is_settled(age) for node in self.nodes.values())
