"""PENDING, PROVISIONING_EC2, EC2_READY and STARTING: from a new worker to a CML that can be used.

The token of a launch is committed before the launch is requested, and kept until its result is known. Only an answer
allows another attempt: after silence the same token is used again. A worker is ready when EC2's checks pass, CML says
so, and it is known what the machine has and whether it is licensed.
"""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from lcm.controllers.runtime.lifecycle import Do, Failure, Unknown, Wait, enter_phase, poll_again, update_status
from lcm.controllers.worker.conditions import (
    api_url,
    capacity_of,
    definition_facts,
    ec2_facts,
    licence_facts,
    with_checks,
    without_cml_state,
)
from lcm.controllers.worker.failing import OFF_STATES, fail
from lcm.controllers.worker.view import Decision, EffectOutcome, LaunchMachine, RebootMachine, StartMachine, WorkerView
from lcm.model.kinds.worker import CmlFacts, Ec2Facts, LabWorker, Remedy, WorkerPhase
from lcm.model.kinds.worker_machine import CML_BOOT_LIMIT, EC2_LAUNCH_LIMIT
from lcm.providers.protocols.compute import ENDING, Instance, InstanceState, Launch, StatusCheckResult, StatusChecks
from lcm.providers.protocols.labhost import Licence


def decide_pending(view: WorkerView) -> Decision:
    """Adopt the machine that the worker has, or commit to a launch."""
    known = view.status.ec2
    if known.instance_id:
        return _adopt(view)
    if view.is_deleted:
        return enter_phase(view, WorkerPhase.TERMINATED, "deleted before anything was launched")
    if isinstance(view.image_missing, Unknown):
        return poll_again(view)
    if view.image_missing:
        aws = view.worker.spec.aws
        text = f"no image {aws.ami_name_pattern or aws.ami_id!r} in {aws.region}, or not of an owner we trust"
        return fail(view, Failure("ImageMissing", text))
    if view.worker.spec.wanted_state == "stopped":
        return Wait()  # a worker that is wanted stopped is not launched
    attempt = known.launch_attempt + 1
    where = _launch_choice(view.worker, attempt)
    return enter_phase(
        view,
        WorkerPhase.PROVISIONING_EC2,
        f"launching {_choice_text(where)}",
        ec2=Ec2Facts(client_token=f"{view.worker.metadata.uid}-{attempt}", launch_attempt=attempt),
        cml=CmlFacts(licensed=False),
        remedy=Remedy.NONE,
        remedied_at=None,
        unhealthy_since=None,
    )


def decide_provisioning(view: WorkerView) -> Decision:
    """Request the machine; once it is known, wait until it runs."""
    known, instance = view.status.ec2, view.instance
    if view.is_deleted:
        return enter_phase(view, WorkerPhase.TERMINATING_EC2, "deleted during launch")
    if not known.instance_id:
        return Do(LaunchMachine(launch_of(view.worker)))
    if isinstance(instance, Unknown):
        return poll_again(view)
    if instance is None or instance.state in ENDING:
        why = instance.reason if instance else "the cloud does not know it any more"
        return fail(
            view,
            Failure("LaunchDied", f"{known.instance_id} ended before it ran: {why}"),
            ec2=_terminated_facts(view),
        )
    if instance.state is InstanceState.PENDING:
        if view.now - max(view.entered_at, instance.launched_at) >= EC2_LAUNCH_LIMIT:
            text = f"{known.instance_id} did not run within {EC2_LAUNCH_LIMIT.seconds // 60} minutes"
            return fail(view, Failure("LaunchTimeout", text))
        return update_status(view, ec2=ec2_facts(known, instance)) or poll_again(view)
    return enter_phase(view, WorkerPhase.EC2_READY, f"{known.instance_id} runs", ec2=ec2_facts(known, instance))


