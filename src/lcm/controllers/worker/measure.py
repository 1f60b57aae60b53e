"""What answers of the cloud and of CML mean for a worker's measurements and status. Pure; used by `monitor`.

A fact stays until another replaces it; while CML is silent `Reachable` says so, and its health is unknown. Only this
module sets `Reachable`, `HealthCheckPassed`, `unhealthy_since`, `foreign_ports` and `foreign`: the last two are ports
and capacity taken by labs that belong to no session.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Final

import msgspec

from lcm.controllers.worker.conditions import definition_facts, ec2_facts, licence_facts, with_checks
from lcm.model.base.capacity import Amount
from lcm.model.base.errors import LcmError, Stuck, Unreachable
from lcm.model.base.resource import Condition, Truth, find_condition, has_condition, shorten_text, with_condition
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession
from lcm.model.kinds.worker import (
    CmlFacts,
    Ec2Facts,
    LabWorker,
    LabWorkerStatus,
    WorkerCondition,
    WorkerPhase,
    WorkerTelemetry,
)
from lcm.model.telemetry.measurement import with_figures
from lcm.model.topology.ports import used_ports
from lcm.providers.protocols.compute import Instance, InstanceState, MachineMetrics, StatusCheckResult, StatusChecks
from lcm.providers.protocols.labhost import (
    Activity,
    HostHealth,
    Licence,
    NodeDefinition,
    NodeFacts,
    NotReady,
    Stats,
    System,
)

_OFF_STATES: Final = frozenset({"DEFINED_ON_CORE", "STOPPED"})
"""States of a node that does not run and is not about to."""
_CORE_MILLIS: Final = 1000
"""Thousandths of a CPU. A node whose CPU count is not known counts as one."""
_MB_PER_GB: Final = 1024


@dataclass(frozen=True, slots=True)
class SessionLabs:
    """The labs on a worker that belong to sessions, and their ports. `coming` are ports whose lab is not known yet."""

    lab_ids: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    coming: frozenset[int] = frozenset()


def session_labs(sessions: Iterable[LabletSession]) -> SessionLabs:
    """Return the labs and ports of the sessions of a worker."""
    labs, ports, coming = set[str](), set[int](), set[int]()
    for status in (one.status for one in sessions if one.status.phase in ON_WORKER_PHASES):
        mine = (status.allocated_ports or {}).values()
        ports.update(mine)
        if status.cml_lab_id:
            labs.add(status.cml_lab_id)
        else:
            coming.update(mine)
    return SessionLabs(frozenset(labs), frozenset(ports), frozenset(coming))


def foreign_ports(nodes: Mapping[str, Sequence[NodeFacts]], here: SessionLabs) -> tuple[int, ...]:
    """Return the ports in use that no session was given: by others' labs, or by ours that somebody edited."""
    tags = (tag for lab in nodes.values() for node in lab for tag in node.tags)
    return tuple(sorted(used_ports(tags) - here.ports))


def foreign_use(nodes: Mapping[str, Sequence[NodeFacts]], here: SessionLabs, ports: int) -> Amount:
    """Return what others' labs take of the machine: their running nodes, and their ports whether running or not."""
    # A lab that has ports of ours was imported a moment ago, and its id is not known yet.
    labs = [
        running_nodes(lab)
        for lab_id, lab in nodes.items()
        if lab_id not in here.lab_ids and here.coming.isdisjoint(used_ports(tag for node in lab for tag in node.tags))
    ]
    nodes_on = [node for lab in labs for node in lab]
    return Amount(
        cpu_millis=sum(_CORE_MILLIS if node.cpus is None else ceil(node.cpus * _CORE_MILLIS) for node in nodes_on),
        memory_mb=sum(node.ram_mb or 0 for node in nodes_on),
        storage_mb=sum(ceil((node.disk_gb or 0) * _MB_PER_GB) for node in nodes_on),
        nodes=len(nodes_on),
        ports=ports,
        labs=sum(map(bool, labs)),
    )


