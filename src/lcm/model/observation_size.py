"""How much of an observation is kept: labs may be larger than what a session can hold. Pure.

The lablet controller cuts what it sends, and `control.observing` what it keeps.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate, islice, takewhile
from typing import Final

import msgspec

from lcm.model.definition import PortTemplate
from lcm.model.observation import ResourceObservation, drift
from lcm.model.topology_ports import observable

LARGEST_BYTES: Final = 200_000
"""So much of an observation is kept on a session; what is most numerous is left out first."""
_PORTS: Final = "ports"
_NUMBER_BYTES: Final = len(":65535,")


def bounded(observation: ResourceObservation) -> ResourceObservation:
    """Leave out of a lab so large that a session could not hold it what is most numerous, and say what that was."""
    found, left_out = observation, list(observation.left_out)
    for name, less in _LESS.items():
        if _bytes(found) <= LARGEST_BYTES:
            break
        found = less(found)
        left_out.append(name)
    if found is observation:
        return observation
    return msgspec.structs.replace(found, left_out=tuple(dict.fromkeys(left_out)))


def _without_of_nodes(name: str) -> Callable[[ResourceObservation], ResourceObservation]:
    def less(observation: ResourceObservation) -> ResourceObservation:
        nodes = tuple(msgspec.structs.replace(node, **{name: ()}) for node in observation.nodes)
        return msgspec.structs.replace(observation, nodes=nodes)

    return less


def _fewer_ports(observation: ResourceObservation) -> ResourceObservation:
    """Keep the first ports, among which are all that the lab was given."""
    sizes = accumulate(len(msgspec.json.encode(port)) + _NUMBER_BYTES for port in observation.observed_ports)
    kept = sum(1 for _ in takewhile(lambda size: size <= LARGEST_BYTES // 2, sizes))
    ports = dict(islice(observation.observed_ports.items(), kept))
    return msgspec.structs.replace(observation, observed_ports=ports)


def _without_nodes(observation: ResourceObservation) -> ResourceObservation:
    return msgspec.structs.replace(observation, nodes=(), simulation_stats=None)


_LESS: Final[Mapping[str, Callable[[ResourceObservation], ResourceObservation]]] = {
    "interfaces": _without_of_nodes("interfaces"),
    "tags": _without_of_nodes("tags"),
    _PORTS: _fewer_ports,
    "nodes": _without_nodes,
}
"""What is left out, the least missed first: ports are named beside the tags that hold them."""


def drifted(
    allocated: Mapping[str, int], template: PortTemplate, seen: ResourceObservation
) -> dict[str, tuple[int | None, int | None]]:
    """Compare a session's ports with those seen; of ports that were left out nobody knows."""
    differs = drift(observable(allocated, template), seen.observed_ports)
    if _PORTS not in seen.left_out:
        return differs
    return {name: ports for name, ports in differs.items() if name in seen.observed_ports}


def _bytes(observation: ResourceObservation) -> int:
    return len(msgspec.json.encode(observation))
