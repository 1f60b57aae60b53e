"""Places where a store's clients meet: one state, opened as often as a test likes. Every engine has one."""

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from lcm.store.base import LEASES_PREFIX, Store, scan_all
from lcm.store.etcd.engine import EtcdStore
from lcm.store.hub import BACKLOG
from lcm.store.memory import MemoryStore
from lcm.store.sqlite.engine import SqliteStore

_serial = itertools.count()


class Arena(Protocol):
    """One state; `open` gives another client of it."""

    async def open(self, *, backlog: int = BACKLOG) -> Store: ...


class MemoryArena:
    """The memory engine has one process only: every client is the same object."""

    def __init__(self) -> None:
        self._store: MemoryStore | None = None

    async def open(self, *, backlog: int = BACKLOG) -> Store:
        self._store = self._store or MemoryStore(backlog=backlog)
        return self._store


class OpenedArena:
    """Every client is opened anew, and closed at the end."""

    def __init__(self, opener: Callable[[int], Awaitable[Store]]) -> None:
        self._opener = opener
        self._opened: list[Store] = []

    async def open(self, *, backlog: int = BACKLOG) -> Store:
        store = await self._opener(backlog)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class SharedArena(OpenedArena):
    """Several arenas share one server, on which a lease that ran out during a later test would spend a revision."""

    async def close(self) -> None:
        store = await self.open()
        for entry in (await scan_all(store, LEASES_PREFIX)).entries:
            lease = await store.lease(entry.key.removeprefix(LEASES_PREFIX))
            if lease is not None:
                await store.release(lease)
        await super().close()


def sqlite_arena(folder: Path, *, alone: bool = False) -> OpenedArena:
    path = folder / f"store-{next(_serial)}.db"
    return OpenedArena(lambda backlog: SqliteStore.open(path, backlog=backlog, alone=alone))


def etcd_arena(endpoint: str) -> OpenedArena:
    root = f"/test-{next(_serial)}/"
    return SharedArena(lambda backlog: EtcdStore.open([endpoint], root=root, backlog=backlog))
