"""Labs on the simulator's REST face."""

from typing import Final

from lcm.sim.cml.faults import bad
from lcm.sim.cml.parts import State
from lcm.sim.cml.rest.documents import Associations, LabUpdate
from lcm.sim.cml.rest.routing import DONE, LARGE, Call, Json, Reply, Route, text
from lcm.sim.cml.rest.views import element_states, lab_json, node_json
from lcm.sim.cml.stats import layer3_addresses, simulation_stats
from lcm.sim.cml.topology import download, tile, topology
from lcm.sim.cml.wiring import annotation_of, change_smart, check, smart_of


def ids(call: Call) -> list[str]:
    """List labs: one's own, or all that one may see."""
    mine = [lab for lab in call.visible() if call.flag("show_all") or lab.owner_id == call.user.id]
    return [lab.id for lab in mine]


def create(call: Call) -> Json:
    """Make an empty lab."""
    wanted = call.read(LabUpdate) if call.body else LabUpdate()
    return lab_json(call.cml, call.cml.labs.create(call.user.id, wanted), call.user)


def import_(call: Call) -> Json:
    """Make a lab of a topology file, whatever its content type says."""
    lab, warnings = call.cml.import_lab(call.body, call.user, call.query.get("title"))
    return {"id": lab.id, "warnings": warnings}


def import_old(_call: Call) -> Reply:
    """Refuse the format of the last generation."""
    raise bad("Topologies of VIRL 1.x are not supported.")


def show(call: Call) -> Json:
    """Show a lab."""
    return lab_json(call.cml, call.lab(), call.user)


def change(call: Call) -> Json:
    """Change a lab's texts."""
    lab = call.cml.labs.change(call.lab("lab_edit"), call.read(LabUpdate))
    return lab_json(call.cml, lab, call.user)


def delete(call: Call) -> Reply:
    """Remove a lab."""
    call.cml.labs.delete(call.lab("lab_admin"))
    return DONE


def state(call: Call) -> State:
    """Say a lab's state."""
    return call.lab().state(call.age)


def converged(call: Call) -> bool:
    """Say whether all nodes are in the state asked for."""
    return call.lab().converged(call.age)


def start(call: Call) -> Reply:
    """Start all nodes."""
    call.cml.labs.start(call.lab("lab_exec"))
    return DONE


def stop(call: Call) -> Reply:
    """Stop all nodes."""
    call.cml.labs.stop(call.lab("lab_exec"))
    return DONE


def wipe(call: Call) -> Reply:
    """Wipe all nodes."""
    call.cml.labs.wipe(call.lab("lab_exec"))
    return DONE


def elements(call: Call) -> Json:
    """Say the states of all elements."""
    return element_states(call.lab(), call.age)


def stats(call: Call) -> Json:
    """Say what running nodes and links use."""
    return simulation_stats(call.lab(), call.cml.pace)


def addresses(call: Call) -> Json:
    """Say the addresses seen on nodes."""
    return layer3_addresses(call.lab(), call.age)


def show_topology(call: Call) -> Json:
    """Show a lab's topology."""
    return topology(call.lab(), call.configurations())


def download_file(call: Call) -> Reply:
    """Send a lab as a file."""
    lab = call.lab()
    call.cml.telemetry.record("export_lab", lab_id=lab.id)
    return text(download(lab))


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
        for at, one in call.cml.telemetry.past(call.lab().id)
    ]


def pools(call: Call) -> list[str]:
    """List the resource pools that a lab's nodes use."""
    pool = call.cml.pools.of_user(call.lab().owner_id)
    return [pool.id] if pool else []


def associations(call: Call) -> Associations:
    """Say who may do what with a lab."""
    return call.lab().associations


def associate(call: Call) -> Associations:
    """Set who may do what with a lab."""
    lab = call.lab("lab_admin")
    lab.associations = call.read(Associations)
    return lab.associations


def show_tile(call: Call) -> Json:
    """Show the small picture of a lab."""
    lab = call.lab()
    return lab_json(call.cml, lab, call.user) | {"topology": tile(lab, call.age)}


def tiles(call: Call) -> Json:
    """Show the small pictures of all labs."""
    age, labs = call.age, call.visible()
    return {"lab_tiles": {lab.id: lab_json(call.cml, lab, call.user) | {"topology": tile(lab, age)} for lab in labs}}


def find_label(call: Call) -> str | None:
    """Find a node by its label."""
    nodes = call.lab().nodes.values()
    return next((node.id for node in nodes if node.spec.label == call.params[1]), None)


def find_tag(call: Call) -> list[str]:
    """Find nodes by a tag."""
    return [node.id for node in call.lab().nodes.values() if call.params[1] in node.spec.tags]


