"""The loop that runs, found without a system call: asyncio's own way makes one each time it is asked.

`sim.loop` enters it for as long as a virtual loop is in use. Loops of other threads are found as ever.
"""

import asyncio
from asyncio import AbstractEventLoop, Task, events, tasks
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any


@contextmanager
def at_hand(loop: AbstractEventLoop) -> Iterator[None]:
    """Have asyncio find this loop at once in this thread, and the task that runs on it."""
    thread = get_ident()
    any_loop, any_task = asyncio.get_running_loop, asyncio.current_task
    any_loop_or_none = asyncio._get_running_loop  # noqa: SLF001  locks and queues ask this, by no other name

    def running() -> AbstractEventLoop:
        return loop if get_ident() == thread and loop.is_running() else any_loop()

    def running_or_none() -> AbstractEventLoop | None:
        return loop if get_ident() == thread and loop.is_running() else any_loop_or_none()

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
