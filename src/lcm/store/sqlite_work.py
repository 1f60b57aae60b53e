"""What the SQLite engine's two threads do: one reads, the other commits in groups and looks out for other processes."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from lcm.model.errors import LcmError, Stuck
from lcm.store.sqlite_file import translate
from lcm.store.sqlite_lane import Answer, Job, Said
from lcm.store.sqlite_log import Cut, Log

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
