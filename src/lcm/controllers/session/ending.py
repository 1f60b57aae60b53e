"""COLLECTING and STOPPING: what a lab used and what is in it is saved, then nothing of it is left on its worker.

Saving never keeps anybody from removing: what could not be saved in time is told, and given up.
"""

from typing import Any, Final

from lcm.controllers.scheduler.sessions import MOST_RETRIES
from lcm.controllers.session.progress import LAB_FILE, StepName, at_step
from lcm.controllers.session.view import (
    CAN_RUN,
    Collect,
    Decision,
    Discard,
    Do,
    Failure,
    Observe,
    Outcome,
    Remove,
    View,
    Wait,
    denied,
    machine_gone,
    move,
    refused,
    soon,
)
from lcm.controllers.worker.view import Unknown
from lcm.model.kinds.session import Artifact, SessionPhase, is_asap, without_its_worker
from lcm.providers.protocols.artifacts import Stored

_P: Final = SessionPhase
_OFF_WORKER: Final = {
    "worker_id": None,
    "worker_ref": None,
    "worker_name": None,
    "worker_namespace": None,
    "assigned_at": None,
    "allocated_ports": None,
    "resource_allocation": None,
    "cml_lab_id": None,
}
_UNSEEN: Final[dict[str, Any]] = {"observed_ports": None, "port_drift_detected": False, "observed_last": False}
"""Of what was seen of a lab that is gone, what another one would be judged by."""
_UNREACHED: Final[dict[str, Any]] = {"access_url": None, "access_urls": {}, "progress": None}


def collecting(view: View) -> Decision:
    """Observe the lab, save it, go on."""
    if view.overdue:
        last = f": {view.status.last_error}" if view.status.last_error else ""
        return _on(view, f"not all could be saved in time{last}")
    if view.lab is None:
        return _on(view, f"its lab is gone from {view.on_worker}: nothing could be saved")
    if isinstance(view.lab, Unknown):
        return soon(view)
    if view.deleted:
        return _on(view, "it was deleted: nobody could read what was saved")
    if _unobserved(view):
        request = view.status.observation_request
        return Do(Observe(view.lab.lab_id, request.id if request else None))
    return Do(Collect(view.lab.lab_id))


def collected(view: View, outcome: Outcome) -> Decision:
    """Take note of what was saved, or that it cannot be."""
    if isinstance(outcome, Failure) and outcome.hopeless:
        return _on(view, f"it could not be saved: {outcome.message}", last_error=outcome.message[:2000])
    if isinstance(outcome, Failure):
        return refused(view, outcome)
    if not isinstance(outcome, Stored):
        return soon(view)
    saved = Artifact(
        name=LAB_FILE,
        digest=outcome.digest,
        size_bytes=outcome.size_bytes,
        collected_at=view.now,
        expires_at=view.now + view.rules.kept_for,
    )
    others = tuple(one for one in view.status.artifacts if one.name != LAB_FILE)
    return _on(view, "observed and saved", artifacts=(*others, saved))


def stopping(view: View) -> Decision:
    """Remove the lab until its host says that there is none, then the file that it was made of."""
    if isinstance(view.lab, Unknown):
        return soon(view)
    if view.lab is not None:
        return Do(Remove(view.lab.lab_id))
    unsure = view.status.cml_lab_id is None and not machine_gone(view.worker)
    if unsure and view.now < view.entered_at + view.rules.settle:
        return Wait(view.entered_at + view.rules.settle)
    return Do(Discard())


def removed(view: View, outcome: Outcome) -> Decision:
    """Take note of a refusal; that the lab is gone is for its host to say."""
    return refused(view, outcome) if isinstance(outcome, Failure) else soon(view)


def discarded(view: View, outcome: Outcome) -> Decision:
    """End it, or have it tried again; a file that may not be removed keeps nobody's room."""
    error = {"last_error": outcome.message[:2000]} if isinstance(outcome, Failure) else {}
    status = view.status
    if _tried_again(view):
        return _again(view)
    end = status.outcome or _P.FAILED
    return move(view, end, status.outcome_reason or "its lab is gone from its worker", **_UNREACHED, **error)


def _on(view: View, why: str, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    outcome = view.status.outcome or _P.COMPLETED
    return move(view, _P.STOPPING, why, outcome=outcome, progress=at_step(view, StepName.REMOVE), **fields)


def _unobserved(view: View) -> bool:
    return not view.status.observed_last and view.now < view.entered_at + view.rules.observe_within


def _tried_again(view: View) -> bool:
    status = view.status
    if status.outcome is not _P.FAILED or view.deleted or denied(view.session, CAN_RUN):
        return False
    return status.retry_count + 1 < MOST_RETRIES and _time_left(view)


def _time_left(view: View) -> bool:
    status = view.status
    end = status.ends_at or view.session.spec.timeslot_end
    patience = None if _ran(view) else status.expires_at
    slot = end is None or view.now + view.rules.worth_it <= end
    return slot and (patience is None or view.now < patience)


def _ran(view: View) -> bool:
    """Tell whether a session without a slot has run before, and so has an end of its own."""
    return is_asap(view.session) and view.status.ends_at is not None


def _again(view: View) -> Decision:
    """Place it anew; what it was promised stays its own, what it only had meanwhile does not."""
    asap: dict[str, Any] = {"claim": None, "seat": None} if is_asap(view.session) else {}
    if _ran(view):
        asap["expires_at"] = view.status.ends_at  # its patience was for its beginning
    why = view.status.outcome_reason
    conditions = without_its_worker(view.session, "TriedAgain", why, view.now)
    return move(
        view,
        _P.PENDING,
        f"tried again: {why}",
        outcome=None,
        outcome_reason="",
        retry_count=view.status.retry_count + 1,
        conditions=conditions,
        **_OFF_WORKER,
        **_UNREACHED,
        **_UNSEEN,
        **asap,
    )
