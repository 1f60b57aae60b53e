"""DRAINING: no new sessions; the present ones have until the deadline, and are told before it comes."""

from typing import Final

import msgspec

from lcm.controllers.worker.hosting import confirmed
from lcm.controllers.worker.view import Decision, Do, EndSessions, Unknown, View, Wait, move, soon
from lcm.model.session import LabletSession, SessionPhase
from lcm.model.worker import CmlFacts, WorkerPhase

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
