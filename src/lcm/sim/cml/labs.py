"""Labs and their nodes on a simulated CML: what may be done to them in which state, and how long it takes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from lcm.sim.cloud.effects import OnLabEffect, ignore_effect
from lcm.sim.cml.definitions import KINDS, NodeKind, custom_kind
from lcm.sim.cml.faults import bad_request, find_known
from lcm.sim.cml.pace import CmlPace
from lcm.sim.cml.parts import ACTIVE, Files, Node, NodeState, NodeTimeline, SimLab
from lcm.sim.cml.rest.documents import SIZES, Configuration, ConfigurationFile, LabUpdate, NodeSpec, NodeUpdate
from lcm.sim.cml.telemetry import CmlTelemetry
from lcm.sim.cml.wiring import drop_interface, fill_slots, interfaces_behind_nat, sync_smart_annotations
from lcm.sim.time.chance import Chance, Ids

QUEUE_SECONDS: Final = 2.0
STOP_SECONDS: Final = 4.0
WIPE_SECONDS: Final = 1.0
_FIXED_ONCE_STARTED: Final = frozenset({"configuration", "image_definition", *SIZES})


@dataclass(frozen=True, slots=True)
class CmlCore:
    """What every part of the engine shares."""

    pace: CmlPace
    ids: Ids
    chance: Chance
    telemetry: CmlTelemetry
    on_effect: OnLabEffect = ignore_effect


class Labs:
    """All labs of one machine."""

    def __init__(self, core: CmlCore, room: Callable[[Sequence[Node]], None]) -> None:
        self._core = core
        self._room = room
        self._labs: dict[str, SimLab] = {}
        self._never: dict[str, int] = {}
        self._steady_until = -math.inf
        self._number = 0
        self.kinds: dict[str, NodeKind] = dict(KINDS)

    def __iter__(self) -> Iterator[SimLab]:
        return iter(list(self._labs.values()))

    def __len__(self) -> int:
        return len(self._labs)

    def nodes(self) -> Iterator[Node]:
        """Return all nodes of all labs."""
        return (node for lab in self._labs.values() for node in lab.nodes.values())

    def state_number(self) -> int:
        """Return a number that changes with every change of a lab, a node, or a node's state."""
        age = self._age()
        if age >= self._steady_until:
            self._steady_until = min((node.life.next_change(age) for node in self.nodes()), default=math.inf)
            self._number += 1
        return self._number

    def get(self, ref: str) -> SimLab:
        """Return a lab; refuse an unknown one."""
        return find_known("Lab", self._labs, ref)

    def find(self, ref: str) -> SimLab | None:
        """Return a lab; None when there is none."""
        return self._labs.get(ref)

    def restore_labs(self, labs: Iterable[SimLab]) -> None:
        """Restore the labs of another CML."""
        self._labs = {lab.id: lab for lab in labs}
        self._mark_changed()

    def create(self, owner_id: str, wanted: LabUpdate) -> SimLab:
        """Make an empty lab."""
        now = self._core.pace.now()
        title = wanted.title if wanted.title is not UNSET else f"Lab at {now:%a %H:%M %p}"
        lab = SimLab(self._core.ids(), str(title), owner_id, now, now)
        self._core.on_effect("import", lab.title)
        self._labs[lab.id] = lab
        return self.change(lab, wanted)

    def change(self, lab: SimLab, wanted: LabUpdate) -> SimLab:
        """Change a lab's texts, owner or associations."""
        given = wanted.given()
        given.pop("groups", None)  # what older clients send instead of associations
        lab.owner_id = given.pop("owner", lab.owner_id)
        for name, value in given.items():
            setattr(lab, name, value)
        return self._mark_modified(lab)

    def delete(self, lab: SimLab) -> None:
        """Remove a lab that is stopped and wiped."""
        if any(node.life.state(self._age()) is not NodeState.DEFINED for node in lab.nodes.values()):
            raise bad_request("The lab must be stopped and wiped before it can be deleted.")
        self._core.on_effect("remove", lab.title)
        del self._labs[lab.id]
        self._mark_changed()

    def start(self, lab: SimLab) -> None:
        """Start every node that does not run."""
        nodes = [node for node in lab.nodes.values() if self._is_startable(node)]
        self._room(nodes)
        self._core.on_effect("start lab", lab.title)
        self._core.telemetry.record("start_lab", lab_id=lab.id)
        self._launch(lab, nodes)

    def stop(self, lab: SimLab) -> None:
        """Stop every node that runs."""
        if self._stop_nodes(lab, lab.nodes.values()):
            self._core.on_effect("stop lab", lab.title)
            self._core.telemetry.record("stop_lab", lab_id=lab.id)

    def wipe(self, lab: SimLab) -> None:
        """Erase the disks of all nodes of a stopped lab."""
        if any(node.life.state(self._age()) in ACTIVE for node in lab.nodes.values()):
            raise bad_request("The lab must be stopped before it can be wiped.")
        self._core.on_effect("wipe", lab.title)
        self._wipe_nodes(lab, lab.nodes.values())

    def node(self, lab: SimLab, ref: str) -> Node:
        """Return a node; refuse an unknown one."""
        return find_known("Node", lab.nodes, ref)

    def add_node(self, lab: SimLab, spec: NodeSpec, *, populate: bool = False) -> Node:
        """Add a node, with its kind's interfaces if `populate` is set."""
        node = self.put_node(lab, spec)
        count = node.kind.shipped.default_interfaces if populate else 0
        fill_slots(node, count - 1, [self._core.ids() for _ in range(count)])
        sync_smart_annotations(lab, self._core.ids)
        self._mark_modified(lab)
        return node

    def put_node(self, lab: SimLab, spec: NodeSpec) -> Node:
        """Put a node into a lab, without interfaces and without updating tags."""
        node = Node(self._core.ids(), lab.id, spec, self.kind(spec.node_definition), NodeTimeline(self._age()))
        node.files, spec.configuration = to_files(spec.configuration, node.kind), None
        lab.nodes[node.id] = node
        self._mark_changed()
        return node

    def change_node(self, lab: SimLab, node: Node, wanted: NodeUpdate) -> None:
        """Change a node; its boot parameters only before its first start or after a wipe."""
        given = wanted.given()
        if node.life.state(self._age()) is not NodeState.DEFINED and not given.keys().isdisjoint(_FIXED_ONCE_STARTED):
            raise bad_request("The node must be wiped before this can be changed.")
        node.pinned_compute_id = given.pop("pinned_compute_id", node.pinned_compute_id)
        if "configuration" in given:
            node.files = to_files(given.pop("configuration"), node.kind)
        for name, value in given.items():
            setattr(node.spec, name, value)
        sync_smart_annotations(lab, self._core.ids)
        self._mark_modified(lab)

    def delete_node(self, lab: SimLab, node: Node) -> None:
        """Remove a wiped node with its interfaces and links."""
        if node.life.state(self._age()) is not NodeState.DEFINED:
            raise bad_request("The node must be stopped and wiped before it can be deleted.")
        for interface in list(node.interfaces):
            drop_interface(lab, interface)
        del lab.nodes[node.id]
        sync_smart_annotations(lab, self._core.ids)
        self._mark_modified(lab)

    def start_node(self, lab: SimLab, node: Node) -> None:
        """Start one node unless it runs."""
        if self._is_startable(node):
            self._room([node])
            self._launch(lab, [node])

    def stop_node(self, lab: SimLab, node: Node) -> None:
        """Stop one node unless it is stopped."""
        self._stop_nodes(lab, [node])

    def wipe_node(self, lab: SimLab, node: Node) -> None:
        """Erase the disks of one stopped node."""
        if node.life.state(self._age()) in ACTIVE:
            raise bad_request("The node must be stopped before it can be wiped.")
        self._wipe_nodes(lab, [node])

    def extract(self, node: Node) -> None:
        """Store a booted node's present configuration."""
        if node.life.state(self._age()) is NodeState.BOOTED and node.running is not None:
            node.files = node.running

    def kind(self, definition: str) -> NodeKind:
        """Return the kind of a node definition; a default kind for an unknown one."""
        return self.kinds.get(definition) or custom_kind(definition)

    def never_boot(self, label: str, times: int = 1) -> None:
        """Make nodes of this label hang in STARTED for their next starts."""
        self._never[label] = times

    def force_state(self, node: Node, state: NodeState) -> None:
        """Force a node into a state, as a crash inside it or a lost compute host does."""
        self._drop_to(node, state, self._age())

    def lose_lab(self, lab: SimLab) -> None:
        """Make a lab disappear whatever its state, as with a damaged disk."""
        self._core.telemetry.drop_planned(set(lab.nodes), self._age())
        del self._labs[lab.id]
        self._mark_changed()

    def power_off(self, age: float | None = None) -> None:
        """Stop everything at once, as a power loss does, now or at a past age."""
        at = self._age() if age is None else age
        for node in self.nodes():
            if node.life.state(at) in ACTIVE:
                self._drop_to(node, NodeState.STOPPED, at)

    def _drop_to(self, node: Node, state: NodeState, age: float) -> None:
        self._core.telemetry.drop_planned({node.id}, age)
        node.life.plan(age, (0.0, state))
        self._mark_changed()

    def _launch(self, lab: SimLab, nodes: list[Node]) -> None:
        self._core.telemetry.drop_planned({node.id for node in nodes}, self._age())
        for node in nodes:
            self._boot(lab, node)
        self._assign_addresses(lab, nodes)
        self._mark_changed()

    def _boot(self, lab: SimLab, node: Node) -> None:
        jitter = self._core.chance.uniform(0.8, 1.25)
        queued, booted = QUEUE_SECONDS * jitter, (QUEUE_SECONDS + node.kind.boot_seconds) * jitter
        steps = [(0.0, NodeState.QUEUED), (queued, NodeState.STARTED)]
        if self._never.get(node.spec.label, 0) > 0:
            self._never[node.spec.label] -= 1
        else:
            steps.append((booted, NodeState.BOOTED))
        node.life.plan(self._age(), *steps)
        node.running = node.saved = node.files if node.saved is None else node.saved
        for category, (after, _) in zip(("queue_node", "start_node", "boot_node"), steps, strict=False):
            self._core.telemetry.record(category, after=after, lab_id=lab.id, node_id=node.id)

    def _assign_addresses(self, lab: SimLab, nodes: list[Node]) -> None:
        nat = interfaces_behind_nat(lab)
        taken = {one.ip4 for node in self.nodes() for one in node.interfaces if one.ip4}
        free = (ip for host in range(2, 255) if (ip := f"192.168.255.{host}") not in taken)
        for node in nodes:
            node.console_keys = node.console_keys or [self._core.ids() for _ in range(node.kind.shipped.serial_ports)]
            node.vnc_key = node.vnc_key or (self._core.ids() if node.kind.shipped.has_vnc else None)
            for one in node.interfaces:
                if not (mac := one.mac_address or one.operational_mac):
                    mac = "52:54:00:" + self._core.chance.getrandbits(24).to_bytes(3, "big").hex(":")
                one.operational_mac = mac
                one.ip4 = next(free, None) if one in nat and not one.ip4 else one.ip4

    def _stop_nodes(self, lab: SimLab, nodes: Iterable[Node]) -> bool:
        age = self._age()
        running = [node for node in nodes if node.life.state(age) in ACTIVE and not node.life.is_stopping(age)]
        self._core.telemetry.drop_planned({node.id for node in running}, age)
        for node in running:
            node.life.plan(age, (STOP_SECONDS, NodeState.STOPPED))
            self._core.telemetry.record("stop_node", after=STOP_SECONDS, lab_id=lab.id, node_id=node.id)
        self._mark_changed()
        return bool(running)

    def _wipe_nodes(self, lab: SimLab, nodes: Iterable[Node]) -> None:
        age = self._age()
        for node in nodes:
            if node.life.state(age) is not NodeState.STOPPED or node.life.is_stopping(age):
                continue
            node.life.plan(age, (WIPE_SECONDS, NodeState.DEFINED))
            node.running = node.saved = node.vnc_key = None
            node.console_keys = []
            for one in node.interfaces:
                one.operational_mac = one.ip4 = None
            self._core.telemetry.record("wipe_node", after=WIPE_SECONDS, lab_id=lab.id, node_id=node.id)
        self._mark_changed()

    def _is_startable(self, node: Node) -> bool:
        age = self._age()
        return node.life.is_stopping(age) or node.life.state(age) not in ACTIVE

    def _age(self) -> float:
        return self._core.pace.age()

    def _mark_modified(self, lab: SimLab) -> SimLab:
        lab.modified = self._core.pace.now()
        self._mark_changed()
        return lab

    def _mark_changed(self) -> None:
        self._steady_until = -math.inf


def to_files(configuration: Configuration, kind: NodeKind) -> Files:
    """Turn any of the forms of a configuration into files."""
    match configuration:
        case None:
            return []
        case str(text):
            return [ConfigurationFile(kind.main_file, text)]
        case ConfigurationFile() as one:
            return to_files([one], kind)
        case several:
            return [ConfigurationFile(kind.main_file if f.name == "Main" else f.name, f.content) for f in several]
