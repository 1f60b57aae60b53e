"""Virtual time: an asyncio loop on which sleeps and time-outs jump instead of waiting.

`run` is the door; tests and the simulation enter through it. A deadlock, a livelock or an error that nobody would see
ends the run with an error that tells which task waits where.
"""

import asyncio
import heapq
import itertools
import selectors
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, Self, TypeVar, TypeVarTuple
from weakref import WeakSet

from lcm.sim.host import HOST, Host, bury, place

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
HORIZON: Final = timedelta(days=366)
ROUNDS: Final = 1_000_000

_CLEANUP_SECONDS: Final = 86_400.0
_Task: Final = asyncio.Task
_METHODS: Final = frozenset(dir(_Task))
_MANY_TIMERS: Final = 100
_MOSTLY_CANCELLED: Final = 0.5
_call = Handle._run  # noqa: SLF001  runs for every callback of a host, where super() would cost more


class Deadlock(AssertionError):
    """Tasks wait, and nothing is left that could wake them."""


class Endless(AssertionError):
    """The limit on virtual time, or on what may happen at one moment, was passed."""


class Unnoticed(AssertionError):
    """An error arose where nobody would have seen it."""


class VirtualClock:
    """The virtual loop's clock."""

    def now(self) -> datetime:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "virtual time passes on a virtual loop only: see lcm.sim.loop.run"
        return loop.moment


class VirtualStopwatch:
    """The virtual loop's seconds."""

    def seconds(self) -> float:
        return asyncio.get_running_loop().time()


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    start: datetime = START,
    horizon: timedelta = HORIZON,
    rounds: int = ROUNDS,
) -> T:
    """Run a program in virtual time to its end, and clean up what it left behind.

    `horizon` limits virtual time, `rounds` the turns of the loop at any one moment. Look at the world within `main`:
    at the end the dead hosts are buried, which runs the finally blocks that their death left out.
    """
    loop = VirtualLoop(start=start, horizon=horizon, rounds=rounds)
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                result = runner.run(main())
            finally:
                loop.wind_down()
    finally:
        loop.bury()
    loop.raise_unnoticed()
    return result


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is made up, and whose callbacks stop with their host."""

    _ready: deque[Handle]
    _scheduled: list["_Timer"]
    _asyncgens: WeakSet[AsyncGenerator[Any, Any]]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self, *, start: datetime = START, horizon: timedelta = HORIZON, rounds: int = ROUNDS) -> None:
        self.start = start
        self.moment = start
        """The time as a moment, which is asked for far more often than it moves on."""
        self._hosts: dict[Host, None] = {}
        self._numbers = itertools.count()
        self._time = _Time(horizon.total_seconds(), rounds, self._pending)
        super().__init__(self._time)
        # Next to a large time the usual 1 ns is lost in rounding, and a timer that is due would never be found due.
        self._clock_resolution = 1e-6
        self.set_exception_handler(self._note)

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
        task = _Numbered(next(self._numbers), coro, loop=self, name=name, context=context, **kwargs)
        host = _host_in(context)
        if host is not None:
            self._hosts[host] = None
            host.adopt(task)
        return task

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        host = _host_in(context)
        if host is None:
            timer = _Timer(when, callback, args, self, context)
        else:
            timer = _HostTimer(when, callback, args, self, context)
            timer.host = host
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # noqa: SLF001  as the base class does, which counts cancelled timers by it
        return timer

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Handle:
        # Runs for all that happens, so it leaves out what the base class checks for debugging.
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        host = HOST.get() if context is None else context.get(HOST)
        if host is None:
            handle = Handle(callback, args, self, context)
        else:
            handle = (_Step if _is_step(callback) else _HostHandle)(callback, args, self, context)
            handle.host = host
        self._ready.append(handle)
        return handle

    def run_in_executor(self, _executor: object, func: Callable[..., object], *_args: object) -> NoReturn:
        raise AssertionError(
            f"{func!r} wants a thread, and threads cannot run in virtual time: "
            "use parts that need none, such as the memory store and in-memory transports"
        )

    def wind_down(self) -> None:
        """Prepare for the end: note what failed on hosts, let die what stands still, give the rest time to clean up."""
        self._time.begin_cleanup(_CLEANUP_SECONDS)
        for host in self._hosts:
            self._time.errors.extend((f"a task of {host} failed", error) for error in host.unnoticed())
            host.wind_down()
            if host.alive:
                self._asyncgens.update(host.generators)

    def bury(self) -> None:
        """Let go of everything that is still suspended after the loop was closed."""
        for host in self._hosts:
            host.bury()
        for task in asyncio.all_tasks(self):
            bury(task)

    def raise_unnoticed(self) -> None:
        """Raise the first error that nobody looked at, if there was one."""
        self._time.raise_unnoticed()

    def _call_soon(self, callback: Callable[..., object], args: Sequence[Any], context: Context | None) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Do what the base class does, in its order, without what only real files and threads need.

        Nearly all time of a simulation passes here, hence the base class's own fields: it offers no other way to them.
        """
        self._forget_cancelled()
        ready, scheduled = self._ready, self._scheduled
        if ready or self._stopping:
            self._time.stand()
        else:
            self._time.move(scheduled[0]._when if scheduled else None)  # noqa: SLF001
            self.moment = self.start + timedelta(seconds=self._time.now)
        due = self._time.now + self._clock_resolution
        while scheduled and scheduled[0]._when < due:  # noqa: SLF001
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # noqa: SLF001
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001
                handle._run()  # noqa: SLF001

    def _forget_cancelled(self) -> None:
        scheduled = self._scheduled
        if len(scheduled) > _MANY_TIMERS and self._timer_cancelled_count / len(scheduled) > _MOSTLY_CANCELLED:
            for timer in scheduled:
                timer._scheduled = not timer._cancelled  # noqa: SLF001
            self._scheduled = [timer for timer in scheduled if timer._scheduled]  # noqa: SLF001
            heapq.heapify(self._scheduled)
            self._timer_cancelled_count = 0
            return
        while scheduled and scheduled[0]._cancelled:  # noqa: SLF001
            heapq.heappop(scheduled)._scheduled = False  # noqa: SLF001
            self._timer_cancelled_count -= 1

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        host = HOST.get()
        if host is None:
            self._asyncgens.add(agen)
        else:
            host.generators.add(agen)

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        # As a task from the start it is found by `kill`; the base class hides it in a callback for a moment.
        if not self.is_closed():
            self.create_task(agen.aclose())

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        owner = context.get("future")
        if owner is None or isinstance(owner, asyncio.Task):  # who waited for another kind of future may be dead
            self._time.errors.append((context["message"], context.get("exception")))

    def _pending(self) -> str:
        owners = {task: host for host in self._hosts for task in host.tasks}
        tasks = asyncio.all_tasks(self)
        lines = [f"{task.get_name()} {owners.get(task, 'of the world')}: {place(task)}" for task in tasks]
        return f"at {self.start + timedelta(seconds=self.time())}\n  " + "\n  ".join(sorted(lines))


