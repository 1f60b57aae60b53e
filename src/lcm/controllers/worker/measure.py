"""What answers of the cloud and of CML mean for a worker's measurements and status. Pure; used by `monitor`.

A fact stays until another takes its place; while CML is silent `Reachable` says so, and its health is unknown. Here
alone `Reachable`, `HealthCheckPassed`, `unhealthy_since`, `foreign_ports` and `foreign` are made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import Final

import msgspec

from lcm.controllers.worker.conditions import checked, ec2_facts, licence_facts
from lcm.model.base.capacity import Amount
from lcm.model.base.errors import LcmError, Stuck, Unreachable
from lcm.model.base.resource import Condition, Truth, condition, with_condition
from lcm.model.kinds.session import ON_WORKER, LabletSession
from lcm.model.kinds.worker import (
    CmlFacts,
    Ec2Facts,
    LabWorker,
    LabWorkerStatus,
    WorkerCondition,
    WorkerPhase,
    WorkerTelemetry,
)
from lcm.model.topology.ports import used_ports
from lcm.providers.protocols.compute import Check, Checks, Instance, InstanceState, MachineMetrics
from lcm.providers.protocols.labhost import Activity, Health, Licence, NodeFacts, NotReady, Stats, System

_OFF: Final = frozenset({"DEFINED_ON_CORE", "STOPPED"})
"""States of a node that does not run and is not about to."""
_CORE: Final = 1000
"""Thousandths; a node of which it is not known how many it got counts as one."""
_GB: Final = 1024


@dataclass(frozen=True, slots=True)
class Ours:
    """Which labs on a worker belong to sessions, and which ports those hold; `coming` have a lab that is not known."""

    lab_ids: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    coming: frozenset[int] = frozenset()


def ours(sessions: Iterable[LabletSession]) -> dict[str, Ours]:
    """Tell what of sessions is on which worker, by its uid."""
    found: dict[str, Ours] = {}
    for session in sessions:
        status = session.status
        if status.worker_id is None or status.phase not in ON_WORKER:
            continue
        known = found.get(status.worker_id, Ours())
        labs = {status.cml_lab_id} if status.cml_lab_id else set[str]()
        ports = frozenset((status.allocated_ports or {}).values())
        coming = known.coming if labs else known.coming | ports
        found[status.worker_id] = Ours(known.lab_ids | labs, known.ports | ports, coming)
    return found


def foreign_ports(nodes: Mapping[str, Sequence[NodeFacts]], here: Ours) -> tuple[int, ...]:
    """Tell which ports are held that no session was given: by strangers' labs, or by ours that somebody edited."""
    tags = (tag for lab in nodes.values() for node in lab for tag in node.tags)
    return tuple(sorted(used_ports(tags) - here.ports))


def foreign_use(nodes: Mapping[str, Sequence[NodeFacts]], here: Ours, ports: int) -> Amount:
    """Tell what strangers' labs take of the machine: their nodes that run, and their ports whether they run or not."""
    labs = [running(lab) for lab_id, lab in nodes.items() if lab_id not in here.lab_ids and not _holds(lab, here)]
    nodes_on = [node for lab in labs for node in lab]
    return Amount(
        cpu_millis=sum(_CORE if node.cpus is None else ceil(node.cpus * _CORE) for node in nodes_on),
        memory_mb=sum(node.ram_mb or 0 for node in nodes_on),
        storage_mb=sum(ceil((node.disk_gb or 0) * _GB) for node in nodes_on),
        nodes=len(nodes_on),
        ports=ports,
        labs=sum(map(bool, labs)),
    )


def _holds(lab: Sequence[NodeFacts], here: Ours) -> bool:
    """Tell whether a lab has ports of ours: it was imported a moment ago, and its id is not known yet."""
    return not here.coming.isdisjoint(used_ports(tag for node in lab for tag in node.tags))


def running(nodes: Sequence[NodeFacts]) -> Sequence[NodeFacts]:
    """Give the nodes of a lab that run, or are about to."""
    return [node for node in nodes if node.state not in _OFF]


_P = WorkerPhase

SERVING: Final = frozenset(
    {_P.READY_UNLICENSED, _P.LICENSING, _P.READY, _P.ACTIVE, _P.DRAINING, _P.UNLICENSING},
)
"""Phases in which CML is up, and is asked."""
SETTLED: Final = SERVING | {_P.STOPPED, _P.FAILED}
"""Phases in which nobody else looks at the machine all the time. In the others the lifecycle knows it better."""
MEASURED: Final = SETTLED | {_P.EC2_READY, _P.STARTING, _P.STOPPING, _P.TERMINATING_EC2}
"""Phases in which there may be a machine to measure."""
_RESTING: Final = MEASURED - SERVING - {_P.FAILED}
_LICENCE_MOVES: Final = frozenset({_P.LICENSING, _P.UNLICENSING})
_BY_ITSELF: Final = frozenset({"license_info", "running_nodes"})
"""What CML notes from time to time though nobody does anything."""
_MOST_LABS: Final = 1000


