"""Virtual time: an asyncio loop on which sleeps and time-outs jump instead of waiting.

Tests and the simulation enter through `run`. A deadlock, a livelock or an unobserved error ends the run with an error
that says which task waits where. While a virtual loop runs, asyncio finds it without a system call.
"""

import asyncio
import heapq
import itertools
import selectors
from asyncio import AbstractEventLoop, Handle, Task, events, tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from threading import get_ident
from types import BuiltinMethodType
from typing import Any, Final, Self, TypeVar, TypeVarTuple
from weakref import WeakSet

from lcm.sim.time.callbacks import STEP_TYPES, WAKE_UP, Callback, Timer, is_task_step, run_step
from lcm.sim.time.host import HOST, Host, close_coroutine, describe_suspension


@contextmanager
def patch_loop_lookup(loop: "VirtualLoop") -> Iterator[None]:
    """Make asyncio find this loop, and the task running on it, without a system call in this thread."""
    any_loop, any_task = asyncio.get_running_loop, asyncio.current_task
    any_loop_or_none = asyncio._get_running_loop  # noqa: SLF001  locks and queues ask this, by no other name

    def running() -> AbstractEventLoop:
        return loop if get_ident() == loop._thread_id else any_loop()  # noqa: SLF001  the base class's own: None while it does not run

    def running_or_none() -> AbstractEventLoop | None:
        return loop if get_ident() == loop._thread_id else any_loop_or_none()  # noqa: SLF001  likewise

    def current(other: AbstractEventLoop | None = None) -> Task[Any] | None:
        return any_task(other or running())

    with ExitStack() as undo:
        for module, name, found in (
            (asyncio, "get_running_loop", running),
            (events, "get_running_loop", running),
            (events, "_get_running_loop", running_or_none),
            (asyncio, "current_task", current),
            (tasks, "current_task", current),
        ):
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, found)
        yield


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
HORIZON: Final = timedelta(days=366)
ROUNDS: Final = 1_000_000

_CLEANUP_SECONDS: Final = 86_400.0
_MANY_TIMERS: Final = 100
_NO_HANDLE: Any = None
"""What scheduling a task's step returns: whoever schedules one does not look at it."""
_running: Final[list["VirtualLoop"]] = []
"""The running virtual loop, if there is one: asyncio's own lookup makes a system call."""


class Deadlock(AssertionError):
    """Tasks wait, and nothing is left that could wake them."""


class LimitExceeded(AssertionError):
    """The limit on virtual time, or on the loop's turns at one moment, was exceeded."""


class UnobservedFailure(AssertionError):
    """An error occurred where nobody would have seen it."""


class VirtualClock:
    """The virtual loop's clock."""

    def now(self) -> datetime:
        assert _running, "virtual time passes on a virtual loop only: see lcm.sim.time.loop.run"
        return _running[0].moment


