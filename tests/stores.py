"""SQLite stores for tests: opened and closed, on time that a test sets, and watched with a time limit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lcm.model.base.clock import Stopwatch
from lcm.store.base import CommitChanges, Put, StoreWatch
from lcm.store.sqlite.engine import SqliteStore


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 3, 29, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment

    def step(self, **span: float) -> None:
        self.moment += timedelta(**span)


class HandStopwatch:
    """A stopwatch that a test sets."""

    def __init__(self) -> None:
        self.elapsed = 1_000_000.0

    def seconds(self) -> float:
        return self.elapsed

    def step(self, seconds: float) -> None:
        self.elapsed += seconds


@contextlib.asynccontextmanager
async def opened(path: Path, stopwatch: Stopwatch | None = None) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, stopwatch=stopwatch)
    try:
        yield store
    finally:
        await store.close()


async def following(watch: StoreWatch, count: int) -> list[CommitChanges]:
    async with asyncio.timeout(60):
        return [await anext(watch) for _ in range(count)]


async def puts(*entries: Put) -> AsyncIterator[Put]:
    for entry in entries:
        yield entry
