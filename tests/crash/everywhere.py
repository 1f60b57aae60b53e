"""The crash harness: stops a program at every await it reaches, and checks the result each time.

Called by tests. Every run has a world and a virtual loop of its own; the world outlives the hosts in it.
"""

import asyncio
import inspect
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

from lcm.model.base.errors import Conflict, Deposed
from lcm.sim.time.host import Host
from lcm.sim.time.loop import run

T = TypeVar("T")
W = TypeVar("W")

CrashRun = Callable[["StopPoints", list[Host]], Coroutine[Any, Any, None]]
"""Stops host after host and lets the last one finish, recording them; raises when the outcome is wrong."""

StopPoints = Sequence[tuple[int, int]]
"""At which await of how many each host is stopped, in the order in which they run."""

HORIZON: Final = timedelta(days=1)
"""The limit on a run's virtual time, so that a task which polls in vain is soon cut off."""

REPLACED_ERRORS: Final = (Conflict, Deposed)
"""The errors that a host may get after it was paused and replaced."""


def crash_everywhere(
    name: str,
    world: Callable[[], W | Awaitable[W]],
    body: Callable[[W], Coroutine[Any, Any, object]],
    check: Callable[[W], object | Awaitable[object]],
    *,
    restart_after: timedelta = timedelta(0),
    twice: bool = False,
    horizon: timedelta = HORIZON,
    report: Callable[[str], object] = print,
) -> int:
    """Kill the host that runs `body` at its k-th await, for every k; run `body` again on the same world; `check`.

    Set `restart_after` to the time that the dead host's lease needs to expire. `twice` kills the restarted host as
    well, at each of its own awaits, since recovery code can be wrong too. Returns the number of awaits.
    """
    play = _CrashTest(world, body, check, horizon)
    return _stop_everywhere(f"crash {name}", play, partial(play.crash, restart_after), report, twice=twice)


def pause_everywhere(
    name: str,
    world: Callable[[], W | Awaitable[W]],
    body: Callable[[W], Coroutine[Any, Any, object]],
    check: Callable[[W], object | Awaitable[object]],
    *,
    pause_for: timedelta,
    excused: tuple[type[Exception], ...] = REPLACED_ERRORS,
    horizon: timedelta = HORIZON,
    report: Callable[[str], object] = print,
) -> int:
    """Pause the host that runs `body` at its k-th await, for every k, while a second host runs `body`, and `check`.

    The first resumes after `pause_for` and may fail with an `excused` error; the second may not fail. Returns the
    number of awaits.
    """
    play = _CrashTest(world, body, check, horizon)
    return _stop_everywhere(f"pause {name}", play, partial(play.pause, pause_for, excused), report)


@dataclass(frozen=True)
class _CrashTest(Generic[W]):
    """A world, what hosts do in it, and how it must look afterwards."""

    world: Callable[[], W | Awaitable[W]]
    body: Callable[[W], Coroutine[Any, Any, object]]
    check: Callable[[W], object | Awaitable[object]]
    horizon: timedelta

    def run_to_outcome(self, story: Callable[[], Coroutine[Any, Any, None]]) -> BaseException | None:
        async def main() -> BaseException | None:
            return (await asyncio.gather(story(), return_exceptions=True))[0]

        try:
            return run(main, horizon=self.horizon)
        except AssertionError as error:  # a deadlock, a limit, or an unobserved error
            return error

    async def run_undisturbed(self, host: Host) -> None:
        world = await _await_value(self.world())
        await self._run_to_end(host, world)
        await _await_value(self.check(world))

    async def crash(self, restart_after: timedelta, stops: StopPoints, hosts: list[Host]) -> None:
        world = await _await_value(self.world())
        for k, n in stops:
            hosts.append(Host(f"killed at {k}"))
            hosts[-1].kill_at(k)
            task = self._start(hosts[-1], world)
            await hosts[-1].until_dead()
            await _check_deterministic(hosts[-1], task, k, n)
            await asyncio.sleep(restart_after.total_seconds())
        hosts.append(Host("restarted"))
        await self._run_to_end(hosts[-1], world)
        await _await_value(self.check(world))

    async def pause(
        self, pause_for: timedelta, excused: tuple[type[Exception], ...], stops: StopPoints, hosts: list[Host]
    ) -> None:
        world = await _await_value(self.world())
        [(k, n)] = stops
        host = Host("first")
        hosts.append(host)
        host.pause_at(k, for_=pause_for)
        task = self._start(host, world)
        await host.until_stopped()
        await _check_deterministic(host, task, k, n)
        await self._run_to_end(Host("second"), world)
        await host.until_dead()
        error = task.exception()
        if error is not None and not isinstance(error, excused):
            raise error
        await _await_value(self.check(world))

    async def _run_to_end(self, host: Host, world: W) -> None:
        task = self._start(host, world)
        await host.until_dead()
        await task

    def _start(self, host: Host, world: W) -> asyncio.Task[None]:
        async def main() -> None:
            try:
                await self.body(world)
            finally:
                host.kill()  # a process ends with its main coroutine, and so do its other tasks

        return host.spawn(main())


def _stop_everywhere(
    name: str, play: _CrashTest[W], story: CrashRun, report: Callable[[str], object], *, twice: bool = False
) -> int:
    n = _count_awaits(name, play)
    pending: deque[StopPoints] = deque(((k, n),) for k in range(1, n + 1))
    runs, failures = 1, dict[str, BaseException]()
    while pending:
        stops, hosts = pending.popleft(), list[Host]()
        error = play.run_to_outcome(partial(story, stops, hosts))
        runs += 1
        if error is not None:
            failures[f"{_describe_stops(stops, hosts)}: {error!r}"] = error
        elif twice and len(stops) == 1:
            again = hosts[-1].awaits
            pending.extend((*stops, (j, again)) for j in range(1, again + 1))
    report(f"{name}: {n} awaits, {runs} runs, {len(failures)} failures")
    if failures:
        first, listed = next(iter(failures.values())), "\n  ".join(failures)
        raise AssertionError(f"{name}: {len(failures)} of {runs} runs failed\n  {listed}") from first
    return n


def _describe_stops(stops: StopPoints, hosts: Sequence[Host]) -> str:
    stopped = itertools.zip_longest(stops, (host.place for host in hosts[: len(stops)]))
    return ", then ".join(f"await {k}, {place or 'not reached'}" for (k, _), place in stopped)


def _count_awaits(name: str, play: _CrashTest[W]) -> int:
    host = Host("undisturbed")
    error = play.run_to_outcome(partial(play.run_undisturbed, host))
    if error is not None:
        raise AssertionError(f"{name}: even the undisturbed run failed: {error!r}") from error
    if host.awaits <= 1:
        raise AssertionError(f"{name}: it never awaits, so there is nothing to interrupt")
    return host.awaits


async def _check_deterministic(host: Host, task: asyncio.Task[None], k: int, n: int) -> None:
    if task.done():
        await task
    if host.awaits != k or task.done() != (k == n):
        raise AssertionError(f"not deterministic: {n} awaits undisturbed, but now {host!r}")


async def _await_value(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value
