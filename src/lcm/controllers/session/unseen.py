"""Labs that nobody sees: said of the session after a while, and looked for less and less often. Pure."""

from datetime import UTC
from typing import Final

from lcm.controllers.session.view import Decision, View, Wait, denied, note, said
from lcm.controllers.worker.view import Unknown
from lcm.model.resource import Truth

LAB_SEEN: Final = "LabSeen"
"""False: its worker has not said for a while what its lab does."""


def with_silence(view: View, decision: Decision) -> Decision:
    """Say that a lab is out of sight, or seen again; what else was decided does not wait for it to be seen."""
    if not isinstance(view.lab, Unknown):
        if not denied(view.session, LAB_SEEN):
            return decision
        return note(view, conditions=said(view, LAB_SEEN, Truth.TRUE, "Seen")) or decision
    since = view.unseen_since
    if since is None or not isinstance(decision, Wait):
        return decision
    if view.now >= since + view.rules.unseen_for and not denied(view.session, LAB_SEEN):
        told = f"{view.on_worker} has not shown it since {since.astimezone(UTC):%H:%M:%S}Z: {view.lab.why}"
        return note(view, conditions=said(view, LAB_SEEN, Truth.FALSE, view.lab.reason or "Silent", told)) or decision
    then = view.now + min(view.now - since, view.rules.seldom)
    return Wait(view.no_later(max(decision.until or then, then)))
