"""STARTING: from a machine that is on its way to a CML that can be used.

A worker is ready when EC2's checks pass, CML says so, and it is known what the machine has and whether it is licensed.
"""

from datetime import timedelta

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
    return _late(view) or Do(StartMachine())


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
        last_error="",
        failure="",
    )


def _late(view: View) -> Decision | None:
    """Give up on a boot that takes too long, if somebody answered that it does; None while there is time.

    What cannot be reached at all is unknown, and stays so for much longer: an outage is no failed boot.
    """
    took = view.now - view.entered_at
    minutes = took // timedelta(minutes=1)
    impaired = isinstance(view.checks, Checks) and Check.IMPAIRED in {view.checks.system, view.checks.instance}
    silent = isinstance(view.system, Unknown) and not view.system.answered and not impaired
    waits_for_cloud = not isinstance(view.instance, Instance) or view.instance.state is not InstanceState.RUNNING
    if took < (view.rules.patience if silent and not waits_for_cloud else CML_BOOT_LIMIT):
        return None
    if waits_for_cloud:
        why = view.status.last_error or "EC2 did not start it"
        return failed(view, Failure("MachineNotUp", f"the machine did not start within {minutes} minutes: {why}"))
    if impaired:
        return failed(view, Failure("ChecksFailed", f"EC2's status checks failed for {minutes} minutes"))
    why = view.system.why if isinstance(view.system, Unknown) else "it says that it is not ready"
    return failed(view, Failure("CmlNotUp", f"CML did not come up within {minutes} minutes: {why}"))
