"""Delivers events to one sink: in order, with retries; events that are never accepted become dead letters.

One `SinkDelivery` for each sink, started and stopped by `outbox`, so that a slow sink does not delay the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
import structlog

from lcm.control.delivery.formats import SinkSecrets, build_request
from lcm.control.delivery.progress import DeadLetters, DeliveryProgress
from lcm.control.delivery.sinks import EVENTS_KEPT
from lcm.control.objects.records import SINK_CURSORS
from lcm.model.access.secret import Secret, check_use
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, LcmError, Refused, Relist, Stuck
from lcm.model.base.event import Event, EventsLost, encode_data
from lcm.model.base.resource import DEFAULT_NAMESPACE, SecretUse, shorten_text
from lcm.model.kinds.sink import (
    RESET_TYPE,
    DeadLetter,
    Sink,
    SinkStatus,
    StoredEvent,
    accepts_event,
    format_event_id,
    read_event,
)
from lcm.store.base import CommitEvents, Cursor, Fence, Store

MAX_REFUSALS: Final = 3
"""How often a sink may refuse an event before it becomes a dead letter."""
FIRST_BACKOFF: Final = timedelta(seconds=1)
MAX_BACKOFF: Final = timedelta(seconds=60)
RESTORED_REASON: Final = "the store was restored from a backup"

_MAX_ERROR_LENGTH: Final = 1000
_MAX_DOUBLINGS: Final = 10
_DECODE_ERRORS: Final = (ValueError, RecursionError)
"""What msgspec raises for bytes that are no event; its own errors are ValueErrors."""
_log: Final = structlog.get_logger()

Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[None]]
"""Posts a body to a URL; raises Refused, or Later and its subclasses, as `lcm.providers.local.outbound` does."""
Reveal = Callable[[str], Awaitable[Secret]]
"""Returns the secret behind a reference, as `lcm.providers.protocols.secrets` does.