def after_launch(view: WorkerView, outcome: EffectOutcome) -> Decision:
    """Record the answer to a launch."""
    known = view.status.ec2
    if isinstance(outcome, Failure):
        return _retry_elsewhere(view, outcome)
    if not isinstance(outcome, Instance):
        return poll_again(view)
    if outcome.state in ENDING:
        # What this token launched has ended: only a new attempt launches another machine.
        text = f"{outcome.instance_id} ended before it ran: {outcome.reason or 'no reason given'}"
        return fail(view, Failure("LaunchDied", text), ec2=_terminated_facts(view))
    return update_status(view, ec2=ec2_facts(known, outcome), last_error="") or poll_again(view)


def decide_ec2_ready(view: WorkerView) -> Decision:
    """Wait until the address of CML is known."""
    known, instance = view.status.ec2, view.instance
    if view.is_deleted and view.status.cml.licensed is False:
        return enter_phase(view, WorkerPhase.TERMINATING_EC2, "deleted before CML was up")
    if isinstance(instance, Unknown):
        return poll_again(view)
    if instance is None or instance.state in ENDING:
        return record_machine_gone(view)
    if instance.state in OFF_STATES:
        return record_machine_stopped(view, instance)
    url = api_url(view.worker.spec, instance)
    facts = ec2_facts(known, instance)
    if url:
        cml = msgspec.structs.replace(view.status.cml, api_url=url)
        return enter_phase(view, WorkerPhase.STARTING, f"CML will answer at {url}", ec2=facts, cml=cml)
    if view.now - view.entered_at >= EC2_LAUNCH_LIMIT:
        kind = "public" if view.worker.spec.aws.public_ip else "private"
        text = f"{known.instance_id} has no {kind} address; check its subnet, or set spec.aws.public_ip"
        return fail(view, Failure("NoAddress", text), ec2=facts)
    return update_status(view, ec2=facts) or poll_again(view)


def record_machine_gone(view: WorkerView) -> Decision:
    """End the worker because somebody terminated its machine: the cloud answered so."""
    why = view.instance.reason if isinstance(view.instance, Instance) else ""
    reason = f"{view.status.ec2.instance_id} is gone" + (f": {why}" if why else "")
    return enter_phase(
        view,
        WorkerPhase.TERMINATED,
        reason,
        ec2=_terminated_facts(view, keep_id=True),
        cml=without_cml_state(view.status.cml),
    )


def record_machine_stopped(view: WorkerView, instance: Instance) -> Decision:
    """Enter STOPPED because somebody stopped the machine."""
    facts = ec2_facts(view.status.ec2, instance)
    reason = f"somebody stopped {instance.instance_id}" + (f": {instance.reason}" if instance.reason else "")
    return enter_phase(view, WorkerPhase.STOPPED, reason, ec2=facts, cml=without_cml_state(view.status.cml))


def launch_choices(worker: LabWorker) -> Sequence[tuple[str, str | None]]:
    """List the instance types and subnets that the spec allows, in the order in which they are tried."""
    aws = worker.spec.aws
    types = dict.fromkeys((aws.instance_type, *aws.instance_type_alternatives))
    return [(name, subnet) for name in types for subnet in aws.subnet_ids or (None,)]


def launch_of(worker: LabWorker) -> Launch:
    """Return the launch that the status commits to."""
    known = worker.status.ec2
    instance_type, subnet = _launch_choice(worker, known.launch_attempt)
    return Launch(
        worker_uid=worker.metadata.uid,
        worker_name=worker.metadata.name,
        token=known.client_token,
        aws=worker.spec.aws,
        instance_type=instance_type,
        subnet_id=subnet,
    )


