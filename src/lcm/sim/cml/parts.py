"""The life of a simulated node: the moments at which its state changes, past and to come.

A state is a pure function of these moments and of the machine's age, so nothing needs to tick.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self

from lcm.sim.cml.definitions import Kind
from lcm.sim.cml.rest.documents import Associations, ConfigurationFile, NodeSpec

_KEPT: Final = 12


class State(StrEnum):
    """CML's states of a node; links and interfaces know the first two and STARTED only."""

    DEFINED = "DEFINED_ON_CORE"
    STOPPED = "STOPPED"
    QUEUED = "QUEUED"
    STARTED = "STARTED"
    BOOTED = "BOOTED"
    DISCONNECTED = "DISCONNECTED"


ACTIVE: Final = frozenset({State.QUEUED, State.STARTED, State.BOOTED, State.DISCONNECTED})
RUNNING: Final = frozenset({State.STARTED, State.BOOTED})
_RESTING: Final = frozenset({State.DEFINED, State.STOPPED, State.BOOTED})


class Life:
    """Changes of state by age, the last of them perhaps still to come."""

    __slots__ = ("_changes",)

    def __init__(self, age: float, state: State = State.DEFINED) -> None:
        self._changes: list[tuple[float, State]] = [(age, state)]

    @property
    def changes(self) -> Sequence[tuple[float, State]]:
        """Every change that is still known, from which another one can be made."""
        return self._changes

    @classmethod
    def of(cls, changes: Iterable[tuple[float, State]]) -> Self:
        """Make one with these changes."""
        (age, state), *later = changes
        made = cls(age, state)
        made._changes.extend(later)
        return made

    def state(self, age: float) -> State:
        """Return the state at an age."""
        for since, state in reversed(self._changes):
            if since <= age:
                return state
        return self._changes[0][1]

    def plan(self, age: float, *steps: tuple[float, State]) -> None:
        """Forget what was still to come, and change state after each of these numbers of simulated seconds."""
        self._changes = [change for change in self._changes if change[0] <= age][-_KEPT:]
        self._changes.extend((age + delay, state) for delay, state in steps)

    def settled(self, age: float) -> bool:
        """Tell whether it has reached the state that it was asked for."""
        since, state = self._changes[-1]
        return since <= age and state in _RESTING

    def leaving(self, age: float) -> bool:
        """Tell whether it is on its way to stand still."""
        since, state = self._changes[-1]
        return since > age and state in {State.STOPPED, State.DEFINED}

    def entered(self, state: State) -> float | None:
        """Return the age at which it last came, or will come, into a state."""
        return next((since for since, entered in reversed(self._changes) if entered is state), None)


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
