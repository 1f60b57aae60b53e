"""What a running lab really used: resources, ports, nodes. Real units: whole CPUs, MB; boot and steady state apart."""

from collections.abc import Mapping
from typing import Literal

from lcm.model.resource import Moment, Part


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
