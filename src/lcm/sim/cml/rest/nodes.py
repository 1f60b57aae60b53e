"""Nodes, interfaces and links on the simulator's REST interface."""

from typing import Final

from lcm.sim.cml.definitions import write_image
from lcm.sim.cml.faults import CmlRefusal, bad_request, not_found
from lcm.sim.cml.parts import Interface, LabLink, Node, NodeState, SimLab
from lcm.sim.cml.rest.documents import InterfaceCreate, InterfaceUpdate, Json, LinkCreate, NodeSpec, NodeUpdate
from lcm.sim.cml.rest.routing import LARGE, Call, CmlRoute
from lcm.sim.cml.rest.views import interface_json, link_json, node_json, node_state_json
from lcm.sim.cml.stats import COMPUTE_ID, node_addresses
from lcm.sim.cml.wiring import connect, drop_interface, fill_slots, find_interface, interface_state


def nodes(call: Call) -> list[str] | list[Json]:
    """List a lab's nodes."""
    lab, age = call.lab(), call.age
    if not call.flag("data"):
        return list(lab.nodes)
    form, operational = call.configuration_form(), call.flag("operational")
    return [node_json(node, age, operational=operational, form=form) for node in lab.nodes.values()]


def add_node(call: Call) -> Json:
    """Add a node."""
    populate = bool(call.flag("populate_interfaces"))
    return {"id": call.cml.labs.add_node(call.lab("lab_edit"), call.read(NodeSpec), populate=populate).id}


def node(call: Call) -> Json:
    """Show a node."""
    _, found = call.node()
    return node_json(found, call.age, operational=call.flag("operational"), form=call.configuration_form())


def change_node(call: Call) -> str:
    """Change a node."""
    lab, found = call.node("lab_edit")
    call.cml.labs.change_node(lab, found, call.read(NodeUpdate))
    return found.id


def extract(call: Call) -> Json:
    """Store the configuration that is inside a running node."""
    _, found = call.node("lab_exec")
    call.cml.labs.extract(found)
    return {}


def clone_image(call: Call) -> Json:
    """Make an image of a stopped node's disk."""
    _, found = call.node("lab_exec")
    if found.life.state(call.age) is not NodeState.STOPPED:
        raise bad_request("The node must be stopped.")
    return write_image(found.kind)


def addresses(call: Call) -> Json:
    """Return the addresses seen on a node."""
    _, found = call.node()
    if found.kind.nature == "external_connector":
        raise bad_request("Can't get L3 addresses of an external_connector.")
    return node_addresses(found, call.age)


def console_key(call: Call) -> str:
    """Return the key to a node's console."""
    _, found = call.node()
    if not found.console_keys:
        raise not_found("Console key", found.id)
    return _console(found, call.query.get("line", "0"))


def vnc_key(call: Call) -> str:
    """Return the key to a node's screen."""
    _, found = call.node()
    if found.vnc_key is None:
        raise not_found("VNC key", found.id)
    return found.vnc_key


def console_log(call: Call) -> str:
    """Show what a node has written to its console."""
    _, found = call.node()
    _console(found, call.params[2])
    return f"{found.spec.label} con{call.params[2]} is now available\r\n"


def console_keys(call: Call) -> Json:
    """List all keys to consoles."""
    return {
        key: _key(lab, found) | {"line": line}
        for lab in call.visible_labs()
        for found in lab.nodes.values()
        for line, key in enumerate(found.console_keys)
    }


def vnc_keys(call: Call) -> Json:
    """List all keys to screens."""
    return {
        found.vnc_key: _key(lab, found) | {"compute_address": "127.0.0.1"}
        for lab in call.visible_labs()
        for found in lab.nodes.values()
        if found.vnc_key
    }


def node_interfaces(call: Call) -> list[str] | list[Json]:
    """List a node's interfaces."""
    lab, found = call.node()
    age = call.age
    if not call.flag("data"):
        return [one.id for one in found.interfaces]
    return [interface_json(lab, one, age) for one in found.interfaces]


def interfaces(call: Call) -> list[Json]:
    """List a lab's interfaces: not part of CML 2.9, but its client 2.10 asks for them."""
    lab, age = call.lab(), call.age
    return [interface_json(lab, one, age) for node in lab.nodes.values() for one in node.interfaces]


def add_interface(call: Call) -> Json | list[Json]:
    """Add one interface, or all up to a slot."""
    lab, wanted, age = call.lab("lab_edit"), call.read(InterfaceCreate), call.age
    found = call.cml.labs.node(lab, wanted.node)
    if found.life.state(age) is not NodeState.DEFINED:
        raise bad_request("The node must be wiped before interfaces can be added.")
    used = [one.slot for one in found.interfaces if one.slot is not None]
    slot = max(used, default=-1) + 1 if wanted.slot is None else wanted.slot
    filled = fill_slots(found, slot, [call.cml.new_id() for _ in range(slot + 1)])
    if wanted.slot is not None:
        return [interface_json(lab, one, age) for one in filled]
    filled[-1].mac_address = wanted.mac_address
    return interface_json(lab, filled[-1], age)


def change_interface(call: Call) -> Json:
    """Change an interface's address."""
    lab, found = call.interface("lab_edit")
    found.mac_address = call.read(InterfaceUpdate).mac_address
    return interface_json(lab, found, call.age)


def show_interface_state(call: Call) -> Json:
    """Return an interface's state."""
    lab, found = call.interface()
    state = lab.nodes[found.node_id].life.state(call.age)
    return {"label": found.label, "state": interface_state(state, found)}


