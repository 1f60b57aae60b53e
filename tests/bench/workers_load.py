"""What the two sides of the workers bench have in common: time that runs faster, and the price of a stretch of it."""

import asyncio
import resource
import selectors
import time
from collections.abc import Awaitable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

SPEED = 2
"""A minute of monitoring in 30 seconds. What is done in a minute is the same; only less time is idled away between."""


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds are shorter, time-outs included."""

    def __init__(self) -> None:
        super().__init__(_FastSelector())

    def time(self) -> float:
        return super().time() * SPEED


class _FastSelector(selectors.EpollSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout / SPEED if timeout and timeout > 0 else timeout)


class FastClock:
    """A clock whose seconds are those of the loop."""

    def __init__(self) -> None:
        self._start = datetime.now(UTC)
        self._began = time.monotonic()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=(time.monotonic() - self._began) * SPEED)


def run_fast(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        runner.run(main)


def cpu_seconds() -> float:
    """Return how much of a core this process has used, all its threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def priced(work: Awaitable[None]) -> float:
    """Return how many seconds of a core something takes."""
    before = cpu_seconds()
    await work
    return cpu_seconds() - before


def allow_sockets() -> None:
    """Let this process have a socket for each worker."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
