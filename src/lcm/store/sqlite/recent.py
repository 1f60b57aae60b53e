"""Entries of the SQLite engine that were read recently, and how it is known that they are still the newest.

`store.sqlite.engine` has one of the two: `OwnEntries` where this process alone writes to the file, `SharedEntries`
where others do too. Both keep the promise of a store: whoever learned of a commit, by its answer or by a watch, never
reads the state before it.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from lcm.store.base import Entry, Op, Put
from lcm.store.sqlite.file import ChangeCounter

MAX_CACHED_ENTRIES: Final = 10_000
MAX_CACHED_BYTES: Final = 16_384

Known = tuple[Entry | None]
"""The newest entry of a key; None in it means that there is no such key."""


class OwnEntries:
    """A cache of the newest entries of the keys that were read last, in a file to which nobody else writes.

    A key that is being written is neither answered from the cache nor added to it until the write is over.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Known] = OrderedDict()
        self._writing: Counter[str] = Counter()
        self.state = 0
        """Grows when a write begins or ends. What was requested before such a change must not be cached after it."""

    def get(self, key: str) -> Known | None:
        """Return what is cached of a key; None means that nothing is."""
        known = self._entries.get(key)
        if known is not None:
            self._entries.move_to_end(key)
        return known

    def add(self, key: str, entry: Entry | None, *, asked_at: int) -> None:
        """Add what was read of a key to the cache, unless a write began or ended since `asked_at`."""
        if asked_at == self.state and not self._writing[key]:
            self._keep(key, entry)

    def follow_write(self, ops: Sequence[Op], committing: asyncio.Future[int]) -> None:
        """Drop the keys of a commit until it is over; what it put there is cached then if the keys were before."""
        self.state += 1
        before: dict[str, Known | None] = {}
        for op in ops:
            self._writing[op.key] += 1
            before[op.key] = self._entries.pop(op.key, None)
        committing.add_done_callback(lambda done: self._end_write(ops, before, done))

    def clear(self) -> None:
        """Drop all entries."""
        self.state += 1
        self._entries.clear()

    def expire(self) -> None:
        """Do nothing: a key that is being written is not cached."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _end_write(
        self, ops: Sequence[Op], before: Mapping[str, Known | None], committing: asyncio.Future[int]
    ) -> None:
        self.state += 1
        for op in ops:
            self._writing[op.key] -= 1
            if not self._writing[op.key]:
                del self._writing[op.key]
        if committing.cancelled() or committing.exception():
            return
        for op in ops:
            known = before[op.key]
            if isinstance(op, Put) and known is not None and op.key not in self._writing:
                revision = committing.result()
                created = known[0].created if known[0] else revision
                self._keep(op.key, Entry(op.key, op.value, dict(op.labels), revision, created))

    def _keep(self, key: str, entry: Entry | None) -> None:
        if entry is not None and len(entry.value) > MAX_CACHED_BYTES:
            return
        self._entries[key] = (entry,)
        if len(self._entries) > MAX_CACHED_ENTRIES:
            self._entries.popitem(last=False)


class SharedEntries:
    """A cache of entries that were read last, in a file to which others write too.

    An entry is the newest while nothing at all was committed since just before it was read, which SQLite tells. It is
    asked once for all that was due before it was asked: a later request finds that the answer has expired.
    """

    def __init__(self, counter: ChangeCounter) -> None:
        self._counter = counter
        self._entries: OrderedDict[str, tuple[Known, int]] = OrderedDict()
        self._state: int | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def state(self) -> int:
        """What the file is like: a number that differs after every commit, 0 if it is not known."""
        if self._state is None:
            self._state = self._counter.read()
            # Whatever runs before this was due before the file was asked; what comes in from now on runs after it.
            self._loop.call_soon(self.expire)
        return self._state

    def expire(self) -> None:
        """Forget the state of the file, so that SQLite is asked again: somebody may have been told of a commit."""
        self._state = None

    def get(self, key: str) -> Known | None:
        """Return what is cached of a key; None means that nothing is."""
        known = self._entries.get(key)
        return known[0] if known is not None and known[1] == self.state else None

    def add(self, key: str, entry: Entry | None, *, asked_at: int) -> None:
        """Add what was read of a key to the cache; it was requested after the file was in the state `asked_at`."""
        if not asked_at or (entry is not None and len(entry.value) > MAX_CACHED_BYTES):
            return
        self._entries[key] = (entry,), asked_at
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_CACHED_ENTRIES:
            self._entries.popitem(last=False)

    def follow_write(self, ops: Sequence[Op], committing: asyncio.Future[int]) -> None:
        """Do nothing: a commit of this process changes the state of the file as those of others do."""

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()

    def close(self) -> None:
        """Close the connection to the file. May be repeated."""
        self._counter.close()