def running_nodes(nodes: Sequence[NodeFacts]) -> Sequence[NodeFacts]:
    """Return the nodes of a lab that run or are about to."""
    return [node for node in nodes if node.state not in _OFF_STATES]


_P = WorkerPhase

SERVING: Final = frozenset(
    {_P.READY_UNLICENSED, _P.LICENSING, _P.READY, _P.ACTIVE, _P.DRAINING, _P.UNLICENSING},
)
"""Phases in which CML is up and is asked."""
SETTLED: Final = SERVING | {_P.STOPPED, _P.FAILED}
"""Phases in which nobody else looks at the machine all the time. In the others the lifecycle knows it better."""
MEASURED: Final = SETTLED | {_P.EC2_READY, _P.STARTING, _P.STOPPING, _P.TERMINATING_EC2}
"""Phases in which there may be a machine to measure."""
_RESTING_PHASES: Final = MEASURED - SERVING - {_P.FAILED}
_LICENCE_CHANGING: Final = frozenset({_P.LICENSING, _P.UNLICENSING})
_AUTOMATIC_CATEGORIES: Final = frozenset({"license_info", "running_nodes"})
"""What CML records from time to time though nobody does anything."""
_MAX_LABS: Final = 1000


@dataclass(frozen=True, slots=True)
class CloudView:
    """What the cloud said of one machine. `instance` None: it is gone. The other fields None: no answer."""

    at: datetime
    instance: Instance | None
    checks: StatusChecks | None = None
    metrics: MachineMetrics | None = None


@dataclass(frozen=True, slots=True)
class HostView:
    """What CML said. None: no answer, or not asked this time. `error` is the first that was met."""

    at: datetime
    stats: Stats | None = None
    health: HostHealth | None = None
    nodes: Mapping[str, Sequence[NodeFacts]] | None = None
    activity: Sequence[Activity] | None = None
    licence: Licence | None = None
    system: System | None = None
    definitions: Sequence[NodeDefinition] | None = None
    error: LcmError | None = None


@dataclass(frozen=True, slots=True)
class ActivityWatermark:
    """The newest entry of CML's activity record as of `at`: by CML's clock, and when it happened by ours."""

    at: datetime
    newest: datetime | None = None
    happened_at: datetime | None = None


def telemetry(
    cloud: CloudView | None, host: HostView | None, *, last_activity_at: datetime | None, now: datetime
) -> WorkerTelemetry | None:
    """Return what was measured and how old each part is; None when nobody answered."""
    machine = cloud.instance if cloud else None
    metrics = (cloud.metrics if cloud else None) or MachineMetrics()
    whole = host is not None and host.nodes is not None
    stats, nodes = (host.stats, host.nodes) if host and whole else (None, None)
    if machine is None and stats is None:
        return None
    started_at = machine.launched_at if machine and machine.state is InstanceState.RUNNING else None
    found = WorkerTelemetry(
        collected_at=now,
        ec2_at=cloud.at if cloud and machine else None,
        cloudwatch_at=metrics.measured_at,
        cml_at=host.at if host and stats else None,
        activity_at=host.at if host and host.activity is not None else None,
        cml_cpu_utilization=_clamp_percent(stats.cpu_percent) if stats else None,
        cml_memory_utilization=_percent_of(stats.memory_used_mb, stats.memory_total_mb) if stats else None,
        cml_storage_utilization=_percent_of(stats.disk_used_mb, stats.disk_total_mb) if stats else None,
        cloudwatch_cpu_utilization=_clamp_percent(metrics.cpu_percent),
        cloudwatch_memory_utilization=_clamp_percent(metrics.memory_percent),
        cloudwatch_storage_utilization=_clamp_percent(metrics.disk_percent),
        network_in_bytes=metrics.network_in_bytes,
        network_out_bytes=metrics.network_out_bytes,
        uptime_seconds=max(0, int((now - started_at).total_seconds())) if started_at and stats else None,
        running_nodes=stats.running_nodes if stats else None,
        active_labs_count=None if nodes is None else sum(bool(running_nodes(lab)) for lab in nodes.values()),
        hosted_lab_ids=tuple(sorted(nodes or ())[:_MAX_LABS]),
        last_activity_at=last_activity_at,
    )
    return with_figures(found)


