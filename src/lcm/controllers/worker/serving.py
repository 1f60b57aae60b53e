"""READY and ACTIVE: a worker that serves, and how an unhealthy one is helped. Pure.

The monitor keeps the facts fresh; here they are only judged. Nothing is done to a worker under a live session. An
unhealthy worker gets a reboot, then another machine, twice; a machine that we did not launch is rebooted once, all
else is for people.
"""

from datetime import timedelta
from typing import Final

import msgspec

from lcm.controllers.runtime.lifecycle import Do, Failure, Unknown, Wait, enter_phase, poll_again, update_status
from lcm.controllers.worker.conditions import api_url, ec2_facts, without_cml_state
from lcm.controllers.worker.failing import ends_when_paused, fail, is_our_machine, replacement_fields
from lcm.controllers.worker.launching import record_machine_gone, record_machine_stopped
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.view import BeginDrain, Decision, EffectOutcome, SetTelemetry, WorkerView
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.worker import Remedy, WorkerCondition, WorkerPhase
from lcm.providers.protocols.compute import ENDING, InstanceState

RECOVERED_AFTER: Final = timedelta(hours=1)
"""A remedy helped if nothing was wrong for so long. What comes later is a new problem."""
_MAX_REMEDIES: Final = 4
_MAX_REMEDIES_ADOPTED: Final = 1


def needs_remedy(view: WorkerView) -> bool:
    """Return whether it has been unhealthy for so long that something must be done."""
    since = view.status.unhealthy_since
    return since is not None and view.status.phase in SERVING and view.now >= since + view.rules.unhealthy_for


def has_no_remedy_left(view: WorkerView) -> bool:
    """Return whether everything that is allowed was tried."""
    return view.status.remedies >= (_MAX_REMEDIES if is_our_machine(view) else _MAX_REMEDIES_ADOPTED)


def healthy_for(view: WorkerView) -> timedelta:
    """Return how long it has been seen healthy since it was last up; zero if it is not."""
    status = view.status
    known = find_condition(status.conditions, WorkerCondition.HEALTH_CHECK_PASSED)
    if status.phase not in SERVING or known is None or known.status is not Truth.TRUE:
        return timedelta(0)
    moments = (known.last_transition_at, status.ready_at, status.remedied_at)
    return view.now - max(one for one in moments if one is not None)


def decide_ready(view: WorkerView) -> Decision:
    """Serve, with no session on the worker but prebuilt ones."""
    status = view.status
    if (first := decide_serving(view)) is not None:
        return first
    if view.used_sessions:
        return enter_phase(view, WorkerPhase.ACTIVE, f"session {view.used_sessions[0].metadata.name} is on it")
    if status.cml.licensed is False and view.worker.spec.host_kind == "cml":
        return enter_phase(view, WorkerPhase.READY_UNLICENSED, "CML says that its licence is gone")
    idle, ill = status.idle, status.unhealthy_since
    moments = [idle.pause_at] if idle and idle.idle and idle.pause_at else []
    moments += [ill + view.rules.unhealthy_for] if ill else []
    return Wait(min((one for one in moments if one > view.now), default=None))


def decide_active(view: WorkerView) -> Decision:
    """Serve, with sessions on the worker."""
    if (first := _check_interruption(view)) is not None:
        return first
    if not view.used_sessions:
        return enter_phase(view, WorkerPhase.READY, "no session is on it")
    return _clear_remedies(view) or Wait()


def decide_serving(view: WorkerView) -> Decision | None:
    """Decide what all serving workers without a session have in common; None: it may go on."""
    if (first := _check_interruption(view)) is not None:
        return first
    if view.sessions:
        return None
    return _remedy_if_unhealthy(view) or _pause_if_due(view) or _clear_remedies(view) or _set_telemetry(view)


