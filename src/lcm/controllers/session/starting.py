"""SCHEDULED and INSTANTIATING: from a session that has a worker to a lab that has converged there.

The topology gets the session's ports before it is imported, never afterwards, so no lab is ever open on another
session's ports. A step that was quick is followed by the next; one that took its time is recorded first, so that people
see how far it is. What exists decides the next step, so a new leader continues from there.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from lcm.controllers.runtime.lifecycle import Do, Failure, Report, Unknown, Wait, poll_again, update_status
from lcm.controllers.session.progress import (
    LAB_RUNS,
    StepName,
    access_urls,
    at_step,
    boot_progress,
    is_at,
    is_before_import,
    is_leap_in_use,
)
from lcm.controllers.session.view import (
    CAN_RUN,
    Decision,
    EffectOutcome,
    Import,
    Prepare,
    SessionView,
    Start,
    is_reclaimed,
    is_worker_lost,
    move,
    poll_patiently,
    retry_refused,
    set_condition,
)
from lcm.model.base.resource import Truth, shorten_text
from lcm.model.kinds.session import (
    CLEAN_UP_TIME,
    INSTANTIATION_LIMIT,
    LabletSessionStatus,
    NodeState,
    SessionPhase,
    is_asap,
)
from lcm.model.telemetry.observation import larger_use
from lcm.placement.claims import asap_length, is_too_late
from lcm.placement.places import is_accepting
from lcm.providers.protocols.labhost import LabState, LabSummary

NOT_PREPARED = "NotPrepared"
QUICK = timedelta(seconds=2)
"""A step that is over so soon after the last report is not reported by itself."""
_P = SessionPhase
_MINUTE = timedelta(minutes=1)


def decide_scheduled(view: SessionView) -> Decision:
    """Begin when its time has come, its worker serves, and not too many labs are starting there."""
    status = view.status
    if status.worker_id is None or status.allocated_ports is None or status.claim is None:
        return Wait()
    if view.now < status.claim.start:
        return Wait(status.claim.start)
    if view.worker is None or not is_accepting(view.worker) or view.is_overdue or is_too_late(view.session, view.now):
        return Wait()
    if view.ahead >= view.rules.starts:
        return Wait()  # it is woken when one of those has started
    progress = at_step(view, StepName.FETCH)
    return move(view, _P.INSTANTIATING, f"it starts on {view.worker_label}", progress=progress, last_error="")


def decide_instantiating(view: SessionView) -> Decision:
    """Take the step that the present state calls for."""
    if (over := _give_up_if_over(view)) is not None:
        return over
    if is_before_import(view):
        return Do(Import() if is_at(view, StepName.IMPORT) else Prepare())
    lab = view.lab
    if isinstance(lab, Unknown):
        return poll_again(view)
    if lab is None:
        return Do(Prepare())
    return Do(Start(lab.lab_id)) if view.is_lab_stopped else _decide_converging(view, lab)


def after_prepare(view: SessionView, outcome: EffectOutcome) -> Decision:
    """Continue with the import."""
    if isinstance(outcome, Failure):
        return _handle_refusal(view, outcome)
    if _was_quick(view):
        return Do(Import())
    return update_status(view, progress=at_step(view, StepName.IMPORT)) or poll_again(view)


def after_import(view: SessionView, outcome: EffectOutcome) -> Decision:
    """Continue with the start; a prepared file that is gone is prepared again."""
    if isinstance(outcome, Failure) and outcome.reason == NOT_PREPARED:
        return update_status(view, progress=at_step(view, StepName.FETCH)) or poll_again(view)
    if isinstance(outcome, Failure):
        return _handle_refusal(view, outcome, **_reached(view, StepName.IMPORT))
    if isinstance(outcome, LabSummary) and outcome.state is not LabState.STARTED and _was_quick(view):
        return Do(Start(outcome.lab_id))
    lab_id = outcome.lab_id if isinstance(outcome, LabSummary) else None
    return update_status(view, progress=at_step(view, StepName.START), cml_lab_id=lab_id) or poll_again(view)


def after_start(view: SessionView, effect: Start, outcome: EffectOutcome) -> Decision:
    """Wait for the lab's nodes."""
    if isinstance(outcome, Failure):
        return _handle_refusal(view, outcome, **_reached(view, StepName.START, cml_lab_id=effect.lab_id))
    progress = at_step(view, StepName.CONVERGE)
    return update_status(view, progress=progress, cml_lab_id=effect.lab_id) or poll_again(view)


def _was_quick(view: SessionView) -> bool:
    """Return whether hardly any time has passed since the last report."""
    return view.status.progress is not None and view.now < view.status.progress.at + QUICK


