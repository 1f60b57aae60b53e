"""What the virtual loop schedules: callbacks, steps of tasks, and timers. Created and run by `sim.time.loop`.

Everything in a simulation starts in one of these, so they leave out asyncio's debugging support. A host's callbacks
run only while the host runs.
"""

import asyncio
from asyncio import Handle, TimerHandle, futures
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import BuiltinMethodType
from typing import Any, Final, Protocol

from lcm.sim.time.host import HOST, Host

_Task: Final = asyncio.Task
_METHODS: Final = frozenset(dir(_Task))
_WRAPPER: Final = "TaskStepMethWrapper"
"""The type of most steps, which asyncio does not export."""
WAKE_UP: Final = "task_wakeup"
"""The name of the method by which a future wakes its task, which nothing else has."""
STEP_TYPES: Final[set[type]] = set()
"""Types of which every instance is a task's next step, as far as one was seen."""
_SET_RESULT: Final = futures._set_result_unless_cancelled  # type: ignore[attr-defined]  # noqa: SLF001  by which a sleep ends
_call = Handle._run  # noqa: SLF001  runs for every callback, where super() would cost more


class TimerOwner(Protocol):
    """A loop that holds timers."""

    def timer_cancelled(self) -> None:
        """Count one of its timers as cancelled."""
        ...


class Callback(Handle):
    """A callback that runs only while its host runs; one without a host always runs."""

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
        if host is not None and not host.running:
            host.hold_callback(self)
        elif self._callback is _SET_RESULT:  # of nearly every timer; it raises nothing
            self._context.run(_SET_RESULT, *self._args)
        else:
            _call(self)

    def run_held(self) -> None:
        if not self._cancelled:
            self._run()


TaskStep = tuple[Host | None, Context, Any, tuple[Any, ...]]
"""The run of a task from one await to the next: its host, its context, its callback and the callback's arguments.

It is no handle, because nobody cancels one, and nearly everything that the loop runs is one.
"""


@dataclass(frozen=True, slots=True)
class HeldStep:
    """A step of a task that fell due while its host did not run."""

    step: TaskStep

    def run_held(self) -> None:
        """Run it now, if its host runs."""
        run_step(*self.step)


def run_step(host: Host | None, context: Context, callback: Any, args: tuple[Any, ...]) -> None:  # noqa: ANN401  a task's own
    """Run a step of a task, if its host runs; the task stores what it raises."""
    if host is None:
        context.run(callback, *args)
    elif host.running:
        context.run(callback, *args)
        host.awaits += 1
        if host.awaits == host.stop_at:
            host.act_at_await(callback.__self__)
    else:
        host.hold_callback(HeldStep((host, context, callback, args)))


class Timer(TimerHandle):
    """A callback at a future moment."""

    __slots__ = ("host",)
    _callback: Any
    _args: Any
    _loop: TimerOwner
    _context: Context
    _repr: str | None
    _source_traceback: None
    _when: float
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: TimerOwner,
        context: Context | None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True
        self.host = context.get(HOST)

    _run = Callback._run  # noqa: SLF001
    run_held = Callback.run_held

    def cancel(self) -> None:
        if self._cancelled:
            return
        self._cancelled = True
        self._callback = self._args = None
        if self._scheduled:
            self._loop.timer_cancelled()


def is_task_step(callback: Any) -> bool:  # noqa: ANN401  any callback
    """Return whether a callback is a task's next step."""
    if type(callback) is BuiltinMethodType and callback.__name__ == WAKE_UP:
        return isinstance(callback.__self__, _Task)
    if type(callback) in STEP_TYPES:
        return True
    # A step is bound to a task but is not one of its public methods (such as cancel).
    found = isinstance(getattr(callback, "__self__", None), _Task) and getattr(callback, "__name__", "") not in _METHODS
    if found and type(callback).__name__ == _WRAPPER:
        STEP_TYPES.add(type(callback))
    return found
