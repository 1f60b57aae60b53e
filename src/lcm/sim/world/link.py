"""One process's connection to the store, which can be cut, and can lose answers."""

import asyncio
import itertools
from collections.abc import AsyncIterable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

from lcm.model.base.errors import Relist, Unreachable
from lcm.store.base import EVENTS_KEY, Cursor, Entry, EventReader, Fence, Lease, Op, Page, Put
from lcm.store.hub import QueueWatch
from lcm.store.memory import MemoryStore

T = TypeVar("T")


class StoreLink:
    """The store as one process sees it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._numbers = itertools.count()
        self._watches: WeakValueDictionary[int, QueueWatch] = WeakValueDictionary()
        self.is_cut = False
        self.lost_answers = 0
        """How many of the next commits take effect without an answer to their caller."""

    @property
    def epoch(self) -> str:
        return self._store.epoch

    def cut(self) -> None:
        """Cut the connection: nothing gets through."""
        self.is_cut = True
        self.cut_watches()

    def cut_watches(self) -> None:
        """Break the connections of open watches; the next request gets through."""
        for watch in list(self._watches.values()):
            watch.end(Relist("the connection broke"))

    def mend(self) -> None:
        """Restore the connection."""
        self.is_cut = False

    def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> Coroutine[Any, Any, int]:
        return self._if_connected(self._commit(ops, events, fence))

    def get(self, key: str) -> Coroutine[Any, Any, Entry | None]:
        return self._if_connected(self._store.get(key))

    def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Coroutine[Any, Any, Page]:
        return self._if_connected(self._store.scan(prefix, labels=labels, limit=limit, cursor=cursor))

    def watch(self, prefix: str, *, after: int) -> QueueWatch:
        watch = self._store.watch(prefix, after=after)
        if self.is_cut:
            watch.end(Relist("no connection"))
        self._watches[next(self._numbers)] = watch
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Coroutine[Any, Any, Lease | None]:
        return self._if_connected(self._store.acquire(name, holder, ttl_seconds=ttl_seconds))

    def renew(self, lease: Lease) -> Coroutine[Any, Any, None]:
        return self._if_connected(self._store.renew(lease))

    def release(self, lease: Lease) -> Coroutine[Any, Any, None]:
        return self._if_connected(self._store.release(lease))

    def lease(self, name: str) -> Coroutine[Any, Any, Lease | None]:
        return self._if_connected(self._store.lease(name))

    def compact(self, revision: int) -> Coroutine[Any, Any, None]:
        return self._if_connected(self._store.compact(revision))

    def load(self, entries: AsyncIterable[Put], *, epoch: str) -> Coroutine[Any, Any, int]:
        return self._if_connected(self._store.load(entries, epoch=epoch))

    async def close(self) -> None:
        """Leave the store open: others use it."""
        await asyncio.sleep(0)

    def _if_connected(self, asked: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        if not self.is_cut:
            return asked
        asked.close()
        return _raise_unreachable()

    async def _commit(self, ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> int:
        revision = await self._store.commit(*ops, events=events, fence=fence)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unreachable("no answer came")
        return revision


async def _raise_unreachable() -> NoReturn:
    await asyncio.sleep(0)
    raise Unreachable("the store cannot be reached")