class VirtualStopwatch:
    """A stopwatch that reads the virtual loop's seconds."""

    def seconds(self) -> float:
        assert _running, "virtual time passes on a virtual loop only: see lcm.sim.time.loop.run"
        return _running[0].time()


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    start: datetime = START,
    horizon: timedelta = HORIZON,
    rounds: int = ROUNDS,
) -> T:
    """Run a program in virtual time to its end, and clean up what it left behind.

    `horizon` limits virtual time, `rounds` the turns of the loop at any one moment. Check results within `main`:
    at the end the coroutines of killed hosts are closed, which runs the finally blocks that the kill skipped.
    """
    loop = VirtualLoop(start=start, horizon=horizon, rounds=rounds)
    _running.append(loop)
    try:
        with patch_loop_lookup(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                result = runner.run(main())
            finally:
                loop.prepare_shutdown()
    finally:
        loop.close_coroutines()
        _running.remove(loop)
    loop.raise_unobserved()
    return result


async def _compute(func: Callable[[*Ts], T], args: tuple[*Ts]) -> T:
    return func(*args)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, whose callbacks stop with their host."""

    _ready: deque[Any]
    _scheduled: list[tuple[float, int, Timer]]
    _asyncgens: WeakSet[AsyncGenerator[Any, Any]]
    _stopping: bool
    _closed: bool
    _thread_id: int | None

    def __init__(self, *, start: datetime = START, horizon: timedelta = HORIZON, rounds: int = ROUNDS) -> None:
        self.start = start
        self.moment = start
        """The time as a moment; cached, because it is read far more often than it changes."""
        self._hosts: dict[Host, None] = {}
        self._numbers = itertools.count()
        self._order = itertools.count()
        self._cancelled_timers = 0
        self._time = _VirtualTime(horizon.total_seconds(), rounds, self._describe_pending)
        super().__init__(self._time)
        # With a large time the usual 1 ns is lost in rounding, and a due timer would never be found.
        self._clock_resolution = 1e-6
        self.set_exception_handler(self._record_error)

    def time(self) -> float:
        return self._time.now

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **kwargs: Any,  # noqa: ANN401  whatever newer Pythons add
    ) -> asyncio.Task[T]:
        task = _NumberedTask(next(self._numbers), coro, loop=self, name=name, context=context, **kwargs)
        host = _host_of_context(context)
        if host is not None:
            self._hosts[host] = None
            host.add_task(task)
        return task

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Timer:
        when = self._time.now + delay
        timer = Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, next(self._order), timer))
        return timer

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Timer:
        timer = Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, next(self._order), timer))
        return timer

    def timer_cancelled(self) -> None:
        """Count a cancelled timer, and remove all cancelled ones once they are the majority."""
        self._cancelled_timers += 1
        scheduled = self._scheduled
        if self._cancelled_timers * 2 > len(scheduled) > _MANY_TIMERS:
            self._scheduled = [one for one in scheduled if not one[2]._cancelled]  # noqa: SLF001
            heapq.heapify(self._scheduled)
            self._cancelled_timers = 0

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Handle:
        # Called for everything that happens, so it leaves out the base class's debug checks.
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if context is None:
            context = copy_context()
        kind = type(callback)
        is_wake_up = kind is BuiltinMethodType and callback.__name__ == WAKE_UP
        if is_wake_up or kind in STEP_TYPES or is_task_step(callback):
            self._ready.append((context.get(HOST), context, callback, args))
            return _NO_HANDLE  # type: ignore[no-any-return]  # who schedules a step of a task does not look at it
        handle = Callback(callback, args, self, context, context.get(HOST))
        self._ready.append(handle)
        return handle

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run what has a thread of its own for computing at once: it takes no virtual time.

        What would run in any thread waits for the outside, and is refused.
        """
        if executor is None:
            raise AssertionError(
                f"{func!r} wants a thread, and threads cannot run in virtual time: "
                "use parts that need none, such as the memory store and in-memory transports"
            )
        return self.create_task(_compute(func, args))

    def prepare_shutdown(self) -> None:
        """Record what failed on hosts, kill those that are paused, and give the rest time to clean up."""
        self._time.begin_cleanup(_CLEANUP_SECONDS)
        for host in self._hosts:
            self._time.errors.extend((f"a task of {host} failed", error) for error in host.unobserved_failures())
            host.prepare_shutdown()
            if host.alive:
                self._asyncgens.update(host.generators)

    def close_coroutines(self) -> None:
        """Close everything that is still suspended after the loop was closed."""
        for host in self._hosts:
            host.close_coroutines()
        for task in asyncio.all_tasks(self):
            close_coroutine(task)

    def raise_unobserved(self) -> None:
        """Raise the first error that nobody observed, if there was one."""
        self._time.raise_unobserved()

    def _call_soon(self, callback: Callable[..., object], args: Sequence[Any], context: Context | None) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Do what the base class does, in its order, without what only real files and threads need.

        Nearly all time of a simulation is spent here. It uses private fields of the base class, which offers no other
        way.
        """
        ready, time, errors = self._ready, self._time, self._time.errors
        while True:
            if ready or self._stopping:
                time.rounds += 1
                if errors or time.rounds > time.most_rounds:
                    time.raise_if_broken()
            else:
                time.advance_to(self._next_timer())
                self.moment = self.start + timedelta(seconds=time.now)
            scheduled, due = self._scheduled, time.now + self._clock_resolution
            while scheduled and scheduled[0][0] < due:
                self._take_timer(ready)
            for _ in range(len(ready)):
                one = ready.popleft()
                if type(one) is tuple:
                    host, context, callback, args = one
                    if host is None:
                        context.run(callback, *args)
                    else:
                        run_step(host, context, callback, args)
                elif not one._cancelled:  # noqa: SLF001  a handle is run as the base class runs it
                    one._run()  # noqa: SLF001  likewise
            if self._stopping:
                return

    def _next_timer(self) -> float | None:
        """Return when the next timer is due; None when there is none."""
        scheduled = self._scheduled
        while scheduled and scheduled[0][2]._cancelled:  # noqa: SLF001
            heapq.heappop(scheduled)
            self._cancelled_timers -= 1
        return scheduled[0][0] if scheduled else None

    def _take_timer(self, ready: deque[Any]) -> None:
        timer = heapq.heappop(self._scheduled)[2]
        if timer._cancelled:  # noqa: SLF001
            self._cancelled_timers -= 1
            return
        timer._scheduled = False  # noqa: SLF001
        ready.append(timer)

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        host = HOST.get()
        if host is None:
            self._asyncgens.add(agen)
        else:
            host.generators.add(agen)

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        # As a task from the start, `kill` finds it; the base class first hides it in a callback.
        if not self.is_closed():
            self.create_task(agen.aclose())

    def _record_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        owner = context.get("future")
        if owner is None or isinstance(
            owner, asyncio.Task
        ):  # whoever awaited another kind of future may have been killed
            self._time.errors.append((context["message"], context.get("exception")))

    def _describe_pending(self) -> str:
        owners = {task: host for host in self._hosts for task in host.tasks}
        tasks = asyncio.all_tasks(self)
        lines = [f"{task.get_name()} {owners.get(task, 'of the world')}: {describe_suspension(task)}" for task in tasks]
        return f"at {self.start + timedelta(seconds=self.time())}\n  " + "\n  ".join(sorted(lines))


class _VirtualTime(selectors.SelectSelector):
    """A selector that advances time instead of waiting; it has nothing to select, since nothing real may register."""

    def __init__(self, limit_seconds: float, rounds: int, pending: Callable[[], str]) -> None:
        super().__init__()
        self.now = 0.0
        self.errors: list[tuple[str, BaseException | None]] = []
        self._limit_seconds = limit_seconds
        self.most_rounds = rounds
        self.rounds = 0
        self._cleaning = False
        self._pending = pending

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        if self.get_map():
            raise AssertionError("real sockets and pipes do not keep virtual time: use in-memory transports")
        return super().register(fileobj, events, data)  # the loop's own pipe, which is never read

    def advance_to(self, when: float | None) -> None:
        """Advance to the next timer; raise Deadlock without one, LimitExceeded past the limit."""
        if self.errors or self.rounds > self.most_rounds:
            self.raise_if_broken()
        if when is None:
            raise Deadlock(f"nothing is left that could wake anybody {self._pending()}")
        if when <= self.now:
            self.rounds += 1
            return
        self.rounds, self.now = 0, when
        if self.now > self._limit_seconds:
            raise LimitExceeded(f"virtual time passed its limit {self._pending()}")

    def raise_if_broken(self) -> None:
        """End the run with an error if an error went unobserved or time does not advance."""
        if not self._cleaning:
            self.raise_unobserved()
        if self.rounds > self.most_rounds:
            raise LimitExceeded(f"{self.most_rounds} rounds went by and time did not move {self._pending()}")

    def begin_cleanup(self, seconds: float) -> None:
        self._cleaning = True
        self.rounds = 0
        self._limit_seconds = self.now + seconds

    def raise_unobserved(self) -> None:
        if self.errors:
            message, error = self.errors[0]
            raise UnobservedFailure(f"{message}: {error!r}") from error


class _NumberedTask(asyncio.Task[T]):
    """A task whose position in a set does not depend on its address: asyncio cancels a group in its set's order."""

    _number: int

    def __new__(cls, number: int, *_args: object, **_kwargs: object) -> Self:
        task = super().__new__(cls)
        task._number = number  # before __init__, which puts the task into a set
        return task

    def __init__(self, _number: int, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **rest: Any) -> None:  # noqa: ANN401
        super().__init__(coro, **rest)

    def __hash__(self) -> int:
        return self._number


def _host_of_context(context: Context | None) -> Host | None:
    return HOST.get() if context is None else context.get(HOST)
