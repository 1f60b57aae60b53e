"""A worker's conditions, derived from its status each time that is written. Pure.

`Reachable` and `HealthCheckPassed` are the monitor's, which looks as long as there is something to look at; the other
five follow from the phase.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.model.resource import Condition, Truth, condition, with_condition
from lcm.model.worker import HOSTING, LabWorker, LabWorkerStatus, WorkerCondition, WorkerPhase

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
