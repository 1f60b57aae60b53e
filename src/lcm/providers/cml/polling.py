"""Polling until something is done, and running several calls at once. Used by `labs` and `licence`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from lcm.model.base.errors import LcmError

T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.25
_MAX_CONCURRENT: Final = 4


async def poll_until(
    done: Callable[[T], bool],
    look: Callable[[], Awaitable[T]],
    *,
    every_seconds: float,
    within_seconds: float,
    late: Callable[[T], LcmError],
) -> T:
    """Poll until it is done, and return what was seen last; when time is up, raise what `late` makes of that.

    What was requested often happens at once, so the first polls follow each other quickly.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + within_seconds, min(_FIRST_PAUSE_SECONDS, every_seconds)
    while not done(seen := await look()):
        if loop.time() + pause > deadline:
            raise late(seen)
        await asyncio.sleep(pause)
        pause = min(pause * 2, every_seconds)
    return seen


async def gather_limited(jobs: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all jobs, a few at a time, and return their results in order; the first failure cancels the rest.

    However it ends, no job is still running afterwards.
    """
    places = asyncio.Semaphore(_MAX_CONCURRENT)

    async def in_turn(job: Callable[[], Awaitable[T]]) -> T:
        async with places:
            return await job()

    tasks = [asyncio.create_task(in_turn(job)) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
