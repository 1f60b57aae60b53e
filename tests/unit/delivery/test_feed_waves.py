"""When subscribers of the feed are woken: at once after a pause, together while much happens, always when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness import given
from harness.event_clients import virtual
from lcm.control.delivery.feed import QUEUE_BYTES, WAVE_SECONDS, Feed, Subscriber
from lcm.model.base.event import Event, ObjectEvent, encode_data, encode_event
from lcm.store.base import Put
from lcm.store.memory import MemoryStore

PAUSE = 10 * WAVE_SECONDS


class Everything:
    """Wants all events."""

    rows = False

    def wants(self, _: Event) -> bool:
        return True


class Waves:
    """A feed, and a subscriber who notes when it was given what."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.feed = Feed(self.store, lambda event, *_: event.name.encode())
        self.taken: list[tuple[float, bytes | None]] = []

    async def happen(self, name: str) -> None:
        data = ObjectEvent(kind="LabWorker", name=name, namespace="default", uid="u", resource_generation=1)
        made = Event(
            type="worker.updated",
            time=given.moment("09:00"),
            kind="LabWorker",
            name=name,
            namespace="default",
            data=encode_data(data),
        )
        await self.store.commit(Put("k/x", name.encode()), events=[encode_event(made)])

    async def note(self, subscriber: Subscriber) -> None:
        loop, is_open = asyncio.get_running_loop(), True
        began = loop.time()
        while is_open:
            frames = await subscriber.take()
            self.taken.append((round(loop.time() - began, 6), frames))
            is_open = frames is not None


@asynccontextmanager
async def waves() -> AsyncIterator[Waves]:
    it = Waves()
    reading = asyncio.create_task(it.feed.run())
    while not it.feed.caught_up:
        await asyncio.sleep(0)
    noting = asyncio.create_task(it.note(it.feed.subscribe(Everything(), after=0)))
    await asyncio.sleep(0)
    yield it
    reading.cancel()
    await asyncio.wait([reading, noting])


@virtual
async def test_an_event_after_a_pause_is_sent_at_once_and_those_that_follow_closely_together() -> None:
    async with waves() as it:
        await it.happen("a")
        await asyncio.sleep(WAVE_SECONDS / 4)
        await it.happen("b")
        await asyncio.sleep(WAVE_SECONDS / 4)
        await it.happen("c")
        await asyncio.sleep(PAUSE)
        await it.happen("d")
        await asyncio.sleep(0)
        again = round(WAVE_SECONDS / 2 + PAUSE, 6)
        assert it.taken == [(0.0, b"a"), (WAVE_SECONDS, b"bc"), (again, b"d")]


@virtual
async def test_a_stream_of_events_comes_in_as_many_waves_as_fit_its_time() -> None:
    async with waves() as it:
        for _ in range(40):
            await it.happen("x")
            await asyncio.sleep(WAVE_SECONDS / 10)
        await asyncio.sleep(PAUSE)
        assert b"".join(frames or b"" for _, frames in it.taken) == b"x" * 40
        assert len(it.taken) == 5


@virtual
async def test_heartbeats_pass_with_the_events_before_them() -> None:
    async with waves() as it:
        it.feed.broadcast(b":")
        await asyncio.sleep(0)
        await it.happen("a")
        it.feed.broadcast(b":")
        await asyncio.sleep(PAUSE)
        assert it.taken == [(0.0, b":"), (WAVE_SECONDS, b"a:")]


@virtual
async def test_who_is_cut_off_or_ended_does_not_wait_for_the_next_wave() -> None:
    async with waves() as it:
        await it.happen("a")
        await asyncio.sleep(0)
        slow = it.feed.subscribe(Everything(), after=0)
        noting = asyncio.create_task(slow.take())
        await asyncio.sleep(0)
        slow.put(bytes(QUEUE_BYTES + 1), it.feed.revision + 1)
        assert await asyncio.wait_for(noting, WAVE_SECONDS / 2) is None
        await it.happen("b")
    assert it.taken == [(0.0, b"a"), (0.0, None)]
