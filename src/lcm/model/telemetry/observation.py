"""What a running lab really uses: resources, ports, nodes; and how much of it is kept.

Units are whole CPUs and MB; boot and steady state are kept apart. A lab may be larger than a session object can hold:
the session controller trims what it sends, and `control.telemetry.observations` trims what it stores.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, islice, takewhile
from math import fsum
from typing import Final, Literal

import msgspec

from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.definition import PortTemplate
from lcm.model.topology.ports import keep_observable


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
    """CML's runtime statistics of one node: CPU in percent of its `cpus`, memory in percent of its `ram_mb`."""

    cpu_usage: float | None = None
    ram_usage: float | None = None
    disk_usage: float | None = None
    boot_seconds: float | None = None
    cpus: float | None = None
    ram_mb: int | None = None


class LabUse(Part):
    """How much CPU and memory the nodes of a lab use together, of what they were given."""

    cpu_cores: float
    memory_mb: float


class ResourceObservation(Part):
    """Everything observed of one lab at one moment. A value that CML did not report is None, never zero.

    The totals are what its nodes were given; `used` is what those that have booted use of it. `left_out` names the
    parts that were too large to be kept.
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
    used: LabUse | None = None
    left_out: tuple[str, ...] = ()


def sum_use(stats: Iterable[NodeStats]) -> LabUse | None:
    """Return what nodes use together; None if CML reported it of none of them. Nobody uses more than all of a CPU."""
    known = [one for one in stats if one.cpu_usage is not None and one.cpus and one.ram_usage is not None]
    if not known:
        return None
    return LabUse(
        cpu_cores=round(fsum(min(one.cpu_usage or 0, 100) / 100 * (one.cpus or 0) for one in known), 3),
        memory_mb=round(fsum(min(one.ram_usage or 0, 100) / 100 * (one.ram_mb or 0) for one in known), 1),
    )


def larger_use(one: LabUse | None, other: LabUse | None) -> LabUse | None:
    """Return the larger CPU and the larger memory of two uses."""
    if one is None or other is None:
        return one or other
    return LabUse(cpu_cores=max(one.cpu_cores, other.cpu_cores), memory_mb=max(one.memory_mb, other.memory_mb))


def drift(allocated: Mapping[str, int], observed: Mapping[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """Compare ports by name. Return the allocated and the observed port of each name that differs."""
    names = sorted(allocated.keys() | observed.keys())
    return {
        name: (allocated.get(name), observed.get(name)) for name in names if allocated.get(name) != observed.get(name)
    }


MAX_OBSERVATION_BYTES: Final = 200_000
"""How much of an observation is kept on a session; the most numerous parts are left out first."""
_PORTS_PART: Final = "ports"
_PORT_BYTES: Final = len(":65535,")


def trim_observation(observation: ResourceObservation) -> ResourceObservation:
    """Leave out the most numerous parts of an observation too large for a session, and record which."""
    found, left_out = observation, list(observation.left_out)
    for name, less in _REDUCTIONS.items():
        if len(msgspec.json.encode(found)) <= MAX_OBSERVATION_BYTES:
            break
        found = less(found)
        left_out.append(name)
    if found is observation:
        return observation
    return msgspec.structs.replace(found, left_out=tuple(dict.fromkeys(left_out)))


def _without_node_field(name: str) -> Callable[[ResourceObservation], ResourceObservation]:
    def less(observation: ResourceObservation) -> ResourceObservation:
        nodes = tuple(msgspec.structs.replace(node, **{name: ()}) for node in observation.nodes)
        return msgspec.structs.replace(observation, nodes=nodes)

    return less


def _with_fewer_ports(observation: ResourceObservation) -> ResourceObservation:
    """Keep the first ports, which include all that were allocated to the lab."""
    sizes = accumulate(len(msgspec.json.encode(port)) + _PORT_BYTES for port in observation.observed_ports)
    kept = sum(1 for _ in takewhile(lambda size: size <= MAX_OBSERVATION_BYTES // 2, sizes))
    ports = dict(islice(observation.observed_ports.items(), kept))
    return msgspec.structs.replace(observation, observed_ports=ports)


_REDUCTIONS: Final[Mapping[str, Callable[[ResourceObservation], ResourceObservation]]] = {
    "interfaces": _without_node_field("interfaces"),
    "tags": _without_node_field("tags"),
    _PORTS_PART: _with_fewer_ports,
    "nodes": lambda observation: msgspec.structs.replace(observation, nodes=(), simulation_stats=None),
}
"""What is left out, the least useful first: ports are also named by the tags that hold them."""


def find_drift(
    allocated: Mapping[str, int], template: PortTemplate, seen: ResourceObservation
) -> dict[str, tuple[int | None, int | None]]:
    """Compare a session's ports with the observed ones. Ports that were left out are unknown and not compared."""
    differs = drift(keep_observable(allocated, template), seen.observed_ports)
    if _PORTS_PART not in seen.left_out:
        return differs
    return {name: ports for name, ports in differs.items() if name in seen.observed_ports}
