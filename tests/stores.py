"""SQLite stores for tests: opened and closed, on a clock that a test sets, and watched with a time limit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lcm.model.clock import Clock
from lcm.store.base import Changed, Put, Watch
from lcm.store.sqlite import SqliteStore
from lcm.system import SystemClock


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 3, 29, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment

    def step(self, **span: float) -> None:
        self.moment += timedelta(**span)


@contextlib.asynccontextmanager
async def opened(path: Path, clock: Clock | None = None) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, clock=clock or SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def following(watch: Watch, count: int) -> list[Changed]:
    async with asyncio.timeout(10):
        return [await anext(watch) for _ in range(count)]


async def puts(*entries: Put) -> AsyncIterator[Put]:
    for entry in entries:
        yield entry