def advance_watermark(
    activity: Sequence[Activity], at: datetime, before: ActivityWatermark | None
) -> ActivityWatermark:
    """Advance the watermark of CML's activity record, by its own clock and by ours.

    CML's clock may differ from ours. If it is behind, an entry that is new now still happened since the last
    time. If it is ahead, the worker counts as used until our clock has caught up: its next entries, once that
    clock is corrected, stand before what is known and are not seen.
    """
    newest = max((one.at for one in activity if one.category not in _AUTOMATIC_CATEGORIES), default=None)
    if before is not None and (newest is None or (before.newest is not None and newest <= before.newest)):
        return replace(before, at=at)
    return ActivityWatermark(at, newest, max(newest, before.at) if newest and before else newest)


def with_cloud(status: LabWorkerStatus, cloud: CloudView, now: datetime) -> LabWorkerStatus:
    """Update a status with what the cloud said."""
    if status.phase not in SETTLED:
        return status
    return _with_health(msgspec.structs.replace(status, ec2=_with_cloud_facts(status.ec2, cloud)), now)


def contradicts(status: LabWorkerStatus, cloud: CloudView) -> bool:
    """Return whether the cloud says something else of the machine itself, not only of its checks."""
    return _with_cloud_facts(status.ec2, replace(cloud, checks=None)) != status.ec2


def with_host(worker: LabWorker, host: HostView | None, here: SessionLabs, now: datetime) -> LabWorkerStatus:
    """Update a worker's status with what CML said; None: it was not asked, as it is not expected to be up."""
    status = worker.status
    if host is None:
        return _without_host_state(status, now) if status.phase in _RESTING_PHASES else status
    ports, foreign = status.foreign_ports, status.foreign
    if host.nodes is not None:
        ports = foreign_ports(host.nodes, here)
        foreign = foreign_use(host.nodes, here, len(ports))
    known = msgspec.structs.replace(
        status,
        cml=_with_host_facts(status, host),
        capacity=_current_capacity(status.capacity, host.stats),
        foreign_ports=ports,
        foreign=foreign,
        conditions=_with_changed_condition(status, _reachable_condition(host, now)),
    )
    return _with_health(known, now, host.health.reasons if host.health else ())


def needs_licence_check(status: LabWorkerStatus, health: HostHealth | None) -> bool:
    """Return whether CML's health says something new of the licence. Then its licence must be read to be sure."""
    if health is None or health.licensed is None or status.phase in _LICENCE_CHANGING:
        return False
    return health.licensed is not status.cml.licensed


def _with_cloud_facts(known: Ec2Facts, cloud: CloudView) -> Ec2Facts:
    if cloud.instance is None:
        return msgspec.structs.replace(known, state=str(InstanceState.TERMINATED), state_since=None)
    found = ec2_facts(known, cloud.instance)
    kept = msgspec.structs.replace(found, client_token=known.client_token, gone_at=known.gone_at)
    return with_checks(kept, cloud.checks) if cloud.checks else kept


def _with_host_facts(status: LabWorkerStatus, host: HostView) -> CmlFacts:
    known = status.cml
    if host.system is not None:
        known = msgspec.structs.replace(known, version=host.system.version, ready=host.system.ready)
    if host.health is not None:
        known = msgspec.structs.replace(known, healthy=host.health.healthy)
    if host.licence is not None and status.phase not in _LICENCE_CHANGING:
        known = licence_facts(known, host.licence)
    if host.definitions is not None:
        known = definition_facts(known, host.definitions)
    return known