class _Time(selectors.SelectSelector):
    """A selector that moves time instead of waiting; there is nothing to select, for nothing real may register."""

    def __init__(self, limit_seconds: float, rounds: int, pending: Callable[[], str]) -> None:
        super().__init__()
        self.now = 0.0
        self.errors: list[tuple[str, BaseException | None]] = []
        self._limit_seconds = limit_seconds
        self._limit_rounds = rounds
        self._round = 0
        self._cleaning = False
        self._pending = pending

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        if self.get_map():
            raise AssertionError("real sockets and pipes do not keep virtual time: use in-memory transports")
        return super().register(fileobj, events, data)  # the loop's own pipe, which is never read

    def move(self, when: float | None) -> None:
        """Go on to the next thing that is due."""
        self._raise_at_once()
        if when is None:
            raise Deadlock(f"nothing is left that could wake anybody {self._pending()}")
        if when <= self.now:
            self._count()
            return
        self.now += when - self.now
        self._round = 0
        if self.now > self._limit_seconds:
            raise Endless(f"virtual time passed its limit {self._pending()}")

    def stand(self) -> None:
        """Stay at this moment for one turn of the loop."""
        self._raise_at_once()
        self._count()

    def _count(self) -> None:
        self._round += 1
        if self._round > self._limit_rounds:
            raise Endless(f"{self._limit_rounds} rounds went by and time did not move {self._pending()}")

    def _raise_at_once(self) -> None:
        if self.errors and not self._cleaning:
            self.raise_unnoticed()

    def begin_cleanup(self, seconds: float) -> None:
        self._cleaning = True
        self._round = 0
        self._limit_seconds = self.now + seconds

    def raise_unnoticed(self) -> None:
        if self.errors:
            message, error = self.errors[0]
            raise Unnoticed(f"{message}: {error!r}") from error


class _Numbered(asyncio.Task[T]):
    """A task whose place in a set does not depend on its address: asyncio cancels a group in its set's order."""

    _number: int

    def __new__(cls, number: int, *_args: object, **_kwargs: object) -> Self:
        task = super().__new__(cls)
        task._number = number  # before __init__, which puts the task into a set
        return task

    def __init__(self, _number: int, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **rest: Any) -> None:  # noqa: ANN401
        super().__init__(coro, **rest)

    def __hash__(self) -> int:
        return self._number


class _HostHandle(Handle):
    """A callback that is made only while its host runs."""

    __slots__ = ("host",)
    host: Host

    def _run(self) -> None:
        if self.host.running:
            _call(self)
        else:
            self.host.hold(self)

    def again(self) -> None:
        if not self._cancelled:
            self._run()


class _Step(_HostHandle):
    """A stretch of a host's task from one await to the next."""

    __slots__ = ()
    _callback: Any

    def _run(self) -> None:
        host = self.host
        if not host.running:
            host.hold(self)
            return
        _call(self)
        host.awaits += 1
        if host.awaits == host.stop_at:
            host.reached(self._callback.__self__)


class _Timer(TimerHandle):
    """A timer that is quickly compared, which is done for each that is set."""

    __slots__ = ()
    _when: float
    _scheduled: bool

    def __lt__(self, other: TimerHandle) -> bool:
        return self._when < other.when()


class _HostTimer(_Timer):
    """A timer that goes off only while its host runs."""

    __slots__ = ("host",)
    host: Host

    _run = _HostHandle._run  # noqa: SLF001
    again = _HostHandle.again


def _host_in(context: Context | None) -> Host | None:
    return HOST.get() if context is None else context.get(HOST)


def _is_step(callback: object) -> bool:
    # What asyncio binds to a task and does not offer as a method (such as cancel) is the task's next step.
    return isinstance(getattr(callback, "__self__", None), _Task) and getattr(callback, "__name__", "") not in _METHODS