def _adopt(view: WorkerView) -> Decision:
    known, instance = view.status.ec2, view.instance
    if isinstance(instance, Unknown):
        return poll_again(view)
    if instance is None or instance.state in ENDING:
        # We did not launch this machine, so we do not launch another: the worker ends with its machine.
        return enter_phase(view, WorkerPhase.EC2_READY, f"{known.instance_id} was adopted")
    if instance.state in OFF_STATES:
        return enter_phase(
            view, WorkerPhase.STOPPED, f"{known.instance_id} was adopted, stopped", ec2=ec2_facts(known, instance)
        )
    if instance.state is InstanceState.PENDING:
        return update_status(view, ec2=ec2_facts(known, instance)) or poll_again(view)
    return enter_phase(view, WorkerPhase.EC2_READY, f"{known.instance_id} was adopted", ec2=ec2_facts(known, instance))


def _retry_elsewhere(view: WorkerView, failure: Failure) -> Decision:
    """Try the next instance type or subnet that the spec allows; when all were tried, fail."""
    known = view.status.ec2
    attempt = known.launch_attempt
    answered = msgspec.structs.replace(known, client_token="")
    if failure.reason != "NoCapacity" or attempt % len(launch_choices(view.worker)) == 0:
        return fail(view, failure, ec2=answered)
    following = attempt + 1
    text = f"{failure.message}; trying {_choice_text(_launch_choice(view.worker, following))}"
    token = f"{view.worker.metadata.uid}-{following}"
    ec2 = msgspec.structs.replace(known, client_token=token, launch_attempt=following)
    return update_status(view, ec2=ec2, last_error=text) or poll_again(view)


def _launch_choice(worker: LabWorker, attempt: int) -> tuple[str, str | None]:
    every = launch_choices(worker)
    return every[(attempt - 1) % len(every)]


def _choice_text(choice: tuple[str, str | None]) -> str:
    instance_type, subnet = choice
    return f"{instance_type} in {subnet}" if subnet else instance_type


def _terminated_facts(view: WorkerView, *, keep_id: bool = False) -> Ec2Facts:
    known = view.status.ec2
    return msgspec.structs.replace(
        known,
        client_token="",
        instance_id=known.instance_id if keep_id else "",
        state="terminated",
        state_since=view.state_since,
        public_ip=None,
        gone_at=view.now,
    )


def decide_starting(view: WorkerView) -> Decision:
    """Start or reboot the machine if that is due, then wait for CML."""
    instance = view.instance
    if isinstance(instance, Unknown):
        return poll_again(view)
    if instance is None or instance.state in ENDING:
        return record_machine_gone(view)
    # After a restore the record may be of a time before the licence: then it is drained like any other.
    registered = isinstance(view.licence, Licence) and view.licence.is_registered
    if view.is_deleted and view.status.cml.licensed is False and not registered:
        return enter_phase(view, WorkerPhase.TERMINATING_EC2, "deleted while CML booted")
    if instance.state is InstanceState.STOPPED:
        if view.status.ec2.state == InstanceState.RUNNING:
            return record_machine_stopped(view, instance)  # it ran after we started it, so somebody stopped it
        began = view.status.ec2.state == InstanceState.PENDING
        return (_fail_if_late(view) if began else None) or Do(StartMachine())
    if instance.state is InstanceState.STOPPING:
        return poll_again(view)  # once it is stopped, its last known state shows whether somebody stopped it
    if instance.state is not InstanceState.RUNNING:
        return _fail_if_late(view) or update_status(view, ec2=ec2_facts(view.status.ec2, instance)) or poll_again(view)
    if view.status.remedy is Remedy.REBOOT and view.status.remedied_at is None:
        return Do(RebootMachine())
    return _wait_for_cml(view, instance)


def after_reboot(view: WorkerView, outcome: EffectOutcome) -> Decision:
    """Record that the reboot was requested; fail if it was refused."""
    if isinstance(outcome, Failure):
        return fail(view, outcome)
    return update_status(view, remedied_at=view.now, unhealthy_since=None) or poll_again(view)


def after_start(view: WorkerView, outcome: EffectOutcome) -> Decision:
    """Record that the start was requested."""
    if isinstance(outcome, Failure):
        return _fail_if_late(view) or update_status(view, last_error=outcome.message) or poll_again(view)
    return update_status(view, last_error="") or poll_again(view)


