"""Figures of a simulated CML: what the machine has, what running nodes use of it, and the addresses they got.

Loads are made up from a node's id and age, so the same moment always shows the same figures.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from lcm.sim.cml.pace import CmlPace
from lcm.sim.cml.parts import ACTIVE, RUNNING, LabLink, Node, NodeState, SimLab
from lcm.sim.cml.rest.documents import Json
from lcm.sim.cml.wiring import link_state

COMPUTE_ID: Final = "00000000-0000-4000-b000-000000000000"
_CORE_CHECKS: Final = ("core_connected", "nodes_loaded", "images_loaded")
_COMPUTE_CHECKS: Final = (
    "kvm_vmx_enabled",
    "enough_cpus",
    "lld_connected",
    "lld_synced",
    "libvirt",
    "fabric",
    "device_mux",
    "refplat_images_available",
    "docker_shim",
)
_MB: Final = 1024 * 1024
_OWN_MEMORY_MB: Final = 2_600
_OWN_DISK_GB: Final = 30


@dataclass(frozen=True, slots=True)
class CmlMachine:
    """The hardware, and the CML installed on it; an m5zn.metal by default."""

    cpu_count: int = 48
    memory_mb: int = 196_608
    disk_gb: int = 500
    version: str = "2.9.1+build.7"
    hostname: str = "cml-controller"
    silent_seconds: float = 45.0
    """How long after power-on nothing listens."""
    boot_seconds: float = 240.0
    """How long after power-on CML is ready; in between its proxy answers 502."""


class NodeLoad(NamedTuple):
    """What one running node uses."""

    cpu_percent: float
    ram_percent: float
    disk_mb: int
    read_bytes: int
    written_bytes: int


class MachineUse(NamedTuple):
    """What all running nodes of a machine use, and CML itself."""

    busy_cpus: float
    cpu_percent: float
    memory_mb: float
    disk_mb: float
    running: int
    total: int
    allocated_cpus: int
    allocated_mb: int


class _RunningLoad(NamedTuple):
    """What the load of a running node is made of, until its state changes."""

    cpus: int
    peak: float
    phase: float
    boot_percent: float | None
    """What it uses of its CPUs while it boots; None once it has booted."""
    disk_mb: float
    started: float


class MeasuredNodes(NamedTuple):
    """What nodes use until one of them changes its state: sums, and what depends on their age."""

    memory_mb: float
    total: int
    allocated_cpus: int
    allocated_mb: int
    running: Sequence[_RunningLoad]


def measure_nodes(nodes: Iterable[Node], age: float) -> MeasuredNodes:
    """Add up what running nodes use. Nodes that have disks here count as there, whether they run or not."""
    memory_mb, total, cpus, ram_mb, loads = float(_OWN_MEMORY_MB), 0, 0, 0, list[_RunningLoad]()
    for node in nodes:
        state = node.life.state(age)
        total += state is not NodeState.DEFINED
        if state not in RUNNING:
            continue
        share, booted = _share_of(node.id), state is NodeState.BOOTED
        cpus, ram_mb = cpus + node.cpus, ram_mb + node.ram_mb
        memory_mb += node.ram_mb * _ram_percent(share, booted=booted) / 100
        boot = None if booted else _cpu_percent(share, age, booted=False)
        started = node.life.age_entered(NodeState.STARTED) or math.inf
        loads.append(_RunningLoad(node.cpus, 2 + 8 * share, 6.28 * share, boot, 200 + 400 * share, started))
    return MeasuredNodes(memory_mb, total, cpus, ram_mb, loads)


def machine_use(machine: CmlMachine, nodes: MeasuredNodes, age: float) -> MachineUse:
    """Return what running nodes use at an age at which none of them has changed its state since they were measured."""
    busy, disk_mb, turn, sin = 0.4, float(_OWN_DISK_GB * 1024), age / 97, math.sin
    for cpus, peak, phase, boot, disk, started in nodes.running:
        percent = round(min(peak * (1 + 0.5 * sin(turn + phase)), 100.0), 2) if boot is None else boot
        busy += cpus * percent / 100
        disk_mb += round(disk + min(age - started, 36_000) / 60) if age > started else round(disk)
    percent = round(min(100.0, 100 * busy / machine.cpu_count), 2)
    memory_mb, total, allocated_cpus, allocated_mb, running = nodes
    return MachineUse(busy, percent, memory_mb, disk_mb, len(running), total, allocated_cpus, allocated_mb)


@lru_cache(4096)
def _share_of(node_id: str) -> float:
    """Return a number from 0 to 1 that is a node's own."""
    return int(node_id[:8], 16) / 0xFFFFFFFF


def node_load(node: Node, age: float) -> NodeLoad:
    """Make up what a node uses: much while it boots, then little, in slow waves."""
    share, ran = _share_of(node.id), _seconds_run(node, age)
    booted = node.life.state(age) is NodeState.BOOTED
    return NodeLoad(
        cpu_percent=_cpu_percent(share, age, booted=booted),
        ram_percent=_ram_percent(share, booted=booted),
        disk_mb=_disk_mb(share, ran),
        read_bytes=int(50_000_000 * (1 + share) + ran * 900),
        written_bytes=int(400_000 * (1 + share) + ran * 2_300),
    )


def _seconds_run(node: Node, age: float) -> float:
    return max(0.0, age - (node.life.age_entered(NodeState.STARTED) or age))


def _cpu_percent(share: float, age: float, *, booted: bool) -> float:
    wave = 1 + 0.5 * math.sin(age / 97 + 6.28 * share)
    return round(min((2 + 8 * share) * wave if booted else 70 + 25 * share, 100.0), 2)


def _ram_percent(share: float, *, booted: bool) -> float:
    return round(35 + 40 * share if booted else 20 + 10 * share, 2)


