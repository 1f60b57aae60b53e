import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from lcm.sim.time.host import Host
from lcm.sim.time.loop import run


async def three_awaits(heard: list[int]) -> None:
    for number in range(3):
        await asyncio.sleep(number)
        heard.append(number)


@pytest.mark.parametrize(("k", "done"), [(1, []), (2, [0]), (3, [0, 1]), (4, [0, 1, 2])])
def test_a_host_dies_at_the_await_it_was_told(k: int, done: list[int]) -> None:
    async def main() -> None:
        heard: list[int] = []
        host = Host("a")
        host.kill_at(k)
        host.spawn(three_awaits(heard))
        await host.until_dead()
        await asyncio.sleep(10)
        assert (heard, host.awaits) == (done, k)
        assert host.place == "the end of three_awaits" or host.place.endswith(" three_awaits")

    run(main)


def test_a_host_stands_still_at_the_await_it_was_told_and_goes_on() -> None:
    async def main() -> None:
        heard: list[int] = []
        host = Host("a")
        host.pause_at(2, for_=timedelta(seconds=60))
        task = host.spawn(three_awaits(heard))
        await host.until_stopped()
        assert heard == [0]
        await task
        assert (heard, asyncio.get_running_loop().time()) == ([0, 1, 2], 62)

    run(main)


def test_an_await_of_the_past_cannot_be_chosen() -> None:
    async def main() -> None:
        host = Host("a")
        await host.spawn(three_awaits([]))
        with pytest.raises(AssertionError, match="is past await 4"):
            host.kill_at(4)

    run(main)


async def callbacks() -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    done.add_done_callback(lambda _: None)
    loop.call_soon(lambda: None)
    loop.call_later(1, done.set_result, None)
    await done


async def cancelling() -> None:
    sleeper = asyncio.create_task(asyncio.sleep(100))
    await asyncio.sleep(1)
    asyncio.get_running_loop().call_soon(sleeper.cancel)
    await asyncio.wait([sleeper])


async def children() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(1))
        group.create_task(asyncio.sleep(2))


@pytest.mark.parametrize(("program", "steps"), [(callbacks, 2), (cancelling, 5), (children, 6)])
def test_only_stretches_of_tasks_are_counted(program: Callable[[], Coroutine[Any, Any, None]], steps: int) -> None:
    async def main() -> None:
        host = Host("a")
        await host.spawn(program())
        assert host.awaits == steps

    run(main)
