"""A thread for the SQLite engine: callers on the loop ask, the thread answers, and the loop never waits for a lock.

What was asked in one turn of the loop is handed over as one batch, and answers are fetched in one turn, so that the
price of changing threads is paid per group and not per commit. `sqlite` owns two, one that reads and one that writes.
"""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from lcm.model.base.errors import LcmError, Stuck, Unreachable
from lcm.store.hub import CLOSED
from lcm.store.sqlite.file import translate
from lcm.store.sqlite.log import Cut, Log, News

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


WATCHED_SECONDS: Final = 0.015
UNWATCHED_SECONDS: Final = 0.25

_TOGETHER: Final = 32

_OF_ONE: Final = (LcmError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError)
"""What a wrong argument can raise: it fails its own caller. Anything else is a bug and ends the thread."""


class Reading:
    """Answers several jobs at a time.

    Answered one by one, each would wake the loop, which then takes the interpreter from the jobs that still wait: under
    load that costs several times what the reading does. All at once, the first would wait for the last.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def pause(self) -> None:
        return None

    def serve(self, jobs: Sequence[Job]) -> Iterator[Said]:
        for start in range(0, len(jobs), _TOGETHER):
            yield (), [self._answer(job) for job in jobs[start : start + _TOGETHER]]

    def close(self) -> None:
        self._connection.close()

    def _answer(self, job: Job) -> Answer:
        try:
            return _outcome(job)
        except sqlite3.Error as error:
            return job[1], None, translate(error, self._path)


class Writing:
    """Does all waiting jobs in one transaction, with one wait for the disk; idle, it asks what others wrote."""

    def __init__(self, log: Log, path: Path, watched: Callable[[], bool]) -> None:
        self._log = log
        self._path = path
        self._watched = watched
        self._waited = 0.0

    def pause(self) -> float:
        seconds = WATCHED_SECONDS if self._watched() else UNWATCHED_SECONDS
        self._waited += seconds
        return seconds

    def serve(self, jobs: Sequence[Job]) -> Iterator[Said]:
        if jobs:
            yield self._transact(jobs)
        else:
            yield from self._look()

    def close(self) -> None:
        self._log.close()

    def _transact(self, jobs: Sequence[Job]) -> Said:
        try:
            self._log.begin()
            self._log.reap()
            answers = [_outcome(job) for job in jobs]
            self._log.end()
        except sqlite3.Error as error:
            self._log.abandon()
            answers = [(future, None, translate(error, self._path)) for _, future in jobs]
        return self._log.take_news(), answers

    def _look(self) -> Iterator[Said]:
        try:
            self._log.look()
            if self._waited >= UNWATCHED_SECONDS:
                self._waited = 0.0
                self._reap()
        except sqlite3.Error as error:
            self._log.abandon()
            meaning = translate(error, self._path)
            if not isinstance(meaning, LcmError):
                raise
            if isinstance(meaning, Stuck):
                yield [Cut(self._log.revision, self._log.epoch, meaning)], ()
        if news := self._log.take_news():
            yield news, ()

    def _reap(self) -> None:
        if self._log.has_expired():
            self._log.begin()
            self._log.reap()
            self._log.end()


def _outcome(job: Job) -> Answer:
    call, future = job
    try:
        return future, call(), None
    except _OF_ONE as error:
        return future, None, error
