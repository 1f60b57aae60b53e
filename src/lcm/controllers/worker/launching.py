"""PENDING, PROVISIONING_EC2 and EC2_READY: from a wish to a machine that runs.

The token of a launch is committed before the launch is asked for, and kept until it is known what became of it. Only an
answer allows another attempt: after silence the same token is used again.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.controllers.worker.conditions import api_url, checked, declared, ec2_facts, licence_facts, unseen
from lcm.controllers.worker.failing import failed
from lcm.controllers.worker.view import (
    Ask,
    Decision,
    Do,
    Failure,
    Outcome,
    RebootMachine,
    StartMachine,
    Unknown,
    View,
    Wait,
    move,
    note,
    soon,
)
from lcm.model.kinds.worker import CmlFacts, Ec2Facts, LabWorker, Remedy, WorkerPhase
from lcm.model.kinds.worker_machine import CML_BOOT_LIMIT, EC2_LAUNCH_LIMIT
from lcm.providers.protocols.compute import ENDING, Check, Checks, Instance, InstanceState, Launch

_RESTING: Final = frozenset({InstanceState.STOPPING, InstanceState.STOPPED})


def pending(view: View) -> Decision:
    """Adopt the machine it has, or commit to a launch."""
    known = view.status.ec2
    if known.instance_id:
        return _adopted(view)
    if view.deleted:
        return move(view, WorkerPhase.TERMINATED, "deleted before anything was launched")
    if isinstance(view.image_missing, Unknown):
        return soon(view)
    if view.image_missing:
        aws = view.worker.spec.aws
        text = f"no image {aws.ami_name_pattern or aws.ami_id!r} in {aws.region}, or not of an owner we trust"
        return failed(view, Failure("ImageMissing", text))
    if view.worker.spec.wanted_state == "stopped":
        return Wait()  # who wants it stopped does not want it launched
    attempt = known.launch_attempt + 1
    where = _choice(view.worker, attempt)
    return move(
        view,
        WorkerPhase.PROVISIONING_EC2,
        f"launching {_named(where)}",
        ec2=Ec2Facts(client_token=_token(view.worker, attempt), launch_attempt=attempt),
        cml=CmlFacts(licensed=False),
        remedy=Remedy.NONE,
        remedied_at=None,
        unhealthy_since=None,
    )


def provisioning(view: View) -> Decision:
    """Ask for the machine; once it is known, wait until it runs."""
    known, instance = view.status.ec2, view.instance
    if view.deleted:
        return move(view, WorkerPhase.TERMINATING_EC2, "deleted during launch")
    if not known.instance_id:
        return Do(Ask(launch_of(view.worker)))
    if isinstance(instance, Unknown):
        return soon(view)
    if instance is None or instance.state in ENDING:
        why = instance.reason if instance else "the cloud does not know it any more"
        return failed(view, Failure("LaunchDied", f"{known.instance_id} ended before it ran: {why}"), ec2=_ended(view))
    if instance.state is InstanceState.PENDING:
        if view.now - max(view.entered_at, instance.launched_at) >= EC2_LAUNCH_LIMIT:
            text = f"{known.instance_id} did not run within {EC2_LAUNCH_LIMIT.seconds // 60} minutes"
            return failed(view, Failure("LaunchTimeout", text))
        return note(view, ec2=ec2_facts(known, instance)) or soon(view)
    return move(view, WorkerPhase.EC2_READY, f"{known.instance_id} runs", ec2=ec2_facts(known, instance))


def launched(view: View, outcome: Outcome) -> Decision:
    """Take note of what a launch was answered with."""
    known = view.status.ec2
    if isinstance(outcome, Failure):
        return _refused(view, outcome)
    if not isinstance(outcome, Instance):
        return soon(view)
    if outcome.state in ENDING:
        # What this token launched has ended: only another attempt launches another.
        text = f"{outcome.instance_id} ended before it ran: {outcome.reason or 'no reason given'}"
        return failed(view, Failure("LaunchDied", text), ec2=_ended(view))
    return note(view, ec2=ec2_facts(known, outcome), last_error="") or soon(view)


def ec2_ready(view: View) -> Decision:
    """Wait for CML's address."""
    known, instance = view.status.ec2, view.instance
    if view.deleted and view.status.cml.licensed is False:
        return move(view, WorkerPhase.TERMINATING_EC2, "deleted before CML was up")
    if isinstance(instance, Unknown):
        return soon(view)
    if instance is None or instance.state in ENDING:
        return gone(view)
    if instance.state in _RESTING:
        return stopped_by_hand(view, instance)
    url = api_url(view.worker.spec, instance)
    facts = ec2_facts(known, instance)
    if url:
        cml = msgspec.structs.replace(view.status.cml, api_url=url)
        return move(view, WorkerPhase.STARTING, f"CML will answer at {url}", ec2=facts, cml=cml)
    if view.now - view.entered_at >= EC2_LAUNCH_LIMIT:
        kind = "public" if view.worker.spec.aws.public_ip else "private"
        text = f"{known.instance_id} has no {kind} address; check its subnet, or set spec.aws.public_ip"
        return failed(view, Failure("NoAddress", text), ec2=facts)
    return note(view, ec2=facts) or soon(view)


