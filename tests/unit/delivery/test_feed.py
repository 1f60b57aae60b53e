"""The live feed: whoever comes, goes, stalls and comes back receives each event once, in order."""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta

import pytest

from harness import given
from harness.stores import FallibleStore
from harness.suite import here, longest_turn
from lcm.control.delivery.feed import QUEUE_BYTES, WHOLE_COMMIT, Feed, Position, Subscriber
from lcm.model.base.errors import Relist, Unreachable
from lcm.model.base.event import Event, ObjectEvent, encode_data, encode_event
from lcm.store.base import EVENTS_KEY, EventReader, Put, StoreWatch
from lcm.store.memory import MemoryStore

PARITIES = ("even", "odd", "")
MOST_SECONDS = 0.1


@dataclass(frozen=True)
class Owned:
    """Wants the events of one owner; of everybody when that is empty."""

    owner: str
    rows: bool = False

    def wants(self, event: Event) -> bool:
        return not self.owner or event.owner == self.owner


def event(number: int) -> bytes:
    data = ObjectEvent(kind="LabWorker", name="w1", namespace="default", uid="u", resource_generation=number)
    made = Event(
        type="worker.updated",
        time=given.moment("09:00"),
        kind="LabWorker",
        name=str(number),
        namespace="default",
        data=encode_data(data),
        owner=PARITIES[number % 2],
    )
    return encode_event(made)


def frame(event: Event, at: Position, epoch: str, rows: bool) -> bytes:  # noqa: FBT001 - as feeds call it
    assert epoch and not rows  # noqa: PT018 - nobody asks for rows
    return f"{at.revision}.{at.place}.{event.name};".encode()


class Reader:
    """A client that notes what it received and resumes where it was cut."""

    def __init__(self, feed: Feed, owner: str, at: Position) -> None:
        self.feed, self.question, self.at = feed, Owned(owner), at
        self.numbers: list[int] = []

    def note(self, frames: bytes) -> None:
        for one in frames.decode().split(";")[:-1]:
            revision, place, number = map(int, one.split("."))
            self.at = Position(revision, place)
            self.numbers.append(number)

    async def read(self, frames: int) -> None:
        """Connect, read about so many frames, and be cut."""
        async with aclosing(self.feed.follow(self.question, self.at)) as following:
            async for taken in islice_async(following, frames):
                self.note(taken)

    async def read_until(self, count: int) -> None:
        """Connect, and stay until so many events came in all."""
        async with asyncio.timeout(10), aclosing(self.feed.follow(self.question, self.at)) as following:
            while len(self.numbers) < count:
                self.note(await anext(following))


async def islice_async(source: AsyncGenerator[bytes], most: int) -> AsyncIterator[bytes]:
    for _ in range(most):
        yield await anext(source)


async def started(store: MemoryStore) -> tuple[Feed, asyncio.Task[None]]:
    feed = Feed(store, frame)
    task = asyncio.create_task(feed.run())
    while not feed.caught_up:
        await asyncio.sleep(0)
    return feed, task


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(8))
async def test_readers_that_are_cut_at_random_miss_nothing_and_see_nothing_twice(seed: int) -> None:
    chance = random.Random(seed)
    store = MemoryStore()
    await store.commit(Put("workers/default/w1", b"0"))
    feed, task = await started(store)
    readers = [Reader(feed, PARITIES[number % 3], Position(feed.revision, WHOLE_COMMIT)) for number in range(9)]
    written = 0
    running: set[asyncio.Task[None]] = set()
    for turn in range(60):
        events = [event(written + number) for number in range(chance.randrange(4))]
        written += len(events)
        await store.commit(Put("workers/default/w1", str(turn).encode()), events=events)
        running = {one for one in running if not one.done()}
        busy = {one.get_name() for one in running}
        for place, reader in enumerate(readers):
            if str(place) not in busy and chance.random() < 0.5:
                running.add(asyncio.create_task(reader.read(chance.randrange(4)), name=str(place)))
        if running and chance.random() < 0.3:
            chance.choice(sorted(running, key=lambda one: one.get_name())).cancel()
        await asyncio.sleep(0)
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    wanted = {owner: [n for n in range(written) if not owner or PARITIES[n % 2] == owner] for owner in PARITIES}
    for reader in readers:
        await reader.read_until(len(wanted[reader.question.owner]))
    task.cancel()
    assert written > 40
    assert [reader.numbers for reader in readers] == [wanted[reader.question.owner] for reader in readers]


async def test_many_who_resume_far_in_the_past_keep_nobody_waiting() -> None:
    store, missed, readers = MemoryStore(), 2_000, 20
    await store.commit(events=[event(0)])
    feed, task = await started(store)
    beginning = Position(feed.revision, WHOLE_COMMIT)
    for number in range(missed):
        await store.commit(events=[event(number)])
    await until(lambda: feed.revision > missed)

    async def resume() -> None:
        async with aclosing(feed.follow(Owned("nobody"), beginning)) as following:
            assert [one async for one in islice_async(following, missed)] == [b""] * missed

    longest = await longest_turn(asyncio.gather(*(resume() for _ in range(readers))))
    task.cancel()
    assert longest < here(MOST_SECONDS)


