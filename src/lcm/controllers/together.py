"""Runs several things side by side: the first that fails, or ends, ends them all. Used by `runtime` and `election`.

Unlike a task group it raises the plain error, and a cancellation is never lost behind a failure of the same moment.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run until the first of these ends; what still runs then is cancelled and waited for."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await ended(tasks)


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until the last has come to its end, however often we are told to end ourselves."""
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
            task.exception()  # whoever waits for the first to fail has its error; asyncio would complain of the others
    if hurried:
        raise asyncio.CancelledError
