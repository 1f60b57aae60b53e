"""The engine's state as controllers see it through `LabHost`. Used by `sim.cml.direct`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from lcm.providers.protocols.labhost import (
    Activity,
    HostHealth,
    HostNotice,
    InterfaceFacts,
    LabState,
    LabSummary,
    Licence,
    LinkUse,
    Maintenance,
    NodeDefinition,
    NodeFacts,
    NodeUse,
    PoolUse,
    SimulationStats,
    Stats,
)
from lcm.sim.cml.definitions import NodeKind
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import Interface, Node, NodeState, SimLab
from lcm.sim.cml.stats import health_report, node_addresses, simulation_stats
from lcm.sim.cml.users import ResourcePool
from lcm.sim.cml.wiring import interface_state

_PERCENT: Final = 100


def lab_facts(cml: Cml, lab: SimLab) -> LabSummary:
    """Describe a lab."""
    owner = cml.users.everybody.get(lab.owner_id)
    return LabSummary(
        lab_id=lab.id,
        title=lab.title,
        state=LabState(lab.state(cml.pace.age())),
        node_count=len(lab.nodes),
        owner=owner.username if owner else "",
        created_at=_whole_seconds(lab.created),
        modified_at=_whole_seconds(lab.modified),
    )


def describe_nodes(cml: Cml, before: Mapping[str, NodeFacts]) -> dict[str, NodeFacts]:
    """Describe the nodes of all labs by their ids, without interfaces. `before` is how that was done the last time."""
    age = cml.pace.age()
    return {node.id: _same_facts(node, age, before.get(node.id)) or node_facts(node, age) for node in cml.labs.nodes()}


def lab_nodes(lab: SimLab, age: float) -> Sequence[NodeFacts]:
    """Describe the nodes of a lab with their interfaces."""
    return [node_facts(node, age, interface_facts(node, age)) for node in lab.nodes.values()]


def _same_facts(node: Node, age: float, known: NodeFacts | None) -> NodeFacts | None:
    """Return what is known of a node if that has not changed, as nearly always; otherwise None.

    Its sizes can be changed before it starts only.
    """
    state, spec = node.life.state(age), node.spec
    if known is None or state is NodeState.DEFINED or known.state != state:
        return None
    return known if known.label == spec.label and [*known.tags] == spec.tags else None


def node_facts(node: Node, age: float, interfaces: Iterable[InterfaceFacts] = ()) -> NodeFacts:
    """Describe a node: what its file says until it starts, then what it really got."""
    state, spec = node.life.state(age), node.spec
    started = state is not NodeState.DEFINED
    disks = [node.boot_disk_gb, node.data_volume_gb] if started else [spec.boot_disk_size, spec.data_volume]
    known = [disk for disk in disks if disk is not None]
    return NodeFacts(
        node_id=node.id,
        label=spec.label,
        node_definition=spec.node_definition,
        state=str(state),
        tags=tuple(spec.tags),
        cpus=_float_or_none(node.cpus if started else spec.cpus),
        cpu_limit=node.cpu_limit if started else spec.cpu_limit,
        ram_mb=node.ram_mb if started else spec.ram,
        disk_gb=float(sum(known)) if known else None,
        interfaces=tuple(interfaces),
    )


def interface_facts(node: Node, age: float) -> Iterator[InterfaceFacts]:
    """Describe a node's interfaces and the addresses seen on them."""
    seen = {one["id"]: one["ip4"] for one in node_addresses(node, age)["interfaces"].values()}
    for one in node.interfaces:
        yield _interface_facts(node, one, age, seen.get(one.id, ()))


def stats_facts(cml: Cml) -> Stats:
    """Describe what the machine has and uses."""
    machine = cml.machine
    use = cml.use()
    disk_mb = machine.disk_gb * 1024
    return Stats(
        cpu_count=machine.cpu_count,
        cpu_percent=use.cpu_percent,
        memory_total_mb=machine.memory_mb,
        memory_used_mb=int(min(use.memory_mb, machine.memory_mb)),
        disk_total_mb=disk_mb,
        disk_used_mb=int(min(use.disk_mb, disk_mb)),
        running_nodes=use.running,
        total_nodes=use.total,
        allocated_cpus=float(use.allocated_cpus),
        allocated_memory_mb=use.allocated_mb,
    )


