"""Labs on the simulator's REST interface."""

from typing import Final

from lcm.sim.cml.faults import bad_request, find_known
from lcm.sim.cml.parts import SimLab
from lcm.sim.cml.rest.documents import Associations, Json, LabUpdate
from lcm.sim.cml.rest.routing import LARGE, Call, CmlRoute, Reply, text_reply, to_reply
from lcm.sim.cml.rest.views import element_states, lab_json, node_json
from lcm.sim.cml.stats import layer3_addresses, simulation_stats
from lcm.sim.cml.topology import write_lab_file, write_tile, write_topology
from lcm.sim.cml.wiring import change_smart, check_annotation


def list_ids(call: Call) -> list[str]:
    """List labs: the user's own, or all that the user may see."""
    mine = [lab for lab in call.visible_labs() if call.flag("show_all") or lab.owner_id == call.user.id]
    return [lab.id for lab in mine]


def create(call: Call) -> Json:
    """Make an empty lab."""
    wanted = call.read(LabUpdate) if call.body else LabUpdate()
    return lab_json(call.cml, call.cml.labs.create(call.user.id, wanted), call.user)


def import_(call: Call) -> Json:
    """Make a lab of a topology file, whatever its content type says."""
    lab, warnings = call.cml.import_lab(call.body, call.user, call.query.get("title"))
    return {"id": lab.id, "warnings": warnings}


def import_old(_call: Call) -> None:
    """Refuse the format of the previous generation."""
    raise bad_request("Topologies of VIRL 1.x are not supported.")


def change(call: Call) -> Json:
    """Change a lab's texts."""
    lab = call.cml.labs.change(call.lab("lab_edit"), call.read(LabUpdate))
    return lab_json(call.cml, lab, call.user)


def download_file(call: Call) -> Reply:
    """Send a lab as a file."""
    lab = call.lab()
    call.cml.telemetry.record("export_lab", lab_id=lab.id)
    return text_reply(write_lab_file(lab))


def events(call: Call) -> list[Json]:
    """List what happened to a lab."""
    return [
        {
            "lab_id": one.lab_id,
            "event": "STATE_CHANGED",
            "element_type": "NODE" if one.node_id else "LAB",
            "element_id": one.node_id or one.lab_id,
            "data": {"category": one.category},
            "previous": {},
            "timestamp": at.isoformat(),
        }
        for at, one in call.cml.telemetry.past_events(call.lab().id)
    ]


def pools(call: Call) -> list[str]:
    """List the resource pools that a lab's nodes use."""
    pool = call.cml.pools.of_user(call.lab().owner_id)
    return [pool.id] if pool else []


def associate(call: Call) -> Associations:
    """Set who may do what with a lab."""
    lab = call.lab("lab_admin")
    lab.associations = call.read(Associations)
    return lab.associations


def tile_of(call: Call, lab: SimLab, age: float) -> Json:
    """Return the small overview of a lab."""
    return lab_json(call.cml, lab, call.user) | {"topology": write_tile(lab, age)}


def tiles(call: Call) -> Json:
    """Show the small overviews of all labs."""
    age, labs = call.age, call.visible_labs()
    return {"lab_tiles": {lab.id: tile_of(call, lab, age) for lab in labs}}


def find_label(call: Call) -> Reply:
    """Find a node by its label; null when there is none."""
    nodes = call.lab().nodes.values()
    return to_reply(next((node.id for node in nodes if node.spec.label == call.params[1]), None))


def all_nodes(call: Call) -> list[Json]:
    """Show all nodes of all labs that this user may see."""
    age, form, operational = call.age, call.configuration_form(), call.flag("operational")
    nodes = (node for lab in call.visible_labs() for node in lab.nodes.values())
    return [node_json(node, age, operational=operational, form=form) for node in nodes]


def mappings(call: Call) -> list[Json]:
    """List which bridges a lab's external connectors use."""
    connectors = [node for node in call.lab().nodes.values() if node.kind.nature == "external_connector"]
    keys = {(node.files[0].content or "NAT") if node.files else "NAT" for node in connectors}
    return [{"key": key, "device_name": "virbr0", "label": "NAT", "tags": [], "allowed": True} for key in sorted(keys)]


def bootstrap(call: Call) -> None:
    """Accept a request for generated configurations; the simulator generates none."""
    call.lab("lab_edit")


def send_testbed(call: Call) -> Reply:
    """Send a lab's pyATS test bed, reduced to its names."""
    lab = call.lab()
    devices = "".join(f"  {node.spec.label}:\n    type: {node.kind.nature}\n" for node in lab.nodes.values())
    return text_reply(f"testbed:\n  name: {lab.title}\ndevices:\n{devices}")