async def test_one_that_does_not_read_is_cut_off_and_the_others_are_not() -> None:
    store = MemoryStore()
    feed, task = await started(store)
    stalled, lively = feed.subscribe(Owned(""), after=0), feed.subscribe(Owned(""), after=0)
    received = 0
    for number in range(200):
        await store.commit(Put("k/x", b"%d" % number), events=[event(number)])
        stalled.put(b"x" * (QUEUE_BYTES // 100), number + 1)
        received += (await lively.take() or b"").count(b";")
    assert await stalled.take() is None
    assert received == 200
    task.cancel()


async def test_a_compacted_or_invented_position_is_told_to_begin_anew() -> None:
    store = MemoryStore()
    for number in range(4):
        await store.commit(Put("k/x", b"%d" % number), events=[event(number)] if number != 1 else [])
    feed, task = await started(store)
    await store.compact(3)
    for position in (Position(1, 0), Position(2, 0), Position(3, 0), Position(9, 0), Position(9, WHOLE_COMMIT)):
        with pytest.raises(Relist):
            await anext(feed.follow(Owned(""), position))
    task.cancel()


class SlowClosing(EventReader):
    """A reader whose closing suspends, as etcd's does; events happen meanwhile."""

    def __init__(self, watch: StoreWatch, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(watch)
        self._meanwhile = meanwhile

    async def aclose(self) -> None:
        await self._meanwhile()
        await super().aclose()


class SlowStore(FallibleStore):
    """A store in which closing a reader takes so long that others commit."""

    numbers = itertools.count(1)

    def events(self, *, after: int) -> EventReader:
        return SlowClosing(self.watch(EVENTS_KEY, after=after), self.write)

    async def write(self) -> None:
        await self.commit(Put("k/x", b"x"), events=[event(next(self.numbers))])


async def test_what_happens_while_the_reader_of_history_closes_is_not_lost() -> None:
    store = SlowStore()
    first = await store.commit(Put("k/x", b"0"), events=[event(0)])
    feed, task = await started(store)
    for _ in range(3):
        await store.write()
    while feed.revision < (await store.scan("", limit=1)).revision:
        await asyncio.sleep(0)
    reader = Reader(feed, "", Position(first, 0))
    for count in (4, 5, 6):
        await reader.read_until(count)
    assert reader.numbers == list(range(1, 7))
    task.cancel()


async def test_who_joins_while_the_feed_is_interrupted_loses_nothing() -> None:
    store = FallibleStore()
    await store.commit(Put("k/x", b"0"), events=[event(0)])
    feed, task = await started(store)
    reader = Reader(feed, "", Position(feed.revision, WHOLE_COMMIT))
    store.down = Unreachable("away")
    store.cut()
    while feed.caught_up:
        await asyncio.sleep(0)
    reading = asyncio.create_task(reader.read(1))
    await asyncio.sleep(0)
    store.down = None
    await store.commit(Put("k/x", b"1"), events=[event(1)])
    while not feed.caught_up:
        await asyncio.sleep(0.05)
    with suppress(StopAsyncIteration, RuntimeError):
        await reading
    await reader.read_until(1)
    assert reader.numbers == [1]
    task.cancel()


class Listener:
    """Notes what it hears, and how often it lost track; what happens after that, it must hear."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.numbers: list[int] = []
        self.losses = 0

    def hear(self, event: Event) -> None:
        self.numbers.append(int(event.name))

    def lose_track(self) -> None:
        assert self.feed.caught_up
        self.losses += 1


async def test_a_listener_hears_everything_once_whatever_interrupts_the_feed() -> None:
    store = FallibleStore()
    await store.commit(Put("k/x", b"0"), events=[event(0)])
    feed = Feed(store, frame)
    listener = Listener(feed)
    feed.listen(listener)
    task = asyncio.create_task(feed.run())
    await until(lambda: feed.caught_up)
    await store.commit(Put("k/x", b"1"), events=[event(1)])
    await until(lambda: listener.numbers == [1])
    store.break_watches(Unreachable("away", after=timedelta(0)))
    await store.commit(Put("k/x", b"2"), events=[event(2)])
    reader = Reader(feed, "", Position(feed.revision, WHOLE_COMMIT))
    await until(lambda: feed.revision > reader.at.revision)
    await store.commit(Put("k/x", b"3"), events=[event(3)])
    await reader.read_until(2)
    assert (listener.numbers, listener.losses, reader.numbers) == ([1, 2, 3], 1, [2, 3])
    store.cut()
    await until(lambda: listener.losses == 2)
    task.cancel()


async def test_a_store_that_is_away_is_not_a_history_that_is_gone() -> None:
    store = FallibleStore()
    await store.commit(Put("k/x", b"0"), events=[event(0)])
    feed, task = await started(store)
    store.down = Unreachable("away")
    with pytest.raises(Unreachable):
        await anext(feed.follow(Owned(""), Position(feed.revision + 1, 0)))
    task.cancel()


async def test_a_restore_ends_every_subscriber() -> None:
    store = MemoryStore()
    await store.commit(Put("k/x", b"1"), events=[event(1)])
    feed, task = await started(store)
    subscriber = feed.subscribe(Owned(""), after=feed.revision)

    async def entries() -> AsyncIterator[Put]:
        yield Put("k/y", b"2")

    await store.load(entries(), epoch="other")
    assert await subscriber.take() is None
    assert feed.epoch == "other"
    task.cancel()


async def test_what_waits_is_given_at_once_and_a_revision_already_seen_is_left_out() -> None:
    subscriber = Subscriber(after=3)
    subscriber.put(b"old", 3)
    subscriber.put(b"a", 4)
    subscriber.put(b"b", 5)
    assert await subscriber.take() == b"ab"
