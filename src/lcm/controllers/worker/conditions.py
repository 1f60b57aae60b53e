"""A worker's status derived from answers: facts of the cloud and CML, and the conditions that follow. Pure.

Conditions are derived each time the status is written. `Reachable` and `HealthCheckPassed` belong to the monitor, as
long as there is a machine to look at; the other five follow from the status.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, dimension_words
from lcm.model.base.resource import Condition, Truth, find_condition, has_condition, with_condition
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession, get_claim
from lcm.model.kinds.worker import (
    HOSTING_PHASES,
    MAX_NODE_DEFINITIONS,
    NOT_ADMITTED,
    CapacityUsage,
    CmlFacts,
    Ec2Facts,
    IdleVerdict,
    LabWorker,
    LabWorkerSpec,
    LabWorkerStatus,
    WorkerCondition,
    WorkerPhase,
    compute_usage,
)
from lcm.model.money.prices import declared_capacity
from lcm.model.topology.node_definitions import NodeSize, sizes_unlike_shipped
from lcm.providers.protocols.compute import Instance, StatusChecks
from lcm.providers.protocols.labhost import Licence, NodeDefinition, Stats

_P = WorkerPhase
_PHASES_WITHOUT_MACHINE: Final = frozenset({_P.PENDING, _P.PROVISIONING_EC2, _P.TERMINATED})
_SIZED_PHASES: Final = frozenset({_P.READY, _P.ACTIVE, _P.DRAINING})
_MACHINE_AMOUNTS: Final = ("cpu_millis", "memory_mb")
"""What a type of machine says that it has."""
_USABLE_SHARE: Final = 0.95
"""The operating system keeps some of the memory for itself."""
_C = WorkerCondition
_ORDER: Final = {str(name): place for place, name in enumerate(WorkerCondition)}


def with_conditions(
    worker: LabWorker,
    status: LabWorkerStatus,
    *,
    sessions: Sequence[LabletSession],
    require_licensed: bool,
    now: datetime,
    template: LabWorkerSpec | None = None,
) -> LabWorkerStatus:
    """Return a status with what is claimed of the worker, and with the conditions that follow from it.

    `template` is the spec that its pool makes workers by now; without a pool it is the worker's own.
    """
    status = msgspec.structs.replace(status, usage=_usage_of(status, sessions, now))
    conditions = status.conditions
    licensed = _licensed_condition(status)
    known = [
        _provisioned_condition(status),
        _cml_ready_condition(status),
        licensed,
        _accepting_condition(worker, status, licensed=licensed[1] is Truth.TRUE or not require_licensed),
        _capacity_condition(status),
    ]
    differs = describe_difference(template or worker.spec, worker.spec, status)
    if differs or find_condition(conditions, _C.LIKE_TEMPLATE) is not None:
        known.append((_C.LIKE_TEMPLATE, Truth.FALSE if differs else Truth.TRUE, *(differs or ("Like", ""))))
    if status.phase is _P.TERMINATED:  # the monitor no longer looks, and there is nothing to see
        known += [(name, Truth.UNKNOWN, "NoInstance", "") for name in (_C.HEALTH_CHECK_PASSED, _C.REACHABLE)]
    for name, truth, reason, message in known:
        new = Condition(type=name, status=truth, last_transition_at=now, reason=reason, message=message)
        conditions = with_condition(conditions, new)
    ordered = tuple(sorted(conditions, key=lambda one: _ORDER.get(one.type, len(_ORDER))))
    return msgspec.structs.replace(status, conditions=ordered)


_ConditionParts = tuple[WorkerCondition, Truth, str, str]


def _provisioned_condition(status: LabWorkerStatus) -> _ConditionParts:
    there = (
        bool(status.ec2.instance_id)
        and status.phase not in _PHASES_WITHOUT_MACHINE
        and status.ec2.state != "terminated"
    )
    if there:
        return _C.EC2_PROVISIONED, Truth.TRUE, "InstanceExists", f"{status.ec2.instance_id} is {status.ec2.state}"
    return _C.EC2_PROVISIONED, Truth.FALSE, status.failure or "NoInstance", status.last_error


def _cml_ready_condition(status: LabWorkerStatus) -> _ConditionParts:
    ready = status.cml.ready
    if ready is None:
        return _C.CML_READY, Truth.UNKNOWN, "NotSeen", "CML has not said whether it is ready"
    version = f"CML {status.cml.version}" if status.cml.version else "CML"
    if ready:
        return _C.CML_READY, Truth.TRUE, "Ready", f"{version} is ready"
    return _C.CML_READY, Truth.FALSE, "NotReady", f"{version} says that it is not ready"


def _licensed_condition(status: LabWorkerStatus) -> _ConditionParts:
    said = status.cml.license_status
    if status.cml.licensed is None:
        return _C.LICENSED, Truth.UNKNOWN, "NotSeen", "CML has not said whether it is licensed"
    if status.cml.licensed and said in {"IN_COMPLIANCE", ""}:
        return _C.LICENSED, Truth.TRUE, "InCompliance", ""
    return _C.LICENSED, Truth.FALSE, "NotLicensed", f"CML says {said}" if said else ""


def _accepting_condition(worker: LabWorker, status: LabWorkerStatus, *, licensed: bool) -> _ConditionParts:
    """Derive whether sessions may be placed: never before CML is ready and licensed, nor while unhealthy or silent."""
    is_cml, conditions = worker.spec.host_kind == "cml", status.conditions
    obstacles = (
        (worker.metadata.deletion_timestamp is not None, "Deleted", ""),
        (status.phase not in HOSTING_PHASES, f"Phase{status.phase}", ""),
        (status.ec2.reclaim_at is not None, "Reclaimed", "the cloud takes its spot machine away"),
        (worker.spec.wanted_state == "stopped", "WantedStopped", ""),
        (not worker.spec.accepts_sessions, "NotAdmitted", NOT_ADMITTED),
        (status.cml.ready is not True, "CMLNotReady", ""),
        (is_cml and status.cml.licensed is None, "LicenceUnknown", ""),
        (is_cml and not licensed, "NotLicensed", ""),
        (has_condition(conditions, _C.HEALTH_CHECK_PASSED, Truth.FALSE), "Unhealthy", ""),
        (has_condition(conditions, _C.REACHABLE, Truth.FALSE), "Unreachable", ""),
    )
    for is_in_the_way, reason, message in obstacles:
        if is_in_the_way:
            return _C.ACCEPTING_LABS, Truth.FALSE, reason, message
    return _C.ACCEPTING_LABS, Truth.TRUE, "Ready", ""


def describe_difference(wanted: LabWorkerSpec, own: LabWorkerSpec, status: LabWorkerStatus) -> tuple[str, str] | None:
    """Return in what a worker's machine differs from a template, in a word and a sentence; None if in nothing.

    A size is compared only if it is less than declared: then there is less room than was promised.
    """
    kind, aws = status.ec2.instance_type, wanted.aws
    types = (aws.instance_type, *aws.instance_type_alternatives)
    if kind and kind not in types:
        return "OtherType", f"its machine is a {kind}, and its template says {' or '.join(types)}"
    if (own.aws.region, own.aws.market) != (aws.region, aws.market):
        return (
            "OtherPlace",
            f"it is {own.aws.market} in {own.aws.region}, its template says {aws.market} in {aws.region}",
        )
    declared, has = declared_capacity(wanted), status.capacity if status.phase in _SIZED_PHASES else None
    if declared is None or has is None:
        return None
    short = [name for name in _MACHINE_AMOUNTS if getattr(has, name) < _USABLE_SHARE * getattr(declared, name)]
    if not short:
        return None
    figures = ", ".join(f"{getattr(has, name)} of {getattr(declared, name)} {name}" for name in short)
    return "Smaller", f"its machine has less than its template says: {figures}"


def _usage_of(status: LabWorkerStatus, sessions: Sequence[LabletSession], now: datetime) -> CapacityUsage | None:
    """Return what is claimed now by the sessions on a worker and by labs that no session made; None if not known."""
    if status.capacity is None or status.phase is _P.TERMINATED:
        return None
    claims = ((one.status.phase in ON_WORKER_PHASES, get_claim(one)) for one in sessions)
    needs = (claim.need for is_there, claim in claims if claim is not None and (is_there or claim.start <= now))
    return compute_usage(status.capacity, (status.foreign, *needs))


def _capacity_condition(status: LabWorkerStatus) -> _ConditionParts:
    """Derive whether anything more fits: not if something is used up of which every lab needs some."""
    if status.phase is _P.TERMINATED:
        return _C.CAPACITY_AVAILABLE, Truth.FALSE, "NoInstance", ""
    if status.capacity is None or status.usage is None:
        return _C.CAPACITY_AVAILABLE, Truth.UNKNOWN, "NotSeen", "CML has not reported what the machine has"
    used_up = [name for name in _NEEDED_BY_ALL if not getattr(status.usage.available, name)]
    labs = f"{status.usage.claimed.labs} of {status.capacity.labs} labs"
    if used_up:
        reason = "TooManyLabs" if used_up == ["labs"] else "Full"
        return _C.CAPACITY_AVAILABLE, Truth.FALSE, reason, f"no {dimension_words(used_up)} is left; {labs}"
    return _C.CAPACITY_AVAILABLE, Truth.TRUE, "Room", labs


_NEEDED_BY_ALL: Final = ("cpu_millis", "memory_mb", "nodes", "labs")
"""The dimensions of which every lab needs some."""
PORTS: Final = 6000
"""How many ports CML's PATty serves: 2000 to 7999."""


