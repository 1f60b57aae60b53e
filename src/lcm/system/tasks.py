"""Runs several tasks concurrently; the first that fails ends them all, with its error.

`Supervisor` runs the parts of a process for `compose`: a part that ends without being asked to is a bug.
`run_until_first_ends` serves the controllers' runtime and election. Unlike a task group it raises the plain error,
and a cancellation is never lost behind a failure of the same moment. `TimeSlice` lets other tasks run during long work,
and `LoopTurns` is what many who do so share; `KeyedLocks` are locks by name. `TimeLimit` and `NEXT_TURN` are for what
is awaited all the time.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Final, Self

import structlog

from lcm.model.base.errors import Throttled
from lcm.system.clock import spare_from_collection

_log: Final = structlog.get_logger()


_LAST_WORDS_SECONDS: Final = 0.5


class _NextTurn:
    """What `asyncio.sleep(0)` is, for frequent use."""

    def __await__(self) -> Generator[None, None, None]:
        yield


NEXT_TURN: Final = _NextTurn()
"""Awaited, it lets everybody else who can run do so once."""


class TimeLimit:
    """Ends what a task does in it after so many seconds, with a TimeoutError: `asyncio.timeout` for frequent use."""

    __slots__ = ("_cancelling", "_is_over", "_task", "_timer", "ends_at")

    def __init__(self, seconds: float, timer: "LimitTimer | None" = None) -> None:
        """Limit what follows to so many seconds; `timer` is one that limits of that length share."""
        self._timer = timer or LimitTimer(seconds)

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "only what a task does can be ended"
        self._task, self._cancelling, self._is_over = task, task.cancelling(), False
        self.ends_at = self._timer.begin(self, task.get_loop())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._timer.leave(self)
        # Whoever else cancelled the task meanwhile is not to get a TimeoutError.
        if self._is_over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def end(self) -> None:
        """End what the task does, as its time is over."""
        self._is_over = True
        self._task.cancel()


class LimitTimer:
    """The timer of time limits of one length: most of them are left long before they are over."""

    def __init__(self, seconds: float, *, is_kept: bool = False) -> None:
        """Time limits of so many seconds. One that `is_kept` goes on when none is left, for the next ones."""
        self._seconds = seconds
        self._is_kept = is_kept
        self._limits: dict[TimeLimit, None] = {}
        """Those that are neither left nor over, the first to be over first."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, limit: TimeLimit, loop: asyncio.AbstractEventLoop) -> float:
        """Add a limit, and return when it is over."""
        ends_at = loop.time() + self._seconds
        self._limits[limit] = None
        if self._timer is None:
            self._timer = loop.call_at(ends_at, self._end_limits, loop)
        return ends_at

    def leave(self, limit: TimeLimit) -> None:
        """Remove a limit, if it is not over."""
        self._limits.pop(limit, None)
        if not self._limits and not self._is_kept and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_limits(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the limits that are over, and look again when the next one is."""
        self._timer, now = None, loop.time()
        for limit in [one for one in self._limits if one.ends_at <= now]:
            del self._limits[limit]
            limit.end()
        first = next(iter(self._limits), None)
        if first is not None:
            self._timer = loop.call_at(first.ends_at, self._end_limits, loop)


class Supervisor:
    """The running parts of one process; an async context manager that cancels what still runs at its end."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a part until it is cancelled, or until whoever started it makes it end."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def wait_until(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set. Raises the error of the first part that fails before that."""
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopping, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in self._tasks:
            if task.done():
                error = first_error(task.exception())
                _log.error("part failed", part=task.get_name(), error=repr(error))
                await asyncio.sleep(_LAST_WORDS_SECONDS)  # open streams tell their clients why
                if error is not None:
                    raise error
                raise AssertionError(f"{task.get_name()} ended though nobody asked it to")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def first_error(error: BaseException | None) -> BaseException | None:
    """Return the first error in a group of errors, or the error itself if it is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def run_until_first_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Run until the first of these ends; the others are then cancelled and waited for."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await cancel_and_wait(tasks)


async def cancel_and_wait(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until the last one has ended, even if we are cancelled while waiting."""
    for task in tasks:
        task.cancel()
    hurried = False
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            hurried = True
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks the error as retrieved: the first one was raised, asyncio would log the others
    if hurried:
        raise asyncio.CancelledError


class _PresentTurn(threading.local):
    """The turn of the loop that runs in a thread, if anything works in turns in it, and when it began."""

    loop: asyncio.AbstractEventLoop | None = None
    began = 0.0

    def end(self) -> None:
        """Forget the turn: another one has begun."""
        self.loop = None


_LEEWAY: Final = 0.1
"""What share of its time a turn may take longer, so that short turns cost nothing."""


class LoopTurns:
    """How long those who share them may work together in one turn of the loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._present = _PresentTurn()

    def is_over(self) -> bool:
        """Return whether the present turn has taken long enough."""
        loop, turn = asyncio.get_running_loop(), self._present
        now = loop.time()
        if turn.loop is not loop:
            if 0 <= now - turn.began < self._seconds * _LEEWAY:
                return False  # whether or not it is another turn
            turn.loop, turn.began = loop, now
            loop.call_soon(turn.end, context=Context())  # called in the next turn
        return now - turn.began > self._seconds

    async def wait(self, rest_seconds: float = 0.001) -> None:
        """Wait until a turn is not over. Whoever has used one up lets all the others who wait go first."""
        if self.is_over():
            await asyncio.sleep(rest_seconds)
            while self.is_over():  # noqa: ASYNC110 - each turn of the loop is the event
                await asyncio.sleep(0)


_TURNS: Final = LoopTurns(0.015)
_SPARED_EVERY: Final = 16
"""After so many turns of one work, what there is then is left out of garbage collection."""


class TimeSlice:
    """Yields to other tasks during long work. Everybody who works so in one loop shares its turns.

    What such work makes is mostly kept for long, and is spared from garbage collection now and then. Work that nobody
    but its sender waits for rests after each turn, so that who needs many turns in a row gets them meanwhile.
    """

    def __init__(self, *, rest_seconds: float = 0) -> None:
        self._yields = 0
        self._rest_seconds = rest_seconds

    def is_over(self) -> bool:
        """Return whether the present turn has taken long enough."""
        return _TURNS.is_over()

    async def yield_if_over(self) -> bool:
        """Return whether the present turn was over; other tasks have run then."""
        if not _TURNS.is_over():
            return False
        self._yields += 1
        if self._yields % _SPARED_EVERY == 0:
            spare_from_collection()
        await asyncio.sleep(self._rest_seconds)
        return True


class KeyedLocks:
    """Locks by name, each of which exists while a task holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def count_users(self, name: str) -> int:
        """Return how many tasks hold a lock or wait for it."""
        return self._locks[name][1] if name in self._locks else 0

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for a lock, and hold it."""
        lock = self._locks[name][0] if name in self._locks else asyncio.Lock()
        self._locks[name] = lock, self.count_users(name) + 1
        try:
            async with lock:
                yield
        finally:
            self._locks[name] = lock, self.count_users(name) - 1
            if not self.count_users(name):
                del self._locks[name]


class CallerTurns:
    """Turns at long work of which a process does one piece at a time.

    One piece of each caller waits at a time, so that many at once delay their sender and nobody else. With the longest
    pieces, the last of the callers waits for as many.
    """

    def __init__(self, about: str, *, most_of_caller: int, most_callers: int) -> None:
        self._about = about
        self._most_of_caller = most_of_caller
        self.most_callers = most_callers
        self.locks = KeyedLocks()

    @asynccontextmanager
    async def hold(self, caller: str) -> AsyncIterator[None]:
        """Wait for a caller's turn, and hold it. Raise Throttled when too many wait."""
        everybody = ""  # no caller has this name
        if self.locks.count_users(caller) >= self._most_of_caller:
            raise Throttled(f"too many of your questions about {self._about} wait; ask when one is answered")
        if not self.locks.count_users(caller) and self.locks.count_users(everybody) >= self.most_callers:
            raise Throttled(f"too many people ask about {self._about} right now; ask again in a moment")
        async with self.locks.hold(caller), self.locks.hold(everybody):
            yield


_EXIT_FORCED: Final = 130


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGINT or SIGTERM sets; a second signal ends the process at once."""
    stop = asyncio.Event()

    def request_stop() -> None:
        if stop.is_set():
            sys.stderr.write("Stopped by force.\n")
            os._exit(_EXIT_FORCED)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, request_stop)
    return stop
