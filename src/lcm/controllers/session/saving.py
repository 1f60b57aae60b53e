"""Saves on request: a running lab is stored as it is, and its owner may continue from it later.

The request lies in the session, and its answer is written at exactly the revision that was looked at. So a request is
answered once, whoever leads: a new leader saves again, into the same file. Only the newest saves are kept.
"""

from collections.abc import Sequence

from lcm.controllers.runtime.lifecycle import Failure, poll_again, update_status
from lcm.controllers.session.view import Decision, EffectOutcome, SessionView
from lcm.model.kinds.saved_lab import SAVES_BYTES, SAVES_KEPT, SaveRequest, file_of_save, save_of_file
from lcm.model.kinds.session import Artifact
from lcm.model.kinds.session_fields import unanswered_fields
from lcm.providers.protocols.artifacts import StoredArtifact


def after_save(view: SessionView, request: SaveRequest, outcome: EffectOutcome) -> Decision:
    """Answer a request to save: with the file, or with why there is none."""
    if isinstance(outcome, Failure):
        error = f"not saved: {outcome.message}"
        return update_status(view, **unanswered_fields("save", error)) or poll_again(view)
    if not isinstance(outcome, StoredArtifact):
        return poll_again(view)
    saved = stored_file(view, file_of_save(request.name), outcome)
    artifacts = keep_newest(view.status.artifacts, saved)
    return update_status(view, artifacts=artifacts, save_request=None, save_error="") or poll_again(view)


def stored_file(view: SessionView, name: str, stored: StoredArtifact) -> Artifact:
    """Return what a session's status says of a file that was just stored."""
    return Artifact(
        name=name,
        digest=stored.digest,
        size_bytes=stored.size_bytes,
        collected_at=view.now,
        expires_at=view.now + view.rules.kept_for,
    )


def keep_newest(known: Sequence[Artifact], new: Artifact) -> tuple[Artifact, ...]:
    """Return a session's files with a new save, without the oldest ones that are too many or too large together.

    The sweep of files removes what no session's status names any more.
    """
    others = [one for one in known if save_of_file(one.name) is None]
    saves = [one for one in known if save_of_file(one.name) is not None and one.name != new.name]
    saves = [*sorted(saves, key=lambda one: one.collected_at), new][-SAVES_KEPT:]
    while len(saves) > 1 and sum(one.size_bytes for one in saves) > SAVES_BYTES:
        saves = saves[1:]
    return *others, *saves
