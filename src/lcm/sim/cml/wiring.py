"""Interfaces, links and annotations of a simulated lab.

Adding, removing, states, and which interfaces are behind a NAT connector. CML keeps one smart annotation per distinct
node tag; nobody else creates them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lcm.sim.cml.faults import bad_request, not_found
from lcm.sim.cml.parts import RUNNING, Interface, LabLink, Node, NodeState, SimLab
from lcm.sim.cml.rest.documents import Json

_BRIDGES: Final = ("bridge", "System Bridge", "L2")


def find_interface(lab: SimLab, ref: str) -> Interface:
    """Return an interface; refuse an unknown one."""
    interface = lab.interface(ref)
    if interface is None:
        raise not_found("Interface", ref)
    return interface


def fill_slots(node: Node, upto: int, ids: list[str]) -> list[Interface]:
    """Add interfaces in all slots up to `upto`; return those of these slots."""
    there = {one.slot: one for one in node.interfaces if one.slot is not None}
    for slot in range(upto + 1):
        if slot not in there:
            there[slot] = Interface(ids.pop(), node.id, node.kind.interface_label(slot), "physical", slot)
            node.interfaces.append(there[slot])
    return [there[slot] for slot in range(upto + 1)]


def connect(lab: SimLab, ref: str, a: Interface, b: Interface, label: str | None = None) -> LabLink:
    """Connect two free interfaces."""
    if a is b or a.node_id == b.node_id:
        raise bad_request("A link needs two interfaces on different nodes.")
    for end in (a, b):
        if end.type == "loopback" or lab.link_of(end):
            raise bad_request(f"Interface {end.id} cannot be connected.")
    names = [f"{lab.nodes[end.node_id].spec.label}-{end.label}" for end in (a, b)]
    link = LabLink(ref, label or "<->".join(names), a, b)
    lab.links[ref] = link
    return link


def drop_interface(lab: SimLab, interface: Interface) -> None:
    """Remove an interface and its link."""
    link = lab.link_of(interface)
    if link:
        del lab.links[link.id]
    lab.nodes[interface.node_id].interfaces.remove(interface)


def interface_state(state: NodeState, interface: Interface) -> NodeState:
    """Return an interface's state, which follows its node's state."""
    if state in RUNNING and not interface.down:
        return NodeState.STARTED
    return NodeState.DEFINED if state in {NodeState.DEFINED, NodeState.QUEUED} else NodeState.STOPPED


def link_state(link: LabLink, states: Mapping[str, NodeState]) -> NodeState:
    """Return a link's state by the states of the lab's nodes: it runs when both its ends do."""
    a, b = (interface_state(states[end.node_id], end) for end in (link.a, link.b))
    if a is b is NodeState.STARTED and not link.down:
        return NodeState.STARTED
    return NodeState.DEFINED if a is b is NodeState.DEFINED else NodeState.STOPPED


def interfaces_behind_nat(lab: SimLab) -> set[Interface]:
    """Return the interfaces that share a segment with an external connector in NAT mode."""
    todo = deque(node for node in lab.nodes.values() if node.kind.nature == "external_connector" and _is_nat(node))
    seen, found = set(todo), set[Interface]()
    while todo:
        for interface in todo.popleft().interfaces:
            link = lab.link_of(interface)
            if link is None:
                continue
            peer = link.b if link.a is interface else link.a
            node = lab.nodes[peer.node_id]
            if node.kind.needs_licence:
                found.add(peer)
            elif node not in seen and node.kind.nature == "switch":
                seen.add(node)
                todo.append(node)
    return found


def _is_nat(connector: Node) -> bool:
    text = connector.files[0].content if connector.files else ""
    return not (text or "").strip().startswith(_BRIDGES)


_COLORS: Final = ("#FFD10080", "#00A2FF80", "#61D83680", "#FF644E80", "#B36AE280", "#16E7CF80")
_SMART: Final[Json] = {
    "is_on": True,
    "padding": 35,
    "tag_offset_x": 0,
    "tag_offset_y": 0,
    "tag_size": 14,
    "group_distance": 400,
    "thickness": 1,
    "border_style": "",
    "border_color": "#00000080",
    "z_index": 1,
}
_SMART_KEYS: Final = frozenset({*_SMART, "tag", "label", "fill_color"})
_TYPES: Final = ("text", "rectangle", "ellipse", "line")


def sync_smart_annotations(lab: SimLab, new_id: Callable[[], str], given: Iterable[Json] = ()) -> None:
    """Match the smart annotations to the nodes' tags: new tags get one, removed tags lose theirs.

    `given` is how a file describes them; what it leaves out is as usual.
    """
    tags = dict.fromkeys(tag for node in lab.nodes.values() for tag in node.spec.tags if tag)
    kept = {one["tag"]: one for one in lab.smart_annotations.values() if one["tag"] in tags}
    drawn = {one.get("tag"): {key: one[key] for key in one if key in _SMART_KEYS} for one in given}
    for number, tag in enumerate(tags):
        if tag not in kept:
            default = _SMART | {"label": tag, "fill_color": _COLORS[number % len(_COLORS)]}
            kept[tag] = {"id": new_id()} | default | drawn.get(tag, {}) | {"tag": tag}
    lab.smart_annotations = {one["id"]: one for one in kept.values()}


def change_smart(annotation: Json, change: Json) -> Json:
    """Change how a smart annotation looks."""
    unknown = set(change) - _SMART_KEYS - {"id"}
    if unknown or change.get("tag", annotation["tag"]) != annotation["tag"]:
        raise bad_request(f"Cannot change {', '.join(sorted(unknown)) or 'tag'} of a smart annotation.")
    annotation |= change | {"id": annotation["id"]}
    return annotation


def check_annotation(annotation: Json) -> Json:
    """Refuse an annotation of an unknown type."""
    if annotation.get("type") not in _TYPES:
        raise bad_request("An annotation's type is text, rectangle, ellipse or line.")
    return annotation
