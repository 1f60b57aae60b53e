"""Brings one sink its events: in order, again and again until they are taken, and past those that never will be.

One per sink, started and stopped by `outbox`, so that a slow sink holds up nobody else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
import structlog

from lcm.control.delivery.formats import Keys, request
from lcm.control.delivery.progress import Ledger, Letters
from lcm.control.delivery.sinks import CURSORS, KEPT
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, LcmError, Refused, Relist, Stuck
from lcm.model.base.event import Event, EventsLost, data_of
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.sink import RESET, DeadLetter, Sink, SinkStatus, StoredEvent, event_id, read_event, wants
from lcm.store.base import Cursor, Happened, Store

TRIES: Final = 3
"""How often a sink may refuse an event before that becomes a dead letter."""
FIRST_PAUSE: Final = timedelta(seconds=1)
LONGEST_PAUSE: Final = timedelta(seconds=60)
RESTORED: Final = "the store was restored from a backup"

_LONGEST_ERROR: Final = 1000
_DOUBLINGS: Final = 10
_UNREADABLE: Final = (ValueError, RecursionError)
"""What msgspec raises for bytes that are no event; its own errors are ValueErrors."""
_log: Final = structlog.get_logger()

Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[None]]
"""Posts a body to a URL; Refused, or Later and its kinds, as `providers.outbound` says."""
Reveal = Callable[[str], Awaitable[Secret]]
"""Finds the secret that a reference leads to, as `providers.secrets` says. Asked for every attempt: it may cache."""


@dataclass(frozen=True, slots=True)
class Means:
    """What every courier of a term works with. `check` raises Deposed once the term may be over."""

    store: Store
    post: Post
    reveal: Reveal
    clock: Clock
    chance: Callable[[], float]
    source: str
    ledger: Ledger
    letters: Letters
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    refused: bool
    after: timedelta = timedelta()


class Courier:
    """Delivers to one sink, from where its status says."""

    def __init__(self, sink: Sink, means: Means) -> None:
        self._sink = sink
        self._means = means
        self._failing = False

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver_events())
            group.create_task(self._deliver_replays())

    @property
    def _status(self) -> SinkStatus:
        return self._means.ledger[self._sink.name]

    def _note(self, **changes: Any) -> None:  # noqa: ANN401  fields of a status
        self._means.ledger.note(self._sink.name, **changes)

    async def _deliver_events(self) -> None:
        while True:
            if self._status.epoch != self._means.store.epoch:
                await self._begin_anew(RESTORED)
            if self._status.reset:
                await self._tell_reset()
            try:
                async with self._means.store.events(after=self._status.revision) as reader:
                    async for happened in reader:
                        await self._take(happened)
            except Relist as error:
                await self._relisted(error)

    async def _take(self, happened: Happened) -> None:
        """Deliver the events of one commit, but not those that the status says are done."""
        for place in range(self._status.n, len(happened.events)):
            last = place + 1 == len(happened.events)
            progress = {"revision": happened.revision, "n": 0} if last else {"n": place + 1}
            number = event_id(self._status.epoch, happened.revision, place)
            await self._take_one(number, happened.events[place], progress)

    async def _take_one(self, number: str, raw: bytes, progress: Mapping[str, int]) -> None:
        try:
            event = read_event(raw)
        except _UNREADABLE as error:  # nobody could ever read it: to stop here would help nobody
            _log.error("unreadable event skipped", event_id=number, error=str(error))
            self._note(**progress, dropped=self._status.dropped + 1)
            return
        letter = await self._deliver(number, event) if wants(self._sink, event) else None
        if letter is None:
            self._note(**progress, tries=0)
        else:
            await self._bury(letter, **progress)

    async def _deliver(self, number: str, event: StoredEvent) -> DeadLetter | None:
        """Try until the event is taken, or return it as a dead letter."""
        attempts = self._status.tries
        while not (self._failing and self._means.clock.now() - event.time > KEPT):
            failure = await self._attempt(number, event)
            if failure is None:
                self._succeeded()
                return None
            attempts += 1
            self._failed(failure)
            if failure.refused and self._status.tries >= TRIES:
                break
            await self._pause(failure)
        return self._letter(number, event, attempts)

    async def _attempt(self, number: str, event: Event) -> _Failure | None:
        """Send an event once; None means that it was taken."""
        means, keys = self._means, Keys()
        try:
            keys = await self._keys()
        except LcmError as error:
            return _Failure(str(error)[:_LONGEST_ERROR], refused=False)
        means.check()
        try:
            asked = request(self._sink, number, event, keys, source=means.source, now=means.clock.now())
            await means.post(asked.url, asked.body, asked.headers)
        except (Refused, Later, Stuck, Gone) as error:
            after = error.after if isinstance(error, Later) else timedelta()
            return _Failure(keys.hide_in(str(error))[:_LONGEST_ERROR], isinstance(error, Refused), after)
        return None

    async def _keys(self) -> Keys:
        sink, reveal = self._sink, self._means.reveal
        signing = [await reveal(ref) for ref in (sink.secret, sink.previous_secret) if ref is not None]
        return Keys(signing, await reveal(sink.credential) if sink.credential else None)

    def _succeeded(self) -> None:
        if self._failing:
            _log.info("sink takes events again", sink=self._sink.name)
        self._failing = False
        self._note(failures=0, last_success_at=self._means.clock.now())

    def _failed(self, failure: _Failure) -> None:
        if not self._failing:
            _log.warning("sink takes no events", sink=self._sink.name, error=failure.text)
        self._failing = True
        self._note(
            failures=self._status.failures + 1,
            tries=self._status.tries + failure.refused,
            last_error=failure.text,
            last_error_at=self._means.clock.now(),
        )

    async def _pause(self, failure: _Failure) -> None:
        # A refusal says that the sink is there: only this event waits, not longer for those refused before it.
        count = self._status.tries if failure.refused else self._status.failures
        doublings = min(max(count - 1, 0), _DOUBLINGS)
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**doublings) * (1 - self._means.chance() / 2)
        await asyncio.sleep(max(pause, failure.after).total_seconds())

    def _letter(self, number: str, event: StoredEvent, attempts: int) -> DeadLetter:
        error, now = self._status.last_error, self._means.clock.now()
        return DeadLetter(
            sink=self._sink.name, event_id=number, event=event, attempts=attempts, last_error=error, at=now
        )

    async def _bury(self, letter: DeadLetter, **changes: Any) -> None:  # noqa: ANN401  fields of a status
        await self._means.ledger.bury(letter, tries=0, **changes)
        _log.warning("event became a dead letter", sink=letter.sink, event_id=letter.event_id, error=letter.last_error)

    async def _relisted(self, error: Relist) -> None:
        """Find out why reading ended: whoever was only too slow reads on, but history may be gone."""
        status, store = self._status, self._means.store
        if status.epoch != store.epoch:
            return
        try:
            await store.scan(CURSORS, limit=1, cursor=Cursor(status.revision, CURSORS))
        except Relist:
            await self._begin_anew(str(error))
        else:
            await asyncio.sleep(FIRST_PAUSE.total_seconds())

    async def _begin_anew(self, reason: str) -> None:
        """Go on from now; first of all the sink will be told, also if we die before."""
        store, now = self._means.store, self._means.clock.now()
        revision = (await store.scan(CURSORS, limit=1)).revision
        self._note(epoch=store.epoch, revision=revision, n=0, tries=0, reset=reason, last_reset_at=now)
        await self._means.ledger.save()
        _log.warning("events were lost to a sink", sink=self._sink.name, reason=reason)

    async def _tell_reset(self) -> None:
        status = self._status
        event = StoredEvent(
            type=RESET,
            time=status.last_reset_at or status.at,
            kind="Sink",
            name=self._sink.name,
            namespace=DEFAULT_NAMESPACE,
            data=data_of(EventsLost(reason=status.reset)),
        )
        letter = await self._deliver(event_id(status.epoch, status.revision, RESET), event)
        if letter is None:
            self._note(reset="", tries=0)
        else:
            await self._bury(letter, reset="")

    async def _deliver_replays(self) -> None:
        letters = self._means.letters
        while True:
            letter, entry = await letters.next_replay(self._sink.name)
            left = await self._replay(letter)
            await letters.settle(entry, left or letter, taken=left is None)

    async def _replay(self, letter: DeadLetter) -> DeadLetter | None:
        """Send a dead letter once more; return it with its newest error if it is still one."""
        attempts, failure = 0, None
        while attempts < TRIES:
            failure = await self._attempt(letter.event_id, letter.event)
            if failure is None:
                self._note(last_success_at=self._means.clock.now())
                return None
            attempts += 1
            if failure.refused:
                break
            await self._pause(failure)
        return msgspec.structs.replace(
            letter,
            attempts=letter.attempts + attempts,
            last_error=failure.text if failure else letter.last_error,
            at=self._means.clock.now(),
            replay=False,
        )
