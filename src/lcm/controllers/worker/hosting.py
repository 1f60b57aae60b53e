"""READY and ACTIVE: a worker that serves. What ends that: a hand, a wish, an illness, or nothing to do.

The monitor keeps the facts fresh; here they are only judged. Nothing is done to a worker under a live session.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.controllers.worker.conditions import api_url, ec2_facts, unseen
from lcm.controllers.worker.failing import failed, ours, replaced
from lcm.controllers.worker.launching import gone, stopped_by_hand
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.view import (
    BeginDrain,
    Decision,
    Do,
    EndSessions,
    Failure,
    Outcome,
    SetTelemetry,
    Unknown,
    View,
    Wait,
    move,
    note,
    soon,
)
from lcm.model.base.resource import Truth, condition
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import CmlFacts, IdleVerdict, Remedy, WorkerCondition, WorkerPhase
from lcm.providers.protocols.compute import ENDING, InstanceState

CURED_AFTER: Final = timedelta(hours=1)
"""What was done helped if nothing was wrong for so long; what comes later is another illness."""
_MOST: Final = 4
_MOST_OF_A_STRANGER: Final = 1


def ailing(view: View) -> bool:
    """Tell whether it has been unhealthy for so long that something must be done."""
    since = view.status.unhealthy_since
    return since is not None and view.status.phase in SERVING and view.now >= since + view.rules.unhealthy_for


def exhausted(view: View) -> bool:
    """Tell whether all was tried that may be."""
    return view.status.remedies >= (_MOST if ours(view) else _MOST_OF_A_STRANGER)


def well_for(view: View) -> timedelta:
    """Tell how long it has been seen healthy since it was last up; zero if it is not."""
    status = view.status
    known = condition(status.conditions, WorkerCondition.HEALTH_CHECK_PASSED)
    if status.phase not in SERVING or known is None or known.status is not Truth.TRUE:
        return timedelta(0)
    moments = (known.last_transition_at, status.ready_at, status.remedied_at)
    return view.now - max(one for one in moments if one is not None)


def ready(view: View) -> Decision:
    """Serve, with no session on it."""
    status = view.status
    if (first := hosting(view)) is not None:
        return first
    if view.sessions:
        return move(view, WorkerPhase.ACTIVE, f"session {view.sessions[0].metadata.name} is on it")
    if status.cml.licensed is False and view.worker.spec.host_kind == "cml":
        return move(view, WorkerPhase.READY_UNLICENSED, "CML says that its licence is gone")
    return Wait(_next(view))


def active(view: View) -> Decision:
    """Serve, with sessions on it."""
    if (first := _interrupted(view)) is not None:
        return first
    if not view.sessions:
        return move(view, WorkerPhase.READY, "no session is on it")
    return _cured(view) or Wait()


def hosting(view: View) -> Decision | None:
    """Judge what every worker that serves and has no session has in common; None: it may go on."""
    if (first := _interrupted(view)) is not None:
        return first
    if view.sessions:
        return None
    return _ill(view) or _paused(view) or _cured(view) or _telemetry(view)


def confirmed(view: View) -> Decision | None:
    """Take note of what somebody did to the machine by hand, once the cloud has said so itself; None if nothing."""
    if isinstance(view.instance, Unknown):
        return None
    if view.instance is None or view.instance.state in ENDING:
        return gone(view)
    if view.instance.state is InstanceState.STOPPED:
        return stopped_by_hand(view, view.instance)
    if view.instance.state is InstanceState.STOPPING:
        return soon(view)
    return note(view, ec2=ec2_facts(view.status.ec2, view.instance))  # it was, and is no more


def _interrupted(view: View) -> Decision | None:
    return Do(BeginDrain()) if view.deleted else confirmed(view) or _readdressed(view)


def _readdressed(view: View) -> Decision | None:
    """Follow a machine to its new address, which somebody gave it by stopping and starting it."""
    url = api_url(view.worker.spec, view.status.ec2)
    known = view.status.cml
    return note(view, cml=msgspec.structs.replace(known, api_url=url)) if url and url != known.api_url else None


def _paused(view: View) -> Decision | None:
    status = view.status
    if view.worker.spec.wanted_state == "stopped":
        return move(view, WorkerPhase.STOPPING, "paused: it is wanted stopped", pause_count=status.pause_count + 1)
    if status.idle is not None and _due(status.idle, view):
        return move(view, WorkerPhase.STOPPING, f"paused: {status.idle.reason}", pause_count=status.pause_count + 1)
    return None


def _due(idle: IdleVerdict, view: View) -> bool:
    """Tell whether a countdown is over.

    Only who judged after its end can know whether somebody answered the warning, and an old verdict knows nothing of
    now. One that is due is written anew at each judgement, so nothing is lost by waiting for it.
    """
    fresh = view.now - idle.judged_at <= view.rules.judged_within
    return idle.idle and idle.pause_at is not None and idle.pause_at <= min(view.now, idle.judged_at) and fresh


def _ill(view: View) -> Decision | None:
    status, since = view.status, view.status.unhealthy_since
    if since is None or not ailing(view) or not view.worker.spec.auto_remediate or exhausted(view):
        return None
    minutes = (view.now - since) // timedelta(minutes=1)
    illness = f"unhealthy for {minutes} minutes"
    if status.remedy is Remedy.REBOOT and ours(view):
        failure = Failure("Unhealthy", f"{illness} although it was rebooted")
        return failed(view, failure, **replaced(view))
    return move(
        view,
        WorkerPhase.STARTING,
        f"{illness}: it is rebooted",
        remedy=Remedy.REBOOT,
        remedied_at=None,
        remedies=status.remedies + 1,
        cml=unseen(status.cml),
    )


def _cured(view: View) -> Decision | None:
    status = view.status
    if status.unhealthy_since is not None or well_for(view) < CURED_AFTER:
        return None
    return note(view, remedy=Remedy.NONE, remedied_at=None, remedies=0)


def _telemetry(view: View) -> Decision | None:
    wanted = view.worker.spec.cml.telemetry
    reached = view.worker.spec.host_kind == "cml" and view.status.cml.ready
    return Do(SetTelemetry(wanted)) if reached and view.status.cml.telemetry is not wanted else None


def told(view: View, outcome: Outcome) -> Decision:
    """Take note of what CML was told to send; what it refused is not asked for again until the spec changes."""
    refused = outcome.message if isinstance(outcome, Failure) else view.status.last_error
    cml = msgspec.structs.replace(view.status.cml, telemetry=view.worker.spec.cml.telemetry)
    return note(view, cml=cml, last_error=refused) or soon(view)


def _next(view: View) -> datetime | None:
    """Find the next moment at which time alone changes something."""
    idle, ill = view.status.idle, view.status.unhealthy_since
    moments = [idle.pause_at] if idle and idle.idle and idle.pause_at else []
    moments += [ill + view.rules.unhealthy_for] if ill else []
    return min((one for one in moments if one > view.now), default=None)


_ENDING: Final = frozenset({SessionPhase.COLLECTING, SessionPhase.STOPPING})


def draining(view: View) -> Decision:
    """Wait for the sessions; when their time is up, end them and give them time to be collected."""
    if (ended := confirmed(view)) is not None:
        return ended
    deadline = view.status.drain_deadline_at or view.entered_at
    if not view.sessions:
        return _on(view, "empty")
    if view.now < deadline:
        return Wait(min(deadline, max(view.now + view.rules.poll, deadline - view.rules.drain_warning)))
    if lingering := [session for session in view.sessions if session.status.phase not in _ENDING]:
        return Do(
            EndSessions([_name(session) for session in lingering], "its worker is drained and the deadline has passed")
        )
    if view.now < deadline + view.rules.clean_up:
        return Wait(deadline + view.rules.clean_up)
    return _on(view, f"its deadline passed with {len(view.sessions)} sessions on it")


def _on(view: View, why: str) -> Decision:
    licensed = view.status.cml.licensed
    if licensed is None:
        if isinstance(view.licence, Unknown):
            return soon(view)
        licensed = view.licence.registered
    if licensed:
        return move(view, WorkerPhase.UNLICENSING, why, cml=_said(view, licensed=True))
    return move(view, WorkerPhase.STOPPING, why, cml=_said(view, licensed=False))


def _said(view: View, *, licensed: bool) -> CmlFacts:
    return msgspec.structs.replace(view.status.cml, licensed=licensed)


def _name(session: LabletSession) -> tuple[str, str]:
    return session.metadata.namespace, session.metadata.name
