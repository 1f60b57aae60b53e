"""RUNNING: a lab is somebody's until its time is over. What becomes of it meanwhile is seen, and mended or told."""

from datetime import timedelta
from typing import Final

from lcm.controllers.session.progress import (
    LAB_RUNS,
    StepName,
    access_urls,
    address_of,
    at_step,
    coming_up,
    left,
    restarts,
    tried,
    up_again,
)
from lcm.controllers.session.starting import give_up
from lcm.controllers.session.view import (
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
    soon,
    worker_lost,
)
from lcm.controllers.worker.view import Unknown
from lcm.model.kinds.session import SessionPhase, given_up
from lcm.providers.protocols.labhost import LabSummary

_P: Final = SessionPhase
_OVER: Final = "its time is over"
_COARSE: Final = timedelta(seconds=1)
"""CML tells moments in whole seconds: what was changed in the second of a look may have come after it."""


def running(view: View) -> Decision:
    """Let it run until its time is over, as long as it is there, and answer who asks in time or not at all."""
    status, lab = view.status, view.lab
    if view.overdue:
        progress = at_step(view, StepName.COLLECT)
        return move(view, _P.COLLECTING, _OVER, outcome=_P.COMPLETED, outcome_reason=_OVER, progress=progress)
    if worker_lost(view.worker):
        return give_up(view, f"its worker {view.on_worker} is lost, and its lab with it")
    if (answered := given_up(status, view.now)) is not status:
        return Report(answered)
    if isinstance(lab, Unknown):
        return _watch(view)
    if lab is None or lab.lab_id != status.cml_lab_id:
        return give_up(view, f"its lab is gone from {view.on_worker}")
    return _asked(view, lab) or _moved(view) or _kept_up(view, lab) or _edited(view, lab) or _watch(view)


def restarted(view: View, outcome: Outcome) -> Decision:
    """Take note of a refusal, and give it time: one that does not run by the next look is started once more."""
    told = note(view, last_error=outcome.message[:2000]) if isinstance(outcome, Failure) else None
    return told or _watch(view)


def observed(view: View, outcome: Outcome) -> Decision:
    """Go on; whoever asked reads the answer, and one that cannot be given is not asked for again at once."""
    return refused(view, outcome) if isinstance(outcome, Failure) else soon(view)


def _asked(view: View, lab: LabSummary) -> Decision | None:
    request = view.status.observation_request
    return None if request is None else Do(Observe(lab.lab_id, request.id))


def _moved(view: View) -> Decision | None:
    """Say where the lab is reached now: a machine that was stopped and started has another address."""
    if view.worker is None or view.definition is None or not address_of(view.worker):
        return None
    template = view.definition.spec.port_template or {}
    urls = access_urls(view.worker, view.status.allocated_ports or {}, template)
    return note(view, access_urls=urls, access_url=next(iter(urls.values()), None))


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
    if not view.stopped:
        return _up(view)
    if coming_up(view.session, view.now):
        return Do(Restart(lab.lab_id))
    if restarts(view) >= view.rules.restarts:
        return note(view, conditions=left(view))
    return soon(view) if view.ahead >= view.rules.starts else note(view, conditions=tried(view))


def _up(view: View) -> Decision | None:
    """Say that a lab has come up again; one that takes too long over it is not waited for any more than others."""
    if not denied(view.session, LAB_RUNS):
        return None
    if view.converged is True:
        return note(view, conditions=up_again(view), last_error="")
    return soon(view) if coming_up(view.session, view.now) else None


def _watch(view: View) -> Wait:
    return Wait(view.no_later(view.now + view.rules.watch))