def _wait_for_cml(view: WorkerView, instance: Instance) -> Decision:
    facts = ec2_facts(view.status.ec2, instance)
    if isinstance(view.checks, StatusChecks):
        facts = with_checks(facts, view.checks)
    cml = msgspec.structs.replace(
        view.status.cml,
        api_url=api_url(view.worker.spec, instance) or view.status.cml.api_url,
        certificate=view.status.cml.certificate or view.certificate,
    )
    if isinstance(view.system, Unknown) or isinstance(view.checks, Unknown) or not view.system.ready:
        cml = msgspec.structs.replace(cml, ready=None if isinstance(view.system, Unknown) else view.system.ready)
        return _fail_if_late(view) or update_status(view, ec2=facts, cml=cml) or poll_again(view)
    cml = msgspec.structs.replace(cml, version=view.system.version, ready=True)
    passed = view.checks.system == StatusCheckResult.OK and view.checks.instance == StatusCheckResult.OK
    if not passed or isinstance(view.stats, Unknown) or isinstance(view.licence, Unknown):
        return _fail_if_late(view) or update_status(view, ec2=facts, cml=cml) or poll_again(view)
    if not isinstance(view.definitions, Unknown):
        cml = definition_facts(cml, view.definitions)
    return enter_phase(
        view,
        WorkerPhase.READY_UNLICENSED,
        f"checks pass and CML {cml.version} is ready",
        ec2=facts,
        cml=msgspec.structs.replace(licence_facts(cml, view.licence), healthy=True),
        capacity=capacity_of(view.worker.spec, view.stats, view.licence),
        ready_at=view.now,
        unhealthy_since=None,
        retry_at=None,
        last_error="",
        failure="",
    )


def _fail_if_late(view: WorkerView) -> Decision | None:
    """Fail a boot that takes too long, if an answer shows that it does; return None while there is time.

    A machine that cannot be reached at all is unknown, and stays so for much longer: an outage is no failed
    boot.
    """
    # Time before the start or reboot took effect does not count.
    started_at = view.instance.launched_at if isinstance(view.instance, Instance) else view.entered_at
    took = view.now - max(view.entered_at, started_at, view.status.remedied_at or view.entered_at)
    minutes = took // timedelta(minutes=1)
    impaired = isinstance(view.checks, StatusChecks) and StatusCheckResult.IMPAIRED in {
        view.checks.system,
        view.checks.instance,
    }
    waits_for_cloud = not isinstance(view.instance, Instance) or view.instance.state is not InstanceState.RUNNING
    unanswered = any(isinstance(one, Unknown) and not one.answered for one in _boot_observations(view))
    silent = not waits_for_cloud and not impaired and unanswered
    if took < (view.rules.patience if silent else CML_BOOT_LIMIT):
        return None
    if waits_for_cloud:
        why = view.status.last_error or "EC2 did not start it"
        return fail(view, Failure("MachineNotUp", f"the machine did not start within {minutes} minutes: {why}"))
    if impaired:
        return fail(view, Failure("ChecksFailed", f"EC2's status checks failed for {minutes} minutes"))
    reason = view.blocker.reason if view.blocker else "CmlNotUp"
    return fail(view, Failure(reason, f"CML did not come up within {minutes} minutes: {_boot_problem(view)}"))


def _boot_observations(view: WorkerView) -> Sequence[object]:
    """List what was asked for. The licence, for instance, is asked only of a CML that is ready."""
    if isinstance(view.system, Unknown):
        return view.checks, view.system
    return (view.checks, view.stats, view.licence) if view.system.ready else (view.checks,)


def _boot_problem(view: WorkerView) -> str:
    unknown = view.blocker or next(
        (one for one in reversed(_boot_observations(view)) if isinstance(one, Unknown)), None
    )
    if unknown is not None:
        return unknown.why
    ready = not isinstance(view.system, Unknown) and view.system.ready
    return "EC2's checks have not passed" if ready else "it says that it is not ready"
