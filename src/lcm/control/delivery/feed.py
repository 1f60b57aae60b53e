"""The live event feed: one reader of the store's events in each process, any number of subscribers.

Called by the event stream of `api`. Every event is read and encoded once. Subscribers with equal filters share the
result, and each has a queue of its own: a subscriber that does not read is cut off, and may reconnect with the id of
the last event it saw, which resumes without gap or duplicate on any replica. An event after a pause is sent at once;
those that follow closely are sent together, because waking a subscriber costs far more than another frame.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import ExitStack
from typing import Final, NamedTuple, Protocol

import structlog

from lcm.model.base.errors import Later, Relist, Unreachable
from lcm.model.base.event import Event, decode_event
from lcm.store.base import EVENTS_KEY, CommitEvents, EventReader, Page, Store
from lcm.system.tasks import TimeSlice

QUEUE_BYTES: Final = 1_000_000
"""How many bytes may wait for one subscriber before it is cut off."""

WHOLE_COMMIT: Final = 1_000_000
"""The place after all events of a commit."""

WAVE_SECONDS: Final = 0.02
"""How long after all subscribers that were woken have run the next ones are woken, at the earliest."""

_READ_SECONDS: Final = 5.0

_log: Final = structlog.get_logger()


class Position(NamedTuple):
    """A position in the history of events: after this event, or with place WHOLE_COMMIT after all of its commit."""

    revision: int
    place: int


FrameEncoder = Callable[[Event, Position, str, bool], bytes]
"""Encodes an event as subscribers receive it, with its position, the epoch, and whether they receive rows."""


class EventFilter(Protocol):
    """Which events a subscriber receives. Equal filters are evaluated once, so a filter compares by value."""

    @property
    def rows(self) -> bool:
        """Whether it also receives the rows of the changed objects."""
        ...

    def __hash__(self) -> int:
        """Group equal filters."""
        ...

    def wants(self, event: Event) -> bool:
        """Return whether this event passes the filter."""
        ...


class EventListener(Protocol):
    """Hears every event in this process, as it is read. The feed begins anew without losing any to it, if it can."""

    def hear(self, event: Event) -> None:
        """Take an event."""
        ...

    def lose_track(self) -> None:
        """Take note that events were missed."""
        ...


class Subscriber:
    """The queue of one reader. `take` waits for what came since; None means that the queue has ended."""

    __slots__ = ("_after", "_bytes", "_ended", "_frames", "_limit", "_waiter")

    def __init__(self, after: int, limit: int = QUEUE_BYTES) -> None:
        self._after = after
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._limit = limit
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, frame: bytes, revision: int) -> None:
        """Add a frame; beyond the limit nothing more is kept, and the reader sees the end of the queue.

        A reader that waits goes on waiting until `wake`.
        """
        if self._ended or revision <= self._after:
            return
        self._bytes += len(frame)
        self._frames.append(frame)
        if self._bytes > self._limit:
            self.end()

    def end(self) -> None:
        """End the queue: nothing more will come."""
        self._ended = True
        self.wake()

    def wake(self) -> None:
        """Wake the reader, if it waits and there is something."""
        waiter = self._waiter
        if waiter is not None and (self._frames or self._ended) and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> bytes | None:
        """Wait, and return everything that came since the last call."""
        if not self._frames and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._ended:
            return None
        frames = b"".join(self._frames) if len(self._frames) > 1 else self._frames[0]
        self._frames.clear()
        self._bytes = 0
        return frames


class Feed:
    """Reads the store's events and passes them to subscribers."""

    def __init__(self, store: Store, frame: FrameEncoder) -> None:
        self._store = store
        self._frame = frame
        self._groups: dict[Hashable, tuple[EventFilter, set[Subscriber]]] = {}
        self._newest = 0
        """The revision of the newest events; `revision` may be that of a later commit without events."""
        self._listeners: list[EventListener] = []
        self._heard: int | None = None
        """Up to where listeners have heard everything; None when that cannot be resumed."""
        self.revision = 0
        self.caught_up = False
        self._due: set[Subscriber] = set()
        """Who has got frames since subscribers were last woken."""
        self._calm_at = float("-inf")
        """From when on subscribers are woken at once."""
        self._wave: asyncio.TimerHandle | None = None

    @property
    def epoch(self) -> str:
        """The history in which positions are valid."""
        return self._store.epoch

    async def run(self) -> None:
        """Read events for ever.

        When the history cannot be resumed, every subscriber is ended; they reconnect and are told to begin anew.
        """
        while True:
            try:
                await self._read()
            except Relist as error:
                _log.warning("event feed begins anew", reason=str(error))
                self._heard = None
            except Later as error:
                _log.warning("event feed interrupted", reason=str(error))
                await asyncio.sleep(error.after.total_seconds())
            finally:
                self.caught_up = False
                self._end_all()

    async def follow(self, question: EventFilter, position: Position) -> AsyncGenerator[bytes]:
        """Yield the events after a position that pass the filter: first what was missed, then what comes.

        Ends when the reader is too slow, or when the feed begins anew. Raises Relist when that history is gone, or
        never had that position, and Later when the store does not answer now.
        """
        await self._check_position(position)
        (revision, place), time_slice = position, TimeSlice()
        with ExitStack() as joined:
            async with self._store.events(after=revision if place == WHOLE_COMMIT else revision - 1) as reader:
                if place != WHOLE_COMMIT:
                    yield self._encode_missed(await _read_commit(reader, revision), question, position)
                while revision < self._newest:
                    happened = await _read_next(reader)
                    revision = happened.revision
                    await time_slice.yield_if_over()  # what is read of the store at once is thousands of them
                    yield self._encode_missed(happened, question, position)
                # Join before the reader is closed: closing may suspend, and what is published meanwhile would be lost.
                subscriber = self.subscribe(question, after=revision)
                joined.callback(self.unsubscribe, question, subscriber)
            while (frames := await subscriber.take()) is not None:
                yield frames

    def listen(self, listener: EventListener) -> None:
        """Add a listener, which hears every event from now on."""
        self._listeners.append(listener)

    def subscribe(self, question: EventFilter, *, after: int) -> Subscriber:
        """Return a subscriber that receives every event above a revision that passes the filter."""
        subscriber = Subscriber(after)
        _, members = self._groups.setdefault(question, (question, set()))
        members.add(subscriber)
        return subscriber

    def unsubscribe(self, question: EventFilter, subscriber: Subscriber) -> None:
        """Stop receiving. May be repeated."""
        _, members = self._groups.get(question, (question, set()))
        members.discard(subscriber)
        if not members:
            self._groups.pop(question, None)

    def broadcast(self, frame: bytes) -> None:
        """Send every subscriber a frame that is not an event."""
        for _, members in self._groups.values():
            for subscriber in members:
                subscriber.put(frame, sys.maxsize)
            self._due |= members
        self._wake_soon()

    async def _read(self) -> None:
        page = await self._store.scan(EVENTS_KEY, limit=1)
        # Whoever joined while nothing was read is ended as well: what was committed meanwhile is not published.
        self._end_all()
        self.revision, self._newest = page.revision, _newest_of(page)
        lost_track, self._heard = self._heard is None, page.revision if self._heard is None else self._heard
        # What only listeners have not heard yet: whoever subscribes now has that behind it.
        async with self._store.events(after=self._heard) as reader:
            self.caught_up = True
            if lost_track:  # only now: what they look at before, and what happens then, would go unheard
                for listener in self._listeners:
                    listener.lose_track()
            async for happened in reader:
                self._publish(happened)

    def _publish(self, happened: CommitEvents) -> None:
        for place, raw in enumerate(happened.events if self._listeners or self._groups else ()):
            event = decode_event(raw)
            for listener in self._listeners:
                listener.hear(event)
            at, frames = Position(happened.revision, place), dict[bool, bytes]()
            for question, members in self._groups.values():
                if question.wants(event):
                    frame = frames.get(question.rows)
                    if frame is None:
                        frame = frames[question.rows] = self._frame(event, at, self.epoch, question.rows)
                    for subscriber in members:
                        subscriber.put(frame, happened.revision)
                    self._due |= members
        self._heard = happened.revision
        self.revision, self._newest = max(self.revision, self._heard), max(self._newest, self._heard)
        if self._due:
            self._wake_soon()

    def _wake_soon(self) -> None:
        """Wake those who have got something: now, or as soon as the ones before have run, and a moment more."""
        if self._wave is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._calm_at:
            self._wave = loop.call_at(self._calm_at, self._wake_due)
        else:
            self._wake_due()

    def _wake_due(self) -> None:
        due, self._due, self._wave = self._due, set(), None
        for subscriber in due:
            subscriber.wake()
        # Called after all of those who were woken.
        asyncio.get_running_loop().call_soon(self._calm_down)

    def _calm_down(self) -> None:
        self._calm_at = asyncio.get_running_loop().time() + WAVE_SECONDS

    async def _check_position(self, position: Position) -> None:
        """Raise Relist for a position after the present end of history. Another replica's feed may be ahead of ours."""
        revision, place = position
        if revision <= (self.revision if place == WHOLE_COMMIT else self._newest):
            return
        page = await self._store.scan(EVENTS_KEY, limit=1)
        if revision > (page.revision if place == WHOLE_COMMIT else _newest_of(page)):
            raise Relist(f"revision {revision} is not of this history; begin anew")

    def _encode_missed(self, happened: CommitEvents, question: EventFilter, position: Position) -> bytes:
        found = []
        for place, raw in enumerate(happened.events):
            at = Position(happened.revision, place)
            if at > position and question.wants(event := decode_event(raw)):
                found.append(self._frame(event, at, self.epoch, question.rows))
        return b"".join(found)

    def _end_all(self) -> None:
        for _, members in self._groups.values():
            for subscriber in members:
                subscriber.end()
        self._groups.clear()


def _newest_of(page: Page) -> int:
    """Return the revision of the newest events, from a page of EVENTS_KEY."""
    return page.entries[0].revision if page.entries else 0


async def _read_commit(reader: EventReader, revision: int) -> CommitEvents:
    """Read the events of a revision that must have had some; Relist if it had none."""
    happened = await _read_next(reader)
    if happened.revision != revision:
        raise Relist(f"revision {revision} caused no events; begin anew")
    return happened


async def _read_next(reader: EventReader) -> CommitEvents:
    """Read events that are known to be there. Raise Unreachable when they do not come: the store is away, not they."""
    try:
        async with asyncio.timeout(_READ_SECONDS):
            return await anext(reader)
    except TimeoutError as error:
        raise Unreachable("the store does not deliver its events") from error
