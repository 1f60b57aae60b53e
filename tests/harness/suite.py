"""Facts about the whole suite: where things are, how hard it tries, how fast the machine is, which steps were taken."""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from lcm.model.base import machine as machines
from lcm.model.base.machine import StateMachine

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
TOPOLOGIES = sorted((ROOT / "tests" / "topologies").glob("*.yaml"))

Taken = tuple[str, str, str, str]
"""Machine, source, target, by."""

NEVER_TAKEN = {("Reservation", "PENDING", "FAILED", machines.CONTROL_PLANE)}
"""A reservation that does not fit is refused and never stored; the row is where the time limit of PENDING leads."""


def untaken(tables: Iterable[StateMachine[Any]], taken: set[Taken]) -> list[Taken]:
    """List the steps that no test took."""
    rows = [(table.name, str(row.source), str(row.target), row.by) for table in tables for row in table.steps]
    return [step for step in rows if step not in taken | NEVER_TAKEN]


def record(folder: Path, worker: str) -> Callable[[], None]:
    """Note every step that is taken from now on; the result writes the notes down."""
    taken: set[Taken] = set()
    take = StateMachine.check_step

    def noted(self: StateMachine[Any], source: Any, target: Any, **rest: Any) -> Any:
        step = take(self, source, target, **rest)
        taken.add((self.name, str(source), str(target), step.by))
        return step

    StateMachine.check_step = noted  # type: ignore[method-assign]

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / worker).write_text("".join("\t".join(step) + "\n" for step in sorted(taken)))

    return write


def collected(folder: Path) -> set[Taken]:
    """Read what all processes noted."""
    lines = [line for file in folder.glob("*") for line in file.read_text().splitlines()]
    return {(machine, source, target, by) for machine, source, target, by in (line.split("\t") for line in lines)}


TIMES = int(os.environ.get("LCM_CHAOS", "1"))


_STEPS = 200_000
_USUAL_SECONDS = 0.012
"""What the steps below take on the machine that the bars were written on."""


def here(seconds: float) -> float:
    """Return what processor time may take as long here as those seconds there; never less than those."""
    began = time.process_time()
    sum(step * step for step in range(_STEPS))
    return seconds * max(1.0, (time.process_time() - began) / _USUAL_SECONDS)


PATIENCE = 60.0
"""Seconds after which nobody waits any longer, however busy the machine is."""


def own_time(process: int | str = "thread-self") -> float:
    """Return a clock's seconds; it stands still while a thread could run and other programs have the processors.

    The thread is this one, or the main one of the process with that id. Elsewhere than on Linux it never stands still.
    """
    told = Path(f"/proc/{process}/schedstat")
    waited = int(told.read_text().split()[1]) / 1e9 if told.exists() else 0.0
    return time.monotonic() - waited


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Fail when this takes longer than so many seconds of `own_time`."""
    began = own_time()
    async with asyncio.timeout(PATIENCE):
        yield
    assert own_time() - began < seconds


_patient = settings(max_examples=25 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Whether the machine is busy with something else says nothing about the code. `LCM_CHAOS` multiplies the examples."""


def for_all(*values: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for many values of each strategy."""

    def bound(test: Callable[..., None]) -> Callable[..., None]:
        return _patient(given(*values)(test))

    return bound


async def longest_turn(work: Awaitable[object]) -> float:
    """Return for how long work kept everything else waiting at most, in seconds of this thread.

    What other tests left is out of the garbage collector's sight, as loaded code is in a server.
    """
    task, longest = asyncio.ensure_future(work), 0.0
    gc.freeze()
    try:
        while not task.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
        await task
    finally:
        gc.unfreeze()
    return longest
