"""An event loop in a thread of its own, for what must go on while the main loop is busy. Made by `compose`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class SideLoop(Generic[T]):
    """Runs coroutines beside the main loop, with something that belongs to that side, such as a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, own: T) -> None:
        self._loop = loop
        self._own = own

    @classmethod
    @asynccontextmanager
    async def open(cls, name: str, open_own: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[Self]:
        """Start the thread; `open_own` is called in it, and what that gives is used and closed there.

        Raises what opening it raises. At the end, what still runs there is cancelled.
        """
        ready: Future[tuple[Self, Callable[[], object]]] = Future()

        async def live() -> None:
            async with open_own() as own:
                loop, stop = asyncio.get_running_loop(), asyncio.Event()
                ready.set_result((cls(loop, own), lambda: loop.call_soon_threadsafe(stop.set)))
                await stop.wait()

        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=name) as thread:
            life: asyncio.Future[Any] = asyncio.wrap_future(thread.submit(asyncio.run, live()))
            begun: asyncio.Future[Any] = asyncio.wrap_future(ready)
            await asyncio.wait({life, begun}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                begun.cancel()
                life.result()
            made, end = begun.result()
            try:
                yield made
            finally:
                end()
                await life

    async def run(self, work: Callable[[T], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine there, and wait for its end; who stops waiting cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(self._own), self._loop))
