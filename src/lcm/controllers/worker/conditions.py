"""A worker's conditions, derived from its status each time that is written. Pure.

`Reachable` and `HealthCheckPassed` are the monitor's, which looks as long as there is something to look at; the other
five follow from the phase.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.resource import Condition, Truth, condition, with_condition
from lcm.model.kinds.worker import (
    HOSTING,
    CmlFacts,
    Ec2Facts,
    IdleVerdict,
    LabWorker,
    LabWorkerSpec,
    LabWorkerStatus,
    WorkerCondition,
    WorkerPhase,
)
from lcm.providers.protocols.compute import Checks, Instance
from lcm.providers.protocols.labhost import Licence, Stats

_P = WorkerPhase
_WITHOUT: Final = frozenset({_P.PENDING, _P.PROVISIONING_EC2, _P.TERMINATED})
_C = WorkerCondition


def conditioned(
    worker: LabWorker, status: LabWorkerStatus, *, sessions: int, require_licensed: bool, now: datetime
) -> LabWorkerStatus:
    """Give a status with the conditions that follow from it."""
    conditions = status.conditions
    licensed = _licensed(status)
    for name, truth, reason, message in (
        _provisioned(status),
        _cml_ready(status),
        licensed,
        _accepting(worker, status, licensed=licensed[1] is Truth.TRUE or not require_licensed),
        _room(status, sessions),
        *(_ended() if status.phase is _P.TERMINATED else ()),
    ):
        new = Condition(type=name, status=truth, last_transition_at=now, reason=reason, message=message)
        conditions = with_condition(conditions, new)
    return msgspec.structs.replace(status, conditions=_sorted(conditions))


_Said = tuple[WorkerCondition, Truth, str, str]


def _provisioned(status: LabWorkerStatus) -> _Said:
    there = bool(status.ec2.instance_id) and status.phase not in _WITHOUT and status.ec2.state != "terminated"
    if there:
        return _C.EC2_PROVISIONED, Truth.TRUE, "InstanceExists", f"{status.ec2.instance_id} is {status.ec2.state}"
    return _C.EC2_PROVISIONED, Truth.FALSE, status.failure or "NoInstance", status.last_error


def _cml_ready(status: LabWorkerStatus) -> _Said:
    ready = status.cml.ready
    if ready is None:
        return _C.CML_READY, Truth.UNKNOWN, "NotSeen", "CML has not said whether it is ready"
    version = f"CML {status.cml.version}" if status.cml.version else "CML"
    if ready:
        return _C.CML_READY, Truth.TRUE, "Ready", f"{version} is ready"
    return _C.CML_READY, Truth.FALSE, "NotReady", f"{version} says that it is not ready"


def _licensed(status: LabWorkerStatus) -> _Said:
    said = status.cml.license_status
    if status.cml.licensed is None:
        return _C.LICENSED, Truth.UNKNOWN, "NotSeen", "CML has not said whether it is licensed"
    if status.cml.licensed and said in {"IN_COMPLIANCE", ""}:
        return _C.LICENSED, Truth.TRUE, "InCompliance", ""
    return _C.LICENSED, Truth.FALSE, "NotLicensed", f"CML says {said}" if said else ""


def _accepting(worker: LabWorker, status: LabWorkerStatus, *, licensed: bool) -> _Said:
    """Say whether sessions may be placed: never before CML is ready and licensed, nor while it is ill or silent."""
    reason = ""
    if worker.metadata.deletion_timestamp is not None:
        reason = "Deleted"
    elif status.phase not in HOSTING:
        reason = f"Phase{status.phase}"
    elif worker.spec.wanted_state == "stopped":
        reason = "WantedStopped"
    elif status.cml.ready is not True:
        reason = "CMLNotReady"
    elif worker.spec.host_kind == "cml" and status.cml.licensed is None:
        reason = "LicenceUnknown"
    elif worker.spec.host_kind == "cml" and not licensed:
        reason = "NotLicensed"
    elif _denied(status, _C.HEALTH_CHECK_PASSED):
        reason = "Unhealthy"
    elif _denied(status, _C.REACHABLE):
        reason = "Unreachable"
    if reason:
        return _C.ACCEPTING_LABS, Truth.FALSE, reason, ""
    return _C.ACCEPTING_LABS, Truth.TRUE, "Ready", ""


def _denied(status: LabWorkerStatus, name: WorkerCondition) -> bool:
    known = condition(status.conditions, name)
    return known is not None and known.status is Truth.FALSE


def _room(status: LabWorkerStatus, sessions: int) -> _Said:
    if status.phase is _P.TERMINATED:
        return _C.CAPACITY_AVAILABLE, Truth.FALSE, "NoInstance", ""
    if status.capacity is None:
        return _C.CAPACITY_AVAILABLE, Truth.UNKNOWN, "NotSeen", "CML has not said what the machine has"
    if sessions >= status.capacity.labs:
        return _C.CAPACITY_AVAILABLE, Truth.FALSE, "TooManyLabs", f"{sessions} of {status.capacity.labs} labs"
    return _C.CAPACITY_AVAILABLE, Truth.TRUE, "Room", f"{sessions} of {status.capacity.labs} labs"


def _ended() -> Sequence[_Said]:
    """Say in the monitor's place, which does not look any more, that there is nothing to see."""
    return [(name, Truth.UNKNOWN, "NoInstance", "") for name in (_C.HEALTH_CHECK_PASSED, _C.REACHABLE)]


def _sorted(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    order = {str(name): place for place, name in enumerate(WorkerCondition)}
    return tuple(sorted(conditions, key=lambda one: order.get(one.type, len(order))))


PORTS: Final = 6000
"""CML's PATty serves 2000 to 7999."""


def ec2_facts(known: Ec2Facts, instance: Instance) -> Ec2Facts:
    """Put what the cloud says over what is known; the launch is resolved once the instance is known."""
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


def checked(known: Ec2Facts, checks: Checks) -> Ec2Facts:
    """Put the status checks over what is known."""
    return msgspec.structs.replace(known, system_status=str(checks.system), instance_status=str(checks.instance))


def api_url(spec: LabWorkerSpec, machine: Instance | Ec2Facts) -> str:
    """Say where CML listens; "" while the machine has no such address."""
    address = machine.public_ip if spec.aws.public_ip else machine.private_ip
    return f"https://{address}" if address else ""


def unseen(known: CmlFacts) -> CmlFacts:
    """Forget what CML last said of itself: its machine is off or gone. Its licence outlasts that."""
    return msgspec.structs.replace(known, ready=None, healthy=None)


def put_off(idle: IdleVerdict | None, now: datetime) -> IdleVerdict | None:
    """Forget what was judged of a machine that is off, but not that somebody put off its next pause."""
    if idle is None or idle.snoozed_until is None or idle.snoozed_until <= now:
        return None
    return IdleVerdict(idle=False, reason="snoozed", judged_at=idle.judged_at, snoozed_until=idle.snoozed_until)


def licence_facts(known: CmlFacts, licence: Licence) -> CmlFacts:
    """Put what CML says of its licence over what is known."""
    text = licence.authorization if licence.registered else licence.registration
    return msgspec.structs.replace(known, licensed=licence.registered, license_status=text)


def declared(spec: LabWorkerSpec, stats: Stats, licence: Licence | None) -> Amount:
    """Say what a worker can hold: what the machine has, never what it uses."""
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
