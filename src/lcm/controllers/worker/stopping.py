"""DRAINING, STOPPING, STOPPED and TERMINATING_EC2: from a worker that takes no more sessions to a machine that is gone.

A draining worker gets no new sessions; the present ones have until the deadline, and are warned before.
A failed stop or terminate is repeated until the cloud itself says that it happened.
"""

from typing import Final

import msgspec

from lcm.controllers.runtime.lifecycle import Do, Failure, Unknown, Wait, enter_phase, poll_again, update_status
from lcm.controllers.worker.conditions import ec2_facts, keep_snooze, without_cml_state
from lcm.controllers.worker.failing import ends_when_paused
from lcm.controllers.worker.launching import record_machine_gone
from lcm.controllers.worker.serving import check_machine
from lcm.controllers.worker.view import Decision, EffectOutcome, EndSessions, RemoveMachine, StopMachine, WorkerView
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.worker import CmlFacts, Ec2Facts, Remedy, WorkerPhase
from lcm.providers.protocols.compute import ENDING, VISIBLE_WITHIN, Instance, InstanceState

_STARTED_STATES: Final = frozenset({InstanceState.PENDING, InstanceState.RUNNING})
_ENDING_PHASES: Final = frozenset({SessionPhase.COLLECTING, SessionPhase.STOPPING})
_SELDOM: Final = 3
"""After so many polling intervals a machine is looked at that shuts down."""


def decide_draining(view: WorkerView) -> Decision:
    """Wait for the sessions. When their time is up, end them and wait until they are collected.

    Labs of sessions that are not known, as after a restore, are waited for as well: meanwhile they are saved and held.
    """
    if (ended := check_machine(view)) is not None:
        return ended
    deadline = view.status.drain_deadline_at or view.entered_at
    if view.has_unknown_labs:
        return poll_again(view)
    if not view.sessions:
        return _leave_draining(view, "empty")
    if view.status.ec2.reclaim_at is not None:
        return poll_again(view)  # they are collected and tried again elsewhere, as far as the machine lives
    if view.now < deadline:
        return Wait(min(deadline, max(view.now + view.rules.poll, deadline - view.rules.drain_warning)))
    if lingering := [session for session in view.sessions if session.status.phase not in _ENDING_PHASES]:
        names = [(one.metadata.namespace, one.metadata.name) for one in lingering]
        return Do(EndSessions(names, "its worker is drained and the deadline has passed"))
    if view.now < deadline + view.rules.clean_up:
        return Wait(deadline + view.rules.clean_up)
    return _leave_draining(view, f"its deadline passed with {len(view.sessions)} sessions on it")


def _leave_draining(view: WorkerView, why: str) -> Decision:
    licensed = view.status.cml.licensed
    if licensed is None:
        if isinstance(view.licence, Unknown):
            return poll_again(view)
        licensed = view.licence.is_registered
    phase = WorkerPhase.UNLICENSING if licensed else WorkerPhase.STOPPING
    return enter_phase(view, phase, why, cml=msgspec.structs.replace(view.status.cml, licensed=licensed))


def decide_stopping(view: WorkerView) -> Decision:
    """Stop the machine, or go straight on to its termination."""
    instance = view.instance
    unlicensed = view.status.cml.licensed is False
    if unlicensed and (view.is_deleted or _is_replaced(view) or ends_when_paused(view)):
        return enter_phase(view, WorkerPhase.TERMINATING_EC2, "labs and licence are gone")
    if isinstance(instance, Unknown):
        return poll_again(view)
    if instance is None or instance.state in ENDING:
        return record_machine_gone(view)
    facts = ec2_facts(view.status.ec2, instance)
    if instance.state is InstanceState.STOPPED:
        cml = without_cml_state(view.status.cml)
        return enter_phase(
            view,
            WorkerPhase.STOPPED,
            "seen stopped",
            ec2=facts,
            cml=cml,
            idle=keep_snooze(view.status.idle, view.now),
            unhealthy_since=None,
            drain_deadline_at=None,
        )
    if instance.state is InstanceState.STOPPING:
        return update_status(view, ec2=facts) or poll_again(view)
    return Do(StopMachine())


