"""RUNNING: a lab is somebody's until its time is over. What becomes of it meanwhile is seen, and mended or told."""

from datetime import timedelta
from typing import Final

from lcm.controllers.session.progress import StepName, at_step
from lcm.controllers.session.starting import give_up
from lcm.controllers.session.view import (
    LAB_RUNS,
    Decision,
    Do,
    Failure,
    Observe,
    Outcome,
    Report,
    Restart,
    View,
    Wait,
    denied,
    move,
    note,
    refused,
    restarting,
    soon,
    worker_lost,
)
from lcm.controllers.worker.view import Unknown
from lcm.model.resource import Truth
from lcm.model.session import SessionPhase, given_up
from lcm.providers.labhost import LabSummary

_P: Final = SessionPhase
_OVER: Final = "its time is over"
_COARSE: Final = timedelta(seconds=1)
"""CML tells moments in whole seconds: what was changed in the second of a look may have come after it."""


def running(view: View) -> Decision:
    """Let it run until its time is over, as long as it is there."""
    status, lab = view.status, view.lab
    if view.overdue:
        progress = at_step(view, StepName.COLLECT)
        return move(view, _P.COLLECTING, _OVER, outcome=_P.COMPLETED, outcome_reason=_OVER, progress=progress)
    if worker_lost(view.worker):
        return give_up(view, f"its worker {view.on_worker} is lost, and its lab with it")
    if isinstance(lab, Unknown):
        return _watch(view)
    if lab is None or lab.lab_id != status.cml_lab_id:
        return give_up(view, f"its lab is gone from {view.on_worker}")
    return _asked(view, lab) or _kept_up(view, lab) or _edited(view, lab) or _watch(view)


def restarted(view: View, outcome: Outcome) -> Decision:
    """Take note of a refusal; that it runs is seen at the next look."""
    return refused(view, outcome) if isinstance(outcome, Failure) else soon(view)


def observed(view: View, outcome: Outcome) -> Decision:
    """Go on; whoever asked reads the answer, and one that cannot be given is not asked for again at once."""
    return refused(view, outcome) if isinstance(outcome, Failure) else soon(view)


def _asked(view: View, lab: LabSummary) -> Decision | None:
    """Answer whoever wants to know what the lab uses, in time or not at all."""
    request = view.status.observation_request
    if request is None:
        return None
    status = given_up(view.status, view.now)
    return Do(Observe(lab.lab_id, request.id)) if status is view.status else Report(status)


def _edited(view: View, lab: LabSummary) -> Decision | None:
    """Look at what a lab has that somebody changed by hand since, but not at each of his strokes."""
    seen, changed = view.status.observed_at, lab.modified_at
    if changed is None or changed <= view.entered_at:
        return None
    if seen is not None and (changed + _COARSE <= seen or view.now < seen + view.rules.observe_again):
        return None
    return Do(Observe(lab.lab_id))


def _kept_up(view: View, lab: LabSummary) -> Decision | None:
    """Start a lab again that somebody stopped, not for ever, and not all at once after a machine's reboot."""
    flagged = denied(view.session, LAB_RUNS)
    if not view.stopped:
        if not flagged:
            return None
        runs = note(view, conditions=restarting(view, Truth.TRUE, view.restarts)) if view.converged is True else None
        return runs or soon(view)
    if flagged:
        return Do(Restart(lab.lab_id))
    if view.restarts >= view.rules.restarts:
        return None
    if view.ahead >= view.rules.starts:
        return soon(view)
    return note(view, conditions=restarting(view, Truth.FALSE, view.restarts + 1))


def _watch(view: View) -> Wait:
    then = view.now + view.rules.watch
    return Wait(min(then, view.status.ends_at or then))
