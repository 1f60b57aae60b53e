"""The two threads of the SQLite engine: callers on the loop submit jobs, so the loop never waits for a lock.

Jobs submitted in one turn of the loop are handed over as one batch, and results are delivered in one turn, so that the
cost of changing threads is paid per group and not per commit. `ReadHandler` answers reads; `WriteHandler` commits in
groups and, when idle, looks for commits of other processes.
"""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from lcm.model.base.errors import LcmError, Stuck, Unreachable, WentBack
from lcm.store.hub import CLOSED
from lcm.store.sqlite.file import FileIdentity, translate_error
from lcm.store.sqlite.log import CommitLog, HistoryBreak, LogUpdate

T = TypeVar("T")

MAX_GROUP: Final = 256

Job = tuple[Callable[[], Any], asyncio.Future[Any]]
JobResult = tuple[asyncio.Future[Any], Any, BaseException | None]
Delivery = tuple[Sequence[LogUpdate], Sequence[JobResult]]


class JobThread:
    """A thread that does jobs in the order in which they were submitted.

    Its handler says how many seconds to wait for jobs, None for ever. It serves them, or none when the wait is over,
    and yields updates and results as they become known.
    """

    def __init__(
        self, name: str, work: "ReadHandler | WriteHandler", tell: Callable[[Sequence[LogUpdate]], None]
    ) -> None:
        self._work = work
        self._publish = tell
        self._loop = asyncio.get_running_loop()
        self._pending: list[Job] = []
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._jobs: deque[Job] = deque()
        self._group: list[Job] = []
        self._deliveries: deque[Delivery] = deque()
        self._delivery_scheduled = False
        self._closing = False
        self._closed = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """True when nothing more can be submitted."""
        return self._closed

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run the call on the thread. A caller may stop waiting; the call is made nevertheless."""
        if self._closed:
            raise Unreachable(CLOSED)
        if not self._pending:
            self._loop.call_soon(self._submit_batch)
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending.append((call, future))
        return future

    def wake(self) -> None:
        """End the wait for jobs."""
        self._queue.put([])

    async def close(self) -> None:
        """Finish the submitted jobs, then end the thread. May be called again."""
        if not self._closed:
            self._closed = True
            self._submit_batch()
            self._queue.put(None)
        await asyncio.shield(self.ended)
        self._thread.join()

    def _submit_batch(self) -> None:
        batch, self._pending = self._pending, []
        self._queue.put(batch)

    def _deliver(self) -> None:
        # Reset before reading the queue: whatever the thread adds from now on schedules another delivery.
        self._delivery_scheduled = False
        while self._deliveries:
            updates, answers = self._deliveries.popleft()
            self._publish(updates)
            for future, result, error in answers:
                if future.done():
                    continue
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

    def _finish(self) -> None:
        self._closed = True
        self._add_batch(self._pending)
        self._collect_jobs(0)
        lost = [(future, None, Unreachable(CLOSED)) for _, future in (*self._group, *self._jobs)]
        self._deliveries.append(((), lost))
        self._deliver()
        self.ended.set_result(None)

    def _run(self) -> None:
        try:
            while self._jobs or not self._closing:
                if not self._jobs:
                    self._collect_jobs(self._work.wait_seconds())
                self._group = [self._jobs.popleft() for _ in range(min(MAX_GROUP, len(self._jobs)))]
                for said in self._work.serve(self._group):
                    self._deliveries.append(said)
                    if not self._delivery_scheduled:
                        self._delivery_scheduled = True
                        self._loop.call_soon_threadsafe(self._deliver)
        finally:
            # Also after a bug of ours, so that no caller waits forever.
            self._work.close()
            self._loop.call_soon_threadsafe(self._finish)

    def _collect_jobs(self, seconds: float | None) -> None:
        try:
            self._add_batch(self._queue.get(timeout=seconds))
            while True:
                self._add_batch(self._queue.get_nowait())
        except Empty:
            return

    def _add_batch(self, batch: list[Job] | None) -> None:
        if batch is None:
            self._closing = True
        else:
            self._jobs.extend(batch)


WATCHED_SECONDS: Final = 0.015
UNWATCHED_SECONDS: Final = 0.25

_READS_PER_DELIVERY: Final = 32

_JOB_ERRORS: Final = (LcmError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError)
"""Errors that a wrong argument can cause: they fail their own caller. Any other is a bug and ends the thread."""


class ReadHandler:
    """Answers several read jobs at a time.

    Delivered one by one, each result would wake the loop, which then takes the interpreter from the waiting
    jobs: under load that costs several times as much as the reads. Delivered all at once, the first would
    wait for the last.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def wait_seconds(self) -> None:
        return None

    def serve(self, jobs: Sequence[Job]) -> Iterator[Delivery]:
        for start in range(0, len(jobs), _READS_PER_DELIVERY):
            yield (), [self._run_job(job) for job in jobs[start : start + _READS_PER_DELIVERY]]

    def close(self) -> None:
        self._connection.close()

    def _run_job(self, job: Job) -> JobResult:
        try:
            return _run_call(job)
        except sqlite3.Error as error:
            return job[1], None, translate_error(error, self._path)


class WriteHandler:
    """Does all waiting jobs in one transaction with one wait for the disk; when idle, looks for others' commits."""

    def __init__(self, log: CommitLog, path: Path, watched: Callable[[], bool]) -> None:
        self._log = log
        self._path = path
        self._file = FileIdentity(path)
        self._watched = watched
        self._waited = 0.0

    def wait_seconds(self) -> float:
        seconds = WATCHED_SECONDS if self._watched() else UNWATCHED_SECONDS
        self._waited += seconds
        return seconds

    def serve(self, jobs: Sequence[Job]) -> Iterator[Delivery]:
        if jobs:
            yield self._transact(jobs)
        else:
            yield from self._poll_others()

    def close(self) -> None:
        self._log.close()

    def _transact(self, jobs: Sequence[Job]) -> Delivery:
        try:
            self._file.check()
            self._log.begin()
            self._log.end_expired_leases()
            answers = [_run_call(job) for job in jobs]
            self._log.end()
        except (sqlite3.Error, WentBack) as error:
            self._log.abandon()
            answers = [(future, None, self._meaning(error)) for _, future in jobs]
        return self._log.take_updates(), answers

    def _poll_others(self) -> Iterator[Delivery]:
        try:
            self._log.poll_others()
            if self._waited >= UNWATCHED_SECONDS:
                self._waited = 0.0
                self._file.check()
                if self._log.has_expired_leases():
                    self._log.begin()
                    self._log.end_expired_leases()
                    self._log.end()
        except (sqlite3.Error, WentBack) as error:
            self._log.abandon()
            meaning = self._meaning(error)
            if not isinstance(meaning, LcmError):
                raise
            if isinstance(meaning, Stuck):
                yield [HistoryBreak(self._log.revision, self._log.epoch, meaning)], ()
        if news := self._log.take_updates():
            yield news, ()

    def _meaning(self, error: sqlite3.Error | WentBack) -> LcmError | sqlite3.Error:
        return translate_error(error, self._path) if isinstance(error, sqlite3.Error) else error


def _run_call(job: Job) -> JobResult:
    call, future = job
    try:
        return future, call(), None
    except _JOB_ERRORS as error:
        return future, None, error
