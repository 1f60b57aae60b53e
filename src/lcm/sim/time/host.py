"""One process of ours inside the simulation, which can die or stand still at any await.

Whatever a host starts (tasks, callbacks, timers) inherits HOST and stops with it. Code without a host is the world and
always goes on; what the world begins on a host's behalf must be begun in an empty context, or it dies with the host.
Used by `sim.crash` and by tests; `sim.loop` asks `running` before it calls anything back.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextvars import Context, ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

T = TypeVar("T")

_ASYNCIO: Final = os.path.dirname(asyncio.__file__)  # noqa: PTH120  compared with code objects' names, which are strings
_STUBBORN: Final = 1000
_INNER: Final = ("cr_await", "ag_await", "gi_yieldfrom")
_FRAMES: Final = ("cr_frame", "ag_frame", "gi_frame")


class Held(Protocol):
    """A callback that a host could not take when its turn came."""

    def again(self) -> None:
        """Take the turn now, if the host runs and nobody cancelled meanwhile."""
        ...


class Host:
    """A process: `kill` is SIGKILL (no finally block runs), `pause` and `resume` are SIGSTOP and SIGCONT."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = True
        self.awaits = 0
        self.stop_at = 0
        self.place = ""
        self.generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()
        self._action: Callable[[], object] = self.kill
        self._dead = asyncio.Event()
        self._stopped = asyncio.Event()
        self._held: list[Held] = []
        self._spawned: list[asyncio.Task[Any]] = []
        self._started = 0
        self._tasks: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()
        self._remains: list[object] = []

    def __repr__(self) -> str:
        state = "running" if self.running else "paused" if self.alive else "dead"
        return f"<Host {self.name} {state} after {self.awaits} awaits>"

    @property
    def alive(self) -> bool:
        """Whether it was not killed; a paused host lives."""
        return not self._dead.is_set()

    @property
    def tasks(self) -> Sequence[asyncio.Task[Any]]:
        """Its unfinished tasks, oldest first."""
        return [task for task in self._tasks.values() if not task.done()]

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this host. Awaiting it never ends if the host dies first: see `until_dead`."""
        if not self.alive:
            coro.close()
            raise AssertionError(f"host {self.name} is dead; a restart is a new host")
        context = Context()
        context.run(HOST.set, self)
        task = asyncio.get_running_loop().create_task(coro, context=context)
        self._spawned.append(task)
        return task

    async def until_dead(self) -> None:
        """Wait, outside of this host, until it is dead."""
        await self._dead.wait()

    async def until_stopped(self) -> None:
        """Wait, outside of this host, until it is paused or dead."""
        await self._stopped.wait()

    def kill(self) -> None:
        """Die now, or at the next await if called by itself. May be repeated."""
        if not self.alive:
            return
        self.pause()
        self._dead.set()
        # Collecting a coroutine runs its finally blocks, so all of the dead is kept until `bury`.
        self._remains += self.generators
        self._remains += self._tasks.values()

    def pause(self) -> None:
        """Stand still while time goes on. May be repeated."""
        self.running = False
        self._stopped.set()

    def resume(self) -> None:
        """Go on with all that fell due meanwhile, in its order. No effect on the dead."""
        if self.running or not self.alive:
            return
        self.running = True
        self._stopped.clear()
        held, self._held = self._held, []
        for handle in held:
            asyncio.get_running_loop().call_soon(handle.again, context=Context())

    def at(self, k: int, action: Callable[[], object]) -> None:
        """Call `action` right after the k-th await was reached, before anything else happens."""
        assert k > self.awaits, f"host {self.name} is past await {k}"
        self.stop_at = k
        self._action = action

    def kill_at(self, k: int) -> None:
        """Die at the k-th await."""
        self.at(k, self.kill)

    def pause_at(self, k: int, *, for_: timedelta) -> None:
        """Stand still at the k-th await, for a while."""
        self.at(k, partial(self._nap, for_.total_seconds()))

    def reached(self, task: asyncio.Task[Any]) -> None:
        """Hear from the loop that the await asked for with `at` was reached by this task."""
        self.place = place(task)
        self._action()

    def hold(self, handle: Held) -> None:
        """Keep a callback that fell due while this host does not run."""
        self._held.append(handle)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Hear from the loop that a task was started under this host."""
        self._tasks[self._started] = task
        self._started += 1

    def wind_down(self) -> None:
        """Prepare for the end: nothing planned with `at` happens, who stands still dies, nobody waits for the dead."""
        self.stop_at = 0
        if not self.running:
            self.kill()
        for part in self._remains:
            if isinstance(part, asyncio.Task):
                # Unlike Task.cancel this asks nothing of the dead: it wakes who waits for them, and forgets failures.
                asyncio.Future.cancel(part)

    def unnoticed(self) -> Iterator[BaseException]:
        """Tell the failures of spawned tasks that nobody looked at."""
        for task in self._spawned:
            if task.done() and not task.cancelled() and task._log_traceback:  # noqa: SLF001  true until somebody looks
                error = task.exception()
                assert error is not None, "asyncio logs failures only"
                yield error

    def bury(self) -> None:
        """Let go of a dead host's coroutines once nobody looks at the world any more: their finally blocks run now."""
        remains, self._remains = self._remains, []
        self._held.clear()
        for part in remains:
            if isinstance(part, asyncio.Task):
                bury(part)

    def _nap(self, seconds: float) -> None:
        self.pause()
        asyncio.get_running_loop().call_later(seconds, self.resume, context=Context())


HOST: Final[ContextVar[Host | None]] = ContextVar("HOST", default=None)
"""The host on which the running code runs; None is the world."""


def place(task: asyncio.Task[Any]) -> str:
    """Say where a task is suspended, outermost frame first; asyncio's own frames say nothing and are left out."""
    if task.done():
        return f"the end of {getattr(task.get_coro(), '__name__', task.get_name())}"
    frames = [frame for part in _chain(task.get_coro()) for name in _FRAMES if (frame := getattr(part, name, None))]
    shown = [
        f"{_short(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
        for frame in frames
        if not frame.f_code.co_filename.startswith(_ASYNCIO)
    ]
    return " > ".join(shown) or "asyncio"


def bury(task: asyncio.Task[Any]) -> None:
    """Finish a suspended task's coroutine without a loop, whatever its finally blocks say to that."""
    coro = task.get_coro()
    # Unlike close, throw leaves no half-closed coroutine behind when a finally block awaits: it is thrown at again.
    with contextlib.suppress(_Burial, Exception, asyncio.CancelledError):
        for _ in range(_STUBBORN):
            coro.throw(_Burial())


class _Burial(BaseException):
    """Nobody catches this."""


def _chain(awaitable: object) -> list[object]:
    chain = []
    while awaitable is not None:
        chain.append(awaitable)
        awaitable = next((inner for name in _INNER if (inner := getattr(awaitable, name, None)) is not None), None)
    return chain


def _short(path: str) -> str:
    here = os.getcwd() + os.sep  # noqa: PTH109  a string is cut off a string
    return path.removeprefix(here)
