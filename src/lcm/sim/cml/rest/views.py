"""How a simulated CML's REST interface writes what the engine holds."""

from datetime import datetime

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import RUNNING, Interface, LabLink, Node, NodeState, SimLab
from lcm.sim.cml.rest.documents import Json
from lcm.sim.cml.stats import COMPUTE_ID
from lcm.sim.cml.topology import MAIN_FILE, write_configuration, write_spec
from lcm.sim.cml.users import Group, ResourcePool, User
from lcm.sim.cml.wiring import interface_state, link_state


def format_timestamp(moment: datetime) -> str:
    """Format a moment as CML does."""
    return moment.isoformat(timespec="seconds")


def lab_json(cml: Cml, lab: SimLab, user: User) -> Json:
    """Write a lab."""
    owner = cml.users.everybody.get(lab.owner_id)
    return {
        "id": lab.id,
        "created": format_timestamp(lab.created),
        "modified": format_timestamp(lab.modified),
        "lab_title": lab.title,
        "lab_description": lab.description,
        "lab_notes": lab.notes,
        "owner": lab.owner_id,
        "owner_username": owner.username if owner else "",
        "owner_fullname": owner.fullname if owner else "",
        "state": lab.state(cml.pace.age()),
        "node_count": len(lab.nodes),
        "link_count": len(lab.links),
        "groups": [],
        "effective_permissions": list(cml.users.permissions(user, lab)),
    }


def node_json(node: Node, age: float, *, operational: bool | None = None, form: str = MAIN_FILE) -> Json:
    """Write a node; what it really runs with is under `operational`, and at the root unless that was asked for."""
    state = node.life.state(age)
    used = _operational(node) if state is not NodeState.DEFINED else None
    root = dict.fromkeys(("compute_id", "resource_pool", "vnc_key", "iol_app_id"), None) | {"serial_consoles": []}
    if used and not operational:
        root = {name: used[name] for name in root}
    return {
        "id": node.id,
        "lab_id": node.lab_id,
        **write_spec(node),
        **write_configuration(node.files, form),
        "state": state,
        "boot_progress": _boot_progress(state),
        "pinned_compute_id": node.pinned_compute_id,
        **root,
        "operational": used if operational is not False else None,
    }


def node_state_json(node: Node, age: float) -> Json:
    """Write a node's state."""
    state = node.life.state(age)
    return {"state": state, "progress": _boot_progress(state)}


def interface_json(lab: SimLab, one: Interface, age: float) -> Json:
    """Write an interface."""
    state = lab.nodes[one.node_id].life.state(age)
    running = state in RUNNING
    used = {
        "mac_address": one.operational_mac,
        "src_udp_port": 20_000 + (one.slot or 0) if running else None,
        "dst_udp_port": 30_000 + (one.slot or 0) if running else None,
        "device_name": None,
    }
    return {
        "id": one.id,
        "lab_id": lab.id,
        "node": one.node_id,
        "label": one.label,
        "type": one.type,
        "slot": one.slot,
        "mac_address": one.mac_address,
        "is_connected": lab.link_of(one) is not None,
        "state": interface_state(state, one),
        "src_udp_port": used["src_udp_port"],
        "dst_udp_port": used["dst_udp_port"],
        "device_name": None,
        "operational": used if state is not NodeState.DEFINED else None,
    }


def link_json(lab: SimLab, link: LabLink, age: float) -> Json:
    """Write a link."""
    return {
        "id": link.id,
        "lab_id": lab.id,
        "label": link.label,
        "interface_a": link.a.id,
        "interface_b": link.b.id,
        "node_a": link.a.node_id,
        "node_b": link.b.node_id,
        "link_capture_key": "",
        "state": link_state(link, lab.node_states(age)),
    }


def element_states(lab: SimLab, age: float) -> Json:
    """Write the states of all elements of a lab."""
    states = lab.node_states(age)
    ends = [one for node in lab.nodes.values() for one in node.interfaces]
    return {
        "nodes": {ref: str(state) for ref, state in states.items()},
        "links": {link.id: str(link_state(link, states)) for link in lab.links.values()},
        "interfaces": {one.id: str(interface_state(states[one.node_id], one)) for one in ends},
    }


def user_json(cml: Cml, user: User) -> Json:
    """Write a user, without the password."""
    pool = cml.pools.of_user(user.id)
    return {
        "id": user.id,
        "username": user.username,
        "fullname": user.fullname,
        "description": user.description,
        "email": user.email or None,
        "admin": user.admin,
        "groups": user.groups,
        "associations": [
            {"id": lab.id, "permissions": one.permissions}
            for lab in cml.labs
            for one in lab.associations.users
            if one.id == user.id
        ],
        "resource_pool": pool.id if pool else user.resource_pool,
        "opt_in": user.opt_in,
        "tour_version": user.tour_version,
        "created": format_timestamp(user.created),
        "modified": format_timestamp(user.modified),
        "directory_dn": None,
        "labs": [lab.id for lab in cml.labs if lab.owner_id == user.id],
        "pubkey_info": "",
    }


def group_json(group: Group) -> Json:
    """Write a group."""
    labs = [
        {"id": one.id, "permission": "read_write" if "lab_edit" in one.permissions else "read_only"}
        for one in group.associations
    ]
    return {
        "id": group.id,
        "name": group.name,
        "description": group.description,
        "members": group.members,
        "labs": labs,
        "associations": group.associations,
        "created": format_timestamp(group.created),
        "modified": format_timestamp(group.modified),
        "directory_dn": None,
        "directory_exists": None,
    }


def pool_json(cml: Cml, pool: ResourcePool) -> Json:
    """Write a resource pool."""
    return {
        "id": pool.id,
        "label": pool.label,
        "description": pool.description,
        "template": pool.template,
        "licenses": pool.licenses,
        "ram": pool.ram,
        "cpus": pool.cpus,
        "disk_space": pool.disk_space,
        "external_connectors": pool.external_connectors,
        "users": pool.users,
        "user_pools": cml.pools.children(pool),
    }


def _operational(node: Node) -> Json:
    consoles = [
        {"console_key": key, "label": f"serial{line}", "device_number": line}
        for line, key in enumerate(node.console_keys)
    ]
    return {
        "boot_disk_size": node.boot_disk_gb,
        "cpu_limit": node.cpu_limit,
        "cpus": node.cpus,
        "data_volume": node.data_volume_gb,
        "ram": node.ram_mb,
        "compute_id": COMPUTE_ID,
        "image_definition": node.spec.image_definition or node.kind.image,
        "vnc_key": node.vnc_key,
        "resource_pool": None,
        "iol_app_id": None,
        "serial_consoles": consoles,
    }


def _boot_progress(state: NodeState) -> str:
    return {NodeState.BOOTED: "Booted", NodeState.STARTED: "Booting"}.get(state, "Not running")
