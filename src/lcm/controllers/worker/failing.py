"""FAILED: why, when to retry, with which machine, and when to give up.

Counts and moments stand in the status, so that another leader goes on where this one stopped.
"""

from datetime import timedelta
from typing import Any, Final

import msgspec

from lcm.controllers.runtime.lifecycle import Failure, Unknown, Wait, enter_phase, poll_again, update_status
from lcm.controllers.worker.view import Decision, WorkerView
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.worker import Remedy, WorkerPhase, is_spot
from lcm.providers.protocols.compute import ENDING, Instance, InstanceState

_FIRST_RETRY: Final = timedelta(minutes=1)
_MACHINE_FAILURES: Final = frozenset(
    {"LaunchTimeout", "NoAddress", "MachineNotUp", "ChecksFailed", "CmlNotUp", "Unhealthy"},
)
"""Failures that another machine may not have. A licence that is refused here is refused there too."""

_IN_USE: Final = frozenset({SessionPhase.INSTANTIATING, SessionPhase.RUNNING, SessionPhase.COLLECTING})
OFF_STATES: Final = frozenset({InstanceState.STOPPING, InstanceState.STOPPED})
_NEVER_RAN_FAILURES: Final = frozenset({"", "LaunchTimeout", "MachineNotUp"})
"""Failures of a machine that may be stopped though nobody stopped it."""


def fail(view: WorkerView, failure: Failure, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    """Enter FAILED with the reason, and set when to retry."""
    count = view.status.retry_count + 1
    return enter_phase(
        view,
        WorkerPhase.FAILED,
        shorten_text(f"{failure.reason}: {failure.message}"),
        failure=failure.reason,
        last_error=shorten_text(failure.message),
        retry_count=count,
        retry_at=view.now + _FIRST_RETRY * 2 ** (count - 1) if count <= view.rules.retries else None,
        observed_generation=view.worker.metadata.generation,
        **fields,
    )


def decide_failed(view: WorkerView) -> Decision:
    """Go on with what is left: look for it, remove it, or retry."""
    status = view.status
    gone = view.instance is None or (isinstance(view.instance, Instance) and view.instance.state in ENDING)
    if status.ec2.instance_id and gone:
        ec2 = msgspec.structs.replace(
            status.ec2, instance_id="", state="terminated", state_since=view.state_since, gone_at=view.now
        )
        return update_status(view, ec2=ec2) or poll_again(view)
    if view.is_deleted or _is_given_up(view):
        return _remove_machine(view, "deleted" if view.is_deleted else "given up")
    if status.ec2.gone_at is not None and not is_our_machine(view):
        return _remove_machine(view, "its machine is gone, and was not ours to launch again")
    if status.remedy is Remedy.REPLACE and status.remedied_at is None and not _has_held_labs(view):
        return (
            _remove_machine(view, "replaced")
            if status.ec2.instance_id
            else _retry(view, "replaced: its machine is gone")
        )
    wanted = view.worker.spec.wanted_state == "running" or not is_halted(view)
    if wanted and view.worker.metadata.generation != status.observed_generation:
        return _retry(view, "tried again: the spec was changed", retry_count=0)
    if status.retry_at is None or is_halted(view):
        return Wait()
    if view.now < status.retry_at:
        return Wait(status.retry_at)
    return _retry(view, f"tried again, {status.retry_count} of {view.rules.retries}")


def _retry(view: WorkerView, reason: str, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    status = view.status
    if not status.ec2.instance_id:
        ec2 = msgspec.structs.replace(status.ec2, gone_at=None)
        return enter_phase(view, WorkerPhase.PENDING, reason, ec2=ec2, retry_at=None, **fields)
    if isinstance(view.instance, Unknown):
        return poll_again(view)
    unused = not _has_labs_in_use(view)
    if status.retry_count > view.rules.same_machine and unused and _is_replaceable(view):
        illness = {} if status.remedies else {"remedies": 0}  # a retry does not count as a remedy
        return update_status(view, **(replacement_fields(view) | illness)) or poll_again(view)
    reboot = {"remedy": Remedy.REBOOT, "remedied_at": None} if unused and status.failure == "CmlNotUp" else {}
    # Record the present state: only a machine seen running after this, then stopped, was stopped by somebody.
    seen = view.instance
    ec2 = (
        msgspec.structs.replace(status.ec2, state=str(seen.state), state_since=seen.state_since) if seen else status.ec2
    )
    return enter_phase(view, WorkerPhase.STARTING, reason, ec2=ec2, retry_at=None, **reboot, **fields)


def _has_labs_in_use(view: WorkerView) -> bool:
    """Return whether labs may be on the machine that somebody uses or wants, though its CML may not answer us."""
    return _has_held_labs(view) or any(one.status.phase in _IN_USE for one in view.sessions)


def _has_held_labs(view: WorkerView) -> bool:
    """Return whether labs are seen of sessions that are not known, as after a restore: a person decides about them."""
    return not isinstance(view.session_labs, Unknown) and bool(view.session_labs)


def _is_replaceable(view: WorkerView) -> bool:
    """Return whether another machine may help and this one can go: only a running one can return its licence."""
    runs = isinstance(view.instance, Instance) and view.instance.state is InstanceState.RUNNING
    return (
        is_our_machine(view)
        and view.status.failure in _MACHINE_FAILURES
        and (runs or view.status.cml.licensed is False)
    )


def _remove_machine(view: WorkerView, why: str) -> Decision:
    if not view.status.ec2.instance_id:
        return enter_phase(view, WorkerPhase.TERMINATED, why)
    if view.status.cml.licensed is False:
        return enter_phase(view, WorkerPhase.TERMINATING_EC2, shorten_text(f"{why}: {view.status.last_error}"))
    return enter_phase(view, WorkerPhase.UNLICENSING, f"{why}; a licence is or may be registered")


def _is_given_up(view: WorkerView) -> bool:
    """Return whether a machine of ours must go because nothing helped: it costs money. Others' are left alone."""
    status = view.status
    exhausted = status.retry_at is None and status.retry_count > view.rules.retries
    unchanged = view.worker.metadata.generation == status.observed_generation
    useless = is_our_machine(view) and not _has_labs_in_use(view)
    return exhausted and unchanged and useless and bool(status.ec2.instance_id)


def is_halted(view: WorkerView) -> bool:
    """Return whether somebody stopped the machine after it failed: no retry before it is started."""
    stopped = isinstance(view.instance, Instance) and view.instance.state in OFF_STATES
    return stopped and view.status.phase is WorkerPhase.FAILED and view.status.failure not in _NEVER_RAN_FAILURES


def replacement_fields(view: WorkerView) -> dict[str, Any]:
    """Return the status fields that request another machine, whether or not this one was rebooted before."""
    return {"remedy": Remedy.REPLACE, "remedied_at": None, "remedies": view.status.remedies // 2 * 2 + 2}


def ends_when_paused(view: WorkerView) -> bool:
    """Return whether a pause ends the machine, because the cloud only lent it to us. Others' are left alone."""
    return is_spot(view.worker) and is_our_machine(view)


def is_our_machine(view: WorkerView) -> bool:
    """Return whether we launched its machine; we must not end others' machines."""
    return view.status.ec2.launch_attempt > 0
