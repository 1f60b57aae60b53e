"""STOPPING, STOPPED and TERMINATING_EC2: from a machine that nobody needs to one that is seen stopped, or gone.

A failed stop or terminate is repeated until the cloud itself says that it happened.
"""

from typing import Final

import msgspec

from lcm.controllers.worker.conditions import ec2_facts, put_off, unseen
from lcm.controllers.worker.launching import gone
from lcm.controllers.worker.view import (
    Decision,
    Do,
    Failure,
    Outcome,
    RemoveMachine,
    StopMachine,
    Unknown,
    View,
    Wait,
    move,
    note,
    soon,
)
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.worker import CmlFacts, Ec2Facts, Remedy, WorkerPhase
from lcm.providers.protocols.compute import ENDING, VISIBLE_WITHIN, Instance, InstanceState

_STARTED: Final = frozenset({InstanceState.PENDING, InstanceState.RUNNING})


def stopping(view: View) -> Decision:
    """Stop the machine, or go straight on to its end."""
    instance = view.instance
    unlicensed = view.status.cml.licensed is False
    if unlicensed and (view.deleted or _replaced(view)):
        return move(view, WorkerPhase.TERMINATING_EC2, "labs and licence are gone")
    if isinstance(instance, Unknown):
        return soon(view)
    if instance is None or instance.state in ENDING:
        return gone(view)
    facts = ec2_facts(view.status.ec2, instance)
    if instance.state is InstanceState.STOPPED:
        cml = unseen(view.status.cml)
        return move(
            view,
            WorkerPhase.STOPPED,
            "seen stopped",
            ec2=facts,
            cml=cml,
            idle=put_off(view.status.idle, view.now),
            unhealthy_since=None,
            drain_deadline_at=None,
        )
    if instance.state is InstanceState.STOPPING:
        return note(view, ec2=facts) or soon(view)
    return Do(StopMachine())


def stopped(view: View) -> Decision:
    """Wait until it is needed."""
    status = view.status
    if view.deleted and status.cml.licensed is False:
        return move(view, WorkerPhase.TERMINATING_EC2, "deleted while stopped")
    if view.instance is None or (isinstance(view.instance, Instance) and view.instance.state in ENDING):
        return gone(view)
    if view.deleted:
        return _resumed(view, "deleted; started once more to give its licence back")
    if view.worker.spec.wanted_state == "running":
        return _resumed(view, "resumed", resume_count=status.resume_count + 1)
    if any(one.status.phase is SessionPhase.STOPPING for one in view.sessions):
        # Their labs are on its disk, nobody else can remove them, and nobody gives up a worker that has sessions.
        return _resumed(view, "started once more to have labs removed", resume_count=status.resume_count + 1)
    states = {status.ec2.state, view.instance.state if isinstance(view.instance, Instance) else status.ec2.state}
    return Wait() if states == {InstanceState.STOPPED} else _otherwise(view)


def terminating(view: View) -> Decision:
    """Terminate the machine until it is seen gone."""
    known, instance = view.status.ec2, view.instance
    if isinstance(instance, Unknown):
        return soon(view)
    if not known.instance_id:
        return _unresolved(view)
    if instance is None or instance.state is InstanceState.TERMINATED:
        return _seen_gone(view)
    if instance.state is InstanceState.SHUTTING_DOWN:
        return note(view, ec2=ec2_facts(known, instance)) or soon(view)
    return Do(RemoveMachine())


def asked(view: View, outcome: Outcome) -> Decision:
    """Take note of a stop or terminate that was refused; whether it happened is for the cloud to say."""
    text = outcome.message if isinstance(outcome, Failure) else ""
    return note(view, last_error=text) or soon(view)


def _otherwise(view: View) -> Decision:
    """Judge a machine that is said not to be stopped, once the cloud has said so itself."""
    if not isinstance(view.instance, Instance):
        return soon(view)
    if view.instance.state in _STARTED:
        return _resumed(view, "somebody started the machine", resume_count=view.status.resume_count + 1)
    return note(view, ec2=ec2_facts(view.status.ec2, view.instance)) or soon(view)


def _resumed(view: View, reason: str, **fields: int) -> Decision:
    cml = unseen(view.status.cml)
    # Only what is seen running from now on and stopped after that was stopped by somebody.
    known = view.status.ec2
    seen = view.instance if isinstance(view.instance, Instance) else None
    ec2 = msgspec.structs.replace(
        known,
        state=str(seen.state if seen else InstanceState.STOPPED),
        launched_at=seen.launched_at if seen else known.launched_at,
        system_status="",
        instance_status="",
    )
    idle = put_off(view.status.idle, view.now)
    return move(view, WorkerPhase.STARTING, reason, cml=cml, ec2=ec2, idle=idle, last_error="", **fields)


def _unresolved(view: View) -> Decision:
    """Find what a launch made whose answer was never heard: by its tag, once the cloud must list it."""
    known, instance = view.status.ec2, view.instance
    assert not isinstance(instance, Unknown)
    if instance is not None:
        return note(view, ec2=ec2_facts(known, instance)) or soon(view)
    visible_at = view.entered_at + VISIBLE_WITHIN
    return Wait(visible_at) if view.now < visible_at else _seen_gone(view)


def _seen_gone(view: View) -> Decision:
    known, status = view.status.ec2, view.status
    if _replaced(view) and not view.deleted:
        return move(
            view,
            WorkerPhase.PENDING,
            f"{known.instance_id} is gone; another takes its place",
            ec2=Ec2Facts(launch_attempt=known.launch_attempt, gone_at=view.now),
            cml=CmlFacts(licensed=False),
            capacity=None,
            remedied_at=view.now,
            unhealthy_since=None,
        )
    ended = msgspec.structs.replace(known, client_token="", state="terminated", public_ip=None, gone_at=view.now)
    reason = f"{known.instance_id} is seen gone" if known.instance_id else "nothing was launched"
    cml = unseen(status.cml)
    return move(
        view, WorkerPhase.TERMINATED, reason, ec2=ended, cml=cml, idle=None, retry_at=None, remedy=status.remedy
    )


def _replaced(view: View) -> bool:
    return view.status.remedy is Remedy.REPLACE and view.status.remedied_at is None
