"""Labs and their nodes on a simulated CML: what may be done to them in which state, and how long it takes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec import UNSET, UnsetType

from lcm.sim.cloud.effects import OnLab, unheard
from lcm.sim.cml.definitions import KINDS, Kind, unknown
from lcm.sim.cml.faults import bad, missing
from lcm.sim.cml.pace import Pace
from lcm.sim.cml.parts import ACTIVE, Files, Lab, Life, Node, State
from lcm.sim.cml.rest.documents import Configuration, ConfigurationFile, LabUpdate, NodeSpec, NodeUpdate
from lcm.sim.cml.telemetry import Telemetry
from lcm.sim.cml.wiring import behind_nat, drop_interface, fill_slots, tidy_tags
from lcm.sim.time.chance import Chance, Ids

T = TypeVar("T")

QUEUE_SECONDS: Final = 2.0
STOP_SECONDS: Final = 4.0
WIPE_SECONDS: Final = 1.0
_FIXED_ONCE_STARTED: Final = (
    "configuration",
    "ram",
    "cpus",
    "cpu_limit",
    "data_volume",
    "boot_disk_size",
    "image_definition",
)


@dataclass(frozen=True, slots=True)
class Core:
    """What every part of the engine shares."""

    pace: Pace
    ids: Ids
    chance: Chance
    telemetry: Telemetry
    on_effect: OnLab = unheard


class Labs:
    """All labs of one machine."""

    def __init__(self, core: Core, room: Callable[[Sequence[Node]], None]) -> None:
        self._core = core
        self._room = room
        self._labs: dict[str, Lab] = {}
        self._never: dict[str, int] = {}
        self.kinds: dict[str, Kind] = dict(KINDS)

    def __iter__(self) -> Iterator[Lab]:
        return iter(list(self._labs.values()))

    def __len__(self) -> int:
        return len(self._labs)

    def nodes(self) -> Iterator[Node]:
        """Go through all nodes of all labs."""
        return (node for lab in self._labs.values() for node in lab.nodes.values())

    def get(self, ref: str) -> Lab:
        """Find a lab or refuse."""
        if ref not in self._labs:
            raise missing("Lab", ref)
        return self._labs[ref]

    def recall(self, labs: Iterable[Lab]) -> None:
        """Hold the labs that another one held."""
        self._labs = {lab.id: lab for lab in labs}

    def create(self, owner_id: str, wanted: LabUpdate) -> Lab:
        """Make an empty lab."""
        now = self._core.pace.now()
        title = wanted.title if wanted.title is not UNSET else f"Lab at {now:%a %H:%M %p}"
        lab = Lab(self._core.ids(), str(title), owner_id, now, now)
        self._core.on_effect("import", lab.title)
        self._labs[lab.id] = lab
        return self.change(lab, wanted)

    def change(self, lab: Lab, wanted: LabUpdate) -> Lab:
        """Change a lab's texts, owner or associations."""
        lab.title = _given(wanted.title, lab.title)
        lab.description = _given(wanted.description, lab.description)
        lab.notes = _given(wanted.notes, lab.notes)
        lab.owner_id = _given(wanted.owner, lab.owner_id)
        lab.associations = _given(wanted.associations, lab.associations)
        return self._touch(lab)

    def delete(self, lab: Lab) -> None:
        """Remove a lab that is stopped and wiped."""
        if any(not _is(node, State.DEFINED, self._age()) for node in lab.nodes.values()):
            raise bad("The lab must be stopped and wiped before it can be deleted.")
        self._core.on_effect("remove", lab.title)
        del self._labs[lab.id]

    def start(self, lab: Lab) -> None:
        """Start every node that does not run."""
        nodes = [node for node in lab.nodes.values() if self._startable(node)]
        self._room(nodes)
        self._core.on_effect("start lab", lab.title)
        self._core.telemetry.record("start_lab", lab_id=lab.id)
        self._launch(lab, nodes)

    def stop(self, lab: Lab) -> None:
        """Stop every node that runs."""
        if self._halt(lab, lab.nodes.values()):
            self._core.on_effect("stop lab", lab.title)
            self._core.telemetry.record("stop_lab", lab_id=lab.id)

    def wipe(self, lab: Lab) -> None:
        """Forget the disks of all nodes of a stopped lab."""
        if any(node.life.state(self._age()) in ACTIVE for node in lab.nodes.values()):
            raise bad("The lab must be stopped before it can be wiped.")
        self._core.on_effect("wipe", lab.title)
        self._erase(lab, lab.nodes.values())

    def node(self, lab: Lab, ref: str) -> Node:
        """Find a node or refuse."""
        if ref not in lab.nodes:
            raise missing("Node", ref)
        return lab.nodes[ref]

    def add_node(self, lab: Lab, spec: NodeSpec, *, populate: bool = False) -> Node:
        """Add a node, with the interfaces of its kind if wanted."""
        node = self.place(lab, spec)
        count = node.kind.shipped.default_interfaces if populate else 0
        fill_slots(node, count - 1, [self._core.ids() for _ in range(count)])
        tidy_tags(lab, self._core.ids)
        self._touch(lab)
        return node

    def place(self, lab: Lab, spec: NodeSpec) -> Node:
        """Put a node into a lab, without interfaces and without looking at its tags."""
        node = Node(self._core.ids(), lab.id, spec, self.kind(spec.node_definition), Life(self._age()))
        node.files, spec.configuration = files(spec.configuration, node.kind), None
        lab.nodes[node.id] = node
        return node

    def change_node(self, lab: Lab, node: Node, wanted: NodeUpdate) -> None:
        """Change a node; what it boots with only before its first start or after a wipe."""
        given = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not UNSET}
        if not _is(node, State.DEFINED, self._age()) and not given.keys().isdisjoint(_FIXED_ONCE_STARTED):
            raise bad("The node must be wiped before this can be changed.")
        node.pinned_compute_id = given.pop("pinned_compute_id", node.pinned_compute_id)
        if "configuration" in given:
            node.files = files(given.pop("configuration"), node.kind)
        for name, value in given.items():
            setattr(node.spec, name, value)
        tidy_tags(lab, self._core.ids)
        self._touch(lab)

    def delete_node(self, lab: Lab, node: Node) -> None:
        """Remove a wiped node with its interfaces and links."""
        if not _is(node, State.DEFINED, self._age()):
            raise bad("The node must be stopped and wiped before it can be deleted.")
        for interface in list(node.interfaces):
            drop_interface(lab, interface)
        del lab.nodes[node.id]
        tidy_tags(lab, self._core.ids)
        self._touch(lab)

    def start_node(self, lab: Lab, node: Node) -> None:
        """Start one node unless it runs."""
        if self._startable(node):
            self._room([node])
            self._launch(lab, [node])

    def stop_node(self, lab: Lab, node: Node) -> None:
        """Stop one node unless it stands still."""
        self._halt(lab, [node])

    def wipe_node(self, lab: Lab, node: Node) -> None:
        """Forget the disks of one stopped node."""
        if node.life.state(self._age()) in ACTIVE:
            raise bad("The node must be stopped before it can be wiped.")
        self._erase(lab, [node])

    def extract(self, node: Node) -> None:
        """Store what a booted node's configuration is now."""
        if _is(node, State.BOOTED, self._age()) and node.running is not None:
            node.files = node.running

    def kind(self, definition: str) -> Kind:
        """Return what is known about a node definition; of an unknown one, something ordinary."""
        return self.kinds.get(definition) or unknown(definition)

    def never_boot(self, label: str, times: int = 1) -> None:
        """Let nodes of this label hang in STARTED the next times that they are started."""
        self._never[label] = times

    def force(self, node: Node, state: State) -> None:
        """Put a node into a state by force, as a crash inside it or a lost compute host does."""
        self._fall(node, state, self._age())

    def lose(self, lab: Lab) -> None:
        """Let a lab disappear whatever its state, as with a damaged disk."""
        self._core.telemetry.forget_plans(set(lab.nodes), self._age())
        del self._labs[lab.id]

    def power_off(self, age: float | None = None) -> None:
        """Stop everything at once, as the machine's power does, now or at an age that has passed."""
        at = self._age() if age is None else age
        for node in self.nodes():
            if node.life.state(at) in ACTIVE:
                self._fall(node, State.STOPPED, at)

    def _fall(self, node: Node, state: State, age: float) -> None:
        self._core.telemetry.forget_plans({node.id}, age)
        node.life.plan(age, (0.0, state))

    def _launch(self, lab: Lab, nodes: list[Node]) -> None:
        self._core.telemetry.forget_plans({node.id for node in nodes}, self._age())
        for node in nodes:
            self._boot(lab, node)
        self._address(lab, nodes)

    def _boot(self, lab: Lab, node: Node) -> None:
        jitter = self._core.chance.uniform(0.8, 1.25)
        queued, booted = QUEUE_SECONDS * jitter, (QUEUE_SECONDS + node.kind.boot_seconds) * jitter
        steps = [(0.0, State.QUEUED), (queued, State.STARTED)]
        if self._never.get(node.spec.label, 0) > 0:
            self._never[node.spec.label] -= 1
        else:
            steps.append((booted, State.BOOTED))
        node.life.plan(self._age(), *steps)
        for category, (after, _) in zip(("queue_node", "start_node", "boot_node"), steps, strict=False):
            self._core.telemetry.record(category, after=after, lab_id=lab.id, node_id=node.id)

    def _address(self, lab: Lab, nodes: list[Node]) -> None:
        nat = behind_nat(lab)
        taken = {one.ip4 for node in self.nodes() for one in node.interfaces if one.ip4}
        free = (ip for host in range(2, 255) if (ip := f"192.168.255.{host}") not in taken)
        for node in nodes:
            node.console_keys = node.console_keys or [self._core.ids() for _ in range(node.kind.shipped.serial_ports)]
            node.vnc_key = node.vnc_key or (self._core.ids() if node.kind.shipped.has_vnc else None)
            for one in node.interfaces:
                one.operational_mac = one.mac_address or one.operational_mac or self._mac()
                one.ip4 = next(free, None) if one in nat and not one.ip4 else one.ip4

    def _mac(self) -> str:
        bits = self._core.chance.getrandbits(24)
        return f"52:54:00:{bits >> 16:02x}:{bits >> 8 & 255:02x}:{bits & 255:02x}"

    def _halt(self, lab: Lab, nodes: Iterable[Node]) -> bool:
        age = self._age()
        running = [node for node in nodes if node.life.state(age) in ACTIVE and not node.life.leaving(age)]
        self._core.telemetry.forget_plans({node.id for node in running}, age)
        for node in running:
            node.life.plan(age, (STOP_SECONDS, State.STOPPED))
            self._core.telemetry.record("stop_node", after=STOP_SECONDS, lab_id=lab.id, node_id=node.id)
        return bool(running)

    def _erase(self, lab: Lab, nodes: Iterable[Node]) -> None:
        age = self._age()
        for node in nodes:
            if not _is(node, State.STOPPED, age) or node.life.leaving(age):
                continue
            node.life.plan(age, (WIPE_SECONDS, State.DEFINED))
            node.running, node.console_keys, node.vnc_key = None, [], None
            for one in node.interfaces:
                one.operational_mac = one.ip4 = None
            self._core.telemetry.record("wipe_node", after=WIPE_SECONDS, lab_id=lab.id, node_id=node.id)

    def _startable(self, node: Node) -> bool:
        age = self._age()
        return node.life.leaving(age) or node.life.state(age) not in ACTIVE

    def _age(self) -> float:
        return self._core.pace.age()

    def _touch(self, lab: Lab) -> Lab:
        lab.modified = self._core.pace.now()
        return lab


def files(configuration: Configuration, kind: Kind) -> Files:
    """Turn any of the forms in which a configuration may be given into files."""
    match configuration:
        case None:
            return []
        case str(text):
            return [ConfigurationFile(kind.main_file, text)]
        case ConfigurationFile() as one:
            return files([one], kind)
        case several:
            return [ConfigurationFile(kind.main_file if f.name == "Main" else f.name, f.content) for f in several]


def _is(node: Node, state: State, age: float) -> bool:
    return node.life.state(age) is state


def _given(wanted: T | UnsetType, present: T) -> T:
    return present if isinstance(wanted, UnsetType) else wanted
