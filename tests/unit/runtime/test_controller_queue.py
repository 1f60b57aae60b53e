"""The queue of a controller: every key once, at its earliest moment, never twice at once."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from hypothesis import strategies as st

from harness.suite import for_all
from lcm.controllers.runtime.reconcile import WorkQueue
from lcm.sim.time.loop import run

Body = Callable[[WorkQueue[str]], Awaitable[None]]


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def play(body: Body) -> None:
    async def main() -> None:
        await body(WorkQueue())

    run(main)


async def taken(queue: WorkQueue[str]) -> tuple[str, float]:
    """Take a key, give it back, and say when it came."""
    key = await queue.take()
    queue.finish(key)
    return key, asyncio.get_running_loop().time()


async def empty(queue: WorkQueue[str]) -> bool:
    try:
        async with asyncio.timeout(1e6):
            await queue.take()
    except TimeoutError:
        return True
    return False


def test_keys_come_in_their_order_and_each_once() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for key in "abacab":
            queue.add(key)
        assert len(queue) == 3
        assert [await queue.take() for _ in range(3)] == ["a", "b", "c"]
        assert len(queue) == 0
        assert await empty(queue)

    play(body)


def test_a_key_asked_for_while_it_is_looked_at_comes_again_afterwards() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        key = await queue.take()
        queue.add("a")
        queue.add("a", seconds(5))
        waiting = asyncio.create_task(queue.take())
        await asyncio.sleep(60)
        assert not waiting.done(), "nobody else may look at it meanwhile"
        queue.finish(key)
        assert await waiting == "a"
        queue.finish("a")
        assert await empty(queue)

    play(body)


def test_a_key_that_nobody_asked_for_again_does_not_come_again() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        queue.finish(await queue.take())
        assert await empty(queue)

    play(body)


def test_a_delayed_key_comes_at_its_moment() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("late", seconds(10))
        queue.add("soon", seconds(2))
        queue.add("past", seconds(-3))
        assert [await taken(queue) for _ in range(3)] == [("past", 0), ("soon", 2), ("late", 10)]

    play(body)


def test_the_earliest_moment_that_was_asked_for_counts() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        for delay in (10, 4, 7):
            queue.add("a", seconds(delay))
        queue.add("b", seconds(5))
        queue.add("b")
        queue.add("b", seconds(5))
        assert [await taken(queue), await taken(queue)] == [("b", 0), ("a", 4)]
        assert await empty(queue)

    play(body)


def test_a_delay_asked_for_while_a_key_is_looked_at_counts_from_then() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("a")
        key = await queue.take()
        queue.add("a", seconds(10))
        await asyncio.sleep(4)
        queue.finish(key)
        assert await taken(queue) == ("a", 10)

    play(body)


def test_what_is_cleared_does_not_come() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        queue.add("now")
        queue.add("later", seconds(3))
        queue.clear()
        assert len(queue) == 0
        assert await empty(queue)
        queue.add("now")
        assert (await taken(queue))[0] == "now"

    play(body)


@for_all(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 3)), max_size=30))
def test_no_wish_is_forgotten_and_no_key_is_taken_twice_at_once(wishes: list[tuple[str, int, int]]) -> None:
    async def body(queue: WorkQueue[str]) -> None:
        begun: list[tuple[str, float]] = []
        busy: set[str] = set()

        async def look() -> None:
            while True:
                key = await queue.take()
                assert key not in busy
                busy.add(key)
                begun.append((key, asyncio.get_running_loop().time()))
                await asyncio.sleep(2)
                busy.discard(key)
                queue.finish(key)

        workers = [asyncio.create_task(look()) for _ in range(4)]
        due: list[tuple[str, float]] = []
        for key, delay, pause in wishes:
            queue.add(key, seconds(delay))
            due.append((key, asyncio.get_running_loop().time()))
            await asyncio.sleep(pause)
        await asyncio.sleep(100)
        for key, asked in due:
            assert any(name == key and at >= asked for name, at in begun), f"{key} of {asked} was not looked at"
        assert len(begun) <= len(wishes)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    play(body)


def test_a_taker_that_is_cancelled_while_another_is_woken_ends_as_cancelled() -> None:
    async def body(queue: WorkQueue[str]) -> None:
        takers = [asyncio.ensure_future(queue.take()) for _ in range(2)]
        await asyncio.sleep(0)
        takers[0].cancel()
        queue.add("a")  # wakes the second, past the first
        ended = await asyncio.gather(*takers, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError)
        assert ended[1] == "a"

    play(body)