def _reached(view: SessionView, step: StepName, **found: str) -> dict[str, Any]:
    """Return what is to be reported of a step that was refused, if nothing was reported of it yet."""
    if not is_before_import(view) or is_at(view, step):
        return {}
    return {"progress": at_step(view, step), **found}


def give_up(
    view: SessionView,
    why: str,
    *,
    outcome: SessionPhase = _P.FAILED,
    **fields: Any,  # noqa: ANN401 - fields of a status
) -> Report[LabletSessionStatus]:
    """Step to STOPPING, which removes what is left. Whether to retry is decided when that is gone."""
    told = shorten_text(why)
    return move(
        view,
        _P.STOPPING,
        told,
        outcome=outcome,
        outcome_reason=told,
        last_error=told,
        progress=at_step(view, StepName.REMOVE),
        **fields,
    )


def _decide_converging(view: SessionView, lab: LabSummary) -> Decision:
    if view.converged is True:
        return _step_to_running(view, lab)
    told, known = boot_progress(view), view.status.boot_use
    use = larger_use(known, view.use)
    if told is None and not is_leap_in_use(known, use):
        return poll_patiently(view)
    progress, then = told or view.status.progress, poll_patiently(view)
    report = update_status(view, progress=progress, boot_use=use, nodes=_known_nodes(view))
    return replace(report, until=then.until) if report else then


def _give_up_if_over(view: SessionView) -> Decision | None:
    """Give up a session that cannot succeed any more."""
    status, session = view.status, view.session
    if status.ends_at is not None and view.now >= status.ends_at:
        told = "its time ended before it ran again" if is_asap(session) else "its slot ended before it ran"
        return give_up(view, told, outcome=_P.EXPIRED)
    if is_asap(session) and status.claim is not None and view.now >= status.claim.end - CLEAN_UP_TIME:
        return give_up(view, f"its time on {view.worker_label} was over before it ran")
    if is_worker_lost(view.worker) or is_reclaimed(view.worker):
        return give_up(view, f"its worker {view.worker_label} is lost, or about to be")
    if view.definition is None:
        return _give_up_for_good(view, Failure("NoDefinition", f"its definition {session.spec.definition} is gone"))
    if view.is_overdue:
        last = f": {status.last_error}" if status.last_error else ""
        step = f" (at {status.progress.step})" if status.progress else ""
        return give_up(view, f"it did not run within {INSTANTIATION_LIMIT // _MINUTE} minutes{step}{last}")
    return None


def _handle_refusal(view: SessionView, failure: Failure, **reached: Any) -> Decision:  # noqa: ANN401 - fields of a status
    if failure.hopeless:
        return _give_up_for_good(view, failure)
    if view.now >= view.entered_at + view.rules.refused_for:
        return give_up(view, f"{failure.reason}: {failure.message}")
    return retry_refused(view, failure, **reached)


def _give_up_for_good(view: SessionView, failure: Failure) -> Report[LabletSessionStatus]:
    conditions = set_condition(view, CAN_RUN, Truth.FALSE, failure.reason, failure.message)
    return give_up(view, f"{failure.reason}: {failure.message}", conditions=conditions)


def _step_to_running(view: SessionView, lab: LabSummary) -> Decision:
    assert view.worker is not None
    assert view.definition is not None
    template = view.definition.spec.port_template or {}
    urls = access_urls(view, view.worker, template)
    return move(
        view,
        _P.RUNNING,
        shorten_text(f"the lab has converged on {view.worker_label}{_describe_delay(view)}"),
        cml_lab_id=lab.lab_id,
        ends_at=_end_time(view),
        access_urls=urls,
        access_url=next(iter(urls.values()), None),
        nodes=_known_nodes(view),
        progress=at_step(view, StepName.RUN),
        conditions=tuple(one for one in view.status.conditions if one.type != LAB_RUNS),
        last_error="",
    )


def _known_nodes(view: SessionView) -> tuple[NodeState, ...]:
    return view.status.nodes if view.named_nodes is None else view.named_nodes


def _describe_delay(view: SessionView) -> str:
    """Return why a session begins after its slot did: what was in its way, or how long its start took; else ""."""
    start, ran = view.session.spec.timeslot_start, any(one.phase == _P.RUNNING for one in view.status.history)
    if start is None or view.now <= start or ran:
        return ""
    took = max(1, round((view.now - view.entered_at) / _MINUTE))
    return f", late: {view.status.last_error or f'its start took {took} min'}"


def _end_time(view: SessionView) -> datetime | None:
    """Return when its time is over: with its slot or after its duration, and never in the way of others.

    If that cuts it short because it came up late, the control plane gives it the whole time where there is room.
    """
    status, spec = view.status, view.session.spec
    if not is_asap(view.session):
        return status.ends_at or spec.timeslot_end
    end = view.now + asap_length(view.session, view.now)
    return min(end, status.claim.end - CLEAN_UP_TIME) if status.claim else end
