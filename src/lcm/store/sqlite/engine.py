"""The embedded engine: one SQLite file, shared by the processes of one machine.

`store.sqlite.file` opens the file, `store.sqlite.rows` reads and `store.sqlite.log` writes its table, and
`store.sqlite.threads` runs both on two threads: nothing here touches the disk on the loop's thread. An engine that is
alone on its file caches recently read entries, which saves a change of thread.
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
    CommitChanges,
    Cursor,
    Entry,
    EventReader,
    Fence,
    Lease,
    Op,
    Page,
    Put,
    StoreUsage,
    check_commit,
    check_key,
    check_lease,
    check_scan,
    collect_puts,
    key_range,
)
from lcm.store.hub import BACKLOG, Hub, QueueWatch
from lcm.store.sqlite.file import check_disk, open_file, read_usage, translate_error
from lcm.store.sqlite.log import CommitLog, HistoryBreak, LogUpdate
from lcm.store.sqlite.rows import read_history, read_lease, read_newest, read_page
from lcm.store.sqlite.threads import JobThread, ReadHandler, WriteHandler
from lcm.system.clock import SystemStopwatch

MAX_CACHED_ENTRIES: Final = 2_000
MAX_CACHED_BYTES: Final = 16_384


class RecentEntries:
    """A cache of the newest entries of the keys that were read last.

    A key that is being written is neither answered from the cache nor added to it until the write is over:
    whoever learned of a commit, by its answer or by a watch, never reads the state before it.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._writing: Counter[str] = Counter()
        self.writes = 0
        """Grows when a write begins or ends. What was requested before such a change must not be cached after it."""

    def get(self, key: str) -> Entry | None:
        """Return a key's newest entry if it is cached."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def add(self, entry: Entry, *, asked_at: int) -> None:
        """Add an entry to the cache, unless a write began or ended since `asked_at`."""
        if asked_at != self.writes or self._writing[entry.key] or len(entry.value) > MAX_CACHED_BYTES:
            return
        self._entries[entry.key] = entry
        if len(self._entries) > MAX_CACHED_ENTRIES:
            self._entries.popitem(last=False)

    def begin_write(self, keys: Iterable[str]) -> None:
        """Drop keys that are about to be written."""
        self.writes += 1
        for key in keys:
            self._writing[key] += 1
            self._entries.pop(key, None)

    def end_write(self, keys: Iterable[str]) -> None:
        """Allow keys to be cached again, whatever the outcome of the write."""
        self.writes += 1
        for key in keys:
            self._writing[key] -= 1
            if not self._writing[key]:
                del self._writing[key]

    def clear(self) -> None:
        """Drop all entries."""
        self.writes += 1
        self._entries.clear()


class SqliteStore:
    """A store in a file. Create it with `open`."""

    def __init__(
        self,
        path: Path,
        log: CommitLog,
        reading: sqlite3.Connection,
        *,
        stopwatch: Stopwatch,
        backlog: int,
        alone: bool,
    ) -> None:
        self._recent = RecentEntries() if alone else None
        self._epoch = log.epoch
        self._path = path
        self._log = log
        self._connection = reading
        self._stopwatch = stopwatch
        self._hub = Hub(self._history, tail=log.revision, backlog=backlog)
        self._reader = JobThread("sqlite-reader", ReadHandler(reading, path), self._publish_updates)
        self._writer = JobThread(
            "sqlite-writer", WriteHandler(log, path, lambda: bool(self._hub)), self._publish_updates
        )
        self._writer.ended.add_done_callback(lambda _: self._hub.close())

    @classmethod
    async def open(
        cls, path: Path, *, stopwatch: Stopwatch | None = None, backlog: int = BACKLOG, alone: bool = False
    ) -> Self:
        """Open the file, or create it. Raises Stuck, without changing it, if it is damaged, foreign or newer.

        Leases expire by the stopwatch, which all processes that share the file must have in common. `alone` means
        that nobody else writes to the file meanwhile, so recently read entries are cached.
        """
        stopwatch = stopwatch or SystemStopwatch()
        log, reading = await asyncio.to_thread(_open_log, path, stopwatch)
        return cls(path, log, reading, stopwatch=stopwatch, backlog=backlog, alone=alone)

    @property
    def epoch(self) -> str:
        return self._epoch

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        check_commit(ops, events, fence)
        committing = self._writer.submit(partial(self._log.commit, ops, events, fence))
        if (recent := self._recent) is not None:
            keys = [op.key for op in ops]
            recent.begin_write(keys)
            committing.add_done_callback(lambda _: recent.end_write(keys))
        return await committing

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        recent = self._recent
        if recent is None:
            return await self._reader.submit(partial(read_newest, self._connection, key))
        if (known := recent.get(key)) is not None and not self._reader.is_closed:
            return known
        asked_at = recent.writes
        entry = await self._reader.submit(partial(read_newest, self._connection, key))
        if entry is not None:
            recent.add(entry, asked_at=asked_at)
        return entry

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        check_scan(limit)
        return await self._reader.submit(partial(read_page, self._connection, prefix, labels, limit, cursor))

    def watch(self, prefix: str, *, after: int) -> QueueWatch:
        watch = self._hub.watch(prefix, after)
        self._writer.wake()
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        check_lease(name, holder, ttl_seconds)
        return await self._writer.submit(partial(self._log.acquire, name, holder, ttl_seconds))

    async def renew(self, lease: Lease) -> None:
        await self._writer.submit(partial(self._log.renew, lease.fence()))

    async def release(self, lease: Lease) -> None:
        await self._writer.submit(partial(self._log.release, lease.fence()))

    async def lease(self, name: str) -> Lease | None:
        return await self._reader.submit(partial(read_lease, self._connection, name, self._stopwatch))

    async def compact(self, revision: int) -> None:
        revision = await self._writer.submit(partial(self._log.compact, revision))
        start: int | None = 0
        while start is not None:
            start = await self._writer.submit(partial(self._log.sweep, start, revision))
        while await self._writer.submit(self._log.trim):
            pass

    async def probe(self) -> None:
        await self._writer.submit(self._log.probe)
        await asyncio.to_thread(check_disk, self._path)

    async def usage(self) -> StoreUsage | None:
        return await asyncio.to_thread(read_usage, self._path)

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        puts = await collect_puts(entries)
        try:
            return await self._writer.submit(partial(self._log.load, puts, epoch))
        finally:
            if self._recent is not None:
                self._recent.clear()

    async def close(self) -> None:
        self._hub.close()
        await self._writer.close()
        await self._reader.close()

    async def _history(self, prefix: str, after: int, until: int) -> tuple[Sequence[CommitChanges], int]:
        return await self._reader.submit(partial(read_history, self._connection, *key_range(prefix), after, until))

    def _publish_updates(self, updates: Sequence[LogUpdate]) -> None:
        for item in updates:
            if isinstance(item, HistoryBreak):
                if self._recent is not None:
                    self._recent.clear()
                self._epoch = item.epoch
                self._hub.tail = item.revision
                self._hub.end(item.error)
            else:
                self._hub.publish(item.revision, item.changes)


def _open_log(path: Path, stopwatch: Stopwatch) -> tuple[CommitLog, sqlite3.Connection]:
    writing, reading = open_file(path)
    try:
        return CommitLog(writing, stopwatch), reading
    except sqlite3.Error as error:
        writing.close()
        reading.close()
        raise translate_error(error, path) from error