def ec2_facts(known: Ec2Facts, instance: Instance) -> Ec2Facts:
    """Update the known facts with what the cloud says. The launch is resolved once the instance is known."""
    return msgspec.structs.replace(
        known,
        client_token="",
        instance_id=instance.instance_id,
        instance_type=instance.instance_type,
        image_id=instance.image_id,
        state=str(instance.state),
        availability_zone=instance.zone,
        private_ip=instance.private_ip,
        public_ip=instance.public_ip,
        launched_at=instance.launched_at,
        state_since=instance.state_since,
        gone_at=None,
    )


def with_checks(known: Ec2Facts, checks: StatusChecks) -> Ec2Facts:
    """Update the known facts with the status checks."""
    return msgspec.structs.replace(known, system_status=str(checks.system), instance_status=str(checks.instance))


def api_url(spec: LabWorkerSpec, machine: Instance | Ec2Facts) -> str:
    """Return where CML listens; "" while the machine has no such address."""
    address = machine.public_ip if spec.aws.public_ip else machine.private_ip
    return f"https://{address}" if address else ""


def without_cml_state(known: CmlFacts) -> CmlFacts:
    """Forget what CML last said of itself, because its machine is off or gone. Its licence outlasts that."""
    return msgspec.structs.replace(known, ready=None, healthy=None)