def all_nodes(call: Call) -> list[Json]:
    """Show all nodes of all labs that this user may see."""
    age, form, operational = call.age, call.configurations(), call.flag("operational")
    nodes = (node for lab in call.visible() for node in lab.nodes.values())
    return [node_json(node, age, operational=operational, form=form) for node in nodes]


def mappings(call: Call) -> list[Json]:
    """List which bridges a lab's external connectors use."""
    connectors = [node for node in call.lab().nodes.values() if node.kind.nature == "external_connector"]
    keys = {(node.files[0].content or "NAT") if node.files else "NAT" for node in connectors}
    return [{"key": key, "device_name": "virbr0", "label": "NAT", "tags": [], "allowed": True} for key in sorted(keys)]


def bootstrap(call: Call) -> Reply:
    """Accept the wish for generated configurations; ours have none to generate."""
    call.lab("lab_edit")
    return DONE


def testbed(call: Call) -> Reply:
    """Send a lab's pyATS test bed, reduced to its names."""
    lab = call.lab()
    devices = "".join(f"  {node.spec.label}:\n    type: {node.kind.nature}\n" for node in lab.nodes.values())
    return text(f"testbed:\n  name: {lab.title}\ndevices:\n{devices}")


def annotations(call: Call) -> list[Json]:
    """List annotations."""
    return list(call.lab().annotations.values())


def annotate(call: Call) -> Json:
    """Add an annotation."""
    lab, ref = call.lab("lab_edit"), call.cml.new_id()
    lab.annotations[ref] = check(call.read(Json)) | {"id": ref}
    return lab.annotations[ref]


def annotation(call: Call) -> Json:
    """Show an annotation."""
    return annotation_of(call.lab(), call.params[1])


def change_annotation(call: Call) -> Json:
    """Change an annotation."""
    found = annotation_of(call.lab("lab_edit"), call.params[1])
    found |= check(call.read(Json)) | {"id": found["id"]}
    return found


def delete_annotation(call: Call) -> Reply:
    """Remove an annotation."""
    lab = call.lab("lab_edit")
    del lab.annotations[annotation_of(lab, call.params[1])["id"]]
    return DONE


def smart_annotations(call: Call) -> list[Json]:
    """List smart annotations."""
    return list(call.lab().smart_annotations.values())


def smart_annotation(call: Call) -> Json:
    """Show a smart annotation."""
    return smart_of(call.lab(), call.params[1])


def change_smart_annotation(call: Call) -> Json:
    """Change how a smart annotation looks."""
    lab = call.lab("lab_edit")
    return change_smart(lab, smart_of(lab, call.params[1])["id"], call.read(Json))


ROUTES: Final = (
    Route("GET", "labs", ids),
    Route("POST", "labs", create),
    Route("POST", "import", import_, largest_body=LARGE),
    Route("POST", "import/virl-1x", import_old, largest_body=LARGE),
    Route("GET", "labs/{}", show),
    Route("PATCH", "labs/{}", change),
    Route("DELETE", "labs/{}", delete),
    Route("GET", "labs/{}/state", state),
    Route("GET", "labs/{}/check_if_converged", converged),
    Route("PUT", "labs/{}/start", start),
    Route("PUT", "labs/{}/stop", stop),
    Route("PUT", "labs/{}/wipe", wipe),
    Route("GET", "labs/{}/lab_element_state", elements),
    Route("GET", "labs/{}/simulation_stats", stats),
    Route("GET", "labs/{}/layer3_addresses", addresses),
    Route("GET", "labs/{}/topology", show_topology),
    Route("GET", "labs/{}/download", download_file),
    Route("GET", "labs/{}/events", events),
    Route("GET", "labs/{}/resource_pools", pools),
    Route("GET", "labs/{}/associations", associations),
    Route("PATCH", "labs/{}/associations", associate),
    Route("GET", "labs/{}/tile", show_tile),
    Route("GET", "labs/{}/connector_mappings", mappings),
    Route("PUT", "labs/{}/bootstrap", bootstrap),
    Route("GET", "labs/{}/pyats_testbed", testbed),
    Route("GET", "labs/{}/find/node/label/{}", find_label),
    Route("GET", "labs/{}/find_all/node/tag/{}", find_tag),
    Route("GET", "labs/{}/annotations", annotations),
    Route("POST", "labs/{}/annotations", annotate),
    Route("GET", "labs/{}/annotations/{}", annotation),
    Route("PATCH", "labs/{}/annotations/{}", change_annotation),
    Route("DELETE", "labs/{}/annotations/{}", delete_annotation),
    Route("GET", "labs/{}/smart_annotations", smart_annotations),
    Route("GET", "labs/{}/smart_annotations/{}", smart_annotation),
    Route("PATCH", "labs/{}/smart_annotations/{}", change_smart_annotation),
    Route("GET", "populate_lab_tiles", tiles),
    Route("GET", "nodes", all_nodes),
)
