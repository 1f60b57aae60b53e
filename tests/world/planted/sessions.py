"""Planted faults of sessions and of those who see them: labs, writes, phases, and what is another's."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import pytest

from lcm.control.notices import calendar_feeds
from lcm.control.objects import actions, reads, steps, writer
from lcm.control.objects.archive import find_archived
from lcm.control.objects.records import Record, find_record, with_revision
from lcm.controllers.runtime.lifecycle import Do, Unknown
from lcm.controllers.session import ending
from lcm.controllers.session.view import Decision, Discard, SessionView
from lcm.model.access.learner import can_see
from lcm.model.base import resource
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase, is_asap
from world.checks.labs import LEFT
from world.checks.phases import ILLEGAL
from world.checks.privacy import ANOTHERS
from world.checks.writes import LOST
from world.planted.deeds import both, people_want_a_lab_now, session_is_cancelled, session_is_deleted
from world.planted.faults import BUSY, QUIET, Planted, changed, everywhere

SOMEBODY: Final = people_want_a_lab_now(1, minutes=15)
TOWN: Final = changed(BUSY, bystanders=True, hours=2.0, quiet_hours=2.6, sessions_a_day=150)


def lab_is_not_removed(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, ending.decide_stopping, lambda _view: Do(Discard()))


def deletion_comes_before_teardown(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, steps.is_removable, lambda one: one.metadata.deletion_timestamp is not None)


def silence_is_taken_for_no_lab(patch: pytest.MonkeyPatch) -> None:
    real = ending.decide_stopping

    def believed(view: SessionView) -> Decision:
        return Do(Discard()) if isinstance(view.lab, Unknown) else real(view)

    everywhere(patch, real, believed)


def booking_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    real = writer.Writer.write

    async def forgotten(self: writer.Writer, edit: Any, *ops: Any, **rest: Any) -> Any:
        if edit.before is None and isinstance(edit.after, LabletSession) and is_asap(edit.after):
            return with_revision(edit.after, 1)
        return await real(self, edit, *ops, **rest)

    patch.setattr(writer.Writer, "write", forgotten)


def step_forgets_a_deletion(patch: pytest.MonkeyPatch) -> None:
    real = steps.take_step

    def forgotten(one: Any, status: Any, **rest: Any) -> Any:
        made = real(one, status, **rest)
        if made is one or not isinstance(made, LabletSession):
            return made
        return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, deletion_timestamp=None))

    everywhere(patch, real, forgotten)


def cancelled_session_ends_at_once(patch: pytest.MonkeyPatch) -> None:
    def ended(session: LabletSession, *, now: datetime, author: str, reason: str) -> LabletSession:
        phase = SessionPhase.TERMINATED
        if session.status.phase in SESSION_MACHINE.final:
            return session
        line = PhaseChange(phase=phase, at=now, by=author, reason=reason)
        history = resource.with_change(session.status.history, line)
        status = msgspec.structs.replace(session.status, phase=phase, history=history, outcome=phase)
        return msgspec.structs.replace(session, status=status)

    everywhere(patch, actions.terminate_session, ended)


def story_is_rewritten(patch: pytest.MonkeyPatch) -> None:
    def last_alone(_history: Sequence[PhaseChange], change: PhaseChange) -> tuple[PhaseChange, ...]:
        return (change,)

    everywhere(patch, resource.with_change, last_alone)


def step_has_no_line(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, resource.with_change, lambda history, _change: tuple(history))


def everybody_sees_everything(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, can_see, lambda _caller, _resource: True)


def lists_are_everybodys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reads, "_sees_only_own", lambda _ledger, _kind: False)


def others_are_touched_by_name(patch: pytest.MonkeyPatch) -> None:
    async def found(self: writer.Writer, ref: Any) -> Record[Any] | None:
        return await find_record(self.store, ref) or await find_archived(self.store, ref)

    patch.setattr(writer.Writer, "find_anywhere", found)


def feeds_are_everybodys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calendar_feeds, "_is_own_session", lambda *_: True)


SESSIONS: Final = (
    Planted("a lab is not removed", LEFT, lab_is_not_removed, QUIET, SOMEBODY),
    Planted(
        "deletion comes before teardown",
        LEFT,
        deletion_comes_before_teardown,
        QUIET,
        both(SOMEBODY, session_is_deleted),
    ),
    Planted(
        "silence is taken for no lab",
        LEFT,
        silence_is_taken_for_no_lab,
        changed(BUSY, mishaps_an_hour=20, mishaps=("cml_is_silent",)),
    ),
    Planted("a booking is not committed", LOST, booking_is_not_committed, QUIET, SOMEBODY),
    Planted("a step forgets a deletion", LOST, step_forgets_a_deletion, QUIET, both(SOMEBODY, session_is_deleted)),
    Planted(
        "a cancelled session ends at once",
        ILLEGAL,
        cancelled_session_ends_at_once,
        QUIET,
        both(SOMEBODY, session_is_cancelled),
    ),
    Planted("a story is rewritten", ILLEGAL, story_is_rewritten, QUIET),
    Planted("a step has no line", ILLEGAL, step_has_no_line, QUIET),
    Planted("everybody sees everything", ANOTHERS, everybody_sees_everything, TOWN),
    Planted("lists are everybody's", ANOTHERS, lists_are_everybodys, TOWN),
    Planted("others are touched by name", ANOTHERS, others_are_touched_by_name, TOWN),
    Planted("feeds are everybody's", ANOTHERS, feeds_are_everybodys, TOWN),
)