def check_machine(view: WorkerView) -> Decision | None:
    """Record what somebody did to the machine, once the cloud itself has said so; None if nothing happened."""
    if isinstance(view.instance, Unknown):
        return None
    if view.instance is None or view.instance.state in ENDING:
        return record_machine_gone(view)
    if view.instance.state is InstanceState.STOPPED:
        return record_machine_stopped(view, view.instance)
    if view.instance.state is InstanceState.STOPPING:
        return poll_again(view)
    return update_status(view, ec2=ec2_facts(view.status.ec2, view.instance))  # it was stopped or gone, and runs again


def _check_interruption(view: WorkerView) -> Decision | None:
    """Begin a drain, or follow the machine: one that somebody stopped and started has a new address."""
    if view.is_deleted:
        return Do(BeginDrain())
    if (seen := check_machine(view)) is not None:
        return seen
    if (reclaim_at := view.status.ec2.reclaim_at) is not None:
        reason = f"the cloud takes its spot machine away at {reclaim_at:%H:%M:%SZ}"
        return enter_phase(view, WorkerPhase.DRAINING, reason, drain_deadline_at=reclaim_at)
    url, known = api_url(view.worker.spec, view.status.ec2), view.status.cml
    moved = bool(url) and url != known.api_url
    return update_status(view, cml=msgspec.structs.replace(known, api_url=url)) if moved else None


def _pause_if_due(view: WorkerView) -> Decision | None:
    """Pause a worker that is wanted stopped, or whose countdown is over.

    Only a verdict made after its end can know whether somebody answered the warning, and an old verdict knows
    nothing of now. One that is due is written anew at each judgement, so nothing is lost by waiting for it.
    """
    status, idle = view.status, view.status.idle
    if view.worker.spec.wanted_state == "stopped":
        why = "it is wanted stopped"
    elif (
        idle is None
        or not idle.idle
        or idle.pause_at is None
        or idle.pause_at > min(view.now, idle.judged_at)
        or view.now - idle.judged_at > view.rules.judged_within
    ):
        return None
    else:
        why = idle.reason
    if ends_when_paused(view):
        reason = f"a spot machine cannot be paused, so that it ends: {why}"
        return enter_phase(view, WorkerPhase.DRAINING, reason, drain_deadline_at=view.now)
    return enter_phase(view, WorkerPhase.STOPPING, f"paused: {why}", pause_count=status.pause_count + 1)


def _remedy_if_unhealthy(view: WorkerView) -> Decision | None:
    status, since = view.status, view.status.unhealthy_since
    if since is None or not needs_remedy(view) or not view.worker.spec.auto_remediate or has_no_remedy_left(view):
        return None
    minutes = (view.now - since) // timedelta(minutes=1)
    illness = f"unhealthy for {minutes} minutes"
    if status.remedy is Remedy.REBOOT and is_our_machine(view):
        failure = Failure("Unhealthy", f"{illness} although it was rebooted")
        return fail(view, failure, **replacement_fields(view))
    return enter_phase(
        view,
        WorkerPhase.STARTING,
        f"{illness}: it is rebooted",
        remedy=Remedy.REBOOT,
        remedied_at=None,
        remedies=status.remedies + 1,
        cml=without_cml_state(status.cml),
    )


def _clear_remedies(view: WorkerView) -> Decision | None:
    status = view.status
    if status.unhealthy_since is not None or healthy_for(view) < RECOVERED_AFTER:
        return None
    return update_status(view, remedy=Remedy.NONE, remedied_at=None, remedies=0)


def _set_telemetry(view: WorkerView) -> Decision | None:
    wanted = view.worker.spec.cml.telemetry
    reached = view.worker.spec.host_kind == "cml" and view.status.cml.ready
    return Do(SetTelemetry(wanted)) if reached and view.status.cml.telemetry is not wanted else None


def after_set_telemetry(view: WorkerView, outcome: EffectOutcome) -> Decision:
    """Record what CML was set to send. What it refused is not requested again until the spec changes."""
    refused = outcome.message if isinstance(outcome, Failure) else view.status.last_error
    cml = msgspec.structs.replace(view.status.cml, telemetry=view.worker.spec.cml.telemetry)
    return update_status(view, cml=cml, last_error=refused) or poll_again(view)
