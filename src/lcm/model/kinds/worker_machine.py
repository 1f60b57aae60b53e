"""The state machine of LabWorker: its steps, time limits and alerts."""

from datetime import timedelta
from typing import Final

from lcm.model.base.machine import CONTROL_PLANE, WORKER_CONTROLLER, PhaseLimit, PhaseStep, StateMachine
from lcm.model.kinds.worker import WorkerPhase

EC2_LAUNCH_LIMIT: Final = timedelta(minutes=10)
CML_BOOT_LIMIT: Final = timedelta(minutes=15)
LICENSE_LIMIT: Final = timedelta(minutes=10)
STOP_ALERT: Final = timedelta(minutes=20)
TERMINATE_ALERT: Final = timedelta(minutes=5)

_P = WorkerPhase
_BY = WORKER_CONTROLLER
_HAS_INSTANCE = ("ec2.instance_id",)
_LAUNCH_FIELDS = ("ec2.client_token", "ec2.instance_id")
_LICENSED = ("cml.licensed",)
_UNLICENSED = (("cml.licensed", False),)
_PHASES_UP = (_P.EC2_READY, _P.STARTING, _P.READY_UNLICENSED, _P.LICENSING, _P.READY, _P.ACTIVE, _P.DRAINING)


WORKER_MACHINE: Final = StateMachine(
    name="LabWorker",
    initial=_P.PENDING,
    final=frozenset({_P.TERMINATED}),
    steps=(
        PhaseStep(
            _P.PENDING,
            _P.PROVISIONING_EC2,
            _BY,
            "the launch is about to be asked for",
            ("ec2.client_token",),
            bars=_HAS_INSTANCE,
        ),
        PhaseStep(_P.PENDING, _P.EC2_READY, _BY, "a running instance was adopted", _HAS_INSTANCE),
        PhaseStep(_P.PENDING, _P.STOPPED, _BY, "a stopped instance was adopted", _HAS_INSTANCE),
        PhaseStep(_P.PENDING, _P.FAILED, _BY, "the spec cannot be launched", ("last_error",)),
        PhaseStep(_P.PENDING, _P.TERMINATED, _BY, "deleted before anything was launched", bars=_LAUNCH_FIELDS),
        PhaseStep(_P.PROVISIONING_EC2, _P.EC2_READY, _BY, "the instance runs", _HAS_INSTANCE),
        PhaseStep(_P.PROVISIONING_EC2, _P.FAILED, _BY, "the launch failed or took too long", ("last_error",)),
        PhaseStep(_P.PROVISIONING_EC2, _P.TERMINATING_EC2, _BY, "deleted during launch"),
        PhaseStep(_P.EC2_READY, _P.STARTING, _BY, "CML's address is known", ("ec2.instance_id", "cml.api_url")),
        PhaseStep(_P.EC2_READY, _P.FAILED, _BY, "no address of CML became known", ("last_error",)),
        PhaseStep(_P.EC2_READY, _P.TERMINATING_EC2, _BY, "deleted before CML was up", equals=_UNLICENSED),
        PhaseStep(_P.STARTING, _P.READY_UNLICENSED, _BY, "checks pass and CML says ready", ("cml.version", "capacity")),
        PhaseStep(_P.STARTING, _P.FAILED, _BY, "CML did not come up", ("last_error",)),
        PhaseStep(
            _P.STARTING,
            _P.TERMINATING_EC2,
            _BY,
            "deleted while CML booted, no licence registered",
            equals=_UNLICENSED,
        ),
        PhaseStep(_P.READY_UNLICENSED, _P.LICENSING, _BY, "a licence is configured and a seat is free"),
        PhaseStep(_P.READY_UNLICENSED, _P.READY, _BY, "already licensed, or needs no licence"),
        PhaseStep(_P.LICENSING, _P.READY, _BY, "the licence is in compliance", _LICENSED),
        PhaseStep(_P.LICENSING, _P.READY_UNLICENSED, _BY, "registration did not succeed yet", ("last_error",)),
        PhaseStep(_P.LICENSING, _P.UNLICENSING, _BY, "deleted, or its token removed, during registration"),
        PhaseStep(_P.LICENSING, _P.FAILED, _BY, "the licence was refused for good", ("last_error",)),
        PhaseStep(_P.READY, _P.READY_UNLICENSED, _BY, "CML says that its licence is gone", equals=_UNLICENSED),
        PhaseStep(_P.READY, _P.ACTIVE, _BY, "a session is on it"),
        PhaseStep(_P.ACTIVE, _P.READY, _BY, "no session is on it"),
        *(
            PhaseStep(phase, _P.STARTING, _BY, "rebooted because it was unhealthy")
            for phase in (_P.READY_UNLICENSED, _P.READY)
        ),
        *(
            PhaseStep(phase, _P.FAILED, _BY, "unhealthy after a reboot", ("last_error",))
            for phase in (_P.READY_UNLICENSED, _P.READY)
        ),
        *(
            PhaseStep(phase, _P.STOPPING, _BY, "paused: idle, asked for, or its planned worker is not needed")
            for phase in (_P.READY_UNLICENSED, _P.READY)
        ),
        *(
            PhaseStep(phase, _P.DRAINING, CONTROL_PLANE, "drain asked for, or deleted", ("drain_deadline_at",))
            for phase in (_P.READY_UNLICENSED, _P.READY, _P.ACTIVE)
        ),
        *(
            PhaseStep(
                phase,
                _P.DRAINING,
                _BY,
                "the cloud takes its spot machine away, or it is to be paused, which ends it",
                ("drain_deadline_at",),
            )
            for phase in (_P.READY_UNLICENSED, _P.READY, _P.ACTIVE)
        ),
        *(
            PhaseStep(_P.DRAINING, phase, CONTROL_PLANE, "the drain was cancelled")
            for phase in (_P.READY_UNLICENSED, _P.READY, _P.ACTIVE)
        ),
        PhaseStep(
            _P.DRAINING,
            _P.UNLICENSING,
            _BY,
            "empty, or its deadline passed; a licence is registered",
            _LICENSED,
        ),
        PhaseStep(
            _P.DRAINING,
            _P.STOPPING,
            _BY,
            "empty, or its deadline passed; no licence is registered",
            equals=_UNLICENSED,
        ),
        PhaseStep(
            _P.UNLICENSING,
            _P.STOPPING,
            _BY,
            "the licence is seen deregistered, or an unwanted machine is dead",
            equals=_UNLICENSED,
        ),
        PhaseStep(_P.STOPPING, _P.STOPPED, _BY, "seen stopped, wanted stopped"),
        PhaseStep(_P.STOPPING, _P.TERMINATING_EC2, _BY, "labs and licence are gone, wanted gone", equals=_UNLICENSED),
        PhaseStep(_P.STOPPED, _P.STARTING, _BY, "resumed: a booking, a person, or a licence to give back"),
        PhaseStep(
            _P.STOPPED, _P.TERMINATING_EC2, _BY, "deleted while stopped, no licence registered", equals=_UNLICENSED
        ),
        PhaseStep(_P.TERMINATING_EC2, _P.TERMINATED, _BY, "seen gone", ("ec2.gone_at",)),
        PhaseStep(
            _P.TERMINATING_EC2,
            _P.PENDING,
            _BY,
            "an unhealthy instance is seen gone; another takes its place",
            ("ec2.gone_at",),
            bars=_LAUNCH_FIELDS,
        ),
        PhaseStep(_P.FAILED, _P.PENDING, _BY, "tried again with a new launch", bars=_LAUNCH_FIELDS),
        PhaseStep(_P.FAILED, _P.STARTING, _BY, "tried again with the same instance", _HAS_INSTANCE),
        PhaseStep(
            _P.FAILED, _P.UNLICENSING, _BY, "given up or deleted, a licence is or may be registered", _HAS_INSTANCE
        ),
        PhaseStep(
            _P.FAILED,
            _P.TERMINATING_EC2,
            _BY,
            "given up or deleted, an instance exists",
            _HAS_INSTANCE,
            equals=_UNLICENSED,
        ),
        PhaseStep(_P.FAILED, _P.TERMINATED, _BY, "given up or deleted, no instance exists", bars=_LAUNCH_FIELDS),
        *(
            PhaseStep(phase, _P.STOPPED, _BY, "somebody stopped the instance")
            for phase in (*_PHASES_UP, _P.UNLICENSING)
        ),
        *(
            PhaseStep(phase, _P.TERMINATED, _BY, "somebody terminated the instance; it was seen gone", ("ec2.gone_at",))
            for phase in (*_PHASES_UP, _P.UNLICENSING, _P.STOPPING, _P.STOPPED)
        ),
    ),
    limits=(
        PhaseLimit(_P.PROVISIONING_EC2, EC2_LAUNCH_LIMIT, _P.FAILED, "EC2 launches within minutes or not at all"),
        PhaseLimit(_P.EC2_READY, EC2_LAUNCH_LIMIT, _P.FAILED, "an instance that runs has an address"),
        PhaseLimit(_P.STARTING, CML_BOOT_LIMIT, _P.FAILED, "a metal machine boots CML well within this"),
        PhaseLimit(_P.LICENSING, LICENSE_LIMIT, _P.READY_UNLICENSED, "the registration is tried again"),
        PhaseLimit(_P.DRAINING, "drain_deadline_at", _P.UNLICENSING, "sessions were warned and their time is up"),
        PhaseLimit(_P.UNLICENSING, LICENSE_LIMIT, None, "a licence must not stay registered on a terminated worker"),
        PhaseLimit(_P.STOPPING, STOP_ALERT, None, "the instance costs money until it is seen stopped"),
        PhaseLimit(_P.TERMINATING_EC2, TERMINATE_ALERT, None, "the instance costs money until it is seen gone"),
    ),
)
