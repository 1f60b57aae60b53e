"""Interfaces and links of a simulated lab: adding, removing, states, and who sits behind a NAT connector."""

from collections import deque
from typing import Final

from lcm.sim.cml.life import RUNNING, State
from lcm.sim.cml.parts import Interface, Lab, Link, Node
from lcm.sim.cml.refusals import bad, missing

_BRIDGES: Final = ("bridge", "System Bridge", "L2")


def interface_of(lab: Lab, ref: str) -> Interface:
    """Find an interface or refuse."""
    interface = lab.interface(ref)
    if interface is None:
        raise missing("Interface", ref)
    return interface


def link_of(lab: Lab, ref: str) -> Link:
    """Find a link or refuse."""
    if ref not in lab.links:
        raise missing("Link", ref)
    return lab.links[ref]


def fill_slots(node: Node, upto: int, ids: list[str]) -> list[Interface]:
    """Give a node interfaces in all slots up to one; return those of these slots."""
    there = {one.slot: one for one in node.interfaces if one.slot is not None}
    for slot in range(upto + 1):
        if slot not in there:
            there[slot] = Interface(ids.pop(), node.id, node.kind.interface_label(slot), "physical", slot)
            node.interfaces.append(there[slot])
    return [there[slot] for slot in range(upto + 1)]


def connect(lab: Lab, ref: str, a: Interface, b: Interface, label: str | None = None) -> Link:
    """Connect two free interfaces."""
    if a is b or a.node_id == b.node_id:
        raise bad("A link needs two interfaces on different nodes.")
    for end in (a, b):
        if end.type == "loopback" or lab.link_of(end):
            raise bad(f"Interface {end.id} cannot be connected.")
    names = [f"{lab.nodes[end.node_id].spec.label}-{end.label}" for end in (a, b)]
    link = Link(ref, label or "<->".join(names), a, b)
    lab.links[ref] = link
    return link


def drop_interface(lab: Lab, interface: Interface) -> None:
    """Remove an interface and its link."""
    link = lab.link_of(interface)
    if link:
        del lab.links[link.id]
    lab.nodes[interface.node_id].interfaces.remove(interface)


def interface_state(state: State, interface: Interface) -> State:
    """Return an interface's state, which follows its node's."""
    if state in RUNNING and not interface.down:
        return State.STARTED
    return State.DEFINED if state in {State.DEFINED, State.QUEUED} else State.STOPPED


def link_state(lab: Lab, link: Link, age: float) -> State:
    """Return a link's state: it runs when both its ends do."""
    ends = {interface_state(lab.nodes[end.node_id].life.state(age), end) for end in (link.a, link.b)}
    if ends == {State.STARTED} and not link.down:
        return State.STARTED
    return State.DEFINED if ends == {State.DEFINED} else State.STOPPED


def behind_nat(lab: Lab) -> set[Interface]:
    """Find the interfaces that share a segment with an external connector in NAT mode."""
    todo = deque(node for node in lab.nodes.values() if node.kind.nature == "external_connector" and _is_nat(node))
    seen, found = set(todo), set[Interface]()
    while todo:
        for interface in todo.popleft().interfaces:
            link = lab.link_of(interface)
            if link is None:
                continue
            peer = link.b if link.a is interface else link.a
            node = lab.nodes[peer.node_id]
            if node.kind.licensed:
                found.add(peer)
            elif node not in seen and node.kind.nature == "switch":
                seen.add(node)
                todo.append(node)
    return found


def _is_nat(connector: Node) -> bool:
    text = connector.files[0].content if connector.files else ""
    return not (text or "").strip().startswith(_BRIDGES)