Called for every attempt, so it may cache.
"""


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """What all deliveries under one lease share. `check` raises Deposed once the lease may be over."""

    store: Store
    fence: Fence
    post: Post
    reveal: Reveal
    clock: Clock
    chance: Callable[[], float]
    source: str
    ledger: DeliveryProgress
    letters: DeadLetters
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _DeliveryFailure:
    text: str
    refused: bool
    after: timedelta = timedelta()


class SinkDelivery:
    """Delivers events to one sink, from the position in its status."""

    def __init__(self, sink: Sink, means: DeliveryContext) -> None:
        self._sink = sink
        self._name = sink.metadata.name
        self._context = means
        self._failing = False

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver_events())
            group.create_task(self._deliver_replays())

    @property
    def _status(self) -> SinkStatus:
        return self._context.ledger[self._name]

    def _update(self, **changes: Any) -> None:  # noqa: ANN401  fields of a status
        self._context.ledger.update(self._name, **changes)

    async def _deliver_events(self) -> None:
        while True:
            if self._status.epoch != self._context.store.epoch:
                await self._reset_position(RESTORED_REASON)
            if self._status.reset:
                await self._deliver_reset()
            try:
                async with self._context.store.events(after=self._status.revision) as reader:
                    async for happened in reader:
                        await self._deliver_commit(happened)
            except Relist as error:
                await self._handle_relist(error)

    async def _deliver_commit(self, happened: CommitEvents) -> None:
        """Deliver the events of one commit, except those that the status says are done."""
        for place in range(self._status.n, len(happened.events)):
            last = place + 1 == len(happened.events)
            progress = {"revision": happened.revision, "n": 0} if last else {"n": place + 1}
            number = format_event_id(self._status.epoch, happened.revision, place)
            await self._deliver_one(number, happened.events[place], progress)

    async def _deliver_one(self, number: str, raw: bytes, progress: Mapping[str, int]) -> None:
        try:
            event = read_event(raw)
        except _DECODE_ERRORS as error:  # no reader could ever decode it, so stopping here would not help
            _log.error("unreadable event skipped", event_id=number, error=str(error))
            self._update(**progress, dropped=self._status.dropped + 1)
            return
        letter = await self._deliver(number, event) if accepts_event(self._sink, event) else None
        if letter is None:
            self._update(**progress, tries=0)
        else:
            await self._add_dead_letter(letter, **progress)

    async def _deliver(self, number: str, event: StoredEvent) -> DeadLetter | None:
        """Try until the event is accepted, or return it as a dead letter."""
        attempts = self._status.tries
        while not (self._failing and self._context.clock.now() - event.time > EVENTS_KEPT):
            failure = await self._attempt(number, event)
            if failure is None:
                if self._failing:
                    _log.info("sink takes events again", sink=self._name)
                self._failing = False
                self._update(failures=0, last_success_at=self._context.clock.now())
                return None
            attempts += 1
            self._mark_failure(failure)
            if failure.refused and self._status.tries >= MAX_REFUSALS:
                break
            await self._back_off(failure)
        error, now = self._status.last_error, self._context.clock.now()
        return DeadLetter(sink=self._name, event_id=number, event=event, attempts=attempts, last_error=error, at=now)

    async def _attempt(self, number: str, event: Event) -> _DeliveryFailure | None:
        """Send an event once; None means that it was accepted."""
        means, spec = self._context, self._sink.spec
        try:
            refs = [ref for ref in (spec.secret, spec.previous_secret) if ref is not None]
            for ref in refs:
                check_use(ref, SecretUse.SIGNING_SECRET)
            check_use(spec.credential or "", SecretUse.CREDENTIAL)
            signing = [await means.reveal(ref) for ref in refs]
            keys = SinkSecrets(signing, await means.reveal(spec.credential) if spec.credential else None)
            if spec.sealed_url is not None:
                check_use(spec.sealed_url, SecretUse.SINK_URL)
                spec = msgspec.structs.replace(spec, url=(await means.reveal(spec.sealed_url)).reveal())
        except LcmError as error:
            return _DeliveryFailure(shorten_text(str(error), _MAX_ERROR_LENGTH), refused=False)
        means.check()
        try:
            asked = build_request(spec, number, event, keys, source=means.source, now=means.clock.now())
            await means.post(asked.url, asked.body, asked.headers)
        except (Refused, Later, Stuck, Gone) as error:
            after = error.after if isinstance(error, Later) else timedelta()
            return _DeliveryFailure(
                shorten_text(keys.hide_in(str(error)), _MAX_ERROR_LENGTH), isinstance(error, Refused), after
            )
        return None

    def _mark_failure(self, failure: _DeliveryFailure) -> None:
        if not self._failing:
            _log.warning("sink takes no events", sink=self._name, error=failure.text)
        self._failing = True
        self._update(
            failures=self._status.failures + 1,
            tries=self._status.tries + failure.refused,
            last_error=failure.text,
            last_error_at=self._context.clock.now(),
        )

    async def _back_off(self, failure: _DeliveryFailure) -> None:
        # A refusal shows that the sink is up: the backoff counts the refusals of this event only, not of earlier ones.
        count = self._status.tries if failure.refused else self._status.failures
        doublings = min(max(count - 1, 0), _MAX_DOUBLINGS)
        pause = min(MAX_BACKOFF, FIRST_BACKOFF * 2**doublings) * (1 - self._context.chance() / 2)
        await asyncio.sleep(max(pause, failure.after).total_seconds())

    async def _add_dead_letter(self, letter: DeadLetter, **changes: Any) -> None:  # noqa: ANN401  fields of a status
        await self._context.ledger.add_dead_letter(letter, tries=0, **changes)
        _log.warning("event became a dead letter", sink=letter.sink, event_id=letter.event_id, error=letter.last_error)

    async def _handle_relist(self, error: Relist) -> None:
        """Find out why reading ended: a slow reader reads on, but the history may be gone."""
        status, store = self._status, self._context.store
        if status.epoch != store.epoch:
            return
        try:
            await store.scan(SINK_CURSORS, limit=1, cursor=Cursor(status.revision, SINK_CURSORS))
        except Relist:
            await self._reset_position(str(error))
        else:
            await asyncio.sleep(FIRST_BACKOFF.total_seconds())

    async def _reset_position(self, reason: str) -> None:
        """Continue from now. The sink is told about the loss first, even if this process ends before that."""
        store, now = self._context.store, self._context.clock.now()
        revision = (await store.scan(SINK_CURSORS, limit=1)).revision
        self._update(epoch=store.epoch, revision=revision, n=0, tries=0, reset=reason, last_reset_at=now)
        await self._context.ledger.save()
        _log.warning("events were lost to a sink", sink=self._name, reason=reason)

    async def _deliver_reset(self) -> None:
        status = self._status
        event = StoredEvent(
            type=RESET_TYPE,
            time=status.last_reset_at or status.at,
            kind="Sink",
            name=self._name,
            namespace=DEFAULT_NAMESPACE,
            data=encode_data(EventsLost(reason=status.reset)),
        )
        letter = await self._deliver(format_event_id(status.epoch, status.revision, RESET_TYPE), event)
        if letter is None:
            self._update(reset="", tries=0)
        else:
            await self._add_dead_letter(letter, reset="")

    async def _deliver_replays(self) -> None:
        letters = self._context.letters
        while True:
            letter, entry = await letters.next_replay(self._name)
            left = await self._replay_letter(letter)
            await letters.finish_replay(entry, left or letter, taken=left is None)

    async def _replay_letter(self, letter: DeadLetter) -> DeadLetter | None:
        """Send a dead letter again; return it with its newest error if it was not accepted."""
        attempts, failure = 0, None
        while attempts < MAX_REFUSALS:
            failure = await self._attempt(letter.event_id, letter.event)
            if failure is None:
                self._update(last_success_at=self._context.clock.now())
                return None
            attempts += 1
            if failure.refused:
                break
            await self._back_off(failure)
        return msgspec.structs.replace(
            letter,
            attempts=letter.attempts + attempts,
            last_error=failure.text if failure else letter.last_error,
            at=self._context.clock.now(),
            replay=False,
        )
