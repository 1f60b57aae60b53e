"""The watch over an event loop, and what runs beside it."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import repeat

import pytest
import structlog.testing

from lcm.compose.leases import LOOP_PATIENCE_SECONDS, ReactingLine
from lcm.model.base.errors import Deposed, Unreachable
from lcm.store.base import Lease
from lcm.system.loop_watch import HOLD_SECONDS, LoopWatch
from lcm.system.side_loop import SideLoop
from lcm.system.tasks import TimeSlice


def hold(seconds: float) -> None:
    """Compute for so long, not counting when others have the processors."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(100))


async def test_a_step_that_holds_the_loop_is_measured_named_and_logged_once() -> None:
    watch = LoopWatch()
    with structlog.testing.capture_logs() as logs, watch.run():
        await asyncio.sleep(0.1)
        calm = watch.count
        for _ in range(2):
            hold(0.4)
            await asyncio.sleep(0.05)
    assert watch.count >= calm + 2
    assert watch.longest.seconds >= 0.4
    assert watch.longest.culprit == f"{__name__}.hold"
    assert [one["culprit"] for one in logs if one["event"] == "the event loop was held"] == [f"{__name__}.hold"]
    longest = watch.longest_within(60)
    assert longest is not None
    assert longest.seconds >= 0.4
    assert watch.longest_within(-1) is None


async def test_a_loop_that_is_not_held_is_calm() -> None:
    watch = LoopWatch()
    with watch.run():
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert watch.silence() < HOLD_SECONDS * 4
    assert watch.count <= 1  # the machine itself may be busy for a moment


def occupy() -> None:
    """Keep all other threads from running for some tenths of a second, twice.

    Nobody can look before the first time is over; the second keeps this function on its thread's stack until then.
    """
    for _ in range(2):
        sum(range(20_000_000))


async def test_a_thread_that_lets_no_other_run_holds_the_loop_and_is_named() -> None:
    watch = LoopWatch()
    with watch.run():
        for _ in range(3):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(occupy)
        await asyncio.sleep(0.05)
    assert watch.longest.seconds > 0.1
    assert any(one.culprit.startswith(f"{__name__}.occupy, in thread asyncio_") for one in watch.holds), watch.holds


async def test_a_step_that_waits_holds_the_loop() -> None:
    watch = LoopWatch()
    with watch.run():
        await asyncio.sleep(0.05)
        time.sleep(1)  # noqa: ASYNC251 - it is to hold the loop
        await asyncio.sleep(0.05)
    assert watch.longest.seconds > 0.3  # others may have had the processor meanwhile
    assert watch.longest.culprit.startswith(__name__)


@pytest.mark.parametrize("thread", ["the loop's", "another"])
async def test_a_garbage_collection_that_held_the_loop_is_told_and_what_survived_is_spared(thread: str) -> None:
    watch = LoopWatch()
    kept: list[list[int]] = list(map(list, repeat((), 6_000_000)))
    try:
        with watch.run():
            await asyncio.sleep(0.05)
            if thread == "another":
                await asyncio.to_thread(gc.collect)
            else:
                gc.collect()
            await asyncio.sleep(0.05)
        assert gc.get_freeze_count() >= len(kept)
        assert watch.longest.culprit == "garbage collection"
    finally:
        gc.unfreeze()


class HandStopwatch:
    """A stopwatch that is moved by hand."""

    now = 0.0

    def seconds(self) -> float:
        return self.now


class Line:
    """A connection that counts renewals."""

    def __init__(self) -> None:
        self.renewals = 0

    async def renew(self, *leases: Lease) -> None:
        assert all(lease.term for lease in leases)
        self.renewals += 1

    async def lease(self, name: str) -> Lease | None:
        return LEASE if name == LEASE.name else None

    async def wait_until_vacant(self, name: str) -> None:
        assert name == LEASE.name


LEASE = Lease("scheduler", "one", 7, 15)


async def test_a_leader_whose_loop_does_not_react_any_more_is_not_renewed() -> None:
    stopwatch, line = HandStopwatch(), Line()
    watched = ReactingLine(line, LoopWatch(stopwatch))
    stopwatch.now = LOOP_PATIENCE_SECONDS - 1
    await watched.renew(LEASE)
    stopwatch.now = LOOP_PATIENCE_SECONDS + 1
    with pytest.raises(Deposed, match="has not reacted for 61 s"):
        await watched.renew(LEASE)
    assert line.renewals == 1
    assert await watched.lease("scheduler") == LEASE
    await watched.wait_until_vacant("scheduler")


async def test_what_runs_beside_goes_on_while_the_loop_is_held() -> None:
    beats, closed = list[float](), list[str]()

    @asynccontextmanager
    async def own() -> AsyncIterator[list[float]]:
        try:
            yield beats
        finally:
            closed.append(threading.current_thread().name)

    async def beat(into: list[float]) -> str:
        assert threading.current_thread() is not threading.main_thread()
        for _ in range(20):
            into.append(time.monotonic())
            await asyncio.sleep(0.01)
        return "done"

    async with SideLoop[list[float]].open("aside", own) as side:
        beating = asyncio.create_task(side.run(beat))
        await asyncio.sleep(0)
        hold(0.4)
        held_until = time.monotonic()
        assert await beating == "done"
    assert sum(one < held_until for one in beats) > 3
    assert len(beats) == 20
    assert [name.startswith("aside") for name in closed] == [True]


async def test_who_stops_waiting_ends_what_runs_beside_and_errors_come_back() -> None:
    ended = threading.Event()

    @asynccontextmanager
    async def own() -> AsyncIterator[None]:
        yield None

    async def wait(_: None) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail(_: None) -> None:
        raise Unreachable("away")

    async with SideLoop[None].open("aside", own) as side:
        waiting = asyncio.create_task(side.run(wait))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await asyncio.to_thread(ended.wait, 5)
        with pytest.raises(Unreachable):
            await side.run(fail)


async def test_what_cannot_be_opened_beside_is_raised_where_it_was_asked_for() -> None:
    @asynccontextmanager
    async def own() -> AsyncIterator[None]:
        raise Unreachable("the store cannot be reached")
        yield None

    with pytest.raises(Unreachable):
        async with SideLoop[None].open("aside", own):
            pass


async def test_many_who_work_in_turns_share_one() -> None:
    """Each has work in pieces of 5 ms; somebody else has a turn after a few pieces of all, not after many of each."""
    over = False

    async def work() -> None:
        time_slice = TimeSlice()
        while not over:
            hold(0.005)
            await time_slice.yield_if_over()

    workers = [asyncio.create_task(work()) for _ in range(5)]
    waits = list[float]()
    for _ in range(10):
        began = time.thread_time()
        await asyncio.sleep(0)
        waits.append(time.thread_time() - began)
    over = True
    await asyncio.gather(*workers)
    assert sorted(waits)[len(waits) // 2] < 0.1
