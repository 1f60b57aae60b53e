"""STARTING: from a machine that is on its way to a CML that can be used.

A worker is ready when EC2's checks pass, CML says so, and it is known what the machine has and whether it is licensed.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from lcm.controllers.worker.facts import api_url, checked, declared, ec2_facts, licence_facts
from lcm.controllers.worker.failing import failed
from lcm.controllers.worker.launching import gone, stopped_by_hand
from lcm.controllers.worker.view import (
    Decision,
    Do,
    Failure,
    Outcome,
    RebootMachine,
    StartMachine,
    Unknown,
    View,
    move,
    note,
    soon,
)
from lcm.model.worker import CmlFacts, Ec2Facts, Remedy, WorkerPhase
from lcm.model.worker_steps import CML_BOOT_LIMIT
from lcm.providers.compute import ENDING, Check, Checks, Instance, InstanceState


def starting(view: View) -> Decision:
    """Start or reboot the machine if that is due, then wait for CML."""
    instance = view.instance
    if isinstance(instance, Unknown):
        return soon(view)
    if instance is None or instance.state in ENDING:
        return gone(view)
    if view.deleted and view.status.cml.licensed is False:
        return move(view, WorkerPhase.TERMINATING_EC2, "deleted while CML booted")
    if instance.state is InstanceState.STOPPED:
        return _stopped(view, instance)
    if instance.state is InstanceState.STOPPING:
        return soon(view)  # what it was before tells, once it is stopped, whether somebody stopped it
    if instance.state is not InstanceState.RUNNING:
        return _late(view) or note(view, ec2=ec2_facts(view.status.ec2, instance)) or soon(view)
    if view.status.remedy is Remedy.REBOOT and view.status.remedied_at is None:
        return Do(RebootMachine())
    return _booting(view, instance)


def rebooted(view: View, outcome: Outcome) -> Decision:
    """Take note that the reboot was asked for; a refused one is as good as none."""
    if isinstance(outcome, Failure):
        return failed(view, outcome)
    return note(view, remedied_at=view.now, unhealthy_since=None) or soon(view)


def started(view: View, outcome: Outcome) -> Decision:
    """Take note that the start was asked for."""
    if isinstance(outcome, Failure):
        return _late(view) or note(view, last_error=outcome.message) or soon(view)
    return note(view, last_error="") or soon(view)


def _stopped(view: View, instance: Instance) -> Decision:
    if view.status.ec2.state == InstanceState.RUNNING:
        return stopped_by_hand(view, instance)  # it was seen running since it was started
    began = view.status.ec2.state == InstanceState.PENDING
    return (_late(view) if began else None) or Do(StartMachine())


def _booting(view: View, instance: Instance) -> Decision:
    facts = ec2_facts(view.status.ec2, instance)
    if isinstance(view.checks, Checks):
        facts = checked(facts, view.checks)
    cml = msgspec.structs.replace(
        view.status.cml,
        api_url=api_url(view.worker.spec, instance) or view.status.cml.api_url,
        certificate=view.status.cml.certificate or view.certificate,
    )
    if isinstance(view.system, Unknown) or isinstance(view.checks, Unknown) or not view.system.ready:
        cml = msgspec.structs.replace(cml, ready=None if isinstance(view.system, Unknown) else view.system.ready)
        return _late(view) or note(view, ec2=facts, cml=cml) or soon(view)
    cml = msgspec.structs.replace(cml, version=view.system.version, ready=True)
    if view.checks.system != Check.OK or view.checks.instance != Check.OK:
        return _late(view) or note(view, ec2=facts, cml=cml) or soon(view)
    if isinstance(view.stats, Unknown) or isinstance(view.licence, Unknown):
        return _late(view) or note(view, ec2=facts, cml=cml) or soon(view)
    return _up(view, facts, cml)


def _up(view: View, facts: Ec2Facts, cml: CmlFacts) -> Decision:
    assert not isinstance(view.stats, Unknown)
    assert not isinstance(view.licence, Unknown)
    return move(
        view,
        WorkerPhase.READY_UNLICENSED,
        f"checks pass and CML {cml.version} is ready",
        ec2=facts,
        cml=msgspec.structs.replace(licence_facts(cml, view.licence), healthy=True),
        capacity=declared(view.worker.spec, view.stats, view.licence),
        ready_at=view.now,
        unhealthy_since=None,
        retry_at=None,
        last_error="",
        failure="",
    )


def _late(view: View) -> Decision | None:
    """Give up on a boot that takes too long, if somebody answered that it does; None while there is time.

    What cannot be reached at all is unknown, and stays so for much longer: an outage is no failed boot.
    """
    took = view.now - _began(view)
    minutes = took // timedelta(minutes=1)
    impaired = isinstance(view.checks, Checks) and Check.IMPAIRED in {view.checks.system, view.checks.instance}
    waits_for_cloud = not isinstance(view.instance, Instance) or view.instance.state is not InstanceState.RUNNING
    silent = not waits_for_cloud and not impaired and _silent(view)
    if took < (view.rules.patience if silent else CML_BOOT_LIMIT):
        return None
    if waits_for_cloud:
        why = view.status.last_error or "EC2 did not start it"
        return failed(view, Failure("MachineNotUp", f"the machine did not start within {minutes} minutes: {why}"))
    if impaired:
        return failed(view, Failure("ChecksFailed", f"EC2's status checks failed for {minutes} minutes"))
    reason = view.stuck.reason if view.stuck else "CmlNotUp"
    return failed(view, Failure(reason, f"CML did not come up within {minutes} minutes: {_why(view)}"))


def _began(view: View) -> datetime:
    """Tell since when it can have booted: an effect that nobody heard of for a while does not count as time to boot."""
    started_at = view.instance.launched_at if isinstance(view.instance, Instance) else view.entered_at
    return max(view.entered_at, started_at, view.status.remedied_at or view.entered_at)


def _silent(view: View) -> bool:
    """Tell whether it is not known how far it is, for want of an answer."""
    return any(isinstance(one, Unknown) and not one.answered for one in _asked(view))


def _asked(view: View) -> Sequence[object]:
    """List what was asked for: the licence, for instance, only of a CML that is ready."""
    if isinstance(view.system, Unknown):
        return view.checks, view.system
    return (view.checks, view.stats, view.licence) if view.system.ready else (view.checks,)


def _why(view: View) -> str:
    unknown = view.stuck or next((one for one in reversed(_asked(view)) if isinstance(one, Unknown)), None)
    if unknown is not None:
        return unknown.why
    ready = not isinstance(view.system, Unknown) and view.system.ready
    return "EC2's checks have not passed" if ready else "it says that it is not ready"
