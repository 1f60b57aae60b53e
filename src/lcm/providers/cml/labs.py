"""What takes CML more than one call: finding, importing, observing, saving and removing a lab. Used by `cml`."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

from lcm.model.base.errors import Fault, Gone, Invalid, Later, LcmError, Refused
from lcm.providers.cml import lab_answers as answers
from lcm.providers.cml.errors import Asked
from lcm.providers.cml.polling import together, until
from lcm.providers.cml.rest import Wire
from lcm.providers.protocols.labhost import CmlAnswerError, LabState, LabSummary, NodeFacts

_EVERYONES: Final = {"show_all": "true"}
_BARE: Final = {"data": "true", "operational": "true", "exclude_configurations": "true"}
_LAB_FILE: Final = re.compile(r"^lab:", re.MULTILINE)
_ID: Final = re.compile(answers.ID)
_EVER: Final = datetime.max.replace(tzinfo=UTC)
_DELETED: Final = None


def path(lab_id: str, *rest: str) -> str:
    """Write where a lab, or a part of it, is found; an id never leads elsewhere, and an empty one not to all labs."""
    for part in (lab_id, *rest):
        if not _ID.match(part):
            raise Invalid(Fault("id", f"{part!r} is not an id of CML's", "use the id that CML gave"))
    return "/".join(["labs", lab_id, *rest])


async def listed(wire: Wire) -> Sequence[LabSummary]:
    """List every lab; one that vanishes meanwhile is left out."""
    ids = await wire.ask("labs", answers.IDS, params=_EVERYONES)
    labs = await together(partial(look, wire, lab_id) for lab_id in ids)
    return [lab for lab in labs if lab is not None]


async def look(wire: Wire, lab_id: str) -> LabSummary | None:
    """Look at one lab."""
    try:
        return (await wire.ask(path(lab_id), answers.LAB)).value()
    except Gone:
        return None


async def find(wire: Wire, title: str) -> LabSummary | None:
    """Find the oldest lab of this title."""
    named = [lab for lab in await listed(wire) if lab.title == title]
    return min(named, key=lambda lab: (lab.created_at or _EVER, lab.lab_id), default=None)


async def ensure(wire: Wire, title: str, topology: str) -> LabSummary:
    """Import a lab unless there is one; after a failure that leaves open what happened, look before giving up."""
    lab = await find(wire, title)
    if lab is not None:
        return lab
    try:
        imported = await wire.hand_in("import", topology, answers.IMPORTED, params={"title": title}, asked=Asked.IMPORT)
    except (Later, CmlAnswerError):
        lab = await find(wire, title)
        if lab is None:
            raise
        return lab
    lab = await look(wire, imported.id)
    if lab is None:
        raise Later(f"the lab {title} vanished right after its import")
    return lab


async def observe(wire: Wire, lab_id: str) -> Sequence[NodeFacts]:
    """Read all nodes with their interfaces and the addresses seen on them; a node that vanishes is left out."""
    nodes = await wire.ask(path(lab_id, "nodes"), answers.NODES, params=_BARE)
    interfaces = await together(partial(_interfaces, wire, node) for node in nodes)
    seen = answers.addresses(await wire.ask(path(lab_id, "layer3_addresses"), answers.ADDRESSES))
    return [
        node.value(interface.value(seen.get(interface.id, ())) for interface in of_node)
        for node, of_node in zip(nodes, interfaces, strict=True)
        if of_node is not None
    ]


async def _interfaces(wire: Wire, node: answers.NodeAnswer) -> list[answers.InterfaceAnswer] | None:
    where = path(node.lab_id, "nodes", node.id, "interfaces")
    try:
        return await wire.ask(where, answers.INTERFACES, params={"data": "true", "operational": "true"})
    except Gone:
        return None


async def everywhere(wire: Wire) -> Mapping[str, Sequence[NodeFacts]]:
    """Read the nodes of all labs."""
    nodes = await wire.ask("nodes", answers.NODES, params={"operational": "true", "exclude_configurations": "true"})
    labs: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        labs.setdefault(node.lab_id, []).append(node.value())
    return labs


async def download(wire: Wire, lab_id: str) -> str:
    """Have the running nodes' configurations extracted, then read the lab's file."""
    nodes = await wire.ask(path(lab_id, "nodes"), answers.NODES, params=_BARE)
    await together(partial(_extract, wire, lab_id, node.id) for node in nodes if node.state == "BOOTED")
    text = await wire.text(path(lab_id, "download"))
    if not _LAB_FILE.search(text):
        raise CmlAnswerError("CmlAnswerNotUnderstood", f"the download of lab {lab_id} is not a lab's file")
    return text


async def _extract(wire: Wire, lab_id: str, node_id: str) -> None:
    # Some kinds of node have nothing to extract, and their file then holds what they were given; a node may vanish.
    with suppress(Refused, Gone):
        await wire.tell("PUT", path(lab_id, "nodes", node_id, "extract_configuration"))


async def remove(wire: Wire, lab_id: str) -> None:
    """Stop, wipe and delete, whatever state the lab is in and whoever changes that meanwhile."""
    limits = wire.limits
    await until(
        lambda state: state is _DELETED,
        partial(_towards_the_end, wire, lab_id),
        every_seconds=limits.poll_seconds,
        within_seconds=limits.removal_seconds,
        late=partial(_still_there, lab_id),
    )


async def _towards_the_end(wire: Wire, lab_id: str) -> LabState | None:
    """Take the next step that the lab's state allows, and return that state; None is the end."""
    try:
        state = await wire.ask(path(lab_id, "state"), answers.STATE)
        await _STEPS[state](wire, lab_id)
    except Gone:
        return _DELETED
    return state


async def _stop(wire: Wire, lab_id: str) -> None:
    await wire.tell("PUT", path(lab_id, "stop"))


async def _wipe(wire: Wire, lab_id: str) -> None:
    await _unless_busy(wire, lab_id, "PUT", path(lab_id, "wipe"))


async def _delete(wire: Wire, lab_id: str) -> None:
    await _unless_busy(wire, lab_id, "DELETE", path(lab_id))


async def _unless_busy(wire: Wire, lab_id: str, method: str, where: str) -> None:
    """Try a step that CML refuses while any node still runs, which the lab's state does not always tell."""
    try:
        await wire.tell(method, where)
    except Refused:
        await _stop(wire, lab_id)


def _still_there(lab_id: str, state: LabState | None) -> LcmError:
    return Later(f"the removal of lab {lab_id} takes long: it is still {state}")


_STEPS: Final[Mapping[LabState, Callable[[Wire, str], Awaitable[None]]]] = {
    LabState.STARTED: _stop,
    LabState.STOPPED: _wipe,
    LabState.DEFINED: _delete,
}
