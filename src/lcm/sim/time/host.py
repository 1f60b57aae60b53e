"""A simulated process, which can be killed or paused at any await.

Whatever a host starts (tasks, callbacks, timers) inherits HOST and stops with it. Code without a host is the simulated
world, which always runs; what the world starts on a host's behalf must start in an empty context, or it dies with the
host. Used by `sim.time.crash` and by tests; `sim.time.loop` checks `running` before it calls anything back.
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
_MOST_THROWS: Final = 1000
_INNER: Final = ("cr_await", "ag_await", "gi_yieldfrom")
_FRAMES: Final = ("cr_frame", "ag_frame", "gi_frame")


class HeldCallback(Protocol):
    """A callback that was due while its host was not running."""

    def run_held(self) -> None:
        """Run it now, if the host runs and it was not cancelled meanwhile."""
        ...


class Host:
    """A simulated process: `kill` is SIGKILL (no finally block runs), `pause` and `resume` are SIGSTOP and SIGCONT."""

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
        self._held: list[HeldCallback] = []
        self._spawned: list[asyncio.Task[Any]] = []
        self._started = 0
        self._tasks: WeakValueDictionary[int, asyncio.Task[Any]] = WeakValueDictionary()
        self._remains: list[object] = []

    def __repr__(self) -> str:
        state = "running" if self.running else "paused" if self.alive else "dead"
        return f"<Host {self.name} {state} after {self.awaits} awaits>"

    @property
    def alive(self) -> bool:
        """Whether it was not killed; a paused host is alive."""
        return not self._dead.is_set()

    @property
    def tasks(self) -> Sequence[asyncio.Task[Any]]:
        """Its unfinished tasks, oldest first."""
        return [task for task in self._tasks.values() if not task.done()]

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this host. Awaiting it never returns if the host is killed first: see `until_dead`."""
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
        """Kill the host now, or at its next await if it calls this itself. May be repeated."""
        if not self.alive:
            return
        self.pause()
        self._dead.set()
        # Garbage-collecting a coroutine runs its finally blocks, so all are kept until `close_coroutines`.
        self._remains += self.generators
        self._remains += self._tasks.values()

    def pause(self) -> None:
        """Stop running while time goes on. May be repeated."""
        self.running = False
        self._stopped.set()

    def resume(self) -> None:
        """Run again, beginning with all callbacks that fell due meanwhile, in order. No effect on a dead host."""
        if self.running or not self.alive:
            return
        self.running = True
        self._stopped.clear()
        held, self._held = self._held, []
        for handle in held:
            asyncio.get_running_loop().call_soon(handle.run_held, context=Context())

    def call_at_await(self, k: int, action: Callable[[], object]) -> None:
        """Call `action` right after the k-th await was reached, before anything else happens."""
        assert k > self.awaits, f"host {self.name} is past await {k}"
        self.stop_at = k
        self._action = action

    def kill_at(self, k: int) -> None:
        """Kill the host at the k-th await."""
        self.call_at_await(k, self.kill)

    def pause_at(self, k: int, *, for_: timedelta) -> None:
        """Pause the host at the k-th await, for a while."""
        self.call_at_await(k, partial(self._pause_for, for_.total_seconds()))

    def act_at_await(self, task: asyncio.Task[Any]) -> None:
        """Run the planned action; called by the loop when this task reached the await set by `call_at_await`."""
        self.place = describe_suspension(task)
        self._action()

    def hold_callback(self, handle: HeldCallback) -> None:
        """Keep a callback that fell due while this host does not run."""
        self._held.append(handle)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Register a task that was started under this host; called by the loop."""
        self._tasks[self._started] = task
        self._started += 1

    def prepare_shutdown(self) -> None:
        """Cancel planned actions, kill the host if it is paused, and wake whoever waits for its dead tasks."""
        self.stop_at = 0
        if not self.running:
            self.kill()
        for part in self._remains:
            if isinstance(part, asyncio.Task):
                # Unlike Task.cancel this runs no code of the dead task: it wakes whoever waits for it and drops its
                # failure.
                asyncio.Future.cancel(part)

    def unobserved_failures(self) -> Iterator[BaseException]:
        """Yield the failures of spawned tasks that nobody observed."""
        for task in self._spawned:
            if task.done() and not task.cancelled() and task._log_traceback:  # noqa: SLF001  true until somebody reads the exception
                error = task.exception()
                assert error is not None, "asyncio logs failures only"
                yield error

    def close_coroutines(self) -> None:
        """Close a dead host's coroutines at the end of a run: their finally blocks run now."""
        remains, self._remains = self._remains, []
        self._held.clear()
        for part in remains:
            if isinstance(part, asyncio.Task):
                close_coroutine(part)

    def _pause_for(self, seconds: float) -> None:
        self.pause()
        asyncio.get_running_loop().call_later(seconds, self.resume, context=Context())


HOST: Final[ContextVar[Host | None]] = ContextVar("HOST", default=None)
"""The host on which the current code runs; None means the simulated world outside of all hosts."""


def describe_suspension(task: asyncio.Task[Any]) -> str:
    """Return where a task is suspended, outermost frame first, without asyncio's own frames."""
    if task.done():
        return f"the end of {getattr(task.get_coro(), '__name__', task.get_name())}"
    frames = [
        frame for part in _await_chain(task.get_coro()) for name in _FRAMES if (frame := getattr(part, name, None))
    ]
    shown = [
        f"{_short_path(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
        for frame in frames
        if frame.f_code.co_name != "__await__" and not frame.f_code.co_filename.startswith(_ASYNCIO)
    ]
    return " > ".join(shown) or "asyncio"


def close_coroutine(task: asyncio.Task[Any]) -> None:
    """Finish a suspended task's coroutine without a loop, whatever its finally blocks do."""
    coro = task.get_coro()
    # Unlike close, throw can be repeated when a finally block awaits, so no half-closed coroutine is left.
    with contextlib.suppress(_CloseCoroutine, Exception, asyncio.CancelledError):
        for _ in range(_MOST_THROWS):
            coro.throw(_CloseCoroutine())


class _CloseCoroutine(BaseException):
    """Thrown into coroutines to close them; nobody catches it."""


def _await_chain(awaitable: object) -> list[object]:
    chain = []
    while awaitable is not None:
        chain.append(awaitable)
        awaitable = next((inner for name in _INNER if (inner := getattr(awaitable, name, None)) is not None), None)
    return chain


def _short_path(path: str) -> str:
    here = os.getcwd() + os.sep  # noqa: PTH109  a string is cut off a string
    return path.removeprefix(here)
