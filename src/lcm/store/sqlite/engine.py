"""The embedded engine: one SQLite file, shared by the processes of one machine.

`store.sqlite.file` opens the file, `store.sqlite.rows` reads and `store.sqlite.log` writes its table, and
`store.sqlite.threads` runs both on two threads: nothing here touches the disk on the loop's thread. Entries that were
read recently are kept by `store.sqlite.recent`, which saves a change of thread.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

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
    renew_each,
)
from lcm.store.hub import BACKLOG, Hub, QueueWatch
from lcm.store.sqlite.file import ChangeCounter, check_disk, open_file, read_usage, translate_error
from lcm.store.sqlite.log import CommitLog, HistoryBreak, LogUpdate
from lcm.store.sqlite.recent import OwnEntries, SharedEntries
from lcm.store.sqlite.rows import read_history, read_lease, read_newest, read_page
from lcm.store.sqlite.threads import JobThread, ReadHandler, WriteHandler
from lcm.system.clock import SystemStopwatch


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
        recent: OwnEntries | SharedEntries,
        patient: bool,
    ) -> None:
        self._recent = recent
        self._epoch = log.epoch
        self._path = path
        self._log = log
        self._connection = reading
        self._stopwatch = stopwatch
        self._hub = Hub(self._history, tail=log.revision, backlog=backlog)
        self._reader = JobThread("sqlite-reader", ReadHandler(reading, path), self._publish_updates)
        # Nobody waits for what others write where nobody else does: only leases end unasked.
        waits = isinstance(recent, SharedEntries) and not patient
        self._writer = JobThread(
            "sqlite-writer", WriteHandler(log, path, lambda: waits and bool(self._hub)), self._publish_updates
        )
        self._writer.ended.add_done_callback(lambda _: self._hub.close())

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        stopwatch: Stopwatch | None = None,
        backlog: int = BACKLOG,
        alone: bool = False,
        patient: bool = False,
    ) -> Self:
        """Open the file, or create it. Raises Stuck, without changing it, if it is damaged, foreign or newer.

        Leases expire by the stopwatch, which all processes that share the file must have in common. `alone` means
        that nobody else writes to the file meanwhile, so what was read is known until this process writes it. Watches
        of a `patient` store hear of what others write a quarter of a second later.
        """
        stopwatch = stopwatch or SystemStopwatch()
        log, reading = await asyncio.to_thread(_open_log, path, stopwatch)
        recent = OwnEntries() if alone else SharedEntries(await asyncio.to_thread(ChangeCounter, path))
        return cls(path, log, reading, stopwatch=stopwatch, backlog=backlog, recent=recent, patient=patient)

    @property
    def epoch(self) -> str:
        return self._epoch

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        check_commit(ops, events, fence)
        committing = self._writer.submit(partial(self._log.commit, ops, events, fence))
        self._recent.follow_write(ops, committing)
        return await asyncio.shield(committing)  # who stops waiting does not stop the commit, and its end must be seen

    async def get(self, key: str) -> Entry | None:
        recent = self._recent
        if (known := recent.get(key)) is not None and not self._reader.is_closed:
            return known[0]
        check_key(key)
        asked_at = recent.state
        entry = await self._reader.submit(partial(read_newest, self._connection, key))
        recent.add(key, entry, asked_at=asked_at)
        return entry

    async def get_all(self, *keys: str) -> Sequence[Entry | None]:
        return [await self.get(key) for key in keys]

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        check_scan(limit)
        return await self._reader.submit(partial(read_page, self._connection, prefix, labels, limit, cursor))

    def watch(self, *prefixes: str, after: int) -> QueueWatch:
        watch = self._hub.watch(prefixes, after)
        self._writer.wake()
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        check_lease(name, holder, ttl_seconds)
        return await self._writer.submit(partial(self._log.acquire, name, holder, ttl_seconds))

    async def renew(self, *leases: Lease) -> None:
        await renew_each(self._renew, leases)

    async def _renew(self, lease: Lease) -> None:
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
            self._recent.clear()

    async def close(self) -> None:
        self._hub.close()
        self._recent.close()  # first: only a connection that may write tidies the file up when it is the last
        await self._writer.close()
        await self._reader.close()

    async def _history(self, prefix: str, after: int, until: int) -> tuple[Sequence[CommitChanges], int]:
        return await self._reader.submit(partial(read_history, self._connection, *key_range(prefix), after, until))

    def _publish_updates(self, updates: Sequence[LogUpdate]) -> None:
        self._recent.expire()
        for item in updates:
            if isinstance(item, HistoryBreak):
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