def links(call: Call) -> list[str] | list[Json]:
    """List a lab's links."""
    lab, age = call.lab(), call.age
    return [link_json(lab, one, age) for one in lab.links.values()] if call.flag("data") else list(lab.links)


def add_link(call: Call) -> Json:
    """Connect two interfaces."""
    lab, wanted = call.lab("lab_edit"), call.read(LinkCreate)
    ends = [find_interface(lab, ref) for ref in (wanted.src_int, wanted.dst_int)]
    return {"id": connect(lab, call.cml.new_id(), ends[0], ends[1]).id}


def delete_link(call: Call) -> None:
    """Remove a link."""
    lab, found = call.link("lab_edit")
    del lab.links[found.id]


def link_converged(call: Call) -> bool:
    """Return whether both ends of a link are in the requested state."""
    lab, found = call.link()
    return all(lab.nodes[end.node_id].life.is_settled(call.age) for end in (found.a, found.b))


def change_condition(call: Call) -> Json:
    """Make a link slow or lossy."""
    _, found = call.link("lab_edit")
    found.conditioning = found.conditioning | call.read(Json)
    return found.conditioning


def clear_condition(call: Call) -> None:
    """Remove a link's conditioning."""
    call.link("lab_edit")[1].conditioning = {}


def capture(call: Call) -> None:
    """Refuse to capture packets: there are none."""
    call.link()
    raise CmlRefusal(404, "PCAP is not running.")


def _console(node: Node, line: str) -> str:
    if not line.isdecimal() or int(line) >= len(node.console_keys):
        raise bad_request("Serial port does not exist on node")
    return node.console_keys[int(line)]


def _switch(part: Interface | LabLink, *, down: bool) -> None:
    part.down = down


def _key(lab: SimLab, node: Node) -> Json:
    driver = node.kind.shipped.driver.upper()
    return {"node_id": node.id, "compute_id": COMPUTE_ID, "lab_id": lab.id, "label": node.spec.label, "driver": driver}


_NODE: Final = "labs/{}/nodes/{}"
_END: Final = "labs/{}/interfaces/{}"
_LINK: Final = "labs/{}/links/{}"

ROUTES: Final = (
    CmlRoute("GET", "labs/{}/nodes", nodes),
    CmlRoute("POST", "labs/{}/nodes", add_node, largest_body=LARGE),
    CmlRoute("GET", _NODE, node),
    CmlRoute("PATCH", _NODE, change_node, largest_body=LARGE),
    CmlRoute("DELETE", _NODE, lambda call: call.cml.labs.delete_node(*call.node("lab_edit"))),
    CmlRoute("GET", f"{_NODE}/state", lambda call: node_state_json(call.node()[1], call.age)),
    CmlRoute("PUT", f"{_NODE}/state/start", lambda call: call.cml.labs.start_node(*call.node("lab_exec"))),
    CmlRoute("PUT", f"{_NODE}/state/stop", lambda call: call.cml.labs.stop_node(*call.node("lab_exec"))),
    CmlRoute("PUT", f"{_NODE}/wipe_disks", lambda call: call.cml.labs.wipe_node(*call.node("lab_exec"))),
    CmlRoute("GET", f"{_NODE}/check_if_converged", lambda call: call.node()[1].life.is_settled(call.age)),
    CmlRoute("PUT", f"{_NODE}/extract_configuration", extract),
    CmlRoute("PUT", f"{_NODE}/clone_image", clone_image),
    CmlRoute("GET", f"{_NODE}/interfaces", node_interfaces),
    CmlRoute("GET", f"{_NODE}/layer3_addresses", addresses),
    CmlRoute("GET", f"{_NODE}/keys/console", console_key),
    CmlRoute("GET", f"{_NODE}/keys/vnc", vnc_key),
    CmlRoute("GET", f"{_NODE}/consoles/{{}}/log", console_log),
    CmlRoute("GET", "keys/console", console_keys),
    CmlRoute("GET", "keys/vnc", vnc_keys),
    CmlRoute("GET", "labs/{}/interfaces", interfaces),
    CmlRoute("POST", "labs/{}/interfaces", add_interface),
    CmlRoute("GET", _END, lambda call: interface_json(*call.interface(), call.age)),
    CmlRoute("PATCH", _END, change_interface),
    CmlRoute("DELETE", _END, lambda call: drop_interface(*call.interface("lab_edit"))),
    CmlRoute("GET", f"{_END}/state", show_interface_state),
    CmlRoute("PUT", f"{_END}/state/start", lambda call: _switch(call.interface("lab_exec")[1], down=False)),
    CmlRoute("PUT", f"{_END}/state/stop", lambda call: _switch(call.interface("lab_exec")[1], down=True)),
    CmlRoute("GET", "labs/{}/links", links),
    CmlRoute("POST", "labs/{}/links", add_link),
    CmlRoute("GET", _LINK, lambda call: link_json(*call.link(), call.age)),
    CmlRoute("DELETE", _LINK, delete_link),
    CmlRoute("PUT", f"{_LINK}/state/start", lambda call: _switch(call.link("lab_exec")[1], down=False)),
    CmlRoute("PUT", f"{_LINK}/state/stop", lambda call: _switch(call.link("lab_exec")[1], down=True)),
    CmlRoute("GET", f"{_LINK}/check_if_converged", link_converged),
    CmlRoute("GET", f"{_LINK}/condition", lambda call: call.link()[1].conditioning),
    CmlRoute("PATCH", f"{_LINK}/condition", change_condition),
    CmlRoute("DELETE", f"{_LINK}/condition", clear_condition),
    CmlRoute("GET", f"{_LINK}/capture/status", capture),
    CmlRoute("GET", f"{_LINK}/capture/key", capture),
)
