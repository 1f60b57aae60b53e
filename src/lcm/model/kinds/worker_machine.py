"""The state machine of LabWorker."""

from datetime import timedelta
from typing import Final

from lcm.model.base.machine import CONTROL_PLANE, WORKER_CONTROLLER, Limit, Machine, Step
from lcm.model.kinds.worker import WorkerPhase

EC2_LAUNCH_LIMIT: Final = timedelta(minutes=10)
CML_BOOT_LIMIT: Final = timedelta(minutes=15)
LICENSE_LIMIT: Final = timedelta(minutes=10)
STOP_ALERT: Final = timedelta(minutes=20)
TERMINATE_ALERT: Final = timedelta(minutes=5)

_P = WorkerPhase
_BY = WORKER_CONTROLLER
_INSTANCE = ("ec2.instance_id",)
_LAUNCHED = ("ec2.client_token", "ec2.instance_id")
_LICENSED = ("cml.licensed",)
_UNLICENSED = (("cml.licensed", False),)
_UP = (_P.EC2_READY, _P.STARTING, _P.READY_UNLICENSED, _P.LICENSING, _P.READY, _P.ACTIVE, _P.DRAINING)


def _gone(phase: WorkerPhase) -> Step[WorkerPhase]:
    return Step(phase, _P.TERMINATED, _BY, "somebody terminated the instance; it was seen gone", ("ec2.gone_at",))


def _stopped(phase: WorkerPhase) -> Step[WorkerPhase]:
    return Step(phase, _P.STOPPED, _BY, "somebody stopped the instance")