def health_facts(cml: Cml) -> HostHealth:
    """Describe CML's health."""
    report = health_report(cml.machine, cml.ailments)
    parts = {"controller": report["controller"]} | {one["hostname"]: one for one in report["computes"].values()}
    reasons = [
        f"{name}: {check}"
        for name, part in parts.items()
        for check, good in part.items()
        if good is False and check != "valid"
    ]
    return HostHealth(healthy=report["valid"], licensed=cml.licence.in_compliance, reasons=tuple(reasons))


def usage_facts(cml: Cml, lab: SimLab) -> SimulationStats:
    """Describe what a lab's nodes and links use."""
    report = simulation_stats(lab, cml.pace)
    links = report["links"].items()
    return SimulationStats(
        nodes={ref: _node_usage(one) for ref, one in report["nodes"].items()},
        links={ref: LinkUse(read_bytes=one["readbytes"], written_bytes=one["writebytes"]) for ref, one in links},
    )


def licence_facts(cml: Cml) -> Licence:
    """Describe the licence."""
    licence = cml.licence
    return Licence(
        registration=licence.registration(),
        authorization=licence.authorization(),
        product=licence.product,
        node_limit=licence.node_limit,
        expansion_nodes=licence.expansion,
        failure=licence.failure(hidden=True),
    )


def maintenance_facts(cml: Cml) -> Maintenance:
    """Describe whether CML is closed for maintenance, and its notices."""
    shown = [
        HostNotice(notice_id=one.id, level=one.level, label=one.label, content=one.content)
        for one in cml.notices.all.values()
        if one.enabled
    ]
    return Maintenance(enabled=cml.notices.maintenance, notices=tuple(shown))


def activity_after(cml: Cml, since: datetime) -> Sequence[Activity]:
    """Describe what people and machines did after a moment."""
    return [Activity(category=event.category, at=at) for at, event in cml.telemetry.events_after(since)]


def all_pools(cml: Cml) -> Sequence[PoolUse]:
    """Describe all resource pools."""
    return [pool_facts(pool, cml.pool_usage(pool)) for pool in cml.pools.all.values()]


def pool_facts(pool: ResourcePool, used: dict[str, Any]) -> PoolUse:
    """Describe a resource pool."""
    return PoolUse(
        pool_id=pool.id,
        label=pool.label,
        licenses=used["licenses"],
        licenses_limit=pool.licenses,
        cpus=used["cpus"] / _PERCENT,
        cpus_limit=pool.cpus,
        ram_mb=used["ram"],
        ram_limit_mb=pool.ram,
    )


def definition_facts(kind: NodeKind) -> NodeDefinition:
    """Describe a node definition."""
    shipped = kind.shipped
    return NodeDefinition(
        definition_id=kind.id,
        cpus=float(shipped.cpus),
        ram_mb=shipped.ram_mb,
        boot_disk_gb=float(shipped.boot_disk_gb),
        data_volume_gb=float(shipped.data_volume_gb),
        nature=kind.nature,
        image_definitions=shipped.image_definitions,
    )


def _interface_facts(node: Node, one: Interface, age: float, ip4: Iterable[str]) -> InterfaceFacts:
    return InterfaceFacts(
        interface_id=one.id,
        label=one.label,
        slot=one.slot,
        state=str(interface_state(node.life.state(age), one)),
        mac_address=one.operational_mac or one.mac_address,
        ip4=tuple(ip4),
    )


def _node_usage(one: dict[str, Any]) -> NodeUse:
    return NodeUse(
        cpu_usage=one.get("cpu_usage"),
        ram_usage=one.get("ram_usage"),
        disk_usage=_float_or_none(one.get("disk_usage")),
        cpus=_float_or_none(one.get("cpus")),
        ram_mb=one.get("ram"),
        seconds_in_state={state: float(seconds) for state, seconds in one["times"].items()},
    )


def _float_or_none(number: float | None) -> float | None:
    return None if number is None else float(number)


def _whole_seconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)