def annotate(call: Call) -> Json:
    """Add an annotation."""
    lab, ref = call.lab("lab_edit"), call.cml.new_id()
    lab.annotations[ref] = check_annotation(call.read(Json)) | {"id": ref}
    return lab.annotations[ref]


def change_annotation(call: Call) -> Json:
    """Change an annotation."""
    found = _annotation(call, "lab_edit")
    found |= check_annotation(call.read(Json)) | {"id": found["id"]}
    return found


def delete_annotation(call: Call) -> None:
    """Remove an annotation."""
    lab = call.lab("lab_edit")
    del lab.annotations[find_known("Annotation", lab.annotations, call.params[1])["id"]]


def change_smart_annotation(call: Call) -> Json:
    """Change how a smart annotation looks."""
    return change_smart(_smart_annotation(call, "lab_edit"), call.read(Json))


def _annotation(call: Call, right: str = "lab_view") -> Json:
    return find_known("Annotation", call.lab(right).annotations, call.params[1])


def _smart_annotation(call: Call, right: str = "lab_view") -> Json:
    return find_known("Smart annotation", call.lab(right).smart_annotations, call.params[1])


ROUTES: Final = (
    CmlRoute("GET", "labs", list_ids),
    CmlRoute("POST", "labs", create),
    CmlRoute("POST", "import", import_, largest_body=LARGE),
    CmlRoute("POST", "import/virl-1x", import_old, largest_body=LARGE),
    CmlRoute("GET", "labs/{}", lambda call: lab_json(call.cml, call.lab(), call.user)),
    CmlRoute("PATCH", "labs/{}", change),
    CmlRoute("DELETE", "labs/{}", lambda call: call.cml.labs.delete(call.lab("lab_admin"))),
    CmlRoute("GET", "labs/{}/state", lambda call: call.lab().state(call.age)),
    CmlRoute("GET", "labs/{}/check_if_converged", lambda call: call.lab().is_converged(call.age)),
    CmlRoute("PUT", "labs/{}/start", lambda call: call.cml.labs.start(call.lab("lab_exec"))),
    CmlRoute("PUT", "labs/{}/stop", lambda call: call.cml.labs.stop(call.lab("lab_exec"))),
    CmlRoute("PUT", "labs/{}/wipe", lambda call: call.cml.labs.wipe(call.lab("lab_exec"))),
    CmlRoute("GET", "labs/{}/lab_element_state", lambda call: element_states(call.lab(), call.age)),
    CmlRoute("GET", "labs/{}/simulation_stats", lambda call: simulation_stats(call.lab(), call.cml.pace)),
    CmlRoute("GET", "labs/{}/layer3_addresses", lambda call: layer3_addresses(call.lab(), call.age)),
    CmlRoute("GET", "labs/{}/topology", lambda call: write_topology(call.lab(), call.configuration_form())),
    CmlRoute("GET", "labs/{}/download", download_file),
    CmlRoute("GET", "labs/{}/events", events),
    CmlRoute("GET", "labs/{}/resource_pools", pools),
    CmlRoute("GET", "labs/{}/associations", lambda call: call.lab().associations),
    CmlRoute("PATCH", "labs/{}/associations", associate),
    CmlRoute("GET", "labs/{}/tile", lambda call: tile_of(call, call.lab(), call.age)),
    CmlRoute("GET", "labs/{}/connector_mappings", mappings),
    CmlRoute("PUT", "labs/{}/bootstrap", bootstrap),
    CmlRoute("GET", "labs/{}/pyats_testbed", send_testbed),
    CmlRoute("GET", "labs/{}/find/node/label/{}", find_label),
    CmlRoute(
        "GET",
        "labs/{}/find_all/node/tag/{}",
        lambda call: [node.id for node in call.lab().nodes.values() if call.params[1] in node.spec.tags],
    ),
    CmlRoute("GET", "labs/{}/annotations", lambda call: list(call.lab().annotations.values())),
    CmlRoute("POST", "labs/{}/annotations", annotate),
    CmlRoute("GET", "labs/{}/annotations/{}", _annotation),
    CmlRoute("PATCH", "labs/{}/annotations/{}", change_annotation),
    CmlRoute("DELETE", "labs/{}/annotations/{}", delete_annotation),
    CmlRoute("GET", "labs/{}/smart_annotations", lambda call: list(call.lab().smart_annotations.values())),
    CmlRoute("GET", "labs/{}/smart_annotations/{}", _smart_annotation),
    CmlRoute("PATCH", "labs/{}/smart_annotations/{}", change_smart_annotation),
    CmlRoute("GET", "populate_lab_tiles", tiles),
    CmlRoute("GET", "nodes", all_nodes),
)
