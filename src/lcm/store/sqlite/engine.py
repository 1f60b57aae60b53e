"""The embedded engine: one SQLite file, shared by the processes of one machine.

`sqlite_file` opens it, `sqlite_rows` reads and `sqlite_log` writes its table, `sqlite_work` says what its two threads
do and `sqlite_lane` runs them. Nothing here touches the disk on the loop's thread.
"""

import asyncio
import sqlite3
from collections import Counter, OrderedDict
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from lcm.model.base.clock import Stopwatch
from lcm.store.base import (
    EVENTS_KEY,
    Changed,
    Cursor,
    Entry,
    EventReader,
    Fence,
    Lease,
    Op,
    Page,
    Put,
    check_commit,
    check_key,
    check_lease,
    check_scan,
    collected,
    key_range,
)
from lcm.store.hub import BACKLOG, Hub, QueueWatch
from lcm.store.sqlite.file import open_file, translate
from lcm.store.sqlite.log import Cut, Log, News
from lcm.store.sqlite.rows import read_history, read_lease, read_newest, read_page
from lcm.store.sqlite.threads import Lane, Reading, Writing
from lcm.system.clock import SystemStopwatch

MOST: Final = 2_000
LARGEST_BYTES: Final = 16_384


class Recent:
    """The newest entries of the keys that were asked for last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._writing: Counter[str] = Counter()
        self.writes = 0
        """Grows when a writing begins or ends; what was asked for before that is not worth keeping after it."""

    def get(self, key: str) -> Entry | None:
        """Give a key's newest entry, if it is known."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def keep(self, entry: Entry, *, asked_at: int) -> None:
        """Remember what was read by a question asked when there had been so many writes."""
        if asked_at != self.writes or self._writing[entry.key] or len(entry.value) > LARGEST_BYTES:
            return
        self._entries[entry.key] = entry
        if len(self._entries) > MOST:
            self._entries.popitem(last=False)

    def begin(self, keys: Iterable[str]) -> None:
        """Forget keys that are about to be written."""
        self.writes += 1
        for key in keys:
            self._writing[key] += 1
            self._entries.pop(key, None)

    def end(self, keys: Iterable[str]) -> None:
        """Let keys be remembered again, whatever became of the writing."""
        self.writes += 1
        for key in keys:
            self._writing[key] -= 1
            if not self._writing[key]:
                del self._writing[key]

    def clear(self) -> None:
        """Forget everything."""
        self.writes += 1
        self._entries.clear()


class SqliteStore:
    """A store in a file. Make it with `open`."""

    def __init__(
        self, path: Path, log: Log, reading: sqlite3.Connection, *, stopwatch: Stopwatch, backlog: int, alone: bool
    ) -> None:
        self._recent = Recent() if alone else None
        self._epoch = log.epoch
        self._log = log
        self._connection = reading
        self._stopwatch = stopwatch
        self._hub = Hub(self._history, tail=log.revision, backlog=backlog)
        self._reader = Lane("sqlite-reader", Reading(reading, path), self._tell)
        self._writer = Lane("sqlite-writer", Writing(log, path, lambda: bool(self._hub)), self._tell)
        self._writer.ended.add_done_callback(lambda _: self._hub.close())

    @classmethod
    async def open(
        cls, path: Path, *, stopwatch: Stopwatch | None = None, backlog: int = BACKLOG, alone: bool = False
    ) -> Self:
        """Open the file, or make it. Raises Stuck, and leaves the file as it is, if it is damaged, foreign or newer.

        Leases end by the stopwatch, which every process that shares the file must have in common. `alone`: nobody else
        writes to the file meanwhile, so that what was read lately need not be read again.
        """
        stopwatch = stopwatch or SystemStopwatch()
        log, reading = await asyncio.to_thread(_open, path, stopwatch)
        return cls(path, log, reading, stopwatch=stopwatch, backlog=backlog, alone=alone)

    @property
    def epoch(self) -> str:
        return self._epoch

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        check_commit(ops, events, fence)
        committing = self._writer.ask(partial(self._log.commit, ops, events, fence))
        if (recent := self._recent) is not None:
            keys = [op.key for op in ops]
            recent.begin(keys)
            committing.add_done_callback(lambda _: recent.end(keys))
        return await committing

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        recent = self._recent
        if recent is None:
            return await self._reader.ask(partial(read_newest, self._connection, key))
        if (known := recent.get(key)) is not None and not self._reader.closed:
            return known
        asked_at = recent.writes
        entry = await self._reader.ask(partial(read_newest, self._connection, key))
        if entry is not None:
            recent.keep(entry, asked_at=asked_at)
        return entry

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        check_scan(limit)
        return await self._reader.ask(partial(read_page, self._connection, prefix, labels, limit, cursor))

    def watch(self, prefix: str, *, after: int) -> QueueWatch:
        watch = self._hub.watch(prefix, after)
        self._writer.nudge()
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        check_lease(name, holder, ttl_seconds)
        return await self._writer.ask(partial(self._log.acquire, name, holder, ttl_seconds))

    async def renew(self, lease: Lease) -> None:
        await self._writer.ask(partial(self._log.renew, lease.fence()))

    async def release(self, lease: Lease) -> None:
        await self._writer.ask(partial(self._log.release, lease.fence()))

    async def lease(self, name: str) -> Lease | None:
        return await self._reader.ask(partial(read_lease, self._connection, name, self._stopwatch))

    async def compact(self, revision: int) -> None:
        revision = await self._writer.ask(partial(self._log.compact, revision))
        start: int | None = 0
        while start is not None:
            start = await self._writer.ask(partial(self._log.sweep, start, revision))

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        puts = await collected(entries)
        try:
            return await self._writer.ask(partial(self._log.load, puts, epoch))
        finally:
            if self._recent is not None:
                self._recent.clear()

    async def close(self) -> None:
        self._hub.close()
        await self._writer.close()
        await self._reader.close()

    async def _history(self, prefix: str, after: int, until: int) -> tuple[Sequence[Changed], int]:
        return await self._reader.ask(partial(read_history, self._connection, *key_range(prefix), after, until))

    def _tell(self, news: Sequence[News]) -> None:
        for item in news:
            if isinstance(item, Cut):
                if self._recent is not None:
                    self._recent.clear()
                self._epoch = item.epoch
                self._hub.tail = item.revision
                self._hub.end(item.error)
            else:
                self._hub.publish(item.revision, item.changes)


def _open(path: Path, stopwatch: Stopwatch) -> tuple[Log, sqlite3.Connection]:
    writing, reading = open_file(path)
    try:
        return Log(writing, stopwatch), reading
    except sqlite3.Error as error:
        writing.close()
        reading.close()
        raise translate(error, path) from error
