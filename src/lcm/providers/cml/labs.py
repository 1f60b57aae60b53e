"""What takes CML more than one call: finding, importing, observing, saving and removing a lab. Used by `host`."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

from lcm.model.base.errors import Fault, Gone, Invalid, Later, Refused
from lcm.providers.cml import lab_answers as answers
from lcm.providers.cml.errors import CmlOperation
from lcm.providers.cml.polling import gather_limited, poll_until
from lcm.providers.cml.rest import CmlClient
from lcm.providers.protocols.labhost import CmlAnswerError, LabState, LabSummary, NodeFacts

_NODE_PARAMS: Final = {"data": "true", "operational": "true", "exclude_configurations": "true"}
_LAB_FILE: Final = re.compile(r"^lab:", re.MULTILINE)
_ID: Final = re.compile(answers.ID_PATTERN)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_DELETED: Final = None


def lab_path(lab_id: str, *rest: str) -> str:
    """Return the path of a lab or a part of it. Raise Invalid for an id that could lead elsewhere or to all labs."""
    for part in (lab_id, *rest):
        if not _ID.match(part):
            raise Invalid(Fault("id", f"{part!r} is not an id of CML's", "use the id that CML gave"))
    return "/".join(["labs", lab_id, *rest])


async def list_labs(wire: CmlClient) -> Sequence[LabSummary]:
    """List every lab; one that vanishes meanwhile is left out."""
    ids = await wire.read("labs", answers.IDS, params={"show_all": "true"})
    labs = await gather_limited(partial(look, wire, lab_id) for lab_id in ids)
    return [lab for lab in labs if lab is not None]


async def look(wire: CmlClient, lab_id: str) -> LabSummary | None:
    """Read one lab by its id; None means that it is not there."""
    try:
        return (await wire.read(lab_path(lab_id), answers.LAB)).value()
    except Gone:
        return None


async def find(wire: CmlClient, title: str) -> LabSummary | None:
    """Find the oldest lab of this title."""
    named = [lab for lab in await list_labs(wire) if lab.title == title]
    return min(named, key=lambda lab: (lab.created_at or _LATEST, lab.lab_id), default=None)


async def ensure(wire: CmlClient, title: str, topology: str) -> LabSummary:
    """Import a lab unless there is one. After a failure with an unknown effect, look before giving up."""
    lab = await find(wire, title)
    if lab is not None:
        return lab
    try:
        imported = await wire.submit_text(
            "import", topology, answers.IMPORTED, params={"title": title}, asked=CmlOperation.IMPORT
        )
    except (Later, CmlAnswerError):
        lab = await find(wire, title)
        if lab is None:
            raise
        return lab
    lab = await look(wire, imported.id)
    if lab is None:
        raise Later(f"the lab {title} vanished right after its import")
    return lab


async def observe(wire: CmlClient, lab_id: str) -> Sequence[NodeFacts]:
    """Read all nodes with their interfaces and the addresses seen on them; a node that vanishes is left out."""
    nodes = await wire.read(lab_path(lab_id, "nodes"), answers.NODES, params=_NODE_PARAMS)
    interfaces = await gather_limited(partial(_interfaces, wire, node) for node in nodes)
    addresses = await wire.read(lab_path(lab_id, "layer3_addresses"), answers.ADDRESSES)
    seen = {one.id: one.ip4 for node in addresses.values() for one in node.interfaces.values()}
    return [
        node.value(interface.value(seen.get(interface.id, ())) for interface in of_node)
        for node, of_node in zip(nodes, interfaces, strict=True)
        if of_node is not None
    ]


async def _interfaces(wire: CmlClient, node: answers.NodeAnswer) -> list[answers.InterfaceAnswer] | None:
    where = lab_path(node.lab_id, "nodes", node.id, "interfaces")
    try:
        return await wire.read(where, answers.INTERFACES, params={"data": "true", "operational": "true"})
    except Gone:
        return None


async def observe_all(wire: CmlClient) -> Mapping[str, Sequence[NodeFacts]]:
    """Read the nodes of all labs."""
    nodes = await wire.read("nodes", answers.NODES, params={"operational": "true", "exclude_configurations": "true"})
    labs: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        labs.setdefault(node.lab_id, []).append(node.value())
    return labs


async def download(wire: CmlClient, lab_id: str) -> str:
    """Extract the running nodes' configurations, then read the lab's file."""
    nodes = await wire.read(lab_path(lab_id, "nodes"), answers.NODES, params=_NODE_PARAMS)
    await gather_limited(partial(_extract, wire, lab_id, node.id) for node in nodes if node.state == "BOOTED")
    text = await wire.read_text(lab_path(lab_id, "download"))
    if not _LAB_FILE.search(text):
        raise CmlAnswerError("CmlAnswerNotUnderstood", f"the download of lab {lab_id} is not a lab's file")
    return text


async def _extract(wire: CmlClient, lab_id: str, node_id: str) -> None:
    # Some kinds of node have nothing to extract: their file holds what they were given. A node may also vanish.
    with suppress(Refused, Gone):
        await wire.send("PUT", lab_path(lab_id, "nodes", node_id, "extract_configuration"))


async def remove(wire: CmlClient, lab_id: str) -> None:
    """Stop, wipe and delete, whatever state the lab is in and whoever changes that meanwhile."""
    limits = wire.limits
    await poll_until(
        lambda state: state is _DELETED,
        partial(_removal_step, wire, lab_id),
        every_seconds=limits.poll_seconds,
        within_seconds=limits.removal_seconds,
        late=lambda state: Later(f"the removal of lab {lab_id} takes long: it is still {state}"),
    )


async def _removal_step(wire: CmlClient, lab_id: str) -> LabState | None:
    """Take the next step that the lab's state allows, and return that state; None means deleted."""
    try:
        state = await wire.read(lab_path(lab_id, "state"), answers.STATE)
        method, *part = _REMOVAL_STEPS[state]
        try:
            await wire.send(method, lab_path(lab_id, *part))
        except Refused:
            if state is LabState.STARTED:
                raise
            # CML refuses this while any node still runs, which the lab's state does not always show.
            await wire.send("PUT", lab_path(lab_id, "stop"))
    except Gone:
        return _DELETED
    return state


_REMOVAL_STEPS: Final[Mapping[LabState, tuple[str, ...]]] = {
    LabState.STARTED: ("PUT", "stop"),
    LabState.STOPPED: ("PUT", "wipe"),
    LabState.DEFINED: ("DELETE",),
}