WORKER: Final = Machine(
    name="LabWorker",
    initial=_P.PENDING,
    final=frozenset({_P.TERMINATED}),
    steps=(
        Step(
            _P.PENDING,
            _P.PROVISIONING_EC2,
            _BY,
            "the launch is about to be asked for",
            ("ec2.client_token",),
            bars=_INSTANCE,
        ),
        Step(_P.PENDING, _P.EC2_READY, _BY, "a running instance was adopted", _INSTANCE),
        Step(_P.PENDING, _P.STOPPED, _BY, "a stopped instance was adopted", _INSTANCE),
        Step(_P.PENDING, _P.FAILED, _BY, "the spec cannot be launched", ("last_error",)),
        Step(_P.PENDING, _P.TERMINATED, _BY, "deleted before anything was launched", bars=_LAUNCHED),
        Step(_P.PROVISIONING_EC2, _P.EC2_READY, _BY, "the instance runs", _INSTANCE),
        Step(_P.PROVISIONING_EC2, _P.FAILED, _BY, "the launch failed or took too long", ("last_error",)),
        Step(_P.PROVISIONING_EC2, _P.TERMINATING_EC2, _BY, "deleted during launch"),
        Step(_P.EC2_READY, _P.STARTING, _BY, "CML's address is known", ("ec2.instance_id", "cml.api_url")),
        Step(_P.EC2_READY, _P.FAILED, _BY, "no address of CML became known", ("last_error",)),
        Step(_P.EC2_READY, _P.TERMINATING_EC2, _BY, "deleted before CML was up", equals=_UNLICENSED),
        Step(_P.STARTING, _P.READY_UNLICENSED, _BY, "checks pass and CML says ready", ("cml.version", "capacity")),
        Step(_P.STARTING, _P.FAILED, _BY, "CML did not come up", ("last_error",)),
        Step(
            _P.STARTING,
            _P.TERMINATING_EC2,
            _BY,
            "deleted while CML booted, no licence registered",
            equals=_UNLICENSED,
        ),
        Step(_P.READY_UNLICENSED, _P.LICENSING, _BY, "a licence is configured and a seat is free"),
        Step(_P.READY_UNLICENSED, _P.READY, _BY, "already licensed, or needs no licence"),
        Step(_P.LICENSING, _P.READY, _BY, "the licence is in compliance", _LICENSED),
        Step(_P.LICENSING, _P.READY_UNLICENSED, _BY, "registration did not succeed yet", ("last_error",)),
        Step(_P.LICENSING, _P.UNLICENSING, _BY, "deleted, or its token removed, during registration"),
        Step(_P.LICENSING, _P.FAILED, _BY, "the licence was refused for good", ("last_error",)),
        Step(_P.READY, _P.READY_UNLICENSED, _BY, "CML says that its licence is gone", equals=_UNLICENSED),
        Step(_P.READY, _P.ACTIVE, _BY, "a session is on it"),
        Step(_P.ACTIVE, _P.READY, _BY, "no session is on it"),
        *(
            Step(phase, _P.STARTING, _BY, "rebooted because it was unhealthy")
            for phase in (_P.READY_UNLICENSED, _P.READY)
        ),
        *(
            Step(phase, _P.FAILED, _BY, "unhealthy after a reboot", ("last_error",))
            for phase in (_P.READY_UNLICENSED, _P.READY)
        ),
        *(
            Step(phase, _P.STOPPING, _BY, "paused: idle, asked for, or its seat is not needed")
            for phase in (_P.READY_UNLICENSED, _P.READY)
        ),
        *(
            Step(phase, _P.DRAINING, CONTROL_PLANE, "drain asked for, or deleted", ("drain_deadline_at",))
            for phase in (_P.READY_UNLICENSED, _P.READY, _P.ACTIVE)
        ),
        *(
            Step(_P.DRAINING, phase, CONTROL_PLANE, "the drain was cancelled")
            for phase in (_P.READY_UNLICENSED, _P.READY, _P.ACTIVE)
        ),
        Step(
            _P.DRAINING,
            _P.UNLICENSING,
            _BY,
            "empty, or its deadline passed; a licence is registered",
            _LICENSED,
        ),
        Step(
            _P.DRAINING,
            _P.STOPPING,
            _BY,
            "empty, or its deadline passed; no licence is registered",
            equals=_UNLICENSED,
        ),
        Step(
            _P.UNLICENSING,
            _P.STOPPING,
            _BY,
            "the licence is seen deregistered, or an unwanted machine is dead",
            equals=_UNLICENSED,
        ),
        Step(_P.STOPPING, _P.STOPPED, _BY, "seen stopped, wanted stopped"),
        Step(_P.STOPPING, _P.TERMINATING_EC2, _BY, "labs and licence are gone, wanted gone", equals=_UNLICENSED),
        Step(_P.STOPPED, _P.STARTING, _BY, "resumed: a booking, a person, or a licence to give back"),
        Step(_P.STOPPED, _P.TERMINATING_EC2, _BY, "deleted while stopped, no licence registered", equals=_UNLICENSED),
        Step(_P.TERMINATING_EC2, _P.TERMINATED, _BY, "seen gone", ("ec2.gone_at",)),
        Step(
            _P.TERMINATING_EC2,
            _P.PENDING,
            _BY,
            "an unhealthy instance is seen gone; another takes its place",
            ("ec2.gone_at",),
            bars=_LAUNCHED,
        ),
        Step(_P.FAILED, _P.PENDING, _BY, "tried again with a new launch", bars=_LAUNCHED),
        Step(_P.FAILED, _P.STARTING, _BY, "tried again with the same instance", _INSTANCE),
        Step(_P.FAILED, _P.UNLICENSING, _BY, "given up or deleted, a licence is or may be registered", _INSTANCE),
        Step(
            _P.FAILED,
            _P.TERMINATING_EC2,
            _BY,
            "given up or deleted, an instance exists",
            _INSTANCE,
            equals=_UNLICENSED,
        ),
        Step(_P.FAILED, _P.TERMINATED, _BY, "given up or deleted, no instance exists", bars=_LAUNCHED),
        *map(_stopped, (*_UP, _P.UNLICENSING)),
        *map(_gone, (*_UP, _P.UNLICENSING, _P.STOPPING, _P.STOPPED)),
    ),
    limits=(
        Limit(_P.PROVISIONING_EC2, EC2_LAUNCH_LIMIT, _P.FAILED, "EC2 launches within minutes or not at all"),
        Limit(_P.EC2_READY, EC2_LAUNCH_LIMIT, _P.FAILED, "an instance that runs has an address"),
        Limit(_P.STARTING, CML_BOOT_LIMIT, _P.FAILED, "a metal machine boots CML well within this"),
        Limit(_P.LICENSING, LICENSE_LIMIT, _P.READY_UNLICENSED, "the registration is tried again"),
        Limit(_P.DRAINING, "drain_deadline_at", _P.UNLICENSING, "sessions were warned and their time is up"),
        Limit(_P.UNLICENSING, LICENSE_LIMIT, None, "a licence must not stay registered on a terminated worker"),
        Limit(_P.STOPPING, STOP_ALERT, None, "the instance costs money until it is seen stopped"),
        Limit(_P.TERMINATING_EC2, TERMINATE_ALERT, None, "the instance costs money until it is seen gone"),
    ),
)
