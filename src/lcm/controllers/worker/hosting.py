"""READY and ACTIVE: a worker that serves. What ends that: a hand, a wish, an illness, or nothing to do.

The monitor keeps the facts fresh; here they are only judged. Nothing is done to a worker under a live session.
"""

from datetime import datetime, timedelta

import msgspec

from lcm.controllers.worker.facts import api_url, ec2_facts, unseen
from lcm.controllers.worker.failing import failed, ours, replaced
from lcm.controllers.worker.launching import gone, stopped_by_hand
from lcm.controllers.worker.remedies import CURED_AFTER, ailing, exhausted, well_for
from lcm.controllers.worker.view import (
    BeginDrain,
    Decision,
    Do,
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
from lcm.model.worker import IdleVerdict, Remedy, WorkerPhase
from lcm.providers.compute import ENDING, InstanceState


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