def _current_capacity(known: Amount | None, stats: Stats | None) -> Amount | None:
    """Return a worker's capacity by what its machine has now, which may be less than at the last boot by us."""
    if known is None or stats is None or not (stats.cpu_count and stats.memory_total_mb and stats.disk_total_mb):
        return known
    return msgspec.structs.replace(
        known,
        cpu_millis=stats.cpu_count * 1000,
        memory_mb=stats.memory_total_mb,
        storage_mb=stats.disk_total_mb,
    )


def _reachable_condition(host: HostView, now: datetime) -> Condition:
    if host.stats is not None or host.health is not None:
        return _make_condition(WorkerCondition.REACHABLE, Truth.TRUE, "Answered", "CML answers", now)
    error = host.error
    known = isinstance(error, NotReady | Unreachable | Stuck)
    reason = error.reason if isinstance(error, Stuck) else type(error).__name__
    truth = Truth.FALSE if known else Truth.UNKNOWN
    return _make_condition(WorkerCondition.REACHABLE, truth, reason, str(error), now)


def _with_health(status: LabWorkerStatus, now: datetime, reasons: Sequence[str] = ()) -> LabWorkerStatus:
    """Judge health by all that is known: unhealthy needs a failed check, healthy needs all checks passed."""
    if status.phase not in SERVING:
        return status
    checks = (status.ec2.system_status, status.ec2.instance_status)
    name = WorkerCondition.HEALTH_CHECK_PASSED
    if StatusCheckResult.IMPAIRED in checks:
        text = f"EC2 calls the system {checks[0] or 'unknown'} and the instance {checks[1] or 'unknown'}"
        said = _make_condition(name, Truth.FALSE, "StatusCheckFailed", text, now)
    elif has_condition(status.conditions, WorkerCondition.REACHABLE, Truth.FALSE):
        said = _make_condition(name, Truth.UNKNOWN, "CmlSilent", "CML does not answer", now)
    elif status.cml.healthy is False:
        text = "; ".join(reasons) or "CML's own health check fails"
        said = _make_condition(name, Truth.FALSE, "CmlUnhealthy", text, now)
    elif status.cml.healthy and checks == (StatusCheckResult.OK, StatusCheckResult.OK):
        said = _make_condition(name, Truth.TRUE, "ChecksPassed", "EC2's checks and CML's own pass", now)
    else:
        said = _make_condition(name, Truth.UNKNOWN, "NotAllKnown", "not every check has answered yet", now)
    since = status.unhealthy_since
    if said.status is not Truth.UNKNOWN:
        since = None if said.status is Truth.TRUE else since or now
    return msgspec.structs.replace(status, conditions=_with_changed_condition(status, said), unhealthy_since=since)


def _without_host_state(status: LabWorkerStatus, now: datetime) -> LabWorkerStatus:
    """Forget what was said of a CML that is down or starts afresh."""
    silent = f"CML is not asked while the worker is {status.phase}"
    for name in (WorkerCondition.REACHABLE, WorkerCondition.HEALTH_CHECK_PASSED):
        said = _make_condition(name, Truth.UNKNOWN, "NotAsked", silent, now)
        status = msgspec.structs.replace(status, conditions=_with_changed_condition(status, said))
    cml = msgspec.structs.replace(status.cml, healthy=None)
    return msgspec.structs.replace(status, cml=cml, unhealthy_since=None)


def _make_condition(name: WorkerCondition, truth: Truth, reason: str, message: str, now: datetime) -> Condition:
    return Condition(type=name, status=truth, reason=reason, message=shorten_text(message), last_transition_at=now)


def _with_changed_condition(status: LabWorkerStatus, new: Condition) -> tuple[Condition, ...]:
    """Set a condition, unless only its message differs: each change is a revision that every watcher receives."""
    old = find_condition(status.conditions, new.type)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return status.conditions
    return with_condition(status.conditions, new)


def _percent_of(used: float, total: float) -> float | None:
    return _clamp_percent(100 * used / total) if total > 0 else None


def _clamp_percent(value: float | None) -> float | None:
    return None if value is None else min(100.0, max(0.0, value))