@dataclass(frozen=True, slots=True)
class CloudView:
    """What the cloud said of one machine. `instance` None: it is gone. The others None: no answer."""

    at: datetime
    instance: Instance | None
    checks: Checks | None = None
    metrics: MachineMetrics | None = None


@dataclass(frozen=True, slots=True)
class HostView:
    """What CML said. None: no answer, or not asked this time; `error` is the first that was met."""

    at: datetime
    stats: Stats | None = None
    health: Health | None = None
    nodes: Mapping[str, Sequence[NodeFacts]] | None = None
    activity: Sequence[Activity] | None = None
    licence: Licence | None = None
    system: System | None = None
    error: LcmError | None = None

    @property
    def answered(self) -> bool:
        """Whether CML said anything that only who is signed in may know."""
        return self.stats is not None or self.health is not None


@dataclass(frozen=True, slots=True)
class Heard:
    """What CML's record said `at` a moment: its newest entry by CML's clock, and when that happened by ours."""

    at: datetime
    newest: datetime | None = None
    happened_at: datetime | None = None


def telemetry(
    cloud: CloudView | None, host: HostView | None, *, last_activity_at: datetime | None, now: datetime
) -> WorkerTelemetry | None:
    """Say what was measured and how old each part is; None when nobody answered."""
    machine = cloud.instance if cloud else None
    metrics = (cloud.metrics if cloud else None) or MachineMetrics()
    whole = host is not None and host.nodes is not None
    stats, nodes = (host.stats, host.nodes) if host and whole else (None, None)
    if machine is None and stats is None:
        return None
    return WorkerTelemetry(
        collected_at=now,
        ec2_at=cloud.at if cloud and machine else None,
        cloudwatch_at=metrics.measured_at,
        cml_at=host.at if host and stats else None,
        activity_at=host.at if host and host.activity is not None else None,
        cpu_utilization=_percent(stats.cpu_percent if stats else metrics.cpu_percent),
        memory_utilization=_share(stats.memory_used_mb, stats.memory_total_mb) if stats else None,
        storage_utilization=_share(stats.disk_used_mb, stats.disk_total_mb) if stats else None,
        network_in_bytes=metrics.network_in_bytes,
        network_out_bytes=metrics.network_out_bytes,
        uptime_seconds=_uptime(machine, now) if machine and stats else None,
        running_nodes=stats.running_nodes if stats else None,
        active_labs_count=None if nodes is None else sum(bool(running(lab)) for lab in nodes.values()),
        hosted_lab_ids=tuple(sorted(nodes or ())[:_MOST_LABS]),
        last_activity_at=last_activity_at,
    )


def heard(activity: Sequence[Activity], at: datetime, before: Heard | None) -> Heard:
    """Tell what CML's record of what people did says at a moment, by its own clock and by ours.

    CML's clock may differ from ours. If it is behind, what it tells now and did not tell before happened since then all
    the same. If it is ahead, the worker counts as used until our time has come: its next entries, once that clock is
    put right, stand before what is known and are not seen.
    """
    newest = max((one.at for one in activity if one.category not in _BY_ITSELF), default=None)
    if before is not None and (newest is None or (before.newest is not None and newest <= before.newest)):
        return replace(before, at=at)
    return Heard(at, newest, max(newest, before.at) if newest and before else newest)


def with_cloud(status: LabWorkerStatus, cloud: CloudView, now: datetime) -> LabWorkerStatus:
    """Put what the cloud said over what is known."""
    if status.phase not in SETTLED:
        return status
    return _judged(msgspec.structs.replace(status, ec2=_ec2(status.ec2, cloud)), now)


def contradicts(status: LabWorkerStatus, cloud: CloudView) -> bool:
    """Tell whether the cloud says something else of the machine itself, not only of its checks."""
    return _ec2(status.ec2, replace(cloud, checks=None)) != status.ec2


def with_host(worker: LabWorker, host: HostView | None, here: Ours, now: datetime) -> LabWorkerStatus:
    """Put what CML said over what is known; None: it was not asked, for it is not expected to be up."""
    status = worker.status
    if host is None:
        return _rested(status, now) if status.phase in _RESTING else status
    ports, foreign = status.foreign_ports, status.foreign
    if host.nodes is not None:
        ports = foreign_ports(host.nodes, here)
        foreign = foreign_use(host.nodes, here, len(ports))
    known = msgspec.structs.replace(
        status,
        cml=_cml(status, host),
        capacity=_capacity(status.capacity, host.stats),
        foreign_ports=ports,
        foreign=foreign,
        conditions=_with(status, _reachable(host, now)),
    )
    return _judged(known, now, host.health.reasons if host.health else ())


def confirm_licence(status: LabWorkerStatus, health: Health | None) -> bool:
    """Tell whether what CML's health says of the licence is news; its licence tells then what really is."""
    if health is None or health.licensed is None or status.phase in _LICENCE_MOVES:
        return False
    return health.licensed is not status.cml.licensed


