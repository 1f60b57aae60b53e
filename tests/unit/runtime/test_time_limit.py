"""The time limit of one question: it ends what takes too long, and nothing else."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lcm.sim.time.loop import run
from lcm.system.tasks import LimitTimer, TimeLimit


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def played() -> None:
        run(test)

    return played


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_what_takes_too_long_is_ended_with_a_time_out() -> None:
    began = now()
    with pytest.raises(TimeoutError), TimeLimit(10):
        await asyncio.sleep(60)
    assert now() == began + 10
    await asyncio.sleep(60)


@in_virtual_time
async def test_what_ends_in_time_is_not_ended_later() -> None:
    with TimeLimit(10):
        await asyncio.sleep(9)
    await asyncio.sleep(60)


@in_virtual_time
async def test_an_error_of_its_own_is_not_a_time_out() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError

    with pytest.raises(KeyError), TimeLimit(10):
        await fail()


@in_virtual_time
async def test_a_task_that_others_cancel_is_cancelled_even_at_the_same_moment() -> None:
    async def work() -> None:
        with TimeLimit(10):
            await asyncio.sleep(60)

    for seconds in (5, 10):
        task = asyncio.ensure_future(work())
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@in_virtual_time
async def test_the_shorter_of_two_limits_ends_its_own_part() -> None:
    began = now()
    with TimeLimit(30):
        with pytest.raises(TimeoutError), TimeLimit(10):
            await asyncio.sleep(60)
        assert now() == began + 10
        await asyncio.sleep(15)
    with pytest.raises(TimeoutError), TimeLimit(10), TimeLimit(30):
        await asyncio.sleep(60)


@in_virtual_time
async def test_limits_that_share_a_timer_end_each_at_its_own_time() -> None:
    timer, ended = LimitTimer(10, is_kept=True), dict[str, float]()

    async def work(name: str, seconds: float) -> None:
        try:
            with TimeLimit(10, timer):
                await asyncio.sleep(seconds)
        except TimeoutError:
            ended[name] = now()

    tasks = []
    for name, seconds in (("quick", 1), ("first", 60), ("slow", 9), ("second", 60)):
        tasks.append(asyncio.ensure_future(work(name, seconds)))
        await asyncio.sleep(3)
    await asyncio.gather(*tasks)
    assert ended == {"first": 13, "second": 19}
    await work("later", 60)
    assert ended["later"] == 29
