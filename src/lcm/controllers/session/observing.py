"""What CML says of a lab as an observation: `model.learning` adds it up. Pure; called by `effects`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from lcm.model.definition import PortTemplate
from lcm.model.learning import observation_of
from lcm.model.observation import InterfaceObservation, NodeObservation, NodeStats, ResourceObservation
from lcm.providers.labhost import InterfaceFacts, NodeFacts, NodeUse, SimulationStats

Observer = Literal["lablet-controller", "manual"]


def observe(
    nodes: Sequence[NodeFacts],
    stats: SimulationStats | None,
    allocated: Mapping[str, int],
    template: PortTemplate,
    now: datetime,
    *,
    observer: Observer,
) -> ResourceObservation:
    """Put together what was seen of a lab; without `stats` what its nodes were given is known all the same."""
    used = {ref: _stats(use) for ref, use in stats.nodes.items()} if stats else None
    seen, ours = [_node(node) for node in nodes], frozenset(allocated.values())
    return observation_of(seen, template, at=now, observer=observer, stats=used, allocated=ours)


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