def keep_snooze(idle: IdleVerdict | None, now: datetime) -> IdleVerdict | None:
    """Forget the idle verdict of a machine that is off, but keep a snooze that is still running."""
    if idle is None or idle.snoozed_until is None or idle.snoozed_until <= now:
        return None
    return IdleVerdict(idle=False, reason="snoozed", judged_at=idle.judged_at, snoozed_until=idle.snoozed_until)


def licence_facts(known: CmlFacts, licence: Licence) -> CmlFacts:
    """Update the known facts with what CML says of its licence."""
    text = licence.authorization if licence.is_registered else licence.registration
    return msgspec.structs.replace(known, licensed=licence.is_registered, license_status=text)


def definition_facts(known: CmlFacts, definitions: Sequence[NodeDefinition]) -> CmlFacts:
    """Update the known facts with the node definitions that CML lists. More than can be kept are as good as unknown."""
    if len(definitions) > MAX_NODE_DEFINITIONS:
        return msgspec.structs.replace(known, node_definitions=None, node_sizes={})
    sizes = {
        one.definition_id: NodeSize(
            cpus=one.cpus, ram_mb=one.ram_mb, boot_disk_gb=one.boot_disk_gb, data_volume_gb=one.data_volume_gb
        )
        for one in definitions
    }
    return msgspec.structs.replace(known, node_definitions=tuple(sorted(sizes)), node_sizes=sizes_unlike_shipped(sizes))


def capacity_of(spec: LabWorkerSpec, stats: Stats, licence: Licence | None) -> Amount:
    """Return what a worker can hold: what the machine has, never what it uses."""
    licensed = licence is not None and licence.in_compliance
    most = (
        min(spec.cml.max_nodes_licensed, licence.node_limit) if licence and licensed else spec.cml.max_nodes_unlicensed
    )
    return Amount(
        cpu_millis=stats.cpu_count * 1000,
        memory_mb=stats.memory_total_mb,
        storage_mb=stats.disk_total_mb,
        nodes=most,
        ports=PORTS,
        labs=spec.max_concurrent_labs,
    )
