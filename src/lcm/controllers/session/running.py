"""RUNNING: a lab is kept up until its time is over, and what happens to it meanwhile is noticed, repaired or reported.

A lab that is found stopped is started again a few times. How often, and with what result, is kept in one condition of
the session, so a new leader continues from there.
"""

from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.runtime.lifecycle import Do, Failure, Report, Unknown, Wait, poll_again, update_status
from lcm.controllers.session.progress import (
    LAB_RUNS,
    StepName,
    access_urls,
    at_step,
    is_restarting,
    restart_count,
    with_lab_up,
    with_left_stopped,
    with_restart,
)
from lcm.controllers.session.starting import give_up
from lcm.controllers.session.view import (
    Decision,
    EffectOutcome,
    Observe,
    Restart,
    Save,
    SessionView,
    is_reclaimed,
    is_worker_lost,
    move,
)
from lcm.model.base.resource import Truth, find_condition, has_condition, shorten_text
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.session_fields import clear_timed_out_requests, open_requests
from lcm.model.kinds.worker import address_of
from lcm.providers.protocols.labhost import LabSummary

_P: Final = SessionPhase
_OVER: Final = "its time is over"
_CML_RESOLUTION: Final = timedelta(seconds=1)
"""CML reports times in whole seconds: a change in the second of a look may have come after it."""


def decide_running(view: SessionView) -> Decision:
    """Keep a session running until its time is over, while its lab exists. Drop old requests."""
    status, lab = view.status, view.lab
    if view.is_overdue:
        progress = at_step(view, StepName.COLLECT)
        return move(view, _P.COLLECTING, _OVER, outcome=_P.COMPLETED, outcome_reason=_OVER, progress=progress)
    if (leaves := _leave_worker(view)) is not None:
        return leaves
    if (answered := clear_timed_out_requests(status, view.now)) is not status:
        return Report(answered)
    if isinstance(lab, Unknown):
        return _wait_for_watch(view)
    if lab is None or lab.lab_id != status.cml_lab_id:
        return give_up(view, f"its lab is gone from {view.worker_label}")
    return (
        _answer_request(view, lab)
        or _update_urls(view)
        or _update_nodes(view)
        or _keep_lab_up(view, lab)
        or _observe_edit(view, lab)
        or _rest(view, lab)
    )


def _answer_request(view: SessionView, lab: LabSummary) -> Decision | None:
    """Do what somebody wants of the lab: the observation first, which takes less time."""
    observation, save = view.status.observation_request, view.status.save_request
    if observation is not None:
        return Do(Observe(lab.lab_id, observation.id))
    return Do(Save(lab.lab_id, save)) if save is not None else None


def _leave_worker(view: SessionView) -> Decision | None:
    """Abandon a lab whose worker is lost; save one whose machine is about to be. Both are tried again elsewhere."""
    if is_worker_lost(view.worker):
        return give_up(view, f"its worker {view.worker_label} is lost, and its lab with it")
    if not is_reclaimed(view.worker):
        return None
    why, progress = f"the cloud takes the machine of {view.worker_label} away", at_step(view, StepName.COLLECT)
    return move(view, _P.COLLECTING, why, outcome=_P.FAILED, outcome_reason=why, progress=progress)


def is_undisturbed(view: SessionView) -> bool:
    """Return whether a lab runs as it should and nothing is under way, so that only a change of it matters."""
    lab, stopped = view.lab, find_condition(view.status.conditions, LAB_RUNS)
    return (
        view.status.phase is _P.RUNNING
        and isinstance(lab, LabSummary)
        and lab.lab_id == view.status.cml_lab_id
        and not view.is_lab_stopped
        and not isinstance(view.nodes, Unknown)
        and bool(view.nodes)
        and not open_requests(view.status)
        and (stopped is None or view.now >= stopped.last_transition_at + view.rules.forgiven)
    )


def after_restart(view: SessionView, outcome: EffectOutcome) -> Decision:
    """Record a refusal, and give the lab time: if it does not run by the next look it is started once more."""
    told = update_status(view, last_error=shorten_text(outcome.message)) if isinstance(outcome, Failure) else None
    return told or _wait_for_watch(view)


def _update_urls(view: SessionView) -> Decision | None:
    """Update where the lab is reached: a machine that was stopped and started has another address."""
    if view.worker is None or view.definition is None or not address_of(view.worker):
        return None
    template = view.definition.spec.port_template or {}
    urls = access_urls(view, view.worker, template)
    return update_status(view, access_urls=urls, access_url=next(iter(urls.values()), None))


def _update_nodes(view: SessionView) -> Decision | None:
    """Update what its nodes do."""
    return None if view.named_nodes is None else update_status(view, nodes=view.named_nodes)


def _observe_edit(view: SessionView, lab: LabSummary) -> Decision | None:
    """Observe a lab that somebody changed by hand, but not after every single change."""
    due = _observation_due(view, lab)
    return Do(Observe(lab.lab_id)) if due is not None and view.now >= due else None


def _observation_due(view: SessionView, lab: LabSummary) -> datetime | None:
    """Return when a change by hand is to be observed; None if there is none that was not."""
    seen, changed = view.status.observed_at, lab.modified_at
    if changed is None or changed <= view.entered_at:
        return None
    if seen is None:
        return changed
    return None if changed + _CML_RESOLUTION <= seen else seen + view.rules.observe_again


def _keep_lab_up(view: SessionView, lab: LabSummary) -> Decision | None:
    """Start a lab again that somebody stopped; not for ever, and not all at once after a machine's reboot."""
    if not view.is_lab_stopped:
        return _report_lab_up(view)
    if is_restarting(view.session, view.now):
        return Do(Restart(lab.lab_id))
    if restart_count(view) >= view.rules.restarts:
        return update_status(view, conditions=with_left_stopped(view))
    return poll_again(view) if view.ahead >= view.rules.starts else update_status(view, conditions=with_restart(view))


def _report_lab_up(view: SessionView) -> Decision | None:
    """Report that a lab has come up again. One that takes too long is no longer polled."""
    if not has_condition(view.status.conditions, LAB_RUNS, Truth.FALSE):
        return None
    if view.converged is True:
        return update_status(view, conditions=with_lab_up(view), last_error="")
    return poll_again(view) if is_restarting(view.session, view.now) else None


def _rest(view: SessionView, lab: LabSummary) -> Wait:
    """Wait for the watch of its worker's labs to find a change. What that cannot see is looked for more seldom."""
    if not is_undisturbed(view):
        return _wait_for_watch(view)
    then = view.now + max(view.rules.look_again, view.rules.watch)
    return Wait(view.cap_at_deadline(min(then, _observation_due(view, lab) or then)))


def _wait_for_watch(view: SessionView) -> Wait:
    return Wait(view.cap_at_deadline(view.now + view.rules.watch))
