"""What a running lab really used: resources, ports, nodes. Real units: whole CPUs, MB; boot and steady state apart."""

from collections.abc import Callable, Mapping
from itertools import accumulate, islice, takewhile
from typing import Final, Literal

import msgspec

from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.definition import PortTemplate
from lcm.model.topology.ports import observable


class InterfaceObservation(Part):
    """One interface of a node."""

    interface_id: str
    label: str
    slot: int | None
    state: str
    mac_address: str | None = None
    ip4: tuple[str, ...] = ()


class NodeObservation(Part):
    """One node of a lab. `cpu_limit` is CML's percentage; `cpus` is what the node really has."""

    node_id: str
    label: str
    node_definition: str
    state: str
    cpu_limit: int | None = None
    ram_mb: int | None = None
    tags: tuple[str, ...] = ()
    interfaces: tuple[InterfaceObservation, ...] = ()
    cpus: float | None = None
    disk_gb: float | None = None


class NodeStats(Part):
    """CML's running statistics of one node."""

    cpu_usage: float | None = None
    ram_usage: float | None = None
    disk_usage: float | None = None
    boot_seconds: float | None = None


class ResourceObservation(Part):
    """Everything observed of one lab at one moment. What CML did not say is None, never zero.

    `left_out` names what there was too much of to be kept.
    """

    observed_at: Moment
    observer: Literal["lablet-controller", "manual"]
    total_cpu_cores: float
    total_memory_mb: int
    total_storage_mb: int | None
    nodes: tuple[NodeObservation, ...]
    actual_node_count: int
    node_definitions_used: tuple[str, ...]
    observed_ports: Mapping[str, int]
    simulation_stats: Mapping[str, NodeStats] | None = None
    left_out: tuple[str, ...] = ()


def drift(allocated: Mapping[str, int], observed: Mapping[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """Compare ports by name: for each name that differs, what was allocated and what is there."""
    names = sorted(allocated.keys() | observed.keys())
    return {
        name: (allocated.get(name), observed.get(name)) for name in names if allocated.get(name) != observed.get(name)
    }


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
