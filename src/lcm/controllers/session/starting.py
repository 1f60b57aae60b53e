"""SCHEDULED and INSTANTIATING: from a session that has a worker to a lab that has converged there.

The topology gets the session's ports before it is imported, never afterwards: no lab is ever open on ports that are
another's. Each step is told of once it is done; what is there decides, so that a new leader goes on where it stands.
"""

from datetime import datetime, timedelta
from typing import Any

from lcm.controllers.session.progress import LAB_RUNS, StepName, access_urls, at_step, before_import, booting, is_at
from lcm.controllers.session.view import (
    CAN_RUN,
    Decision,
    Do,
    Failure,
    Import,
    Outcome,
    Prepare,
    Report,
    Start,
    View,
    Wait,
    move,
    note,
    patiently,
    refused,
    said,
    soon,
    worker_lost,
)
from lcm.controllers.worker.view import Unknown
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import CLEAN_UP, INSTANTIATION_LIMIT, SessionPhase, is_asap
from lcm.placement.claims import asap_length, too_late
from lcm.placement.places import accepting
from lcm.providers.protocols.labhost import LabSummary

NOT_PREPARED = "NotPrepared"
_P = SessionPhase
_MINUTE = timedelta(minutes=1)


def scheduled(view: View) -> Decision:
    """Begin when its time has come, its worker serves, and not too many labs start there."""
    status = view.status
    if status.worker_id is None or status.allocated_ports is None or status.claim is None:
        return Wait()
    if view.now < status.claim.start:
        return Wait(status.claim.start)
    if view.worker is None or not accepting(view.worker) or view.overdue or too_late(view.session, view.now):
        return Wait()
    if view.ahead >= view.rules.starts:
        return soon(view)
    progress = at_step(view, StepName.FETCH)
    return move(view, _P.INSTANTIATING, f"it starts on {view.on_worker}", progress=progress, last_error="")


def instantiating(view: View) -> Decision:
    """Take the step that what is there calls for."""
    if (over := _over(view)) is not None:
        return over
    if before_import(view):
        return Do(Import() if is_at(view, StepName.IMPORT) else Prepare())
    lab = view.lab
    if isinstance(lab, Unknown):
        return soon(view)
    if lab is None:
        return Do(Prepare())
    return Do(Start(lab.lab_id)) if view.stopped else _converging(view, lab)


def prepared(view: View, outcome: Outcome) -> Decision:
    """Go on with the import."""
    if isinstance(outcome, Failure):
        return _refused(view, outcome)
    return note(view, progress=at_step(view, StepName.IMPORT)) or soon(view)


def imported(view: View, outcome: Outcome) -> Decision:
    """Go on with the start; what was prepared and is gone is prepared again."""
    if isinstance(outcome, Failure) and outcome.reason == NOT_PREPARED:
        return note(view, progress=at_step(view, StepName.FETCH)) or soon(view)
    if isinstance(outcome, Failure):
        return _refused(view, outcome)
    lab_id = outcome.lab_id if isinstance(outcome, LabSummary) else None
    return note(view, progress=at_step(view, StepName.START), cml_lab_id=lab_id) or soon(view)


def started(view: View, outcome: Outcome) -> Decision:
    """Wait for the lab's nodes."""
    if isinstance(outcome, Failure):
        return _refused(view, outcome)
    lab_id = view.lab.lab_id if isinstance(view.lab, LabSummary) else None
    return note(view, progress=at_step(view, StepName.CONVERGE), cml_lab_id=lab_id) or soon(view)


def give_up(view: View, why: str, *, outcome: SessionPhase = _P.FAILED, **fields: Any) -> Report:  # noqa: ANN401 - fields of a status
    """Have what is left of it removed; whether it is tried again is decided when that is gone."""
    told = why[:2000]
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


def _converging(view: View, lab: LabSummary) -> Decision:
    if view.converged is True:
        return _runs(view, lab)
    told = booting(view)
    return (note(view, progress=told) if told else None) or patiently(view)


def _over(view: View) -> Decision | None:
    """Give up what cannot come to anything any more."""
    status, session = view.status, view.session
    if status.ends_at is not None and view.now >= status.ends_at:
        told = "its time ended before it ran again" if is_asap(session) else "its slot ended before it ran"
        return give_up(view, told, outcome=_P.EXPIRED)
    if is_asap(session) and status.claim is not None and view.now >= status.claim.end - CLEAN_UP:
        return give_up(view, f"its time on {view.on_worker} was over before it ran")
    if worker_lost(view.worker):
        return give_up(view, f"its worker {view.on_worker} is lost")
    if view.definition is None:
        return _hopeless(view, Failure("NoDefinition", f"its definition {session.spec.definition} is gone"))
    if view.overdue:
        last = f": {status.last_error}" if status.last_error else ""
        step = f" (at {status.progress.step})" if status.progress else ""
        return give_up(view, f"it did not run within {INSTANTIATION_LIMIT // _MINUTE} minutes{step}{last}")
    return None


def _refused(view: View, failure: Failure) -> Decision:
    if failure.hopeless:
        return _hopeless(view, failure)
    if view.now >= view.entered_at + view.rules.refused_for:
        return give_up(view, f"{failure.reason}: {failure.message}")
    return refused(view, failure)


def _hopeless(view: View, failure: Failure) -> Report:
    conditions = said(view, CAN_RUN, Truth.FALSE, failure.reason, failure.message)
    return give_up(view, f"{failure.reason}: {failure.message}", conditions=conditions)


def _runs(view: View, lab: LabSummary) -> Decision:
    assert view.worker is not None
    assert view.definition is not None
    template = view.definition.spec.port_template or {}
    urls = access_urls(view.worker, view.status.allocated_ports or {}, template)
    return move(
        view,
        _P.RUNNING,
        f"the lab has converged on {view.on_worker}",
        cml_lab_id=lab.lab_id,
        ends_at=_ends_at(view),
        access_urls=urls,
        access_url=next(iter(urls.values()), None),
        progress=at_step(view, StepName.RUN),
        conditions=tuple(one for one in view.status.conditions if one.type != LAB_RUNS),
        last_error="",
    )


def _ends_at(view: View) -> datetime | None:
    """Say when its time is over: with its slot, or after so long, but never so late that others are in the way."""
    status, spec = view.status, view.session.spec
    if not is_asap(view.session):
        return status.ends_at or spec.timeslot_end
    end = view.now + asap_length(view.session, view.now)
    return min(end, status.claim.end - CLEAN_UP) if status.claim else end
