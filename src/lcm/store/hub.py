"""Fan-out of commits to the watches of one process, for the engines that keep the log themselves.

A watch first reads history in pages, then from a bounded queue. It may lag while it reads history; once it has caught
up, falling behind by more than the backlog ends it.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Final, Self

from lcm.model.base.errors import LcmError, Relist
from lcm.store.base import Change, CommitChanges, key_range

BACKLOG: Final = 10_000
TOO_SLOW: Final = "the reader fell too far behind; list again and watch from there"
CLOSED: Final = "the store was closed"

History = Callable[[str, int, int], Awaitable[tuple[Sequence[CommitChanges], int]]]
"""From (prefix, after, until): commits with after < revision <= until, oldest first, and how far they reach."""


ANY: Final = ""
"""Stands for all first parts of keys."""


class Hub:
    """The watches of a process, and the newest revision that was published to them.

    A commit is passed only to the watches of the keys' first parts, up to a slash, that it touches.
    """

    def __init__(self, history: History, *, tail: int, backlog: int = BACKLOG) -> None:
        self._history = history
        self._backlog = backlog
        self._watches: dict[QueueWatch, None] = {}  # not a set, whose order would differ from run to run
        self._by_part: defaultdict[str, dict[QueueWatch, None]] = defaultdict(dict)
        self._closed = False
        self.tail = tail

    def __bool__(self) -> bool:
        return bool(self._watches)

    def watch(self, prefixes: Sequence[str], after: int) -> "QueueWatch":
        watch = QueueWatch(self, self._history, prefixes, after, self._backlog)
        self._watches[watch] = None
        for part in watch.parts:
            self._by_part[part][watch] = None
        if self._closed:
            watch.end(Relist(CLOSED))
        return watch

    def publish(self, revision: int, changes: Sequence[Change]) -> None:
        """Pass the next commit to every watch. Revisions must arrive in order, on the loop's thread."""
        self.tail = revision
        parts = dict.fromkeys(change.key.partition("/")[0] for change in changes)
        concerned = [one for part in (*parts, ANY) if (one := self._by_part.get(part))]
        for watch in dict.fromkeys(chain.from_iterable(concerned)):
            watch.feed(revision, changes)

    def end(self, error: LcmError) -> None:
        for watch in tuple(self._watches):
            watch.end(error)

    def close(self) -> None:
        """End every watch, also those opened later."""
        self._closed = True
        self.end(Relist(CLOSED))

    def forget(self, watch: "QueueWatch") -> None:
        self._watches.pop(watch, None)
        for part in watch.parts:
            self._by_part[part].pop(watch, None)


class QueueWatch:
    """One reader: pages of history up to the revision it joined at, then a bounded queue."""

    def __init__(self, hub: Hub, history: History, prefixes: Sequence[str], after: int, backlog: int) -> None:
        self._hub = hub
        self._history = history
        self._prefix = prefixes[0] if len(prefixes) == 1 else ""
        self._prefixes = tuple(prefixes)
        ranges = {prefix: key_range(prefix) for prefix in prefixes}  # refuses what no key begins with
        self._any_key = ranges.get("")
        self.parts = {part if slash else ANY for part, slash, _ in (one.partition("/") for one in prefixes)}
        """The first parts of the keys that it wants."""
        self._read = after
        self._joined = max(after, hub.tail)
        self._page: deque[CommitChanges] = deque()
        self._queue: deque[CommitChanges] = deque()
        self._backlog = backlog
        self._caught_up = False
        self._missed = False
        self._wake: asyncio.Future[None] | None = None
        self._error: LcmError | None = None

    def feed(self, revision: int, changes: Sequence[Change]) -> None:
        if revision <= self._joined or self._missed:
            return
        mine = self._select(changes)
        if not mine:
            return
        if len(self._queue) < self._backlog:
            self._queue.append(CommitChanges(revision, mine))
            self._wake_reader()
        elif self._caught_up:
            self.end(Relist(TOO_SLOW))
        else:
            # Still reading history: what the queue cannot hold is read from history too.
            self._queue.clear()
            self._missed = True

    def end(self, error: LcmError) -> None:
        self._error = self._error or error
        self._hub.forget(self)
        self._wake_reader()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CommitChanges:
        while self._error is None:
            if self._page:
                return self._page.popleft()
            if self._read < self._joined:
                await self._read_page()
            elif self._missed:
                self._joined, self._missed = self._hub.tail, False
            else:
                self._caught_up = True
                if self._queue:
                    return self._queue.popleft()
                await self._wait_for_commit()
        raise self._error

    async def aclose(self) -> None:
        self.end(Relist(CLOSED))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _read_page(self) -> None:
        try:
            page, self._read = await self._history(self._prefix, self._read, self._joined)
            selected = ((one.revision, self._select(one.changes)) for one in page)
            self._page.extend(CommitChanges(revision, mine) for revision, mine in selected if mine)
        except Relist as error:
            self.end(error)

    def _select(self, changes: Sequence[Change]) -> Sequence[Change]:
        if self._any_key is None:
            return [change for change in changes if change.key.startswith(self._prefixes)]
        low, high = self._any_key
        return [change for change in changes if low <= change.key < high]

    async def _wait_for_commit(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _wake_reader(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
