"""FAILED: why, when it is tried again, with what, and when nobody tries any more.

Counts and moments stand in the status, so that another leader goes on where this one stopped.
"""

from datetime import timedelta
from typing import Any, Final

import msgspec

from lcm.controllers.worker.view import Decision, Failure, Unknown, View, Wait, move, note, soon
from lcm.model.kinds.worker import Remedy, WorkerPhase
from lcm.providers.protocols.compute import ENDING, Instance, InstanceState

_FIRST: Final = timedelta(minutes=1)
_LONGEST_TEXT: Final = 2000
_OF_THE_MACHINE: Final = frozenset(
    {"LaunchTimeout", "NoAddress", "MachineNotUp", "ChecksFailed", "CmlNotUp", "Unhealthy"},
)
"""Failures that another machine may not have; a licence that is refused here is refused there too."""

_OFF: Final = frozenset({InstanceState.STOPPING, InstanceState.STOPPED})
_NEVER_RAN: Final = frozenset({"", "LaunchTimeout", "MachineNotUp"})
"""Failures of a machine that may be stopped though nobody stopped it."""


def failed(view: View, failure: Failure, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    """Fail, with the reason, and say when it is tried again."""
    count = view.status.retry_count + 1
    return move(
        view,
        WorkerPhase.FAILED,
        f"{failure.reason}: {failure.message}"[:_LONGEST_TEXT],
        failure=failure.reason,
        last_error=failure.message[:_LONGEST_TEXT],
        retry_count=count,
        retry_at=view.now + _FIRST * 2 ** (count - 1) if count <= view.rules.retries else None,
        observed_generation=view.worker.metadata.generation,
        **fields,
    )


def failing(view: View) -> Decision:
    """Go on with what is left: look for it, remove it, or try again."""
    status = view.status
    if status.ec2.instance_id and (view.instance is None or _is_ending(view)):
        ec2 = msgspec.structs.replace(status.ec2, instance_id="", state="terminated", gone_at=view.now)
        return note(view, ec2=ec2) or soon(view)
    if view.deleted or _given_up(view):
        return _ended(view, "deleted" if view.deleted else "given up")
    if status.ec2.gone_at is not None and not ours(view):
        return _ended(view, "its machine is gone, and was not ours to launch again")
    if status.remedy is Remedy.REPLACE and status.remedied_at is None:
        return _removed(view, "replaced") if status.ec2.instance_id else _again(view, "replaced: its machine is gone")
    wanted = view.worker.spec.wanted_state == "running" or not halted(view)
    if wanted and view.worker.metadata.generation != status.observed_generation:
        return _again(view, "tried again: the spec was changed", retry_count=0)
    if status.retry_at is None or halted(view):
        return Wait()
    if view.now < status.retry_at:
        return Wait(status.retry_at)
    return _again(view, f"tried again, {status.retry_count} of {view.rules.retries}")


def _again(view: View, reason: str, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    status = view.status
    if not status.ec2.instance_id:
        ec2 = msgspec.structs.replace(status.ec2, gone_at=None)
        return move(view, WorkerPhase.PENDING, reason, ec2=ec2, retry_at=None, **fields)
    if isinstance(view.instance, Unknown):
        return soon(view)
    if status.retry_count > view.rules.same_machine and _replaceable(view):
        illness = {} if status.remedies else {"remedies": 0}  # retries are counted on their own
        return note(view, **(replaced(view) | illness)) or soon(view)
    reboot = {"remedy": Remedy.REBOOT, "remedied_at": None} if status.failure == "CmlNotUp" else {}
    # Only what is seen running from now on and stopped after that was stopped by somebody.
    ec2 = msgspec.structs.replace(status.ec2, state=str(view.instance.state)) if view.instance else status.ec2
    return move(view, WorkerPhase.STARTING, reason, ec2=ec2, retry_at=None, **reboot, **fields)


def _replaceable(view: View) -> bool:
    """Tell whether another machine may help and this one can go: only one that runs can give its licence back."""
    runs = isinstance(view.instance, Instance) and view.instance.state is InstanceState.RUNNING
    return ours(view) and view.status.failure in _OF_THE_MACHINE and (runs or view.status.cml.licensed is False)


def _ended(view: View, why: str) -> Decision:
    if not view.status.ec2.instance_id:
        return move(view, WorkerPhase.TERMINATED, why)
    return _removed(view, why)


def _removed(view: View, why: str) -> Decision:
    if view.status.cml.licensed is False:
        return move(view, WorkerPhase.TERMINATING_EC2, f"{why}: {view.status.last_error}"[:_LONGEST_TEXT])
    return move(view, WorkerPhase.UNLICENSING, f"{why}; a licence is or may be registered")


def _given_up(view: View) -> bool:
    """Tell whether a machine of ours is to go because nothing helped: it costs money. A stranger's is left alone."""
    status = view.status
    exhausted = status.retry_at is None and status.retry_count > view.rules.retries
    unchanged = view.worker.metadata.generation == status.observed_generation
    return exhausted and unchanged and ours(view) and bool(status.ec2.instance_id)


def _is_ending(view: View) -> bool:
    return isinstance(view.instance, Instance) and view.instance.state in ENDING


def halted(view: View) -> bool:
    """Tell whether somebody stopped the machine after it failed: it is not tried again before it is started."""
    stopped = isinstance(view.instance, Instance) and view.instance.state in _OFF
    return stopped and view.status.phase is WorkerPhase.FAILED and view.status.failure not in _NEVER_RAN


def replaced(view: View) -> dict[str, Any]:
    """Say in a status that another machine is to take the place of this one, whether or not it was rebooted before."""
    return {"remedy": Remedy.REPLACE, "remedied_at": None, "remedies": view.status.remedies // 2 * 2 + 2}


def ours(view: View) -> bool:
    """Tell whether we launched its machine; a stranger's is not ours to end."""
    return view.status.ec2.launch_attempt > 0
