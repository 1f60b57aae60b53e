"""PATty: the service on a CML machine that opens ports of the machine for nodes by their tags.

A clash shows nowhere but here: the node that ran first has the port. Tags outside the range are just text.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lcm.model.topology.ports import OPEN_PORTS, read_tag
from lcm.sim.cml.parts import RUNNING, Node, NodeState, SimLab

POLL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PortMapping:
    """An open port, and where it leads."""

    protocol: str
    outside: int
    lab_id: str
    node_id: str
    kind: str
    inside: int
    """The serial line, the port inside the node, or 0 for VNC."""


def map_ports(labs: Iterable[SimLab], age: float) -> dict[tuple[str, int], PortMapping]:
    """Return the ports that are open at an age, by protocol and number."""
    found: dict[tuple[str, int], PortMapping] = {}
    running = sorted(
        (seen, node.id, node) for lab in labs for node in lab.nodes.values() if (seen := _poll_age(node, age)) >= 0
    )
    for _, _, node in running:
        for tag in node.spec.tags:
            port = port_of_tag(node, tag)
            if port:
                found.setdefault((port.protocol, port.outside), port)
    return found


def port_of_tag(node: Node, text: str) -> PortMapping | None:
    """Return the port that a tag asks for; None when it is no such tag or cannot be served."""
    tag, shipped = read_tag(text), node.kind.shipped
    if tag is None or tag.outside is None or tag.outside not in OPEN_PORTS:
        return None
    inside = tag.inside or tag.line or 0
    served = {
        "serial": inside < shipped.serial_ports,
        "vnc": shipped.has_vnc,
        "pat": any(one.ip4 for one in node.interfaces),
    }
    if not served[tag.kind]:
        return None
    return PortMapping(tag.protocol or "tcp", tag.outside, node.lab_id, node.id, tag.kind, inside)


def _poll_age(node: Node, age: float) -> float:
    """Return the age of the poll that found this node running, or -1."""
    started = node.life.age_entered(NodeState.STARTED)
    if started is None or node.life.state(age) not in RUNNING:
        return -1.0
    poll = math.ceil(started / POLL_SECONDS) * POLL_SECONDS
    return poll if poll <= age else -1.0
