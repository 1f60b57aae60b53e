"""What a lab really used, made of what CML says of it. Pure; called by `effects`.

Units are CML's own: whole cores, MB, GB. `cpu_limit` is a percentage and is no part of any sum.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from lcm.model.definition import PortTemplate
from lcm.model.observation import InterfaceObservation, NodeObservation, NodeStats, ResourceObservation
from lcm.model.topology_ports import ports_on, read_tag
from lcm.providers.labhost import InterfaceFacts, NodeFacts, NodeUse, SimulationStats

Observer = Literal["lablet-controller", "manual"]
_MB_PER_GB: Final = 1024


def observe(
    nodes: Sequence[NodeFacts],
    stats: SimulationStats | None,
    allocated: Mapping[str, int],
    template: PortTemplate,
    now: datetime,
    *,
    observer: Observer,
) -> ResourceObservation:
    """Put together what was seen of a lab; without `stats` what its nodes were given is known all the same.

    Ports are those in the nodes' tags as they are on CML now, whoever wrote them.
    """
    disks = [node.disk_gb for node in nodes if node.disk_gb is not None]
    return ResourceObservation(
        observed_at=now,
        observer=observer,
        total_cpu_cores=sum(node.cpus or 0.0 for node in nodes),
        total_memory_mb=sum(node.ram_mb or 0 for node in nodes),
        total_storage_mb=round(sum(disks) * _MB_PER_GB) if disks else None,
        nodes=tuple(map(_node, nodes)),
        actual_node_count=len(nodes),
        node_definitions_used=tuple(sorted({node.node_definition for node in nodes})),
        observed_ports=ports_on(_ours_first(nodes, frozenset(allocated.values())), template),
        simulation_stats={ref: _stats(use) for ref, use in stats.nodes.items()} if stats else None,
    )


def _ours_first(nodes: Sequence[NodeFacts], given: frozenset[int]) -> Iterable[tuple[str, Sequence[str]]]:
    """Give tags by label, those with ports of our own first: of two for one name the stranger gets another name."""
    both = [(node.label, [tag for tag in node.tags if _is_ours(tag, given)]) for node in nodes]
    return [*both, *((node.label, [tag for tag in node.tags if not _is_ours(tag, given)]) for node in nodes)]


def _is_ours(text: str, given: frozenset[int]) -> bool:
    tag = read_tag(text)
    return tag is not None and tag.outside in given


def _node(node: NodeFacts) -> NodeObservation:
    return NodeObservation(
        node_id=node.node_id,
        label=node.label,
        node_definition=node.node_definition,
        state=node.state,
        cpu_limit=node.cpu_limit,
        ram_mb=node.ram_mb,
        tags=node.tags,
        interfaces=tuple(map(_interface, node.interfaces)),
        cpus=node.cpus,
        disk_gb=node.disk_gb,
    )


def _interface(one: InterfaceFacts) -> InterfaceObservation:
    return InterfaceObservation(
        interface_id=one.interface_id,
        label=one.label,
        slot=one.slot,
        state=one.state,
        mac_address=one.mac_address,
        ip4=one.ip4,
    )


def _stats(use: NodeUse) -> NodeStats:
    return NodeStats(
        cpu_usage=use.cpu_usage, ram_usage=use.ram_usage, disk_usage=use.disk_usage, boot_seconds=_boot_seconds(use)
    )


def _boot_seconds(use: NodeUse) -> float | None:
    """Say how long a node booted: CML tells how long ago it started, and how long ago it had booted."""
    started, booted = use.seconds_in_state.get("STARTED", 0.0), use.seconds_in_state.get("BOOTED", 0.0)
    return started - booted if 0 < booted <= started else None
