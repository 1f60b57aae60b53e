"""Planted faults of who leads and of what is told: fences, permits, events, secrets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest
import structlog

from lcm.control.delivery import events
from lcm.control.delivery.feed import EventFilter, Feed, Position
from lcm.control.plane.local import LocalPlane
from lcm.controllers.runtime import election
from lcm.controllers.worker import effects
from lcm.controllers.worker.view import EffectOutcome, Register, WorkerView
from lcm.model.base.errors import Stuck
from lcm.model.base.event import Event, decode_event
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.store.base import CommitEvents
from world.checks.events import GAP
from world.checks.leaders import DEPOSED
from world.checks.privacy import LEAK
from world.planted.deeds import (
    both,
    leader_stands_still_over_a_lab,
    lease_of_the_lablet_controller_ends,
    people_want_a_lab_now,
)
from world.planted.faults import BUSY, QUIET, Planted, changed

SOMEBODY: Final = people_want_a_lab_now(1, minutes=15)
SEVERAL: Final = people_want_a_lab_now(3, minutes=15)
TOWN: Final = changed(BUSY, bystanders=True, hours=2.0, quiet_hours=2.6, sessions_a_day=150)
TWO: Final = changed(QUIET, processes=2)


def permit_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def unheeded(_check: object) -> Iterator[None]:
        yield

    patch.setattr(election, "permit_scope", unheeded)


def fence_is_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalPlane, "under", lambda self, _fence: self)


def start_of_a_session_is_not_told(patch: pytest.MonkeyPatch) -> None:
    real = events.derive_events

    def less(before: Any, after: Any, **rest: Any) -> Sequence[Event]:
        runs = isinstance(after, LabletSession) and after.status.phase is SessionPhase.RUNNING
        return [] if runs else real(before, after, **rest)

    patch.setattr(events, "derive_events", less)


def resuming_client_misses_a_commit(patch: pytest.MonkeyPatch) -> None:
    real = Feed._encode_missed

    def shorter(self: Feed, happened: CommitEvents, question: EventFilter, position: Position) -> bytes:
        return b"" if happened.revision > position.revision else real(self, happened, question, position)

    patch.setattr(Feed, "_encode_missed", shorter)


def resuming_client_hears_the_last_again(patch: pytest.MonkeyPatch) -> None:
    def framed(self: Feed, happened: CommitEvents, question: EventFilter, position: Position) -> bytes:
        places = [(Position(happened.revision, place), decode_event(raw)) for place, raw in enumerate(happened.events)]
        wanted = [(at, event) for at, event in places if at >= position and question.wants(event)]
        return b"".join(self._frame(event, at, self.epoch, question.rows) for at, event in wanted)

    patch.setattr(Feed, "_encode_missed", framed)


def token_is_written_into_a_log(patch: pytest.MonkeyPatch) -> None:
    real = effects.WorkerEffects._on_host

    async def told(self: effects.WorkerEffects, view: WorkerView, effect: Any) -> EffectOutcome:
        if isinstance(effect, Register):
            secret = await self.secrets.reveal(effect.token)
            structlog.get_logger().info("registering", token=secret.reveal())
        return await real(self, view, effect)

    patch.setattr(effects.WorkerEffects, "_on_host", told)


def token_is_written_into_an_error(patch: pytest.MonkeyPatch) -> None:
    real = effects.WorkerEffects._on_host

    async def told(self: effects.WorkerEffects, view: WorkerView, effect: Any) -> EffectOutcome:
        try:
            return await real(self, view, effect)
        except Stuck as error:
            if isinstance(effect, Register):
                secret = await self.secrets.reveal(effect.token)
                raise Stuck(error.reason, f"{secret.reveal()}: {error}") from error
            raise

    patch.setattr(effects.WorkerEffects, "_on_host", told)


WORDS: Final = (
    Planted(
        "the permit is not asked for",
        DEPOSED,
        permit_is_not_asked_for,
        QUIET,
        both(SEVERAL, leader_stands_still_over_a_lab),
    ),
    Planted(
        "the fence is removed",
        DEPOSED,
        fence_is_removed,
        QUIET,
        people_want_a_lab_now(3, minutes=15, before=lease_of_the_lablet_controller_ends),
    ),
    Planted("the start of a session is not told", GAP, start_of_a_session_is_not_told, QUIET, SOMEBODY),
    Planted("a resuming client misses a commit", GAP, resuming_client_misses_a_commit, TOWN),
    Planted("a resuming client hears the last again", GAP, resuming_client_hears_the_last_again, TOWN),
    Planted("a token is written into a log", LEAK, token_is_written_into_a_log, QUIET),
    Planted(
        "a token is written into an error",
        LEAK,
        token_is_written_into_an_error,
        changed(TWO, mishaps_an_hour=40, mishaps=("licence_is_refused",)),
    ),
)
