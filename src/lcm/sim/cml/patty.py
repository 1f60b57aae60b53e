"""PATty: the side service that opens ports of the machine for nodes by their tags.

A clash shows nowhere but here: the node that ran first has the port. Tags outside the range are just text.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lcm.sim.cml.life import RUNNING, State
from lcm.sim.cml.parts import Lab, Node

FIRST_PORT: Final = 2000
LAST_PORT: Final = 7999
POLL_SECONDS: Final = 5.0
_CONSOLE: Final = re.compile(r"(serial):(\d{4})(?::(\d+))?|(vnc):(\d{4})")
_PAT: Final = re.compile(r"pat:(?:(tcp|udp):)?(\d{4}):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Mapped:
    """An open port: where it leads."""

    protocol: str
    outside: int
    lab_id: str
    node_id: str
    kind: str
    inside: int
    """The serial line, the port inside the node, or 0 for VNC."""


def mapping(labs: Iterable[Lab], age: float) -> dict[tuple[str, int], Mapped]:
    """Return the ports that are open at an age, by protocol and number."""
    found: dict[tuple[str, int], Mapped] = {}
    running = sorted(
        (seen, node.id, node) for lab in labs for node in lab.nodes.values() if (seen := _seen(node, age)) >= 0
    )
    for _, _, node in running:
        for tag in node.spec.tags:
            port = wanted(node, tag)
            if port:
                found.setdefault((port.protocol, port.outside), port)
    return found


def wanted(node: Node, tag: str) -> Mapped | None:
    """Return the port that a tag asks for; None when it is no such tag or cannot be served."""
    console, pat = _CONSOLE.fullmatch(tag), _PAT.fullmatch(tag)
    if console:
        kind = console[1] or console[4]
        protocol, outside, inside = "tcp", int(console[2] or console[5]), int(console[3] or 0)
    elif pat and any(one.ip4 for one in node.interfaces):
        kind, protocol, outside, inside = "pat", pat[1] or "tcp", int(pat[2]), int(pat[3])
    else:
        return None
    served = {"serial": inside < node.kind.shipped.serial_ports, "vnc": node.kind.shipped.has_vnc}.get(kind, True)
    if not served or not FIRST_PORT <= outside <= LAST_PORT:
        return None
    return Mapped(protocol, outside, node.lab_id, node.id, kind, inside)


def _seen(node: Node, age: float) -> float:
    """Return the age of the poll that found this node running, or -1."""
    started = node.life.entered(State.STARTED)
    if started is None or node.life.state(age) not in RUNNING:
        return -1.0
    poll = math.ceil(started / POLL_SECONDS) * POLL_SECONDS
    return poll if poll <= age else -1.0
