"""A worker's status derived from answers: facts of the cloud and CML, and the conditions that follow. Pure.

Conditions are derived each time the status is written. `Reachable` and `HealthCheckPassed` belong to the monitor, as
long as there is a machine to look at; the other five follow from the status.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.resource import Condition, Truth, has_condition, with_condition
from lcm.model.kinds.worker import (
    HOSTING_PHASES,
    MAX_NODE_DEFINITIONS,
    CmlFacts,
    Ec2Facts,
    IdleVerdict,
    LabWorker,
    LabWorkerSpec,
    LabWorkerStatus,
    WorkerCondition,
    WorkerPhase,
)
from lcm.model.topology.node_definitions import NodeSize, sizes_unlike_shipped
from lcm.providers.protocols.compute import Instance, StatusChecks
from lcm.providers.protocols.labhost import Licence, NodeDefinition, Stats

_P = WorkerPhase
_PHASES_WITHOUT_MACHINE: Final = frozenset({_P.PENDING, _P.PROVISIONING_EC2, _P.TERMINATED})
_C = WorkerCondition


def with_conditions(
    worker: LabWorker, status: LabWorkerStatus, *, sessions: int, require_licensed: bool, now: datetime
) -> LabWorkerStatus:
    """Return a status with the conditions that follow from it."""
    conditions = status.conditions
    licensed = _licensed_condition(status)
    known = [
        _provisioned_condition(status),
        _cml_ready_condition(status),
        licensed,
        _accepting_condition(worker, status, licensed=licensed[1] is Truth.TRUE or not require_licensed),
        _capacity_condition(status, sessions),
    ]
    if status.phase is _P.TERMINATED:  # the monitor no longer looks, and there is nothing to see
        known += [(name, Truth.UNKNOWN, "NoInstance", "") for name in (_C.HEALTH_CHECK_PASSED, _C.REACHABLE)]
    for name, truth, reason, message in known:
        new = Condition(type=name, status=truth, last_transition_at=now, reason=reason, message=message)
        conditions = with_condition(conditions, new)
    order = {str(name): place for place, name in enumerate(WorkerCondition)}
    ordered = tuple(sorted(conditions, key=lambda one: order.get(one.type, len(order))))
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
    reason = ""
    if worker.metadata.deletion_timestamp is not None:
        reason = "Deleted"
    elif status.phase not in HOSTING_PHASES:
        reason = f"Phase{status.phase}"
    elif worker.spec.wanted_state == "stopped":
        reason = "WantedStopped"
    elif status.cml.ready is not True:
        reason = "CMLNotReady"
    elif worker.spec.host_kind == "cml" and status.cml.licensed is None:
        reason = "LicenceUnknown"
    elif worker.spec.host_kind == "cml" and not licensed:
        reason = "NotLicensed"
    elif has_condition(status.conditions, _C.HEALTH_CHECK_PASSED, Truth.FALSE):
        reason = "Unhealthy"
    elif has_condition(status.conditions, _C.REACHABLE, Truth.FALSE):
        reason = "Unreachable"
    if reason:
        return _C.ACCEPTING_LABS, Truth.FALSE, reason, ""
    return _C.ACCEPTING_LABS, Truth.TRUE, "Ready", ""


def _capacity_condition(status: LabWorkerStatus, sessions: int) -> _ConditionParts:
    if status.phase is _P.TERMINATED:
        return _C.CAPACITY_AVAILABLE, Truth.FALSE, "NoInstance", ""
    if status.capacity is None:
        return _C.CAPACITY_AVAILABLE, Truth.UNKNOWN, "NotSeen", "CML has not reported what the machine has"
    if sessions >= status.capacity.labs:
        return _C.CAPACITY_AVAILABLE, Truth.FALSE, "TooManyLabs", f"{sessions} of {status.capacity.labs} labs"
    return _C.CAPACITY_AVAILABLE, Truth.TRUE, "Room", f"{sessions} of {status.capacity.labs} labs"


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
