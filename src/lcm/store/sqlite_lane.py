"""A thread for the SQLite engine: callers on the loop ask, the thread answers, and the loop never waits for a lock.

What was asked in one turn of the loop is handed over as one batch, and answers are fetched in one turn, so that the
price of changing threads is paid per group and not per commit. `sqlite` owns two, one that reads and one that writes.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from lcm.model.errors import Unreachable
from lcm.store.hub import CLOSED
from lcm.store.sqlite_log import News

T = TypeVar("T")

GROUP: Final = 256

Job = tuple[Callable[[], Any], asyncio.Future[Any]]
Answer = tuple[asyncio.Future[Any], Any, BaseException | None]
Said = tuple[Sequence[News], Sequence[Answer]]


class Work(Protocol):
    """What a lane does, on its thread."""

    def pause(self) -> float | None:
        """Return for how many seconds to wait for jobs; None for ever."""
        ...

    def serve(self, jobs: Sequence[Job]) -> Iterable[Said]:
        """Do these jobs, or none when the pause is over; give news and answers as they become known."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Lane:
    """A thread that does jobs in the order they were asked for."""

    def __init__(self, name: str, work: Work, tell: Callable[[Sequence[News]], None]) -> None:
        self._work = work
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._turn: list[Job] = []
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._jobs: deque[Job] = deque()
        self._group: list[Job] = []
        self._said: deque[Said] = deque()
        self._calling = False
        self._last = False
        self._closed = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether nothing more can be asked."""
        return self._closed

    def ask(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Have the call made on the thread. A caller may give up waiting; the call is made all the same."""
        if self._closed:
            raise Unreachable(CLOSED)
        if not self._turn:
            self._loop.call_soon(self._hand_over)
        future: asyncio.Future[T] = self._loop.create_future()
        self._turn.append((call, future))
        return future

    def nudge(self) -> None:
        """End the pause."""
        self._queue.put([])

    async def close(self) -> None:
        """Finish what was asked, then end the thread. May be repeated."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._queue.put(None)
        await asyncio.shield(self.ended)
        self._thread.join()

    def _hand_over(self) -> None:
        batch, self._turn = self._turn, []
        self._queue.put(batch)

    def _deliver(self) -> None:
        # Before the queue is looked at: what the thread adds from now on makes it call again.
        self._calling = False
        while self._said:
            news, answers = self._said.popleft()
            self._tell(news)
            for future, result, error in answers:
                if future.done():
                    continue
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

    def _over(self) -> None:
        self._closed = True
        self._take(self._turn)
        self._gather(0)
        lost = [(future, None, Unreachable(CLOSED)) for _, future in (*self._group, *self._jobs)]
        self._said.append(((), lost))
        self._deliver()
        self.ended.set_result(None)

    def _run(self) -> None:
        try:
            while self._jobs or not self._last:
                if not self._jobs:
                    self._gather(self._work.pause())
                self._group = [self._jobs.popleft() for _ in range(min(GROUP, len(self._jobs)))]
                for said in self._work.serve(self._group):
                    self._say(said)
        finally:
            # Also after a bug of ours, lest callers wait for ever.
            self._work.close()
            self._loop.call_soon_threadsafe(self._over)

    def _gather(self, seconds: float | None) -> None:
        try:
            self._take(self._queue.get(timeout=seconds))
            while True:
                self._take(self._queue.get_nowait())
        except Empty:
            return

    def _take(self, batch: list[Job] | None) -> None:
        if batch is None:
            self._last = True
        else:
            self._jobs.extend(batch)

    def _say(self, said: Said) -> None:
        self._said.append(said)
        if not self._calling:
            self._calling = True
            self._loop.call_soon_threadsafe(self._deliver)
