"""COLLECTING and STOPPING: what a lab used and contains is saved, then everything of it is removed from its worker.

Saving never delays removing for long: what could not be saved in time is reported and given up.
"""

from typing import Any, Final

from lcm.controllers.runtime.lifecycle import Do, Failure, Unknown, Wait, poll_again
from lcm.controllers.scheduler.sessions import MAX_RETRIES
from lcm.controllers.session.progress import StepName, at_step
from lcm.controllers.session.saving import stored_file
from lcm.controllers.session.view import (
    CAN_RUN,
    Collect,
    Decision,
    Discard,
    EffectOutcome,
    Observe,
    Remove,
    SessionView,
    is_machine_gone,
    move,
    retry_refused,
)
from lcm.model.base.resource import Truth, has_condition, shorten_text
from lcm.model.kinds.saved_lab import LAB_FILE
from lcm.model.kinds.session import SessionPhase, is_asap
from lcm.model.kinds.session_fields import fields_to_place_again
from lcm.providers.protocols.artifacts import StoredArtifact

_P: Final = SessionPhase
_DELETED: Final = "it was deleted: nobody could read what was saved"
_PREBUILT: Final = "it was prebuilt: nobody has used it"
_NO_ACCESS: Final[dict[str, Any]] = {"access_url": None, "access_urls": {}, "nodes": (), "progress": None}


def decide_collecting(view: SessionView) -> Decision:
    """Observe the lab, save it, then step to STOPPING."""
    if view.is_overdue:
        last = f": {view.status.last_error}" if view.status.last_error else ""
        return _step_to_stopping(view, f"not all could be saved in time{last}")
    if view.lab is None:
        return _step_to_stopping(view, f"its lab is gone from {view.worker_label}: nothing could be saved")
    if isinstance(view.lab, Unknown):
        return poll_again(view)
    if view.is_deleted or view.session.spec.prebuilt:
        return _step_to_stopping(view, _PREBUILT if view.session.spec.prebuilt else _DELETED)
    if not view.status.observed_last and view.now < view.entered_at + view.rules.observe_within:
        request = view.status.observation_request
        return Do(Observe(view.lab.lab_id, request.id if request else None))
    return Do(Collect(view.lab.lab_id))


def after_collect(view: SessionView, outcome: EffectOutcome) -> Decision:
    """Record what was saved, or that it cannot be."""
    if isinstance(outcome, Failure) and outcome.hopeless:
        return _step_to_stopping(
            view, f"it could not be saved: {outcome.message}", last_error=shorten_text(outcome.message)
        )
    if isinstance(outcome, Failure):
        return retry_refused(view, outcome)
    if not isinstance(outcome, StoredArtifact):
        return poll_again(view)
    saved = stored_file(view, LAB_FILE, outcome)
    others = tuple(one for one in view.status.artifacts if one.name != LAB_FILE)
    return _step_to_stopping(view, "observed and saved", artifacts=(*others, saved))


def decide_stopping(view: SessionView) -> Decision:
    """Remove the lab until its host reports none, then the file that it was made from."""
    if isinstance(view.lab, Unknown):
        return poll_again(view)
    if view.lab is not None:
        return Do(Remove(view.lab.lab_id))
    unsure = view.status.cml_lab_id is None and not is_machine_gone(view.worker)
    if unsure and view.now < view.entered_at + view.rules.settle:
        return Wait(view.entered_at + view.rules.settle)
    return Do(Discard())


def after_discard(view: SessionView, outcome: EffectOutcome) -> Decision:
    """End the session, or have it retried. A file that cannot be removed does not delay that."""
    error = {"last_error": shorten_text(outcome.message)} if isinstance(outcome, Failure) else {}
    status = view.status
    if _may_retry(view):
        return _retry(view)
    end = status.outcome or _P.FAILED
    return move(view, end, status.outcome_reason or "its lab is gone from its worker", **_NO_ACCESS, **error)


def _step_to_stopping(view: SessionView, why: str, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    outcome = view.status.outcome or _P.COMPLETED
    return move(view, _P.STOPPING, why, outcome=outcome, progress=at_step(view, StepName.REMOVE), **fields)


def _may_retry(view: SessionView) -> bool:
    status = view.status
    hopeless = view.session.spec.prebuilt or has_condition(status.conditions, CAN_RUN, Truth.FALSE)
    if status.outcome is not _P.FAILED or view.is_deleted or hopeless or status.retry_count + 1 >= MAX_RETRIES:
        return False
    end = status.ends_at or view.session.spec.timeslot_end
    patience = None if _has_run(view) else status.expires_at
    slot = end is None or view.now + view.rules.worth_it <= end
    return slot and (patience is None or view.now < patience)


def _has_run(view: SessionView) -> bool:
    """Return whether a session without a slot has run before, and so has an end of its own."""
    return is_asap(view.session) and view.status.ends_at is not None


def _retry(view: SessionView) -> Decision:
    """Place it again."""
    # What has run before may be placed until its time is over; expires_at limited only the wait for its first start.
    patience = {"expires_at": view.status.ends_at} if _has_run(view) else {}
    why = view.status.outcome_reason
    return move(
        view,
        _P.PENDING,
        f"tried again: {why}",
        outcome=None,
        outcome_reason="",
        retry_count=view.status.retry_count + 1,
        **fields_to_place_again(view.session, "TriedAgain", why, view.now),
        **patience,
    )