def _ec2(known: Ec2Facts, cloud: CloudView) -> Ec2Facts:
    if cloud.instance is None:
        return msgspec.structs.replace(known, state=str(InstanceState.TERMINATED))
    found = ec2_facts(known, cloud.instance)
    kept = msgspec.structs.replace(found, client_token=known.client_token, gone_at=known.gone_at)
    return checked(kept, cloud.checks) if cloud.checks else kept


def _cml(status: LabWorkerStatus, host: HostView) -> CmlFacts:
    known = status.cml
    if host.system is not None:
        known = msgspec.structs.replace(known, version=host.system.version, ready=host.system.ready)
    if host.health is not None:
        known = msgspec.structs.replace(known, healthy=host.health.healthy)
    if host.licence is not None and status.phase not in _LICENCE_MOVES:
        known = licence_facts(known, host.licence)
    return known


def _capacity(known: Amount | None, stats: Stats | None) -> Amount | None:
    """Say what a worker holds by what its machine has now, which may be less than when it was last booted by us."""
    if known is None or stats is None or not (stats.cpu_count and stats.memory_total_mb and stats.disk_total_mb):
        return known
    return msgspec.structs.replace(
        known,
        cpu_millis=stats.cpu_count * 1000,
        memory_mb=stats.memory_total_mb,
        storage_mb=stats.disk_total_mb,
    )


def _reachable(host: HostView, now: datetime) -> Condition:
    if host.answered:
        return _condition(WorkerCondition.REACHABLE, Truth.TRUE, "Answered", "CML answers", now)
    error = host.error
    known = isinstance(error, NotReady | Unreachable | Stuck)
    reason = error.reason if isinstance(error, Stuck) else type(error).__name__
    truth = Truth.FALSE if known else Truth.UNKNOWN
    return _condition(WorkerCondition.REACHABLE, truth, reason, str(error), now)


def _judged(status: LabWorkerStatus, now: datetime, reasons: Sequence[str] = ()) -> LabWorkerStatus:
    """Judge health by all that is known: unhealthy is only who was said to be so, healthy who passed everything."""
    if status.phase not in SERVING:
        return status
    checks = (status.ec2.system_status, status.ec2.instance_status)
    name = WorkerCondition.HEALTH_CHECK_PASSED
    if Check.IMPAIRED in checks:
        text = f"EC2 calls the system {checks[0] or 'unknown'} and the instance {checks[1] or 'unknown'}"
        said = _condition(name, Truth.FALSE, "StatusCheckFailed", text, now)
    elif _silent(status):
        said = _condition(name, Truth.UNKNOWN, "CmlSilent", "CML does not answer", now)
    elif status.cml.healthy is False:
        text = "; ".join(reasons) or "CML's own health check fails"
        said = _condition(name, Truth.FALSE, "CmlUnhealthy", text, now)
    elif status.cml.healthy and checks == (Check.OK, Check.OK):
        said = _condition(name, Truth.TRUE, "ChecksPassed", "EC2's checks and CML's own pass", now)
    else:
        said = _condition(name, Truth.UNKNOWN, "NotAllKnown", "not every check has answered yet", now)
    since = status.unhealthy_since
    if said.status is not Truth.UNKNOWN:
        since = None if said.status is Truth.TRUE else since or now
    return msgspec.structs.replace(status, conditions=_with(status, said), unhealthy_since=since)


def _silent(status: LabWorkerStatus) -> bool:
    known = condition(status.conditions, WorkerCondition.REACHABLE)
    return known is not None and known.status is Truth.FALSE


def _rested(status: LabWorkerStatus, now: datetime) -> LabWorkerStatus:
    """Forget what was said of a CML that is down, or begins anew."""
    silent = f"CML is not asked while the worker is {status.phase}"
    for name in (WorkerCondition.REACHABLE, WorkerCondition.HEALTH_CHECK_PASSED):
        said = _condition(name, Truth.UNKNOWN, "NotAsked", silent, now)
        status = msgspec.structs.replace(status, conditions=_with(status, said))
    cml = msgspec.structs.replace(status.cml, healthy=None)
    return msgspec.structs.replace(status, cml=cml, unhealthy_since=None)


def _condition(name: WorkerCondition, truth: Truth, reason: str, message: str, now: datetime) -> Condition:
    return Condition(type=name, status=truth, reason=reason, message=message[:2000], last_transition_at=now)


def _with(status: LabWorkerStatus, new: Condition) -> tuple[Condition, ...]:
    """Set a condition, unless only its words differ: each change is a revision that everybody hears of."""
    old = condition(status.conditions, new.type)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return status.conditions
    return with_condition(status.conditions, new)


def _uptime(machine: Instance, at: datetime) -> int | None:
    if machine.state is not InstanceState.RUNNING:
        return None
    return max(0, int((at - machine.launched_at).total_seconds()))


def _share(used: float, total: float) -> float | None:
    return _percent(100 * used / total) if total > 0 else None


def _percent(value: float | None) -> float | None:
    return None if value is None else min(100.0, max(0.0, value))