def gone(view: View) -> Decision:
    """Take note that somebody terminated the machine: the cloud answered so."""
    why = view.instance.reason if isinstance(view.instance, Instance) else ""
    reason = f"{view.status.ec2.instance_id} is gone" + (f": {why}" if why else "")
    return move(view, WorkerPhase.TERMINATED, reason, ec2=_ended(view, keep_id=True), cml=unseen(view.status.cml))


def stopped_by_hand(view: View, instance: Instance) -> Decision:
    """Take note that somebody stopped the machine."""
    facts = ec2_facts(view.status.ec2, instance)
    reason = f"somebody stopped {instance.instance_id}" + (f": {instance.reason}" if instance.reason else "")
    return move(view, WorkerPhase.STOPPED, reason, ec2=facts, cml=unseen(view.status.cml))


def choices(worker: LabWorker) -> Sequence[tuple[str, str | None]]:
    """List the instance types and subnets that the spec allows, in the order in which they are tried."""
    aws = worker.spec.aws
    types = dict.fromkeys((aws.instance_type, *aws.instance_type_alternatives))
    return [(name, subnet) for name in types for subnet in aws.subnet_ids or (None,)]


def launch_of(worker: LabWorker) -> Launch:
    """Write down the launch that the status commits to."""
    known = worker.status.ec2
    instance_type, subnet = _choice(worker, known.launch_attempt)
    return Launch(
        worker_uid=worker.metadata.uid,
        worker_name=worker.metadata.name,
        token=known.client_token,
        aws=worker.spec.aws,
        instance_type=instance_type,
        subnet_id=subnet,
    )


def _adopted(view: View) -> Decision:
    known, instance = view.status.ec2, view.instance
    if isinstance(instance, Unknown):
        return soon(view)
    if instance is None or instance.state in ENDING:
        # Nothing of it was ever ours to launch again: the record ends with its machine.
        return move(view, WorkerPhase.EC2_READY, f"{known.instance_id} was adopted")
    if instance.state in _RESTING:
        return move(
            view, WorkerPhase.STOPPED, f"{known.instance_id} was adopted, stopped", ec2=ec2_facts(known, instance)
        )
    if instance.state is InstanceState.PENDING:
        return note(view, ec2=ec2_facts(known, instance)) or soon(view)
    return move(view, WorkerPhase.EC2_READY, f"{known.instance_id} was adopted", ec2=ec2_facts(known, instance))


def _refused(view: View, failure: Failure) -> Decision:
    """Try the next place that the spec allows; when all were tried, fail."""
    known = view.status.ec2
    attempt = known.launch_attempt
    answered = msgspec.structs.replace(known, client_token="")
    if failure.reason != "NoCapacity" or attempt % len(choices(view.worker)) == 0:
        return failed(view, failure, ec2=answered)
    following = _choice(view.worker, attempt + 1)
    text = f"{failure.message}; trying {_named(following)}"
    ec2 = msgspec.structs.replace(known, client_token=_token(view.worker, attempt + 1), launch_attempt=attempt + 1)
    return note(view, ec2=ec2, last_error=text) or soon(view)


def _choice(worker: LabWorker, attempt: int) -> tuple[str, str | None]:
    every = choices(worker)
    return every[(attempt - 1) % len(every)]


def _named(choice: tuple[str, str | None]) -> str:
    instance_type, subnet = choice
    return f"{instance_type} in {subnet}" if subnet else instance_type


def _token(worker: LabWorker, attempt: int) -> str:
    return f"{worker.metadata.uid}-{attempt}"


def _ended(view: View, *, keep_id: bool = False) -> Ec2Facts:
    known = view.status.ec2
    return msgspec.structs.replace(
        known,
        client_token="",
        instance_id=known.instance_id if keep_id else "",
        state="terminated",
        public_ip=None,
        gone_at=view.now,
    )


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