def _disk_mb(share: float, ran: float) -> int:
    return round(200 + 400 * share + min(ran, 36_000) / 60)


def system_stats(machine: CmlMachine, nodes: Iterable[Node], age: float) -> Json:
    """Return what the machine has and uses, as CML writes it."""
    use = machine_use(machine, measure_nodes(nodes, age), age)
    cpu = {"count": machine.cpu_count, "percent": use.cpu_percent}
    memory = _space(use.memory_mb, machine.memory_mb)
    disk = _space(use.disk_mb, machine.disk_gb * 1024)
    detail = {
        "cpu": cpu
        | {
            "model": "Simulated CPU",
            "predicted": round(100 * use.allocated_cpus / machine.cpu_count),
            "load": [round(use.busy_cpus, 2)] * 3,
        },
        "memory": memory,
        "disk": disk,
        "dominfo": {
            "total_nodes": use.total,
            "total_orphans": 0,
            "running_nodes": use.running,
            "running_orphans": 0,
            "allocated_cpus": use.allocated_cpus,
            "allocated_memory": use.allocated_mb * 1024,
        },
    }
    host = {"hostname": machine.hostname, "is_controller": True, "stats": detail}
    return {
        "computes": {COMPUTE_ID: host},
        "all": {"cpu": cpu, "memory": memory, "disk": disk},
        "controller": {"disk": disk},
    }


def health_report(machine: CmlMachine, failing: Iterable[str]) -> Json:
    """Return which checks pass; an ailment is the name of a check that fails."""
    broken = set(failing)
    core, compute = ({name: name not in broken for name in checks} for checks in (_CORE_CHECKS, _COMPUTE_CHECKS))
    core_valid, compute_valid = all(core.values()), all(compute.values())
    about = {"admission_state": "READY", "is_controller": True, "hostname": machine.hostname}
    return {
        "valid": core_valid and compute_valid,
        "computes": {COMPUTE_ID: compute | {"valid": compute_valid} | about},
        "controller": core | {"valid": core_valid},
    }


def node_counts(nodes: Iterable[Node], age: float) -> Json:
    """Count nodes that have disks here, and those that run."""
    states = [node.life.state(age) for node in nodes]
    return {
        "total_nodes": sum(state is not NodeState.DEFINED for state in states),
        "total_orphans": 0,
        "running_nodes": sum(state in RUNNING for state in states),
        "running_orphans": 0,
    }


def simulation_stats(lab: SimLab, pace: CmlPace) -> Json:
    """Return a lab's figures by node and link id; what does not run is left out."""
    age = pace.age()
    nodes = {node.id: _node_stats(node, pace, age) for node in lab.nodes.values() if node.life.state(age) in ACTIVE}
    states = lab.node_states(age)
    up = [link for link in lab.links.values() if link_state(link, states) is NodeState.STARTED]
    links = {link.id: _link_stats(lab, link, age) for link in up}
    return {"nodes": nodes, "links": links}


def layer3_addresses(lab: SimLab, age: float) -> Json:
    """Return the addresses seen on the booted nodes of a lab."""
    found = {node.id: node_addresses(node, age) for node in lab.nodes.values() if node.kind.needs_licence}
    return {ref: one for ref, one in found.items() if one["interfaces"]}


def node_addresses(node: Node, age: float) -> Json:
    """Return the addresses seen on one node."""
    seen = node.life.state(age) is NodeState.BOOTED
    return {
        "name": node.spec.label,
        "interfaces": {
            one.operational_mac: {"id": one.id, "label": one.label, "ip4": [one.ip4], "ip6": []}
            for one in node.interfaces
            if seen and one.ip4 and not one.down
        },
    }


def _node_stats(node: Node, pace: CmlPace, age: float) -> Json:
    times = _state_times(node, pace, age)
    if node.life.state(age) not in RUNNING:
        return {"times": times}
    now = node_load(node, age)
    return {
        "cpu_usage": now.cpu_percent,
        "ram_usage": now.ram_percent,
        "disk_usage": now.disk_mb,
        "block0_rd_bytes": now.read_bytes,
        "block0_wr_bytes": now.written_bytes,
        "cpu_limit": node.cpu_limit,
        "cpus": node.cpus,
        "ram": node.ram_mb,
        "times": times,
    }


def _state_times(node: Node, pace: CmlPace, age: float) -> Json:
    """Return how long it queued, and how long ago it started and booted, in seconds of the clock."""
    queued, started, booted = (
        node.life.age_entered(one) for one in (NodeState.QUEUED, NodeState.STARTED, NodeState.BOOTED)
    )
    if queued is None:
        return {"QUEUED": 0, "STARTED": 0, "BOOTED": 0}
    has_started = started is not None and queued <= started <= age
    has_booted = has_started and booted is not None and queued <= booted <= age
    waited = pace.seconds_since(queued) - (pace.seconds_since(started) if has_started and started is not None else 0)
    return {
        "QUEUED": round(waited),
        "STARTED": round(pace.seconds_since(started)) if has_started and started is not None else 0,
        "BOOTED": round(pace.seconds_since(booted)) if has_booted and booted is not None else 0,
    }


def _link_stats(lab: SimLab, link: LabLink, age: float) -> Json:
    ends = (lab.nodes[end.node_id].life.age_entered(NodeState.STARTED) or age for end in (link.a, link.b))
    up = int(max(0.0, age - max(ends)))
    return {"readbytes": up * 180, "readpackets": up * 2, "writebytes": up * 210, "writepackets": up * 2, "drops": 0}


def _space(used_mb: float, total_mb: int) -> Json:
    total, used = float(total_mb * _MB), float(round(min(used_mb, total_mb) * _MB))
    return {"used": used, "free": total - used, "total": total}