def decide_stopped(view: WorkerView) -> Decision:
    """Wait until the worker is needed."""
    status = view.status
    if view.is_deleted and status.cml.licensed is False:
        return enter_phase(view, WorkerPhase.TERMINATING_EC2, "deleted while stopped")
    if view.instance is None or (isinstance(view.instance, Instance) and view.instance.state in ENDING):
        return record_machine_gone(view)
    if view.is_deleted:
        return _start_again(view, "deleted; started once more to return its licence")
    if view.worker.spec.wanted_state == "running":
        return _start_again(view, "resumed", resume_count=status.resume_count + 1)
    if any(one.status.phase is SessionPhase.STOPPING for one in view.sessions):
        # Their labs are on its disk and can be removed only there, and a worker with sessions is not given up.
        return _start_again(view, "started once more to have labs removed", resume_count=status.resume_count + 1)
    states = {status.ec2.state, view.instance.state if isinstance(view.instance, Instance) else status.ec2.state}
    if states == {InstanceState.STOPPED}:
        return Wait()
    if not isinstance(view.instance, Instance):
        return poll_again(view)  # it is reported as not stopped; the cloud itself must say so
    if view.instance.state in _STARTED_STATES:
        return _start_again(view, "somebody started the machine", resume_count=status.resume_count + 1)
    return update_status(view, ec2=ec2_facts(status.ec2, view.instance)) or poll_again(view)


def decide_terminating(view: WorkerView) -> Decision:
    """Terminate the machine until it is seen gone."""
    known, instance = view.status.ec2, view.instance
    if isinstance(instance, Unknown):
        return poll_again(view)
    if not known.instance_id:  # the machine of a launch without an answer is found by its tag, once it must be listed
        visible_at = view.entered_at + VISIBLE_WITHIN
        if instance is not None:
            return update_status(view, ec2=ec2_facts(known, instance)) or poll_again(view)
        return Wait(visible_at) if view.now < visible_at else _leave_terminating(view)
    if instance is None or instance.state is InstanceState.TERMINATED:
        return _leave_terminating(view)
    if instance.state is InstanceState.SHUTTING_DOWN:  # it costs nothing any more, and nobody waits for its end
        return update_status(view, ec2=ec2_facts(known, instance)) or Wait(view.now + _SELDOM * view.rules.poll)
    return Do(RemoveMachine())


def after_stop_or_remove(view: WorkerView, outcome: EffectOutcome) -> Decision:
    """Record a stop or terminate that was refused. Whether it happened is for the cloud to say."""
    text = outcome.message if isinstance(outcome, Failure) else ""
    return update_status(view, last_error=text) or poll_again(view)


def _start_again(view: WorkerView, reason: str, **fields: int) -> Decision:
    cml = without_cml_state(view.status.cml)
    # Record the present state: only a machine seen running after this, then stopped, was stopped by somebody.
    known = view.status.ec2
    seen = view.instance if isinstance(view.instance, Instance) else None
    ec2 = msgspec.structs.replace(
        known,
        state=str(seen.state if seen else InstanceState.STOPPED),
        launched_at=seen.launched_at if seen else known.launched_at,
        state_since=view.state_since,
        system_status="",
        instance_status="",
    )
    idle = keep_snooze(view.status.idle, view.now)
    return enter_phase(view, WorkerPhase.STARTING, reason, cml=cml, ec2=ec2, idle=idle, last_error="", **fields)


def _leave_terminating(view: WorkerView) -> Decision:
    known, status = view.status.ec2, view.status
    if _is_replaced(view) and not view.is_deleted:
        return enter_phase(
            view,
            WorkerPhase.PENDING,
            f"{known.instance_id} is gone; another takes its place",
            ec2=Ec2Facts(launch_attempt=known.launch_attempt, gone_at=view.now),
            cml=CmlFacts(licensed=False),
            capacity=None,
            remedied_at=view.now,
            unhealthy_since=None,
        )
    ended = msgspec.structs.replace(
        known, client_token="", state="terminated", state_since=view.state_since, public_ip=None, gone_at=view.now
    )
    reason = f"{known.instance_id} is seen gone" if known.instance_id else "nothing was launched"
    cml = without_cml_state(status.cml)
    return enter_phase(
        view, WorkerPhase.TERMINATED, reason, ec2=ended, cml=cml, idle=None, retry_at=None, remedy=status.remedy
    )


def _is_replaced(view: WorkerView) -> bool:
    return view.status.remedy is Remedy.REPLACE and view.status.remedied_at is None
