"""What the virtual loop keeps until its turn comes: callbacks, steps of tasks, and timers. Made and run by `sim.loop`.

All that a simulation does begins in one of these, so they leave out what asyncio's own do for debugging. What belongs
to a host is done only while its host runs.
"""

import asyncio
from asyncio import Handle, TimerHandle
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, Final, Protocol

from lcm.sim.time.host import HOST, Host

_Task: Final = asyncio.Task
_METHODS: Final = frozenset(dir(_Task))
_call = Handle._run  # noqa: SLF001  runs for every callback, where super() would cost more


class Keeper(Protocol):
    """A loop that keeps timers."""

    def timer_cancelled(self) -> None:
        """Hear that one of those it keeps need not go off any more."""
        ...


class Callback(Handle):
    """A callback that is made only while its host runs; one of the world's has no host, and is always made."""

    __slots__ = ("host",)
    _callback: Any
    _args: Any
    _loop: Any
    _context: Context
    _repr: str | None
    _source_traceback: None

    def __init__(
        self, callback: Callable[..., object], args: Sequence[Any], loop: object, context: Context, host: Host | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self.host = host

    def _run(self) -> None:
        host = self.host
        if host is None or host.running:
            _call(self)
        else:
            host.hold(self)

    def again(self) -> None:
        if not self._cancelled:
            self._run()


class Step(Callback):
    """A stretch of a host's task from one await to the next."""

    __slots__ = ()
    host: Host

    def _run(self) -> None:
        host = self.host
        if not host.running:
            host.hold(self)
            return
        self._context.run(self._callback, *self._args)  # what the task raises, it keeps
        host.awaits += 1
        if host.awaits == host.stop_at:
            host.reached(self._callback.__self__)


class Timer(TimerHandle):
    """A callback at a moment to come."""

    __slots__ = ("host",)
    _callback: Any
    _args: Any
    _loop: Keeper
    _context: Context
    _repr: str | None
    _source_traceback: None
    _when: float
    _scheduled: bool

    def __init__(
        self, when: float, callback: Callable[..., object], args: Sequence[Any], loop: Keeper, context: Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True
        self.host = self._context.get(HOST)

    _run = Callback._run  # noqa: SLF001
    again = Callback.again

    def cancel(self) -> None:
        if self._cancelled:
            return
        self._cancelled = True
        self._callback = self._args = None
        if self._scheduled:
            self._loop.timer_cancelled()


def is_step(callback: object) -> bool:
    """Tell whether a callback is a task's next step."""
    # What asyncio binds to a task and does not offer as a method (such as cancel) is that.
    return isinstance(getattr(callback, "__self__", None), _Task) and getattr(callback, "__name__", "") not in _METHODS
