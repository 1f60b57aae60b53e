"""Checks that a session which continues another has exactly what was saved of that one, on ports of its own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.topology.ports import used_ports
from lcm.sim.cml.parts import Node, SimLab
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState

OTHER_LAB: Final = "a session continues another lab than was saved"


def booking_keeps_what_was_saved(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check, when a booking continues a session, that it refers to the very file that was saved of it."""
    lab = turn.after.status.continues if turn.before is None and turn.after is not None else None
    source = seen.sessions.get(lab.session_id) if lab else None
    if lab is None or source is None:
        return ()
    saved = {one.name: one.digest for one in source.status.artifacts}
    if saved.get(lab.file, lab.topology.digest) == lab.topology.digest:
        return ()
    text = f"it continues {lab.file} of {lab.session} with the digest {lab.topology.digest}, not {saved[lab.file]}"
    return [violation(OTHER_LAB, text, turn.latest)]


def continued_lab_is_the_saved_one(
    seen: ObservedState, turn: ObservedChange[LabletSession], stage: Environment
) -> Sequence[Violation]:
    """Check, when a session that continues another runs for the first time, what its lab is made of.

    After a restore it may find the lab that it had already, in which somebody has worked.
    """
    before, after = turn.before, turn.after
    starts = after is not None and after.status.phase is SessionPhase.RUNNING
    if after is None or not starts or before is None or before.status.phase is not SessionPhase.INSTANTIATING:
        return ()
    lab, continued = _find_lab(seen, after, stage), after.status.continues
    data = stage.artifacts.content_now(continued.topology.uri) if continued else None
    if lab is None or continued is None or lab.created < before.status.history[-1].at:
        return ()
    if data is None:
        return [violation(OTHER_LAB, f"the file of {continued.session} that it starts with is gone", after)]
    wanted = yaml.safe_load(data)
    found = []
    if {node.spec.label: _text_of(node) for node in lab.nodes.values()} != _configurations(wanted):
        found.append(violation(OTHER_LAB, "its nodes have other configurations than were saved", after))
    if Counter(link.label for link in lab.links.values()) != Counter(link.get("label") for link in wanted["links"]):
        found.append(violation(OTHER_LAB, "it has other links than were saved", after))
    ports = used_ports(tag for node in lab.nodes.values() for tag in node.spec.tags)
    if not ports <= set((after.status.allocated_ports or {}).values()):
        found.append(violation(OTHER_LAB, "it has ports that it was not given", after))
    return found


def _find_lab(seen: ObservedState, session: LabletSession, stage: Environment) -> SimLab | None:
    worker = seen.workers.get(session.status.worker_id or "")
    cml = stage.cml(worker.status.ec2.instance_id) if worker else None
    return next((one for one in cml.labs if one.id == session.status.cml_lab_id), None) if cml else None


def _text_of(node: Node) -> str:
    return "".join(one.content or "" for one in node.running or node.files)


def _configurations(lab: Mapping[str, Any]) -> dict[str, str]:
    """Return the configurations in a lab file, by the labels of their nodes, in whichever form they are written."""
    texts = {}
    for node in lab["nodes"]:
        written = node.get("configuration") or ""
        texts[node["label"]] = written if isinstance(written, str) else "".join(one["content"] for one in written)
    return texts
