"""What nobody gave away is taken of a worker: ports that labs hold, what strangers' nodes use. Pure; for `measure`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from lcm.model.capacity import Amount
from lcm.model.session import ON_WORKER, LabletSession
from lcm.model.topology_ports import used_ports
from lcm.providers.labhost import NodeFacts

_OFF: Final = frozenset({"DEFINED_ON_CORE", "STOPPED"})
"""States of a node that does not run and is not about to."""
_CORE: Final = 1000
"""Thousandths; a node of which it is not known how many it got counts as one."""
_GB: Final = 1024


@dataclass(frozen=True, slots=True)
class Ours:
    """Which labs on a worker belong to sessions, and which ports those hold; `coming` have a lab that is not known."""

    lab_ids: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    coming: frozenset[int] = frozenset()


def ours(sessions: Iterable[LabletSession]) -> dict[str, Ours]:
    """Tell what of sessions is on which worker, by its uid."""
    found: dict[str, Ours] = {}
    for session in sessions:
        status = session.status
        if status.worker_id is None or status.phase not in ON_WORKER:
            continue
        known = found.get(status.worker_id, Ours())
        labs = {status.cml_lab_id} if status.cml_lab_id else set[str]()
        ports = frozenset((status.allocated_ports or {}).values())
        coming = known.coming if labs else known.coming | ports
        found[status.worker_id] = Ours(known.lab_ids | labs, known.ports | ports, coming)
    return found


def foreign_ports(nodes: Mapping[str, Sequence[NodeFacts]], here: Ours) -> tuple[int, ...]:
    """Tell which ports are held that no session was given: by strangers' labs, or by ours that somebody edited."""
    tags = (tag for lab in nodes.values() for node in lab for tag in node.tags)
    return tuple(sorted(used_ports(tags) - here.ports))


def foreign_use(nodes: Mapping[str, Sequence[NodeFacts]], here: Ours, ports: int) -> Amount:
    """Tell what strangers' labs take of the machine: their nodes that run, and their ports whether they run or not."""
    labs = [running(lab) for lab_id, lab in nodes.items() if lab_id not in here.lab_ids and not _holds(lab, here)]
    nodes_on = [node for lab in labs for node in lab]
    return Amount(
        cpu_millis=sum(_CORE if node.cpus is None else ceil(node.cpus * _CORE) for node in nodes_on),
        memory_mb=sum(node.ram_mb or 0 for node in nodes_on),
        storage_mb=sum(ceil((node.disk_gb or 0) * _GB) for node in nodes_on),
        nodes=len(nodes_on),
        ports=ports,
        labs=sum(map(bool, labs)),
    )


def _holds(lab: Sequence[NodeFacts], here: Ours) -> bool:
    """Tell whether a lab has ports of ours: it was imported a moment ago, and its id is not known yet."""
    return not here.coming.isdisjoint(used_ports(tag for node in lab for tag in node.tags))


def running(nodes: Sequence[NodeFacts]) -> Sequence[NodeFacts]:
    """Give the nodes of a lab that run, or are about to."""
    return [node for node in nodes if node.state not in _OFF]
