"""The live feed: one reader of the store's events in each process, any number of subscribers.

Every event is read and framed once. Subscribers with the same question share its answer, and each has a queue of its
own: who does not read is cut off and may come back with the id of the last event it saw, which resumes without gap or
duplicate on any replica. Called by the event stream of `api`.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Hashable
from typing import Final, NamedTuple, Protocol

import structlog

from lcm.model.base.errors import Later, Relist
from lcm.model.base.event import Event, decode
from lcm.store.base import EventReader, Happened, Store

QUEUE_BYTES: Final = 1_000_000
"""What may wait for one subscriber before it is cut off."""

WHOLE: Final = 1_000_000
"""The place after all events of a commit."""

_PATIENCE: Final = 5.0

_log: Final = structlog.get_logger()


class Position(NamedTuple):
    """Where somebody is in the history of events: after this one, or with place WHOLE after all of its commit."""

    revision: int
    place: int


class Frame(Protocol):
    """Writes an event as subscribers receive it."""

    def __call__(self, event: Event, at: Position, epoch: str) -> bytes:
        """Give the bytes."""
        ...


class Question(Protocol):
    """Which events a subscriber is to see. Equal questions are asked once, so it compares by value."""

    def __hash__(self) -> int:
        """Group equal questions."""
        ...

    def wants(self, event: Event) -> bool:
        """Tell whether this event is among them."""
        ...


class Subscriber:
    """One reader's queue. `take` waits for what came since; None means that it is over."""

    __slots__ = ("_after", "_bytes", "_frames", "_limit", "_over", "_waiter")

    def __init__(self, after: int, limit: int = QUEUE_BYTES) -> None:
        self._after = after
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._limit = limit
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, frame: bytes, revision: int) -> None:
        """Add a frame; beyond the limit nothing more is kept, and the reader is told that it is over."""
        if self._over or revision <= self._after:
            return
        self._bytes += len(frame)
        self._frames.append(frame)
        if self._bytes > self._limit:
            self.end()
        else:
            self._wake()

    def end(self) -> None:
        """Say that nothing more will come."""
        self._over = True
        self._wake()

    async def take(self) -> bytes | None:
        """Wait, and return everything that came since the last call."""
        if not self._frames and not self._over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._over:
            return None
        frames = b"".join(self._frames) if len(self._frames) > 1 else self._frames[0]
        self._frames.clear()
        self._bytes = 0
        return frames

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Feed:
    """Reads the store's events and hands them to subscribers."""

    def __init__(self, store: Store, frame: Frame) -> None:
        self._store = store
        self._frame = frame
        self._groups: dict[Hashable, tuple[Question, set[Subscriber]]] = {}
        self.revision = 0
        self.caught_up = False

    @property
    def epoch(self) -> str:
        """The history in which positions mean something."""
        return self._store.epoch

    async def run(self) -> None:
        """Read for ever. What cannot be resumed ends every subscriber; they come back and are told to begin anew."""
        while True:
            try:
                await self._read()
            except Relist as error:
                _log.warning("event feed begins anew", reason=str(error))
            except Later as error:
                _log.warning("event feed interrupted", reason=str(error))
                await asyncio.sleep(error.after.total_seconds())
            finally:
                self.caught_up = False
                self._end_all()

    async def history(self, question: Question, position: Position) -> AsyncIterator[tuple[bytes, int]]:
        """Give what was missed since a position, with its revision, until the feed itself can go on.

        Then call `join` after the last revision given, before anything else is awaited. Raises Relist when that history
        is gone, or when the position is none that this history had.
        """
        revision, place = position
        if place == WHOLE and revision >= self.revision:
            return
        async with self._store.events(after=revision if place == WHOLE else revision - 1) as reader:
            if place != WHOLE:
                happened = await _soon(reader, revision)
                yield self._framed(happened, question, position), revision
            while revision < self.revision:
                happened = await anext(reader)
                revision = happened.revision
                yield self._framed(happened, question, position), revision

    def join(self, question: Question, *, after: int) -> Subscriber:
        """Receive every wanted event above a revision."""
        subscriber = Subscriber(after)
        _, members = self._groups.setdefault(question, (question, set()))
        members.add(subscriber)
        return subscriber

    def leave(self, question: Question, subscriber: Subscriber) -> None:
        """Stop receiving. May be repeated."""
        _, members = self._groups.get(question, (question, set()))
        members.discard(subscriber)
        if not members:
            self._groups.pop(question, None)

    def tell_all(self, frame: bytes) -> None:
        """Send every subscriber something that is no event."""
        for _, members in self._groups.values():
            for subscriber in members:
                subscriber.put(frame, sys.maxsize)

    async def _read(self) -> None:
        page = await self._store.scan("", limit=1)
        self.revision = page.revision
        async with self._store.events(after=page.revision) as reader:
            self.caught_up = True
            async for happened in reader:
                self._publish(happened)

    def _publish(self, happened: Happened) -> None:
        for place, raw in enumerate(happened.events):
            event = decode(raw)
            frame = self._frame(event, Position(happened.revision, place), self.epoch)
            for question, members in self._groups.values():
                if question.wants(event):
                    for subscriber in members:
                        subscriber.put(frame, happened.revision)
        self.revision = happened.revision

    def _framed(self, happened: Happened, question: Question, position: Position) -> bytes:
        found = []
        for place, raw in enumerate(happened.events):
            at = Position(happened.revision, place)
            if at > position and question.wants(event := decode(raw)):
                found.append(self._frame(event, at, self.epoch))
        return b"".join(found)

    def _end_all(self) -> None:
        for _, members in self._groups.values():
            for subscriber in members:
                subscriber.end()
        self._groups.clear()


async def _soon(reader: EventReader, revision: int) -> Happened:
    """Read the events of a revision that is said to have had some."""
    try:
        async with asyncio.timeout(_PATIENCE):
            happened = await anext(reader)
    except TimeoutError:
        happened = None
    if happened is None or happened.revision != revision:
        raise Relist(f"revision {revision} caused no events; begin anew")
    return happened
